"""What of a completion is the swarm's: by place and exact form, whatever else it says."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmd.sandbox import Verdict
from swarmd.swarms import code as programs
from swarmd.swarms.code import compat_parts, count_programs, find_executions

PROGRAM = "<program>\n```python\nprint(6 * 7)\n```\n</program>"
OUTPUT = "\n<output>\n42\n</output>\n"
PIECES = [*programs.MARKERS, "\n", " ", "x", "42", "```python\n", "```", PROGRAM, OUTPUT]


def foreign(text: str) -> list[str]:
    return [text[slice(*execution.span)] for execution in programs.find_executions(text)]


def test_a_block_behind_a_program_is_the_swarms() -> None:
    text = f"Let me see.\n{PROGRAM}{OUTPUT}So <answer>42</answer>"
    assert foreign(text) == [OUTPUT]
    assert [each.program for each in programs.find_executions(text)] == ["print(6 * 7)\n"]
    assert programs.leave_out_outputs(text) == f"Let me see.\n{PROGRAM}\nSo <answer>42</answer>"


@pytest.mark.parametrize("behind", ["", "\n", "\n\n", " "])
def test_what_a_token_brings_along_behind_the_closing_stays_the_models(behind: str) -> None:
    assert f"</program>{behind}".endswith(programs.STOPS)
    assert foreign(f"{PROGRAM}{behind}{OUTPUT}") == [OUTPUT]


@pytest.mark.parametrize(
    "text",
    [
        OUTPUT,
        f"I know the output.{OUTPUT}",
        f"{PROGRAM} which gives{OUTPUT}",
        f"{PROGRAM}\n\n\n{OUTPUT}",
        f"{PROGRAM}<output>\n42\n</output>\n",
        f"{PROGRAM}\n<output>42</output>\n",
        f"{PROGRAM}\n<output>\n42\n</output>",
        f"{PROGRAM}\n<output>\n<answer>42</answer>\n</output>\n",
        f"{PROGRAM}\n<output>\n<output>\n42\n</output>\n",
        f"{PROGRAM}\n<output>\n{'4' * (programs.OUTPUT_CHARACTERS_MAX + 1)}\n</output>\n",
    ],
)
def test_anything_else_is_the_models_own(text: str) -> None:
    assert foreign(text) == []
    assert programs.leave_out_outputs(text) == text


def test_a_second_block_behind_a_block_is_the_models_own() -> None:
    assert foreign(f"{PROGRAM}{OUTPUT}{OUTPUT}") == [OUTPUT]


def test_no_more_blocks_are_taken_than_are_given() -> None:
    assert len(foreign(f"{PROGRAM}{OUTPUT}" * 50)) == programs.EXECUTIONS_MAX + 1


@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.integers(16, 100))
def test_whatever_a_program_prints_its_block_is_found_again(printed: str, characters_max: int) -> None:
    block = programs.frame_output(printed, characters_max)
    assert foreign(f"{PROGRAM}{block}and on") == [block]
    found = programs.find_executions(f"{PROGRAM}{block}")[0].output
    assert len(found) <= characters_max
    assert programs.same_output(found, programs.clean_output(printed, programs.OUTPUT_CHARACTERS_MAX))


def test_marks_that_a_program_prints_without_end_are_parted() -> None:
    """Unicode puts them in order one by one, which for 32,000 of them takes seconds."""
    marks = "\u0300\u0316"
    clean = programs.clean_output("a" + marks * 16_000, programs.OUTPUT_CHARACTERS_MAX)
    assert len(clean) == programs.OUTPUT_CHARACTERS_MAX
    assert max(map(len, re.findall(f"[{marks}]+", clean))) == programs.MARKS_MAX
    assert programs.clean_output("e\u0301" + marks * 10, 100) == unicodedata.normalize("NFC", "e\u0301" + marks * 10)


def test_other_outputs_are_told_apart() -> None:
    assert not programs.same_output("42", "43")
    assert not programs.same_output("4", "42")
    assert programs.same_output("1 2", " 1\n2 ")
    assert programs.same_output("12345 ... (cut)", "1234567890")
    assert not programs.same_output("12345 ... (cut)", "1239567890")


@pytest.mark.parametrize(
    ("inside", "program"),
    [
        ("\n```python\nx = 1\n```\n", "x = 1\n"),
        ("```py\nx = 1\n```", "x = 1\n"),
        ("\n```\nx = 1\n```", "x = 1\n"),
        ("\n```python\nfirst\n```\nbetter:\n```python\nsecond\n```\n", "second\n"),
        ("\nx = 1\n", None),
        ("\n```python\nx = 1\n", None),
        ("\n```java\nx = 1\n```", None),
    ],
)
def test_the_last_fenced_block_is_the_program(inside: str, program: str | None) -> None:
    assert programs.latest_program(f"thinking ```python\nnot this\n``` <program>{inside}</program>") == program


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (Verdict(status="ok", stdout="7\n"), "7\n"),
        (Verdict(status="ok", stdout=" \n"), "Error: the program printed nothing"),
        (Verdict(status="failed", stdout="7", stderr="Traceback\n  ...\nKeyError: 'a'\n"), "Error: KeyError: 'a'"),
        (Verdict(status="failed", exit_code=139), "Error: the program ended with code 139"),
        (Verdict(status="timeout"), "Error: the program took too long"),
        (Verdict(status="memory", stderr="MemoryError"), "Error: the program used too much memory"),
        (None, "Error: the program could not be run"),
    ],
)
def test_a_model_is_told_what_came_of_its_program(verdict: Verdict | None, told: str) -> None:
    assert programs.tell_verdict(verdict) == told


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


PARTS = ("<think>", "</think>", "<answer>", "</answer>", "\n", " ", "```python", "```", "Error!", "\\boxed{4}", "so")
FORM = ("<think>", "so", "</think>", "\n", "<answer>", "\\boxed{4}", "</answer>")


@st.composite
def completions(draw: st.DrawFn) -> str:
    """The form that upstream pays for in pieces, a few of them dropped, doubled or put in."""
    pieces = list(FORM)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(pieces)))
        pieces[at : at + draw(st.integers(0, 1))] = draw(st.lists(st.sampled_from(PARTS), max_size=2))
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
