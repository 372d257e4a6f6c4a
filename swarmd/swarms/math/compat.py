"""The rewards of RL Swarm v0.4, number by number, with what is odd about them.

Odd: the patterns take no line breaks inside a tag, the count of tags goes negative on long texts without a closing
line, "None" pays most where the answers are right and looks at no more answers than there are completions, an answer
counts as equal only letter by letter. `swarmd.swarms.math.fixed` is what mends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from swarmd.swarms.math.prompts import TAGS
from swarmd.swarms.math.reading import (
    NONE_WORDS,
    compare_within,
    extract_answers,
    extract_question,
    extract_students,
    extract_tag,
    extract_votes,
    is_in_lines,
    is_in_order,
    most_voted,
)

Parts = dict[str, float]

RESTATED_CHARACTERS_MAX = 4096  # a restated question longer than this scores 0: comparing takes the product of lengths
STEPS_MAX = 1_000_000  # of comparing, some 0.1 s; four thousand letters of prose take 60,000 for each part they share


def count_tags(text: str, stage: int) -> float:
    """An eighth for each line that opens or closes one of the stage's tags and occurs once, less for what follows.

    Behind the last closing tag each character costs a thousandth: all of the text where that line is missing.
    """
    *tags, last = TAGS[stage]
    count = 0.0
    for tag in tags:
        count += 0.125 * (text.count(f"<{tag}>\n") == 1)
        count += 0.125 * (text.count(f"\n</{tag}>\n") == 1)
    if text.count(f"\n<{last}>\n") == 1:
        count += 0.125
        count -= len(text.split(f"\n</{last}>\n")[-1]) * 0.001
    if text.count(f"\n</{last}>") == 1:
        count += 0.125
        count -= (len(text.split(f"\n</{last}>")[-1]) - 1) * 0.001
    return count


def score_answers(prompt: str, truth: str, texts: Sequence[str]) -> list[Parts]:
    """Stage 0: parts of the reward of each completion."""
    return [
        {
            "correctness": 2.0 * (extract_tag(text, "answer") == truth),
            "int": 0.5 * extract_tag(text, "answer").isdigit(),
            "strict_format": _strict(text, 0),
            "soft_format": _soft(text, 0),
            "xmlcount": count_tags(text, 0),
        }
        for text in texts
    ]


def score_choices(prompt: str, truth: str, texts: Sequence[str]) -> list[Parts]:
    """Stage 1: parts of the reward of each completion; the ids come from the prompt."""
    students, answers = extract_students(prompt), extract_answers(prompt, 1)
    return [
        {
            "proper_id": 2.0 * (choice in students),
            "correctness": 2.0 * _worth(choice, answers, truth, len(texts)),
            "strict_format": _strict(text, 1),
            "soft_format": _soft(text, 1),
            "xmlcount": count_tags(text, 1),
        }
        for text, choice in ((text, extract_tag(text, "identify")) for text in texts)
    ]


def score_agreements(prompt: str, truth: str, texts: Sequence[str]) -> list[Parts]:
    """Stage 2: parts of the reward of each completion; ids and votes come from the prompt."""
    answers, leaders = extract_answers(prompt, 2), most_voted(extract_votes(prompt))
    question = extract_question(prompt).strip()
    return [
        {
            "consensus": 2.0 * (choice in leaders),
            "concensus_correctness": 2.0 * _worth(choice, answers, truth, len(texts)),
            "question_recreation": likeness(extract_tag(text, "question"), question),
            "final_correctness": 2.0 * (extract_tag(text, "answer") == truth),
            "strict_format": _strict(text, 2),
            "soft_format": _soft(text, 2),
            "xmlcount": count_tags(text, 2),
        }
        for text, choice in ((text, extract_tag(text, "majority")) for text in texts)
    ]


SCORERS: tuple[Callable[[str, str, Sequence[str]], list[Parts]], ...] = (score_answers, score_choices, score_agreements)


def total(parts: Mapping[str, float]) -> float:
    """The reward that upstream publishes: the sum of the parts, which stand in the order in which it adds them."""
    return float(sum(parts.values()))


def likeness(restated: str, question: str) -> float:
    """Ratio of difflib's SequenceMatcher, 0 where comparing would take too long."""
    if max(len(restated), len(question)) > RESTATED_CHARACTERS_MAX:
        return 0.0
    return compare_within(STEPS_MAX, restated, question)


def _worth(choice: str, answers: Mapping[str, str], truth: str, compared: int) -> float:
    """What naming a student is worth; `compared` answers at most are looked at where none is named."""
    if choice in answers:
        shown = answers[choice]
        value = extract_tag(shown, "answer")
        worth = 1.0 * (value == truth) + 0.5 * value.isdigit()
        return worth + _strict(shown, 0) + _soft(shown, 0) + count_tags(shown, 0)
    values = [extract_tag(shown, "answer") for shown in answers.values()][:compared]
    return 10.0 * (choice in NONE_WORDS and all(value == truth for value in values))


def _strict(text: str, stage: int) -> float:
    return 0.5 if is_in_lines(text, TAGS[stage]) else 0.0


def _soft(text: str, stage: int) -> float:
    return 0.5 if is_in_order(text, TAGS[stage]) else 0.0
