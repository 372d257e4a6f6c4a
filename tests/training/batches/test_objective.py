"""What counts of foreign completions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import PeerLoss
from swarmd.training.batches.objective import FOREIGN_KEY, mark_foreign, weigh_foreign

rows = st.lists(st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=1, max_size=20)


def make_batch(made: list[tuple[float, bool]]) -> dict[str, Any]:
    batch: dict[str, Any] = {"advantages": torch.tensor([advantage for advantage, _ in made])}
    mark_foreign(batch, [{FOREIGN_KEY: foreign} for _, foreign in made])
    return batch


def weigh(made: list[tuple[float, bool]], loss: PeerLoss, gate: float = 0.5, probability: float = 0.1) -> Any:
    def measure(batch: dict[str, Any], rows: torch.Tensor) -> torch.Tensor:
        return torch.full((len(rows), 3), probability).log()

    weighed = weigh_foreign(make_batch(made), loss, gate, measure)
    assert FOREIGN_KEY not in weighed
    return weighed["advantages"]


@given(rows)
def test_positive_leaves_own_rows_alone_and_no_foreign_row_below_zero(made: list[tuple[float, bool]]) -> None:
    for (before, foreign), after in zip(made, weigh(made, "positive").tolist(), strict=True):
        assert after == (max(before, 0.0) if foreign else before)


@given(rows)
def test_as_is_changes_nothing(made: list[tuple[float, bool]]) -> None:
    assert weigh(made, "as-is").tolist() == [advantage for advantage, _ in made]


@given(rows, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_gate_lets_through_what_the_policy_would_write(
    made: list[tuple[float, bool]], gate: float, probability: float
) -> None:
    after = weigh(made, "gate", gate, probability)
    spread = after if after.dim() == 2 else after[:, None].expand(-1, 3)
    open_gate = torch.tensor(probability).log().exp() > gate
    for (before, foreign), tokens in zip(made, spread.tolist(), strict=True):
        shut = foreign and before < 0 and not open_gate
        assert tokens == [0.0 if shut else before] * 3


def test_gate_looks_at_each_token() -> None:
    batch = make_batch([(-1.0, True), (-2.0, False), (1.5, True)])
    log_probabilities = torch.tensor([[0.9, 0.01, 0.3]]).log()
    weighed = weigh_foreign(batch, "gate", 0.2, lambda batch, rows: log_probabilities)
    assert weighed["advantages"].tolist() == [[-1.0, 0.0, -1.0], [-2.0] * 3, [1.5] * 3]


@pytest.mark.parametrize("loss", ["as-is", "positive", "gate"])
def test_rows_without_a_mark_are_own(loss: PeerLoss) -> None:
    batch: dict[str, Any] = {"advantages": torch.tensor([-1.0, 1.0])}
    mark_foreign(batch, [{}, {}])
    assert weigh_foreign(batch, loss, 0.5, lambda *_: torch.zeros(0, 1))["advantages"].tolist() == [-1.0, 1.0]
