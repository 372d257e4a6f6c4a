"""Forms are told in linear time, and as the patterns of v0.4 tell them."""

from __future__ import annotations

import time

import pytest

from swarmd.swarms.math import compat, fixed
from swarmd.swarms.math.prompts import SENTENCES, TAGS
from swarmd.swarms.math.reading import is_template, read_last, read_number, read_sections
from tests.swarms.math.voices import agreement, answer, opinion


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
