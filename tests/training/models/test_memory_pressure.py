"""Running out of memory: how it is detected, and that smaller passes are tried before the stage fails."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import is_device_lost, is_out_of_memory, measure_anonymous_bytes, pause_gc_and_freeze
from swarmd.training.passes import PassSizes
from swarmd.training.ranks import RankGroup
from tests.training.conftest import make_config, train_stage

Maker = Callable[..., TrainingEngine]


@pytest.fixture(autouse=True)
def loaded_stays_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller parts have collections walk through all that is loaded once more."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def exhaust(monkeypatch: pytest.MonkeyPatch, share: float) -> list[int]:
    """Have passes of more than a share of the first one's tokens run out of memory, as a device does. Returns the
    tokens of all that were tried."""
    tried: list[int] = []
    measure = PassSizes.measure_pass

    @contextmanager
    def exhausted(self: PassSizes, rows: int, tokens: int, kept: int) -> Iterator[None]:
        tried.append(tokens)
        with measure(self, rows, tokens, kept):
            if tokens > share * tried[0]:
                raise torch.OutOfMemoryError("out of memory")
            yield

    monkeypatch.setattr(PassSizes, "measure_pass", exhausted)
    return tried


def test_garbage_is_looked_for_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), pause_gc_and_freeze():
        assert not gc.isenabled()
        raise ImportError("no such library")
    assert gc.isenabled()


def test_a_stage_is_trained_in_halves(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    accelerator: Any = engine._trainer.accelerator
    tried = exhaust(monkeypatch, 0.5)
    event = train_stage(engine, 0)
    assert accelerator is not engine._trainer.accelerator
    assert accelerator._optimizers == [], "the optimiser of the larger passes is not held"
    assert event.steps == engine.steps == 2
    assert len(tried) >= 5 and max(tried[1:]) <= tried[0] / 2


def test_a_stage_fails_after_one_more_try_and_the_next_process_begins_smaller(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    tried = exhaust(monkeypatch, 0.3)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        train_stage(engine, 0)
    assert is_out_of_memory(raised.value)
    assert len(tried) == 2 and tried[1] > 0.3 * tried[0]
    fresh = make_engine()
    assert train_stage(fresh, 0).steps == 2
    assert max(tried[2:]) <= 0.3 * tried[0]


def test_the_first_of_several_ranks_tries_no_more_and_the_next_process_begins_smaller(
    tmp_path: Path, make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are in the middle of the stage that failed here: only a fresh start has all of them together."""
    config = make_config()
    rank_group = cast(RankGroup, SimpleNamespace(start_stage=lambda order: None))
    engine = TrainingEngine(config, NodeDirectory(tmp_path / "a"), "a", make_plan(config.swarm), rank_group=rank_group)
    tried = exhaust(monkeypatch, 0.5)
    with pytest.raises(torch.OutOfMemoryError):
        train_stage(engine, 0)
    assert len(tried) == 1
    assert train_stage(make_engine(), 0).steps == 2
    assert max(tried[1:]) <= tried[0] / 2


MEBIBYTE = 1 << 20
HOLD = "import sys; block = bytearray(64 << 20); print(flush=True); sys.stdin.read()"


def test_memory_of_another_process_is_measured() -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        held = measure_anonymous_bytes(Path(f"/proc/{child.pid}/status"))
        assert 64 * MEBIBYTE < held < 128 * MEBIBYTE < measure_anonymous_bytes()
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
