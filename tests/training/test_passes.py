"""How a step is split into passes, and what is learnt when memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.config import TrainingConfig
from swarmd.training import passes
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.memory import LIGHT_TOKENS_MAX
from swarmd.training.models.model import Policy
from swarmd.training.passes import KEPT, PassSizes

CEILING = LIGHT_TOKENS_MAX
Maker = Callable[..., PassSizes]


@pytest.fixture
def make_sizes(tmp_path: Path, policy: Policy) -> Maker:
    return lambda **settings: PassSizes(tmp_path, TrainingConfig(**settings), policy)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(0, 60), min_size=1, max_size=6)), min_size=1),
    budget=st.integers(1, 300),
    rows_max=st.integers(0, 7),
    order=st.randoms(use_true_random=False),
)
def test_every_row_is_in_one_pass_and_none_is_too_large(
    groups: list[tuple[int, list[int]]], budget: int, rows_max: int, order: Any
) -> None:
    rows = [(number, length, own) for number, (length, group) in enumerate(groups) for own in group]
    order.shuffle(rows)
    sizes = object.__new__(PassSizes)
    sizes._rows_max = rows_max
    sizes.tokens_per_pass = lambda prompt: budget  # type: ignore[method-assign]
    split = sizes.split_batch(*(torch.tensor(each) for each in zip(*rows, strict=True)))
    assert sorted(row for part, _ in split for row in part.tolist()) == list(range(len(rows)))
    for part, tokens in split:
        taken = [rows[row] for row in part.tolist()]
        prompts = {number: length for number, length, _ in taken}
        assert tokens == sum(prompts.values()) + sum(own for _, _, own in taken)
        assert len(taken) == 1 or tokens <= budget
        assert len(taken) <= (rows_max or len(rows))


def test_a_long_prompt_does_not_cut_its_group(make_sizes: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    group = (torch.zeros(8), torch.full((8,), CEILING - 1), torch.full((8,), CEILING // 8))
    assert len(make_sizes().split_batch(*group)) == 1
    monkeypatch.setattr(PassSizes, "_count_fitting_tokens", lambda self: CEILING)
    assert len(make_sizes().split_batch(*group)) == 8, "but if memory is short"


def test_memory_bounds_a_pass(make_sizes: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_sizes().tokens_per_pass() == CEILING
    sizes = make_sizes()
    monkeypatch.setattr(passes, "measure_free", lambda device: 20 * sizes._token_bytes)
    assert sizes.tokens_per_pass() == 10
    assert sizes.rows_per_pass(batch=12, width=3) == 3 and sizes.rows_per_pass(batch=12, width=100) == 1
    assert make_sizes(micro_questions=1, generations=2).rows_per_pass(batch=12, width=3) == 2


def test_activations_are_computed_twice_where_one_completion_does_not_fit(
    make_sizes: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not make_sizes().recompute and make_sizes(gradient_checkpointing="on").recompute
    monkeypatch.setattr(passes, "measure_free", lambda device: 100)
    assert make_sizes().recompute and not make_sizes(gradient_checkpointing="off").recompute


def run_pass(sizes: PassSizes, rows: int, tokens: int) -> None:
    with sizes.measure_pass(rows, tokens, kept=0):
        pass


def test_passes_shrink_until_one_completion_is_computed_twice(make_sizes: Maker) -> None:
    sizes = make_sizes()
    run_pass(sizes, rows=4, tokens=400)
    assert sizes.shrink() and sizes.tokens_per_pass() == 200
    assert make_sizes().tokens_per_pass() == 200, "the next process begins with it"
    run_pass(sizes, rows=1, tokens=90)
    assert sizes.shrink() and sizes.recompute and sizes.tokens_per_pass() == 200
    assert make_sizes().recompute
    run_pass(sizes, rows=1, tokens=90)
    assert not sizes.shrink()
    fixed = make_sizes(gradient_checkpointing="off")
    run_pass(fixed, rows=1, tokens=90)
    assert not fixed.shrink()


def test_the_peak_is_that_of_all_passes_though_each_is_measured_alone(
    make_sizes: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = [9, 9, 7, 7, 8]
    device = SimpleNamespace(
        max_memory_allocated=lambda: peaks.pop(0),
        reset_peak_memory_stats=lambda: None,
        **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda: 0),
    )
    assert make_sizes().measure_peak_vram() == 0, "a processor has none"
    monkeypatch.setattr(passes, "COUNTING", ("cpu",))
    monkeypatch.setattr(torch, "cpu", device)
    sizes = make_sizes()
    for _ in range(2):
        run_pass(sizes, rows=1, tokens=90)
    assert sizes.measure_peak_vram() == 9


def test_nothing_shrinks_before_a_pass(make_sizes: Maker) -> None:
    """Memory that runs out while completions are drawn says nothing of passes."""
    assert not make_sizes().shrink()


def test_the_size_comes_back(make_sizes: Maker) -> None:
    sizes = make_sizes()
    run_pass(sizes, rows=4, tokens=400)
    sizes.shrink()
    grown = []
    while sizes.tokens_per_pass() < CEILING:
        sizes.grow()
        grown.append(sizes.tokens_per_pass())
    assert grown == sorted(set(grown)) and 5 < len(grown) < 20
    assert make_sizes().tokens_per_pass() == CEILING


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"tokens_max":0,"recompute":false}', b'{"tokens_max":"many"}'])
def test_a_damaged_note_only_costs_the_lesson(make_sizes: Maker, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / KEPT).write_bytes(damage)
    assert make_sizes().tokens_per_pass() == CEILING


def test_a_step_in_many_passes_is_the_step_in_one(make_engine: Callable[..., TrainingEngine]) -> None:
    from tests.training.conftest import train_stage

    whole, parts = make_engine("a", steps=3), make_engine("b", steps=3, micro_questions=1)
    for engine in (whole, parts):
        engine._peer = "a"  # the same questions
        train_stage(engine, 0)
    assert whole._trainer.passes == 1 < parts._trainer.passes <= 4
    other = parts.policy.copy_weights()
    for name, weight in whole.policy.copy_weights().items():
        torch.testing.assert_close(other[name], weight, atol=2e-5, rtol=1e-4)
