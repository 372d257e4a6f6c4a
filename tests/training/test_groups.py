"""What is accepted from peers, and what is refused."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.values import Judgement, RolloutsRef
from swarmd.errors import NotFoundError
from swarmd.swarms.plan import NO_MATERIAL, Outcome, Plan, Question, Score, StageId
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, encode_rollouts
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.groups import PeerGroupCollector, Scorer, TrainingGroup, choose_offers, judge_peers
from swarmd.training.models.model import Policy
from tests.training.conftest import order

PLAN = DigitsPlan(SwarmConfig(id="test"))
TRAINING = TrainingConfig(
    generations=2, share_groups=8, staleness_rounds=1, prompt_tokens=100, completion_tokens=12, peer_questions=1
)


def answered(question: Question, *answers: str) -> Group:
    """A group of completions; "right" stands for the right answer."""
    texts = [f"<answer>{question.entry['answer'] if a == 'right' else a}</answer>" for a in answers]
    reference = question.reference
    return Group(reference.task, reference.config_digest, reference.seed, reference.index, tuple(texts))


def publish(of: str, groups: list[Group], round: int = 4, **changes: Any) -> tuple[RolloutsRef, bytes]:
    rollouts = Rollouts(VERSION, "test", of, round, 0, tuple(groups))
    body = encode_rollouts(msgspec.structs.replace(rollouts, **changes))
    return RolloutsRef(of, round, 0, f"digest of {of}", len(body), len(groups)), body


def drawn(peer: str, count: int, round: int = 4) -> list[Question]:
    return list(itertools.islice(PLAN.draw(StageId(peer, round, 0), NO_MATERIAL), count))


def collect(
    policy: Policy, *published: tuple[RolloutsRef, bytes], seed: int = 0, plan: Plan = PLAN, **settings: Any
) -> tuple[list[TrainingGroup], dict[str, int]]:
    bodies = {ref.digest: body for ref, body in published}

    def read(digest: str) -> bytes:
        if digest not in bodies:
            raise NotFoundError(f"no {digest}")
        return bodies[digest]

    peers = PeerGroupCollector("test", msgspec.structs.replace(TRAINING, **settings), policy, plan, Scorer(plan), "me")
    refs = tuple(ref for ref, _ in published)
    collected = peers.collect(order(5, refs), read, seed, Cancellation())
    return collected.groups, dict(collected.rejected)


def test_rewards_are_this_nodes_own(policy: Policy) -> None:
    question = drawn("a", 1)[0]
    groups, rejected = collect(policy, publish("a", [answered(question, "right", "wrong")]))
    assert rejected == {}
    assert groups[0].question == question
    assert groups[0].rewards == [1.2, 0.2]
    assert all(ids[-1] == policy.tokenizer.eos_token_id for ids in groups[0].completions)


def test_flat_groups_are_left_out_without_blame(policy: Policy) -> None:
    assert collect(policy, publish("a", [answered(drawn("a", 1)[0], "right", "right")])) == ([], {})


def test_one_bad_group_costs_only_itself(policy: Policy) -> None:
    good, bad, long = (answered(question, "right", "1") for question in drawn("a", 3))
    bad = msgspec.structs.replace(bad, config_digest="f" * 16)
    long = msgspec.structs.replace(long, completions=("1", "2", "3"))
    groups, rejected = collect(policy, publish("a", [bad, good, long]))
    assert len(groups) == 1 and rejected == {"config-digest": 1, "group-size": 1}


def test_refused_bodies_are_counted_by_reason(policy: Policy) -> None:
    group = answered(drawn("a", 1)[0], "right", "1")
    cases: list[tuple[tuple[RolloutsRef, bytes], str]] = [
        (publish("a", [group], round=3), "stale"),
        (publish("a", [group], round=5), "future"),
        (publish("a", [group], version=99), "version"),
        (publish("a", [group], swarm="other"), "swarm"),
        (publish("a", [group], peer="b"), "origin"),
        ((publish("a", [group])[0], b"noise"), "malformed"),
    ]
    for published, reason in cases:
        assert collect(policy, published) == ([], {reason: 1})


def test_own_rollouts_and_a_second_reference_of_a_peer_are_passed_over(policy: Policy) -> None:
    group = answered(drawn("a", 1)[0], "right", "1")
    own = publish("me", [answered(drawn("me", 1)[0], "right", "1")])
    first = publish("a", [group])
    assert len(collect(policy, own, first, first)[0]) == 1


def test_no_peer_fills_the_batch(policy: Policy) -> None:
    many = publish("a", [answered(question, "right", "1") for question in drawn("a", 40)])
    few = publish("b", [answered(question, "right", "1") for question in drawn("b", 3)])
    groups, _ = collect(policy, many, few)
    assert len(groups) == TRAINING.share_groups + 3


def test_the_choice_is_seeded(policy: Policy) -> None:
    published = publish("a", [answered(question, "right", "1") for question in drawn("a", 40)])
    choices = [[group.question.reference for group in collect(policy, published, seed=s)[0]] for s in (1, 1, 2)]
    assert choices[0] == choices[1] != choices[2]


def test_lengths_are_bounded(policy: Policy) -> None:
    question = drawn("a", 1)[0]
    assert collect(policy, publish("a", [answered(question, "right", "1")]), prompt_tokens=5)[1] == {"prompt-length": 1}
    empty = msgspec.structs.replace(answered(question, "right", "1"), completions=("", "1"), cut=(0,))
    assert collect(policy, publish("a", [empty]))[1] == {"empty": 1}
    endless = msgspec.structs.replace(
        answered(question, "right", "1"), completions=(f"{'1' * 50}<answer>{question.entry['answer']}</answer>", "1")
    )
    assert collect(policy, publish("a", [endless])) == ([], {})  # its answer lies beyond what is trained on


class Frail(DigitsPlan):
    """A plan with mistakes: it raises or exits over some texts, and returns NaN for others."""

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        if any("break" in text for text in completions):
            raise RecursionError("deep")
        if any("leave" in text for text in completions):
            sys.exit(0)
        if any("allocate" in text for text in completions):
            raise RuntimeError("CUDA out of memory")
        return [Score(float("nan")) if "nan" in text else Score(float("1" in text)) for text in completions]


@pytest.mark.parametrize("text", ["break", "leave"])
def test_a_plan_that_raises_over_a_peers_text_costs_that_group_only(policy: Policy, text: str) -> None:
    first, second = drawn("p", 2)
    bodies = publish("p", [answered(first, text, "1"), answered(second, "0", "1")])
    groups, rejected = collect(policy, bodies, plan=Frail(SwarmConfig(id="test")))
    assert rejected == {"plan": 1}
    assert [group.question for group in groups] == [second]


def test_memory_that_runs_out_is_no_fault_of_the_group(policy: Policy) -> None:
    body = publish("p", [answered(drawn("p", 1)[0], "allocate", "1")])
    with pytest.raises(RuntimeError, match="out of memory"):
        collect(policy, body, plan=Frail(SwarmConfig(id="test")))


class Stopped(DigitsPlan):
    """Scores anything, as a plan may if its stage is cancelled meanwhile."""

    def __init__(self, cancellation: Cancellation) -> None:
        super().__init__(SwarmConfig(id="test"))
        self._cancellation = cancellation

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        self._cancellation.request()
        return [Score(0.0, failed=True) for _ in completions]


def test_nothing_is_taken_of_a_group_that_was_scored_while_the_stage_was_cancelled(policy: Policy) -> None:
    cancellation = Cancellation()
    ref, body = publish("a", [answered(drawn("a", 1)[0], "right", "wrong")])
    plan = Stopped(cancellation)
    peers = PeerGroupCollector("test", TRAINING, policy, plan, Scorer(plan), "me")
    with pytest.raises(Cancelled):
        peers.collect(order(5, (ref,)), lambda _: body, 0, cancellation)


class Sharing(DigitsPlan):
    """Records its calls, in order."""

    told: list[str]

    def expect(self, peers: Collection[str]) -> None:
        self.told = [*peers]

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        self.told.append("score")
        return super().score(question, completions)


def test_a_plan_hears_whose_groups_come_before_any_is_scored(policy: Policy) -> None:
    plan = Sharing(SwarmConfig(id="test"))
    bodies = [publish(peer, [answered(drawn(peer, 1)[0], "right", "wrong")]) for peer in ("b", "a", "me")]
    collect(policy, *bodies, plan=plan)
    assert plan.told == ["a", "b", "score", "score"]


def test_many_groups_crowd_no_peer_out() -> None:
    crowd = [
        (RolloutsRef(f"sybil-{peer}", 4, 0, "", 1, 1), answered(q, "1")) for peer in range(5) for q in drawn("a", 8)
    ]
    honest = [(RolloutsRef("honest", 4, 0, "", 1, 1), answered(question, "1")) for question in drawn("b", 2)]
    chosen = choose_offers([*crowd, *honest], 12)
    assert len(chosen) == 12
    assert sum(ref.peer == "honest" for ref, _ in chosen) == 2
    assert choose_offers(honest, 2) == honest


def test_a_plan_that_cannot_judge_costs_that_peer_its_vote() -> None:
    question = drawn("a", 1)[0]
    outcome = Outcome(StageId("a", 4, 0), question, ("x", "y"), (Score(0.5), Score(1.0)))

    class Choosy(DigitsPlan):
        def judge(self, outcomes: Any) -> float:
            if outcomes[0].place.peer == "d":
                sys.exit(0)
            return {"a": 1.0, "c": float("nan")}[outcomes[0].place.peer]

    judged = {peer: [msgspec.structs.replace(outcome, place=StageId(peer, 4, 0))] for peer in "abcd"}
    assert judge_peers(Choosy(SwarmConfig(id="test")), judged) == (Judgement("a", 1.0),)
    assert judge_peers(PLAN, judged)[0] == Judgement("a", 0.75)
