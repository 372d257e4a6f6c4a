"""The numbers of RL Swarm v0.4, as computed with its own functions."""

from __future__ import annotations

import pytest

from swarmd.swarms.math import compat
from swarmd.swarms.math.prompts import NO_ANSWER, agreement_prompt, comparison_prompt
from tests.swarms.math.voices import agreement, answer, opinion

SUM = "<think>\n2+2=4\n</think>\n<answer>\n4\n</answer>"
QUESTION = "What is 2+2?"
COMPARISON = comparison_prompt(
    QUESTION,
    [("Student #0", f"{SUM}\n"), ("Student #1", f"{SUM}\n".replace("\n4\n", "\n5\n")), ("Student #2", NO_ANSWER)],
)
AGREEMENT = agreement_prompt(
    COMPARISON,
    [(f"Criticism #{n}", opinion(choice)) for n, choice in enumerate(("Student #0", "Student #0", "None"))],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SUM}\n", [2, 0.5, 0.5, 0, 0.5]),
        (SUM, [2, 0.5, 0, 0, 0.458]),
        (answer(4, "two\nlines"), [2, 0.5, 0, 0, 0.5]),
        ("<think>2+2</think><answer>4</answer>", [2, 0.5, 0, 0.5, 0]),
        ("4", [2, 0.5, 0, 0, 0]),
        (f"{SUM}\nabcde", [2, 0.5, 0, 0, 0.49]),
        (answer("-4"), [0, 0, 0.5, 0, 0.5]),
        (answer("4.0"), [0, 0, 0.5, 0, 0.5]),
        (answer("1,000"), [0, 0, 0.5, 0, 0.5]),
    ],
)
def test_answers(text: str, expected: list[float]) -> None:
    parts = compat.score_answers("", "4", [text])[0]
    assert list(parts) == ["correctness", "int", "strict_format", "soft_format", "xmlcount"]
    assert list(parts.values()) == pytest.approx(expected)


def test_a_template_without_its_last_newline_has_the_sum_of_the_reference() -> None:
    assert round(compat.total(compat.score_answers("", "4", [SUM])[0]), 2) == 2.96
    assert compat.total(compat.score_answers("", "4", [f"{SUM}\n"])[0]) == 3.5


def test_long_text_without_a_closing_line_goes_below_zero() -> None:
    assert compat.count_tags(f"<think>\nx\n</think>\n<answer>\n4{'.' * 2000}", 0) < -1


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("Student #0", [2, 3.916, 0.5, 0, 0.75]),
        ("Student #1", [2, 1.916, 0.5, 0, 0.75]),
        ("Student #2", [2, 0, 0.5, 0, 0.75]),
        ("0", [0, 0, 0.5, 0, 0.75]),
        ("None", [0, 20, 0.5, 0, 0.75]),
        ("No one is correct", [0, 20, 0.5, 0, 0.75]),
        ("none", [0, 0, 0.5, 0, 0.75]),
    ],
)
def test_choices(choice: str, expected: list[float]) -> None:
    parts = compat.score_choices(COMPARISON, "4", [opinion(choice)])[0]
    assert list(parts) == ["proper_id", "correctness", "strict_format", "soft_format", "xmlcount"]
    assert list(parts.values()) == pytest.approx(expected)


def test_sums_of_choices() -> None:
    sums = [
        round(compat.total(compat.score_choices(COMPARISON, "4", [opinion(choice)])[0]), 2)
        for choice in ("Student #0", "None")
    ]
    assert sums == [7.17, 21.25]


def test_none_looks_at_no_more_answers_than_there_are_completions() -> None:
    """The first of three answers is right: "None" pays in a group of one, not of two."""
    assert compat.score_choices(COMPARISON, "4", [opinion("None")])[0]["correctness"] == 20
    assert compat.score_choices(COMPARISON, "4", [opinion("None")] * 2)[0]["correctness"] == 0


def test_none_pays_where_no_student_is_shown() -> None:
    total = [compat.total(compat.score_choices(QUESTION, "4", [opinion(c)])[0]) for c in ("Student #0", "None")]
    assert total == [1.25, 21.25]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (agreement("Student #0", QUESTION, 4), [2, 3.916, 1, 2, 0.5, 0, 1.25]),
        (agreement("None", QUESTION, 5), [0, 20, 1, 0, 0.5, 0, 1.25]),
        (agreement("Student #1", "what", 4), [0, 1.916, 0.375, 2, 0.5, 0, 1.25]),
    ],
)
def test_agreements(text: str, expected: list[float]) -> None:
    parts = compat.score_agreements(AGREEMENT, "4", [text])[0]
    assert list(parts) == [
        "consensus",
        "concensus_correctness",
        "question_recreation",
        "final_correctness",
        "strict_format",
        "soft_format",
        "xmlcount",
    ]
    assert list(parts.values()) == pytest.approx(expected)


def test_votes_in_a_tie_all_lead() -> None:
    tied = agreement_prompt(COMPARISON, [("Criticism #0", opinion("None")), ("Criticism #1", opinion("Student #1"))])
    for choice in ("None", "Student #1"):
        assert compat.score_agreements(tied, "4", [agreement(choice, QUESTION, 4)])[0]["consensus"] == 2


def test_without_votes_nothing_leads() -> None:
    assert compat.score_agreements(COMPARISON, "4", [agreement("None", QUESTION, 4)])[0]["consensus"] == 0
