"""Programming problems: prompts for proposals, parsing and display, difficulty, and built-in problems by number.

A built-in problem applies a few steps to a number, a list of numbers or a text, one step for each level. They are
solved when there is no valid proposal, and some are held out.
"""

import ast
import hashlib
import itertools
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Annotated, Any, NamedTuple

import msgspec

from swarmd.errors import SwarmError
from swarmd.swarms.options import LEVELS, ProposerOptions
from swarmd.swarms.plan import CORRECT, Message, Outcome, hash_number

FUNCTION = "solve"
TESTS_MIN = 4
TESTS_MAX = 8
SHOWN = 2  # tests shown in the question; the hidden ones decide
RESULT_CHARACTERS_MAX = 1000  # of the `repr` of one returned value
PLAIN = (bool, int, float, str)

_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


class ProblemTest(msgspec.Struct, frozen=True):
    """A call and its expected result, both as `repr` writes them, so that equal tests are equal texts."""

    arguments: str  # `repr` of a tuple
    expected: str

    @property
    def source_line(self) -> str:
        inside = self.arguments[1:-1].removesuffix(",")
        return f"assert {FUNCTION}({inside}) == {self.expected}"


def make_test(arguments: tuple[Any, ...], expected: Any) -> ProblemTest:
    return ProblemTest(repr(arguments), repr(expected))


def read_test(line: str) -> ProblemTest | None:
    """Parse a test from a line; None unless it compares one call on plain values with a plain value."""
    tree = _parse_python(line.strip())
    match tree.body if isinstance(tree, ast.Module) else None:
        case [ast.Assert(ast.Compare(ast.Call(ast.Name(name), given, []), [ast.Eq()], [right]), None)] if (
            name == FUNCTION
        ):
            pass
        case _:
            return None
    try:
        arguments = tuple(map(ast.literal_eval, given))
        expected = ast.literal_eval(right)
        return make_test(arguments, expected) if is_plain_value((arguments, expected)) else None
    except _UNREADABLE:
        return None


def is_plain_value(value: Any) -> bool:
    """Whether a literal has only one spelling: no set, bytes, complex number, NaN or infinity."""
    if isinstance(value, list | tuple):
        return all(map(is_plain_value, value))
    if isinstance(value, dict):
        return all(is_plain_value(key) and is_plain_value(inner) for key, inner in value.items())
    if isinstance(value, float):
        return abs(value) < float("inf")
    return value is None or isinstance(value, PLAIN)


def is_passed(test: ProblemTest, returned: str) -> bool:
    """Whether a program's result, as its `repr`, equals the expected value under Python's `==`."""
    if returned == test.expected:
        return True
    if len(returned) > RESULT_CHARACTERS_MAX:
        return False
    try:
        tree = _parse_python(returned, "eval")
        return tree is not None and bool(ast.literal_eval(tree) == ast.literal_eval(test.expected))
    except _UNREADABLE:
        return False


def do_tests_need_solution(tests: Sequence[ProblemTest]) -> bool:
    """Whether the hidden tests need a real solution: neither a constant nor returning an argument passes them."""
    hidden = tests[SHOWN:]
    calls = [ast.literal_eval(test.arguments) for test in hidden]
    expected = [ast.literal_eval(test.expected) for test in hidden]
    if all(value == expected[0] for value in expected):  # compared as in `is_passed`: True == 1 == 1.0
        return False
    places = min(map(len, calls))
    return not any(all(call[at] == value for call, value in zip(calls, expected, strict=True)) for at in range(places))


def _parse_python(text: str, mode: str = "exec") -> ast.AST | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as for the literal "\d"
            return ast.parse(text, mode=mode)
    except _UNREADABLE:
        return None


SECTIONS = ("problem", "tests", "solution")
PROBLEM_CHARACTERS_MIN = 12

