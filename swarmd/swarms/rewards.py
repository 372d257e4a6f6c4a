"""Named rewards, and a node's own reward functions in TRL's form.

- A named reward is a number in [0, 1]. All take time linear in the text but `regex`, which is cut off after `REGEX_S`,
  or after `REGEX_LEAST_S` if that happens often: a stage has thousands of peers' completions, some perhaps crafted to
  be slow.
- Reward functions, `function(prompts, completions, **columns) -> list[float | None]`, are given by import path in this
  node's own configuration; no manifest and no peer can name one.
"""

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
from swarmd.swarms.reward_process import RewardFailed, RewardProcess
from swarmd.swarms.text import fold_text, is_well_formed, normalize_unicode, read_number

RewardName = Literal["exact", "numeric", "contains", "similarity", "regex", "format-tags", "length"]
COMPARING: tuple[RewardName, ...] = ("exact", "numeric", "contains", "similarity", "regex")  # need the answer

PATTERN_CHARACTERS_MAX = 500
REGEX_S = 0.05  # for one completion; after this the pattern counts as not found
REGEX_LEAST_S = 0.002  # limit while the budget for slow searches is spent
CUT_OFF_BURST_S, CUT_OFF_PER_S = 2.0, 0.02  # budget for searches that are cut off, and its refill
PLACEHOLDER = "{answer}"
STAND_INS = ("a", "-! 1")  # sample answers for validating a pattern
COUNT_DIGITS_MAX = 9  # digits of a repeat count that are read
REPEATS_MAX = 10_000  # product of a pattern's repeat counts, as in a{99}; each repetition takes memory
GRAM = 3  # length of n-grams for similarity

_COUNT = re.compile(r"(?<!\\)(?:\\\\)*\{((?:[0-9]|\s|#[^\n]*\n)*)")  # also in verbose patterns
_NO_DIGITS = re.compile(r"#[^\n]*\n|\s")
log = get_logger(__name__)


class RewardOption(Section, frozen=True):
    name: RewardName
    weight: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    pattern: Annotated[str, msgspec.Meta(max_length=PATTERN_CHARACTERS_MAX)] = ""  # for regex
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # for numeric: the largest difference
    min: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0  # for length, in characters
    max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        if (self.name == "regex") != bool(self.pattern):
            raise ValueError('the reward "regex" needs `pattern`, and no other reward takes it')
        if self.min > self.max:
            raise ValueError(f"`min` ({self.min}) is above `max` ({self.max}): swap them")


class AnsweredCompletion(msgspec.Struct, frozen=True):
    completion: str
    answer: str | None  # None if none was found
    expected: str


Reward = Callable[[AnsweredCompletion], float]


def make_reward(option: RewardOption) -> Reward:
    """Make the reward function of an entry. Raises SwarmError for an invalid pattern."""
    if option.name == "numeric":
        return lambda answered: float(is_number_near(answered.answer, answered.expected, option.tolerance))
    if option.name == "length":
        return lambda answered: length_reward(len(answered.completion), option.min, option.max)
    if option.name == "regex":
        return _make_pattern_reward(option.pattern)
    return _PLAIN[option.name]


_PLAIN: dict[RewardName, Reward] = {
    "exact": lambda it: float(it.answer is not None and fold_text(it.answer) == fold_text(it.expected)),
    "contains": lambda it: float(it.answer is not None and fold_text(it.expected) in fold_text(it.answer)),
    "similarity": lambda it: (
        0.0 if it.answer is None else trigram_similarity(fold_text(it.answer), fold_text(it.expected))
    ),
    "format-tags": lambda it: float(is_well_formed(it.completion)),
}


def is_number_near(found: str | None, expected: str, tolerance: float) -> bool:
    """Whether both are numbers that differ by no more than `tolerance`."""
    one, other = read_number(found or ""), read_number(expected)
    return one is not None and other is not None and abs(one - other) <= Fraction(tolerance)


def trigram_similarity(one: str, other: str) -> float:
    """Dice coefficient of two texts' character trigrams, in [0, 1]."""
    if one == other:
        return 1.0
    ours, theirs = (Counter(text[i : i + GRAM] for i in range(max(len(text) - GRAM + 1, 1))) for text in (one, other))
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def length_reward(length: int, least: int, most: int) -> float:
    """1 within the bounds; below, length / `least`; above, falling to 0 at twice `most`."""
    if length < least:
        return length / least
    return 1.0 if length <= most else max(0.0, 2 - length / most)


