"""Tasks of reasoning-gym and swarmd's own: settings, levels, digests for peers, guards for scorers.

- Digit tasks and word problems are registered with reasoning-gym, so that they are drawn, scored and shared like its
  own. They need no data set, are easy enough for a model of half a million parameters, and have 10,000 or more
  questions each, so that some can be held out.
- Some scorers of reasoning-gym run an answer as code, take very long with some answers, or pay for wrong ones.
  `is_safe_to_score` and `is_wrong_but_paid` guard against that.
"""

import copy
import dataclasses
import difflib
import importlib.metadata
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import msgspec
import reasoning_gym
from cachetools import LRUCache
from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.factory import CURRICULA, DATASETS, ProceduralDataset, create_curriculum, register_dataset

from swarmd.config import TaskConfig
from swarmd.errors import SwarmError
from swarmd.swarms.plan import Message, hash_number

NUMBER = "{number}"  # placeholder in a task's wording
WORDING_CHARACTERS_MAX = 200


@dataclass
class DigitsConfig:
    digits: int = 4  # length of the number
    wording: str = ""  # of the question, with {number}; empty: the task's own
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert 1 <= self.digits <= 12, "digits must be between 1 and 12"
        assert not self.wording or self.wording.count(NUMBER) == 1, f"wording must have {NUMBER} in it, once"
        assert len(self.wording) <= WORDING_CHARACTERS_MAX, f"wording must have at most {WORDING_CHARACTERS_MAX}"


@dataclass
class LargestConfig:
    numbers: int = 3
    digits: int = 2  # length of each number
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert 2 <= self.numbers <= 12, "numbers must be between 2 and 12"
        assert 1 <= self.digits <= 12, "digits must be between 1 and 12"


class DigitsCurriculum(BaseCurriculum):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(type(self).__name__, DigitsConfig)
        self._define_attributes(ScalarAttributeDefinition(name="digits", field_name="digits", levels=[2, 3, 4, 5, 6]))


class LargestCurriculum(BaseCurriculum):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(type(self).__name__, LargestConfig)
        self._define_attributes(ScalarAttributeDefinition(name="numbers", field_name="numbers", levels=[2, 3, 4, 5]))


class ExactAnswerDataset(ProceduralDataset):  # type: ignore[misc]
    """Base class: an item is a pure function of seed + index, and only the exact answer scores."""

    name = ""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """1 for the exact answer, else 0: containing it is not enough."""
        return float(answer == entry["answer"])


class DigitsDataset(ExactAnswerDataset):
    """Base of the digit tasks: transform a number."""

    instruction = ""
    transform: Callable[[str], str]

    def __getitem__(self, idx: int) -> dict[str, Any]:
        question, answer, canonical = self.make_question(Random(self.seed + idx))
        metadata = {"source_dataset": self.name, "source_index": idx, "canonical": canonical}
        return {"question": question, "answer": answer, "metadata": metadata}

    def make_question(self, random: Random) -> tuple[str, str, str]:
        """Question, answer and canonical form, which decides the side of the split."""
        number = "".join(str(random.randrange(10)) for _ in range(self.config.digits))
        wording = self.config.wording or f"{self.instruction}: {NUMBER}"
        return wording.replace(NUMBER, number), self.transform(number), number


class LargestDataset(DigitsDataset):
    name = "digits_largest"

    def make_question(self, random: Random) -> tuple[str, str, str]:
        low, high = 10 ** (self.config.digits - 1), 10**self.config.digits
        numbers = [random.randrange(low, high) for _ in range(self.config.numbers)]
        listed = ", ".join(map(str, numbers))
        return f"Largest number: {listed}", str(max(numbers)), ",".join(map(str, sorted(numbers)))


TRANSFORMS: dict[str, tuple[str, Callable[[str], str]]] = {  # task → instruction, function that gives the answer
    "digits_reverse": ("Reverse the digits", lambda number: number[::-1]),
    "digits_sort": ("Sort the digits", lambda number: "".join(sorted(number))),
    "digits_increment": (
        "Add 1 to every digit (9 becomes 0)",
        lambda number: "".join(str((int(digit) + 1) % 10) for digit in number),
    ),
    "digits_rotate": ("Rotate left", lambda number: number[1:] + number[:1]),
}
TASK_NAMES = ("digits_reverse", "digits_sort", "digits_increment", "digits_largest")  # the embedded model's
KNOWN_NAMES = (*TASK_NAMES, "digits_rotate")


NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")
PLACES = ("boxes", "bags", "rows", "baskets")


@dataclass
class WordProblemConfig:
    largest: int = 9  # largest number in a question
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert 3 <= self.largest <= 99, "largest must be between 3 and 99"