_WHOLE = re.compile("".join(rf"<{name}>(?P<{name}>.*?)</{name}>\s*" for name in SECTIONS) + r"\Z", re.DOTALL)
_TAG = re.compile(r"<(?=[/\\|!?A-Za-z])")
_FENCE = re.compile(r"```(?:python3?|py)[ \t]*\r?\n(.*?)```", re.DOTALL)


class Problem(msgspec.Struct, frozen=True):
    """A problem statement and its tests. The text is safe to display."""

    text: str
    tests: tuple[ProblemTest, ...]

    @property
    def digest(self) -> str:
        """16 hex digits, equal for equal problems, whoever proposed them."""
        lines = (self.text, *(test.source_line for test in self.tests))
        return hashlib.sha256("\x1f".join(lines).encode(errors="surrogatepass")).hexdigest()[:16]


class Proposal(msgspec.Struct, frozen=True):
    problem: Problem
    solution: str


def find_sections(completion: str) -> dict[str, str] | None:
    """The content of the three tags, if each occurs once, in order, and nothing follows the last; else None."""
    tags = [tag for name in SECTIONS for tag in (f"<{name}>", f"</{name}>")]
    if any(completion.count(tag) != 1 for tag in tags):
        return None
    found = _WHOLE.search(completion)
    return found.groupdict() if found else None


def read_proposal(sections: dict[str, str], bounds: ProposerOptions) -> Proposal | None:
    """Parse a proposal; None if a section is out of bounds, or trivial programs pass the tests."""
    text = neutralize_markup(sections["problem"].strip())
    lines = [line for line in sections["tests"].splitlines() if line.strip()]
    solution = strip_fence(sections["solution"])
    if len(text) < PROBLEM_CHARACTERS_MIN or not is_within_bytes(text, bounds.problem_bytes):
        return None
    if not TESTS_MIN <= len(lines) <= TESTS_MAX or not is_within_bytes(solution, bounds.solution_bytes):
        return None
    tests = [_read_bounded_test(line, bounds.test_bytes) for line in lines]
    known = tuple(test for test in tests if test is not None)
    distinct = len({test.arguments for test in known})
    if len(known) < len(lines) or distinct < len(known) or not do_tests_need_solution(known):
        return None
    return Proposal(Problem(text, known), solution)


def _read_bounded_test(line: str, bytes_max: int) -> ProblemTest | None:
    """Parse a test, if both the line and its displayed form are short enough."""
    test = read_test(line) if is_within_bytes(line, bytes_max) else None
    return test if test is not None and is_within_bytes(neutralize_markup(test.source_line), bytes_max) else None


def is_within_bytes(text: str, bytes_max: int) -> bool:
    """Whether a text is valid Unicode of at most `bytes_max` bytes in UTF-8."""
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def neutralize_markup(text: str) -> str:
    """Escape a peer's text so that nothing in it passes for a tag, a fence or a control character."""
    printable = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return _TAG.sub("< ", printable).replace("```", "'''")


def strip_fence(text: str) -> str:
    """Remove the fence if the text is a single fenced program."""
    found = _FENCE.fullmatch(text.strip())
    return (str(found[1]) if found else text).strip("\r\n")


def find_fenced_programs(completion: str) -> list[str]:
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
    drawn = hash_number("topic", seed, number)
    return f"{TOPICS[drawn % len(TOPICS)]}, with {TWISTS[drawn // len(TOPICS) % len(TWISTS)]}"


def make_proposal_messages(topic: str, level: int) -> tuple[Message, ...]:
    asked = f"Topic: {topic}.\nDifficulty {level} of {LEVELS}, {LEVEL_WORDS[level - 1]}."
    return Message("system", PROPOSE, trusted=True), Message("user", asked)


def make_solution_messages(problem: Problem) -> tuple[Message, ...]:
    """The messages of stage 1: the problem and its first tests. They are a peer's text, so they are not trusted."""
    examples = "\n".join(neutralize_markup(test.source_line) for test in problem.tests[:SHOWN])
    return Message("system", SOLVE, trusted=True), Message("user", f"{problem.text}\n\n{examples}")


