"""Own, peers' and earlier groups in one batch, and what counts of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core.values import KnownEvidence, RolloutsRef
from swarmd.swarms.rollouts import decode_rollouts
from swarmd.training import stage as subject
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.groups import TrainingGroup
from swarmd.training.masking import FOREIGN_KEY
from swarmd.training.trainer import REWARD_KEY
from tests.training.conftest import after_a_step, order, train_stage

Maker = Callable[..., TrainingEngine]
GROUP = 4


def publish(make_engine: Maker, **settings: Any) -> tuple[RolloutsRef, bytes]:
    """What peer b publishes of its first stage."""
    peer = make_engine("b", **{"held_out_questions": 0, **settings})
    ref = train_stage(peer, 0).rollouts
    return ref, peer._blobs.get(ref.digest)


def open_batch(engine: TrainingEngine, round: int, *rollouts: RolloutsRef) -> tuple[Any, dict[str, Any]]:
    """A stage and its first batch, not trained on."""
    stage, _ = engine._open_stage(order(round, rollouts), Cancellation())
    return stage, stage.next_batch()


def marks(batch: dict[str, Any]) -> list[bool]:
    """Of each group, whether it is foreign; the same for all its completions."""
    rows = batch[FOREIGN_KEY]
    groups = [rows[start : start + GROUP] for start in range(0, len(rows), GROUP)]
    assert all(len(set(group)) == 1 for group in groups)
    return [group[0] for group in groups]


def is_flat(batch: dict[str, Any], place: int) -> bool:
    rewards = batch[REWARD_KEY][place * GROUP : (place + 1) * GROUP]
    return bool(max(rewards) == min(rewards))


def test_peers_groups_are_marked_and_own_ones_fill_the_rest(make_engine: Maker) -> None:
    ref, body = publish(make_engine, questions=8)
    engine = make_engine("a", questions=6, peer_questions=2)
    engine._blobs.put(body)
    stage, batch = open_batch(engine, 1, ref)
    assert len(marks(batch)) == 6
    assert sum(marks(batch)) == stage.peer_group_count >= 2
    assert all(not is_flat(batch, place) for place, foreign in enumerate(marks(batch)) if foreign)


def test_a_stage_takes_as_many_groups_of_peers_as_its_order_says_and_counts_what_groups_cost(
    make_engine: Maker,
) -> None:
    ref, body = publish(make_engine, questions=8)
    engine = make_engine("a", questions=6, peer_questions="auto", held_out_questions=0)
    engine._blobs.put(body)
    usual, chosen = order(1, (ref,)), replace(order(1, (ref,)), peer_questions=3)
    scheduled = []
    for each in (usual, chosen):
        stage, collected = engine._open_stage(each, Cancellation())
        assert len(collected.groups) >= 6
        scheduled.append(len(stage._schedule_step()))
    assert scheduled == [1, 3]
    event = engine.train(chosen, Cancellation())
    assert event.peer_groups >= 3 * engine._training.steps and event.times is not None
    times = event.times
    assert times.peer_groups == len(collected.groups) and 0 < times.own_groups <= times.trained_groups
    assert times.own_groups + event.peer_groups >= times.trained_groups
    assert dict(times.parts)["judge"] > 0


def test_earlier_groups_stand_in_for_flat_ones_only(make_engine: Maker) -> None:
    engine = make_engine("a", questions=4, peer_questions=0, replay_questions=2, steps=4, held_out_questions=0)
    _, first = open_batch(engine, 0)
    assert not any(marks(first)), "there is nothing to replay yet"
    train_stage(engine, 0)
    assert len(engine._replay) > 0
    for round in range(1, 5):
        _, batch = open_batch(engine, round)
        replayed = sum(marks(batch))
        assert replayed <= 2
        assert all(not is_flat(batch, place) for place, foreign in enumerate(marks(batch)) if foreign)
        assert replayed == 2 or not any(is_flat(batch, place) for place in range(4))


def test_groups_of_a_peer_that_signed_two_reports_are_not_replayed_from_that_round_on(make_engine: Maker) -> None:
    ref, body = publish(make_engine, questions=8)
    engine = make_engine("a", questions=6, peer_questions=2, replay_questions=3)
    engine._blobs.put(body)
    train_stage(engine, 1, (ref,))
    authors = Counter(group.peer for group in engine._replay.draw(99, Random(0)))
    assert authors["b"] >= 2 and authors[""] > 0
    for since, left in ((1, authors["b"]), (0, 0)):  # it is of round 0
        engine.train(replace(order(2 - since), barred=(KnownEvidence("report", "b", since),)), Cancellation())
        assert Counter(group.peer for group in engine._replay.draw(99, Random(0)))["b"] == left


def kept(engine: TrainingEngine) -> list[tuple[str, list[str]]]:
    """What may be replayed, by task in the order of leaving."""
    return [(task, [str(group.texts) for group in groups]) for task, groups in engine._replay._by_task.items()]


def test_a_stage_that_was_given_up_leaves_nothing_to_replay(make_engine: Maker) -> None:
    engine = make_engine("a", questions=4, peer_questions=0, replay_questions=2, steps=4, held_out_questions=0)
    cancellation = Cancellation()
    with pytest.raises(Cancelled):
        engine.train(order(0), cancellation, after_a_step(cancellation))
    assert kept(engine) == []
    train_stage(engine, 0)
    before = kept(engine)
    assert before
    again = Cancellation()
    with pytest.raises(Cancelled):
        engine.train(order(1), again, after_a_step(again))
    assert kept(engine) == before
    train_stage(engine, 1)
    assert kept(engine) != before


def test_a_peers_success_counts_only_where_this_node_failed(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, body = publish(make_engine, questions=8)
    engine = make_engine("a", questions=6, peer_questions=3, peer_loss="success-gated", share_groups=64)
    engine._blobs.put(body)
    solved = {True: 0, False: 0}

    def solve(group: TrainingGroup) -> bool:
        """Peers always succeed, and this node in every other group."""
        solved[bool(group.peer)] += 1
        return bool(group.peer) or solved[False] % 2 == 0

    monkeypatch.setattr(subject, "is_solved", solve)
    stage, batch = open_batch(engine, 1, ref)
    assert solved[False] > stage.peer_group_count > 0
    assert sum(marks(batch)) == stage.peer_group_count
    published = {group.question.reference.base for group in stage._publication.choose_groups()}
    theirs = {group.reference.base for group in decode_rollouts(body).groups}
    assert published and not published & theirs, "answers to peers' questions are not published"
    assert stage.metrics.stage.completions == GROUP * len(stage._publication.choose_groups())


@pytest.mark.parametrize("solved", [True, False])
def test_a_batch_is_whole_whatever_became_of_peers_questions(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch, solved: bool
) -> None:
    """Even if all of this node's answers to them are alike, and there are no earlier groups."""
    ref, body = publish(make_engine, questions=8)
    engine = make_engine(
        "a", questions=4, peer_questions=2, peer_loss="success-gated", temperature=1e-6, held_out_questions=0
    )
    engine._blobs.put(body)
    monkeypatch.setattr(subject, "is_solved", lambda group: bool(group.peer) or solved)
    stage, _ = engine._open_stage(order(1, (ref,)), Cancellation())
    batches = [marks(stage.next_batch()) for _ in range(2)]
    assert [len(batch) for batch in batches] == [4, 4]
    assert sum(map(sum, batches)) == stage.peer_group_count and bool(stage.peer_group_count) != solved
    assert train_stage(engine, 1, (ref,)).steps == 2
