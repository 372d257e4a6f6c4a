"""Scheduling peers' groups, and which of the own groups are published and replayed."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.plan import Question, Score
from swarmd.swarms.rollouts import (
    COMPLETION_CHARACTERS_MAX,
    VERSION,
    Group,
    Reference,
    Rollouts,
    decode_rollouts,
    encode_rollouts,
)
from swarmd.training.groups import TrainingGroup
from swarmd.training.schedule import (
    KEPT_PER_TASK,
    PEER_SHARE,
    PeerSchedule,
    ReplayBuffer,
    count_peer_ranks,
    groups_per_peer_max,
    select_rank_groups,
    share_evenly,
    spread_evenly,
)
from swarmd.training.stage import PublicationBuffer

TASKS = ("reverse", "sort", "add", "rotate")
mixtures = st.lists(st.sampled_from(TASKS), max_size=60)


PEERS = ("anna", "bert", "mallory")
offers = st.lists(st.tuples(st.sampled_from(TASKS), st.sampled_from(PEERS)), max_size=80)


def group(task: str, index: int, flat: bool = False, peer: str = "", text: str = "3") -> TrainingGroup:
    question = Question(Reference(task, "0" * 16, 0, index), (), {})
    rewards = [1.0, 1.0 if flat else 0.0]
    scores = [Score(reward) for reward in rewards]
    return TrainingGroup(question, [1], [[2], [3]], ["2", text], rewards, scores, [[1], [1]], peer)


def tasks_of(groups: list[TrainingGroup]) -> Counter[str]:
    return Counter(each.question.task for each in groups)


def peers_of(groups: list[TrainingGroup]) -> Counter[str]:
    return Counter(each.peer for each in groups)


def test_spare_groups_stand_in_for_flat_ones() -> None:
    schedule = PeerSchedule([group("sort", place) for place in range(20)], 3, 4)
    assert len(schedule.schedule_step({})) == 4
    assert len(schedule.take_spare_groups(5)) == 5  # 16 left, 8 needed by the two steps to come
    assert len(schedule.take_spare_groups(5)) == 3
    assert schedule.take_spare_groups(5) == []
    assert len(schedule.schedule_step({})) == len(schedule.schedule_step({})) == 4
    assert schedule.scheduled == 20


def test_a_rare_task_is_scheduled_as_often_as_the_others_and_over_the_whole_stage() -> None:
    groups = [group("sort", place) for place in range(90)] + [group("add", place) for place in range(10)]
    Random(0).shuffle(groups)
    schedule = PeerSchedule(groups, 5, 4)
    shares = [tasks_of(schedule.schedule_step({})) for _ in range(5)]
    assert shares == [Counter(sort=2, add=2)] * 5


@given(mixtures, st.integers(0, 70))
def test_spreading_loses_nothing_and_gives_every_task_its_share(tasks: list[str], wanted: int) -> None:
    items = list(enumerate(tasks))
    spread = spread_evenly(items, wanted, [lambda item: item[1]])
    assert sorted(spread) == items
    first = Counter(task for _, task in spread[:wanted])
    have = Counter(tasks)
    assert first == +Counter(share_evenly(have, wanted))
    fewest = min((first[task] for task in have if first[task] < have[task]), default=wanted)
    assert all(first[task] <= fewest + 1 for task in have)


# --- one peer's share of a batch ---


@given(
    offers,
    st.integers(1, 8),
    st.integers(0, 6),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(PEERS), st.booleans()),
    st.integers(0, 8),
)
def test_no_mixture_gives_a_peer_more_of_a_batch_than_its_bound(
    made: list[tuple[str, str]], steps: int, share_max: int, peer_max: int, worthy: dict[str, bool], spare: int
) -> None:
    groups = [group(task, place, peer=peer) for place, (task, peer) in enumerate(made)]
    replay = ReplayBuffer()
    for each in groups:
        replay.add(each)
    schedule = PeerSchedule(groups, steps, share_max, peer_max)
    dealt: list[TrainingGroup] = []
    for step in range(steps):
        batch = schedule.schedule_step(worthy) + schedule.take_spare_groups(spare)
        dealt += batch
        batch += replay.draw(3, Random(step), schedule.admit_group)
        for peer, count in peers_of(batch).items():
            assert count <= (peer_max * worthy[peer] if peer in worthy else 1)
    assert len({id(each) for each in dealt}) == len(dealt) == schedule.scheduled
    passed = schedule.count_skipped()
    assert sum(passed.values()) <= len(groups) - len(dealt)
    assert all((reason == "little") == (worthy.get(peer) is False) for peer, reason in passed)


def test_a_peer_of_whom_little_counts_has_no_places_and_that_is_told() -> None:
    groups = [group("sort", place, peer=peer) for place in range(4) for peer in ("mallory", "anna")]
    schedule = PeerSchedule(groups, 2, 4, peer_max=2)
    assert peers_of(schedule.schedule_step({})) == Counter(mallory=1, anna=1), "nobody was looked at yet"
    assert peers_of(schedule.schedule_step({"mallory": False, "anna": True})) == Counter(anna=2)
    assert schedule.count_skipped()["mallory", "little"] > 0
    assert not schedule.admit_group(group("sort", 9, peer="mallory")) and schedule.admit_group(group("sort", 9))


@pytest.mark.parametrize(("peers", "slots", "bound"), [(1, 4, 0), (2, 4, 2), (50, 4, 2), (5, 1, 1), (5, 5, 3)])
def test_the_bound_is_a_share_of_the_places_that_peers_have(peers: int, slots: int, bound: int) -> None:
    assert groups_per_peer_max(slots, peers) == bound


@given(offers, st.integers(1, 6), st.integers(1, 5))
def test_ranks_together_give_a_peer_no_more_of_a_batch_than_its_bound(
    made: list[tuple[str, str]], ranks: int, places: int
) -> None:
    groups = [group(task, place, peer=peer) for place, (task, peer) in enumerate(made)]
    peer_ranks, bound = count_peer_ranks(places, len(PEERS), ranks), groups_per_peer_max(places, len(PEERS))
    parts = [select_rank_groups(groups, rank, ranks, peer_ranks) for rank in range(ranks)]
    assert sorted(id(each) for part in parts for each in part) == sorted(map(id, groups)), "each is for one rank"
    batch = [each for part in parts for each in PeerSchedule(part, 1, places, bound).schedule_step({})]
    assert all(count <= max(math.ceil(places * ranks * PEER_SHARE), 1) for count in peers_of(batch).values())


@given(
    st.lists(st.tuples(st.sampled_from(TASKS), st.integers(0, 5), st.booleans()), max_size=40),
    st.integers(0, 12),
)
def test_what_is_published_keeps_to_its_bound(made: list[Any], groups_max: int) -> None:
    publication = PublicationBuffer(groups_max)
    for task, index, flat in made:
        publication.add(group(task, index, flat))
    chosen = publication.choose_groups()
    assert len(chosen) <= groups_max
    questions = [each.question.reference for each in chosen]
    assert len(set(questions)) == len(questions)
    flatness = [each.has_zero_variance for each in chosen]
    assert flatness == sorted(flatness)  # flat ones only fill up


def test_replay_keeps_the_latest_informative_groups_of_each_task() -> None:
    replay = ReplayBuffer()
    assert replay.draw(3, Random(0)) == []
    for index in range(KEPT_PER_TASK + 5):
        replay.add(group("sort", index))
    replay.add(group("sort", 999, flat=True))
    replay.add(group("add", 0))
    assert len(replay) == KEPT_PER_TASK + 1
    drawn = replay.draw(1000, Random(0))
    assert len({id(each) for each in drawn}) == len(drawn) == len(replay)
    assert min(each.question.reference.index for each in drawn if each.question.task == "sort") == 5
    often = Counter(replay.draw(1, Random(seed))[0].question.task for seed in range(200))
    assert 60 < often["add"] < 140  # tasks alike, however many groups they have


def test_a_text_too_long_for_the_wire_costs_its_group_and_not_the_stage() -> None:
    """A model that repeats itself reaches the bound within its token limit; the whole body used to be refused then."""
    publication = PublicationBuffer(8)
    for index in range(2):
        publication.add(group("sort", index, text="y" * (COMPLETION_CHARACTERS_MAX + index)))
    chosen = publication.choose_groups()
    groups = tuple(Group("sort", "0" * 16, 0, each.question.reference.index, tuple(each.texts)) for each in chosen)
    body = encode_rollouts(Rollouts(VERSION, "swarm", "peer", 0, 0, groups))
    assert [group.index for group in decode_rollouts(body).groups] == [0]
