"""Answer tags in completions, and how text that nobody vouches for is made harmless."""

from __future__ import annotations

from collections.abc import Iterable

OPENING = "<answer>"
CLOSING = "</answer>"
TAGS = ("<think>", "</think>", OPENING, CLOSING)
ANSWER_CHARACTERS_MAX = 4096  # a longer answer counts as none: scorers may be slow on long text


def extract_answer(completion: str) -> str | None:
    """What stands between the last pair of answer tags, stripped; None where there is no pair or it is too long.

    A pair begins at the first opening tag after the last pair's end, as a search from the left finds them. From the
    right it takes time linear in the text, however many tags are never closed.
    """
    opened = completion.rfind(OPENING, 0, max(completion.rfind(CLOSING), 0))
    if opened < 0:
        return None
    begin = completion.find(OPENING, completion.rfind(CLOSING, 0, opened) + 1) + len(OPENING)
    end = completion.find(CLOSING, begin)
    return completion[begin:end].strip() if end - begin <= ANSWER_CHARACTERS_MAX else None


def span_answer(completion: str, answer: str, margin: str = "") -> tuple[tuple[int, int], ...]:
    """Where the last pair of answer tags stands, in characters, if just this answer stands in it, with the margin on
    both sides and no other blank."""
    pair = f"{OPENING}{margin}{answer}{margin}{CLOSING}"
    begin = completion.rfind(pair)
    return ((begin, begin + len(pair)),) if begin >= 0 and extract_answer(completion) == answer else ()


def is_well_formed(completion: str) -> bool:
    """Whether the completion holds exactly one pair of answer tags and ends with it."""
    text = completion.rstrip()
    return text.count(OPENING) == 1 and text.count(CLOSING) == 1 and text.endswith(CLOSING)


def escape_markers(text: str, markers: Iterable[str] = TAGS) -> str:
    """Text in which no marker is left: a blank is put behind its first character.

    A tokenizer turns a marker in a question into the control token of that name, so a question could end its own turn
    or open an answer. The text stays readable: `<answer>` becomes `< answer>`.
    """
    for marker in sorted(set(markers), key=len, reverse=True):
        if len(marker) > 1 and marker in text:
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
    return text
