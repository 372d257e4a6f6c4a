"""The reasoning-gym swarm: drawing, splitting, regenerating, scoring, levels, and data sets that are copies."""

import inspect
import itertools
import random
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import reasoning_gym
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoning_gym.factory import CURRICULA, DATASETS

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.errors import SwarmError
from swarmd.swarms import reasoning_gym as plan_module
from swarmd.swarms.gym_tasks import (
    EVALUATED,
    MADE,
    MOVES_MAX,
    PARSED,
    RAISED,
    REPEATED,
    TASK_NAMES,
    UNSAFE_TASKS,
    DatasetCache,
    is_safe_to_score,
    make_copyable_dataset,
    make_task,
    make_task_levels,
)
from swarmd.swarms.options import MIXTURE
from swarmd.swarms.plan import NO_MATERIAL, Question, Score, StageId, split_of
from swarmd.swarms.reasoning_gym import CurriculumLevel, DigitsPlan, ReasoningGymPlan
from swarmd.swarms.registry import make_plan
from swarmd.swarms.text import read_number
from tests.swarms.making import HERE, refusal, take, text_of

DIGITS = DigitsPlan(SwarmConfig(id="test"))


def plan_of(*tasks: str | TaskConfig, **settings: object) -> ReasoningGymPlan:
    configs = tuple(TaskConfig(task, config=settings) if isinstance(task, str) else task for task in tasks)
    return ReasoningGymPlan(SwarmConfig(id="test", kind="reasoning-gym", tasks=configs))


def canonical(question: Question) -> str:
    return str(question.entry["metadata"]["canonical"])


def test_draws_are_the_same_everywhere() -> None:
    again = DigitsPlan(SwarmConfig(id="test"))
    assert take(DIGITS, 50) == take(again, 50)
    assert {question.task for question in take(DIGITS, 50)} == set(TASK_NAMES)


def test_a_task_that_draws_from_pythons_own_random_numbers_asks_every_node_the_same() -> None:
    drawn = take(plan_of("list_functions"), 60)
    random.seed(1)
    before = random.getstate()
    assert [text_of(question) for question in take(plan_of("list_functions"), 60)] == [text_of(each) for each in drawn]
    assert random.getstate() == before, "a peer's question decides what this node draws"


def test_weights_make_the_mixture() -> None:
    tasks = (TaskConfig("chain_sum", 3.0), TaskConfig("letter_counting", 1.0))
    drawn = take(plan_of(*tasks), 400)
    share = sum(question.task == "chain_sum" for question in drawn) / 400
    assert 0.68 < share < 0.82


@pytest.mark.parametrize("other", [StageId("b", 3, 0), StageId("a", 4, 0)])
def test_seeds_do_not_overlap_across_nodes_and_rounds(other: StageId) -> None:
    """Items are functions of seed + index: seeds that count up would repeat each other's questions."""
    plan = plan_of("chain_sum", min_digits=6, max_digits=9)
    here = {text_of(question) for question in take(plan, 300)}
    there = {text_of(question) for question in take(plan, 300, other)}
    assert len(here) == len(there) == 300
    assert not here & there


@pytest.mark.parametrize("task", TASK_NAMES)
def test_sides_of_the_split_do_not_touch(task: str) -> None:
    sides = {
        side: {canonical(q) for q in DIGITS.select_questions(task, side, 300)} for side in ("train", "dev", "held-out")
    }
    assert all(len(side) == 300 for side in sides.values())
    assert not sides["train"] & sides["dev"] | sides["dev"] & sides["held-out"] | sides["train"] & sides["held-out"]
    drawn = {canonical(question) for question in take(DIGITS, 2000) if question.task == task}
    assert not drawn & (sides["dev"] | sides["held-out"])


@settings(max_examples=50)
@given(st.integers(0, 19_999))
def test_digit_answers_are_right_and_exact(index: int) -> None:
    for name in TASK_NAMES:
        task = DIGITS._levels[name][0]
        question, _ = DIGITS._generate_question(task, 1, index)
        number = re.findall(r"\d+", text_of(question).split(":")[1])
        expected = {
            "digits_reverse": number[0][::-1],
            "digits_sort": "".join(sorted(number[0])),
            "digits_increment": "".join(str((int(digit) + 1) % 10) for digit in number[0]),
            "digits_largest": str(max(map(int, number))),
        }[name]
        assert question.entry["answer"] == expected
        assert DIGITS.score(question, [f"<answer>{expected}</answer>"])[0].accuracy == 1.0
        assert DIGITS.score(question, [f"<answer>0{expected}</answer>"])[0].accuracy == 0.0
        assert DIGITS.score(question, [expected])[0].accuracy == 0.0


