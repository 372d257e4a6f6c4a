"""Right answers are paid, over the forms in which data sets have them; a swarm that would not pay is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import SwarmError
from swarmd.swarms.answers import bare_answer, find_number, fold, read_number
from swarmd.swarms.plan import CORRECT, NO_MATERIAL, Plan, SplitPlan, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.truths import PLUG_IN, check_truths
from tests.swarms.truth_rows import TruthRow, make_rows

NUMERIC = [{"name": "numeric"}]


def plan_of(home: Path, rows: list[dict[str, str]], kind: str = "file", **options: Any) -> SplitPlan:
    (home / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    stages = 1 if kind in ("file", "code") else 3
    config = SwarmConfig("s", kind=kind, stages=stages, options={"data": "q.jsonl", **options})
    plan = make_plan(config, TrainingConfig(), home)
    assert isinstance(plan, SplitPlan)
    return plan


def share_paid(plan: SplitPlan, rows: list[TruthRow]) -> float:
    """Of rows, each under the plan's first question, what part is paid for its own truth."""
    question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
    paid = 0
    for row in rows:
        asked = msgspec.structs.replace(question, entry={**question.entry, "answer": bare_answer(row.cell)})
        text = plan.phrase_truth(asked)
        assert text is not None
        paid += plan.score(asked, [text])[0].accuracy >= CORRECT
    return paid / len(rows)


@pytest.mark.parametrize("place", ["tags", "boxed", "last-number", "last-line", "whole"])
@pytest.mark.parametrize("form", ["gsm8k", "math", "dapo"])
def test_truths_that_are_numbers_are_paid_wherever_answers_stand(form: str, place: str, tmp_path: Path) -> None:
    rows = [row for row in make_rows(form) if row.value is not None]
    plan = plan_of(tmp_path, [{"prompt": f"{n}?", "answer": "1"} for n in range(9)], answer=place, rewards=NUMERIC)
    assert share_paid(plan, rows) == 1.0


@pytest.mark.parametrize("kind", ["exact", "math-hard", "code"])
@pytest.mark.parametrize("form", ["gsm8k", "math", "dapo"])
def test_truths_of_all_kinds_are_paid_where_texts_may_be_compared(form: str, kind: str, tmp_path: Path) -> None:
    simple = [{"prompt": f"{n}?", "answer": "1", "solution": "1"} for n in range(9)]
    options: dict[str, Any] = {"rewards": [{"name": "exact"}]} if kind == "exact" else {}
    options |= {"compare": "exact", "sandbox": "none-i-accept-the-risk"} if kind == "code" else {}
    plan = plan_of(tmp_path, simple, "file" if kind == "exact" else kind, **options)
    assert share_paid(plan, make_rows(form)) == 1.0


@pytest.mark.parametrize("form", ["gsm8k", "math", "dapo"])
def test_the_number_that_a_truth_means_is_read_and_no_part_of_a_formula(form: str) -> None:
    wrong = [(row.cell, read_number(row.cell)) for row in make_rows(form) if read_number(row.cell) != row.value]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$9500", 9500), (r"\$9500", 9500), (r"18\%", 18), (r"18 \text{ dollars}", 18),
        (r"\frac{2}{3}", Fraction(2, 3)),
        ("18 dollars", 18), ("-$4", -4), ("1 000", 1000), ("1'000", 1000), ("1\u2019000", 1000), ("1\u202f000", 1000),
        ("1\u00a0234\u00a0567", 1234567), ("1.000,5", Fraction("1000.5")), ("1.000.000", 1000000), ("1.000", 1),
        ("1 000,5", Fraction("1000.5")), ("\u22124", -4), ("\uff11\uff12", 12), ("٣", 3), ("#### 7", 7),
        ("so 3+4=7\n#### 7", 7), (r"\boxed{7}", 7), (r"3\frac{1}{2}", Fraction(7, 2)), ("2 1/2", Fraction(5, 2)),
        ("-4", -4), ("$-4", -4), ("€ 12.30", Fraction("12.3")), ("x = 5", 5), ("50%", 50), ("3/4", Fraction(3, 4)),
        ("6 / 8", Fraction(3, 4)), (r"$\dfrac{-3}{4}$", Fraction(-3, 4)), (r"\(7\)", 7), ("1e3", 1000),
        (".5", Fraction(1, 2)), ("9 apples.", 9), ("007", 7), ("1,234,567.50", Fraction("1234567.5")),
        ("The answer is 7.", 7), ("US$18", 18), ("18cm", 18), ("60 km/h", 60), ("**18**", 18), ("18元", 18),
        (r"6.02\times 10^{3}", 6020), (r"5\text{ m}", 5), ("7th", 7),
        ("20 °C", 20), (r"-5^\circ F", -5), ("1\u200b8\ufeff", 18), (r"\text{18 dollars}", 18),
    ],
)  # fmt: skip
def test_numbers_in_all_spellings(text: str, value: Fraction | int) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    [r"\sqrt{2}", r"2\pi", "2π", "3x", "3 x", "7!", "7^2", "|7|", "<7", r"\frac{x}{2}", r"\frac{2}{3}x", "2 million",
     "(2,3)", r"[7,\infty)", "±7", "x = 5 or x = 6", "1,5", "5²", "half of 7", "1011_2", "7 or 8", "--4", "5m",
     "", "none", "3+4=7", "1,00", "2.3.4", "x2", "1/0", "1e99999", "10^3", "5-3", "1,2,3", "9" * 300],
)  # fmt: skip
def test_what_is_a_formula_or_leaves_a_choice_is_no_number(text: str) -> None:
    assert read_number(text) is None


