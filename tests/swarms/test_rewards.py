"""Patterns that take for ever on texts that were written for it cost a stage a bounded time."""

from __future__ import annotations

from typing import Any

import pytest
import regex

from swarmd.errors import SwarmError
from swarmd.swarms import rewards
from swarmd.swarms.rewards import (
    CUT_OFF_BURST_S,
    CUT_OFF_PER_S,
    REGEX_LEAST_S,
    REGEX_S,
    Answered,
    RewardOption,
    SearchPatience,
    make_reward,
)

BOMBS = (
    "(?:[ab]c){99999999}",
    "(((a{99}){99}){99}){99}",
    r"\\{999}(b{999}){999}",
    "(?x)(a{9 9 9 9 9}){9#\n9}",
    "[#](?:a{0000009999}b){9}",
)
ANSWER = "right"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("pattern", BOMBS)
def test_a_pattern_that_would_fill_the_memory_is_refused_unread(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(regex, "compile", lambda pattern: pytest.fail("it was read"))
    with pytest.raises(SwarmError, match="counts make more than"):
        make_reward(RewardOption("regex", pattern=pattern))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", "01234567-89ab-cdef-0123-456789abcdef"),
        (r"\{99999\}{answer}", "{99999}right"),
        ("a{0,99999}b", "aab"),
    ],
)
def test_counts_that_come_to_little_are_taken(pattern: str, text: str) -> None:
    assert make_reward(RewardOption("regex", pattern=pattern))(Answered("", text, ANSWER)) == 1.0


@pytest.mark.parametrize("pattern", ["^(?!.*sorry)", "[0-9]*", "^$"])
def test_where_there_is_no_answer_no_pattern_is_found(pattern: str) -> None:
    """Many are found in an empty text."""
    reward = make_reward(RewardOption("regex", pattern=pattern))
    assert reward(Answered("no tags", None, ANSWER)) == 0.0
    assert reward(Answered("", "", ANSWER)) == 1.0


def test_an_answer_that_makes_a_pattern_grow_is_not_found() -> None:
    reward = make_reward(RewardOption("regex", pattern="^(?:a{{answer}}){9}$"))
    assert reward(Answered("", "a" * 18, "2")) == 1.0
    assert [reward(Answered("", "a" * 18, answer)) for answer in ("99999999", "9" * 5000)] == [0.0, 0.0]
    braces = make_reward(RewardOption("regex", pattern="^{answer}$"))
    assert braces(Answered("", "{999}{999}", "{999}{999}")) == 1.0


@pytest.mark.parametrize("pattern", ["[a-{answer}]", "(?P<{answer}>x)"])
def test_a_pattern_that_some_answers_make_none_is_refused(pattern: str) -> None:
    with pytest.raises(SwarmError, match="is none"):
        make_reward(RewardOption("regex", pattern=pattern))


def test_with_an_answer_that_makes_it_none_a_pattern_is_not_found() -> None:
    reward = make_reward(RewardOption("regex", pattern="[{answer}-~]"))
    assert [reward(Answered("", "x", answer)) for answer in ("a", "~a\u00e9")] == [1.0, 0.0]


def test_searches_that_are_cut_off_again_and_again_are_cut_off_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rewards.time, "monotonic", clock)
    patience, searches = SearchPatience(), 8192
    for _ in range(searches):
        timeout_s = patience.timeout_s()
        patience.cut_off(timeout_s)
        clock.now += timeout_s
    assert clock.now <= CUT_OFF_BURST_S + searches * REGEX_LEAST_S + REGEX_S
    clock.now += 2 * CUT_OFF_BURST_S / CUT_OFF_PER_S + searches * REGEX_LEAST_S / CUT_OFF_PER_S
    assert patience.timeout_s() == REGEX_S


def test_a_search_that_is_cut_off_late_counts_for_as_long_as_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those for `(?:(?R)?a)*`: half a second and more, for what they have kept is given back."""
    clock, given = Clock(), list[float]()

    def late(pattern: str, text: str, timeout: float) -> Any:
        given.append(timeout)
        clock.now += CUT_OFF_BURST_S / 2
        raise TimeoutError

    monkeypatch.setattr(regex, "search", late)
    monkeypatch.setattr(rewards.time, "monotonic", clock)
    reward = make_reward(RewardOption("regex", pattern="x"))
    assert [reward(Answered("", "a", ANSWER)) for _ in range(4)] == [0.0] * 4
    assert given == [REGEX_S, REGEX_S, REGEX_LEAST_S, REGEX_LEAST_S]