def test_a_peers_question_is_generated_again() -> None:
    elsewhere = DigitsPlan(SwarmConfig(id="test"))
    for question in take(DIGITS, 40):
        assert elsewhere.regenerate(question.reference, HERE, NO_MATERIAL) == question


def test_references_that_are_refused() -> None:
    question = take(DIGITS, 1)[0]
    assert refusal(DIGITS, question.reference, task="chain_sum") == "unknown-task"
    assert refusal(DIGITS, question.reference, config_digest="0" * 16) == "config-digest"
    assert refusal(DIGITS, question.reference, seed=question.reference.seed ^ 1) == "seed"
    assert refusal(DIGITS, question.reference, StageId("b", 3, 0)) == "seed"
    held = [index for index in range(100) if _side(question, index) != "train"]
    assert refusal(DIGITS, question.reference, index=held[0]) == "held-out"


def _side(question: Question, index: int) -> str:
    task = DIGITS._levels[question.task][0]
    return split_of(task.name, DIGITS._generate_question(task, question.reference.seed, index)[1])


def test_a_completion_without_an_answer_is_worth_nothing_whatever_the_scorer_gives_for_none() -> None:
    """GenRL hands None to the scorer, and fraction_simplification's pays for it."""
    plan = plan_of("fraction_simplification")
    question = take(plan, 1)[0]
    assert plan._levels[question.task][0].make_dataset(0).score_answer(None, dict(question.entry)) == 0.01
    assert [score.reward for score in plan.score(question, ["", "the answer is 1/2"])] == [0.0, 0.0]
    assert plan.score(question, ["<answer>no idea</answer>"])[0].accuracy == 0.01


def test_a_scorer_that_raises_counts_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("chain_sum")
    question = take(plan, 1)[0]
    kind = DATASETS["chain_sum"][0]
    monkeypatch.setattr(kind, "score_answer", lambda *_, **__: 1 / 0, raising=False)
    score = plan.score(question, ["<answer>1</answer>"])[0]
    assert (score.accuracy, score.format, score.failed) == (0.0, 1.0, True)
    monkeypatch.setattr(kind, "score_answer", lambda *_, **__: float("nan"), raising=False)
    assert plan.score(question, ["<answer>1</answer>"])[0].failed
    monkeypatch.setattr(kind, "score_answer", lambda *_, **__: 7.0, raising=False)
    assert plan.score(question, ["<answer>1</answer>"])[0].accuracy == 1.0


def test_the_list_of_unsafe_scorers_is_complete() -> None:
    """Every installed scorer that evaluates its answer, or compares trees, is on the list, and nothing else is."""
    found = set()
    for name, (kind, _) in DATASETS.items():
        evaluates = r"\beval\((?!entry)|parse_expr\((?!metadata|entry)"
        if re.search(evaluates, inspect.getsource(kind.score_answer)) or "zss." in inspect.getsource(
            sys.modules[kind.__module__]
        ):
            found.add(name)
    assert found == UNSAFE_TASKS


def test_peers_answers_never_reach_an_evaluating_scorer_and_own_ones_are_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []
    monkeypatch.setattr("builtins.exec", lambda *_: ran.append(1))
    plan = plan_of("spiral_matrix")
    question = take(plan, 1)[0]
    assert refusal(plan, question.reference) == "unsafe-scorer"
    assert plan.score(question, ["<answer>[exec('1')]</answer>"])[0].accuracy == 0.0
    assert plan.score(question, [f"<answer>{question.entry['answer']}</answer>"])[0].accuracy == 1.0
    assert not ran


