"""Attackers in a process of their own, so that whoever watches the nodes has its turns.

`python -m tests.hostile.assail DIRECTORY ATTACKS ADDRESS ...` connects, says "ready", and then does what its standard
input says, a word a line: "act", "rest", or the number of the round that is open. It ends with its input.
"""

import asyncio
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.hostile.actors import Cast
from tests.hostile.priority import begin_session

ROOT = Path(__file__).resolve().parent.parent.parent
READY_S = 120.0
REST_S = 30.0
NICE = 5
NICE_SPINNING = 10


class Assault:
    """The process, from outside. It comes when it is entered, and connects to nodes that run."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._round = -1

    @property
    def pid(self) -> int:
        """Of the attackers' process."""
        return self._process.pid

    def tell(self, round: int) -> None:
        """The round that is open."""
        if round != self._round:
            self._round = round
            self._say(str(round))

    def act(self) -> None:
        """Attack from now on."""
        self._say("act")

    def rest(self) -> None:
        """Return when no attack goes on."""
        self._say("rest")
        self._hear("resting", REST_S)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def _hear(self, word: str, within_s: float) -> None:
        assert self._process.stdout is not None
        heard = select.select([self._process.stdout], [], [], within_s)[0] and self._process.stdout.readline().split()
        if not heard or heard[0] != word.encode():
            raise RuntimeError(f"the attackers did not say {word!r} in {within_s:g} s but {heard!r}")


@contextmanager
def assault(attacks: Sequence[str], addresses: Sequence[str]) -> Iterator[Assault]:
    """Attackers that are connected and rest; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="assail-", dir="/tmp") as directory, busy_core():
        command = [sys.executable, "-m", "tests.hostile.assail", directory, ",".join(attacks), *addresses]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0)
        try:
            attackers = Assault(process)
            attackers._hear("ready", READY_S)
            yield attackers
        finally:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(REST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def busy_core() -> Iterator[None]:
    """What attackers and nodes leave of the attackers' core is used up meanwhile, also while the attackers rest.

    What is looked at is what nodes make of an attack, and not who gets the processor: attackers would come from
    machines of their own.
    """
    with ExitStack() as ended:
        spinning = subprocess.Popen([sys.executable, "-m", "tests.hostile.assail", "spin"], cwd=ROOT)
        ended.callback(spinning.wait)
        ended.callback(spinning.kill)
        yield


def keep_to_core(nice: int) -> None:
    """This process, and what it starts, runs on the last of the cores."""
    begin_session(nice)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


async def main(directory: Path, attacks: Sequence[str], addresses: Sequence[str]) -> None:
    """Do what standard input says."""
    cast = Cast(directory, addresses, attacks)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    try:
        await cast.arrive()
        print("ready", flush=True)
        while word := (await lines.readline()).decode().strip():
            if word == "act":
                cast.act()
            elif word == "rest":
                await cast.rest()
                print("resting", flush=True)
            else:
                cast.round = int(word)
    finally:
        await cast.leave()
        print(f"{cast.turns} turns", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1] == "spin":
        keep_to_core(NICE_SPINNING)
        while True:
            pass
    keep_to_core(NICE)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]))
