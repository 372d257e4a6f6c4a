"""What people are shown: short lines, and only what differs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.core.commands import Register, StartWorker
from swarmd.core.events import ReportSeen
from swarmd.core.state import Link, State
from swarmd.eventlog.offline.changes import Change, changes_between
from swarmd.eventlog.offline.text import ITEMS_AT_ONCE, change_line, event_line, full, indented, to_json
from tests.core.story import announced, trained


def test_an_event_is_one_line_with_what_is_not_default() -> None:
    line = event_line(7, 0.0, announced(3, 1, deadline_at=60.0))
    assert line.split() == (
        ["7", "1970-01-01", "00:00:00.000", "round_announced", "round=3", "stage=1", "opened_at=0", "deadline_at=60"]
    )
    assert "digest=dddddddddddd " in event_line(0, 0.0, trained(0))
    assert "record=<3 bytes>" in event_line(0, 0.0, ReportSeen("p", 0, 0, 0.5, record=b"abc"))


def test_states_that_are_equal_have_no_changes() -> None:
    state = State(run="a", reward_total=math.nan, link=Link(since=math.nan))
    assert changes_between(state, state) == ()
    assert changes_between(state, replace(state, reward_total=float("nan"), link=Link(since=float("nan")))) == ()


def test_changes_name_the_field_that_changed() -> None:
    before = State(chart="joining", done=(0, 0))
    after = replace(before, chart="round.training", done=(1, 0), link=Link(chart="up", peers=2))
    assert changes_between(before, after) == (
        Change("chart", "joining", "round.training"),
        Change("done", (0, 0), (1, 0)),
        Change("link.chart", "down", "up"),
        Change("link.peers", 0, 2),
    )
    assert change_line(Change("chart", "joining", "round.training")) == "chart: joining → round.training"


def test_of_a_list_only_what_differs_is_shown() -> None:
    one, two, three = Register("a"), StartWorker("b", "trainer", 1), Register("c")
    before = State(pending=(one, two, three))
    assert changes_between(before, replace(before, pending=(one, three))) == (Change("pending", (two,), ()),)
    assert changes_between(before, replace(before, pending=(one, two, three, one))) == (Change("pending", (), (one,)),)
    assert changes_between(State(), before) == (Change("pending", (), (one, two, three)),)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_a_document_made_in_pieces_is_the_one_made_at_once(value: Any) -> None:
    assert "".join(indented(value)) == msgspec.json.format(to_json(full(value)), indent=2).decode()


class Row(msgspec.Struct):
    """A row of a table; whether msgspec writes one as `full` does depends on what is in it."""

    word: str
    number: int
    share: float
    held_out: float | None = None
    ok: bool = True
    inner: tuple[Any, ...] = ()


class Tagged(msgspec.Struct, tag="tagged", omit_defaults=True):
    """No row: it has a type, and leaves out what is as ever."""

    number: int = 0


rows = st.lists(
    st.builds(
        Row,
        st.text() | st.just("null"),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.none() | st.floats(),
        st.booleans(),
        st.just(()) | st.tuples(st.builds(Tagged, st.integers(0, 2))) | st.tuples(st.floats()),
    )
    | st.builds(Tagged, st.integers(0, 2)),
    min_size=1,
)


@given(rows)
def test_rows_that_are_made_text_together_are_as_each_by_itself(value: list[Any]) -> None:
    expected = to_json({"rows": [full(row) for row in value]})
    assert "".join(indented({"rows": value})) == msgspec.json.format(expected, indent=2).decode()


def test_the_parts_of_a_long_list_of_rows_are_put_together() -> None:
    value = tuple(Row("x", number, number / 3) for number in range(2 * ITEMS_AT_ONCE + 1))
    assert "".join(indented(value)) == msgspec.json.format(to_json(full(value)), indent=2).decode()


def test_of_a_long_list_a_part_at_a_time_is_made_text() -> None:
    made: list[int] = []

    class Noted(tuple[Any, ...]):
        def __iter__(self) -> Iterator[Any]:
            for item in super().__iter__():
                made.append(item)
                yield item

    pieces = indented({"rounds": Noted(range(10 * ITEMS_AT_ONCE))})
    for _ in range(6):
        next(pieces)
    assert 0 < len(made) <= ITEMS_AT_ONCE
