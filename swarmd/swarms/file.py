"""A swarm from a file: questions and answers as JSONL, a system prompt and named rewards, and no Python.

docs/swarms/file.md describes the options. A question is known by the digest of the file and its row, so that only nodes
with the same questions understand each other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import msgspec

from swarmd.config import Section, SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms.jsonl import load_rows
from swarmd.swarms.options import decode_options
from swarmd.swarms.plan import Material, Message, Place, Plan, Question, Score, hash_number, split_of
from swarmd.swarms.rewards import COMPARING, Answered, AnswerPlace, Reward, RewardOption, find_answer, make_reward
from swarmd.swarms.rollouts import NAME_CHARACTERS_MAX, Reference
from swarmd.swarms.text import is_well_formed

TASK = "questions"  # of rows that name none
TASKS_MAX = 64
REWARDS_MAX = 16
PROMPT_CHARACTERS_MAX = 32768
SPLIT = "file"  # one question is on one side, whatever task it stands under

INSTRUCTIONS = {
    "tags": "Think step by step if it helps, then give the final answer alone between <answer> and </answer>.",
    "last-number": "Think step by step if it helps, and end with the answer, a number.",
    "last-line": "Think step by step if it helps, then give the final answer alone on the last line.",
    "boxed": "Think step by step if it helps, then give the final answer alone in \\boxed{}.",
    "whole": "Give the answer alone.",
}


class FileOptions(Section, frozen=True):
    """`swarm.options` of the kind."""

    data: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]  # JSONL file, relative to the data directory
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$")] = ""  # of its rows; empty: any
    system: Annotated[str, msgspec.Meta(max_length=PROMPT_CHARACTERS_MAX)] | None = None  # empty: none is sent
    answer: AnswerPlace = "tags"  # where a completion has its answer
    rewards: Annotated[tuple[RewardOption, ...], msgspec.Meta(max_length=REWARDS_MAX)] = ()


class Row(NamedTuple):
    """One question of the file."""

    task: str
    prompt: str
    answer: str
    trained: bool  # on the training side of the split


class FilePlan(Plan):
    """One's own questions and answers from a JSONL file, with named rewards.

    Args:
        swarm: with `FileOptions` as its options.
        training: gives the weight of the form where no rewards are named.
        home: the node's data directory, which the file lies in.

    Raises:
        SwarmError: the options are wrong, or the file is not there, not sound, or not the swarm's.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        if swarm.tasks:
            raise SwarmError(
                'swarm.tasks means nothing to the kind "file"', "Name the task of a question in the file: column `task`"
            )
        options = decode_options(swarm.options, FileOptions)
        rows, digest = load_rows(home or Path(), options.data, options.digest, ("prompt", "answer"))
        self._swarm = swarm.id
        self._digest = digest[:16]
        self._rows = tuple(_read(row, f"{options.data}, row {number}") for number, row in enumerate(rows, 1))
        self._places = _distinct(self._rows)
        self._training = [place for place in self._places if self._rows[place].trained]
        if not self._training:
            raise SwarmError(f"no question of {options.data} is on the training side of the split", "Add more rows")
        self._tasks = tuple(sorted({self._rows[place].task for place in self._places}))
        if len(self._tasks) > TASKS_MAX:
            raise SwarmError(f"{options.data} has {len(self._tasks)} tasks, the limit is {TASKS_MAX}", "Join some")
        system = INSTRUCTIONS[options.answer] if options.system is None else options.system
        self._before = (Message("system", system, trusted=True),) if system else ()
        self._place: AnswerPlace = options.answer
        self._rewards = _named(options, (training or TrainingConfig()).format_reward)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._tasks

    def draw(self, place: Place, material: Material) -> Iterator[Question]:
        """See `Plan.draw`: every question of the training side once, in an order of this node's stage, then again."""
        seed = self._seed(place)
        for repetition in itertools.count():
            order = list(self._training)
            Random(hash_number("order", seed, repetition)).shuffle(order)
            yield from (self._pose(index, seed) for index in order)

    def hold_out(self, task: str, count: int) -> list[Question]:
        """See `Plan.hold_out`. On the third side of the split, for development, lies every tenth question."""
        held_out = [index for index in self._places if self._is_held_out(index, task)]
        held_out.sort(key=lambda index: hash_number("held-out", self._rows[index].prompt))
        return [self._pose(index, 0) for index in held_out[:count]]

    def _is_held_out(self, index: int, task: str) -> bool:
        row = self._rows[index]
        return row.task == task and not row.trained and split_of(SPLIT, _canonical(row.prompt)) == "held-out"

    def regenerate(self, reference: Reference, place: Place, material: Material) -> Question:
        """See `Plan.regenerate`.

        Raises:
            RecordRejected: `config-digest` (of another file), `source` (these questions are made of nothing), `seed`
                (of another place), `index` (no such row), `unknown-task` (not the row's), or `held-out`.
        """
        peer = place.peer
        if reference.config_digest != self._digest:
            raise RecordRejected("config-digest", f"{peer} has another file of questions")
        if reference != reference.base:
            raise RecordRejected("source", f"{peer} sent a question that is made of other texts")
        if reference.seed != self._seed(place):
            raise RecordRejected("seed", f"{peer} sent a question under a seed that is not of its stage")
        if reference.index >= len(self._rows):
            raise RecordRejected("index", f"{peer} sent row {reference.index} of {len(self._rows)}")
        row = self._rows[reference.index]
        if row.task != reference.task:
            raise RecordRejected("unknown-task", f"{peer} sent row {reference.index} as the task {reference.task!r}")
        if not row.trained:
            raise RecordRejected("held-out", f"{peer} sent row {reference.index}, which is held out")
        return self._pose(reference.index, reference.seed)

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """The named rewards, added up by weight. Accuracy is the first of those that compare with the answer."""
        return [self._score(str(question.entry["answer"]), completion) for completion in completions]

    def _score(self, expected: str, completion: str) -> Score:
        answered = Answered(completion, find_answer(completion, self._place), expected)
        values = [(option, reward(answered)) for option, reward in self._rewards]
        total = sum(option.weight * value for option, value in values)
        parts: dict[str, float] = defaultdict(float)
        for option, value in values:
            parts[option.name] += option.weight * value
        compared = [value for option, value in values if option.name in COMPARING]
        tagged = self._place == "tags"
        form = is_well_formed(completion) if tagged else answered.answer is not None
        return Score(total, compared[0] if compared else values[0][1], float(form), dict(parts))

    def _seed(self, place: Place) -> int:
        return hash_number("questions", self._swarm, place.peer, place.round, place.stage, self._digest)

    def _pose(self, index: int, seed: int) -> Question:
        row = self._rows[index]
        reference = Reference(row.task, self._digest, seed, index)
        return Question(reference, (*self._before, Message("user", row.prompt)), {"answer": row.answer})