@given(st.integers(-(10**9), 10**9), st.sampled_from([",", " ", "'", "\u202f", "\u00a0", "\u2009", "{,}", "\\,"]))
def test_a_number_is_found_in_prose_and_read_as_it_was_meant(value: int, mark: str) -> None:
    written = f"{value:,}".replace(",", mark).replace("-", "\u2212")
    assert read_number(written) == value
    assert read_number(find_number(f"At first 3, then 4/5. It is {written}, dear.") or "") == value


@given(st.text(max_size=80))
def test_no_text_breaks_the_readers(text: str) -> None:
    read_number(text)
    find_number(text)
    bare_answer(text)
    assert fold(fold(text)) == fold(text)


def test_letters_are_the_same_however_unicode_composes_them(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": "Caf\u00e9"} for n in range(9)]
    for reward in ({"name": "exact"}, {"name": "contains"}, {"name": "regex", "pattern": "{answer}"}):
        plan = plan_of(tmp_path, rows, rewards=[reward], answer="whole")
        question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
        assert plan.score(question, ["Cafe\u0301"])[0].accuracy == 1.0


def test_gsm8ks_own_answers_pay_for_the_number_alone(tmp_path: Path) -> None:
    rows = [{"prompt": row.prompt, "answer": row.cell} for row in make_rows("gsm8k")]
    for rewards in (NUMERIC, [{"name": "exact"}]):
        plan = plan_of(tmp_path, rows, rewards=rewards)
        assert check_truths(plan) == ""
        question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
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


def test_what_is_not_seen_makes_no_difference(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [{"prompt": f"{n}?", "answer": "Par\u00adis\u200b"} for n in range(9)], answer="whole")
    assert plan.score(next(plan.draw(StageId("a", 0, 0), NO_MATERIAL)), ["Paris"])[0].accuracy == 1.0


def test_a_truth_that_the_model_cannot_write_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [{"prompt": f"{n}?", "answer": f"{n}<|im_end|>"} for n in range(9)])
    assert check_truths(plan) == ""
    with pytest.raises(SwarmError, match=r"answer '\d<\|im_end\|>'\. With answer = 'tags', '\d' is found"):
        check_truths(plan, lambda text: text.replace("<|im_end|>", ""))


def test_one_row_in_many_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": "seven" if n == 17 else str(n)} for n in range(60)]
    with pytest.raises(SwarmError, match=r"1 would pay nothing.* row 18: '17\?' with the answer 'seven'"):
        check_truths(plan_of(tmp_path, rows, rewards=NUMERIC))


def test_what_cannot_be_tried_says_why(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": str(n)} for n in range(9)]
    assert "no reward compares" in check_truths(plan_of(tmp_path, rows, rewards=[{"name": "length"}]))
    assert "no reward compares" in check_truths(plan_of(tmp_path, rows, rewards=[{"name": "regex", "pattern": "^so"}]))
    assert check_truths(make_plan(SwarmConfig("s", kind="digits"))) == ""
    plug_in = type("PlugIn", (Plan,), dict.fromkeys(Plan.__abstractmethods__))
    assert check_truths(plug_in(SwarmConfig("s"), TrainingConfig(), tmp_path)) == PLUG_IN
