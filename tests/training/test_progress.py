"""What a plan remembers goes into a checkpoint only where it comes out again."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import Any

import pytest

from swarmd.errors import SwarmError
from swarmd.training.progress import check_plain


@pytest.mark.parametrize("memory", [{}, {"curricula": {"add": {"level": 2, "recent": [0.5, True, None]}}}])
def test_plain_values_are_kept(memory: dict[str, Any]) -> None:
    assert check_plain(memory) == memory


@pytest.mark.parametrize("value", [deque([1]), Fraction(1, 2), lambda: 1])
def test_what_no_checkpoint_gives_back_is_refused_when_it_is_written(value: object) -> None:
    with pytest.raises(SwarmError, match="cannot be kept"):
        check_plain({"level": value})
