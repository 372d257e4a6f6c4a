"""Data sets that are copies of each other give the questions that those made anew would give."""

import itertools
import re
from typing import Any

import msgspec
import pytest
import reasoning_gym
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import CURRICULA, DATASETS

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms import reasoning_gym as plan_module
from swarmd.swarms.gym_tasks import MADE, Datasets, make_levels, make_pattern, make_task
from swarmd.swarms.options import MIXTURE
from swarmd.swarms.plan import NO_MATERIAL, Question, Score, StageId, split_of
from swarmd.swarms.reasoning_gym import Ladder, LadderState, ReasoningGymPlan
from swarmd.swarms.text import read_number

SLOW = {"acre", "futoshiki", "sokoban", "zebra_puzzles"}  # seconds for a data set or a question
MADE_ANEW = {"aiw", "calendar_arithmetic", "gsm_symbolic", "knight_swap", "list_functions", "manipulate_matrix"}
ASKED = (0, 12_345)
# Those of swarmd itself are registered when a plan is made, so not in every process that collects these tests.
TASKS = {name for name, (made, _) in DATASETS.items() if made.__module__.startswith("reasoning_gym.")} - {"composite"}


@pytest.mark.parametrize("name", sorted(TASKS - SLOW - MADE_ANEW))
def test_a_copy_asks_what_a_data_set_made_anew_asks(name: str) -> None:
    """Also after others were asked, with which it shares what does not depend on the seed."""
    task, given = make_task(name, {}), Datasets()
    for seed in (11, 2**31 - 1):
        fresh = task.make(seed)
        for index in ASKED:
            asked, expected = given.take(task, seed)[index], fresh[index]
            assert asked["question"] == expected["question"]
            assert asked["answer"] == expected["answer"]


@pytest.mark.parametrize("name", sorted(MADE_ANEW))
def test_where_the_seed_decides_more_than_questions_each_is_made(name: str) -> None:
    assert make_pattern(make_task(name, {})) is None


@pytest.mark.parametrize("name", MADE)
def test_the_working_leads_to_the_answer(name: str) -> None:
    data = reasoning_gym.create_dataset(name, seed=5, size=300)
    for entry in data:
        working = entry["metadata"]["working"]
        for line in working:
            sum, _, result = line.partition("=")
            assert eval(sum) == int(result)
        assert working[-1].endswith(f"={entry['answer']}")
        assert read_number(entry["answer"]) is not None and int(entry["answer"]) >= 0


def test_a_story_about_somebody_else_is_the_same_question() -> None:
    texts: dict[str, set[str]] = {}
    for entry in reasoning_gym.create_dataset("made_stories", seed=5, size=3000):
        numbers = tuple(re.findall(r"\d+", entry["question"]))
        assert sorted(numbers) == sorted(entry["metadata"]["canonical"].split()[1:])
        texts.setdefault(entry["metadata"]["canonical"], set()).add(entry["question"])
    assert any(len(told) > 1 for told in texts.values())
    assert len(texts) > 800
    assert {split_of("made_stories", canonical) for canonical in texts} == {"train", "dev", "held-out"}


def test_an_item_is_a_function_of_seed_and_index() -> None:
    one, other = (reasoning_gym.create_dataset("made_stories", seed=seed, size=20) for seed in (7, 9))
    assert one[2] == {**other[0], "metadata": {**other[0]["metadata"], "source_index": 2}}


HERE = StageId("a", 0, 0)
RIGHT, WRONG = [Score(1.0, 1.0)] * 4, [Score(0.0, 0.0)] * 4
ACCURACIES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=80)


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "WINDOW", 3)


def plan_of(*tasks: TaskConfig) -> ReasoningGymPlan:
    return ReasoningGymPlan(SwarmConfig("s", kind="reasoning-gym", tasks=tasks))


def going(name: str = "digits_reverse", **settings: Any) -> TaskConfig:
    return TaskConfig(name, curriculum=True, **settings)


def take(plan: ReasoningGymPlan, count: int = 20, place: StageId = HERE) -> list[Question]:
    return list(itertools.islice(plan.draw(place, NO_MATERIAL), count))


def digits_of(questions: list[Question]) -> set[int]:
    return {len(question.messages[-1].content.split()[-1]) for question in questions}


def teach(plan: ReasoningGymPlan, scores: list[Score], groups: int) -> None:
    for question in take(plan, groups):
        plan.learn(question, scores)


def test_the_level_rises_and_falls_with_the_results() -> None:
    plan = plan_of(going())
    seen = [digits_of(take(plan))]
    for scores in (RIGHT, RIGHT, WRONG, RIGHT):
        teach(plan, scores, 3)
        seen.append(digits_of(take(plan)))
    assert seen == [{2}, {3}, {4}, {3}, {4}]


def test_a_stage_keeps_the_level_that_it_began_with() -> None:
    plan = plan_of(going())
    stream = plan.draw(HERE, NO_MATERIAL)
    drawn = list(itertools.islice(stream, 12))
    for question in drawn:
        plan.learn(question, RIGHT)
    assert digits_of([*drawn, *itertools.islice(stream, 12)]) == {2}
    assert digits_of(take(plan)) == {3}, "groups of a level that was left no longer count"


