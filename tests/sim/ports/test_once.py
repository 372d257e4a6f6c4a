"""What is made of a value is made once, and no value is taken for another."""

from __future__ import annotations

import pytest

from swarmd.sim.ports.once import Once


def test_the_same_value_is_made_once_and_an_equal_one_for_itself() -> None:
    asked: list[list[int]] = []

    def make(value: list[int]) -> int:
        asked.append(value)
        return len(asked)

    once, one, equal = Once(make, 2), [1], [1]
    assert [once(one), once(equal), once(one)] == [1, 2, 1]
    assert once([2]) == 3 and once(equal) == 2, "the first has made room"
    assert once(one) == 4 and len(asked) == 4


def test_what_cannot_be_made_is_tried_again() -> None:
    once = Once(int, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid"):
            once("x")