def _named(options: FileOptions, format_reward: float) -> list[tuple[RewardOption, Reward]]:
    """The rewards that are named; without any, the exact answer, and the form where answers stand in tags."""
    named = options.rewards
    if not named:
        named = (RewardOption("exact"),)
        if options.answer == "tags" and format_reward:
            named = (*named, RewardOption("format-tags", format_reward))
    return [(option, make_reward(option)) for option in named]


def _read(row: dict[str, object], where: str) -> Row:
    prompt, answer, task = str(row["prompt"]), str(row["answer"]).strip(), row.get("task", TASK)
    if not isinstance(task, str) or not task.isprintable() or not 0 < len(task) <= NAME_CHARACTERS_MAX:
        raise SwarmError(f"{where}: 'task' is no name", f"Write a text of up to {NAME_CHARACTERS_MAX} characters")
    if len(prompt) > PROMPT_CHARACTERS_MAX:
        raise SwarmError(f"{where}: a prompt of {len(prompt)} characters", f"The limit is {PROMPT_CHARACTERS_MAX}")
    return Row(task, prompt, answer, split_of(SPLIT, _canonical(prompt)) == "train")


def _canonical(prompt: str) -> str:
    return " ".join(prompt.split())


def _distinct(rows: Sequence[Row]) -> tuple[int, ...]:
    """Places of the rows whose prompt does not stand in an earlier one."""
    first: dict[str, int] = {}
    for place, row in enumerate(rows):
        first.setdefault(_canonical(row.prompt), place)
    return tuple(first.values())
