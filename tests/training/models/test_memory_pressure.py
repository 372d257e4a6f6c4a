"""Memory: how its want is known, and how smaller parts are tried before the stage fails."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.batches.micro_batch import PARTS, keep_rows, load_rows
from swarmd.training.cancellation import Cancellation
from swarmd.training.distributed.ranks import OtherRanks
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import is_device_lost, is_out_of_memory, measure_bytes
from swarmd.training.trainer import SwarmTrainer
from tests.training.conftest import make_config, order

Maker = Callable[..., TrainingEngine]


@pytest.fixture(autouse=True)
def loaded_stays_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller parts have collections walk through all that is loaded once more."""
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


def test_the_next_process_begins_where_memory_sufficed(tmp_path: Path) -> None:
    assert load_rows(tmp_path, 16, 32) == 16
    keep_rows(tmp_path, 4, 16, 32)
    assert load_rows(tmp_path, 16, 32) == 4


@pytest.mark.parametrize(("first", "batch"), [(8, 32), (16, 64)])
def test_other_settings_begin_anew(tmp_path: Path, first: int, batch: int) -> None:
    keep_rows(tmp_path, 4, 16, 32)
    assert load_rows(tmp_path, first, batch) == first


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b'{"rows":5,"first":16,"batch":32}', b'{"rows":0,"first":16,"batch":32}']
)
def test_a_damaged_note_only_costs_the_lesson(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PARTS).write_bytes(damage)
    assert load_rows(tmp_path, 16, 32) == 16


def test_a_note_that_cannot_be_written_only_costs_the_lesson(tmp_path: Path) -> None:
    """Else an error of the disk would take the place of the want of memory, which smaller parts would have helped."""
    (tmp_path / PARTS).mkdir()
    keep_rows(tmp_path, 4, 16, 32)
    assert [each.name for each in tmp_path.iterdir()] == [PARTS] and load_rows(tmp_path, 16, 32) == 16
    keep_rows(tmp_path / "gone", 4, 16, 32)


MEBIBYTE = 1 << 20
HOLD = "import sys; block = bytearray(64 << 20); print(flush=True); sys.stdin.read()"


def test_memory_of_another_process_is_measured() -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        held = measure_bytes(Path(f"/proc/{child.pid}/status"))
        assert 64 * MEBIBYTE < held < 128 * MEBIBYTE < measure_bytes()
    finally:
        child.communicate()


def test_running_out_of_memory_is_known_by_type_and_by_words() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50)  # on the CPU torch raises no MemoryError
    assert is_out_of_memory(raised.value)
    words = ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory (MPS allocated: 9 GB)")
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), *map(RuntimeError, words)):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_a_lost_accelerator_is_no_shortage_of_memory() -> None:
    """Smaller parts would not help, and a fresh process would begin with them for nothing."""
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert is_device_lost(error) and not is_out_of_memory(error)
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