EVERY_ROUNDS = 5  # rounds with results between changes of the level
COMPARED = 10  # rounds averaged, and compared with as many before
THRESHOLD = 0.05  # difference in mean reward that changes the level
NEUTRAL = 0.5  # difficulty reward of a proposal that nobody has tried yet

Finite = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class DifficultyLevel(msgspec.Struct, forbid_unknown_fields=True):
    """A node's difficulty level, from 1 to 5, adjusted by its mean reward for solving in each round.

    After every fifth round with results, the mean of the last ten rounds is compared with that of the ten before. If it
    is better by more than 0.05, the level rises by one; if it is as much worse, it falls by one. A checkpoint holds
    this struct as it is.
    """

    level: Annotated[int, msgspec.Meta(ge=1, le=LEVELS)]
    rewards: Annotated[list[Finite], msgspec.Meta(max_length=2 * COMPARED)] = []
    rounds: Number = 0  # rounds since the last comparison
    round: int = -1  # round in progress; -1: none
    total: float = 0.0  # sum of this round's mean group rewards
    groups: Number = 0

    def record_reward(self, round: int, reward: float) -> None:
        """Add the mean reward of one own group."""
        self.enter_round(round)
        self.round = round
        self.total += reward
        self.groups += 1

    def enter_round(self, round: int) -> None:
        """If another round begins, close the previous one, provided it had results."""
        if round == self.round or not self.groups:
            return
        self.rewards = [*self.rewards, self.total / self.groups][-2 * COMPARED :]
        self.rounds += 1
        if self.rounds >= EVERY_ROUNDS:
            self.rounds = 0
            self.level = min(max(self.level + compare_halves(self.rewards), 1), LEVELS)
        self.round, self.total, self.groups = -1, 0.0, 0


def read_level(remembered: Any) -> DifficultyLevel:
    """Read the level from a checkpoint. Raises SwarmError if it is malformed."""
    try:
        return msgspec.convert(remembered, DifficultyLevel)
    except msgspec.ValidationError as error:
        raise SwarmError(
            f"the level of proposer-solver cannot be read from the checkpoint: {error}",
            "Move that checkpoint away: the one before it counts then",
        ) from error


def compare_halves(rewards: list[float]) -> int:
    """1 if the second half is clearly better than the first, -1 if it is clearly worse, else 0."""
    if len(rewards) < 2 * COMPARED:
        return 0
    gain = (sum(rewards[COMPARED:]) - sum(rewards[:COMPARED])) / COMPARED
    return 1 if gain > THRESHOLD else -1 if gain < -THRESHOLD else 0


class PassRates(msgspec.Struct, frozen=True):
    """Pass rates of solvers' programs in the round before."""

    by_problem: Mapping[str, float] = {}  # by problem digest
    by_kind: Mapping[tuple[str, int], float] = {}  # by topic and level

    def difficulty_reward(self, problem: str, topic: str, level: int) -> float:
        """The reward for a valid proposal's difficulty: 1 - pass rate, but 0 if everyone or no one solved it."""
        share = self.by_problem.get(problem, self.by_kind.get((topic, level)))
        if share is None:
            return NEUTRAL
        return 0.0 if share in (0.0, 1.0) else 1.0 - share


NO_RATES = PassRates()


def measure_pass_rates(outcomes: Iterable[Outcome]) -> PassRates:
    """Pass rates of proposals in these outcomes, without built-in problems."""
    by_problem: dict[str, list[bool]] = defaultdict(list)
    by_kind: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for outcome in outcomes:
        entry = outcome.question.entry
        if "proposal" in entry:
            right = [score.accuracy >= CORRECT for score in outcome.scores]
            by_problem[entry["proposal"]] += right
            by_kind[entry["topic"], entry["level"]] += right
    return PassRates(
        {key: sum(right) / len(right) for key, right in by_problem.items()},
        {key: sum(right) / len(right) for key, right in by_kind.items()},
    )


