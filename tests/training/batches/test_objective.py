"""What counts of foreign completions."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmd.training.batches.objective import FOREIGN_KEY, keep_positive, mark_foreign

rows = st.lists(st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=1, max_size=20)


def make_batch(made: list[tuple[float, bool]]) -> dict[str, Any]:
    batch: dict[str, Any] = {"advantages": torch.tensor([advantage for advantage, _ in made])}
    mark_foreign(batch, [{FOREIGN_KEY: foreign} for _, foreign in made])
    return batch


@given(rows)
def test_own_rows_are_left_alone_and_no_foreign_row_is_below_zero(made: list[tuple[float, bool]]) -> None:
    kept = keep_positive(make_batch(made))
    assert FOREIGN_KEY not in kept
    for (before, foreign), after in zip(made, kept["advantages"].tolist(), strict=True):
        assert after == (max(before, 0.0) if foreign else before)
