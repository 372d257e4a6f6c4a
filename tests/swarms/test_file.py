"""A swarm from a file: options, questions drawn, held out and taken from peers, and right answers that are paid."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms.file import FilePlan
from swarmd.swarms.jsonl import digest_rows
from swarmd.swarms.plan import CORRECT, NO_MATERIAL, Plan, Question, SplitPlan, StageId
from swarmd.swarms.registry import BUILT_IN, make_plan
from swarmd.swarms.rollouts import Source
from swarmd.swarms.text import extract_final_answer
from swarmd.swarms.truths import PLUG_IN, check_truths
from tests.log_capture import capture_logs
from tests.swarms.making import HERE, refusal, take, text_of, write_rows
from tests.swarms.truth_rows import TruthRow, make_rows

ROWS = [
    {"prompt": f"{one} + {other}?", "answer": str(one + other), "task": "even" if other % 2 == 0 else "odd"}
    for one in range(10)
    for other in range(10)
]


def plan_of(home: Path, rows: list[dict[str, Any]] = ROWS, kind: str = "file", **options: Any) -> Any:
    write_rows(home / "questions.jsonl", rows)
    options = {"data": "questions.jsonl", **options}
    return make_plan(SwarmConfig("s", kind=kind, stages=BUILT_IN[kind].stages, options=options), TrainingConfig(), home)


def prompts(questions: list[Question]) -> list[str]:
    return list(map(text_of, questions))


@pytest.fixture
def plan(tmp_path: Path) -> FilePlan:
    return plan_of(tmp_path)


def test_each_question_comes_once_before_any_comes_again(plan: FilePlan) -> None:
    size = len(set(prompts(take(plan, 300))))
    drawn = prompts(take(plan, 2 * size))
    assert 55 < size < 85
    assert sorted(drawn[:size]) == sorted(drawn[size:]) == sorted(set(drawn))
    assert drawn[:size] != drawn[size:]
    assert plan.tasks == ("even", "odd")


@pytest.mark.parametrize("other", [StageId("b", 3, 0), StageId("a", 4, 0), StageId("a", 3, 1)])
def test_every_stage_has_an_order_of_its_own(plan: FilePlan, tmp_path: Path, other: StageId) -> None:
    assert prompts(take(plan, 30)) == prompts(take(plan_of(tmp_path), 30))
    assert prompts(take(plan, 30)) != prompts(take(plan, 30, other))


def test_what_is_held_out_is_never_drawn(plan: FilePlan) -> None:
    held_out = [question for task in plan.tasks for question in plan.hold_out(task, 100)]
    assert 8 < len(held_out) < 35
    assert not set(prompts(held_out)) & set(prompts(take(plan, 300)))
    assert [question.task for question in plan.hold_out("odd", 3)] == ["odd"] * 3
    assert prompts(plan.hold_out("odd", 3)) == prompts(plan.hold_out("odd", 100))[:3]


def test_a_prompt_twice_is_one_question(tmp_path: Path) -> None:
    twice = [*ROWS, *({**row, "prompt": f"  {row['prompt']} ", "task": "again"} for row in ROWS)]
    plan = plan_of(tmp_path, twice)
    assert plan.tasks == ("even", "odd")
    assert len(set(prompts(take(plan, 300)))) < 85
    first = take(plan, 1)[0].reference
    again = msgspec.structs.replace(first, task="again", index=first.index + len(ROWS))
    with pytest.raises(RecordRejected, match="stands in an earlier one"):
        plan.regenerate(again, HERE, NO_MATERIAL)


def test_a_prompt_with_two_answers_is_told(tmp_path: Path) -> None:
    with capture_logs() as logs:
        plan_of(tmp_path, [*ROWS, {**ROWS[0], "answer": "other"}, ROWS[1]])
    assert [entry["rows"] for entry in logs if "another answer" in entry["event"]] == [[101]]


def test_peers_questions_are_made_again(plan: FilePlan) -> None:
    for question in take(plan, 100):
        assert plan.regenerate(question.reference, HERE, NO_MATERIAL) == question


def test_references_that_no_peer_can_have_drawn(plan: FilePlan, tmp_path: Path) -> None:
    drawn, held_out = take(plan, 1)[0].reference, plan.hold_out("odd", 1)[0].reference
    assert refusal(plan, drawn, index=held_out.index, task="odd") == "held-out"
    assert refusal(plan, drawn, index=len(ROWS)) == "index"
    assert refusal(plan, drawn, seed=drawn.seed ^ 1) == "seed"
    assert refusal(plan, drawn, StageId("b", 3, 0)) == "seed"
    assert refusal(plan, drawn, task="none") == "unknown-task"
    assert refusal(plan, drawn, config_digest="0" * 16) == "config-digest"
    assert refusal(plan, drawn, sources=(Source(0, "b"),)) == "source"
    changed = plan_of(tmp_path, [*ROWS[:-1], {**ROWS[-1], "answer": "19"}])
    assert refusal(changed, drawn) == "config-digest"


def test_the_digest_tells_other_questions(tmp_path: Path) -> None:
    plan_of(tmp_path, digest=digest_rows(ROWS))
    with pytest.raises(SwarmError, match="is not the swarm's") as caught:
        plan_of(tmp_path, ROWS[1:], digest=digest_rows(ROWS))
    assert "swarm's creator" in caught.value.fix


def test_rewards_add_up_by_weight(tmp_path: Path) -> None:
    rewards = [
        {"name": "format-tags", "weight": 0.5},
        {"name": "numeric", "weight": 2.0, "tolerance": 0.5},
        {"name": "length", "weight": 0.25, "max": 40},
    ]
    plan = plan_of(tmp_path, rewards=rewards)
    question = msgspec.structs.replace(take(plan, 1)[0], entry={"answer": "12"})
    right, near, wrong, untagged = plan.score(
        question, ["So <answer>12.0</answer>", "<answer>12.4</answer>", "<answer>13</answer>", "12"]
    )
    assert (right.reward, right.accuracy, right.format) == (2.75, 1.0, 1.0)
    assert right.parts == {"format-tags": 0.5, "numeric": 2.0, "length": 0.25}
    assert (near.reward, wrong.reward, wrong.accuracy) == (2.75, 0.75, 0.0)
    assert (untagged.reward, untagged.format) == (0.25, 0.0)


def test_without_rewards_the_exact_answer_and_the_form_pay(tmp_path: Path) -> None:
    question = msgspec.structs.replace(take(plan_of(tmp_path), 1)[0], entry={"answer": "Paris"})
    right, wrong = plan_of(tmp_path).score(question, ["<answer> paris</answer>", "<answer>Rome</answer>"])
    assert (right.reward, wrong.reward) == (1.0 + TrainingConfig().format_reward, TrainingConfig().format_reward)
    (whole,) = plan_of(tmp_path, answer="whole").score(question, ["PARIS\n"])
    assert (whole.reward, whole.format) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"rewards": [{"name": "exakt"}]}, "swarm.options.rewards[0].name"),
        ({"rewards": [{"name": "exact", "wait": 1}]}, "swarm.options.rewards[0].wait"),
        ({"rewards": [{"name": "exact", "weight": 0}]}, "swarm.options.rewards[0].weight"),
        ({"rewards": [{"name": "regex"}]}, "needs `pattern`"),
        ({"rewards": [{"name": "exact", "pattern": "a"}]}, "needs `pattern`"),
        ({"rewards": [{"name": "regex", "pattern": "("}]}, "the pattern '(' is not a regular expression"),
        ({"rewards": [{"name": "length", "min": 9, "max": 3}]}, "is above"),
        ({"answer": "first"}, "swarm.options.answer"),
        ({"digest": "abc"}, "swarm.options.digest"),
        ({"data": "none.jsonl"}, "none.jsonl cannot be read"),
        ({"date": "x"}, "swarm.options.date"),
        ({"columns": {"prompt": "question"}}, "`columns` is for a data set, and `dataset` does not name one"),
        ({"dataset": "x", "columns": {"answer": "prompt"}}, "prompt and answer are the same column"),
        ({"keep": ["hard"]}, "`keep` is for a data set"),
        ({"rows": [{"prompt": "a"}]}, "line 1: 'answer' is missing"),
        ({"rows": [{"prompt": "a", "answer": 4}]}, "line 1: 'answer' is not a text"),
        ({"rows": [*ROWS, {"prompt": "a", "answer": "b", "task": 1}]}, "row 101: 'task' is not a name"),
        ({"rows": [*ROWS, {"prompt": "a", "answer": "b", "task": "x\u0007"}]}, "row 101: 'task' is not a name"),
        ({"rows": [{**row, "task": f"t{number}"} for number, row in enumerate(ROWS)]}, "has 100 tasks"),
        ({"rows": [*ROWS, {"prompt": "a" * 40_000, "answer": "b"}]}, "row 101: a prompt of 40000 characters"),
    ],
)
def test_wrong_options_and_rows_are_told(tmp_path: Path, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SwarmError) as caught:
        plan_of(tmp_path, **given)
    assert complaint in caught.value.message


def test_the_truth_vouches_for_answers_in_tags_that_are_compared_with(plan: FilePlan, tmp_path: Path) -> None:
    question = take(plan, 1)[0]
    pair = f"<answer>{question.entry['answer']}</answer>"
    assert plan.true_spans(question, f"so {pair}") == ((3, 3 + len(pair)),)
    assert plan_of(tmp_path, answer="last-number").true_spans(question, pair) == ()
    assert plan_of(tmp_path, rewards=[{"name": "length", "max": 9}]).true_spans(question, pair) == ()


def test_the_largest_reward_is_known_unless_functions_give_it(tmp_path: Path) -> None:
    assert plan_of(tmp_path).reward_max == 1.0 + TrainingConfig().format_reward
    assert plan_of(tmp_path, rewards=[{"name": "exact", "weight": 2.0}, {"name": "length"}]).reward_max == 3.0


NUMERIC = [{"name": "numeric"}]
NINE = [{"prompt": f"{n}?", "answer": "1", "solution": "1"} for n in range(9)]


def share_paid(plan: SplitPlan, rows: list[TruthRow]) -> float:
    """Of rows, each under the plan's first question, what part is paid for its own truth."""
    question = take(plan, 1)[0]
    paid = 0
    for row in rows:
        asked = msgspec.structs.replace(question, entry={**question.entry, "answer": extract_final_answer(row.cell)})
        text = plan.make_true_completion(asked)
        assert text is not None
        paid += plan.score(asked, [text])[0].accuracy >= CORRECT
    return paid / len(rows)


