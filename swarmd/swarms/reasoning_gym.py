"""The reasoning-gym swarm: any mixture of its tasks, and the digit tasks, in one stage.

Seeds are hashed from (swarm, peer, round, stage, task, chunk). An item of reasoning-gym is a function of seed + index,
so seeds that count up would give every chunk, round and node the questions of its neighbour, shifted by one.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import reasoning_gym
from reasoning_gym.factory import DATASETS, ProceduralDataset

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms.answers import UNSAFE_TASKS, is_harmless
from swarmd.swarms.digits import SOURCE, TASK_NAMES, register_digits
from swarmd.swarms.plan import Material, Message, Place, Plan, Question, Score, Split, hash_number, split_of
from swarmd.swarms.rollouts import Reference
from swarmd.swarms.text import extract_answer, is_well_formed

KIND = "reasoning-gym"
DATASET_SIZE = 20_000  # fixed: some tasks draw from a table as long as the data set
CHUNKS_MAX = 8  # seeds of one task in one stage
TRIES_MAX = 400  # questions looked at to find one on the wanted side of the split
FRESH_TRIES_MAX = 20  # of these, to find one not drawn before in the stage
SELECT_TRIES = 80  # questions looked at for each one held out
DATASETS_KEPT = 64

INSTRUCTION = (
    "Solve the problem. Think step by step if it helps, then give the final answer alone "
    "between <answer> and </answer>."
)


class Task(msgspec.Struct, frozen=True):
    """One task of the mixture, ready to be drawn from."""

    name: str
    weight: float
    config: dict[str, Any]
    digest: str
    messages: tuple[Message, ...]  # what precedes the question

    def make(self, seed: int) -> ProceduralDataset:
        """The data set of this task under a seed."""
        return reasoning_gym.create_dataset(self.name, seed=seed, size=DATASET_SIZE, **self.config)


class ReasoningGymPlan(Plan):
    """Any mixture of tasks, in one stage.

    Args:
        swarm: with the mixture in `tasks`.
        training: gives the weight of the form in the reward.
        home: the node's data directory, which this plan does not need.

    Raises:
        SwarmError: an unknown task, or wrong settings of one.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        register_digits()
        self._swarm = swarm.id
        self._format_reward = (training or TrainingConfig()).format_reward
        configs = swarm.tasks or tuple(TaskConfig(name) for name in TASK_NAMES)
        self._tasks = {config.name: make_task(config) for config in configs}
        if len(self._tasks) < len(configs):
            raise SwarmError("swarm.tasks names a task twice", "Join the two entries and add up their weights")
        self._datasets: OrderedDict[tuple[str, int], ProceduralDataset] = OrderedDict()

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def draw(self, place: Place, material: Material) -> Iterator[Question]:
        """See `Plan.draw`. Raises SwarmError when a task has no question on the training side."""
        random = Random(hash_number("mixture", self._swarm, place.peer, place.round, place.stage))
        weights = [task.weight for task in self._tasks.values()]
        streams = {name: self._stream(name, place) for name in self._tasks}
        while True:
            yield next(streams[random.choices(self.tasks, weights)[0]])

    def _stream(self, name: str, place: Place) -> Iterator[Question]:
        task = self._tasks[name]
        seen: set[str] = set()
        while True:
            for chunk in range(CHUNKS_MAX):
                seed = self._seed(task, place, chunk)
                yield from self._select(task, seed, "train", seen)

    def _select(self, task: Task, seed: int, side: Split, seen: set[str]) -> Iterator[Question]:
        """Questions of one seed on one side of the split; new ones first, then again what was seen."""
        tries, repeated = 0, None
        for index in range(DATASET_SIZE):
            question, canonical = self._generate(task, seed, index)
            tries += 1
            chosen = None
            if split_of(task.name, canonical) == side:
                repeated = question
                chosen = question if canonical not in seen else None
                seen.add(canonical)
            if chosen is None and tries >= FRESH_TRIES_MAX:
                chosen = repeated
            if chosen is not None:
                tries, repeated = 0, None
                yield chosen
            elif tries >= TRIES_MAX:
                raise SwarmError(
                    f"the task {task.name} has no {side} question among {TRIES_MAX}",
                    "Give it a wider range of questions in swarm.tasks",
                )

    def hold_out(self, task: str, count: int) -> list[Question]:
        """See `Plan.hold_out`."""
        return self.select(task, "held-out", count)

    def select(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` distinct questions of one side of the split, the same on every node."""
        seed = hash_number("select", side, task, self._tasks[task].digest)
        found: dict[str, Question] = {}
        for index in range(min(DATASET_SIZE, count * SELECT_TRIES)):
            if len(found) == count:
                break
            question, canonical = self._generate(self._tasks[task], seed, index)
            if split_of(task, canonical) == side:
                found.setdefault(canonical, question)
        return list(found.values())

    def regenerate(self, reference: Reference, place: Place, material: Material) -> Question:
        """See `Plan.regenerate`.

        Raises:
            RecordRejected: `unknown-task`, `unsafe-scorer`, `config-digest`, `seed` or `index` (not one this peer could
                have drawn), `source` (these questions are made of nothing), `held-out`, or `generator` (the task could
                not make the question).
        """
        peer = place.peer
        task = self._tasks.get(reference.task)
        if task is None:
            raise RecordRejected("unknown-task", f"{peer} sent the task {reference.task!r}, which is not trained here")
        if task.name in UNSAFE_TASKS:
            raise RecordRejected("unsafe-scorer", f"the scorer of {task.name} runs answers as code: peers' are refused")
        if reference.config_digest != task.digest:
            raise RecordRejected("config-digest", f"{peer} has other settings or another version of {task.name}")
        if reference != reference.base:
            raise RecordRejected("source", f"{peer} sent a question of {task.name} that is made of other texts")
        if reference.index >= DATASET_SIZE:
            raise RecordRejected("index", f"{peer} sent question {reference.index} of {task.name}")
        if all(reference.seed != self._seed(task, place, chunk) for chunk in range(CHUNKS_MAX)):
            raise RecordRejected("seed", f"{peer} sent a question of {task.name} that it cannot have drawn")
        try:
            question, canonical = self._generate(task, reference.seed, reference.index)
        except Exception as error:
            raise RecordRejected("generator", f"{task.name} cannot make the question of {peer}: {error}") from error
        if split_of(task.name, canonical) != "train":
            raise RecordRejected("held-out", f"{peer} sent a question of {task.name} that is held out")
        return question

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """Accuracy by the task's own scorer, form by the answer tags; the reward is their weighted sum.

        The scorer's value is taken as it is: several tasks give partial credit, some a few hundredths for any answer.
        The digit tasks score the exact answer only. A question whose stored answer is None is scored like any other,
        because such tasks check the answer instead of comparing it.
        """
        return [self._score(question, completion) for completion in completions]

    def _score(self, question: Question, completion: str) -> Score:
        shape = float(is_well_formed(completion))
        answer = extract_answer(completion)
        if answer is None or not is_harmless(question.task, answer):
            return self._weigh(0.0, shape)
        try:
            dataset = self._dataset(self._tasks[question.task], question.reference.seed)
            value = float(dataset.score_answer(answer, dict(question.entry)))
        except Exception:
            return self._weigh(0.0, shape, failed=True)
        if not math.isfinite(value):
            return self._weigh(0.0, shape, failed=True)
        return self._weigh(min(max(value, 0.0), 1.0), shape)

    def _weigh(self, accuracy: float, shape: float, failed: bool = False) -> Score:
        return Score(accuracy + self._format_reward * shape, accuracy, shape, failed=failed)

    def _seed(self, task: Task, place: Place, chunk: int) -> int:
        where = (place.peer, place.round, place.stage)
        return hash_number("questions", self._swarm, *where, task.name, task.digest, chunk)

    def _generate(self, task: Task, seed: int, index: int) -> tuple[Question, str]:
        """A question and its canonical form, by which it falls on a side of the split."""
        entry = self._dataset(task, seed)[index]
        text = str(entry["question"])
        canonical = str(entry.get("metadata", {}).get("canonical", " ".join(text.split())))
        reference = Reference(task.name, task.digest, seed, index)
        return Question(reference, (*task.messages, Message("user", text)), entry), canonical

    def _dataset(self, task: Task, seed: int) -> ProceduralDataset:
        key = (task.name, seed)
        if key not in self._datasets:
            self._datasets[key] = task.make(seed)
            if len(self._datasets) > DATASETS_KEPT:
                self._datasets.popitem(last=False)
        self._datasets.move_to_end(key)
        return self._datasets[key]


def make_task(config: TaskConfig) -> Task:
    """Check one entry of `swarm.tasks`. Raises SwarmError naming the nearest task or the settings it has."""
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
    digits = config.name in TASK_NAMES
    source = SOURCE if digits else f"reasoning-gym/{importlib.metadata.version('reasoning-gym')}"
    before = () if digits else (Message("system", INSTRUCTION, trusted=True),)
    task = Task(config.name, config.weight, config.config, digest_config(source, config), before)
    try:
        _ = task.make(0)[0]
    except Exception as error:
        raise SwarmError(f"the task {config.name} does not take its settings: {error}") from error
    return task


def digest_config(source: str, config: TaskConfig) -> str:
    """16 hex digits over the task, its settings and the generator's version: equal digests draw equal questions."""
    settings = json.dumps(config.config, sort_keys=True, default=str)
    return f"{hash_number(source, config.name, settings, bits=64):016x}"
