"""Made questions for the kinds of mathematics: short stories and formulas from templates, known to reasoning-gym.

They come from no data set. They are there so that a node without a network has school-like questions that a tiny model
can learn; each item has its working, which the embedded model is taught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from reasoning_gym.factory import DATASETS, ProceduralDataset, register_dataset

SOURCE = "made/1"  # part of the config digest: a change of the generators is another task to peers
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")
PLACES = ("boxes", "bags", "rows", "baskets")


@dataclass
class MadeConfig:
    """Settings of a made task."""

    largest: int = 9  # of the numbers that a question begins with
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert 3 <= self.largest <= 99, "largest must be between 3 and 99"


class Template(NamedTuple):
    """Words with places for numbers, and the working: what is computed one after the other."""

    words: str
    work: Callable[[int, int, int], tuple[str, ...]]


STORIES = (
    Template(
        "{name} has {a} {things}, gets {b} more and gives {c} away. How many {things} are left?",
        lambda a, b, c: (f"{a}+{b}={a + b}", f"{a + b}-{c}={a + b - c}"),
    ),
    Template(
        "There are {a} {places} with {b} {things} each, and {c} more {things}. How many {things} are there?",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"),
    ),
    Template(
        "{name} fills {a} {places} with {b} {things} each, then takes {c} {things} out. How many {things} stay?",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"),
    ),
    Template(
        "{name} finds {a} {things} and then {b} more. {other} has {c} times as many. How many {things} has {other}?",
        lambda a, b, c: (f"{a}+{b}={a + b}", f"{a + b}*{c}={(a + b) * c}"),
    ),
)
FORMULAS = (
    Template(
        "Find x: {a} * x + {b} = {d}.",
        lambda a, b, c: (f"{a * c + b}-{b}={a * c}", f"{a * c}/{a}={c}"),
    ),
    Template(
        "Find the remainder of {a} * {b} after dividing by {c}.",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{a * b}%{c}={a * b % c}"),
    ),
    Template(
        "Find {a} * {b} + {c} * {c}.",
        lambda a, b, c: (f"{a}*{b}={a * b}", f"{c}*{c}={c * c}", f"{a * b}+{c * c}={a * b + c * c}"),
    ),
)


class MadeDataset(ProceduralDataset):  # type: ignore[misc]
    """Base of both: an item is a pure function of (seed + index). Questions of the same numbers are on one side of the
    split, whoever the story is about."""

    name = ""
    templates: tuple[Template, ...] = ()

    def __init__(self, config: Any) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

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

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """1 for the exact answer, else 0."""
        return float(answer == entry["answer"])


class StoryDataset(MadeDataset):
    name = "made_stories"
    templates = STORIES


class FormulaDataset(MadeDataset):
    name = "made_formulas"
    templates = FORMULAS


MADE = (StoryDataset, FormulaDataset)
MADE_NAMES = tuple(task.name for task in MADE)


def register_made() -> None:
    """Make them known to reasoning-gym; doing it again changes nothing."""
    for task in MADE:
        if task.name not in DATASETS:
            register_dataset(task.name, task, MadeConfig)
