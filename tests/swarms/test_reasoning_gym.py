"""The reasoning-gym swarm: drawing, splitting, regenerating, scoring."""

import inspect
import itertools
import random
import re
import subprocess
import sys
from itertools import islice

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms.gym_tasks import (
    EVALUATED,
    MOVES_MAX,
    PARSED,
    RAISED,
    REPEATED,
    TASK_NAMES,
    UNSAFE_TASKS,
    is_harmless,
)
from swarmd.swarms.plan import NO_MATERIAL, Question, StageId, split_of
from swarmd.swarms.reasoning_gym import DigitsPlan, ReasoningGymPlan
from swarmd.swarms.registry import make_plan

DIGITS = DigitsPlan(SwarmConfig(id="test"))


def plan_of(*names: str, **settings: object) -> ReasoningGymPlan:
    return ReasoningGymPlan(SwarmConfig(id="test", tasks=tuple(TaskConfig(name, config=settings) for name in names)))


def take(plan: ReasoningGymPlan, count: int, peer: str = "a", round: int = 0) -> list[Question]:
    return list(itertools.islice(plan.draw(StageId(peer, round, 0), NO_MATERIAL), count))


def text(question: Question) -> str:
    return question.messages[-1].content


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
    assert [text(question) for question in take(plan_of("list_functions"), 60)] == [text(each) for each in drawn]
    assert random.getstate() == before, "a peer's question decides what this node draws"


def test_weights_make_the_mixture() -> None:
    tasks = (TaskConfig("chain_sum", 3.0), TaskConfig("letter_counting", 1.0))
    drawn = take(ReasoningGymPlan(SwarmConfig(id="test", tasks=tasks)), 400)
    share = sum(question.task == "chain_sum" for question in drawn) / 400
    assert 0.68 < share < 0.82


@pytest.mark.parametrize("other", [{"peer": "b"}, {"round": 1}])
def test_seeds_do_not_overlap_across_nodes_and_rounds(other: dict[str, object]) -> None:
    """Items are functions of seed + index: seeds that count up would repeat each other's questions."""
    plan = plan_of("chain_sum", min_digits=6, max_digits=9)
    here = {text(question) for question in take(plan, 300)}
    there = {text(question) for question in take(plan, 300, **other)}  # type: ignore[arg-type]
    assert len(here) == len(there) == 300
    assert not here & there


@pytest.mark.parametrize("task", TASK_NAMES)
def test_sides_of_the_split_do_not_touch(task: str) -> None:
    sides = {side: {canonical(q) for q in DIGITS.select(task, side, 300)} for side in ("train", "dev", "held-out")}
    assert all(len(side) == 300 for side in sides.values())
    assert not sides["train"] & sides["dev"] | sides["dev"] & sides["held-out"] | sides["train"] & sides["held-out"]
    drawn = {canonical(question) for question in take(DIGITS, 2000) if question.task == task}
    assert not drawn & (sides["dev"] | sides["held-out"])


@settings(max_examples=50)
@given(st.integers(0, 19_999))
def test_digit_answers_are_right_and_exact(index: int) -> None:
    for name in TASK_NAMES:
        task = DIGITS._levels[name][0]
        question, _ = DIGITS._generate(task, 1, index)
        number = re.findall(r"\d+", text(question).split(":")[1])
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


def refused(plan: ReasoningGymPlan, question: Question, peer: str = "a", **changes: object) -> str:
    with pytest.raises(RecordRejected) as caught:
        plan.regenerate(msgspec.structs.replace(question.reference, **changes), StageId(peer, 0, 0), NO_MATERIAL)
    return caught.value.reason


def test_a_peers_question_is_generated_again() -> None:
    elsewhere = DigitsPlan(SwarmConfig(id="test"))
    for question in take(DIGITS, 40):
        assert elsewhere.regenerate(question.reference, StageId("a", 0, 0), NO_MATERIAL) == question


def test_references_that_are_refused() -> None:
    question = take(DIGITS, 1)[0]
    assert refused(DIGITS, question, task="chain_sum") == "unknown-task"
    assert refused(DIGITS, question, config_digest="0" * 16) == "config-digest"
    assert refused(DIGITS, question, seed=question.reference.seed ^ 1) == "seed"
    assert refused(DIGITS, question, peer="b") == "seed"
    held = [index for index in range(100) if _side(question, index) != "train"]
    assert refused(DIGITS, question, index=held[0]) == "held-out"


def _side(question: Question, index: int) -> str:
    task = DIGITS._levels[question.task][0]
    return split_of(task.name, DIGITS._generate(task, question.reference.seed, index)[1])


def test_a_completion_without_an_answer_is_worth_nothing_whatever_the_scorer_gives_for_none() -> None:
    """GenRL hands None to the scorer, and fraction_simplification's pays for it."""
    plan = plan_of("fraction_simplification")
    question = take(plan, 1)[0]
    assert plan._levels[question.task][0].make(0).score_answer(None, dict(question.entry)) == 0.01
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


def test_peers_answers_never_reach_an_evaluating_scorer(tmp_path: object) -> None:
    plan = plan_of("spiral_matrix")
    question = take(plan, 1)[0]
    assert refused(plan, question) == "unsafe-scorer"


