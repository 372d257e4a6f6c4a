"""`compat` gives the same numbers as v0.4's rules, told here once more as literally as they can be, to the last bit."""

import re
from collections import Counter
from difflib import SequenceMatcher

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmd.swarms.math import compat
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.math.texts import NO_ANSWER, NONE_WORDS, TAGS, agreement_prompt, comparison_prompt
from swarmd.swarms.plan import NO_MATERIAL, Material, Question, StageId
from tests.swarms.making import take
from tests.swarms.math.voices import agreement, answer, gather, make_plan, opinion, publish

ANSWERS = "The following answers to this question were suggested:"
FEEDBACK = "After comparing these answers, the following feedback was given about which answer is best:"
MARKERS = ("The question we were given is: ", f"  \n\n{ANSWERS} \n", ANSWERS, f"  \n{FEEDBACK} \n", FEEDBACK)
QUESTION = "What is 2+2?"


def between(text: str, tag: str) -> str:
    return text.split(f"<{tag}>")[-1].split(f"</{tag}>")[0].strip()


def strict(text: str, stage: int) -> float:
    pattern = r"\n".join(rf"<{tag}>\n.*?\n</{tag}>" for tag in TAGS[stage])
    return 0.5 if re.match(rf"^{pattern}\n$", text) else 0.0


def soft(text: str, stage: int) -> float:
    return 0.5 if re.match(r"\s*".join(rf"<{tag}>.*?</{tag}>" for tag in TAGS[stage]), text) else 0.0


def count(text: str, stage: int) -> float:
    *tags, last = TAGS[stage]
    total = 0.0
    for mark in (mark for tag in tags for mark in (f"<{tag}>\n", f"\n</{tag}>\n")):
        if text.count(mark) == 1:
            total += 0.125
    if text.count(f"\n<{last}>\n") == 1:
        total += 0.125
        total -= len(text.split(f"\n</{last}>\n")[-1]) * 0.001
    if text.count(f"\n</{last}>") == 1:
        total += 0.125
        total -= (len(text.split(f"\n</{last}>")[-1]) - 1) * 0.001
    return total


def students(prompt: str, stage: int) -> dict[str, str]:
    """The third stage alone looks at what stands before the feedback."""
    if stage == 2:
        prompt = prompt.split(f"  \n{FEEDBACK} \n")[0]
    return {
        part.split("</student>")[0].strip(): part.split("</student> said \n")[-1].strip()
        for part in prompt.split("<student>")[1:]
    }


def worth(choice: str, prompt: str, stage: int, truths: list[str]) -> float:
    shown, total = students(prompt, stage), 0.0
    if choice in shown:
        text = shown[choice]
        if between(text, "answer") == truths[0]:
            total += 1.0
        if between(text, "answer").isdigit():
            total += 0.5
        total += strict(text, 0)
        total += soft(text, 0)
        total += count(text, 0)
    elif choice in NONE_WORDS and all(
        between(text, "answer") == truth for text, truth in zip(shown.values(), truths, strict=False)
    ):
        total += 10
    return total


def score(stage: int, prompt: str, truth: str, texts: list[str]) -> list[float]:
    """What a node of v0.4 publishes for each completion: the parts, added from left to right."""
    truths = [truth] * len(texts)
    forms = [(strict(text, stage), soft(text, stage), count(text, stage)) for text in texts]
    if stage == 0:
        values = [between(text, "answer") for text in texts]
        parts = [(2.0 if value == truth else 0.0, 0.5 if value.isdigit() else 0.0) for value in values]
        return [sum((*own, *form)) for own, form in zip(parts, forms, strict=True)]
    if stage == 1:
        ids = [part.split("</student>")[0].strip() for part in prompt.split("<student>")[1:]]
        chosen = [between(text, "identify") for text in texts]
        pairs = [(2.0 if choice in ids else 0.0, worth(choice, prompt, 1, truths) * 2.0) for choice in chosen]
        return [sum((*own, *form)) for own, form in zip(pairs, forms, strict=True)]
    votes = Counter(part.split("</identify>")[0].strip() for part in prompt.split("<identify>")[1:])
    leaders = [vote for vote in votes if votes[vote] == max(votes.values())]
    question = prompt.split(f"  \n\n{ANSWERS}")[0].split("The question we were given is: ")[-1].strip()
    return [
        sum(
            (
                2.0 if between(text, "majority") in leaders else 0.0,
                worth(between(text, "majority"), prompt, 2, truths) * 2.0,
                SequenceMatcher(None, between(text, "question"), question).ratio(),
                2.0 if between(text, "answer") == truth else 0.0,
                *form,
            )
        )
        for text, form in zip(texts, forms, strict=True)
    ]


CHOICES = ("Student #0", "Student #1", "Student #9", "None", "No one", "0", "")
PIECES = (
    *(mark for tags in TAGS for tag in tags for mark in (f"<{tag}>", f"</{tag}>", f"\n<{tag}>\n", f"\n</{tag}>\n")),
    *MARKERS,
    *("<student>", "</student>", "</student> said \n", "<student>Student #1</student> said \n"),
    *("<criticism>", "\n", "\n\n", " ", "4", "5", "1,000", "Student #0", "None", "so that it is", "\r", "x" * 37),
)
junk = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
values = st.sampled_from(("4", "5", "4.0", "-4", "1,000", ""))
answers = st.one_of(junk, st.builds(answer, values, junk), st.builds(lambda value: answer(value)[:-1], values))
opinions = st.one_of(junk, st.builds(opinion, st.sampled_from(CHOICES), junk))
decisions = st.one_of(
    junk, st.builds(agreement, st.sampled_from(CHOICES), st.sampled_from((QUESTION, "What is 2?")), values)
)
endings = st.sampled_from(("", "", "\n", "\n\n", ".", " " * 7 + "\n", "." * 333))


