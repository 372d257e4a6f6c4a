"""What each embedded model is taught before reinforcement learning: right completions of training questions.

A teacher draws training questions as a node does, and writes a right completion to each. Half of the completions have
the form that is rewarded: the other half leaves reinforcement learning a form to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from swarmd.swarms.plan import NO_MATERIAL, Place, Plan, Question
from swarmd.swarms.text import CLOSING, OPENING
from swarmd.training.programs import write_reasoning

IN_FORM_SHARE = 0.5  # of the targets that have the form that is rewarded


class Lesson(NamedTuple):
    """A training question and a right completion of it."""

    question: Question
    text: str


def draw_training(plan: Plan) -> Iterator[Question]:
    """The training questions of a node of its own."""
    return plan.draw(Place("recipe", 0, 0), NO_MATERIAL)


def teach_answers(plan: Plan, seed: int) -> Iterator[Lesson]:
    """Right answers, with tags on half of them."""
    random = Random(seed)
    for question in draw_training(plan):
        answer = str(question.entry["answer"])
        yield Lesson(question, tag(answer) if random.random() < IN_FORM_SHARE else answer)


def tag(answer: str) -> str:
    return f"{OPENING}{answer}{CLOSING}"


def teach_programs(plan: Plan, seed: int) -> Iterator[Lesson]:
    """A program, what it prints, and the answer, in tags on half of them."""
    random = Random(seed)
    for question in draw_training(plan):
        answer = str(question.entry["answer"])
        written = write_reasoning(question, answer)
        yield Lesson(question, written + (tag(answer) if random.random() < IN_FORM_SHARE else answer))