class WordProblemTemplate(NamedTuple):
    """A text with placeholders for numbers, and the calculations that lead to the answer."""

    words: str
    work: Callable[[int, int, int], tuple[str, ...]]


STORIES = (
    WordProblemTemplate(
        "{name} has {a} {things}, gets {b} more and gives {c} away. How many {things} are left?",
        lambda a, b, c: (f"{a}+{b}={a + b}", f"{a + b}-{c}={a + b - c}"),
    ),
    WordProblemTemplate(
        "There are {a} {places} with {b} {things} each, and {c} more {things}. How many {things} are there?",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"),
    ),
    WordProblemTemplate(
        "{name} fills {a} {places} with {b} {things} each, then takes {c} {things} out. How many {things} stay?",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"),
    ),
    WordProblemTemplate(
        "{name} finds {a} {things} and then {b} more. {other} has {c} times as many. How many {things} has {other}?",
        lambda a, b, c: (f"{a}+{b}={a + b}", f"{a + b}*{c}={(a + b) * c}"),
    ),
)
FORMULAS = (
    WordProblemTemplate(
        "Find x: {a} * x + {b} = {d}.", lambda a, b, c: (f"{a * c + b}-{b}={a * c}", f"{a * c}/{a}={c}")
    ),
    WordProblemTemplate(
        "Find the remainder of {a} * {b} after dividing by {c}.",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{a * b}%{c}={a * b % c}"),
    ),
    WordProblemTemplate(
        "Find {a} * {b} + {c} * {c}.",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{c}*{c}={c * c}", f"{a * b}+{c * c}={a * b + c * c}"),
    ),
)


class WordProblemDataset(ExactAnswerDataset):
    """Base of word problems. Problems with the same numbers are on the same side of the split, whatever their story."""

    templates: tuple[WordProblemTemplate, ...] = ()

    def __getitem__(self, idx: int) -> dict[str, Any]:
        random = Random(self.seed + idx)
        number = random.randrange(len(self.templates))
        a, b, c = (random.randint(2, self.config.largest) for _ in range(3))
        if a + b <= c:
            a, b, c = c, b, a
        template = self.templates[number]
        name, other = random.sample(NAMES, 2)
        words = {"name": name, "other": other, "things": random.choice(THINGS), "places": random.choice(PLACES)}
        working = template.work(a, b, c)
        question = template.words.format(a=a, b=b, c=c, d=a * c + b, **words)
        canonical = f"{number}: {a} {b} {c}"
        metadata = {"source_dataset": self.name, "source_index": idx, "canonical": canonical, "working": working}
        return {"question": question, "answer": working[-1].partition("=")[2], "metadata": metadata}


MADE = {"made_stories": STORIES, "made_formulas": FORMULAS}

# Part of the config digest: a changed generator makes it another task for peers.
SOURCES = dict.fromkeys(KNOWN_NAMES, "digits/1") | dict.fromkeys(MADE, "made/1")

for _name, (_instruction, _transform) in TRANSFORMS.items():
    _parts = {"name": _name, "instruction": _instruction, "transform": staticmethod(_transform)}
    register_dataset(_name, type(_name, (DigitsDataset,), _parts), DigitsConfig, DigitsCurriculum)
register_dataset(LargestDataset.name, LargestDataset, LargestConfig, LargestCurriculum)
for _name, _templates in MADE.items():
    register_dataset(
        _name, type(_name, (WordProblemDataset,), {"name": _name, "templates": _templates}), WordProblemConfig
    )


DATASET_SIZE = 20_000  # fixed, because some tasks draw from a table as long as the data set
LEVELS_MAX = 16  # of a curriculum; reasoning-gym has one with 36

INSTRUCTION = (
    "Solve the problem. Think step by step if it helps, then give the final answer alone "
    "between <answer> and </answer>."
)


class GymTask(msgspec.Struct, frozen=True):
    """One task, or one level of its curriculum, ready to draw from."""

    name: str
    config: dict[str, Any]
    digest: str  # 16 hex digits over task, settings and generator; equal digests mean equal questions
    messages: tuple[Message, ...]  # messages before the question

    def make_dataset(self, seed: int, size: int = DATASET_SIZE) -> ProceduralDataset:
        """The task's data set for a seed. Any other size gives other questions than peers have."""
        return reasoning_gym.create_dataset(self.name, seed=seed, size=size, **self.config)


def make_dataset_item(dataset: ProceduralDataset, index: int) -> dict[str, Any]:
    """An item of a data set, the same on every node. `list_functions` also uses Python's global random numbers, so
    these are seeded for each item. Raises whatever the task raises."""
    state = random.getstate()
    random.seed(hash_number("item", dataset.seed, index))
    try:
        return dict(dataset[index])
    finally:
        random.setstate(state)


