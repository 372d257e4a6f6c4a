"""Every kind of swarm on three real nodes: rounds over the DHT alone, and kept by a contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swarmd.core.events import RolloutsGathered, StageTrained
from swarmd.swarms.math.escaping import show_answer
from swarmd.swarms.math.forms import read_last
from swarmd.swarms.plan import Place
from tests.e2e.audit import events_of
from tests.e2e.chained import chained_swarm
from tests.e2e.conftest import Swarm, audited
from tests.e2e.rebuilt import asked_of, stages_of
from tests.e2e.test_chain import assert_once, assert_rewards_are_the_logs, assert_votes_are_judged

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ROUNDS = 2
TINY: dict[str, Any] = {"training.steps": 2, "training.held_out_questions": 2, "training.threads": 1}
# The embedded model reads 1,024 tokens, a letter each; reasoning-gym's own mixture asks longer questions than most.
LONG = {
    "training.model": "embedded",
    "training.device": "cpu",
    "training.prompt_tokens": 900,
    "training.completion_tokens": 12,
}
SHOWN_BYTES = 20
KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # stages, and what is set besides
    "gsm8k": (3, {"swarm.options.questions": 4, "swarm.options.shown_bytes": SHOWN_BYTES}),
    "math-hard": (3, {"swarm.options.questions": 4}),
    "code": (1, {}),
    "proposer-solver": (2, {}),
    "reasoning-gym": (1, {"swarm.tasks": [], **LONG}),  # no tasks: its own nine
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_swarm_of_each_kind(swarm: Swarm, kind: str) -> None:
    stages, settings = KINDS[kind]
    swarm.run(ROUNDS, kind, **TINY | settings)
    swarm.wait_over(200)
    swarm.stop()
    check_everybody_trains(swarm, stages)
    if kind == "gsm8k":
        check_exchange(swarm)


def test_a_swarm_from_a_file(swarm: Swarm, tmp_path: Path) -> None:
    """As `swarmd swarm scaffold` writes it, unchanged."""
    command = [sys.executable, "-m", "swarmd", "swarm", "scaffold", "mine", "--dir", str(tmp_path / "mine")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    swarm.run(ROUNDS, str(tmp_path / "mine" / "config.toml"), **TINY)
    swarm.wait_over(200)
    swarm.stop()
    check_everybody_trains(swarm, 1)


def check_everybody_trains(swarm: Swarm, stages: int) -> None:
    """Each node trains each stage, after gathering both peers' rollouts, and refuses nothing of them."""
    for place in swarm.places:
        events = list(events_of(place.paths.events))
        trained = [event for event in events if isinstance(event, StageTrained)]
        gathered = [len(event.rollouts) for event in events if isinstance(event, RolloutsGathered)]
        places = [(round, stage) for round in range(ROUNDS) for stage in range(stages)]
        assert [(event.round, event.stage) for event in trained] == places
        assert gathered == [2] * (len(places) - 1), gathered
        assert all(event.tokens > 0 and event.rollouts.groups > 0 for event in trained)
        assert all(event.rejected == () for event in trained), [event.rejected for event in trained]
        assert [len(event.judged) for event in trained] == [0] + [2] * (len(places) - 1)


def check_exchange(swarm: Swarm) -> None:
    """The questions of later stages name completions of all three nodes, and show the text of each."""
    answers_seen = 0
    for place in swarm.places:
        for order, event in stages_of(place):
            for question, material in asked_of(place, order, event):
                sources = question.reference.sources
                assert {source.stage for source in sources} == set(range(event.stage))
                prompt = question.messages[-1].content
                for source in sources:
                    where = Place(source.peer, event.round, source.stage)
                    said = material.find(where, question.reference.base)
                    assert said is not None
                    text = said.completions[source.choice]
                    if source.stage == 0:
                        assert show_answer(text, SHOWN_BYTES) in prompt
                        answer = read_last(text, "answer")
                        answers_seen += source.peer != event.rollouts.peer and bool(answer) and f"{answer}" in prompt
                if event.stage:
                    shown = {source.peer for source in sources if source.stage == event.stage - 1}
                    assert len(shown) == 3, shown
    assert answers_seen > 0


def test_gsm8k_on_a_chain(tmp_path: Path) -> None:
    """Three stages of three rewards each a round, and one vote."""
    with chained_swarm(tmp_path / "swarm", stages=3) as swarm, audited(swarm):
        swarm.run(0, "gsm8k", **TINY | KINDS["gsm8k"][1])
        swarm.wait_contract(ROUNDS + 1, 200)
        swarm.wait_settled(ROUNDS - 1)
        swarm.stop()
        assert_once(swarm)
        assert_rewards_are_the_logs(swarm)
        assert_votes_are_judged(swarm)
        for peer in swarm.peers:
            rewarded = {(log.round, log.stage) for log in swarm.rewards() if log.peer == peer}
            assert rewarded >= {(round, stage) for round in range(ROUNDS) for stage in range(3)}


def test_reasoning_gym_on_a_chain(tmp_path: Path) -> None:
    tasks = [{"name": "chain_sum", "config": {"max_terms": 2, "max_digits": 1}}, {"name": "digits_sort"}]
    with chained_swarm(tmp_path / "swarm") as swarm, audited(swarm):
        swarm.run(0, "reasoning-gym", **TINY | LONG | {"swarm.tasks": tasks})
        swarm.wait_contract(ROUNDS + 1, 200)
        swarm.wait_settled(ROUNDS - 1)
        swarm.stop()
        assert_once(swarm)
        assert_rewards_are_the_logs(swarm)
        assert_votes_are_judged(swarm)
