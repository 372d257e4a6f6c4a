"""Texts of peers as they are shown in a question: escaped, and cut to a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from swarmd.plugin import hash_number
from swarmd.swarms.math.prompts import SENTENCES, agreement_prompt, comparison_prompt
from swarmd.swarms.math.reading import read_last

CUT = " [...] "  # stands where a long text was cut
NUMBER_BYTES_MAX = 120  # of an answer that is shown
NUMBER_DIGITS = 3  # of a student's number
LONG_DIGITS = 9  # of the numbers of students whose short ones are the same

_TAG = re.compile(r"<(?=[/\\|!?A-Za-z])")
_SENTENCE = re.compile("|".join(re.escape(s.removesuffix(":")).replace(r"\ ", r"\s+") + ":" for s in SENTENCES), re.I)
_BLANK_LINES = re.compile(r"\n\s+")
_OWN_TAG = re.compile(r"</?(?:think|answer|compare|explain|identify)>")


def escape(text: str) -> str:
    """Text with a blank in every tag and no colon behind the sentences that part a prompt; the rest as it is."""
    return _SENTENCE.sub(lambda found: f"{found[0][:-1]};", _TAG.sub("< ", text))


def cut(text: str, bytes_max: int) -> str:
    """The beginning and, as answers stand there, the end of a text of more than so many bytes of UTF-8."""
    body = text.encode(errors="replace")
    if len(body) <= bytes_max:
        return text
    half = max(0, bytes_max - len(CUT)) // 2
    return body[:half].decode(errors="ignore") + CUT + body[len(body) - half :].decode(errors="ignore")


def show_answer(completion: str, bytes_max: int) -> str:
    """What a student wrote, told again in tags of one's own: nothing of the text is taken for one."""
    answer = read_last(completion, "answer")
    reasoning = _bare(completion.rpartition("<answer>")[0] if answer is not None else completion, bytes_max)
    if answer is None:
        return reasoning
    value = cut(escape(answer), min(bytes_max, NUMBER_BYTES_MAX))
    thought = f"<think>\n{reasoning}\n</think>\n" if reasoning else ""
    return f"{thought}<answer>\n{value}\n</answer>"


def show_opinion(completion: str, choice: str | None, bytes_max: int) -> str:
    """What a critic wrote, and for whom it counts: an id of the prompt or None, which the caller has read."""
    if choice is None:
        return _bare(completion, bytes_max)
    reasons = _bare(completion.rpartition("<identify>")[0], bytes_max)
    explained = f"<explain>\n{reasons}\n</explain>\n" if reasons else ""
    return f"{explained}<identify>\n{choice}\n</identify>"


def number_peers(peers: Iterable[str]) -> dict[str, str]:
    """A number for each peer, the same in every prompt; a longer one where two of these peers share the short one."""
    ordered = sorted(set(peers))
    short = {peer: _digits(peer, NUMBER_DIGITS) for peer in ordered}
    numbers: dict[str, str] = {}
    for peer in ordered:
        shared = list(short.values()).count(short[peer]) > 1
        number = _digits(peer, LONG_DIGITS) if shared else short[peer]
        taken = list(numbers.values()).count(number)
        numbers[peer] = f"{number}-{peer}" if taken else number
    return numbers


def _digits(peer: str, count: int) -> str:
    return f"{hash_number('student', peer, bits=63) % 10**count:0{count}}"


def _bare(text: str, bytes_max: int) -> str:
    return cut(escape(_BLANK_LINES.sub("\n", _OWN_TAG.sub("", text)).strip()), bytes_max)


SHOWN_BYTES_MIN = 8  # of a text: less is no text


class Shown(msgspec.Struct, frozen=True):
    """A question and the texts beside it. No text is longer than `bytes_max`, so short ones stay whole."""

    question: str
    bytes_max: int
    answers: tuple[tuple[str, str], ...]  # (id, what the student wrote)
    opinions: tuple[tuple[str, str, str | None], ...] = ()  # (id, what the critic wrote, for whom it counts)

    @property
    def prompt(self) -> str:
        """The user's message: of stage 2 where there are opinions, else of stage 1."""
        comparison = comparison_prompt(
            self.question, [(name, show_answer(text, self.bytes_max)) for name, text in self.answers]
        )
        opinions = [(name, show_opinion(text, choice, self.bytes_max)) for name, text, choice in self.opinions]
        return agreement_prompt(comparison, opinions) if opinions else comparison

    def shorten(self) -> Shown | None:
        """Half as much of each text at most; None where that is too little."""
        half = self.bytes_max // 2
        return msgspec.structs.replace(self, bytes_max=half) if half >= SHOWN_BYTES_MIN else None
