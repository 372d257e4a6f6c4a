"""Questions and scores of a plan that breaks the rules: errors that name it, before they do harm."""

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from swarmd.config import SwarmConfig
from swarmd.errors import SwarmError
from swarmd.swarms.plan import (
    NO_MATERIAL,
    Message,
    Question,
    Score,
    StageId,
    check_drawn_question,
    check_plan,
    draw_questions,
    hold_out_questions,
    score_completions,
)
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.swarms.rollouts import INDEX_MAX, SEED_MAX, Reference


class Odd(DigitsPlan):
    """Somebody's plan, which gives what a test says."""

    given: Any

    def score(self, question: Any, completions: Any) -> Any:
        return self.given


def scores_of(given: Any) -> tuple[Score, ...]:
    plan = Odd(SwarmConfig(id="test"))
    plan.given = given
    return score_completions(plan, next(plan.draw(StageId("a", 0, 0), NO_MATERIAL)), ["1", "2"])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (None, "score gave NoneType for completions of digits_"),
        (1.0, "score gave float for completions of digits_"),
        ([Score(1.0)], "score gave 1 scores for 2 completions of digits_"),
        ([Score(1.0), 0.5], "score gave for a completion of digits_.* float, not a Score"),
        (
            [Score(1.0), Score(None)],
            "score gave for a completion of digits_.* something that is not a number: .*NoneType",
        ),  # type: ignore[arg-type]
        ([Score(1.0), Score(1.0, parts={"a": "b"})], "something that is not a number: .*'b'"),  # type: ignore[dict-item]
        ([Score(1.0), Score(1.0, parts=None)], "something that is not a number"),  # type: ignore[arg-type]
    ],
    ids=["none", "number", "one", "no score", "no number", "part", "parts"],
)
def test_what_is_no_score_for_each_completion_is_told_with_the_plans_name(given: Any, complaint: str) -> None:
    with pytest.raises(SwarmError, match=complaint) as caught:
        scores_of(given)
    assert "tests.swarms.test_plan_checks.Odd" in caught.value.message and "writing.md" in caught.value.fix


def test_numbers_of_numpy_become_pythons() -> None:
    odd: Any = Score(np.float32(0.5), np.int64(1), np.bool_(True), {"a": np.float64(2)}, np.bool_(False))  # type: ignore[arg-type]
    one, other = scores_of(odd for _ in range(2))
    assert one == other == Score(0.5, 1.0, 1.0, {"a": 2.0})
    assert [type(value) for value in (one.reward, one.accuracy, one.format, one.parts["a"], one.failed)] == [
        *[float] * 4,
        bool,
    ]


@pytest.mark.parametrize("field", ["reward", "accuracy", "format"])
def test_what_is_no_number_or_beyond_measure_counts_as_failed(field: str) -> None:
    fields: list[dict[str, Any]] = [{"reward": 1.0, field: float(number)} for number in ("nan", "-1e9")]
    assert scores_of([Score(1e8), Score(-1e8)]) == (Score(1e8), Score(-1e8))
    assert scores_of([Score(**each) for each in fields]) == (Score(0.0, failed=True),) * 2


@pytest.mark.parametrize(
    "reference",
    [
        Reference("t", "d", SEED_MAX + 1, 0),
        Reference("t", "d", 2**64, 0),
        Reference("t", "d", 0, INDEX_MAX + 1),
        Reference("t", "d", -1, 0),
        Reference("", "d", 0, 0),
        Reference("t" * 129, "d", 0, 0),
        Reference("t", "d", np.int64(3), 0),  # type: ignore[arg-type]
        Reference("t", "d", 0.5, 0),  # type: ignore[arg-type]
        Reference("\ud800", "d", 0, 0),
    ],
    ids=["seed", "large", "index", "negative", "no name", "long name", "numpy", "fraction", "no text"],
)
def test_a_question_that_no_peer_would_know_is_told_before_it_is_answered(reference: Reference) -> None:
    plan, asked = Odd(SwarmConfig(id="test")), (Message("user", "1?"),)
    with pytest.raises(
        SwarmError, match=r"tests\.swarms\.test_plan_checks\.Odd\.draw gave a question by whose reference"
    ):
        check_drawn_question(plan, Question(reference, asked, {}))
    check_drawn_question(plan, Question(Reference("t", "d", SEED_MAX, INDEX_MAX), asked, {}))


QUESTION = Question(Reference("t", "d", 0, 0), [Message("user", "1?")], {})  # type: ignore[arg-type]
NO_QUESTIONS: list[tuple[Any, str]] = [
    (None, "gave NoneType for "),
    (["1?"], "gave str, not a Question"),
    ([QUESTION, None], "gave NoneType, not a Question"),
    *(
        ([msgspec.structs.replace(QUESTION, messages=messages)], told)
        for messages, told in (
            ((), r"gave a question whose messages are \(\)"),
            ("1?", "gave a question whose messages are '1\\?'"),
            (Message("user", "1?"), r"gave a question whose messages are Message\("),
            (("1?",), "gave a question with the message '1\\?'"),
            ((Message("user", None),), r"gave a question with the message Message\("),  # type: ignore[arg-type]
            ((Message("user", "\ud800"),), r"gave a question with the message Message\("),
        )
    ),
]


@pytest.mark.parametrize(("given", "told"), NO_QUESTIONS, ids=map(str, range(len(NO_QUESTIONS))))
@pytest.mark.parametrize("method", ["draw", "hold_out"])
def test_what_is_no_question_is_told_with_the_plans_name(
    method: str, given: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Odd(SwarmConfig(id="test"))
    monkeypatch.setattr(plan, method, lambda *_: given)
    with pytest.raises(SwarmError, match=rf"tests\.swarms\.test_plan_checks\.Odd\.{method} {told}") as caught:
        if method == "draw":
            list(draw_questions(plan, StageId("a", 0, 0), NO_MATERIAL))
        else:
            hold_out_questions(plan, "t", 5)
    assert "writing.md" in caught.value.fix


def test_of_held_out_questions_without_end_as_many_are_taken_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Odd(SwarmConfig(id="test"))
    monkeypatch.setattr(plan, "hold_out", lambda task, count: itertools.repeat(QUESTION))
    assert hold_out_questions(plan, "t", 3) == [QUESTION] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tasks", None),
        ("tasks", "sums"),
        ("tasks", (1,)),
        ("tasks", ("",)),
        ("stops", ["</python>"]),
        ("stops", "</python>"),
        ("stops", ("",)),
        ("reward_max", "3"),
        ("reward_max", float("nan")),
    ],
)
def test_what_a_plan_cannot_say_of_itself_is_told_before_anything_is_trained(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Odd(SwarmConfig(id="test"))
    check_plan(plan)
    monkeypatch.setattr(plan if name == "reward_max" else Odd, name, value)
    with pytest.raises(SwarmError, match=rf"tests\.swarms\.test_plan_checks\.Odd\.{name} is ") as caught:
        check_plan(plan)
    assert "writing.md" in caught.value.fix


@pytest.mark.parametrize("field", ["parts", "values"])
def test_parts_that_are_no_number_or_beyond_measure_are_left_out(field: str) -> None:
    """They are measured alone; the reward is trained on."""
    odd = {"a": float("nan"), "b": float("inf"), "c": -1e9, "d": 0.5}
    scores = scores_of([Score(1.0, **{field: odd})] * 2)  # type: ignore[arg-type]
    assert scores == (Score(1.0, **{field: {"d": 0.5}}),) * 2  # type: ignore[arg-type]