TESTS = 6
ATTEMPTS_MAX = 64  # tries to generate a problem whose tests need a real solution
VOWELS = "aeiou"
LETTERS = VOWELS * 2 + "bcdlmnprst"
THEN = "; then "  # joins the descriptions of steps

_TEXT = re.compile(r"solve takes ([^.]+)\. ([^.]+)\. return the result\.")


class TransformStep(NamedTuple):
    """One transformation of `x`; its parameter `k` is drawn from a range."""

    words: str
    python: str  # Python expression
    least: int = 0
    most: int = 0
    easy: bool = False  # a tiny model can compute it

    def apply(self, value: Any, k: int) -> Any:
        return _compile_expression(self.python)(value, k)


@cache
def _compile_expression(expression: str) -> Callable[[Any, int], Any]:
    """Compile a step's expression. Only expressions from this file get here, never text of a peer or a model."""
    function: Callable[[Any, int], Any] = eval(f"lambda x, k: {expression.format(k='k')}")
    return function


class StepFamily(NamedTuple):
    """Steps on one type of value, and how to draw such values."""

    name: str
    takes: str
    steps: tuple[TransformStep, ...]
    endings: tuple[TransformStep, ...]  # steps that change the type; allowed only as the last step
    draw: Callable[[Random], Any]


NUMBER = StepFamily(
    "number",
    "a whole number",
    (
        TransformStep("add {k}", "x + {k}", 1, 9, easy=True),
        TransformStep("multiply by {k}", "x * {k}", 2, 9),
        TransformStep("subtract {k}", "x - {k}", 1, 9, easy=True),
        TransformStep("take the remainder after dividing by {k}", "x % {k}", 3, 9),
        TransformStep("divide by {k} and drop the remainder", "x // {k}", 2, 5),
    ),
    (
        TransformStep("count the digits, without a sign", "len(str(abs(x)))"),
        TransformStep("add up the digits, without a sign", "sum(int(c) for c in str(abs(x)))"),
    ),
    lambda random: random.randint(0, 99),
)
NUMBERS = StepFamily(
    "numbers",
    "a list of whole numbers",
    (
        TransformStep("add {k} to each", "[n + {k} for n in x]", 1, 9, easy=True),
        TransformStep("multiply each by {k}", "[n * {k} for n in x]", 2, 5),
        TransformStep("keep those above {k}", "[n for n in x if n > {k}]", -3, 9),
        TransformStep("keep those below {k}", "[n for n in x if n < {k}]", 3, 15),
        TransformStep("keep the even ones", "[n for n in x if n % 2 == 0]"),
        TransformStep("keep the odd ones", "[n for n in x if n % 2 == 1]"),
        TransformStep("reverse the order", "x[::-1]", easy=True),
        TransformStep("sort them, the smallest first", "sorted(x)", easy=True),
        TransformStep("leave out the first {k}", "x[{k}:]", 1, 2, easy=True),
    ),
    (
        TransformStep("add them up", "sum(x)"),
        TransformStep("count them", "len(x)"),
        TransformStep("take the largest, or 0 if there is none", "max(x, default=0)", easy=True),
    ),
    lambda random: [random.randint(-9, 20) for _ in range(random.randint(3, 6))],
)
TEXT = StepFamily(
    "text",
    "a text of small letters",
    (
        TransformStep("reverse it", "x[::-1]", easy=True),
        TransformStep("leave out the vowels", "''.join(c for c in x if c not in 'aeiou')"),
        TransformStep("write every letter {k} times", "''.join(c * {k} for c in x)", 2, 3),
        TransformStep("keep the first {k} letters", "x[:{k}]", 2, 5, easy=True),
        TransformStep("leave out the first {k} letters", "x[{k}:]", 1, 3, easy=True),
        TransformStep("sort the letters", "''.join(sorted(x))"),
        TransformStep("leave out every letter that stands further to the left already", "''.join(dict.fromkeys(x))"),
    ),
    (
        TransformStep("count the letters", "len(x)"),
        TransformStep("count the vowels", "sum(c in 'aeiou' for c in x)"),
        TransformStep("write it in capitals", "x.upper()", easy=True),
    ),
    lambda random: "".join(random.choice(LETTERS) for _ in range(random.randint(4, 8))),
)
FAMILIES = (NUMBER, NUMBERS, TEXT)
Steps = Sequence[tuple[TransformStep, int]]


