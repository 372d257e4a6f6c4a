"""Whoever answers late, time after time, is not worth waiting for; a prompt answer makes good."""

from __future__ import annotations

from swarmd.dht.store.promptness import LATE_MAX, LATE_S, Promptness


def be_late(promptness: Promptness, peer: str, times: int, answered: bool = True) -> None:
    for _ in range(times):
        promptness.note(peer, LATE_S * 2, answered)


def test_one_late_answer_is_nothing() -> None:
    promptness = Promptness()
    be_late(promptness, "a", LATE_MAX - 1)
    assert not promptness.is_late("a")
    be_late(promptness, "a", 1)
    assert promptness.is_late("a") and not promptness.is_late("b")


def test_a_prompt_answer_makes_good() -> None:
    promptness = Promptness()
    be_late(promptness, "a", LATE_MAX)
    promptness.note("a", LATE_S / 2, answered=True)
    assert not promptness.is_late("a")
