"""Prompts of each stage, and parsing of completions: answers, votes, format, similarity.

The delimiters of the user's messages are those of RL Swarm v0.4, character by character, as the rewards of `compat`
parse prompts. In a stage's template each tag is on its own line.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate

from swarmd.swarms.options import PERSONAS, RANDOM
from swarmd.swarms.plan import StageId, hash_number
from swarmd.swarms.text import NUMBER_CHARACTERS_MAX, fold_text, read_number

QUESTION_IS = "The question we were given is: "
ANSWERS_ARE = "The following answers to this question were suggested:"
FEEDBACK_IS = "After comparing these answers, the following feedback was given about which answer is best:"
SENTENCES = (QUESTION_IS.strip(), ANSWERS_ARE, FEEDBACK_IS)

NO_ANSWER = "No answer received..."

TAGS = (
    ("think", "answer"),
    ("compare", "explain", "identify"),
    ("summarize_feedback", "majority", "question", "think", "answer"),
)

_PLACES = {
    "think": "your reasoning",
    "answer": "the final answer and nothing else",
    "compare": "what the answers have in common and where they part",
    "explain": "why one of them is best, or why none is right",
    "identify": "the id of the best student, or None",
    "summarize_feedback": "what the feedback comes to",
    "majority": "the id that most of the feedback settles on, or None",
    "question": "the question, word for word",
}

_CRITERIA = """An ideal answer meets four criteria:
1) its reasoning stands between <think> and </think>;
2) its final answer stands between <answer> and </answer>;
3) the reasoning is correct, and no longer than it has to be;
4) the final answer is correct."""

_FULL = (
    "You are one of several students who work on mathematical problems together. You are given a question and solve it "
    f"by yourself, step by step.\n\n{_CRITERIA}",
    "You are one of several students who work on mathematical problems together. Each has answered the same question "
    f"without seeing the others' answers, and now all of them lie before you.\n\n{_CRITERIA}\n\n"
    "Compare the answers by these criteria, explain which is best, and name the student who gave it. Students are "
    "marked as <student>Student #id</student>. Where every answer is wrong, say None.",
    "You are one of several students who work on mathematical problems together. Each has answered the same question, "
    "and several have said which of the answers they hold to be best.\n\n"
    f"{_CRITERIA}\n\n"
    "Students are marked as <student>Student #id</student>, feedback as <criticism>Criticism #id</criticism>. "
    "Summarise the feedback, name the student whom most of it settles on or None, repeat the question, and then answer "
    "it as well as you can with all that was said.",
)

_BRIEF = (
    "Solve the question.",
    "Which student is right? Say the id, or None.",
    "Which id has most votes? Then solve the question.",
)


def system_prompt(stage: int, brief: bool = False, persona: str = "") -> str:
    """The system message of a stage, starting with the persona."""
    if brief:
        shape = "".join(f"<{tag}></{tag}>" for tag in TAGS[stage])
        return f"{persona}\n{_BRIEF[stage]} {shape}\n"
    shape = "\n".join(f"<{tag}>\n[{_PLACES[tag]}]\n</{tag}>" for tag in TAGS[stage])
    return f"{persona}\n{_FULL[stage]}\n\nRespond in this form and in no other:\n{shape}\n"


def persona_sentence(name: str, place: StageId) -> str:
    """The persona's sentence, or "". RANDOM picks the same one for a peer's stage on every machine."""
    chosen = name.upper()
    if chosen == RANDOM:
        names = sorted(PERSONAS)
        chosen = names[hash_number("persona", place.peer, place.round, place.stage) % len(names)]
    return PERSONAS.get(chosen, "")


def comparison_prompt(question: str, answers: Sequence[tuple[str, str]]) -> str:
    """The user's message of stage 1. `answers`: (id, text) in display order."""
    shown = "".join(f"<student>{name}</student> said \n{text}\n\n\n" for name, text in answers)
    return f"{QUESTION_IS}{question}  \n\n{ANSWERS_ARE} \n{shown}"


def agreement_prompt(comparison: str, opinions: Sequence[tuple[str, str]]) -> str:
    """The user's message of stage 2: that of stage 1, then opinions as (id, text) in display order."""
    shown = "".join(f"<criticism>{name}</criticism> was \n{text}\n\n\n" for name, text in opinions)
    return f"{comparison}  \n{FEEDBACK_IS} \n{shown}"


NONE_WORDS = (
    "None",
    "No one",
    "All answers are wrong",
    "All answers were wrong",
    "All are wrong",
    "All were wrong",
    "None are correct",
    "None were correct",
    "No one is correct",
)


def extract_tag(text: str, tag: str) -> str:
    """The stripped text from the last opening tag to its closing tag; the whole text if there is no tag."""
    return text.split(f"<{tag}>")[-1].split(f"</{tag}>")[0].strip()


def extract_students(prompt: str) -> list[str]:
    return [part.split("</student>")[0].strip() for part in prompt.split("<student>")[1:]]


def extract_answers(prompt: str, stage: int) -> dict[str, str]:
    """Stripped answers by student id; for repeated ids the last. At stage 2, only those before the feedback; at stage 1
    there is no feedback, and an answer that contains its leading sentence must not cut off the others."""
    answers = {}
    shown = prompt.split(f"  \n{FEEDBACK_IS} \n")[0] if stage == 2 else prompt
    for part in shown.split("<student>")[1:]:
        answers[part.split("</student>")[0].strip()] = part.split("</student> said \n")[-1].strip()
    return answers


