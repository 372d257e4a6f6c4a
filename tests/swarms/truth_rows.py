"""Rows with truths in the forms that GSM8K, MATH and DAPO-Math have them in, made from a seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import NamedTuple


class TruthRow(NamedTuple):
    """One row: `cell` is what the column of answers holds, `value` the number that it means, None for a formula."""

    form: str
    prompt: str
    cell: str
    value: Fraction | None


def make_rows(form: str, count: int, seed: int = 0) -> list[TruthRow]:
    random = Random(f"{form} {seed}")
    return list(itertools.islice(_FORMS[form](random), count))


def _gsm8k(random: Random) -> Iterator[TruthRow]:
    for number in itertools.count():
        one, other = random.randint(1, 99), random.choice((random.randint(1, 99), random.randint(1000, 2_000_000)))
        total = one + other
        work = f"Ann has {one} and gets {other}, so <<{one}+{other}={total}>>{total} in all.\nThat is ${total}."
        shown = random.choice((f"{total}", f"{total:,}", f"${total}" if total > 999 else f"{total}", f"-{total}"))
        value = -total if shown.startswith("-") else total
        yield TruthRow("gsm8k", f"{number}. Ann has {one} and gets {other}?", f"{work}\n#### {shown}", Fraction(value))


def _math(random: Random) -> Iterator[TruthRow]:
    for number in itertools.count():
        truth, value = random.choice(_MATH)(random)
        work = random.choice(("We find that $x^2 = 4$, and so on.\n", "", "By (3), $\\frac{1}{2}n = 7$. "))
        cell = f"{work}Thus the answer is $\\boxed{{{truth}}}$."
        yield TruthRow("math", f"{number}. Find $x$.", random.choice((cell, truth)), value)


def _dapo(random: Random) -> Iterator[TruthRow]:
    for number in itertools.count():
        value = random.choice((random.randint(-50, 999), random.randint(1000, 10**9)))
        truth = random.choice((f"{value}", f"{value}", f" {value} ", f"\\boxed{{{value}}}", f"${value}$"))
        yield TruthRow("dapo", f"{number}. Find the least $n$.", truth, Fraction(value))


def _number(write: Callable[[int], str]) -> Callable[[Random], tuple[str, Fraction | None]]:
    def make(random: Random) -> tuple[str, Fraction | None]:
        value = random.randint(2, 999)
        return write(value), Fraction(value)

    return make


def _fraction(write: Callable[[int, int], str]) -> Callable[[Random], tuple[str, Fraction | None]]:
    def make(random: Random) -> tuple[str, Fraction | None]:
        over, under = random.randint(1, 9), random.randint(2, 9)
        return write(over, under), Fraction(over, under)

    return make


def _formula(*texts: str) -> Callable[[Random], tuple[str, Fraction | None]]:
    return lambda random: (random.choice(texts).replace("N", str(random.randint(2, 99))), None)


def _grouped(mark: str) -> Callable[[Random], tuple[str, Fraction | None]]:
    def make(random: Random) -> tuple[str, Fraction | None]:
        value = random.randint(1000, 10**8)
        return f"{value:,}".replace(",", mark), Fraction(value)

    return make


def _mixed(random: Random) -> tuple[str, Fraction | None]:
    return f"{(whole := random.randint(1, 9))}\\frac{{1}}{{3}}", whole + Fraction(1, 3)


_MATH: tuple[Callable[[Random], tuple[str, Fraction | None]], ...] = (
    *(_number(lambda n: f"{n}"), _number(lambda n: f"{n}.0"), _number(lambda n: f"{n}\\%")),
    *(_number(lambda n: f"\\${n}"), _number(lambda n: f"\\${n}.00"), _number(lambda n: f"{n}^\\circ")),
    *(_number(lambda n: f"{n}^{{\\circ}}"), _number(lambda n: f"{n}\\text{{ inches}}")),
    *(_number(lambda n: f"{n} \\text{{ cm}}^2"), _number(lambda n: f"{n}\\mbox{{ cm}}^3"), _number(lambda n: f"x={n}")),
    *(_grouped("{,}"), _grouped(","), _grouped(",\\!"), _grouped("\\,"), _mixed),
    *(_fraction(lambda a, b: f"\\frac{{{a}}}{{{b}}}"), _fraction(lambda a, b: f"\\dfrac{{{a}}}{{{b}}}")),
    *(_fraction(lambda a, b: f"\\frac{a}{b}"), _fraction(lambda a, b: f"{a}/{b}")),
    _formula("N\\sqrt{2}", "\\sqrt{N}", "N\\pi", "\\frac{\\pi}{N}", "\\frac{\\sqrt{3}}{N}", "Nx+3", "x^N", "Ni"),
    _formula("(-\\infty, N]", "(N, 3)", "[N,\\infty)", "1, N", "N \\text{ or } 3", "\\frac{x+N}{3}", "10^{N}"),
    _formula("\\text{Friday}", "\\text{(A)}", "\\begin{pmatrix} N \\\\ 1 \\end{pmatrix}", "y = Nx", "1011_2", "N!"),
)
_FORMS: dict[str, Callable[[Random], Iterator[TruthRow]]] = {"gsm8k": _gsm8k, "math": _math, "dapo": _dapo}