@pytest.mark.parametrize("place", ["tags", "boxed", "last-number", "last-line", "whole"])
@pytest.mark.parametrize("form", ["gsm8k", "math", "dapo"])
def test_truths_that_are_numbers_are_paid_wherever_answers_stand(form: str, place: str, tmp_path: Path) -> None:
    rows = [row for row in make_rows(form) if row.value is not None]
    assert share_paid(plan_of(tmp_path, NINE, answer=place, rewards=NUMERIC), rows) == 1.0


@pytest.mark.parametrize("kind", ["file", "math-hard", "code"])
@pytest.mark.parametrize("form", ["gsm8k", "math", "dapo"])
def test_truths_of_all_kinds_are_paid_where_texts_may_be_compared(form: str, kind: str, tmp_path: Path) -> None:
    options = {"compare": "exact", "sandbox": "none-i-accept-the-risk"} if kind == "code" else {}
    assert share_paid(plan_of(tmp_path, NINE, kind, **options), make_rows(form)) == 1.0


@pytest.mark.parametrize(
    ("truth", "answer", "reward"),
    [
        *(("Caf\u00e9", "Cafe\u0301", {"name": name}) for name in ("exact", "contains")),
        ("Caf\u00e9", "Cafe\u0301", {"name": "regex", "pattern": "{answer}"}),
        ("Par\u00adis\u200b", "Paris", {"name": "exact"}),
    ],
)
def test_what_cannot_be_seen_makes_no_difference(tmp_path: Path, truth: str, answer: str, reward: Any) -> None:
    plan = plan_of(tmp_path, [{**row, "answer": truth} for row in NINE], rewards=[reward], answer="whole")
    assert plan.score(take(plan, 1)[0], [answer])[0].accuracy == 1.0


