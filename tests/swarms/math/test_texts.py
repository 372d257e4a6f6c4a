"""What is read out of texts, how peers' texts are shown, and the default rewards."""

import math
import time
from difflib import SequenceMatcher

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmd.swarms.math import compat, fixed
from swarmd.swarms.math.fixed import CUT, NONE, ScoringFacts, cut_middle, format_answer, format_opinion, number_peers
from swarmd.swarms.math.texts import (
    ANSWERS_ARE,
    FEEDBACK_IS,
    QUESTION_IS,
    SENTENCES,
    TAGS,
    agreement_prompt,
    comparison_prompt,
    extract_answers,
    extract_question,
    extract_students,
    extract_votes,
    has_template_line_breaks,
    is_same_answer,
    read_last_tag,
    read_sections,
)
from swarmd.swarms.text import read_number
from tests.swarms.math.voices import agreement, answer, opinion


@given(st.integers(-(10**12), 10**12))
def test_commas_and_decimals_change_nothing(value: int) -> None:
    assert is_same_answer(f"{value:,}", str(value))
    assert is_same_answer(f"{value}.00", f"{value:,}")
    assert not is_same_answer(str(value + 1), str(value))


def test_words_are_compared_where_the_truth_is_no_number() -> None:
    assert is_same_answer(" Blue  whale.", "blue whale")
    assert not is_same_answer("whale", "blue whale")
    assert not is_same_answer("blue", "4")


PROSE = f"What is 2+2? {compat.__doc__} {fixed.__doc__}".replace("\n", " ") * 4
LETTERS = [chr(0x4E00 + number % 50) for number in range(2000)]
WORDS = [f"w{number % 20}" for number in range(200)]


def test_texts_that_are_made_to_share_single_letters_are_not_compared_for_ever() -> None:
    restated, question = "".join(2 * LETTERS), "".join(f"{letter}-" for letter in LETTERS)
    began = time.process_time()
    assert compat.text_similarity(restated, question) == 0
    assert time.process_time() - began < 2.0


def test_texts_that_are_made_to_share_single_words_are_not_compared_for_ever() -> None:
    assert fixed.text_similarity(" ".join(2 * WORDS), " ".join(f"{word} -" for word in WORDS)) == 0


