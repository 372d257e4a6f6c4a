"""Rows are what a list of the same Structs would be, in a fraction of the room."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.values import Skill
from swarmd.results.history import BLOCK_ROWS, Rows

COUNTS = (0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS)


class Measured(msgspec.Struct, frozen=True):
    """A row of each type that a stage has."""

    round: int
    reward: float
    held_out: float | None = None
    skills: tuple[Skill, ...] = ()


def made(count: int) -> list[Measured]:
    skills = ((), (Skill("add", 0.5, 32, 0.75),))
    return [Measured(row, row / 7, None if row % 3 else 0.25, skills[row % 2]) for row in range(count)]


rows_of_any = st.lists(
    st.builds(
        Measured,
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.none() | st.floats(allow_nan=False),
        st.lists(st.builds(Skill, st.text(), st.floats(allow_nan=False), st.just(1), st.just(0.0))).map(tuple),
    )
)


@given(rows_of_any)
def test_any_rows_are_kept_as_they_are(expected: list[Measured]) -> None:
    kept: Rows[Measured] = Rows(Measured)
    kept.resume(Rows(Measured, expected).keep())
    assert list(kept) == expected
    filled = Rows(Measured, [*expected, *made(BLOCK_ROWS)])
    assert filled[: len(expected)] == expected, "packed"


@pytest.mark.parametrize("count", COUNTS)
def test_rows_are_a_sequence(count: int) -> None:
    expected = made(count)
    rows = Rows(Measured, expected)
    assert len(rows) == count and bool(rows) == bool(expected) and rows == tuple(expected)
    assert list(rows) == expected and list(reversed(rows)) == expected[::-1]
    places = [place for place in (0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, count - 1, -1, -count) if -count <= place < count]
    assert [rows[place] for place in places] == [expected[place] for place in places]
    assert rows[-3:] == expected[-3:] and rows[: BLOCK_ROWS + 1 : 100] == expected[: BLOCK_ROWS + 1 : 100]
    for beyond in (count, -count - 1):
        with pytest.raises(IndexError):
            rows[beyond]


@pytest.mark.parametrize("count", COUNTS)
def test_rows_that_were_kept_go_on(count: int) -> None:
    whole = made(count + BLOCK_ROWS + 1)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(Rows(Measured, whole[:count]).keep()), type=list[memoryview])
    rows: Rows[Measured] = Rows(Measured, made(5))
    rows.resume(read)
    for row in whole[count:]:
        rows.append(row)
    assert rows == whole


def packed(*columns: object) -> memoryview:
    return memoryview(msgspec.msgpack.encode(columns))


FULL = Rows(Measured, made(BLOCK_ROWS)).keep()
PART = Rows(Measured, made(3)).keep()


@pytest.mark.parametrize(
    "kept",
    [
        [memoryview(b"\xc1")],
        [packed([1], [1.0], [None])],
        [packed([1], ["much"], [None], [[]])],
        [packed([1, 2], [1.0], [None], [[]])],
        [packed([], [], [], [])],
        [*PART, *FULL],
        [packed(*([value] * (BLOCK_ROWS + 1) for value in (1, 1.0, None, ())))],
    ],
    ids=["nothing", "a-column-less", "of-another-type", "ragged", "empty", "a-gap", "overfull"],
)
def test_what_are_no_rows_of_the_kind_is_refused(kept: list[Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        Rows(Measured).resume(kept)