class BuiltInProblem(msgspec.Struct, frozen=True):
    """A built-in problem. Equal `canonical` means equal solutions."""

    problem: Problem
    canonical: str


def make_built_in_problem(seed: int, number: int, level: int) -> BuiltInProblem:
    """Make a problem with one step for each level; the same on every node."""
    for attempt in range(ATTEMPTS_MAX):
        random = Random(hash_number("built-in", seed, number, level, attempt, bits=63))
        made = _try_make_problem(random, level)
        if made is not None:
            return made
    return compose_problem(NUMBER, [(NUMBER.steps[0], 1)], [(number,) for number in range(1, TESTS + 1)])


def _try_make_problem(random: Random, level: int) -> BuiltInProblem | None:
    family = random.choice(FAMILIES)
    steps = [random.choice(family.steps) for _ in range(level)]
    if random.random() < 0.5:
        steps[-1] = random.choice(family.endings)
    if any(one is other for one, other in itertools.pairwise(steps)):
        return None
    chosen = [(step, random.randint(step.least, step.most)) for step in steps]
    made = compose_problem(family, chosen, [(family.draw(random),) for _ in range(TESTS)])
    tests = made.problem.tests
    return made if len({test.arguments for test in tests}) == TESTS and do_tests_need_solution(tests) else None


def compose_problem(family: StepFamily, steps: Steps, calls: Sequence[tuple[Any, ...]]) -> BuiltInProblem:
    text = f"solve takes {family.takes}. {THEN.join(_describe_steps(steps)).capitalize()}. Return the result."
    return BuiltInProblem(
        Problem(text, tuple(_compute_test(steps, call) for call in calls)), canonical_form_of_steps(family, steps)
    )


def canonical_form_of_steps(family: StepFamily, steps: Steps) -> str:
    """The canonical form, which decides the side of the split."""
    return f"{family.name}: {'; '.join(_describe_steps(steps))}"


def parse_steps(text: str) -> tuple[StepFamily, Steps] | None:
    """Parse the steps from a problem worded like a built-in one, ignoring case and white space; None for any other."""
    found = _TEXT.fullmatch(" ".join(text.lower().split()))
    family = next((each for each in FAMILIES if found and each.takes == found[1]), None)
    if found is None or family is None:
        return None
    steps = [_parse_step(family, words) for words in found[2].split(THEN)]
    return None if None in steps else (family, [step for step in steps if step is not None])


def _parse_step(family: StepFamily, words: str) -> tuple[TransformStep, int] | None:
    for step in (*family.steps, *family.endings):
        found = _step_pattern(step.words).fullmatch(words)
        if found:
            return step, int(found[1]) if found.groups() else 0
    return None


@cache
def _step_pattern(words: str) -> re.Pattern[str]:
    return re.compile(re.escape(words).replace(r"\{k\}", r"(-?\d{1,4})"))


def _describe_steps(steps: Steps) -> list[str]:
    return [step.words.format(k=k) for step, k in steps]


def _compute_test(steps: Steps, call: tuple[Any, ...]) -> ProblemTest:
    value = call[0]
    for step, k in steps:
        value = step.apply(value, k)
    return make_test(call, value)