HARMFUL: dict[frozenset[str], tuple[str, ...]] = {
    EVALUATED: ("__import__('os')", "(lambda: 0)", "[0]*10**9", "1<<999", "[x for x in y]"),
    PARSED: (
        *("__import__('os')", "x.__class__", "9**9**9", "(9**99)**99", "9**999", "a.b", "open(1)", "1" * 20, "9^9^9"),
        *("(9**9)**(9)", "sin(x - 1e400)", "x**1e9", "(x + 1)^9E9"),
    ),
    RAISED: ("1e9999", "1E-99_99", ".5e+9,9,9,9", "-1e999999999"),
    REPEATED: ("R999999999", "A+99", "U\u0663\u0663", "A-9 " * 60, "R " * (MOVES_MAX + 1)),
}


@pytest.mark.parametrize(
    ("task", "answer"),
    [(task, answer) for tasks, answers in HARMFUL.items() for task in sorted(tasks) for answer in answers],
)
def test_answers_that_call_grow_or_go_on_and_on_are_refused(task: str, answer: str) -> None:
    assert not is_safe_to_score(task, answer)


def test_probabilities_in_all_spellings_are_harmless() -> None:
    assert all(is_safe_to_score("coin_flip", right) for right in ("0.0625", "1/16", "6.25e-2", "1,024/65,536"))


def test_the_list_of_scorers_that_raise_ten_to_a_power_is_complete() -> None:
    kinds = {name: inspect.getsource(kind.score_answer) for name, (kind, _) in DATASETS.items()}
    assert {name for name, source in kinds.items() if "Fraction(answer" in source} == RAISED


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        *(("complex_arithmetic", answer) for answer in ("nan", "-NaN", "(n a n)", "nan + nani", "1 + nani")),
        *(("number_sorting", f"[{', '.join([each] * 9)}]") for each in ("'nan'", "NaN", '"-nan"')),
    ],
)
def test_what_is_no_number_is_no_right_answer(task: str, answer: str) -> None:
    plan = plan_of(task, **({"min_numbers": 9, "max_numbers": 9} if task == "number_sorting" else {}))
    question = take(plan, 1)[0]
    right, wrong = plan.score(question, [f"<answer>{each}</answer>" for each in (question.entry["answer"], answer)])
    assert right.accuracy > 0.99 and wrong.accuracy == 0.0


@pytest.mark.parametrize(
    ("task", "questions", "wrong"),
    [
        ("coin_flip", 200, ["0.0", "0.", "1.0", "0.1", "nothing"]),
        ("puzzle24", 3, ["6*4*1*1", "24", "nothing"]),
        ("game_of_life_halting", 10, ["no", "0", "nothing"]),
    ],
)
def test_wrong_answers_that_a_scorer_pays_in_full_are_worth_nothing(
    task: str, questions: int, wrong: list[str]
) -> None:
    plan = plan_of(task)
    asked = {str(question.entry["answer"]): question for question in take(plan, questions)}
    for truth, question in asked.items():
        scores = plan.score(question, [f"<answer>{answer}</answer>" for answer in (truth, *wrong)])
        paid = [answer for answer, score in zip((truth, *wrong), scores, strict=True) if score.accuracy >= 0.99]
        assert paid[0] == truth and all(is_near(truth, answer) for answer in paid), (truth, paid)


def is_near(truth: str, answer: str) -> bool:
    """Whether both are the same number, as near as a task asks for it, or the same text."""
    return answer == truth or ("." in truth + answer and abs(float(truth) - float(answer)) <= 1e-4)


@pytest.mark.parametrize("task", sorted(UNSAFE_TASKS | RAISED | REPEATED))
def test_the_right_answers_of_unsafe_tasks_pass(task: str) -> None:
    plan = plan_of(task)
    for question in take(plan, 5):
        answer = question.entry["answer"]
        if answer is not None:
            assert plan.score(question, [f"<answer>{answer}</answer>"])[0].accuracy >= 0.99, answer


def error_of(*tasks: TaskConfig, kind: str = "reasoning-gym") -> SwarmError:
    with pytest.raises(SwarmError) as caught:
        make_plan(SwarmConfig(id="t", kind=kind, tasks=tasks))
    return caught.value


def test_wrong_settings_name_the_fix() -> None:
    assert "chain_sum" in error_of(TaskConfig("chain_sums")).fix
    assert "reasoning-gym" in error_of(kind="reasoning-gim").fix
    wrong = error_of(TaskConfig("chain_sum", config={"term": 2}))
    assert "'term'" in wrong.message and "min_terms" in wrong.fix
    bad = error_of(TaskConfig("chain_sum", config={"min_terms": 0}))
    assert "chain_sum" in bad.message
    assert "twice" in error_of(TaskConfig("gcd"), TaskConfig("gcd")).message
    seeded = error_of(TaskConfig("chain_sum", config={"seed": 1}))
    assert "'seed'" in seeded.message


