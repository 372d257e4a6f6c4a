"""Question banks, and the base of the two modes (`MathMode`) for asking and scoring the later stages.

- A bank gives every node the same pool of questions for a round, and holds some out.
- Generated questions are items of reasoning-gym's tasks, with seeds hashed from (swarm, round, task). Data-set rows are
  referred to by index, with seed 0.
"""

import abc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from swarmd.config import TaskConfig
from swarmd.errors import DatasetRefused, SwarmError
from swarmd.swarms.dataset import describe_causes, load_from_hub
from swarmd.swarms.gym_tasks import GymTask, make_dataset_item, make_task_levels
from swarmd.swarms.jsonl import check_digest, read_rows
from swarmd.swarms.options import DatasetColumns, DatasetSource
from swarmd.swarms.plan import Outcome, Split, hash_number, split_of
from swarmd.swarms.rollouts import Source
from swarmd.swarms.text import MARK, collapse_whitespace, extract_final_answer

ROWS_MAX = 200_000
COMPAT_ROWS = 100  # of DAPO, the number that upstream sampled
COMPAT_SEED = 42


class DatasetSchema(msgspec.Struct, frozen=True):
    """A data set on the Hub: its name and columns."""

    repo: str
    config: str
    question: str  # column of the question
    answer: str  # column of the answer
    marked: bool = False  # the answer follows `MARK` at the end of a worked solution
    sample: bool = False  # `compat` uses only `COMPAT_ROWS` rows, as upstream did


GSM8K = DatasetSchema("openai/gsm8k", "main", "question", "answer", marked=True)
DAPO = DatasetSchema("open-r1/DAPO-Math-17k-Processed", "en", "prompt", "solution", sample=True)


def load_question_rows(
    shape: DatasetSchema, data: str, home: Path, rewards: Literal["fixed", "compat"], digest: str = ""
) -> list[tuple[str, str]]:
    """Questions and true answers.

    Args:
        data: "hub", or the path of a JSONL file or of a directory with a copy of the data set, relative to `home`.
        rewards: "compat" selects the same rows as upstream did.
        digest: required digest of a JSONL file (`swarmd.swarms.jsonl`); empty: any.

    Raises:
        SwarmError: the data cannot be loaded, have other columns, or have no row with an answer.
    """
    try:
        path = home / Path(data).expanduser()
        is_copy = path.is_dir()
    except (RuntimeError, OSError) as error:  # an unknown ~user, a name that is too long, no permission
        raise SwarmError(
            f"swarm.options.data: the path {data!r} cannot be resolved: {error}", "Write the path out"
        ) from error
    sample = shape.sample and rewards == "compat"
    if data == "hub" or is_copy:
        found: Any = _load_dataset(shape.repo if data == "hub" else str(path), shape, sample)
    else:
        found = read_rows(path, (shape.question, shape.answer))
        check_digest(path, found, digest)
    where = shape.repo if data == "hub" else str(path)
    if len(found) > ROWS_MAX:
        raise SwarmError(f"{where} has {len(found)} rows, the limit is {ROWS_MAX}", "Take a part of it")
    rows = [
        (str(row[shape.question]), answer) for row in found if (answer := read_true_answer(shape, row[shape.answer]))
    ]
    if not rows:
        hint = f"Each {shape.answer!r} ends with {MARK} and the answer" if shape.marked else "See docs/swarms"
        raise SwarmError(f"no row of {where} has an answer", hint)
    return rows


def read_true_answer(shape: DatasetSchema, cell: object) -> str:
    """The true answer in a row; empty if there is none."""
    if not isinstance(cell, str):
        return ""
    parts = cell.split(MARK)
    if shape.marked:
        return parts[1].strip() if len(parts) > 1 else ""
    return extract_final_answer(cell)


def _load_dataset(name: str, shape: DatasetSchema, sample: bool) -> Any:
    """Load the training split; from the cache if the Hub is unreachable."""
    try:
        if name == shape.repo:
            found = load_from_hub(
                DatasetSource(name, shape.config, columns=DatasetColumns(shape.question, shape.answer))
            )
        else:
            import datasets

            found = datasets.load_dataset(name, shape.config, split="train")
    except DatasetRefused:
        raise
    except Exception as error:  # the back-ends of datasets raise many kinds of error
        raise SwarmError(
            f"the data set {name} ({shape.config}) cannot be loaded: {describe_causes(error)}",
            'Load it once with a network, name a copy of it or a JSONL file in swarm.options.data, or take "generated"',
        ) from error
    missing = {shape.question, shape.answer} - set(found.column_names)
    if missing:
        raise SwarmError(
            f"the data set {name} has no column {min(missing)!r}",
            f"It needs {shape.question!r} and {shape.answer!r}, and has: {', '.join(found.column_names)}",
        )
    if sample:
        found = found.shuffle(seed=COMPAT_SEED).select(range(min(COMPAT_ROWS, len(found))))
    return found.select_columns([shape.question, shape.answer])


