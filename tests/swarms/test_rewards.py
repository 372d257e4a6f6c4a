"""Patterns that take for ever on texts that were written for it cost a stage a bounded time."""

from __future__ import annotations

from typing import Any

import pytest
import regex

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

SLOW, ANSWER = r"(\w+\s?)+$", "right"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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


def test_what_is_found_in_time_is_found_beside_texts_for_which_a_pattern_takes_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []
    search = regex.search

    def noting(pattern: str, text: str, timeout: float) -> Any:
        given.append(timeout)
        if len(text) > 100:
            raise TimeoutError
        return search(pattern, text, timeout=timeout)

    monkeypatch.setattr(regex, "search", noting)
    monkeypatch.setattr(rewards.time, "monotonic", Clock())
    reward = make_reward(RewardOption("regex", pattern=SLOW))
    hostile = Answered("", 1000 * "a" + "!", ANSWER)
    assert [reward(hostile) for _ in range(100)] == [0.0] * 100
    assert reward(Answered("", "plain words", ANSWER)) == 1.0
    assert given[0] == REGEX_S and given[-1] == REGEX_LEAST_S