def test_deferred_modules_load_when_their_task_is_used() -> None:
    program = (
        "import sys; from swarmd.config import *; from swarmd.swarms.plan import *\n"
        "from swarmd.swarms.registry import make_plan\n"
        "plan = make_plan(SwarmConfig(id='a')); assert 'matplotlib' not in sys.modules\n"
        "plan = make_plan(SwarmConfig(id='a', kind='reasoning-gym', tasks=(TaskConfig('game_of_life'),)))\n"
        "question = next(plan.draw(StageId('p', 0, 0), NO_MATERIAL)); answer = question.entry['answer']\n"
        "assert 'matplotlib' in sys.modules\n"
        "print(plan.score(question, [f'<answer>{answer}</answer>'])[0].accuracy)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "1.0\n"


def test_the_truth_vouches_for_the_answer_in_its_tags_and_for_nothing_beside_it() -> None:
    question = take(DIGITS, 1)[0]
    pair = f"<answer>{question.entry['answer']}</answer>"
    assert [f"so {pair}!"[slice(*span)] for span in DIGITS.true_spans(question, f"so {pair}!")] == [pair]
    assert DIGITS.true_spans(question, pair.replace("</", " </")) == ()
    no_answer = msgspec.structs.replace(question, entry={**question.entry, "answer": None})
    assert DIGITS.true_spans(no_answer, "<answer>None</answer>") == (), "such a task takes more than one answer"


def number_of(question: Question) -> str:
    return "".join(character for character in text_of(question) if character.isdigit())


def test_a_wording_changes_the_question_and_neither_the_answer_nor_the_split() -> None:
    plain, other = (
        plan_of("digits_rotate"),
        plan_of("digits_rotate", wording="Move the first digit of {number} to the end."),
    )
    drawn = take(other, 200)
    held_out = {number_of(question) for question in plain.hold_out("digits_rotate", 400)}
    for question in drawn:
        number = number_of(question)
        assert text_of(question) == f"Move the first digit of {number} to the end."
        assert question.entry["answer"] == number[1:] + number[0]
        assert number not in held_out
    assert drawn[0].reference.config_digest != plain.hold_out("digits_rotate", 1)[0].reference.config_digest


@pytest.mark.parametrize("wording", ["no number", "{number} and {number}", "{number}" + "x" * 200])
def test_a_wording_has_the_number_once_and_is_short(wording: str) -> None:
    with pytest.raises(SwarmError, match="wording"):
        plan_of("digits_sort", wording=wording)


SLOW = {"acre", "futoshiki", "sokoban", "zebra_puzzles"}  # seconds for a data set or a question
MADE_ANEW = {"aiw", "calendar_arithmetic", "gsm_symbolic", "knight_swap", "list_functions", "manipulate_matrix"}
ASKED = (0, 12_345)
# Those of swarmd itself are registered when a plan is made, so not in every process that collects these tests.
TASKS = {name for name, (made, _) in DATASETS.items() if made.__module__.startswith("reasoning_gym.")} - {"composite"}


@pytest.mark.parametrize("name", sorted(TASKS - SLOW - MADE_ANEW))
def test_a_copy_asks_what_a_data_set_made_anew_asks(name: str) -> None:
    """Also after others were asked, with which it shares what does not depend on the seed."""
    task, given = make_task(name, {}), DatasetCache()
    for seed in (11, 2**31 - 1):
        fresh = task.make_dataset(seed)
        for index in ASKED:
            asked, expected = given.get(task, seed)[index], fresh[index]
            assert asked["question"] == expected["question"]
            assert asked["answer"] == expected["answer"]


@pytest.mark.parametrize("name", sorted(MADE_ANEW))
def test_where_the_seed_decides_more_than_questions_each_is_made(name: str) -> None:
    assert make_copyable_dataset(make_task(name, {})) is None


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


RIGHT, WRONG = [Score(1.0, 1.0)] * 4, [Score(0.0, 0.0)] * 4
ACCURACIES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=80)


