"""Ranks with their engines at hand, forked from one process: torch, transformers and TRL are imported once for all.

A process of its own. Each line on its standard input is a `Job`, each on its standard output what `Facts` tells of it.
A rank is a fresh process all the same, for accelerate and DeepSpeed set one up for its rank once and for all; how the
trainer worker starts ranks by exec, and ends them, is for test_ranks.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import torch
from torch.distributed.tensor import DTensor

from swarmd.config import decode
from swarmd.core.values import RolloutsRef
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import set_aside_loaded
from swarmd.training.models import device
from swarmd.training.ranks import OtherRanks, Ranks, read_environment
from swarmd.training.worker import load_engine
from swarmd.worker.messages import Start
from tests.training.conftest import after_a_step, order

TOGETHER = cast(
    OtherRanks, SimpleNamespace(start_stage=lambda order: None)
)  # the other ranks are told by their own job


class Job(msgspec.Struct):
    """One life of all ranks of a node: a stage each round, with what peers published before."""

    config: bytes
    directory: str  # of the node's data
    rounds: list[int]
    rollouts: tuple[RolloutsRef, ...] = ()
    computes_bfloat16: bool = False  # in hardware, as an accelerator does
    cancelled: bool = False  # the first rank cancels the first round after its first step


class Facts(msgspec.Struct):
    """What the first rank holds of the model in the end, and what it reported."""

    numbers: str = ""
    steps: list[int] = []
    held_out: list[float | None] = []
    peer_groups: list[int] = []
    parameters: int = 0
    parameters_here: int = 0
    moments_here: int = 0
    gradient_norm: float = 0.0
    cancelled: bool = False
    error: str = ""  # anything here: a rank has failed, and standard error has the rest


def count_here(tensor: torch.Tensor) -> int:
    """Elements in this process."""
    if isinstance(tensor, DTensor):
        return tensor.to_local().numel()
    return int(getattr(tensor, "ds_tensor", tensor).numel())  # DeepSpeed's name for a rank's part


def describe(engine: TrainingEngine, facts: Facts) -> Facts:
    """What this rank holds."""
    parameters = list(engine.policy.model.parameters())
    optimizer: Any = engine._trainer.optimizer.optimizer
    moments = [each["exp_avg"] for each in getattr(optimizer, "optimizer", optimizer).state.values()]
    facts.numbers = engine.policy.numbers.text
    facts.parameters = sum(engine.policy.holding.shape(parameter).numel() for parameter in parameters)
    facts.parameters_here = sum(map(count_here, parameters))
    facts.moments_here = sum(map(count_here, moments))
    facts.gradient_norm = engine._trainer._gradient_norm
    return facts


def train(engine: TrainingEngine, job: Job) -> Facts:
    """All rounds of a job."""
    facts = Facts()
    for round in job.rounds:
        trained = engine.train(order(round, job.rollouts), Cancellation())
        facts.steps.append(trained.steps)
        facts.held_out.append(trained.held_out)
        facts.peer_groups.append(trained.peer_groups)
    return describe(engine, facts)


def begin(engine: TrainingEngine, job: Job) -> Facts:
    """The first step of a job's first round, which is cancelled then."""
    cancellation = Cancellation()
    with contextlib.suppress(Cancelled):
        engine.train(order(job.rounds[0], job.rollouts), cancellation, after_a_step(cancellation))
        return Facts()
    return Facts(cancelled=True)


def take_part(job: Job, rank: int, environment: Mapping[str, str]) -> Facts:
    """A rank's whole life; only what the first one tells counts."""
    config = decode(job.config)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    if job.computes_bfloat16:
        device.computes_bfloat16 = lambda device: True
    ranks = Ranks(rank, config.training.processes)
    start = Start(job.config, job.directory, "a")
    engine = load_engine(start, config, ranks, None if rank else TOGETHER)
    if rank == 0:
        return begin(engine, job) if job.cancelled else train(engine, job)
    for round in job.rounds:
        engine.assist(order(round, job.rollouts), Cancellation())
    return Facts()


def fork(job: Job, rank: int, environment: Mapping[str, str], told: int) -> int:
    """Start a rank; gives its process id. The first one writes its facts to the descriptor `told`."""
    child = os.fork()
    if child:
        return child
    try:
        facts = take_part(job, rank, environment)
        if rank == 0:
            os.write(told, msgspec.json.encode(facts))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(job: Job) -> bytes:
    """Start a job's ranks and wait for their end."""
    facts, told = os.pipe()
    environment = read_environment(decode(job.config).training)
    ranks = [fork(job, rank, environment, told) for rank in range(int(environment["WORLD_SIZE"]))]
    os.close(told)
    error = wait_for_first(ranks) if job.cancelled else wait_for_all(ranks)
    with os.fdopen(facts, "rb") as reader:
        return msgspec.json.encode(Facts(error=error)) if error else reader.read()


def wait_for_first(ranks: list[int]) -> str:
    """Wait for the first rank, then kill the others, which may fail as soon as it is gone. What went wrong with it."""
    first, *others = ranks
    error = describe_end(0, os.waitpid(first, 0)[1])
    for other in others:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    return error


def wait_for_all(ranks: list[int]) -> str:
    """Wait for all ranks; when one fails, the others are killed. What went wrong with the first that failed."""
    running, error = set(ranks), ""
    while running:
        child, status = os.wait()
        running.remove(child)
        if status and not error:
            error = describe_end(ranks.index(child), status)
            for other in running:
                os.kill(other, signal.SIGKILL)
    return error


def describe_end(rank: int, status: int) -> str:
    return f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}" if status else ""


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # DeepSpeed and others print
    set_aside_loaded()
    for line in sys.stdin:
        os.write(answers, run(msgspec.json.decode(line, type=Job)) + b"\n")


if __name__ == "__main__":
    main()