def test_gsm8ks_own_answers_pay_for_the_number_alone(tmp_path: Path) -> None:
    rows = [{"prompt": row.prompt, "answer": row.cell} for row in make_rows("gsm8k")]
    for rewards in (NUMERIC, [{"name": "exact"}]):
        plan = plan_of(tmp_path, rows, rewards=rewards)
        assert check_truths(plan) == ""
        question = take(plan, 1)[0]
        assert plan.score(question, [f"<answer>{plan.truth(question)}</answer>"])[0].accuracy == 1.0
        assert "####" not in plan.truth(question)


FORMULAS = [{"prompt": f"What is the area of circle {n}?", "answer": f"{n}\\pi"} for n in range(2, 30)]
LINES = [{"prompt": f"Say {n}.", "answer": f"one\nand {n}"} for n in range(30)]


@pytest.mark.parametrize(
    ("rows", "options", "told", "fix"),
    [
        (FORMULAS, {"rewards": NUMERIC}, r"no number is compared with no number", "exact"),
        (FORMULAS, {"rewards": NUMERIC, "answer": "last-number"}, r"compared with no number", "one number"),
        (FORMULAS, {"rewards": [{"name": "contains"}, *NUMERIC]}, r"no number", "one number"),
        (LINES, {"answer": "last-line"}, r"With answer = 'last-line', 'and \d+' is found in it", "leave such rows out"),
        (LINES, {"answer": "last-number", "rewards": [{"name": "exact"}]}, r"'\d+' is found", "swarm.options.answer"),
    ],
)
def test_a_swarm_that_would_never_pay_is_refused_with_question_truth_and_fix(
    rows: list[dict[str, str]], options: dict[str, Any], told: str, fix: str, tmp_path: Path
) -> None:
    with pytest.raises(SwarmError, match=told) as caught:
        check_truths(plan_of(tmp_path, rows, **options))
    assert fix in caught.value.fix
    row = int(caught.value.message.partition(" row ")[2].partition(":")[0]) - 1
    assert rows[row]["prompt"] in caught.value.message
    assert " ".join(rows[row]["answer"].split()).replace("\\", "\\\\") in caught.value.message


