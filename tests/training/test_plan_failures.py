"""A plan that raises: told with its method, and no stage is lost for its mistakes over this node's own completions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from swarmd.config import SwarmConfig
from swarmd.errors import PlanFailed
from swarmd.swarms.gym.reasoning_gym import DigitsPlan
from swarmd.swarms.plan import NO_MATERIAL, Question, Score, StageId
from swarmd.training.batches.groups import Scorer
from swarmd.training.sampling.turns import TurnCompletion
from tests.log_capture import capture_logs
from tests.training.test_engine import Maker, train


class Frail(DigitsPlan):
    """Somebody's plan that does not keep its word."""

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        if any(text.startswith("6") for text in completions):
            sys.exit("a six")
        return [Score(1.0, 1.0, 1.0) for _ in completions]


def test_a_plan_that_raises_over_own_completions_costs_these_alone() -> None:
    plan = Frail(SwarmConfig(id="test"))
    question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
    scorer = Scorer(plan)
    drawn = [TurnCompletion([1], [1], text) for text in ("5", "6", "7")]
    for _ in range(2):
        group = scorer.make_group(question, [1], drawn)
        assert (group.rewards, [score.failed for score in group.scores]) == ([1, 0, 1], [False, True, False])
    with capture_logs() as told:
        scorer.report()
        scorer.report()
    assert [line["failures"] for line in told] == [{question.task: 2}]
    assert (
        "tests.training.test_plan_failures.Frail.score raised SystemExit: a six (test_plan_failures.py, line "
        in told[0]["plan"]
    )


def test_a_plan_whose_scores_always_fail_is_trained_on_and_told_in_each_stage(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    monkeypatch.setattr(engine._plan, "score", lambda *_: 1 // 0)
    with capture_logs() as told:
        event = train(engine, 0)
    assert (event.reward, event.held_out) == (0, 0)
    failed = [line["event"] for line in told if line["log_level"] == "warning"]
    assert failed.count("scorers failed, the completions count as wrong") == 1


def test_the_method_of_a_plan_that_raises_is_named(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(self: DigitsPlan, *_: object) -> None:
        raise KeyError("level")

    engine = make_engine(held_out_questions=0)
    monkeypatch.setattr(DigitsPlan, "learn", learn)
    with pytest.raises(
        PlanFailed, match=r"DigitsPlan\.learn raised KeyError: 'level' \(test_plan_failures\.py, line \d+\)"
    ):
        train(engine, 0)
    monkeypatch.undo()
    assert train(engine, 0).steps == 2
