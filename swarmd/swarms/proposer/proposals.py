"""Programming problems that models set each other: cases, how they are written in a completion, and prompts."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec

from swarmd.plugin import Message, hash_number
from swarmd.swarms.proposer.settings import LEVELS

FUNCTION = "solve"
TESTS_MIN = 4
TESTS_MAX = 8
SHOWN = 2  # in the question; the others decide
RESULT_CHARACTERS_MAX = 1000  # of one value that a program returned, as `repr` writes it
PLAIN = (bool, int, float, str)

_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


class Test(msgspec.Struct, frozen=True):
    """One call and what it must return, both as `repr` writes them, so that equal tests are equal texts."""

    arguments: str  # a tuple
    expected: str

    @property
    def line(self) -> str:
        """The test as Python."""
        inside = self.arguments[1:-1].removesuffix(",")
        return f"assert {FUNCTION}({inside}) == {self.expected}"


def make_test(arguments: tuple[Any, ...], expected: Any) -> Test:
    """A test of plain values."""
    return Test(repr(arguments), repr(expected))


def read_test(line: str) -> Test | None:
    """The test in a line; None where it is none."""
    tree = _parse(line.strip())
    statement = tree.body[0] if isinstance(tree, ast.Module) and len(tree.body) == 1 else None
    if not isinstance(statement, ast.Assert) or statement.msg is not None:
        return None
    compared = statement.test
    if not isinstance(compared, ast.Compare) or len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq):
        return None
    call = compared.left
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != FUNCTION:
        return None
    if call.keywords:
        return None
    try:
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        expected = ast.literal_eval(compared.comparators[0])
        return make_test(arguments, expected) if is_plain((arguments, expected)) else None
    except _UNREADABLE:
        return None


def is_plain(value: Any) -> bool:
    """Whether a literal has one way to be written: no set, no bytes, no complex number, no float that is no number."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(inner) for key, inner in value.items())
    if isinstance(value, float):
        return abs(value) < float("inf")
    return value is None or isinstance(value, PLAIN)


def passes(test: Test, returned: str) -> bool:
    """Whether what a program returned, as `repr` wrote it, equals what the test expects, as Python compares them."""
    if returned == test.expected:
        return True
    if len(returned) > RESULT_CHARACTERS_MAX:
        return False
    try:
        tree = _parse(returned, "eval")
        return tree is not None and bool(ast.literal_eval(tree) == ast.literal_eval(test.expected))
    except _UNREADABLE:
        return False


def is_telling(tests: Sequence[Test]) -> bool:
    """Whether the hidden tests tell a solution from none: no constant passes them, and no argument given back."""
    hidden = tests[SHOWN:]
    calls = [ast.literal_eval(test.arguments) for test in hidden]
    expected = [ast.literal_eval(test.expected) for test in hidden]
    if all(value == expected[0] for value in expected):  # as `passes` compares them: True is 1, and 1 is 1.0
        return False
    places = min(map(len, calls))
    return not any(all(call[at] == value for call, value in zip(calls, expected, strict=True)) for at in range(places))


def _parse(text: str, mode: str = "exec") -> ast.AST | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a literal like "\d" is a warning to whoever wrote it
            return ast.parse(text, mode=mode)
    except _UNREADABLE:
        return None


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


TOPICS = (
    *("lists of numbers", "words and letters", "divisors and remainders", "counting", "sorting", "digits of a number"),
    *("pairs", "dictionaries", "searching", "dates and times", "money", "grids", "codes and ciphers", "runs of equals"),
    *("intervals", "scores of a game"),
)
TWISTS = (
    *("a limit", "an exception for zero", "the order of things", "neighbours", "duplicates", "the empty case"),
    *("two arguments", "the last one", "every second one", "a tie", "negative numbers", "capital letters", "a pattern"),
    *("the difference of two results", "a rule that changes half-way", "what is missing"),
)
LEVEL_WORDS = (
    "very easy: one step, one line of code",
    "easy: two steps or one condition",
    "medium: a loop with a condition",
    "hard: several cases or a nested loop",
    "very hard: an algorithm that takes thought",
)
assert len(LEVEL_WORDS) == LEVELS

PROPOSE = (
    "You set programming problems for others, with tests. Respond in this form and in no other:\n"
    "<problem>\n[what solve takes and returns]\n</problem>\n"
    f"<tests>\n[{TESTS_MIN} to {TESTS_MAX} lines like: assert solve([1, 2]) == 3]\n</tests>\n"
    "<solution>\n[Python that defines solve and passes the tests]\n</solution>\n"
    "Tests hold plain values only, and differ in what they expect."
)
SOLVE = (
    "You solve programming problems in Python. Write the function solve in one block that begins with ```python and "
    "ends with ```. It is run with the standard library only, and hidden tests call it."
)


def topic_of(seed: int, number: int) -> str:
    """What the n-th proposal under a seed is to be about."""
    drawn = hash_number("topic", seed, number)
    return f"{TOPICS[drawn % len(TOPICS)]}, with {TWISTS[drawn // len(TOPICS) % len(TWISTS)]}"


def ask_proposal(topic: str, level: int) -> tuple[Message, ...]:
    """The messages of stage 0."""
    asked = f"Topic: {topic}.\nDifficulty {level} of {LEVELS}, {LEVEL_WORDS[level - 1]}."
    return Message("system", PROPOSE, trusted=True), Message("user", asked)


def ask_solution(problem: Problem) -> tuple[Message, ...]:
    """The messages of stage 1: the problem and its first tests. A peer wrote them, so they are not trusted."""
    examples = "\n".join(show(test.line) for test in problem.tests[:SHOWN])
    return Message("system", SOLVE, trusted=True), Message("user", f"{problem.text}\n\n{examples}")
