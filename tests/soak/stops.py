"""`python -m tests.soak.stops --stops N`: one node, started and stopped many times at moments drawn from a seed.

Of twenty stops one is by SIGKILL, one by SIGINT and the others by SIGTERM: in a life's first instants, on the way, or
when all of the node runs. Whatever a stop leaves behind ends the run with exit code 1: a process, a socket, a lock, a
temporary file, a port that is still taken, or a round without an outcome. The node is real, with the embedded model.
"""

import argparse
import fcntl
import os
import random
import shutil
import signal
import socket
import stat
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from swarmd.cli.local_swarm import LOOPBACK, DaemonProcess, get_or_make_peer_id, local_node_directories, prepare_nodes
from swarmd.config import load_config
from swarmd.core.events import Event, MemberLeft, NodeStopped, Registered, StageTrained, StopRequested
from swarmd.daemon.process import find_leftovers, node_tag
from swarmd.daemon.service import STOP_SLACK_S
from swarmd.eventlog.store import LOCK_NAME
from swarmd.worker.child import ORPHAN_S
from tests.e2e.audit import assert_clock_monotone, assert_rounds_accounted, assert_trained_once, events_of, verify

QUICK = {
    "coordinator.stage_s": 120.0,
    "dht.poll_s": 2.0,
    "training.steps": 3,
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 4,
}
MOMENTS_S = {"early": 2.0, "late": 8.0, "settled": 3.0}  # longest wait after a start, or after the first trained round
SETTLES_S = 400.0  # longest start, on a busy machine
GONE_S = ORPHAN_S + 30.0  # by then workers have followed a daemon that was killed
UNBEGUN = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT, 1)  # exit codes of Python that was only starting
TORCH_CACHE = "torchinductor_"  # torch makes it once, and leaves it empty here


class LeftBehind(AssertionError):
    """A stop that was not clean."""


class Soak:
    """The lives of one node.

    Args:
        directory: of the node and its temporary files; short, for sockets lie below it.
        seed: of the moments.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        (self.place,) = local_node_directories(directory, 1)
        prepare_nodes((self.place,), 0, QUICK)
        self.peer = get_or_make_peer_id(self.place)
        config = load_config(self.place.config)
        self.port = int(config.dht.listen[0].split("/")[4])
        self.limit_s = 2 * config.workers.stop_s + STOP_SLACK_S
        self.chance = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.stop_s: list[float] = []
        self._scratch = directory / "tmp"
        self._scratch.mkdir()
        self._kills = self._known = 0  # events of the lives before

    def live(self, number: signal.Signals, moment: str) -> None:
        """One life: start, stop, and a look at what it left. Raises LeftBehind."""
        self.daemon = DaemonProcess(self.place)
        with patch.dict(os.environ, TMPDIR=str(self._scratch)):
            self.daemon.start()
        if moment == "settled":
            wait(self._has_trained, SETTLES_S, "the node to train a round")
        time.sleep(self.chance.uniform(0, MOMENTS_S[moment]))
        expect(self.daemon.is_running, f"it ended by itself, with exit code {self.daemon.exit_code}")
        begun_s = time.monotonic()
        self.daemon.send_signal(number)
        expect(self.daemon.wait_for_exit(self.limit_s), f"it did not stop within {self.limit_s:g} s")
        took_s, life = time.monotonic() - begun_s, self._life()
        self.ends[f"{number.name}, {moment}"] += 1
        if number == signal.SIGKILL:
            self._kills += 1
            wait(lambda: not self.leftovers(), GONE_S, "workers to follow the daemon that was killed")
        elif life or self.daemon.exit_code not in UNBEGUN:
            self._check_order(life, number)
            self.stop_s.append(took_s)

    def leftovers(self) -> list[int]:
        """Pids of what the node has started."""
        return find_leftovers(node_tag(self.peer, self.place.root))

    def _life(self) -> list[Event]:
        """What this life logged; no round so far is without an outcome."""
        events = list(events_of(self.place.events)) if self.place.events.is_dir() else []
        for audit in (assert_trained_once, assert_clock_monotone, assert_rounds_accounted):
            audit(events)
        known, self._known = self._known, len(events)
        return events[known:]

    def _has_trained(self) -> bool:
        expect(self.daemon.is_running, f"it ended by itself, with exit code {self.daemon.exit_code}")
        events = list(events_of(self.place.events)) if self.place.events.is_dir() else []
        return any(isinstance(event, StageTrained) for event in events[self._known :])

    def _check_order(self, life: Sequence[Event], number: signal.Signals) -> None:
        """An orderly stop has exit code 0, ends the log, tells the swarm, and leaves nothing."""
        expect(not self.daemon.exit_code, f"exit code {self.daemon.exit_code}")
        expect(bool(life) and life[-1] == NodeStopped(f"signal {number.name}"), f"the log ends with {life[-1:]}")
        asked = next((at for at, event in enumerate(life) if isinstance(event, StopRequested)), len(life))
        was_member = any(isinstance(event, Registered) for event in life[:asked])
        expect(not was_member or MemberLeft(self.peer) in life[asked:], "the leaving was not announced")
        wait(lambda: not self.leftovers(), STOP_SLACK_S, "all processes to be gone")
        for finding in self._traces():
            raise LeftBehind(finding)

    def _traces(self) -> Iterator[str]:
        """What lies about after an orderly stop."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex((LOOPBACK, self.port)) == 0:
                yield f"somebody listens at {self.port}"
        below = [*self.place.root.rglob("*"), *self._scratch.rglob("*")]
        yield from (f"the socket {path} is left" for path in below if stat.S_ISSOCK(path.lstat().st_mode))
        yield from (f"{path} is locked" for path in (self.place.events / LOCK_NAME, self.place.identity) if held(path))
        temporary = [path for path in self._scratch.iterdir() if not path.name.startswith(TORCH_CACHE)]
        yield from (f"{path} is left" for path in temporary)
        unfinished = [path for path in below if path.name.startswith(".") or path.suffix in (".tmp", ".new")]
        if len(unfinished) > self._kills:
            yield f"{unfinished} were begun and not ended"


