"""Dealing out peers' groups, and what of an own stage is published and kept."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import TrainingConfig
from swarmd.swarms.plan import Question, Score
from swarmd.swarms.rollouts import Reference
from swarmd.training.batches.batch import PEER_SHARE, bound_peer, count_ranks
from swarmd.training.batches.groups import TrainingGroup
from swarmd.training.batches.peer_schedule import PeerSchedule, share_evenly, spread_evenly, take_part
from swarmd.training.batches.publication import Publication
from swarmd.training.batches.replay import KEPT_PER_TASK, TASKS_MAX, Replay

TASKS = ("reverse", "sort", "add", "rotate")
mixtures = st.lists(st.sampled_from(TASKS), max_size=60)


PEERS = ("anna", "bert", "mallory")
offers = st.lists(st.tuples(st.sampled_from(TASKS), st.sampled_from(PEERS)), max_size=80)


def group(task: str, index: int, flat: bool = False, peer: str = "") -> TrainingGroup:
    question = Question(Reference(task, "0" * 16, 0, index), (), {})
    rewards = [1.0, 1.0 if flat else 0.0]
    scores = [Score(reward) for reward in rewards]
    return TrainingGroup(question, [1], [[2], [3]], ["2", "3"], rewards, scores, [[1], [1]], peer)


def tasks_of(groups: list[TrainingGroup]) -> Counter[str]:
    return Counter(each.question.task for each in groups)


def peers_of(groups: list[TrainingGroup]) -> Counter[str]:
    return Counter(each.peer for each in groups)


def deal(count: int, steps: int, share_max: int) -> list[int]:
    dealer = PeerSchedule([group("sort", place) for place in range(count)], steps, share_max)
    return [len(dealer.next_share()) for _ in range(steps)]


def test_shares_are_even() -> None:
    assert deal(10, 4, 4) == [3, 3, 2, 2]
    assert deal(2, 4, 4) == [1, 1, 0, 0]
    assert deal(100, 4, 4) == [4, 4, 4, 4]


def test_spare_groups_stand_in_for_flat_ones() -> None:
    dealer = PeerSchedule([group("sort", place) for place in range(20)], 3, 4)
    assert len(dealer.next_share()) == 4
    assert len(dealer.spare(5)) == 5  # 16 left, 8 needed by the two steps to come
    assert len(dealer.spare(5)) == 3
    assert dealer.spare(5) == []
    assert len(dealer.next_share()) == len(dealer.next_share()) == 4
    assert dealer.dealt == 20


def test_a_rare_task_is_dealt_as_often_as_the_others_and_over_the_whole_stage() -> None:
    groups = [group("sort", place) for place in range(90)] + [group("add", place) for place in range(10)]
    Random(0).shuffle(groups)
    dealer = PeerSchedule(groups, 5, 4)
    shares = [tasks_of(dealer.next_share()) for _ in range(5)]
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


@given(offers, st.integers(0, 90))
def test_of_every_task_every_peer_has_its_share(made: list[tuple[str, str]], wanted: int) -> None:
    items = [(place, *each) for place, each in enumerate(made)]
    spread = spread_evenly(items, wanted, [lambda item: item[1], lambda item: item[2]])
    assert sorted(spread) == items
    tasks = share_evenly(Counter(task for task, _ in made), wanted)
    for task, share in tasks.items():
        first = Counter(peer for _, named, peer in spread[:wanted] if named == task)
        assert first == +Counter(share_evenly(Counter(peer for named, peer in made if named == task), share))


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
    made: list[tuple[str, str]],
    steps: int,
    share_max: int,
    peer_max: int,
    worthy: dict[str, bool],
    spare: int,
) -> None:
    groups = [group(task, place, peer=peer) for place, (task, peer) in enumerate(made)]
    replay = Replay()
    for each in groups:
        replay.add(each)
    dealer = PeerSchedule(groups, steps, share_max, peer_max)
    dealt: list[TrainingGroup] = []
    for step in range(steps):
        batch = dealer.next_share(worthy) + dealer.spare(spare)
        dealt += batch
        batch += replay.draw(3, Random(step), dealer.admit)
        for peer, count in peers_of(batch).items():
            assert count <= (peer_max * worthy[peer] if peer in worthy else 1)
    assert len({id(each) for each in dealt}) == len(dealt) == dealer.dealt
    passed = dealer.count_passed()
    assert sum(passed.values()) <= len(groups) - len(dealt)
    assert all((reason == "little") == (worthy.get(peer) is False) for peer, reason in passed)


@given(mixtures, st.integers(1, 8), st.integers(0, 6))
def test_where_there_is_one_peer_nothing_of_it_is_lost(tasks: list[str], steps: int, share_max: int) -> None:
    bound = bound_peer(TrainingConfig(), peers=1)
    groups = [group(task, place, peer="anna") for place, task in enumerate(tasks)]
    bounded, free = PeerSchedule(groups, steps, share_max, bound), PeerSchedule(groups, steps, share_max)
    for _ in range(steps):
        assert bounded.next_share({"anna": True}) == free.next_share()
    assert not bounded.count_passed()


def test_a_peer_that_publishes_much_leaves_the_others_their_places() -> None:
    crowd = [group(task, place, peer="mallory") for place in range(16) for task in TASKS]
    few = [group(task, 0, peer=peer) for task in TASKS for peer in ("anna", "bert")]
    dealer = PeerSchedule(crowd + few, 8, 4, peer_max=2)
    worthy = dict.fromkeys(PEERS, True)
    batches = [dealer.next_share(worthy) for _ in range(8)]
    assert sum(map(peers_of, batches), Counter()) == Counter(mallory=16, anna=4, bert=4)
    assert dealer.count_passed()["mallory", "share"] > 0


def test_a_peer_of_whom_little_counts_has_no_places_and_that_is_told() -> None:
    groups = [group("sort", place, peer=peer) for place in range(4) for peer in ("mallory", "anna")]
    dealer = PeerSchedule(groups, 2, 4, peer_max=2)
    assert peers_of(dealer.next_share({})) == Counter(mallory=1, anna=1), "nobody was looked at yet"
    assert peers_of(dealer.next_share({"mallory": False, "anna": True})) == Counter(anna=2)
    assert dealer.count_passed()["mallory", "little"] > 0
    assert not dealer.admit(group("sort", 9, peer="mallory")) and dealer.admit(group("sort", 9))


@given(offers, st.integers(1, 8))
def test_the_same_groups_are_dealt_alike_again(made: list[tuple[str, str]], steps: int) -> None:
    groups = [group(task, place, peer=peer) for place, (task, peer) in enumerate(made)]
    one, other = PeerSchedule(groups, steps, 4, 2), PeerSchedule(groups, steps, 4, 2)
    assert [one.next_share() for _ in range(steps)] == [other.next_share() for _ in range(steps)]
    assert one.count_passed() == other.count_passed()


@pytest.mark.parametrize(
    ("peers", "settings", "bound"),
    [
        (1, {}, 0),
        (2, {}, 2),
        (50, {}, 2),
        (5, {"peer_questions": 1}, 1),
        (5, {"peer_questions": 5}, 3),
    ],
)
def test_the_bound_is_a_share_of_the_places_that_peers_have(peers: int, settings: dict[str, Any], bound: int) -> None:
    assert bound_peer(TrainingConfig(**settings), peers) == bound


@given(offers, st.integers(1, 6), st.integers(1, 5))
def test_ranks_together_give_a_peer_no_more_of_a_batch_than_its_bound(
    made: list[tuple[str, str]], ranks: int, places: int
) -> None:
    groups = [group(task, place, peer=peer) for place, (task, peer) in enumerate(made)]
    training = TrainingConfig(peer_questions=places)
    peer_ranks, bound = count_ranks(training, len(PEERS), ranks), bound_peer(training, len(PEERS))
    parts = [take_part(groups, rank, ranks, peer_ranks) for rank in range(ranks)]
    assert sorted(id(each) for part in parts for each in part) == sorted(map(id, groups)), "each is for one rank"
    batch = [each for part in parts for each in PeerSchedule(part, 1, places, bound).next_share()]
    assert all(count <= max(math.ceil(places * ranks * PEER_SHARE), 1) for count in peers_of(batch).values())


@given(st.dictionaries(st.sampled_from(TASKS), st.integers(0, 50)), st.integers(0, 120))
def test_even_shares_add_up(counts: dict[str, int], wanted: int) -> None:
    shares = share_evenly(counts, wanted)
    assert sum(shares.values()) == min(wanted, sum(counts.values()))
    assert all(0 <= shares[name] <= counts[name] for name in counts)


@given(
    st.lists(st.tuples(st.sampled_from(TASKS), st.integers(0, 5), st.booleans()), max_size=40),
    st.integers(0, 12),
)
def test_what_is_published_keeps_to_its_bound(made: list[Any], groups_max: int) -> None:
    publication = Publication(groups_max)
    for task, index, flat in made:
        publication.add(group(task, index, flat))
    chosen = publication.choose()
    assert len(chosen) <= groups_max
    questions = [each.question.reference for each in chosen]
    assert len(set(questions)) == len(questions)
    flatness = [each.is_flat for each in chosen]
    assert flatness == sorted(flatness)  # flat ones only fill up


def test_replay_keeps_the_latest_informative_groups_of_each_task() -> None:
    replay = Replay()
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


def test_replay_forgets_what_is_unwanted_and_draws_the_rest() -> None:
    replay = Replay()
    for place, peer in enumerate(["anna", "otto", "anna"]):
        replay.add(group("sort", place, peer=peer))
    replay.add(group("add", 0, peer="anna"))
    replay.forget(lambda each: each.peer == "anna")
    assert [(each.question.task, each.peer) for each in replay.draw(9, Random(0))] == [("sort", "otto")]


def test_replay_of_very_many_tasks_is_bounded() -> None:
    replay = Replay()
    for place in range(TASKS_MAX + 10):
        replay.add(group(f"task {place}", 0))
    assert len(replay) == TASKS_MAX