def test_own_answers_are_not_run_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr("builtins.exec", lambda *_: ran.append(1))
    plan = plan_of("spiral_matrix")
    question = take(plan, 1)[0]
    assert plan.score(question, ["<answer>[exec('1')]</answer>"])[0].accuracy == 0.0
    assert plan.score(question, [f"<answer>{question.entry['answer']}</answer>"])[0].accuracy == 1.0
    assert not ran


@pytest.mark.parametrize("task", sorted(EVALUATED))
@pytest.mark.parametrize("answer", ["__import__('os')", "(lambda: 0)", "[0]*10**9", "1<<999", "[x for x in y]"])
def test_expressions_that_call_or_grow_are_refused(task: str, answer: str) -> None:
    assert not is_harmless(task, answer)


@pytest.mark.parametrize("task", sorted(PARSED))
@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os')", "x.__class__", "9**9**9", "(9**99)**99", "9**999", "a.b", "open(1)", "1" * 20, "9^9^9",
        "(9**9)**(9)", "sin(x - 1e400)", "x**1e9", "(x + 1)^9E9",
    ],
)  # fmt: skip
def test_formulas_that_call_or_grow_are_refused(task: str, answer: str) -> None:
    assert not is_harmless(task, answer)


@pytest.mark.parametrize("answer", ["1e9999", "1E-99_99", ".5e+9,9,9,9", "-1e999999999"])
def test_powers_of_ten_beyond_all_measure_are_refused(answer: str) -> None:
    assert not is_harmless("coin_flip", answer)
    assert all(is_harmless("coin_flip", right) for right in ("0.0625", "1/16", "6.25e-2", "1,024/65,536"))


def test_the_list_of_scorers_that_raise_ten_to_a_power_is_complete() -> None:
    kinds = {name: inspect.getsource(kind.score_answer) for name, (kind, _) in DATASETS.items()}
    assert {name for name, source in kinds.items() if "Fraction(answer" in source} == RAISED


@pytest.mark.parametrize("task", sorted(REPEATED))
@pytest.mark.parametrize("answer", ["R999999999", "A+99", "U\u0663\u0663", "A-9 " * 60, "R " * (MOVES_MAX + 1)])
def test_moves_that_go_on_and_on_are_refused(task: str, answer: str) -> None:
    assert not is_harmless(task, answer)


@pytest.mark.parametrize(
    ("task", "answer"), [("coin_flip", "1e999999999"), ("rush_hour", "A+999999999"), ("rubiks_cube", "R999999999")]
)
def test_a_peers_answer_that_asks_for_endless_work_is_worth_nothing(task: str, answer: str) -> None:
    """Its group is taken like any other, and scored in no time."""
    plan = plan_of(task)
    question = take(plan, 1)[0]
    score = plan.score(question, [f"<answer>{answer}</answer>"])[0]
    assert (score.accuracy, score.failed) == (0.0, False)


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


def mixture(*tasks: TaskConfig) -> SwarmConfig:
    return SwarmConfig(id="t", kind="reasoning-gym", tasks=tasks)


def error_of(swarm: SwarmConfig) -> SwarmError:
    with pytest.raises(SwarmError) as caught:
        make_plan(swarm)
    return caught.value


def test_wrong_settings_name_the_fix() -> None:
    assert "chain_sum" in error_of(mixture(TaskConfig("chain_sums"))).fix
    assert "reasoning-gym" in error_of(SwarmConfig(id="t", kind="reasoning-gim")).fix
    wrong = error_of(mixture(TaskConfig("chain_sum", config={"term": 2})))
    assert "'term'" in wrong.message and "min_terms" in wrong.fix
    bad = error_of(mixture(TaskConfig("chain_sum", config={"min_terms": 0})))
    assert "chain_sum" in bad.message
    assert "twice" in error_of(mixture(TaskConfig("gcd"), TaskConfig("gcd"))).message
    seeded = error_of(mixture(TaskConfig("chain_sum", config={"seed": 1})))
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


def plan(task: str, **config: object) -> DigitsPlan:
    return DigitsPlan(SwarmConfig(id="test", tasks=(TaskConfig(task, config=dict(config)),)))


def number_of(question: Question) -> str:
    return "".join(character for character in question.messages[-1].content if character.isdigit())


def test_a_wording_changes_the_question_and_neither_the_answer_nor_the_split() -> None:
    plain, other = plan("digits_rotate"), plan("digits_rotate", wording="Move the first digit of {number} to the end.")
    drawn = list(islice(other.draw(StageId("a", 0, 0), NO_MATERIAL), 200))
    held_out = {number_of(question) for question in plain.hold_out("digits_rotate", 400)}
    for question in drawn:
        number = number_of(question)
        assert question.messages[-1].content == f"Move the first digit of {number} to the end."
        assert question.entry["answer"] == number[1:] + number[0]
        assert number not in held_out
    assert drawn[0].reference.config_digest != plain.hold_out("digits_rotate", 1)[0].reference.config_digest


@pytest.mark.parametrize("wording", ["no number", "{number} and {number}", "{number}" + "x" * 200])
def test_a_wording_has_the_number_once_and_is_short(wording: str) -> None:
    with pytest.raises(SwarmError, match="wording"):
        plan("digits_sort", wording=wording)