GENERATED_MAX = 4096  # items generated from one seed
SELECT_TRIES = 80  # items tried for each question to select
ROUNDS_KEPT = 8  # rounds whose pools are cached


class QuestionItem(msgspec.Struct, frozen=True):
    task: str
    digest: str
    seed: int
    index: int
    text: str
    answer: str

    @property
    def canonical_text(self) -> str:
        return collapse_whitespace(self.text)


class QuestionBank(abc.ABC):
    """The questions of a swarm. Equal banks give equal pools on all nodes."""

    def __init__(self, swarm: str, size: int, characters_max: int) -> None:
        self._swarm = swarm
        self._size = size  # questions in a round's pool
        self._characters_max = characters_max  # longer questions are skipped
        self.pool = lru_cache(ROUNDS_KEPT)(self._make_round_pool)

    @property
    @abc.abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""

    @abc.abstractmethod
    def task_digest(self, task: str) -> str:
        """Identifies a task's questions: equal digests mean equal questions."""

    @abc.abstractmethod
    def select_items(self, task: str, side: Split, count: int) -> list[QuestionItem]:
        """Up to `count` distinct questions of one side of the split, the same on every node."""

    @abc.abstractmethod
    def _make_round_pool(self, round: int) -> tuple[QuestionItem, ...]:
        """The distinct training questions of a round, in drawing order."""


class GeneratedBank(QuestionBank):
    """Questions generated by reasoning-gym's tasks. Raises SwarmError for a task that is unknown, rejects its settings,
    or has questions with several right answers."""

    def __init__(self, swarm: str, size: int, characters_max: int, tasks: Sequence[TaskConfig]) -> None:
        super().__init__(swarm, size, characters_max)
        self._tasks = {config.name: _make_task(config) for config in tasks}
        if len(self._tasks) < len(tasks):
            raise SwarmError("swarm.tasks names a task twice", "Join the two entries and add up their weights")
        self._weights = [config.weight for config in tasks]

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def task_digest(self, task: str) -> str:
        return self._tasks[task].digest

    def _make_round_pool(self, round: int) -> tuple[QuestionItem, ...]:
        random = Random(hash_number("math-mixture", self._swarm, round))
        streams = {
            name: self._generate_items(
                name, hash_number("math-questions", self._swarm, round, name, task.digest), "train"
            )
            for name, task in self._tasks.items()
        }
        chosen = random.choices(self.tasks, self._weights, k=self._size)
        pool = tuple(item for name in chosen if (item := next(streams[name], None)) is not None)
        if not pool:
            raise SwarmError(
                f"{', '.join(self.tasks)}: no question to train on has {self._characters_max} characters or fewer",
                "Raise swarm.options.question_characters, or give the tasks a wider range in swarm.tasks",
            )
        return pool

    def select_items(self, task: str, side: Split, count: int) -> list[QuestionItem]:
        seed = hash_number("math-select", side, task, self.task_digest(task))
        stream = self._generate_items(task, seed, side, min(count * SELECT_TRIES, GENERATED_MAX))
        return [item for _, item in zip(range(count), stream, strict=False)]

    def _generate_items(self, name: str, seed: int, side: Split, tries: int = GENERATED_MAX) -> Iterator[QuestionItem]:
        """Distinct questions of one seed on one side of the split."""
        made = self._tasks[name].make_dataset(seed)
        seen: set[str] = set()
        for index in range(tries):
            entry = make_dataset_item(made, index)
            item = QuestionItem(name, self.task_digest(name), seed, index, str(entry["question"]), str(entry["answer"]))
            canonical = str(entry.get("metadata", {}).get("canonical", item.canonical_text))
            fits = canonical not in seen and len(item.text) <= self._characters_max
            if fits and split_of(name, canonical) == side:
                seen.add(canonical)
                yield item


