"""Which programs of a completion count, and what upstream gives for one."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmd.sandbox import Verdict
from swarmd.swarms.code.programs import find_executions
from swarmd.swarms.code.rewards import compat_parts, count_programs

TEXT = "<program>\n```python\nprint(1)\n```\n</program>\n<output>\n1\n</output>\n"


@pytest.mark.parametrize(
    ("verdict", "count"),
    [
        (Verdict(status="ok", stdout="1\n"), 1),
        (Verdict(status="failed", stdout="1\n", exit_code=1), 0),
        (Verdict(status="timeout", stdout="1\n", exit_code=137), 0),
        (Verdict(status="ok", stdout="2\n"), 0),
        (Verdict(status="ok", stdout=" \n"), 0),
        (None, 0),
    ],
)
def test_only_a_program_that_ran_well_and_printed_what_stands_there_counts(verdict: Verdict | None, count: int) -> None:
    (execution,) = find_executions(TEXT)
    assert execution.program is not None
    assert count_programs([execution, execution], {execution.program: verdict}) == count


PIECES = ("<think>", "</think>", "<answer>", "</answer>", "\n", " ", "```python", "```", "Error!", "\\boxed{4}", "so")
FORM = ("<think>", "so", "</think>", "\n", "<answer>", "\\boxed{4}", "</answer>")


@st.composite
def completions(draw: st.DrawFn) -> str:
    """The form that upstream pays for in pieces, a few of them dropped, doubled or put in."""
    pieces = list(FORM)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(pieces)))
        pieces[at : at + draw(st.integers(0, 1))] = draw(st.lists(st.sampled_from(PIECES), max_size=2))
    return "".join(pieces) + draw(st.sampled_from(("", "", "\n", "\n\n", " ")))


@settings(max_examples=600)
@given(completions(), st.booleans())
@example("".join(FORM) + "\n", True)
@example("".join(FORM) + "\n\n", True)
def test_compat_gives_what_upstreams_pattern_gives(text: str, correct: bool) -> None:
    once = all(text.count(tag) == 1 for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    formed = re.match(r"^<think>.*?</think>[\n ]<answer>.*?</answer>$", text, re.DOTALL) is not None
    assert compat_parts(text, correct) == {
        "correct": 1.0 if correct else -1.0,
        "format": 1.0 if once and formed else -1.0,
        "programs": 0.1 * (text.count("```python") - text.count("Error!")),
    }
