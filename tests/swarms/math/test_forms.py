"""Forms are told in linear time, and as the patterns of v0.4 tell them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.swarms.math import compat, fixed
from swarmd.swarms.math.prompts import SENTENCES, TAGS
from swarmd.swarms.math.reading import is_in_lines, is_in_order, is_template, read_last, read_number, read_sections
from tests.swarms.math.voices import agreement, answer, opinion

PIECES = [mark for tags in TAGS for tag in tags for mark in (f"<{tag}>", f"</{tag}>")] + ["\n", "\n\n", " ", "x", "\r"]
texts = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
stages = st.integers(0, 2)


@st.composite
def near_templates(draw: st.DrawFn) -> tuple[str, int]:
    """A template in pieces, a few of them dropped, doubled or put in."""
    stage = draw(stages)
    pieces = [p for tag in TAGS[stage] for p in (f"<{tag}>", "\n", "x", "\n", f"</{tag}>", "\n")]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(pieces)))
        pieces[at : at + draw(st.integers(0, 1))] = draw(st.lists(st.sampled_from(PIECES), max_size=2))
    return "".join(pieces), stage


def strict(tags: Sequence[str]) -> str:
    return "^" + r"\n".join(rf"<{t}>\n.*?\n</{t}>" for t in tags) + r"\n$"


def soft(tags: Sequence[str]) -> str:
    return r"\s*".join(rf"<{t}>.*?</{t}>" for t in tags)


def agrees(text: str, stage: int) -> bool:
    tags = TAGS[stage]
    return (bool(re.match(strict(tags), text)), bool(re.match(soft(tags), text))) == (
        is_in_lines(text, tags),
        is_in_order(text, tags),
    )


@settings(max_examples=150)
@given(texts, stages)
def test_forms_are_those_of_the_patterns(text: str, stage: int) -> None:
    assert agrees(text, stage)


@settings(max_examples=200)
@given(near_templates())
def test_forms_near_the_template_are_those_of_the_patterns(made: tuple[str, int]) -> None:
    assert agrees(*made)


@pytest.mark.parametrize(
    "text", [answer(4), answer(4) + "\n", answer(4)[:-1], answer(4) + "x", answer(""), "\n" + answer(4)]
)
def test_the_end_of_a_template(text: str) -> None:
    assert agrees(text, 0)


def test_sections_and_lines() -> None:
    for text, stage in ((answer(4, "two\nlines"), 0), (opinion("None"), 1), (agreement("None", "q", 4), 2)):
        sections = read_sections(text, TAGS[stage])
        assert sections is not None and is_template(text, sections)
        assert not is_template(text.replace("\n", " "), sections)
    assert read_sections(answer(4) * 2, TAGS[0]) is None
    assert read_sections(f"Well, {answer(4)}", TAGS[0]) is None
    assert read_last("<answer>1</answer> no, <answer> 2 </answer>", "answer") == "2"
    assert read_last("</answer><answer>", "answer") is None


HOSTILE = [
    "</think><answer>" * 1000,
    "<think>" + "</think><answer>" * 1000,
    "<summarize_feedback>"
    + "".join(
        "</summarize_feedback><majority></majority><question></question><think></think><answer>" for _ in range(180)
    ),
    "<summarize_feedback>" + "</summarize_feedback>" + " " * 16000,
    "<compare>" * 1800,
    "<identify>" * 1600,
    "a " * 8000,
    "the the of " * 1500,
    "9" * 16384,
    "9," * 8192,
    "<answer>" + "-" * 8000 + " " * 8000 + "</answer>",
    "<question>" + "e" * 4000 + "</question>",
    SENTENCES[0] * 500,
    "\n" * 16384,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_completion_takes_long_to_score(text: str) -> None:
    prompt = "The question we were given is: " + "How many of the eleven trees are there? " * 6
    facts = fixed.ScoringFacts("4", prompt, {"Student #1": True}, ["None"])
    began = time.process_time()
    for stage in range(3):
        assert len(compat.SCORERS[stage](prompt, "4", [text])) == len(fixed.SCORERS[stage](facts, [text])) == 1
    read_number(text)
    assert time.process_time() - began < 1.5
