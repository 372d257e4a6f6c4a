"""Held-out accuracy by task, in words: as `explain` and `status` tell it."""

from __future__ import annotations

from swarmd.core.values import Skill
from swarmd.observe.narrative.words import skills_words

FALLEN = Skill("sort", 0.3, 64, 0.9, True, 2.5)
STEADY = Skill("reverse", 0.8, 64, 0.8)


def test_accuracies_are_told_and_what_is_done_about_a_fall() -> None:
    assert skills_words((FALLEN, STEADY)) == (
        "by task sort 0.30, reverse 0.80; fallen: sort to 0.30, it was 0.90 (drawn 2.5 times as often)"
    )