def held(path: Path) -> bool:
    """Whether somebody has a file locked."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def expect(holds: bool, finding: str) -> None:
    if not holds:
        raise LeftBehind(finding)


def wait(condition: Callable[[], object], longest_s: float, what: str) -> None:
    """Until a condition comes true. Raises LeftBehind when it does not in time."""
    end_s = time.monotonic() + longest_s
    while not condition():
        expect(time.monotonic() < end_s, f"waited {longest_s:g} s for {what}")
        time.sleep(0.05)


def soak(stops: int, seed: int, tell: Callable[[str], object] = print) -> None:
    """Start and stop a node so many times, and once more in order; its log verifies at the end.

    Raises:
        LeftBehind: something was not clean; the node's directory stays.
    """
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    node = Soak(directory, seed)
    try:
        for number in range(1, stops + 2):
            kind = {0: signal.SIGKILL, 10: signal.SIGINT}.get(number % 20, signal.SIGTERM)
            moment = node.chance.choice(list(MOMENTS_S))
            if number > stops or number % 20 == 1:  # the last of all, and the first after each kill, come to train
                kind, moment = signal.SIGTERM, "settled"
            node.live(kind, moment)
            tell(f"{number}: {kind.name}, {moment}")
        verify(node.place.root)
    except AssertionError as error:
        said = "\n  ".join(node.daemon.last_output_lines(20))
        raise LeftBehind(f"seed {seed}, stop {number}, in {directory}: {error}; it said last:\n  {said}") from error
    finally:
        node.daemon.send_signal(signal.SIGKILL)
        for pid in node.leftovers():
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory)
    took = f"{statistics.median(node.stop_s):.2f} s, at most {max(node.stop_s):.2f}"
    tell(f"{dict(node.ends)}; an orderly stop took {took}")


def main() -> int:
    """Run as the command line says. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stops", description=__doc__)
    parser.add_argument("--stops", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored, by children too
    try:
        soak(asked.stops, asked.seed, lambda line: print(line, flush=True))
    except LeftBehind as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