@pytest.fixture
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "WINDOW", 3)


def going(name: str = "digits_reverse", **settings: Any) -> TaskConfig:
    return TaskConfig(name, curriculum=True, **settings)


def digits_of(questions: list[Question]) -> set[int]:
    return {len(text_of(question).split()[-1]) for question in questions}


def teach(plan: ReasoningGymPlan, scores: list[Score], groups: int) -> None:
    for question in take(plan, groups):
        plan.learn(question, scores)


@pytest.mark.usefixtures("short_window")
def test_the_level_rises_and_falls_with_the_results() -> None:
    plan = plan_of(going())
    seen = [digits_of(take(plan, 20))]
    for scores in (RIGHT, RIGHT, WRONG, RIGHT):
        teach(plan, scores, 3)
        seen.append(digits_of(take(plan, 20)))
    assert seen == [{2}, {3}, {4}, {3}, {4}]


@pytest.mark.usefixtures("short_window")
def test_a_stage_keeps_the_level_that_it_began_with() -> None:
    plan = plan_of(going())
    stream = plan.draw(HERE, NO_MATERIAL)
    drawn = list(itertools.islice(stream, 12))
    for question in drawn:
        plan.learn(question, RIGHT)
    assert digits_of([*drawn, *itertools.islice(stream, 12)]) == {2}
    assert digits_of(take(plan, 20)) == {3}, "groups of a level that was left no longer count"


@given(ACCURACIES, st.integers(1, 9), st.integers(1, 6))
def test_a_ladder_stays_in_its_levels_and_moves_one_at_a_time(
    accuracies: list[float], window: int, levels: int
) -> None:
    ladder, moved = CurriculumLevel(), -window
    for number, accuracy in enumerate(accuracies):
        before = ladder.level
        ladder.record_accuracy(accuracy, levels, window)
        assert 0 <= ladder.level < levels
        assert abs(ladder.level - before) <= 1
        if ladder.level != before:
            recent = accuracies[max(number - window + 1, 0) : number + 1]
            assert number - moved >= window and len(recent) == window
            assert sum(recent) / window >= 0.8 if ladder.level > before else sum(recent) / window <= 0.2
            moved = number


@pytest.mark.usefixtures("short_window")
def test_memory_survives_in_a_plan() -> None:
    plan, again = plan_of(going()), plan_of(going())
    teach(plan, RIGHT, 8)
    again.load_memory(msgspec.msgpack.decode(msgspec.msgpack.encode(plan.read_memory())))
    assert take(again, 20) == take(plan, 20) and digits_of(take(again, 20)) == {3}
    assert again.read_memory() == plan.read_memory()


@pytest.mark.parametrize(
    "remembered", [[], "3", {"gcd": 3}, {"gcd": {"level": -1}}, {"gcd": {"level": 1, "recent": [2.0]}}]
)
def test_memory_that_cannot_be_read_is_told(remembered: Any) -> None:
    with pytest.raises(SwarmError, match="cannot be read"):
        plan_of(going("gcd")).load_memory({"curricula": remembered})


@pytest.mark.usefixtures("short_window")
def test_peers_questions_of_any_level_are_taken() -> None:
    ahead, behind = plan_of(going()), plan_of(going())
    for _ in range(4):
        teach(ahead, RIGHT, 3)
    far = StageId("b", 2, 0)
    for question in take(ahead, 20, far):
        assert behind.regenerate(question.reference, far, NO_MATERIAL) == question
        assert behind.score(question, [f"<answer>{question.entry['answer']}</answer>"])[0].accuracy == 1.0
    assert digits_of(take(ahead, 20)) == {6}


def test_peers_questions_of_no_level_are_refused() -> None:
    foreign = take(plan_of(TaskConfig("digits_reverse", config={"digits": 9})), 1)[0].reference
    plan = plan_of(going())
    assert refusal(plan, foreign) == "config-digest"
    two, three = (make_task_levels(going())[level].digest for level in (0, 1))
    own = take(plan, 1)[0].reference
    assert own.config_digest == two
    assert refusal(plan, own, config_digest=three) == "seed", "a seed belongs to one level"


@pytest.mark.usefixtures("short_window")
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
    assert len(make_task_levels(going(name))) > 1