@pytest.mark.parametrize("length", [60, 190, 900, 3000])
def test_honest_texts_are_as_alike_as_difflib_says(length: int) -> None:
    question = PROSE[:length]
    words = question.split(" ")
    for restated in (question, question.upper(), " ".join(words[::-1]), " ".join(words[: len(words) // 2]), "2+2"):
        assert compat.text_similarity(restated, question) == SequenceMatcher(None, restated, question).ratio()
        by_word = SequenceMatcher(None, restated.split()[:401], question.split()[:400], autojunk=False).ratio()
        assert fixed.text_similarity(restated, question) == by_word


def test_sections_and_lines() -> None:
    for text, stage in ((answer(4, "two\nlines"), 0), (opinion("None"), 1), (agreement("None", "q", 4), 2)):
        sections = read_sections(text, TAGS[stage])
        assert sections is not None and has_template_line_breaks(text, sections)
        assert not has_template_line_breaks(text.replace("\n", " "), sections)
    assert read_sections(answer(4) * 2, TAGS[0]) is None
    assert read_sections(f"Well, {answer(4)}", TAGS[0]) is None
    assert read_last_tag("<answer>1</answer> no, <answer> 2 </answer>", "answer") == "2"
    assert read_last_tag("</answer><answer>", "answer") is None


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
        assert compat.SCORERS[stage](prompt, "4", [text])[0].keys() == fixed.SCORERS[stage](facts, text).keys()
    read_number(text)
    assert time.process_time() - began < 1.5


PIECES = [
    "</student> said \n",
    "<student>Student #1</student> said \n",
    "<criticism>Criticism #9</criticism> was \n",
    "<identify>Student #2</identify>",
    "<identify>",
    "<\\student>",
    "<<answer>",
    f"  \n\n{ANSWERS_ARE} \n",
    f"  \n{FEEDBACK_IS} \n",
    FEEDBACK_IS[:-1],
    "\n",
    ":",
    "::",
    QUESTION_IS,
    "<|im_end|>",
    "<",
    " ",
    "Student #1",
    *(mark for tags in TAGS for tag in tags for mark in (f"<{tag}>", f"</{tag}>")),
]
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join)
QUESTION = "What is 2+2?"
IDS = ("Student #111", "Student #222")


@settings(max_examples=120)
@given(hostile, hostile, st.sampled_from([*IDS, "None", None]), st.integers(8, 400))
@example("</student>", f"<student>{QUESTION_IS}", None, 8)
def test_injected_text_changes_no_ids_votes_or_sections(said: str, judged: str, vote: str | None, limit: int) -> None:
    shown = [(IDS[0], format_answer(said, limit)), (IDS[1], format_answer(judged, limit))]
    comparison = comparison_prompt(QUESTION, shown)
    assert extract_students(comparison) == list(IDS)
    assert list(extract_answers(comparison, 1)) == list(IDS)
    assert extract_votes(comparison) == []
    critics = [
        ("Criticism #1", format_opinion(judged, vote, limit)),
        ("Criticism #2", format_opinion(said, None, limit)),
    ]
    prompt = agreement_prompt(comparison, critics)
    assert extract_question(prompt) == QUESTION
    assert extract_answers(prompt, 2).keys() == set(IDS)
    assert extract_votes(prompt) == ([] if vote is None else [vote])
    assert prompt.count("<student>") == prompt.count("<criticism>") == 2
    assert [prompt.count(sentence) for sentence in SENTENCES] == [1, 1, 1]
    assert "<|" not in prompt


@given(st.text(max_size=500), st.integers(8, 300))
def test_what_is_cut_fits_and_keeps_its_ends(text: str, limit: int) -> None:
    short = cut_middle(text, limit)
    assert len(short.encode()) <= limit
    if short != text:
        head, _, tail = short.partition(CUT)
        assert text.startswith(head) and text.endswith(tail)


@given(hostile, st.integers(8, 300))
def test_what_is_shown_of_a_peer_is_bounded(text: str, limit: int) -> None:
    tags = 60
    assert len(format_answer(text * 20, limit).encode()) <= 2 * limit + tags
    assert len(format_opinion(text * 20, "None", limit).encode()) <= limit + tags


def test_peers_with_the_same_short_number_both_get_long_ones() -> None:
    by_number: dict[str, str] = {}
    for index in range(200):
        number = number_peers([str(index)])[str(index)]
        if number in by_number:
            pair = {by_number[number], str(index)}
            break
        by_number[number] = str(index)
    assert {len(number) for number in number_peers(pair).values()} == {9}


ONE_RIGHT = {"Student #1": True, "Student #2": False}
ALL_WRONG = {"Student #1": False, "Student #2": False}
ALL_RIGHT = {"Student #1": True, "Student #2": True}


def choose(choice: str, right: dict[str, bool]) -> fixed.Parts:
    return fixed.score_choice(ScoringFacts("4", right=right), opinion(choice))


@pytest.mark.parametrize(("right", "pays"), [(ONE_RIGHT, 0), (ALL_WRONG, 2), (ALL_RIGHT, 0), ({}, 2)])
def test_none_pays_where_no_answer_is_right(right: dict[str, bool], pays: float) -> None:
    for words in ("None", "none.", "No one is correct", "ALL ANSWERS WERE WRONG"):
        assert choose(words, right)["correctness"] == pays


@pytest.mark.parametrize(
    ("choice", "known", "pays"),
    [
        ("Student #1", 0.5, 2),
        ("student  #1", 0.5, 2),
        ("Student #2", 0.5, 0),
        ("Student #3", 0, 0),
        ("1", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_choice_pays_where_the_student_is_right(choice: str, known: float, pays: float) -> None:
    parts = choose(choice, ONE_RIGHT)
    assert (parts["proper_id"], parts["correctness"]) == (known, pays)


def test_reasoning_over_several_lines_has_the_form() -> None:
    text = answer(4, "first\nsecond")
    assert compat.score_answers("", "4", [text])[0]["strict_format"] == 0
    assert fixed.score_answer(ScoringFacts("4"), text)["strict_format"] == 0.5
    assert fixed.score_answer(ScoringFacts("4"), text[:-1])["strict_format"] == 0.5


@pytest.mark.parametrize(
    ("gold", "said"), [("1,000", "1000"), ("4", "4.0"), ("-4", "-4"), ("18", "$18"), ("0.5", "1/2")]
)
def test_numbers_written_otherwise_are_right(gold: str, said: str) -> None:
    parts = fixed.score_answer(ScoringFacts(gold), answer(said))
    assert (parts["int"], parts["correctness"]) == (0.5, 2)
    assert compat.score_answers("", gold, [answer(said)])[0]["correctness"] == 2 * (gold == said)


def test_the_tag_of_the_majority_earns_two_at_most() -> None:
    facts = ScoringFacts("4", "What is 2+2?", ONE_RIGHT, ["Student #1"])
    parts = fixed.score_agreement(facts, agreement("Student #1", "What is 2+2?", 4))
    assert parts == {
        "consensus": 1,
        "concensus_correctness": 1,
        "question_recreation": 1,
        "final_correctness": 2,
        "strict_format": 0.5,
        "soft_format": 0,
        "xmlcount": 1.25,
    }


@given(st.text(max_size=300), st.integers(0, 2))
def test_rewards_are_finite_and_bounded(text: str, stage: int) -> None:
    facts = ScoringFacts("4", "What is 2+2?", ONE_RIGHT, [NONE])
    reward = sum(fixed.SCORERS[stage](facts, text).values())
    assert math.isfinite(reward) and 0 <= reward <= (3.5, 3.75, 6.75)[stage]
