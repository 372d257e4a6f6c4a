"""Which answers are the same number."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.math.reading import read_number, same_answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,000", 1000),
        ("1,234,567.50", Fraction("1234567.5")),
        ("-4", -4),
        ("\u22124", -4),
        ("$-4", -4),
        ("-$4", -4),
        ("€ 12.30", Fraction("12.3")),
        ("18 dollars", 18),
        ("x = 5", 5),
        ("50%", 50),
        ("3/4", Fraction(3, 4)),
        ("6 / 8", Fraction(3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"$\dfrac{-3}{4}$", Fraction(-3, 4)),
        (r"\boxed{42}", 42),
        (r"\(7\)", 7),
        ("1e3", 1000),
        (".5", Fraction(1, 2)),
        ("9 apples.", 9),
        ("+7", 7),
        ("007", 7),
    ],
)
def test_numbers(text: str, value: Fraction | int) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "none", "3+4=7", "1 or 2", "1,00", "2.3.4", "x2", "1/0", "1e99999", "10^3", "5-3", "٣", "1,2,3", "9" * 300],
)
def test_no_numbers(text: str) -> None:
    assert read_number(text) is None


@given(st.fractions(max_denominator=1000).filter(lambda f: abs(f) < 10**12))
def test_every_fraction_is_read_back(value: Fraction) -> None:
    assert read_number(str(value)) == value
    assert same_answer(f"$ {value} dollars", str(value))


@given(st.integers(-(10**12), 10**12))
def test_commas_and_decimals_change_nothing(value: int) -> None:
    assert same_answer(f"{value:,}", str(value))
    assert same_answer(f"{value}.00", f"{value:,}")
    assert not same_answer(str(value + 1), str(value))


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_none(text: str) -> None:
    value = read_number(text)
    assert value is None or isinstance(value, Fraction)


def test_words_are_compared_where_the_truth_is_no_number() -> None:
    assert same_answer(" Blue  whale.", "blue whale")
    assert not same_answer("whale", "blue whale")
    assert not same_answer("blue", "4")
