"""The rewards that are trained on by default: v0.4's, without what can be had for nothing or is the wrong way round.

What a completion is measured by comes from the question as this node made it (`ScoringFacts`), never from the text of a
prompt, so nothing that a peer wrote can pass for an id, a vote or an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from swarmd.swarms.math.prompts import TAGS
from swarmd.swarms.math.reading import (
    NONE_WORDS,
    compare_within,
    is_template,
    read_last,
    read_number,
    read_sections,
    same_answer,
)

NONE = "None"
WORDS_MAX = 400  # of a restated question that are compared with it
STEPS_MAX = 250_000  # of comparing, some 0.03 s; an honest question of as many words takes a tenth
TAIL_COST = 0.001  # of each character behind the last closing tag, up to what its tags pay

Parts = dict[str, float]

_NONE_WORDS = {word.casefold() for word in NONE_WORDS}


class ScoringFacts(msgspec.Struct, frozen=True):
    """What completions are held against."""

    truth: str
    question: str = ""
    right: Mapping[str, bool] = {}  # by the id of each student shown, whether the answer is right
    leaders: Sequence[str] = ()  # ids with the most votes, or NONE


def score_answers(facts: ScoringFacts, texts: Sequence[str]) -> list[Parts]:
    """Stage 0: parts of the reward of each completion; 3.5 together at most."""
    return [_score_answer(facts, text) for text in texts]


def score_choices(facts: ScoringFacts, texts: Sequence[str]) -> list[Parts]:
    """Stage 1: parts of the reward of each completion; 3.75 together at most."""
    return [_score_choice(facts, text) for text in texts]


def score_agreements(facts: ScoringFacts, texts: Sequence[str]) -> list[Parts]:
    """Stage 2: parts of the reward of each completion; 6.75 together at most."""
    return [_score_agreement(facts, text) for text in texts]


SCORERS: tuple[Callable[[ScoringFacts, Sequence[str]], list[Parts]], ...] = (
    score_answers,
    score_choices,
    score_agreements,
)


def read_choice(text: str | None, ids: Mapping[str, object]) -> str | None:
    """The id or NONE that a completion names, whatever its case and white space; None where it is neither."""
    named = " ".join((text or "").casefold().split()).rstrip(".")
    if named in _NONE_WORDS:
        return NONE
    return next((known for known in ids if known.casefold() == named), None)


def is_right_choice(choice: str | None, right: Mapping[str, bool]) -> bool:
    """Whether it names a student who is right, or no one where no one is."""
    return not any(right.values()) if choice == NONE else right.get(choice or "", False)


def _score_answer(facts: ScoringFacts, text: str) -> Parts:
    answer = read_last(text, "answer") or ""
    return {
        "xmlcount": count_tags(text, 0),
        **_form(text, 0),
        "int": 0.5 * (read_number(answer) is not None),
        "correctness": 2.0 * same_answer(answer, facts.truth),
    }


def _score_choice(facts: ScoringFacts, text: str) -> Parts:
    choice = read_choice(read_last(text, "identify"), facts.right)
    return {
        "proper_id": 0.5 * (choice is not None),
        "correctness": 2.0 * is_right_choice(choice, facts.right),
        **_form(text, 1),
        "xmlcount": count_tags(text, 1),
    }


def _score_agreement(facts: ScoringFacts, text: str) -> Parts:
    choice = read_choice(read_last(text, "majority"), facts.right)
    return {
        "consensus": 1.0 * (choice in facts.leaders),
        "concensus_correctness": 1.0 * is_right_choice(choice, facts.right),
        "question_recreation": likeness(read_last(text, "question") or "", facts.question),
        "final_correctness": 2.0 * same_answer(read_last(text, "answer") or "", facts.truth),
        **_form(text, 2),
        "xmlcount": count_tags(text, 2),
    }


def count_tags(text: str, stage: int) -> float:
    """An eighth for each opening and closing tag that occurs once, less a little for what stands behind the last."""
    tags = TAGS[stage]
    count = 0.125 * sum(text.count(mark) == 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>"))
    _, closing, tail = text.rpartition(f"</{tags[-1]}>")
    return max(0.0, count - min(0.25, TAIL_COST * len(tail.strip()))) if closing else count


def likeness(restated: str, question: str) -> float:
    """How many of the words of both are the same in the same order, from 0 to 1."""
    ours, theirs = question.split()[:WORDS_MAX], restated.split()[: WORDS_MAX + 1]
    return compare_within(STEPS_MAX, theirs, ours, autojunk=False) if theirs else 0.0


def _form(text: str, stage: int) -> Parts:
    """Half a point for the template, a quarter for its tags in order without its lines; never both."""
    sections = read_sections(text, TAGS[stage])
    strict = sections is not None and is_template(text, sections)
    return {"strict_format": 0.5 * strict, "soft_format": 0.25 * (sections is not None and not strict)}