class RowBank(QuestionBank):
    """Rows of (question, answer) under one task name. Raises SwarmError if none is on the training side."""

    def __init__(self, swarm: str, size: int, characters_max: int, task: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__(swarm, size, characters_max)
        self._task = task
        self._digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]  # of questions and answers in order
        self._sides: dict[Split, list[QuestionItem]] = {"train": [], "dev": [], "held-out": []}
        seen: set[str] = set()
        for item in (QuestionItem(task, self._digest, 0, index, *row) for index, row in enumerate(rows)):
            if item.canonical_text not in seen and len(item.text) <= characters_max:
                seen.add(item.canonical_text)
                self._sides[split_of(task, item.canonical_text)].append(item)
        if not self._sides["train"]:
            raise SwarmError(
                f"the data of {task} have no question to train on among {len(rows)} rows",
                "Three in ten are held out: give more rows, or raise swarm.options.question_characters",
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        return (self._task,)

    def task_digest(self, task: str) -> str:
        return self._digest

    def _make_round_pool(self, round: int) -> tuple[QuestionItem, ...]:
        rows = self._sides["train"]
        random = Random(hash_number("math-rows", self._swarm, round, self._digest))
        return tuple(random.sample(rows, min(self._size, len(rows))))

    def select_items(self, task: str, side: Split, count: int) -> list[QuestionItem]:
        ordered = sorted(self._sides[side], key=lambda item: hash_number("math-select", side, item.canonical_text))
        return ordered[:count]


def _make_task(config: TaskConfig) -> GymTask:
    levels = make_task_levels(config)
    if config.curriculum:
        raise SwarmError(
            f"the task {config.name} has a curriculum", "All nodes of a round need the same questions here"
        )
    if not isinstance(make_dataset_item(levels[0].make_dataset(0), 0)["answer"], str):
        raise SwarmError(
            f"the task {config.name} has questions with several right answers",
            'Use it with kind = "reasoning-gym", which scores by the task itself',
        )
    return levels[0]


COLUMNS = ("agent_answers_", "agent_opinion_")  # upstream's column names, used to break ties between peers
Parts = dict[str, float]


class PeerCompletion(msgspec.Struct, frozen=True):
    """A peer's completion of an earlier stage; `outcome` is None if the peer did not answer this question."""

    source: Source
    text: str
    outcome: Outcome | None = None


class PosedQuestion(msgspec.Struct, frozen=True):
    """A question of a later stage: the user's message, and the facts to score completions against."""

    prompt: str
    entry: dict[str, Any]


class MathMode(abc.ABC):
    """A way to select and show peers' texts, and to score."""

    def __init__(self, students: int, shown_bytes: int) -> None:
        self._students = students  # number of peers, and of critics, shown at most
        self._shown_bytes = shown_bytes  # of each peer's text, if the mode cuts it

    @abc.abstractmethod
    def choose_answers(
        self, item: QuestionItem, answers: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        """Choose the answers for a stage 1 question. `absent`: peers that answered only other questions."""

    @abc.abstractmethod
    def choose_opinions(
        self, item: QuestionItem, answers: Sequence[Outcome], opinions: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        """Choose answers and opinions for a stage 2 question; none if the answers are unknown here."""

    @abc.abstractmethod
    def pose_comparison(self, item: QuestionItem, answers: Sequence[PeerCompletion]) -> PosedQuestion:
        """Make the stage 1 question."""

    @abc.abstractmethod
    def pose_agreement(
        self, item: QuestionItem, answers: Sequence[PeerCompletion], opinions: Sequence[PeerCompletion]
    ) -> PosedQuestion:
        """Make the stage 2 question. Raises RecordRejected."""

    def shorten(self, entry: Mapping[str, Any]) -> PosedQuestion | None:
        """A question from `pose_comparison` or `pose_agreement` with peers' texts cut further; None if they cannot
        be."""
        return None

    @abc.abstractmethod
    def score(
        self, stage: int, entry: Mapping[str, Any], prompt: str, completions: Sequence[str]
    ) -> Sequence[tuple[Parts, float, float]]:
        """Reward parts, accuracy and format of each completion."""


def select_best_peers(rewards: Mapping[str, float], stage: int, count: int) -> list[str]:
    """The `count` peers with the highest rewards, best last; the MD5 of upstream's column names breaks ties."""

    def rank_key(peer: str) -> tuple[float, int, str]:
        column = COLUMNS[stage] + peer
        return rewards[peer], int(hashlib.md5(column.encode(), usedforsecurity=False).hexdigest(), 16), column

    return sorted(rewards, key=rank_key)[-count:]


def make_sources(stage: int, choices: Mapping[str, int]) -> tuple[Source, ...]:
    """Sources in display order, by peer id. `choices`: peer → index of its completion."""
    return tuple(Source(stage, peer, choices[peer]) for peer in sorted(choices))


def make_entry(item: QuestionItem, **more: Any) -> dict[str, Any]:
    return {"question": item.text, "answer": item.answer, **more}
