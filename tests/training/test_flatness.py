"""Six reasons why a stage has nothing to learn from, each planted in a real swarm and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.values import FlatCause
from swarmd.swarms.file import FilePlan
from swarmd.swarms.plan import NO_MATERIAL, Plan, Question, StageId
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.training.engine import TrainingEngine
from swarmd.training.flatness import ZeroVarianceStats
from swarmd.training.groups import Scorer
from swarmd.training.sampling import TurnCompletion
from tests.training.conftest import train_stage

STOP, OTHER = 0, 1  # token ids
GROUPS, GENERATIONS = 10, 4

FUNCTIONS = """
def alike(completions, **_):
    return [1.0] * len(completions)

calls = []

def broken(completions, **_):
    calls.append(1)
    if len(calls) > 1:  # one that fails from the beginning ends the stage
        raise ValueError("no such column")
    return [0.0] * len(completions)
"""


def digits(home: Path) -> Plan:
    return DigitsPlan(SwarmConfig(id="test"))


def asked(home: Path, **options: Any) -> Plan:
    rows = [{"prompt": f"How much is {n} and {n}?", "answer": str(2 * n)} for n in range(200)]
    (home / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (home / "planted_rewards.py").write_text(FUNCTIONS)
    return FilePlan(SwarmConfig(id="test", options={"data": "questions.jsonl", **options}), TrainingConfig(), home)


def numbers(home: Path) -> Plan:
    return asked(home, answer="last-number", rewards=[{"name": "numeric"}])


def alike(home: Path) -> Plan:
    return asked(home, reward_funcs=["planted_rewards:alike"])


def broken(home: Path) -> Plan:
    return asked(home, reward_funcs=["planted_rewards:broken"])


def truth(plan: Plan, question: Question) -> str:
    return f"<answer>{plan.truth(question)}</answer>"


def wrong(plan: Plan, question: Question) -> str:
    return "I would say <answer>none</answer>"


def prose(plan: Plan, question: Question) -> str:
    return f"The answer\x1b[31m is {plan.truth(question)}."


def tally(plan: Plan, write: Callable[[Plan, Question], str], last: int, flat: int = GROUPS) -> ZeroVarianceStats:
    """A stage of ten groups; the first `flat` hold one text four times, the others another one as well."""
    found, scorer = ZeroVarianceStats([STOP]), Scorer(plan)
    questions = plan.draw(StageId("a", 0, 0), NO_MATERIAL)
    for number in range(GROUPS):
        question = next(questions)
        texts = [write(plan, question)] * (GENERATIONS - (number >= flat)) + ["empty"] * (number >= flat)
        drawn = [TurnCompletion([OTHER, last], [1, 1], text) for text in texts]
        found.add([scorer.make_group(question, [OTHER], drawn)])
    return found


@pytest.mark.parametrize(
    ("make_plan", "write", "last", "cause"),
    [
        (digits, prose, STOP, "form"),
        (digits, prose, OTHER, "cut"),
        (numbers, wrong, STOP, "form"),  # no number in it
        (numbers, lambda *_: "First, -3 and", OTHER, "cut"),
        (numbers, lambda *_: "It is -3", STOP, "wrong"),
        (digits, wrong, STOP, "wrong"),
        (digits, wrong, OTHER, "wrong"),  # it is cut off, but behind its answer
        (digits, truth, STOP, "right"),
        (alike, prose, STOP, "constant"),
        (broken, truth, STOP, "failed"),
    ],
)
def test_the_cause_is_named(
    tmp_path: Path, make_plan: Callable[[Path], Plan], write: Any, last: int, cause: FlatCause
) -> None:
    plan = make_plan(tmp_path)
    found = tally(plan, write, last).summarize()
    completions = GROUPS * GENERATIONS
    assert found is not None
    assert (found.cause, found.groups, found.flat) == (cause, GROUPS, GROUPS)
    assert found.completions == completions
    assert found.alike == completions - GENERATIONS * (cause == "failed")  # whose first call went well
    assert found.example and found.example.isprintable()


def test_a_stage_with_something_to_learn_has_no_cause(tmp_path: Path) -> None:
    plan = digits(tmp_path)
    assert tally(plan, truth, STOP, flat=8).summarize() is None
    nine = tally(plan, truth, STOP, flat=9).summarize()
    assert nine is not None and (nine.groups, nine.flat, nine.completions) == (10, 9, 36)
    assert ZeroVarianceStats([STOP]).summarize() is None, "no groups of its own"


def test_ranks_find_the_cause_together(tmp_path: Path) -> None:
    plan = digits(tmp_path)
    one, other = tally(plan, truth, STOP, flat=8), tally(plan, prose, STOP)
    one.merge(other)
    joined = one.summarize()
    assert joined is not None and (joined.cause, joined.groups, joined.flat, joined.alike) == ("form", 20, 18, 40)


def test_a_function_that_pays_one_question_and_not_another_pays_for_something(tmp_path: Path) -> None:
    (tmp_path / "telling_rewards.py").write_text(
        "def even(completions, answer, **_):\n    return [float(int(answer[0]) % 4 == 0)] * len(completions)\n"
    )
    found = tally(asked(tmp_path, reward_funcs=["telling_rewards:even"]), prose, STOP).summarize()
    assert found is not None and found.cause in ("right", "wrong")


def test_a_stage_says_why_its_groups_are_flat(make_engine: Callable[..., TrainingEngine]) -> None:
    engine = make_engine(completion_tokens=2, held_out_questions=0)
    event = train_stage(engine, 0)
    assert event.flat is not None
    assert (event.flat.cause, event.flat.groups, event.flat.flat) == ("cut", 8, 8)
    assert event.flat.completions == event.flat.alike == 32 and event.reward == 0
    assert train_stage(engine, 0) == event, "from its checkpoint, too"
    assert train_stage(make_engine("b", held_out_questions=0, steps=1, questions=16), 0).flat is None