def ended(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.builds(str.__add__, texts, endings), min_size=1, max_size=4)


def published(stage: int, prompt: str, texts: list[str]) -> list[float]:
    return [sum(parts.values()) for parts in compat.SCORERS[stage](prompt, "4", texts)]


@settings(max_examples=800)
@given(ended(answers))
@example([f"{answer(4)}{'.' * 333}"])  # 2.667 by this order of adding, one bit less by another
def test_answers_are_worth_what_v04_gives(texts: list[str]) -> None:
    assert published(0, QUESTION, texts) == score(0, QUESTION, "4", texts)


@settings(max_examples=600)
@given(st.lists(answers, max_size=3), ended(opinions))
@example([f"4  \n{FEEDBACK} \n", answer(4)], [opinion("Student #1")])
def test_choices_are_worth_what_v04_gives(shown: list[str], texts: list[str]) -> None:
    prompt = comparison_prompt(QUESTION, [(f"Student #{number}", text) for number, text in enumerate(shown)])
    assert published(1, prompt, texts) == score(1, prompt, "4", texts)


@settings(max_examples=500)
@given(st.lists(answers, max_size=2), st.lists(opinions, max_size=3), ended(decisions))
@example([f"4  \n{FEEDBACK} \n", answer(4)], [opinion("Student #1")], [agreement("Student #1", QUESTION, 4)])
def test_agreements_are_worth_what_v04_gives(shown: list[str], said: list[str], texts: list[str]) -> None:
    comparison = comparison_prompt(QUESTION, [(f"Student #{number}", text) for number, text in enumerate(shown)])
    prompt = agreement_prompt(comparison, [(f"Criticism #{number}", text) for number, text in enumerate(said)])
    assert published(2, prompt, texts) == score(2, prompt, "4", texts)


def hostile(plan: MathPlan, stage: int, marker: str) -> Question:
    """A question of a later stage, in the material of which every text holds the marker."""
    bodies = [publish(plan, peer, 0, NO_MATERIAL, lambda p, q: (answer(4, marker),), 1) for peer in ("alpha", "beta")]
    material = gather(plan, bodies, Material())
    if stage == 2:
        said = (opinion("Student #1", marker),)
        material = gather(
            plan, [publish(plan, p, 1, material, lambda p, q: said, 1) for p in ("alpha", "beta")], material
        )
    return take(plan, 1, StageId("alpha", 0, stage), material)[0]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_in_a_peers_text_changes_no_score(stage: int, marker: str) -> None:
    plan = make_plan(rewards="compat")
    question = hostile(plan, stage, marker)
    prompt, truth = question.messages[-1].content, str(question.entry["answer"])
    texts = [write for choice in CHOICES for write in (opinion(choice), agreement(choice, "q", truth))]
    assert [each.reward for each in plan.score(question, texts)] == score(stage, prompt, truth, texts)


SUM = "<think>\n2+2=4\n</think>\n<answer>\n4\n</answer>"
STUDENTS = [f"{SUM}\n", f"{SUM}\n".replace("\n4\n", "\n5\n"), NO_ANSWER]
COMPARISON = comparison_prompt(QUESTION, [(f"Student #{number}", text) for number, text in enumerate(STUDENTS)])
AGREEMENT = agreement_prompt(
    COMPARISON, [(f"Criticism #{n}", opinion(choice)) for n, choice in enumerate(("Student #0", "Student #0", "None"))]
)


@pytest.mark.parametrize(
    ("stage", "text", "expected"),
    [
        (0, f"{SUM}\n", [2, 0.5, 0.5, 0, 0.5]),
        (0, SUM, [2, 0.5, 0, 0, 0.458]),
        (0, "<think>2+2</think><answer>4</answer>", [2, 0.5, 0, 0.5, 0]),
        (0, f"{SUM}\nabcde", [2, 0.5, 0, 0, 0.49]),
        (0, answer("4.0"), [0, 0, 0.5, 0, 0.5]),
        (1, opinion("Student #0"), [2, 3.916, 0.5, 0, 0.75]),
        (1, opinion("Student #1"), [2, 1.916, 0.5, 0, 0.75]),
        (1, opinion("Student #2"), [2, 0, 0.5, 0, 0.75]),
        (1, opinion("None"), [0, 20, 0.5, 0, 0.75]),
        (1, opinion("none"), [0, 0, 0.5, 0, 0.75]),
        (2, agreement("Student #0", QUESTION, 4), [2, 3.916, 1, 2, 0.5, 0, 1.25]),
        (2, agreement("None", QUESTION, 5), [0, 20, 1, 0, 0.5, 0, 1.25]),
        (2, agreement("Student #1", "what", 4), [0, 1.916, 0.375, 2, 0.5, 0, 1.25]),
    ],
)
def test_parts_are_those_that_v04s_own_functions_computed(stage: int, text: str, expected: list[float]) -> None:
    prompt = ("", COMPARISON, AGREEMENT)[stage]
    assert list(compat.SCORERS[stage](prompt, "4", [text])[0].values()) == pytest.approx(expected)
