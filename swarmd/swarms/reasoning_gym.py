"""The kinds `reasoning-gym` and `digits`: any mixture of reasoning-gym's tasks, with settings or a curriculum.

Seeds are hashed from (swarm, peer, round, stage, task, chunk). An item of reasoning-gym is a function of seed + index,
so consecutive seeds would repeat the same questions, shifted by one, across chunks, rounds and nodes.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms import gym_tasks
from swarmd.swarms.options import MIXTURE, NoOptions, decode_options
from swarmd.swarms.plan import Material, Message, Question, Score, Split, SplitPlan, StageId, hash_number, split_of
from swarmd.swarms.rollouts import Reference
from swarmd.swarms.text import collapse_whitespace, extract_answer, is_well_formed, span_answer

RAISE_AT = 0.8  # mean accuracy of the last groups at which a curriculum's level is raised
LOWER_AT = 0.2  # and at which it is lowered
WINDOW = 64  # own groups averaged
Accuracy = Annotated[float, msgspec.Meta(ge=0, le=1)]


class CurriculumLevel(msgspec.Struct, forbid_unknown_fields=True):
    """The level of a task with a curriculum, from 0 up. A checkpoint holds this struct as it is.

    If the last `window` groups at a level average `RAISE_AT` or more, the level rises by one; at `LOWER_AT` or less, it
    falls by one. Each level starts with an empty window, so two changes are at least `window` groups apart.
    """

    level: Annotated[int, msgspec.Meta(ge=0)] = 0
    recent: list[Accuracy] = []  # mean accuracy of the last groups at this level

    def record_accuracy(self, accuracy: float, levels: int, window: int) -> None:
        """Add the mean accuracy of one own group at the present level; `levels` is the number of levels."""
        self.recent = [*self.recent, accuracy][-window:]
        if len(self.recent) < window:
            return
        mean = sum(self.recent) / window
        move = 1 if mean >= RAISE_AT else -1 if mean <= LOWER_AT else 0
        level = min(max(self.level + move, 0), levels - 1)
        if level != self.level:
            self.level, self.recent = level, []


CHUNKS_MAX = 8  # seeds of one task in one stage
TRIES_MAX = 400  # questions generated to find one on the wanted side of the split
FRESH_TRIES_MAX = 20  # of these, to find one not drawn in this stage yet
SELECT_TRIES = 80  # questions generated for each held-out one


class ReasoningGymPlan(SplitPlan):
    """Any mixture of reasoning-gym's tasks.

    A task with a curriculum is drawn at the level that this node has reached; within a stage the levels are fixed.
    Peers' questions may have any level.

    Args:
        swarm: with the mixture in `tasks`, by default `MIXTURE`.

    Raises:
        SwarmError: an unknown task, or wrong settings of one.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        self._swarm = swarm.id
        self._format_reward = (training or TrainingConfig()).format_reward
        self.reward_max = 1.0 + self._format_reward
        decode_options(swarm.options, NoOptions)
        configs = swarm.tasks or tuple(TaskConfig(name) for name in MIXTURE)
        self._weights = {config.name: config.weight for config in configs}
        if len(self._weights) < len(configs):
            raise SwarmError("swarm.tasks names a task twice", "Join the two entries and add up their weights")
        self._levels = {config.name: gym_tasks.make_task_levels(config) for config in configs}
        self._ladders = {config.name: CurriculumLevel() for config in configs if config.curriculum}
        self._datasets = gym_tasks.DatasetCache()

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self._levels)

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """See `Plan.draw`. Raises SwarmError if a task has no question on the training side."""
        random = Random(hash_number("mixture", self._swarm, place.peer, place.round, place.stage))
        weights = list(self._weights.values())
        streams = {name: self._stream_questions(self._task_at_level(name), place) for name in self.tasks}
        return (next(streams[random.choices(self.tasks, weights)[0]]) for _ in itertools.count())

    def _task_at_level(self, name: str) -> gym_tasks.GymTask:
        return self._levels[name][self._ladders[name].level if name in self._ladders else 0]

    def _stream_questions(self, task: gym_tasks.GymTask, place: StageId) -> Iterator[Question]:
        seen: set[str] = set()
        while True:
            for chunk in range(CHUNKS_MAX):
                seed = self._chunk_seed(task, place, chunk)
                yield from self._select_from_seed(task, seed, "train", seen)

    def _select_from_seed(self, task: gym_tasks.GymTask, seed: int, side: Split, seen: set[str]) -> Iterator[Question]:
        """Questions of one seed on one side of the split, new ones as long as there are any."""
        tries, repeated = 0, None
        for index in range(gym_tasks.DATASET_SIZE):
            question, canonical = self._generate_question(task, seed, index)
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

    def select_questions(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` distinct questions of one side of the split, evenly from all levels, the same on every node."""
        levels = self._levels[task]
        seeds = [hash_number("select", side, task, level.digest) for level in levels]
        found: dict[str, Question] = {}
        for index in range(min(gym_tasks.DATASET_SIZE, count * SELECT_TRIES)):
            if len(found) == count:
                break
            place = index % len(levels)
            question, canonical = self._generate_question(levels[place], seeds[place], index // len(levels))
            if split_of(task, canonical) == side:
                found.setdefault(canonical, question)
        return list(found.values())

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`. Raises RecordRejected: `unknown-task`, `unsafe-scorer`, `config-digest`, `seed` or
        `index` (not one this peer could have drawn), `source` (these questions have no sources), `held-out`, or
        `generator` (the task could not generate the question)."""
        peer = place.peer
        if reference.task not in self._levels:
            raise RecordRejected("unknown-task", f"{peer} sent the task {reference.task!r}, which is not trained here")
        if reference.task in gym_tasks.UNSAFE_TASKS:
            raise RecordRejected(
                "unsafe-scorer", f"the scorer of {reference.task} may do what an answer says: peers' are refused"
            )
        task = self._find_task_level(reference)
        if task is None:
            raise RecordRejected("config-digest", f"{peer} has other settings or another version of {reference.task}")
        if reference != reference.base:
            raise RecordRejected("source", f"{peer} sent a question of {task.name} that is made of other texts")
        if reference.index >= gym_tasks.DATASET_SIZE:
            raise RecordRejected("index", f"{peer} sent question {reference.index} of {task.name}")
        if all(reference.seed != self._chunk_seed(task, place, chunk) for chunk in range(CHUNKS_MAX)):
            raise RecordRejected("seed", f"{peer} sent a question of {task.name} that it cannot have drawn")
        try:
            question, canonical = self._generate_question(task, reference.seed, reference.index)
        except Exception as error:
            raise RecordRejected("generator", f"{task.name} cannot make the question of {peer}: {error}") from error
        if split_of(task.name, canonical) != "train":
            raise RecordRejected("held-out", f"{peer} sent a question of {task.name} that is held out")
        return question

    def _find_task_level(self, reference: Reference) -> gym_tasks.GymTask | None:
        levels = self._levels.get(reference.task, ())
        return next((level for level in levels if level.digest == reference.config_digest), None)

    def learn(self, question: Question, scores: Sequence[Score]) -> None:
        """See `Plan.learn`: groups at the present level may change the level of a task with a curriculum."""
        ladder = self._ladders.get(question.task)
        if (
            ladder is not None
            and scores
            and question.reference.config_digest == self._task_at_level(question.task).digest
        ):
            accuracy = sum(score.accuracy for score in scores) / len(scores)
            ladder.record_accuracy(accuracy, len(self._levels[question.task]), WINDOW)

    def read_memory(self) -> Mapping[str, Any]:
        """See `Plan.read_memory`: the levels."""
        return {"curricula": msgspec.to_builtins(self._ladders)} if self._ladders else {}

    def load_memory(self, memory: Mapping[str, Any]) -> None:
        """See `Plan.load_memory`: restore levels from a checkpoint, ignoring tasks that are gone."""
        try:
            known = msgspec.convert(memory.get("curricula", {}), dict[str, CurriculumLevel])
        except msgspec.ValidationError as error:
            raise SwarmError(
                f"the levels of the curricula cannot be read from the checkpoint: {error}",
                "Move that checkpoint away: the one before it counts then",
            ) from error
        for name in self._ladders.keys() & known:
            highest = len(self._levels[name]) - 1  # there may be fewer levels than when it was saved
            self._ladders[name] = known[name] if known[name].level <= highest else CurriculumLevel(highest)

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """Accuracy by the task's own scorer, format by the answer tags; the reward is their weighted sum.

        The scorer's value is used as it is, except for wrong answers that it pays in full (`is_wrong_but_paid`).
        Several tasks give partial credit, some a few hundredths for any answer; the digit tasks accept only the exact
        answer. If a question's stored answer is None, the task verifies answers instead of comparing them.
        """
        return [self._score_completion(question, completion) for completion in completions]

    def _score_completion(self, question: Question, completion: str) -> Score:
        shape = float(is_well_formed(completion))
        answer = extract_answer(completion)
        if answer is None:
            return self._make_score(0.0, shape, answered=False)
        unsafe = not gym_tasks.is_safe_to_score(question.task, answer)
        if unsafe or gym_tasks.is_wrong_but_paid(question.task, answer, question.entry):
            return self._make_score(0.0, shape)
        task = self._find_task_level(question.reference)
        try:
            dataset = self._datasets.get(task or self._levels[question.task][0], question.reference.seed)
            value = float(dataset.score_answer(answer, dict(question.entry)))
        except Exception:
            return self._make_score(0.0, shape, failed=True)
        if not math.isfinite(value):
            return self._make_score(0.0, shape, failed=True)
        return self._make_score(min(max(value, 0.0), 1.0), shape)

    def true_spans(self, question: Question, text: str) -> Sequence[tuple[int, int]]:
        """See `Plan.true_spans`: the last pair of answer tags, if exactly the task's answer stands between them."""
        answer = question.entry.get("answer")
        return span_answer(text, answer) if isinstance(answer, str) else ()

    def _make_score(self, accuracy: float, shape: float, failed: bool = False, answered: bool = True) -> Score:
        return Score(accuracy + self._format_reward * shape, accuracy, shape, failed=failed, answered=answered)

    def _chunk_seed(self, task: gym_tasks.GymTask, place: StageId, chunk: int) -> int:
        where = (place.peer, place.round, place.stage)
        return hash_number("questions", self._swarm, *where, task.name, task.digest, chunk)

    def _generate_question(self, task: gym_tasks.GymTask, seed: int, index: int) -> tuple[Question, str]:
        """Generate a question and its canonical form, which decides the side of the split."""
        entry = gym_tasks.make_dataset_item(self._datasets.get(task, seed), index)
        text = str(entry["question"])
        canonical = str(entry.get("metadata", {}).get("canonical", collapse_whitespace(text)))
        reference = Reference(task.name, task.digest, seed, index)
        return Question(reference, (*task.messages, Message("user", text)), entry), canonical


class DigitsPlan(ReasoningGymPlan):
    """Four tasks on digits that the embedded model learns in minutes.

    Without `swarm.tasks` all four, evenly. Raises SwarmError for any other task.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        for task in swarm.tasks:
            if task.name not in gym_tasks.KNOWN_NAMES:
                raise SwarmError(
                    f"the task {task.name!r} is not one of the digit tasks, {', '.join(gym_tasks.KNOWN_NAMES)}",
                    'Write kind = "reasoning-gym" in [swarm] for its tasks',
                )
        tasks = swarm.tasks or tuple(TaskConfig(name) for name in gym_tasks.TASK_NAMES)
        super().__init__(msgspec.structs.replace(swarm, tasks=tasks), training, home)