def extract_votes(prompt: str) -> list[str]:
    """The ids voted for in a prompt's feedback, one for each opening tag."""
    return [part.split("</identify>")[0].strip() for part in prompt.split("<identify>")[1:]]


def extract_question(prompt: str) -> str:
    """The question in the prompt of a later stage, not stripped."""
    return prompt.split(f"  \n\n{ANSWERS_ARE}")[0].split(QUESTION_IS)[-1]


def most_voted(votes: list[str]) -> list[str]:
    """The ids with the most votes: several if tied, none without votes."""
    counts = Counter(votes)
    most = max(counts.values(), default=0)
    return [vote for vote, count in counts.items() if count == most]


def has_tags_in_lines(text: str, tags: Sequence[str]) -> bool:
    """Match v0.4's strict pattern: three lines for each tag (itself, text, the closing tag), and a final newline."""
    *lines, last = text.split("\n")
    if lines and not lines[-1] and len(lines) == 3 * len(tags) + 1:  # its `$` also matches before a final newline
        lines.pop()
    shape = [line for tag in tags for line in (f"<{tag}>", "", f"</{tag}>")]
    return (
        not last
        and len(lines) == len(shape)
        and all(not want or want == line for want, line in zip(shape, lines, strict=True))
    )


def has_tags_in_order(text: str, tags: Sequence[str]) -> bool:
    """Match v0.4's soft pattern: the tags in order from the first character, each closed in its line, then anything."""
    if not text.startswith(f"<{tags[0]}>"):
        return False
    breaks = [match.start() for match in re.finditer("\n", text)]
    begins = {0: len(tags[0]) + 2}  # line → earliest index at which the tag's content may begin
    for tag, following in zip(tags, (*tags[1:], ""), strict=True):
        seam = re.compile(rf"</{tag}>" + (rf"\s*<{following}>" if following else ""))
        reached: dict[int, int] = {}
        for match in seam.finditer(text):
            line = bisect_left(breaks, match.start())
            if begins.get(line, len(text) + 1) <= match.start():
                reached.setdefault(bisect_left(breaks, match.end()), match.end())
        begins = reached
    return bool(begins)


def read_sections(text: str, tags: Sequence[str]) -> dict[str, str] | None:
    """The content of each tag, if the tags occur exactly once and in order, with only white space outside; else None.
    Line breaks may be anywhere."""
    if any(text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1 for tag in tags):
        return None
    sections, at = {}, 0
    for tag in tags:
        opened, closed = text.index(f"<{tag}>"), text.index(f"</{tag}>")
        if closed < opened or text[at:opened].strip():
            return None
        sections[tag] = text[opened + len(tag) + 2 : closed]
        at = closed + len(tag) + 3
    return sections if not text[at:].strip() else None


def has_template_line_breaks(text: str, sections: dict[str, str]) -> bool:
    """Whether these sections have the template's line breaks around them."""
    return text.strip() == "\n".join(f"<{tag}>\n{held.strip()}\n</{tag}>" for tag, held in sections.items())


def read_last_tag(text: str, tag: str) -> str | None:
    """The stripped content of the last complete pair of a tag; None if there is none."""
    closed = text.rfind(f"</{tag}>")
    opened = text.rfind(f"<{tag}>", 0, max(closed, 0))
    return None if closed < 0 or opened < 0 else text[opened + len(tag) + 2 : closed].strip()


def is_same_answer(answer: str, truth: str) -> bool:
    """Whether an answer matches the truth: as a number, or as words if the truth is not a number."""
    expected = read_number(truth)
    if expected is not None:
        return read_number(answer) == expected
    return len(answer) <= len(truth) + NUMBER_CHARACTERS_MAX and _split_words(answer) == _split_words(truth)


def _split_words(text: str) -> str:
    return fold_text(text).rstrip(".")


def bounded_similarity(steps_max: int, text: Sequence[str], model: Sequence[str], autojunk: bool = True) -> float:
    """SequenceMatcher's ratio of two texts, as characters or words; 0 beyond `steps_max` steps, a million of which take
    some 0.1 s. `autojunk` ignores frequent elements in a model of 200 or more."""
    matcher = _BoundedMatcher(steps_max, text, model, autojunk)
    ratio = matcher.ratio()
    return ratio if matcher.steps <= steps_max else 0.0


class _BoundedMatcher(SequenceMatcher[str]):
    """A SequenceMatcher that finds no more matches after too many steps.

    Each match costs a scan of the remaining text. Honest texts have few common parts; crafted ones can have as many as
    letters.
    """

    def __init__(self, steps_max: int, text: Sequence[str], model: Sequence[str], autojunk: bool) -> None:
        super().__init__(None, text, model, autojunk)
        self.steps = 0
        self._steps_max = steps_max
        places: dict[str, list[int]] = self.b2j  # type: ignore[attr-defined]  # places in the model by element, without frequent ones
        self._until = list(accumulate((1 + len(places.get(each, ())) for each in text), initial=0))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        self.steps += self._until[len(self._until) - 1 if ahi is None else ahi] - self._until[alo]
        return Match(alo, blo, 0) if self.steps > self._steps_max else super().find_longest_match(alo, ahi, blo, bhi)
