"""Held-out accuracy by task, and what has fallen, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarmd.core.values import Skill

TOLD_MAX = 4


def skills_words(skills: Sequence[Skill]) -> str:
    """Accuracies by task, and of those that have fallen what is done about it."""
    told = ", ".join(f"{each.task} {each.held_out:.2f}" for each in skills[:TOLD_MAX])
    more = f", {len(skills) - TOLD_MAX} more" if len(skills) > TOLD_MAX else ""
    fallen = fallen_words([each for each in skills if each.fallen])
    return f"by task {told}{more}" + (f"; {fallen}" if fallen else "")


def fallen_words(skills: Sequence[Skill]) -> str:
    """Of tasks that have fallen, from what they were and how much more they are drawn; empty for none."""
    told = [
        f"{each.task} to {each.held_out:.2f}, it was {each.best:.2f} ({_drawn(each)})" for each in skills[:TOLD_MAX]
    ]
    more = [f"and {len(skills) - TOLD_MAX} more"] * (len(skills) > TOLD_MAX)
    return f"fallen: {'; '.join([*told, *more])}" if told else ""


def _drawn(skill: Skill) -> str:
    return f"drawn {skill.weight:.1f} times as often" if skill.weight > 1 else "drawn as ever"
