"""Held-out accuracy by task, in words: as `explain` and `status` tell it."""

from __future__ import annotations

from swarmd.core.values import Skill
from swarmd.observe.narrative.words import fallen_words, skills_words

FALLEN = Skill("sort", 0.3, 64, 0.9, True, 2.5)
STEADY = Skill("reverse", 0.8, 64, 0.8)


def test_accuracies_are_told_and_what_is_done_about_a_fall() -> None:
    assert skills_words((FALLEN, STEADY)) == (
        "by task sort 0.30, reverse 0.80; fallen: sort to 0.30, it was 0.90 (drawn 2.5 times as often)"
    )


def test_without_a_fall_nothing_is_said_of_one() -> None:
    assert skills_words((STEADY,)) == "by task reverse 0.80" and fallen_words(()) == ""


def test_without_the_guard_a_fall_is_told_with_nothing_done() -> None:
    assert fallen_words((Skill("sort", 0.3, 64, 0.9, True),)).endswith("(drawn as ever)")


def test_of_many_tasks_some_are_told() -> None:
    assert skills_words((STEADY,) * 9).endswith("reverse 0.80, 5 more")
    assert fallen_words((FALLEN,) * 6).endswith("and 2 more")
