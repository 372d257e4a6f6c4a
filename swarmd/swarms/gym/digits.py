"""Tasks on digits, registered with reasoning-gym so that they are drawn, scored and shared like its own.

They are small enough for a model of half a million parameters and large enough (10,000 questions and more each) to
hold questions out: what is measured on the held-out part was never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.factory import DATASETS, ProceduralDataset, register_dataset

NUMBER = "{number}"  # where the number stands in a wording
WORDING_CHARACTERS_MAX = 200
SOURCE = "digits/1"  # part of the config digest: a change of the generators is another task to peers


@dataclass
class DigitsConfig:
    """Settings of a digit task."""

    digits: int = 4  # of the number
    wording: str = ""  # of the question, with {number} in it; empty: the task's own
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert 1 <= self.digits <= 12, "digits must be between 1 and 12"
        assert not self.wording or self.wording.count(NUMBER) == 1, f"wording must have {NUMBER} in it, once"
        assert len(self.wording) <= WORDING_CHARACTERS_MAX, f"wording must have at most {WORDING_CHARACTERS_MAX}"


@dataclass
class LargestConfig:
    """Settings of `digits_largest`."""

    numbers: int = 3
    digits: int = 2  # of each number
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert 2 <= self.numbers <= 12, "numbers must be between 2 and 12"
        assert 1 <= self.digits <= 12, "digits must be between 1 and 12"


class DigitsCurriculum(BaseCurriculum):  # type: ignore[misc]
    """From two digits up to six."""

    def __init__(self) -> None:
        super().__init__(type(self).__name__, DigitsConfig)
        self._define_attributes(ScalarAttributeDefinition(name="digits", field_name="digits", levels=[2, 3, 4, 5, 6]))


class LargestCurriculum(BaseCurriculum):  # type: ignore[misc]
    """From two numbers of two digits up to five."""

    def __init__(self) -> None:
        super().__init__(type(self).__name__, LargestConfig)
        self._define_attributes(ScalarAttributeDefinition(name="numbers", field_name="numbers", levels=[2, 3, 4, 5]))


class DigitsDataset(ProceduralDataset):  # type: ignore[misc]
    """Base of all: an item is a pure function of (seed + index), and only the exact answer scores."""

    name = ""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        question, answer, canonical = self.pose(Random(self.seed + idx))
        metadata = {"source_dataset": self.name, "source_index": idx, "canonical": canonical}
        return {"question": question, "answer": answer, "metadata": metadata}

    def pose(self, random: Random) -> tuple[str, str, str]:
        """Question, answer and canonical form; questions of one canonical form lie on the same side of the split."""
        number = "".join(str(random.randrange(10)) for _ in range(self.config.digits))
        wording = self.config.wording or f"{self.instruction}: {NUMBER}"
        return wording.replace(NUMBER, number), self.transform(number), number

    instruction = ""

    def transform(self, number: str) -> str:
        """The answer for a string of digits."""
        return number

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """1 for the exact answer, else 0: no credit for answers that merely contain it."""
        return float(answer == entry["answer"])


class ReverseDataset(DigitsDataset):
    name = "digits_reverse"
    instruction = "Reverse the digits"

    def transform(self, number: str) -> str:
        return number[::-1]


class SortDataset(DigitsDataset):
    name = "digits_sort"
    instruction = "Sort the digits"

    def transform(self, number: str) -> str:
        return "".join(sorted(number))


class IncrementDataset(DigitsDataset):
    name = "digits_increment"
    instruction = "Add 1 to every digit (9 becomes 0)"

    def transform(self, number: str) -> str:
        return "".join(str((int(digit) + 1) % 10) for digit in number)


class RotateDataset(DigitsDataset):
    name = "digits_rotate"
    instruction = "Rotate left"

    def transform(self, number: str) -> str:
        return number[1:] + number[:1]


class LargestDataset(DigitsDataset):
    name = "digits_largest"

    def pose(self, random: Random) -> tuple[str, str, str]:
        low, high = 10 ** (self.config.digits - 1), 10**self.config.digits
        numbers = [random.randrange(low, high) for _ in range(self.config.numbers)]
        listed = ", ".join(map(str, numbers))
        return f"Largest number: {listed}", str(max(numbers)), ",".join(map(str, sorted(numbers)))


TASKS = (ReverseDataset, SortDataset, IncrementDataset, LargestDataset)
TASK_NAMES = tuple(task.name for task in TASKS)  # the mixture of the digits swarm, which the embedded model knows
KNOWN = (*TASKS, RotateDataset)
KNOWN_NAMES = tuple(task.name for task in KNOWN)


def register_digits() -> None:
    """Make them known to reasoning-gym; doing it again changes nothing."""
    for task in KNOWN:
        if task.name not in DATASETS:
            largest = task is LargestDataset
            settings, curriculum = (LargestConfig, LargestCurriculum) if largest else (DigitsConfig, DigitsCurriculum)
            register_dataset(task.name, task, settings, curriculum)
