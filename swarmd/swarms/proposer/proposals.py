"""Proposals: a problem, its tests and a solution, as a model writes them and a peer reads them.

<problem>
Return the sum of the even numbers of a list.
</problem>
<tests>
assert solve([1, 2, 4]) == 6
...
</tests>
<solution>
def solve(numbers):
    return sum(n for n in numbers if n % 2 == 0)
</solution>
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from swarmd.swarms.proposer.cases import TESTS_MAX, TESTS_MIN, Test, is_telling, read_test

SECTIONS = ("problem", "tests", "solution")
PROBLEM_CHARACTERS_MIN = 12

_WHOLE = re.compile("".join(rf"<{name}>(?P<{name}>.*?)</{name}>\s*" for name in SECTIONS) + r"\Z", re.DOTALL)
_TAG = re.compile(r"<(?=[/\\|!?A-Za-z])")
_FENCE = re.compile(r"```(?:python3?|py)[ \t]*\r?\n(.*?)```", re.DOTALL)


class Problem(msgspec.Struct, frozen=True):
    """What is asked, and what is checked. The text is ready to be shown."""

    text: str
    tests: tuple[Test, ...]

    @property
    def digest(self) -> str:
        """16 hex digits, the same for the same problem whoever proposed it."""
        lines = (self.text, *(test.line for test in self.tests))
        return hashlib.sha256("\x1f".join(lines).encode(errors="surrogatepass")).hexdigest()[:16]


class Proposal(msgspec.Struct, frozen=True):
    """A problem with the program that is said to solve it."""

    problem: Problem
    solution: str


class ProposalBounds(msgspec.Struct, frozen=True):
    """Bytes of UTF-8, each text as it is shown or run."""

    problem_bytes: int
    test_bytes: int
    solution_bytes: int


def find_sections(completion: str) -> dict[str, str] | None:
    """The three texts, where each tag stands once, in order, and nothing behind the last."""
    tags = [tag for name in SECTIONS for tag in (f"<{name}>", f"</{name}>")]
    if any(completion.count(tag) != 1 for tag in tags):
        return None
    found = _WHOLE.search(completion)
    return found.groupdict() if found else None


def read_proposal(sections: dict[str, str], bounds: ProposalBounds) -> Proposal | None:
    """The proposal in three texts; None where one of them is out of bounds, or the tests tell nothing."""
    text = show(sections["problem"].strip())
    lines = [line for line in sections["tests"].splitlines() if line.strip()]
    solution = unfence(sections["solution"])
    if len(text) < PROBLEM_CHARACTERS_MIN or not fits(text, bounds.problem_bytes):
        return None
    if not TESTS_MIN <= len(lines) <= TESTS_MAX or not fits(solution, bounds.solution_bytes):
        return None
    tests = [_read_bounded(line, bounds.test_bytes) for line in lines]
    known = tuple(test for test in tests if test is not None)
    if len(known) < len(lines) or len({test.arguments for test in known}) < len(known) or not is_telling(known):
        return None
    return Proposal(Problem(text, known), solution)


def _read_bounded(line: str, bytes_max: int) -> Test | None:
    """A test that is short as it came and as it is shown."""
    test = read_test(line) if fits(line, bytes_max) else None
    return test if test is not None and fits(show(test.line), bytes_max) else None


def fits(text: str, bytes_max: int) -> bool:
    """Whether a text is Unicode, and not longer than so many bytes of UTF-8."""
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def show(text: str) -> str:
    """A peer's text in which nothing passes for a tag, a fence or a control character."""
    printable = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return _TAG.sub("< ", printable).replace("```", "'''")


def unfence(text: str) -> str:
    """A program, out of its fenced block if it is the only thing there."""
    found = _FENCE.fullmatch(text.strip())
    return (str(found[1]) if found else text).strip("\r\n")


def find_programs(completion: str) -> list[str]:
    """The fenced blocks of Python in a solver's completion."""
    return [str(block) for block in _FENCE.findall(completion)]
