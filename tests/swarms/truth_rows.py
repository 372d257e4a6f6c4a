"""Rows with truths in the forms that GSM8K, MATH and DAPO-Math have them in."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class TruthRow(NamedTuple):
    """One row: `cell` is what the column of answers holds, `value` the number that it means, None for a formula."""

    prompt: str
    cell: str
    value: Fraction | None


_WORK = "Ann has 37 and gets 46, so <<37+46=83>>83 in all.\nThat is $83.\n"
_GSM8K = (("83", 83), ("1234567", 1234567), ("1,234,567", 1234567), ("$1500", 1500), ("-83", -83))
_MATH: tuple[tuple[tuple[str, ...], Fraction | int | None], ...] = (  # spellings of a value
    (("37", "37.0", r"37\%", r"\$37", r"\$37.00", r"37^\circ", r"37^{\circ}", r"37\text{ inches}", "x=37"), 37),
    ((r"37 \text{ cm}^2", r"37\mbox{ cm}^3"), 37),
    (("1{,}234{,}567", "1,234,567", r"1,\!234,\!567", r"1\,234\,567"), 1234567),
    ((r"2\frac{1}{3}",), Fraction(7, 3)),
    ((r"\frac{3}{7}", r"\dfrac{3}{7}", r"\frac37", "3/7"), Fraction(3, 7)),
    ((r"37\sqrt{2}", r"\sqrt{37}", r"37\pi", r"\frac{\pi}{37}", r"\frac{\sqrt{3}}{37}", "37x+3", "x^37", "37i"), None),
    ((r"(-\infty, 37]", "(37, 3)", r"[37,\infty)", "1, 37", r"37 \text{ or } 3", r"\frac{x+37}{3}", "10^{37}"), None),
    ((r"\text{Friday}", r"\text{(A)}", r"\begin{pmatrix} 37 \\ 1 \end{pmatrix}", "y = 37x", "1011_2", "37!"), None),
)
_AROUND = (
    "{}",
    "Thus the answer is $\\boxed{{{}}}$.",
    "We find that $x^2 = 4$, and so on.\nThus the answer is $\\boxed{{{}}}$.",
    "By (3), $\\frac{{1}}{{2}}n = 7$. Thus the answer is $\\boxed{{{}}}$.",
)
_DAPO = (("34", 34), (" -34 ", -34), ("\\boxed{1000000007}", 1000000007), ("$34$", 34))
_CELLS: dict[str, list[tuple[str, Fraction | int | None]]] = {
    "gsm8k": [(f"{_WORK}#### {truth}", value) for truth, value in _GSM8K],
    "math": [(around.format(truth), value) for truths, value in _MATH for truth in truths for around in _AROUND],
    "dapo": list(_DAPO),
}


def make_rows(form: str) -> list[TruthRow]:
    """Rows of one data set, each under a prompt of its own."""
    return [
        TruthRow(f"{number}. Find $x$.", cell, None if value is None else Fraction(value))
        for number, (cell, value) in enumerate(_CELLS[form])
    ]
