"""One rank and its engine. Tests fork several of it (`tests.forked`), with RANK and other variables set.

Its standard input is a `Job`, and the first rank tells its `Facts` on standard output. How the trainer worker starts
ranks by exec, and ends them, is for test_ranks.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import torch
from torch.distributed.tensor import DTensor

from swarmd.config import decode
from swarmd.core.values import RolloutsRef
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.models import device
from swarmd.training.ranks import RankGroup, RankInfo
from swarmd.training.worker import load_engine
from swarmd.worker.messages import StartMessage
from tests.training.conftest import after_a_step, order, train_stage

# the other ranks are told by their own job
TOGETHER = cast(RankGroup, SimpleNamespace(start_stage=lambda order: None))


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
    facts.numbers = engine.policy.precision.description
    facts.parameters = sum(engine.policy.sharding.full_shape(parameter).numel() for parameter in parameters)
    facts.parameters_here = sum(map(count_here, parameters))
    facts.moments_here = sum(map(count_here, moments))
    facts.gradient_norm = engine._trainer._gradient_norm
    return facts


def train(engine: TrainingEngine, job: Job) -> Facts:
    """All rounds of a job."""
    facts = Facts()
    for round in job.rounds:
        trained = train_stage(engine, round, job.rollouts)
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


def take_part(job: Job, rank: int) -> Facts:
    """A rank's whole life; only what the first one tells counts."""
    config = decode(job.config)
    if job.computes_bfloat16:
        device.has_bfloat16_hardware = lambda device: True
    start = StartMessage(job.config, job.directory, "a")
    engine = load_engine(start, config, RankInfo(rank, config.training.processes), None if rank else TOGETHER)
    if rank == 0:
        return begin(engine, job) if job.cancelled else train(engine, job)
    for round in job.rounds:
        engine.assist_stage(order(round, job.rollouts), Cancellation())
    return Facts()


def main() -> int:
    answers = os.dup(1)
    os.dup2(2, 1)  # DeepSpeed and others print
    try:
        facts = take_part(msgspec.json.decode(sys.stdin.read(), type=Job), int(os.environ["RANK"]))
        os.write(answers, msgspec.json.encode(facts))
        return 0
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    os._exit(main())  # nothing waits for the other ranks
