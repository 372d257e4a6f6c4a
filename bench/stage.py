"""A training stage in swarmd against bare TRL: same model, questions, rewards, steps and batch shapes, in turns.

swarmd's side is its real trainer worker, spoken to over its pipe as the daemon does: from the `Train` command to
`StageTrained`, with checkpoint and rollouts written. Bare TRL's side makes a trainer and calls `train()`, in a process
of its own, and writes nothing. Neither measures held-out accuracy. Both have one torch thread.

A third contestant is the worker with what makes it faster than TRL switched off (`bench.worker`): it computes what TRL
computes, so what it takes beyond TRL's time is what swarmd puts around it.

`--model` names a real model in place of the embedded one: its questions are sums, in two shapes of batches, without the
third contestant. `--device` is where both train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any, TypeVar

import msgspec

from bench.measure import Sample, cpu_of, ratios, take_turns
from bench.place import Unavailable
from bench.table import Row
from swarmd.config import Config, SwarmConfig, TrainingConfig, encode
from swarmd.core.commands import Train
from swarmd.core.events import CommandFailed, Event, StageTrained, TrainerReady
from swarmd.worker.messages import (
    FaultMessage,
    FrameReader,
    FromWorker,
    ObservedMessage,
    PerformMessage,
    StartMessage,
    StopMessage,
    encode_frame,
)

PEER = "12D3KooWbench"
STEPS = 12
ROUNDS = 4
GOAL = 0.25  # of TRL's processor time
READY_GOAL_S = 5.0
REAL_GOAL = 0.45  # with a real model
SHAPES = ((4, 8, 32), (4, 4, 128))  # questions, completions of each, tokens of a completion
SUMS = 512  # questions for a real model
STOP_S = 5.0
Kind = TypeVar("Kind", bound=Event)


def run(directory: Path, model: str = "embedded", device: str = "cpu") -> Iterable[Row]:
    if model == "embedded":
        yield from run_embedded(directory)
        return
    for questions, generations, tokens in SHAPES:
        config = configure_sums(directory, model, device, questions, generations, tokens)
        place = directory / f"{questions}x{generations}x{tokens}"
        place.mkdir()
        with swarmd_side(config, place, "swarmd") as ours, bare_side(config, place) as theirs:
            walls = race({"swarmd": ours, "trl": theirs}, 1)
            what = f"{Path(model).name} on {device}, a step of {questions} x {generations} x {tokens} tokens"
            yield compare(f"{what}, wall time", walls["swarmd"], walls["trl"], REAL_GOAL)
            yield compare(f"{what}, processor time", ours.processor_s, theirs.processor_s, REAL_GOAL)
            peaks = [Sample((peak_of(side.process.pid) / 2**30,)) for side in (ours, theirs)]
            yield Row(f"{what}, largest resident memory", "GiB", peaks[0], "bare TRL", peaks[1], ratios(*peaks))
        yield Row("  of the wall time outside train()", "%", Sample(tuple(ours.outside[1:])))
    started_again, goal = Sample((ours.ready_s,)), f"<= {READY_GOAL_S:g} s"
    met = ours.ready_s <= READY_GOAL_S
    yield Row("processor time of a later start until ready", "s", started_again, "goal", goal=goal, met=met)


def configure_sums(directory: Path, model: str, device: str, questions: int, generations: int, tokens: int) -> Config:
    """A node that trains a real model on sums, with one step in a stage."""
    rows = [{"prompt": f"What is {first} + {second}?", "answer": str(first + second)} for first, second in draw_sums()]
    (directory / "sums.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    rewards = [{"name": "numeric", "weight": 1.0}, {"name": "length", "weight": 0.1, "max": 40}]
    options = {"data": str(directory / "sums.jsonl"), "system": "Answer with the number only.", "rewards": rewards}
    training = TrainingConfig(
        model=model,
        device=device,  # type: ignore[arg-type]  # checked where it is decoded
        threads=1,
        steps=1,
        questions=questions,
        generations=generations,
        completion_tokens=tokens,
        learning_rate=1e-5,
        peer_questions=0,
        held_out_questions=0,
    )
    swarm = SwarmConfig(id="bench", coordinator=PEER, kind="file", options={**options, "answer": "last-number"})
    return Config(swarm=swarm, training=training)


def draw_sums() -> list[tuple[int, int]]:
    """Pairs of numbers up to 50, the same each time."""
    random = Random(1)
    return [(random.randint(2, 50), random.randint(2, 50)) for _ in range(SUMS)]


def peak_of(pid: int) -> float:
    """The largest resident memory of a process so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def run_embedded(directory: Path) -> Iterable[Row]:
    training = TrainingConfig(device="cpu", threads=1, steps=STEPS, peer_questions=0, held_out_questions=0)
    config = Config(swarm=SwarmConfig(id="bench", coordinator=PEER), training=training)
    with (
        swarmd_side(config, directory, "swarmd") as ours,
        swarmd_side(config, directory, "slow", ("shared-prompts", "flat-groups")) as slow,
        bare_side(config, directory) as theirs,
    ):
        walls = race({"swarmd": ours, "slow": slow, "trl": theirs}, ROUNDS)
    what = f"stage of {STEPS} steps"
    yield compare(f"{what}, wall time", walls["swarmd"], walls["trl"], GOAL)
    yield compare(f"{what}, processor time", ours.processor_s, theirs.processor_s, GOAL)
    yield compare(f"{what}, its accelerations off, processor time", slow.processor_s, theirs.processor_s, 1.05)
    for name, side in (("", ours), (", its accelerations off", slow)):
        yield Row(f"  of the wall time outside train(){name}", "%", Sample(tuple(side.outside[1:])))


