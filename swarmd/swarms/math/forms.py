"""Whether a completion has the form of a stage's template, in time proportional to its length.

The patterns of RL Swarm v0.4, `<a>.*?</a>\\s*<b>.*?</b>` and the like, try every way to part a text; on one made for it
that takes minutes. What is asked is only whether there is a way.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence


def is_in_lines(text: str, tags: Sequence[str]) -> bool:
    """v0.4's strict pattern: each tag, one line of text and the closing tag on lines of their own, and a newline."""
    *lines, last = text.split("\n")
    if lines and not lines[-1] and len(lines) == 3 * len(tags) + 1:  # its `$` also matches before a final newline
        lines.pop()
    shape = [line for tag in tags for line in (f"<{tag}>", "", f"</{tag}>")]
    return (
        not last
        and len(lines) == len(shape)
        and all(not want or want == line for want, line in zip(shape, lines, strict=True))
    )


def is_in_order(text: str, tags: Sequence[str]) -> bool:
    """v0.4's soft pattern: the tags in order from the first character, each closed in its line; the rest is ignored."""
    if not text.startswith(f"<{tags[0]}>"):
        return False
    breaks = [match.start() for match in re.finditer("\n", text)]
    begins = {0: len(tags[0]) + 2}  # earliest place where the inside of the tag may begin, by line
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
    """What the tags hold where each is opened and closed exactly once and they follow each other with nothing but
    white space before, between and behind; None for any other text. Lines may break anywhere."""
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


def is_template(text: str, sections: dict[str, str]) -> bool:
    """Whether sections that were read from the text stand on lines of their own, as the template shows."""
    return text.strip() == "\n".join(f"<{tag}>\n{held.strip()}\n</{tag}>" for tag, held in sections.items())


def read_last(text: str, tag: str) -> str | None:
    """What the last pair of a tag holds, stripped; None where there is no whole pair."""
    closed = text.rfind(f"</{tag}>")
    opened = text.rfind(f"<{tag}>", 0, max(closed, 0))
    return None if closed < 0 or opened < 0 else text[opened + len(tag) + 2 : closed].strip()
