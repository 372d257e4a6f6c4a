"""Running out of memory: smaller parts once more, then the stage fails and the next process begins smaller."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.distributed.ranks import OtherRanks
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import is_out_of_memory
from swarmd.training.trainer import SwarmTrainer
from tests.training.conftest import make_config, order

Maker = Callable[..., TrainingEngine]


@pytest.fixture(autouse=True)
def loaded_stays_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller parts have collections walk through all that is loaded once more; test_footprint.py has that."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def exhaust(monkeypatch: pytest.MonkeyPatch, rows_that_fit: int) -> list[int]:
    """Have passes of more completions run out of memory, as a device does. Returns the sizes of all that were tried."""
    tried: list[int] = []
    compute = SwarmTrainer.compute_loss

    def compute_loss(self: SwarmTrainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        tried.append(int(self.args.per_device_train_batch_size))
        if tried[-1] > rows_that_fit:
            raise torch.OutOfMemoryError("out of memory")
        return compute(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(SwarmTrainer, "compute_loss", compute_loss)
    return tried


def test_a_stage_is_trained_in_halves(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()  # four questions of four completions in one pass
    accelerator: Any = engine._trainer.accelerator
    tried = exhaust(monkeypatch, rows_that_fit=8)
    event = engine.train(order(0), Cancellation())
    assert accelerator is not engine._trainer.accelerator
    assert accelerator._optimizers == [], "the optimiser of the larger parts is not held"
    assert event.steps == engine.steps == 2
    assert tried[0] == 16 and set(tried[1:]) == {8}
    assert make_engine()._trainer.args.per_device_train_batch_size == 8


def test_a_stage_fails_after_one_more_try_and_the_next_process_begins_smaller(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    tried = exhaust(monkeypatch, rows_that_fit=4)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        engine.train(order(0), Cancellation())
    assert is_out_of_memory(raised.value)
    assert tried == [16, 8]
    fresh = make_engine()
    assert fresh.train(order(0), Cancellation()).steps == 2
    assert set(tried[2:]) == {4}


def test_the_first_of_several_ranks_tries_no_more_and_the_next_process_begins_smaller(
    tmp_path: Path, make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are in the middle of the stage that failed here: only a fresh start has all of them together."""
    config = make_config()
    crew = cast(OtherRanks, SimpleNamespace(start_stage=lambda order: None))
    engine = TrainingEngine(config, NodeDirectory(tmp_path / "a"), "a", make_plan(config.swarm), crew=crew)
    tried = exhaust(monkeypatch, rows_that_fit=8)
    with pytest.raises(torch.OutOfMemoryError):
        engine.train(order(0), Cancellation())
    assert tried == [16]
    assert make_engine().train(order(0), Cancellation()).steps == 2
    assert set(tried[1:]) == {8}