def race(sides: Mapping[str, Side], rounds: int) -> dict[str, Sample]:
    """Wall seconds of a stage, by side; each also keeps its processor time."""
    for side in sides.values():
        side.stage(0)  # the first stage of a process builds what later ones have
    return take_turns({name: side.next_stage for name, side in sides.items()}, rounds)


def compare(what: str, ours: Sample, theirs: Sample, goal: float) -> Row:
    """Seconds against bare TRL's."""
    ratio = ratios(ours, theirs)
    return Row(what, "s", ours, "bare TRL", theirs, ratio, f"<= {goal:g}", ratio.median <= goal)


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

    @property
    def processor_s(self) -> Sample:
        """Processor seconds of the stages after the first."""
        return Sample(tuple(self.cpu[1:]))

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

    def __init__(self, process: subprocess.Popen[bytes], config: Config, directory: Path, peer: str) -> None:
        super().__init__(process)
        self.outside: list[float] = []  # per cent of the wall time of each stage
        self._reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        self.send(StartMessage(encode(config), str(directory), peer))
        self.wait_for(TrainerReady)
        self.ready_s = cpu_of(process.pid)  # processor time

    def send(self, message: StartMessage | PerformMessage | StopMessage) -> None:
        """One frame."""
        stdin, _ = self.pipes
        stdin.write(encode_frame(message))
        stdin.flush()

    def train(self, round: int) -> None:
        began = time.perf_counter()
        self.perform(Train(f"train/{round}/0", round, 0))
        self.outside.append(100 * (1 - self.trained.seconds / (time.perf_counter() - began)))

    def perform(self, order: Train) -> StageTrained:
        """Have a stage trained; the report stays in `trained`."""
        self.send(PerformMessage(order))
        self.trained = self.wait_for(StageTrained)
        return self.trained

    def wait_for(self, kind: type[Kind]) -> Kind:
        """Read frames up to this event. Raises Unavailable when something else comes of it."""
        while chunk := os.read(self.pipes[1].fileno(), 65536):
            for message in self._reader.read_messages(chunk):
                event = message.event if isinstance(message, ObservedMessage) else None
                if isinstance(event, kind):
                    return event
                if isinstance(message, FaultMessage) or isinstance(event, CommandFailed):
                    raise Unavailable(f"the trainer worker failed: {message}")
        raise Unavailable("the trainer worker ended; its stderr is in the log beside its data")


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
def swarmd_side(
    config: Config, directory: Path, name: str, without: Sequence[str] = (), peer: str = PEER
) -> Iterator[Swarmd]:
    """A trainer worker with data and log under `name`, `without` some of its parts (`bench.worker`)."""
    with started(["-m", "bench.worker", *without], directory / f"{name}.log") as process:
        yield Swarmd(process, config, directory / name, peer)


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
