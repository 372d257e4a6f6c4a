"""Data sets of reasoning-gym by task and seed, of which most are made in no time.

Each peer asks under seeds of its own, so a stage needs a data set of each task for each peer. Making one may read a
file of words or find all puzzles, a tenth of a second and more; its seed mostly decides nothing of that, only which
questions are made of it. Where two data sets of a task are alike but for the seed, all others are copies of one.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from reasoning_gym.factory import ProceduralDataset

from swarmd.swarms.gym.gym_tasks import GymTask

KEPT = 64
FEW = 8  # questions of data sets that are only compared: some make all of theirs at once, which takes seconds
SEEDED = ("seed", "config")  # attributes that have the seed


class Datasets:
    """Makes data sets, and keeps those that were asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], ProceduralDataset] = OrderedDict()
        self._patterns: dict[str, ProceduralDataset | None] = {}  # by digest of the task; None: each is made anew

    def take(self, task: GymTask, seed: int) -> ProceduralDataset:
        """The data set of a task under a seed. Raises whatever reasoning-gym raises for settings that it refuses."""
        key = (task.digest, seed)
        if key not in self._kept:
            self._kept[key] = self._make(task, seed)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _make(self, task: GymTask, seed: int) -> ProceduralDataset:
        if task.digest not in self._patterns:
            self._patterns[task.digest] = make_pattern(task)
        pattern = self._patterns[task.digest]
        return task.make(seed) if pattern is None else reseed(pattern, seed)


def make_pattern(task: GymTask) -> ProceduralDataset | None:
    """A data set to make copies of, which nobody asks for questions; None where the seed decides more than these."""
    if not _are_few_alike(task):
        return None
    one, other = task.make(0), task.make(1)
    return one if is_alike(one, other) else None


def _are_few_alike(task: GymTask) -> bool:
    """Whether small data sets are alike; those that cannot be made are no reason against the large ones."""
    try:
        return is_alike(task.make(0, FEW), task.make(1, FEW))
    except Exception:  # whatever reasoning-gym raises
        return True


def is_alike(one: ProceduralDataset, other: ProceduralDataset) -> bool:
    """Whether two data sets of one task differ by their seeds alone; what cannot be compared differs."""
    try:
        return bool(_read_unseeded(one) == _read_unseeded(other))
    except Exception:  # of whatever a data set may have, such as arrays
        return False


def _read_unseeded(dataset: ProceduralDataset) -> dict[str, Any]:
    return {name: value for name, value in vars(dataset).items() if name not in SEEDED}


def reseed(dataset: ProceduralDataset, seed: int) -> ProceduralDataset:
    """The same data set under another seed; it shares everything else."""
    made = copy.copy(dataset)
    made.seed = seed
    made.config = copy.copy(dataset.config)
    made.config.seed = seed
    return made