def make_task_levels(config: TaskConfig) -> tuple[GymTask, ...]:
    """The levels of one entry of `swarm.tasks`, easiest first; a single one without a curriculum.

    The entry's own settings apply to every level. Levels with equal settings are merged.

    Raises:
        SwarmError: the task is unknown (names the nearest), has no such setting (names those it has), rejects the
        settings, or has no curriculum.
    """
    check_task_settings(config)
    if not config.curriculum:
        task = make_task(config.name, config.config)
        try:
            make_dataset_item(task.make_dataset(0), 0)
        except Exception as error:
            raise SwarmError(
                f"the task {config.name} does not take its settings: {error}",
                f"Correct or leave out {', '.join(config.config) or 'it'} in its entry of swarm.tasks",
            ) from error
        return (task,)
    if config.name not in CURRICULA:
        raise SwarmError(f"the task {config.name} has no curriculum", "Leave `curriculum` out of its entry")
    tasks = [make_task(config.name, settings | config.config) for settings in list_level_settings(config.name)]
    levels = {task.digest: task for task in tasks if _has_valid_settings(task)}
    if not levels:
        raise SwarmError(f"no level of the task {config.name} takes its settings", "Leave some of its settings out")
    return tuple(levels.values())


def check_task_settings(config: TaskConfig) -> None:
    """Raise SwarmError unless the task exists and accepts these settings."""
    if config.name not in DATASETS:
        near = difflib.get_close_matches(config.name, DATASETS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "See https://github.com/open-thought/reasoning-gym for the names"
        raise SwarmError(f"there is no task {config.name!r} in reasoning-gym", hint)
    fields = {field.name for field in dataclasses.fields(DATASETS[config.name][1])} - {"seed", "size"}
    for key in config.config:
        if key not in fields:
            raise SwarmError(
                f"the task {config.name} has no setting {key!r}", f"It has: {', '.join(sorted(fields)) or 'none'}"
            )


def list_level_settings(name: str) -> list[dict[str, Any]]:
    """The settings of each curriculum level, easiest first; a level includes those below it."""
    curriculum = create_curriculum(name)
    attributes = curriculum.attributes.values()
    settings = []
    for level in range(min(max((len(attribute.levels) for attribute in attributes), default=0), LEVELS_MAX)):
        curriculum.set_global_level(level)
        made = curriculum.generate_configuration()
        settings.append(
            {field: getattr(made, field) for attribute in attributes for field in _setting_names(attribute)}
        )
    return settings


def _setting_names(attribute: Any) -> tuple[str, ...]:
    """The settings that a curriculum attribute controls: one, or both ends of a range."""
    if hasattr(attribute, "field_name"):
        return (attribute.field_name,)
    return (attribute.lower_field_name, attribute.upper_field_name)


def _has_valid_settings(task: GymTask) -> bool:
    """Whether the data set accepts the settings; tasks reject some of reasoning-gym's own levels."""
    try:
        task.make_dataset(0)
    except Exception:
        return False
    return True


def make_task(name: str, config: dict[str, Any]) -> GymTask:
    """A task with settings that have been checked."""
    own = SOURCES.get(name)
    source = own or f"reasoning-gym/{importlib.metadata.version('reasoning-gym')}"
    before = () if own else (Message("system", INSTRUCTION, trusted=True),)
    settings = json.dumps(config, sort_keys=True, default=str)
    return GymTask(name, config, f"{hash_number(source, name, settings, bits=64):016x}", before)


KEPT = 64  # data sets kept
SEEDED = ("seed", "config")  # attributes that hold the seed


class DatasetCache:
    """Makes data sets and caches the last ones. If only the seed differs it copies one, which is faster."""

    def __init__(self) -> None:
        self._kept: LRUCache[tuple[str, int], ProceduralDataset] = LRUCache(KEPT)
        self._patterns: dict[str, ProceduralDataset | None] = {}  # by task digest; None: cannot be copied

    def get(self, task: GymTask, seed: int) -> ProceduralDataset:
        """The data set of a task under a seed. Raises whatever reasoning-gym raises for settings that it refuses."""
        key = (task.digest, seed)
        if key not in self._kept:
            self._kept[key] = self._make_dataset(task, seed)
        return self._kept[key]

    def _make_dataset(self, task: GymTask, seed: int) -> ProceduralDataset:
        if task.digest not in self._patterns:
            self._patterns[task.digest] = make_copyable_dataset(task)
        pattern = self._patterns[task.digest]
        return task.make_dataset(seed) if pattern is None else copy_with_seed(pattern, seed)


def make_copyable_dataset(task: GymTask) -> ProceduralDataset | None:
    """A data set to copy from; None if the seed affects more than the attributes in `SEEDED`."""
    one, other = task.make_dataset(0), task.make_dataset(1)
    try:
        return one if _seed_independent_attributes(one) == _seed_independent_attributes(other) else None
    except Exception:  # attributes that cannot be compared, such as arrays
        return None


def _seed_independent_attributes(dataset: ProceduralDataset) -> dict[str, Any]:
    return {name: value for name, value in vars(dataset).items() if name not in SEEDED}


def copy_with_seed(dataset: ProceduralDataset, seed: int) -> ProceduralDataset:
    """A shallow copy of the data set under another seed."""
    made = copy.copy(dataset)
    made.seed = seed
    made.config = copy.copy(dataset.config)
    made.config.seed = seed
    return made


# --- guards for scorers ---

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
COMPARED = frozenset({"codeio"})  # compared as trees, in time quadratic in size: 7 s for 1 KB of brackets
UNSAFE_TASKS = EVALUATED | PARSED | COMPARED
RAISED = frozenset({"coin_flip"})  # `Fraction` expands exponents to all their digits
REPEATED = frozenset({"rubiks_cube", "rush_hour"})  # a move is repeated as often as the number after it says
TAKES_NAN = frozenset({"complex_arithmetic", "number_sorting"})  # comparisons with NaN are always false
PROBABILITY_TOLERANCE = 1e-4  # as in coin_flip's scorer
MOVES_MAX = 512  # in one answer; correct ones have some 200

# Without calls, products, shifts and loops, an expression has no side effects, and its value stays about as small as
# its text.
_CALLS_OR_GROWS = re.compile(r"\(|\*|<<|\bfor\b|\blambda\b|:=")

_LARGE_EXPONENT = re.compile(r"[eE][-+]?\d{4}")
_BEYOND_FLOATS = re.compile(r"[eE][-+]?\d{3}")  # sympy hangs on the sine of 1e400
_SKIPPED = str.maketrans("", "", ",_")  # ignored between digits by the scorer or by `Fraction`
_FORMULA = re.compile(r"[A-Za-z0-9+\-*/^(). \n]*")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "pi"}
)
_POWER = re.compile(r"\*\*|\^")
_SMALL_POWER = re.compile(
    r"(?:[A-Za-z0-9]|\([^()^*]*(?:\*(?!\*)[^()^*]*)*\))\s*(?:\*\*|\^)\s*"  # a base without powers in it
    r"(?:\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?![\d.(eE])(?!\s*(?:\*\*|\^))"  # raised to a small power, not nested
)