@given(ACCURACIES, st.integers(1, 9), st.integers(1, 6))
def test_a_ladder_stays_in_its_levels_and_moves_one_at_a_time(
    accuracies: list[float], window: int, levels: int
) -> None:
    ladder, moved = Ladder(levels, window), -window
    for number, accuracy in enumerate(accuracies):
        before = ladder.level
        ladder.note(accuracy)
        assert 0 <= ladder.level < levels
        assert abs(ladder.level - before) <= 1
        if ladder.level != before:
            recent = accuracies[max(number - window + 1, 0) : number + 1]
            assert number - moved >= window and len(recent) == window
            assert sum(recent) / window >= 0.8 if ladder.level > before else sum(recent) / window <= 0.2
            moved = number


@given(ACCURACIES, st.integers(0, 80), st.integers(1, 9))
def test_a_restart_changes_nothing(accuracies: list[float], at: int, window: int) -> None:
    whole, first, second = (Ladder(4, window) for _ in range(3))
    for accuracy in accuracies:
        whole.note(accuracy)
    for accuracy in accuracies[:at]:
        first.note(accuracy)
    second.load(msgspec.convert(first.read(), LadderState))
    for accuracy in accuracies[at:]:
        second.note(accuracy)
    assert second.read() == whole.read()


def test_memory_survives_in_a_plan() -> None:
    plan, again = plan_of(going()), plan_of(going())
    teach(plan, RIGHT, 8)
    again.load_memory(msgspec.msgpack.decode(msgspec.msgpack.encode(plan.read_memory())))
    assert take(again) == take(plan) and digits_of(take(again)) == {3}
    assert again.read_memory() == plan.read_memory()


@pytest.mark.parametrize(
    "remembered", [[], "3", {"gcd": 3}, {"gcd": {"level": -1}}, {"gcd": {"level": 1, "recent": [2.0]}}]
)
def test_memory_that_cannot_be_read_is_told(remembered: Any) -> None:
    with pytest.raises(SwarmError, match="cannot be read"):
        plan_of(going("gcd")).load_memory({"curricula": remembered})


def test_peers_questions_of_any_level_are_taken() -> None:
    ahead, behind = plan_of(going()), plan_of(going())
    for _ in range(4):
        teach(ahead, RIGHT, 3)
    far = StageId("b", 2, 0)
    for question in take(ahead, 20, far):
        assert behind.regenerate(question.reference, far, NO_MATERIAL) == question
        assert behind.score(question, [f"<answer>{question.entry['answer']}</answer>"])[0].accuracy == 1.0
    assert digits_of(take(ahead)) == {6}


def test_peers_questions_of_no_level_are_refused() -> None:
    foreign = take(plan_of(TaskConfig("digits_reverse", config={"digits": 9})), 1)[0].reference
    plan = plan_of(going())
    with pytest.raises(RecordRejected) as caught:
        plan.regenerate(foreign, HERE, NO_MATERIAL)
    assert caught.value.reason == "config-digest"
    two, three = (make_levels(going())[level].digest for level in (0, 1))
    own = take(plan, 1)[0].reference
    assert own.config_digest == two
    with pytest.raises(RecordRejected) as caught:
        plan.regenerate(msgspec.structs.replace(own, config_digest=three), HERE, NO_MATERIAL)
    assert caught.value.reason == "seed", "a seed belongs to one level"


def test_what_is_held_out_is_of_all_levels_and_the_same_at_any() -> None:
    plan = plan_of(going())
    before = plan.hold_out("digits_reverse", 25)
    teach(plan, RIGHT, 3)
    assert plan.hold_out("digits_reverse", 25) == before
    assert digits_of(before) == {2, 3, 4, 5, 6}
    assert {split_of("digits_reverse", str(q.entry["metadata"]["canonical"])) for q in before} == {"held-out"}


def test_wrong_curricula_are_told() -> None:
    with pytest.raises(SwarmError, match="has no setting 'digit'"):
        plan_of(going(config={"digit": 3}))
    with pytest.raises(SwarmError, match="no level of the task chain_sum"):
        plan_of(going("chain_sum", config={"min_terms": 0}))
    without = next(name for name in ("composite", "acre", "lcm") if name not in CURRICULA)
    with pytest.raises(SwarmError):
        plan_of(going(without))


@pytest.mark.parametrize("name", MIXTURE)
def test_every_task_of_the_default_mixture_can_pay_and_has_a_curriculum(name: str) -> None:
    plan = plan_of(TaskConfig(name))
    for question in take(plan, 10):
        right, junk = plan.score(question, [f"<answer>{question.entry['answer']}</answer>", "<answer>x y</answer>"])
        assert right.accuracy == 1.0 and junk.accuracy <= 0.05
        assert plan.regenerate(question.reference, HERE, NO_MATERIAL) == question
    assert len(make_levels(going(name))) > 1