def _make_pattern_reward(pattern: str) -> Reward:
    """A reward that searches the answer for a pattern; {answer} in it stands for the escaped right answer."""
    import regex  # unlike `re`, it supports a timeout

    faults = (regex.error, RecursionError, OverflowError)

    def insert_answer(answer: str) -> str:
        whole = pattern.replace(PLACEHOLDER, regex.escape(answer))
        if multiply_repeat_counts(whole) > REPEATS_MAX:
            raise regex.error(f"its counts make more than {REPEATS_MAX} together")
        return whole

    try:
        for stand_in in STAND_INS:
            regex.compile(insert_answer(stand_in))
    except faults as error:
        raise SwarmError(
            f"swarm.options.rewards: the pattern {pattern!r} is not a regular expression: {error}",
            "Write \\ before a bracket or sign that means itself; docs/swarms/file.md has the bounds",
        ) from error

    cut_off = RateLimiter(CUT_OFF_BURST_S, CUT_OFF_PER_S, time.monotonic)  # time spent on searches that were cut off

    def search_answer(answered: AnsweredCompletion) -> float:
        if answered.answer is None:  # many patterns match an empty text
            return 0.0
        timeout_s, begun = REGEX_S if cut_off.has("", REGEX_S) else REGEX_LEAST_S, time.monotonic()
        try:
            expected, answer = (normalize_unicode(text) for text in (answered.expected, answered.answer))
            return float(bool(regex.search(insert_answer(expected), answer, timeout=timeout_s)))
        except faults:  # invalid with this answer
            return 0.0
        except TimeoutError:
            cut_off.charge("", max(timeout_s, time.monotonic() - begun))  # recursive patterns time out late
            return 0.0

    return search_answer


def multiply_repeat_counts(pattern: str) -> int:
    """The product of all repeat counts in a pattern, as if they were nested. Any number after an opening brace counts:
    a parser that understood groups could be fooled."""
    counts = [_NO_DIGITS.sub("", found) for found in _COUNT.findall(pattern)]
    return math.prod(int(digits[:COUNT_DIGITS_MAX]) for count in counts if (digits := count.lstrip("0")))


FUNCTIONS_MAX = 16
FAILURES_MAX = 3  # a function that fails this often before its first result ends the stage

Inputs = Literal["text", "messages"]

TRLS_OWN = ("prompt", "completion", "completion_ids")  # column names that TRL reserves


class RewardFunctions:
    """Weighted reward functions, run in a separate process (`swarmd.swarms.reward_process`).

    Args:
        weights: one for each; empty: 1.0 each, as in TRL.
        inputs: whether to pass texts or lists of messages, as TRL does for conversational data sets.

    Raises:
        SwarmError: as `RewardProcess`.
    """

    def __init__(self, paths: Sequence[str], weights: Sequence[float], inputs: Inputs, home: Path) -> None:
        self._paths = {path.rpartition(":")[2]: path for path in paths}
        self.weights = dict(zip(self._paths, weights or [1.0] * len(paths), strict=True))
        self._inputs = inputs
        self._process = RewardProcess(paths, home)
        self._encode: Callable[[str], list[int]] | None = None
        self._failures = dict.fromkeys(self._paths, 0)  # failed calls, of functions without a result so far

    def begin_stage(self, is_cancelled: Callable[[], bool]) -> None:
        """Reset failure counts, and abort calls once the stage is cancelled."""
        self._failures = dict.fromkeys(self._paths, 0)
        self._process.stop_when(is_cancelled)

    def use_tokenizer(self, encode: Callable[[str], list[int]]) -> None:
        """Pass `completion_ids` from now on, encoded by this node's tokenizer."""
        self._encode = encode

    def score_completions(
        self, prompt: Any, completions: Sequence[str | list[dict[str, Any]]], columns: Mapping[str, Any]
    ) -> list[dict[str, float]]:
        """The value of each function, by name, for each completion of one question.

        If a function returns None for a completion, it is left out there. If it raises, takes too long, or returns
        anything but one number or None for each completion, its value is NaN for all of them.

        Args:
            prompt: text or messages, as the functions take them.
            completions: texts, or the messages of rollouts with several turns.
            columns: of the data set; each is repeated for every completion.

        Raises:
            PlanFailed: a function has failed at every call since the stage began; in its own words.
        """
        count, texts = len(completions), [each for each in completions if isinstance(each, str)]
        spoken = [[{"role": "assistant", "content": each}] if isinstance(each, str) else each for each in completions]
        given = {
            "prompts": [prompt] * count,
            "completions": texts if self._inputs == "text" and len(texts) == count else spoken,
            **{name: [value] * count for name, value in columns.items() if name not in TRLS_OWN},
        }
        if self._encode is not None and len(texts) == count:
            given["completion_ids"] = [self._encode(text) for text in texts]
        values: list[dict[str, float]] = [{} for _ in completions]
        for name in self._paths:
            for place, value in enumerate(self._call_function(name, given, count)):
                if value is not None:
                    values[place][name] = value
        return values

    def _call_function(self, name: str, given: Mapping[str, Any], count: int) -> list[float | None]:
        try:
            values = self._process.call_function(self._paths[name], given, count)
        except RewardFailed as error:
            if not self._process.is_cancelled():  # otherwise the stage's results are discarded
                self._record_failure(name, str(error))
            return [math.nan] * count
        numbers = [value for value in values if value is not None]
        if numbers and not any(map(math.isfinite, numbers)):
            self._record_failure(name, f"it gave {numbers[0]} for each completion that it did not leave out")
            return values
        self._failures.pop(name, None)
        return values

    def _record_failure(self, name: str, reason: str) -> None:
        """Count and log a failure. Raises PlanFailed at the last allowed one."""
        if name in self._failures:
            self._failures[name] += 1
            if self._failures[name] >= FAILURES_MAX:
                raise PlanFailed(
                    f"the reward function {self._paths[name]} failed at all of its {FAILURES_MAX} calls: {reason}",
                    "Correct it; what it printed, and where it failed, is in the log",
                )
        log.warning("a reward function failed; its completions count as 0", function=name, reason=reason)
