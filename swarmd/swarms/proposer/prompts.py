"""What proposers and solvers are told and asked."""

from __future__ import annotations

from swarmd.plugin import Message, hash_number
from swarmd.swarms.proposer.cases import SHOWN, TESTS_MAX, TESTS_MIN
from swarmd.swarms.proposer.proposals import Problem, show
from swarmd.swarms.proposer.settings import LEVELS

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
