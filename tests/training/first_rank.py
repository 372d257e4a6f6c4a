"""The first of several ranks with its engine at hand: trains, and prints as JSON what it holds of the model.

A process of its own, because accelerate sets a process up for its rank once and for all.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec
import torch
from torch.distributed.tensor import DTensor

from swarmd.config import decode
from swarmd.core.values import RolloutsRef
from swarmd.training.cancellation import Cancellation
from swarmd.training.ranks import Crew
from swarmd.training.worker import load_engine
from swarmd.worker.messages import Start
from tests.training.conftest import order


def count_here(tensor: torch.Tensor) -> int:
    """Elements in this process."""
    if isinstance(tensor, DTensor):
        return tensor.to_local().numel()
    return int(getattr(tensor, "ds_tensor", tensor).numel())  # DeepSpeed's name for a rank's part


def end(reason: str) -> None:
    print(reason, file=sys.stderr)
    os._exit(1)


def main(directory: Path, rounds: int, rollouts: tuple[RolloutsRef, ...]) -> None:
    """Train rounds from 1 on with what peers published before, as `config.msgpack` beside the data says."""
    start = Start((directory / "config.msgpack").read_bytes(), str(directory / "data"), "a")
    config = decode(start.config)
    crew = Crew(start, config.training, end)
    engine = load_engine(start, config, crew.ranks, crew)
    trained = [engine.train(order(round, rollouts), Cancellation()) for round in range(1, rounds + 1)]
    parameters = list(engine.policy.model.parameters())
    optimizer = engine._trainer.optimizer.optimizer
    moments = [each["exp_avg"] for each in getattr(optimizer, "optimizer", optimizer).state.values()]
    facts = {
        "numbers": engine.policy.numbers.text,
        "peer_groups": trained[0].peer_groups,
        "parameters": sum(engine.policy.holding.shape(parameter).numel() for parameter in parameters),
        "parameters_here": sum(map(count_here, parameters)),
        "moments_here": sum(map(count_here, moments)),
        "gradient_norm": engine._trainer._gradient_norm,
    }
    crew.end()
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), tuple(msgspec.json.decode(sys.argv[3], type=list[RolloutsRef])))