def test_a_truth_that_the_model_cannot_write_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [{"prompt": f"{n}?", "answer": f"{n}<|im_end|>"} for n in range(9)])
    assert check_truths(plan) == ""
    with pytest.raises(SwarmError, match=r"answer '\d<\|im_end\|>'\. With answer = 'tags', '\d' is found"):
        check_truths(plan, lambda text: text.replace("<|im_end|>", ""))


def test_one_row_in_many_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": "seven" if n == 17 else str(n)} for n in range(60)]
    with pytest.raises(
        SwarmError, match=r"^1 of \d+ questions would not be paid in full.* row 18: '17\?' with the answer 'seven'"
    ):
        check_truths(plan_of(tmp_path, rows, rewards=NUMERIC))


def test_what_cannot_be_tried_says_why(tmp_path: Path) -> None:
    for reward in ({"name": "length"}, {"name": "regex", "pattern": "^so"}):
        assert "no reward compares" in check_truths(plan_of(tmp_path, NINE, rewards=[reward]))
    assert check_truths(make_plan(SwarmConfig("s", kind="digits"))) == ""
    plug_in = type("PlugIn", (Plan,), dict.fromkeys(Plan.__abstractmethods__))
    assert check_truths(plug_in(SwarmConfig("s"), TrainingConfig(), tmp_path)) == PLUG_IN