def is_safe_to_score(task: str, answer: str) -> bool:
    if task in EVALUATED:
        return not _CALLS_OR_GROWS.search(answer)
    if task in RAISED:
        return not _LARGE_EXPONENT.search(answer.translate(_SKIPPED))
    if task in TAKES_NAN:
        return "nan" not in "".join(answer.split()).lower()
    if task in REPEATED:
        return _has_few_moves(answer)
    return task not in PARSED or _is_plain_formula(answer)


def is_wrong_but_paid(task: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether an answer that is safe to score is wrong although the scorer of `task` may pay for it in full. `entry`:
    the question and its truth, as reasoning-gym gives them."""
    is_right = _RIGHT.get(task)
    return is_right is not None and not is_right(answer.strip(), entry)


def _is_probability_near(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer compares leading digits over the length of the shorter number, and every probability starts with
    "0"."""
    try:
        found, right = (Fraction(text.replace(",", "")) for text in (answer, entry["answer"]))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(found - right) <= PROBABILITY_TOLERANCE


def _is_right_truth_value(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer only checks that both are texts."""
    return answer.lower() == str(entry["answer"]).lower()


def _is_valid_24_formula(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer accepts any four numbers, and any value that rounds down to 24."""
    from sympy import parse_expr

    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(entry["metadata"]["numbers"]):
        return False
    try:
        return bool(parse_expr(answer) == 24)
    except Exception:  # Python's parser raises many kinds of error
        return False


_RIGHT: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _is_probability_near,
    "game_of_life_halting": _is_right_truth_value,
    "puzzle24": _is_valid_24_formula,
}


def _has_few_moves(answer: str) -> bool:
    """Whether repeat counts have at most one digit, and there are at most `MOVES_MAX` moves."""
    if re.search(r"\d\d", answer):
        return False
    return len(answer.split()) + sum(map(int, re.findall(r"\d", answer))) <= MOVES_MAX


def _is_plain_formula(answer: str) -> bool:
    """Whether it has only numbers, one-letter names, known functions and small, not nested powers."""
    if _BEYOND_FLOATS.search(answer):
        return False
    if not _FORMULA.fullmatch(answer) or re.search(r"\.\D|\D\.|\d{13}", f" {answer} ".replace(". ", " ")):
        return False
    if any(len(name) > 1 and name not in _FUNCTIONS for name in re.findall(r"[A-Za-z]+", answer)):
        return False
    return len(_POWER.findall(answer)) == len(_SMALL_POWER.findall(answer))
