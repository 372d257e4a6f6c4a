"""A training stage in swarmd against bare TRL: same model, questions, rewards, steps and batch shapes, in turns.

swarmd's side is its real trainer worker, spoken to over its pipe as the daemon does: from the `Train` command to
`StageTrained`, with checkpoint and rollouts written. Bare TRL's side makes a trainer and calls `train()`, in a process
of its own, and writes nothing. Neither measures held-out accuracy. Both have one torch thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bench.measure import Sample, cpu_of, ratios, take_turns
from bench.place import Unavailable
from bench.table import Row
from swarmd.config import Config, SwarmConfig, TrainingConfig, encode
from swarmd.core.commands import Train
from swarmd.core.events import CommandFailed, Event, StageTrained, TrainerReady
from swarmd.worker.frames import FrameReader, encode_frame
from swarmd.worker.messages import Fault, FromWorker, Observed, Perform, Start, Stop

PEER = "12D3KooWbench"
STEPS = 12
ROUNDS = 6
GOAL = 1.05
STOP_S = 5.0


def run(directory: Path) -> Iterable[Row]:
    training = TrainingConfig(device="cpu", threads=1, steps=STEPS, peer_questions=0, held_out_questions=0)
    config = Config(swarm=SwarmConfig(id="bench", coordinator=PEER), training=training)
    with swarmd_side(config, directory) as ours, bare_side(config, directory) as theirs:
        ours.stage(0)  # the first stage of a process builds what later ones have
        theirs.stage(0)
        walls = take_turns({"swarmd": ours.next_stage, "trl": theirs.next_stage}, ROUNDS)
    cpu, wall = (ours.cpu[1:], theirs.cpu[1:]), (walls["swarmd"], walls["trl"])
    yield from rows(wall, (Sample(tuple(cpu[0])), Sample(tuple(cpu[1]))))


def rows(wall: tuple[Sample, Sample], cpu: tuple[Sample, Sample]) -> Iterable[Row]:
    for what, (ours, theirs) in (("wall time", wall), ("processor time", cpu)):
        ratio = ratios(ours, theirs)
        met = ratio.median <= GOAL
        yield Row(f"stage of {STEPS} steps, {what}", "s", ours, "bare TRL", theirs, ratio, f"<= {GOAL:g}", met)


class Side:
    """One contestant; keeps the processor seconds of each stage."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.cpu: list[float] = []
        self._round = 0

    def next_stage(self) -> float:
        """Seconds of the next round's stage."""
        self._round += 1
        return self.stage(self._round)

    def stage(self, round: int) -> float:
        """Wall seconds of a stage."""
        cpu, began = cpu_of(self.process.pid), time.perf_counter()
        self.train(round)
        wall_s = time.perf_counter() - began
        self.cpu.append(cpu_of(self.process.pid) - cpu)
        return wall_s

    def train(self, round: int) -> None:
        """Have a stage trained."""
        raise AssertionError("each side says how it trains")

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its stdin and stdout."""
        assert self.process.stdin is not None and self.process.stdout is not None
        return self.process.stdin, self.process.stdout


class Swarmd(Side):
    """The trainer worker."""

    def __init__(self, process: subprocess.Popen[bytes], config: Config, directory: Path) -> None:
        super().__init__(process)
        self._reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        self.send(Start(encode(config), str(directory), PEER))
        self.wait_for(TrainerReady)

    def send(self, message: Start | Perform | Stop) -> None:
        """One frame."""
        stdin, _ = self.pipes
        stdin.write(encode_frame(message))
        stdin.flush()

    def train(self, round: int) -> None:
        self.send(Perform(Train(f"train/{round}/0", round, 0)))
        self.wait_for(StageTrained)

    def wait_for(self, kind: type[Event]) -> None:
        """Read frames up to this event. Raises Unavailable when something else comes of it."""
        while chunk := os.read(self.pipes[1].fileno(), 65536):
            for message in self._reader.feed(chunk):
                event = message.event if isinstance(message, Observed) else None
                if isinstance(event, kind):
                    return
                if isinstance(message, Fault) or isinstance(event, CommandFailed):
                    raise Unavailable(f"the trainer worker failed: {message}")
        raise Unavailable("the trainer worker ended; its stderr is in trainer.log")


class BareTrl(Side):
    """`bench.bare_trl` in a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self.read()

    def train(self, round: int) -> None:
        stdin, _ = self.pipes
        stdin.write(b"%d\n" % round)
        stdin.flush()
        self.read()

    def read(self) -> dict[str, Any]:
        """One answer."""
        line = self.pipes[1].readline()
        if not line:
            raise Unavailable("bare TRL ended; its stderr is in bare.log")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def swarmd_side(config: Config, directory: Path) -> Iterator[Swarmd]:
    with started(["-m", "swarmd.training.worker"], directory / "trainer.log") as process:
        yield Swarmd(process, config, directory / "node")


@contextmanager
def bare_side(config: Config, directory: Path) -> Iterator[BareTrl]:
    kept = directory / "config.msgpack"
    kept.write_bytes(encode(config))
    with started(["-m", "bench.bare_trl", str(kept), PEER], directory / "bare.log") as process:
        yield BareTrl(process)


@contextmanager
def started(arguments: list[str], stderr: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process with pipes; it ends when its stdin does."""
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, and kill it when that is not enough."""
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
