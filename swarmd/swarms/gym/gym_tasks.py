"""Tasks of reasoning-gym as a mixture names them: settings checked, levels of a curriculum, digests for peers."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib.metadata
import json
import random
from collections import OrderedDict
from typing import Any

import msgspec
import reasoning_gym
from reasoning_gym.factory import CURRICULA, DATASETS, ProceduralDataset, create_curriculum

from swarmd.plugin import Message, SwarmError, TaskConfig, hash_number
from swarmd.swarms.gym.digits import KNOWN_NAMES, SOURCE
from swarmd.swarms.gym.made import MADE_NAMES
from swarmd.swarms.gym.made import SOURCE as MADE_SOURCE

DATASET_SIZE = 20_000  # fixed: some tasks draw from a table as long as the data set
LEVELS_MAX = 16  # of a curriculum; one of reasoning-gym's has 36

INSTRUCTION = (
    "Solve the problem. Think step by step if it helps, then give the final answer alone "
    "between <answer> and </answer>."
)


class GymTask(msgspec.Struct, frozen=True):
    """One task, or one level of it, ready to be drawn from."""

    name: str
    config: dict[str, Any]
    digest: str
    messages: tuple[Message, ...]  # what precedes the question

    def make(self, seed: int, size: int = DATASET_SIZE) -> ProceduralDataset:
        """The data set of this task under a seed; of any other size it asks other questions than peers'."""
        return reasoning_gym.create_dataset(self.name, seed=seed, size=size, **self.config)


def make_item(dataset: ProceduralDataset, index: int) -> dict[str, Any]:
    """An item of a data set, the same on every node: `list_functions` also draws from Python's own random numbers.

    Raises whatever the task raises.
    """
    state = random.getstate()
    random.seed(hash_number("item", dataset.seed, index))
    try:
        return dict(dataset[index])
    finally:
        random.setstate(state)


def make_levels(config: TaskConfig) -> tuple[GymTask, ...]:
    """The levels of one entry of `swarm.tasks`, the easiest first; a single one without a curriculum.

    What the entry sets itself is the same on every level, and levels that do not differ are one.

    Raises:
        SwarmError: the task is unknown (names the nearest), has no such setting (names those it has), does not take
            the settings, or has no curriculum.
    """
    check_settings(config)
    if not config.curriculum:
        task = make_task(config.name, config.config)
        try:
            make_item(task.make(0), 0)
        except Exception as error:
            raise SwarmError(f"the task {config.name} does not take its settings: {error}") from error
        return (task,)
    if config.name not in CURRICULA:
        raise SwarmError(f"the task {config.name} has no curriculum", "Leave `curriculum` out of its entry")
    tasks = [make_task(config.name, settings | config.config) for settings in level_settings(config.name)]
    levels = {task.digest: task for task in tasks if _can_be_made(task)}
    if not levels:
        raise SwarmError(f"no level of the task {config.name} takes its settings", "Leave some of its settings out")
    return tuple(levels.values())


def check_settings(config: TaskConfig) -> None:
    """Raise SwarmError unless there is such a task with such settings."""
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


def level_settings(name: str) -> list[dict[str, Any]]:
    """What each level of reasoning-gym's curriculum sets, the easiest first; a level includes those below it."""
    curriculum = create_curriculum(name)
    attributes = curriculum.attributes.values()
    settings = []
    for level in range(min(max((len(attribute.levels) for attribute in attributes), default=0), LEVELS_MAX)):
        curriculum.set_global_level(level)
        made = curriculum.generate_configuration()
        settings.append({field: getattr(made, field) for attribute in attributes for field in _fields(attribute)})
    return settings


def _fields(attribute: Any) -> tuple[str, ...]:
    """The settings that an attribute of a curriculum decides: one, or both ends of a range."""
    if hasattr(attribute, "field_name"):
        return (attribute.field_name,)
    return (attribute.lower_field_name, attribute.upper_field_name)


def _can_be_made(task: GymTask) -> bool:
    """Whether the data set takes the settings: some of reasoning-gym's own levels are refused by their tasks."""
    try:
        task.make(0)
    except Exception:
        return False
    return True


def make_task(name: str, config: dict[str, Any]) -> GymTask:
    """A task with settings that are known to be its own."""
    own = SOURCE if name in KNOWN_NAMES else MADE_SOURCE if name in MADE_NAMES else ""
    source = own or f"reasoning-gym/{importlib.metadata.version('reasoning-gym')}"
    before = () if own else (Message("system", INSTRUCTION, trusted=True),)
    return GymTask(name, config, digest_config(source, name, config), before)


def digest_config(source: str, name: str, config: dict[str, Any]) -> str:
    """16 hex digits over the task, its settings and the generator's version: equal digests draw equal questions."""
    settings = json.dumps(config, sort_keys=True, default=str)
    return f"{hash_number(source, name, settings, bits=64):016x}"


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
