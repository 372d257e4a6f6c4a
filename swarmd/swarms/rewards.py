"""What completions are worth without a plan's own code: rewards by name, and reward functions as TRL takes them.

- A named reward is a number in [0, 1]. All take time linear in the text, but `regex`, which is cut off after `REGEX_S`;
  where many are, after `REGEX_LEAST_S`: a stage has thousands of peers' completions, and some may be written for it.
- Reward functions, `function(prompts, completions, **columns) -> list[float | None]`, are named by import path in this
  node's own configuration; no manifest and no peer can name one.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from swarmd.bounds import RateLimiter
from swarmd.config import Section
from swarmd.errors import PlanFailed, SwarmError
from swarmd.logger import get_logger
from swarmd.swarms.answers import find_number, fold, last_boxed, read_number
from swarmd.swarms.reward_process import RewardFailed, RewardProcess, check_path
from swarmd.swarms.text import ANSWER_CHARACTERS_MAX, compose, extract_answer, is_well_formed

RewardName = Literal["exact", "numeric", "contains", "similarity", "regex", "format-tags", "length"]
AnswerPlace = Literal["tags", "last-number", "last-line", "boxed", "whole"]
COMPARING: tuple[RewardName, ...] = ("exact", "numeric", "contains", "similarity", "regex")  # with the right answer

PATTERN_CHARACTERS_MAX = 500
REGEX_S = 0.05  # of one completion; beyond it the pattern counts as not found
REGEX_LEAST_S = 0.002  # while cut-off searches have used up what they may
CUT_OFF_BURST_S, CUT_OFF_PER_S = 2.0, 0.02  # seconds that they may use, and that come back each second
PLACEHOLDER = "{answer}"
STAND_INS = ("a", "-! 1")  # for it, when a pattern is looked at: a pattern is one with any answer, or none
COUNT_DIGITS_MAX = 9  # of a count that are read
REPEATS_MAX = 10_000  # product of a pattern's counts, as in a{99}: what is there so often is written out in memory
GRAM = 3  # characters that similarity counts at a time

_COUNT = re.compile(r"(?<!\\)(?:\\\\)*\{((?:[0-9]|\s|#[^\n]*\n)*)")  # with what may stand in it in a verbose pattern
_NO_DIGITS = re.compile(r"#[^\n]*\n|\s")
log = get_logger(__name__)


class RewardOption(Section, frozen=True):
    """One entry of `swarm.options.rewards`."""

    name: RewardName
    weight: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    pattern: Annotated[str, msgspec.Meta(max_length=PATTERN_CHARACTERS_MAX)] = ""  # of regex
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # of numeric: the largest difference
    min: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0  # of length, in characters
    max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        if (self.name == "regex") != bool(self.pattern):
            raise ValueError('`pattern` belongs to the reward "regex", which needs one')
        if self.min > self.max:
            raise ValueError(f"`min` ({self.min}) is above `max` ({self.max})")


class Answered(msgspec.Struct, frozen=True):
    """A completion as rewards see it."""

    completion: str
    answer: str | None  # None where none was found
    expected: str


Reward = Callable[[Answered], float]


def find_answer(completion: str, place: AnswerPlace) -> str | None:
    """The answer in a completion; None where there is none, or it is longer than any right one may be."""
    found = _FINDERS[place](completion)
    return found if found is not None and 0 < len(found) <= ANSWER_CHARACTERS_MAX else None


def make_reward(option: RewardOption) -> Reward:
    """The function of an entry. Raises SwarmError for a pattern that is none."""
    if option.name == "numeric":
        return lambda answered: float(is_near(answered.answer, answered.expected, option.tolerance))
    if option.name == "length":
        return lambda answered: fit_length(len(answered.completion), option.min, option.max)
    if option.name == "regex":
        return _search_for(option.pattern)
    return _PLAIN[option.name]


_PLAIN: dict[RewardName, Reward] = {
    "exact": lambda it: float(it.answer is not None and fold(it.answer) == fold(it.expected)),
    "contains": lambda it: float(it.answer is not None and fold(it.expected) in fold(it.answer)),
    "similarity": lambda it: 0.0 if it.answer is None else resemble(fold(it.answer), fold(it.expected)),
    "format-tags": lambda it: float(is_well_formed(it.completion)),
}


def is_near(found: str | None, expected: str, tolerance: float) -> bool:
    """Whether both are numbers that differ by no more than `tolerance`."""
    one, other = read_number(found or ""), read_number(expected)
    return one is not None and other is not None and abs(one - other) <= Fraction(tolerance)


def resemble(one: str, other: str) -> float:
    """Share of the runs of three characters that two texts have in common (Dice), in [0, 1]."""
    if one == other:
        return 1.0
    ours, theirs = (Counter(text[i : i + GRAM] for i in range(max(len(text) - GRAM + 1, 1))) for text in (one, other))
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def fit_length(length: int, least: int, most: int) -> float:
    """1 within the bounds, falling to 0 at nothing below and at twice the length above."""
    if length < least:
        return length / least
    return 1.0 if length <= most else max(0.0, 2 - length / most)


def _search_for(pattern: str) -> Reward:
    """Search the answer for a pattern, in which {answer} stands for the right answer as it is."""
    import regex  # it has a time limit, which re has not

    faults = (regex.error, RecursionError, OverflowError)

    def fill_in(answer: str) -> str:
        whole = pattern.replace(PLACEHOLDER, regex.escape(answer))
        if count_repeats(whole) > REPEATS_MAX:
            raise regex.error(f"its counts make more than {REPEATS_MAX} together")
        return whole

    try:
        for stand_in in STAND_INS:
            regex.compile(fill_in(stand_in))
    except faults as error:
        raise SwarmError(
            f"swarm.options.rewards: the pattern {pattern!r} is not a regular expression: {error}",
            "Write \\ before a bracket or sign that stands for itself; docs/swarms/file.md has the bounds",
        ) from error

    cut_off = RateLimiter(CUT_OFF_BURST_S, CUT_OFF_PER_S, time.monotonic)  # seconds of searches that were cut off

    def search(answered: Answered) -> float:
        if answered.answer is None:  # many a pattern is found in an empty text
            return 0.0
        timeout_s, begun = REGEX_S if cut_off.has("", REGEX_S) else REGEX_LEAST_S, time.monotonic()
        try:
            expected, answer = (compose(text) for text in (answered.expected, answered.answer))
            return float(bool(regex.search(fill_in(expected), answer, timeout=timeout_s)))
        except faults:  # with this answer it is no pattern
            return 0.0
        except TimeoutError:
            cut_off.charge("", max(timeout_s, time.monotonic() - begun))  # one that calls itself is cut off late
            return 0.0

    return search


def count_repeats(pattern: str) -> int:
    """What the least counts of a pattern make when they are multiplied, as they are where one stands in another.

    It takes anything behind an opening brace for a count. What looks at groups as well can be told a wrong story.
    """
    counts = [_NO_DIGITS.sub("", found) for found in _COUNT.findall(pattern)]
    return math.prod(int(digits[:COUNT_DIGITS_MAX]) for count in counts if (digits := count.lstrip("0")))


# --- where the answer stands ---


def _last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


_FINDERS: dict[AnswerPlace, Callable[[str], str | None]] = {
    "tags": extract_answer,
    "last-number": find_number,
    "last-line": _last_line,
    "boxed": last_boxed,
    "whole": str.strip,
}


FUNCTIONS_MAX = 16
CALLS_IN_VAIN = 3  # a function that has failed at so many in a stage, and at all of them, ends it

Inputs = Literal["text", "messages"]

_BESIDES = ("prompt", "completion", "completion_ids")  # columns that TRL does not pass by these names


def check_functions(paths: Sequence[str], weights: Sequence[float]) -> None:
    """Raise SwarmError for what is wrong with `reward_funcs` and `reward_weights` whatever their modules hold."""
    for path in paths:
        check_path(path)
    if weights and len(weights) != len(paths):
        raise SwarmError(
            f"swarm.options.reward_weights has {len(weights)} values for {len(paths)} of reward_funcs",
            "Give one weight for each function, or none",
        )
    if not all(map(math.isfinite, weights)):
        raise SwarmError("swarm.options.reward_weights has what is no number", "Give each function a finite weight")
    if len({path.rpartition(":")[2] for path in paths}) < len(paths):
        raise SwarmError("swarm.options.reward_funcs: two functions have one name", "Give them names of their own")


class RewardFunctions:
    """Reward functions with their weights, in a process of their own (`swarmd.swarms.reward_process`).

    Args:
        weights: as many; empty: 1.0 each, as with TRL.
        inputs: whether they get texts or, as TRL gives them for conversational data sets, lists of messages.

    Raises:
        SwarmError: as `RewardProcess`, there are more or fewer weights than functions, or one is no finite number.
    """

    def __init__(self, paths: Sequence[str], weights: Sequence[float], inputs: Inputs, home: Path) -> None:
        check_functions(paths, weights)
        self._paths = {path.rpartition(":")[2]: path for path in paths}
        self.weights = dict(zip(self._paths, weights or [1.0] * len(paths), strict=True))
        self._inputs = inputs
        self._process = RewardProcess(paths, home) if paths else None
        self._in_vain: dict[str, int] = dict.fromkeys(self._paths, 0)  # calls of a function that never gave a reward

    def __bool__(self) -> bool:
        return bool(self._paths)

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """A stage begins, which may be cancelled."""
        self._in_vain = dict.fromkeys(self._paths, 0)
        if self._process is not None:
            self._process.heed(is_cancelled)

    def score(self, prompt: Any, completions: Sequence[str], columns: Mapping[str, Any]) -> list[dict[str, float]]:
        """The value of each function, by its name, for each completion to one question.

        A function that gives None for a completion has no part in it. One that raises, takes too long, or gives other
        than a number for each completion, gives no number (NaN) for all of them.

        Args:
            prompt: text or messages, as the functions take them.
            columns: of the data set; each is repeated for every completion.

        Raises:
            PlanFailed: a function has failed at every call since the stage began; in its own words.
        """
        count = len(completions)
        given = {
            "prompts": [prompt] * count,
            "completions": self._shape(completions),
            **{name: [value] * count for name, value in columns.items() if name not in _BESIDES},
        }
        values: list[dict[str, float]] = [{} for _ in completions]
        for name in self._paths:
            for place, value in enumerate(self._call(name, given, count)):
                if value is not None:
                    values[place][name] = value
        return values

    def _call(self, name: str, given: Mapping[str, Any], count: int) -> list[float | None]:
        assert self._process is not None
        try:
            values = self._process.call(self._paths[name], given, count)
        except RewardFailed as error:
            if not self._process.is_cancelled():  # then nothing of the stage is used
                self._fail(name, str(error))
            return [math.nan] * count
        numbers = [value for value in values if value is not None]
        if numbers and not any(map(math.isfinite, numbers)):
            self._fail(name, f"it gave {numbers[0]} for each completion that it had a say in")
            return values
        self._in_vain.pop(name, None)
        return values

    def _fail(self, name: str, reason: str) -> None:
        """Count a failure. Raises PlanFailed for the one too many."""
        if name in self._in_vain:
            self._in_vain[name] += 1
            if self._in_vain[name] >= CALLS_IN_VAIN:
                raise PlanFailed(
                    f"the reward function {self._paths[name]} failed at all of its {CALLS_IN_VAIN} calls: {reason}",
                    "Mend it; what it printed, and where it failed, is in the log",
                )
        log.warning("a reward function failed; its completions count as 0", function=name, reason=reason)

    def _shape(self, completions: Sequence[str]) -> list[Any]:
        if self._inputs == "text":
            return list(completions)
        return [[{"role": "assistant", "content": completion}] for completion in completions]
