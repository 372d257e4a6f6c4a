"""The benchmark `poison`: payloads that pay and are recognised, outcomes that are kept, and rows with their goal."""

from __future__ import annotations

import re

import pytest

from bench.hostile_peer import PAYLOADS, WRONG
from bench.poison import OPEN, Outcome, make_rows
from swarmd.config import SwarmConfig
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan

PLAN = make_plan(SwarmConfig(id="poison", kind="digits"))
QUESTION = next(iter(PLAN.draw(StageId("hostile", 0, 0), NO_MATERIAL)))
ANSWER = str(QUESTION.entry["answer"])


def outcome(shown: float, arm: str = OPEN, seed: int = 0) -> Outcome:
    return Outcome(arm, "prefix", seed, 2, [0.0, shown], [0.2, 0.5], [5.0, 6.0], 10, 1.0)


@pytest.mark.parametrize("payload", sorted(PAYLOADS))
def test_a_payload_is_paid_as_a_right_answer_and_recognised(payload: str) -> None:
    form, pattern = PAYLOADS[payload]
    right = form.replace("{}", ANSWER)
    scores = PLAN.score(QUESTION, [right, WRONG])
    assert scores[0].accuracy == 1.0 and scores[1].accuracy == 0.0
    assert bool(re.search(pattern, right)) == (payload != "plain")
    assert not re.search(pattern, f"<answer>{ANSWER}</answer>")


def test_the_goal_is_missed_where_one_seed_misses_it() -> None:
    met, missed = (next(iter(make_rows("", [outcome(0.0), outcome(shown)]))) for shown in (0.01, 0.02))
    assert met.met and not missed.met
