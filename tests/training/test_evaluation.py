"""The guard of skills: which tasks count as fallen, and how much more they are drawn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.bounds import is_bounded
from swarmd.core.values import SKILL_NAME_MAX, SKILLS_MAX
from swarmd.swarms.plan import Question
from swarmd.swarms.rollouts import Reference
from swarmd.training.evaluation import WEIGHT_MAX, Accuracy, SkillGuard, SkillRecord, thin_by_weight
from swarmd.training.schedule import PeerSchedule, share_evenly
from tests.training.test_schedule import TASKS, group, tasks_of

shares = st.floats(0, 1)
histories = st.lists(shares, min_size=1, max_size=40)
sizes = st.integers(1, 2000)


def after(history: list[float], questions: int = 64) -> SkillRecord:
    return measured(history, questions).records["sort"]


def measured(history: list[float], questions: int = 64) -> SkillGuard:
    guard = SkillGuard()
    for share in history:
        guard.record_measurement({"sort": Accuracy(share, 1.0, questions)})
    return guard


@given(histories, sizes)
def test_weights_and_figures_stay_in_their_bounds(history: list[float], questions: int) -> None:
    record = after(history, questions)
    assert 1 <= record.sampling_weight <= WEIGHT_MAX
    assert 0 <= record.mean <= record.best <= 1 and 0 <= record.lost_share <= 1


@given(st.lists(shares, min_size=1, max_size=40).map(sorted), sizes)
def test_what_rises_has_never_fallen(history: list[float], questions: int) -> None:
    assert measured(history, questions).sampling_weights == {}


@given(histories, st.integers(8, 500))
def test_who_is_back_at_the_best_weighs_as_ever_within_a_few_rounds(history: list[float], questions: int) -> None:
    best = max(history)
    assert after([*history, *[best] * 12], questions).sampling_weight == pytest.approx(1, abs=0.01)


def test_a_skill_that_is_forgotten_is_noticed_in_the_next_measurement() -> None:
    record = after([0.9, 0.4])
    assert record.lost_share > 0 and record.sampling_weight > 1.5
    assert after([0.9, 0.4, 0.0]).sampling_weight == WEIGHT_MAX


def stream(seed: int = 0) -> Iterator[Question]:
    random = Random(seed)
    for index in itertools.count():
        yield Question(Reference(random.choice(TASKS), "0" * 16, 0, index), (), {})


def test_own_questions_are_drawn_by_weight_in_the_order_of_the_plan() -> None:
    drawn = list(itertools.islice(thin_by_weight(stream(), {"sort": 3.0}, 1), 3000))
    counts = Counter(question.task for question in drawn)
    for task in TASKS:
        assert counts[task] == pytest.approx(1500 if task == "sort" else 500, rel=0.15)
    assert [question.reference.index for question in drawn] == sorted(question.reference.index for question in drawn)
    assert drawn == list(itertools.islice(thin_by_weight(stream(), {"sort": 3.0}, 1), 3000)), (
        "the same for the same seed"
    )


counts_of_tasks = st.dictionaries(st.sampled_from(TASKS), st.integers(0, 60))
weights_of_tasks = st.dictionaries(st.sampled_from(TASKS), st.floats(1, WEIGHT_MAX))


@given(counts_of_tasks, st.integers(0, 120), weights_of_tasks)
def test_weighted_shares_are_all_that_is_wanted_or_there(
    counts: dict[str, int], wanted: int, weights: dict[str, float]
) -> None:
    dealt = share_evenly(counts, wanted, weights)
    assert sum(dealt.values()) == min(wanted, sum(counts.values()))
    assert all(0 <= dealt[name] <= count for name, count in counts.items())
    assert share_evenly(counts, wanted, dict.fromkeys(weights, 1.0)) == share_evenly(counts, wanted)


def test_peers_groups_of_a_fallen_task_are_dealt_more() -> None:
    groups = [group(task, place, peer="anna") for task in TASKS for place in range(40)]
    dealt = tasks_of([each for _ in range(1) for each in PeerSchedule(groups, 1, 30).schedule_step({})])
    guarded = PeerSchedule(groups, 1, 30, weights={"rotate": 3.0}).schedule_step({})
    assert max(dealt.values()) <= 8
    assert tasks_of(guarded) == {"reverse": 5, "sort": 5, "add": 5, "rotate": 15}


def test_the_guard_goes_on_from_a_checkpoint() -> None:
    guard = SkillGuard()
    guard.record_measurement({"sort": Accuracy(0.9, 1.0, 64), "add": Accuracy(0.5, 1.0, 64)})
    guard.record_measurement({"sort": Accuracy(0.3, 1.0, 64), "add": Accuracy(0.5, 1.0, 64)})
    again = SkillGuard()
    again.load_records(guard.dump_records())
    assert again.sampling_weights == guard.sampling_weights != {}
    again.record_measurement({})
    assert again.list_skills() == guard.list_skills(), "a round without a measurement changes nothing"
    again.record_measurement({"add": Accuracy(0.5, 1.0, 64)})
    assert [skill.task for skill in again.list_skills()] == ["add"], "tasks that are trained no more are forgotten"


def test_what_is_told_is_bounded_and_begins_with_what_has_fallen() -> None:
    guard = SkillGuard()
    guard.records = {f"{place:03d}" + "x" * 100: SkillRecord(0.5, 0.5, 0.5, 64) for place in range(100)}
    guard.records["last"] = SkillRecord(0.1, 0.1, 0.9, 64)
    told = guard.list_skills()
    assert told[0].task == "last" and told[0].fallen and told[0].weight == WEIGHT_MAX
    assert len(told) == SKILLS_MAX and max(len(skill.task) for skill in told) == SKILL_NAME_MAX
    assert all(is_bounded(skill) for skill in told)
