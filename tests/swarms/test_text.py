"""Where answers stand in texts, what numbers they are, and markers that are made harmless."""

import re
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.text import (
    TAGS,
    escape_markers,
    extract_answer,
    extract_final_answer,
    find_answer,
    find_number,
    fold_text,
    is_well_formed,
    read_number,
    span_answer,
)
from tests.swarms.truth_rows import make_rows


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<", "a", "a", " ", "\n"]), max_size=12))
def test_the_span_of_an_answer_is_the_pair_that_is_scored_and_nothing_else(parts: list[str]) -> None:
    text = "".join(parts)
    spans = span_answer(text, "a")
    assert [text[slice(*span)] for span in spans] == ["<answer>a</answer>"] * len(spans)
    assert not spans or extract_answer(text) == "a"
    if text.endswith("<answer>a</answer>") and text.count("<answer>") == 1:
        assert spans == ((len(text) - len("<answer>a</answer>"), len(text)),)


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<", ">", "/answer>", "a", " ", "\n"]), max_size=12))
def test_the_last_answer_is_that_of_a_search_from_the_left(parts: list[str]) -> None:
    text = "".join(parts)
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    assert extract_answer(text) == (found[-1].strip() if found else None)
    pair = re.search(r"<answer>.*?</answer>", text, re.DOTALL)
    once = text.count("<answer>") == text.count("</answer>") == 1
    assert is_well_formed(text) == (once and pair is not None and text.rstrip().endswith("</answer>"))


def test_tags_that_are_never_closed_cost_no_time() -> None:
    """A search from the left looks through the rest of the text for each of them: minutes."""
    begun = time.process_time()
    for text in (
        "<answer>" * 20_000,
        "<answer>" * 20_000 + "</answer>",
        "<answer></answer>" * 10_000 + "<answer>" * 9_000,
    ):
        extract_answer(text)
    assert time.process_time() - begun < 10.0


@given(st.text(alphabet="<>/|answerthink_im", max_size=80))
def test_no_marker_survives_escaping(text: str) -> None:
    markers = (*TAGS, "<|im_end|>")
    escaped = escape_markers(text, markers)
    assert not any(marker in escaped for marker in markers)
    assert escaped.replace(" ", "") == text


@pytest.mark.parametrize(
    ("place", "completion", "answer"),
    [
        ("tags", "a <answer>1</answer> <answer> 2 </answer>", "2"),
        ("tags", "2", None),
        ("last-number", "3 apples and -4.5, so 1,234.", "1,234"),
        ("last-number", "none", None),
        ("last-number", "it is 2/3", "2/3"),
        ("last-line", "thinking\n\n The end \n\n", "The end"),
        ("last-line", " \n", None),
        ("boxed", r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1", None),
        ("whole", "  all of it ", "all of it"),
        ("whole", "x" * 5000, None),
    ],
)
def test_where_the_answer_stands(place: Any, completion: str, answer: str | None) -> None:
    assert find_answer(completion, place) == answer


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
    extract_final_answer(text)
    assert fold_text(fold_text(text)) == fold_text(text)


@pytest.mark.parametrize("form", ["gsm8k", "math", "dapo"])
def test_the_number_that_a_truth_means_is_read_and_no_part_of_a_formula(form: str) -> None:
    wrong = [(row.cell, read_number(row.cell)) for row in make_rows(form) if read_number(row.cell) != row.value]
    assert not wrong
