"""The kind `file`: a user's questions and answers as JSONL, a system prompt and named rewards, without Python.

- The file may be made from a data set (`swarmd.swarms.dataset`).
- A node's own configuration may name reward functions as TRL takes them.
- A question is referred to by the digest of the file and its row, so only nodes with the same file understand each
  other.

docs/swarms/file.md describes the options.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.logger import get_logger
from swarmd.swarms.conversation import ConversationPlan
from swarmd.swarms.dataset import write_questions_file
from swarmd.swarms.jsonl import load_rows
from swarmd.swarms.openenv import OpenEnvEpisode
from swarmd.swarms.options import PROMPT_CHARACTERS_MAX, FileOptions, decode_options
from swarmd.swarms.packages import check_packages, list_function_paths
from swarmd.swarms.plan import Material, Message, Question, Score, Split, SplitPlan, StageId, hash_number, split_of
from swarmd.swarms.rewards import COMPARING, AnsweredCompletion, Reward, RewardFunctions, RewardOption, make_reward
from swarmd.swarms.rollouts import NAME_CHARACTERS_MAX, Reference
from swarmd.swarms.text import (
    BOXED,
    CLOSING,
    OPENING,
    AnswerPlace,
    collapse_whitespace,
    extract_final_answer,
    find_answer,
    is_well_formed,
    read_number,
    span_answer,
)
from swarmd.swarms.trl import ToolBox, ToolEpisode

log = get_logger(__name__)
TASK = "questions"  # task of rows that name none
TASKS_MAX = 64
SPLIT = "file"  # hashed in place of the task: a question's side of the split does not depend on it

INSTRUCTIONS: dict[AnswerPlace, str] = {
    "tags": "Think step by step if it helps, then give the final answer alone between <answer> and </answer>.",
    "last-number": "Think step by step if it helps, and end with the answer, a number.",
    "last-line": "Think step by step if it helps, then give the final answer alone on the last line.",
    "boxed": "Think step by step if it helps, then give the final answer alone in \\boxed{}.",
    "whole": "Give the answer alone.",
}
PHRASES: dict[AnswerPlace, tuple[str, str]] = {"tags": (OPENING, CLOSING), "boxed": (BOXED, "}")}  # around answers


class QuestionRow(NamedTuple):
    task: str
    prompt: str
    answer: str
    side: Split
    columns: Mapping[str, Any]  # the whole row, kept only for reward functions


class FilePlan(SplitPlan):
    """Questions and answers from a JSONL file, with named rewards.

    Args:
        training: supplies the weight of the format reward if no rewards are named.

    Raises:
        SwarmError: the options are wrong, the file is missing, malformed or has another digest, it cannot be made from
        its data set, or a reward function cannot be imported.
        EnvironmentMissing: this node lacks the Python that the swarm's manifest names.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        if swarm.tasks:
            raise SwarmError(
                'swarm.tasks does not go with the kind "file"', "Name the task of a question in the file: column `task`"
            )
        options = decode_options(swarm.options, FileOptions)
        home = home or Path()
        if options.packages:
            check_packages(options.packages, list_function_paths(swarm.options), home)
        self._functions: RewardFunctions | None = None
        self._box: ToolBox | None = None
        if options.tools or options.environment_factory:
            self._box = _make_tool_box(options, home)
        elif options.reward_funcs:
            self._functions = RewardFunctions(options.reward_funcs, options.reward_weights, options.reward_inputs, home)
        self._rewards = _make_named_rewards(options, (training or TrainingConfig()).format_reward)
        self._compares = any(option.name in COMPARING for option, _ in self._rewards)
        self.unchecked = _reason_unchecked(options, self._rewards)
        if self._functions is None and not options.has_turns:  # reward functions may return anything
            self.reward_max = sum(option.weight for option, _ in self._rewards)
        write_questions_file(home, options.data, options, options.digest)
        needed = ("prompt", "answer") if self._compares else ("prompt",)
        rows, digest = load_rows(home, options.data, options.digest, needed)
        self._swarm = swarm.id
        self._digest = digest[:16]
        keeps_columns = self._functions is not None or options.has_turns
        self._rows = tuple(
            _read_row(row, f"{options.data}, row {number}", keeps_columns) for number, row in enumerate(rows, 1)
        )
        self._places = _distinct_row_indices(self._rows, options.data)
        self._training = [place for place in self._places if self._rows[place].side == "train"]
        if not self._training:
            raise SwarmError(f"no question of {options.data} is on the training side of the split", "Add more rows")
        self._tasks = tuple(sorted({self._rows[place].task for place in self._places}))
        if len(self._tasks) > TASKS_MAX:
            raise SwarmError(f"{options.data} has {len(self._tasks)} tasks, the limit is {TASKS_MAX}", "Join some")
        system = options.system
        if system is None:
            system = "" if options.has_turns else INSTRUCTIONS[options.answer]
        self._before = (Message("system", system, trusted=True),) if system else ()
        self._place: AnswerPlace = options.answer
        self._options = options
        self._inputs = options.reward_inputs
        self._columns = options.columns

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._tasks

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        if self._functions is not None:
            self._functions.begin_stage(is_cancelled)
        if self._box is not None:
            self._box.begin_stage(is_cancelled)

    def use_tokenizer(self, encode: Callable[[str], list[int]]) -> None:
        if self._functions is not None:
            self._functions.use_tokenizer(encode)

    def open_environment(self, question: Question) -> ToolEpisode | OpenEnvEpisode:
        """Open a rollout with the tools or the environment that the options name.

        The trainer calls `reset` for the prompt, `act` with each text of the model until it returns None, `reward`, and
        finally `close`. May be called from several threads. All nodes give the same answers to the same turns, provided
        the named code depends on nothing but `random`.

        Raises:
            SwarmError: the options name neither, or no server.
        """
        reference = question.reference
        messages = self._make_question(reference.index, reference.seed).messages
        columns = self._columns_for_rewards(question)
        if self._box is not None:
            return ToolEpisode(self._box, messages, columns, f"{self._digest} {reference.index}")
        if self._options.openenv is None or not self._options.openenv_url:
            raise SwarmError(
                "this swarm's environment is an OpenEnv server, and swarm.options.openenv_url does not name one",
                "Start a server of this environment, and write its address, such as http://127.0.0.1:8000",
            )
        seed = hash_number("openenv", self._digest, reference.index)
        return OpenEnvEpisode(self._options.openenv_url, self._options.openenv, messages, columns, seed)

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """See `Plan.draw`: all training questions in an order specific to this node's stage, then again."""
        seed = self._stage_seed(place)
        for repetition in itertools.count():
            order = list(self._training)
            Random(hash_number("order", seed, repetition)).shuffle(order)
            yield from (self._make_question(index, seed) for index in order)

    def select_questions(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` questions of one side of the split, the same on every node."""
        rows = self._rows
        chosen = [index for index in self._places if (rows[index].task, rows[index].side) == (task, side)]
        chosen.sort(key=lambda index: hash_number(side, rows[index].prompt))
        return [self._make_question(index, 0) for index in chosen[:count]]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`. Raises RecordRejected: `config-digest` (another file), `source` (these questions have
        no sources), `seed` (of another stage), `index` (no such row, or a duplicate of an earlier prompt),
        `unknown-task` (not the row's), or `held-out`."""
        peer = place.peer
        if reference.config_digest != self._digest:
            raise RecordRejected("config-digest", f"{peer} has another file of questions")
        if reference != reference.base:
            raise RecordRejected("source", f"{peer} sent a question that is made of other texts")
        if reference.seed != self._stage_seed(place):
            raise RecordRejected("seed", f"{peer} sent a question under a seed that is not of its stage")
        if reference.index >= len(self._rows):
            raise RecordRejected("index", f"{peer} sent row {reference.index} of {len(self._rows)}")
        row = self._rows[reference.index]
        if row.task != reference.task:
            raise RecordRejected("unknown-task", f"{peer} sent row {reference.index} as the task {reference.task!r}")
        if row.side != "train":
            raise RecordRejected("held-out", f"{peer} sent row {reference.index}, which is held out")
        if reference.index not in self._places:
            raise RecordRejected("index", f"{peer} sent row {reference.index}, whose prompt stands in an earlier one")
        return self._make_question(reference.index, reference.seed)

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """The weighted sum of the named rewards and the reward functions. Accuracy is the first named reward that
        compares with the answer; without one, the first reward."""
        expected = str(question.entry["answer"])
        if self._functions is None:
            return [self._score_completion(expected, completion, {}, {}) for completion in completions]
        given = self._functions.score_completions(
            self._prompt_for_rewards(question), completions, self._columns_for_rewards(question)
        )
        pairs = zip(completions, given, strict=True)
        return [
            self._score_completion(expected, completion, values, self._functions.weights)
            for completion, values in pairs
        ]

    def _score_completion(
        self, expected: str, completion: str, given: Mapping[str, float], weights: Mapping[str, float]
    ) -> Score:
        """Score one completion; `given` holds the reward functions' values by name."""
        answered = AnsweredCompletion(completion, find_answer(completion, self._place), expected)
        values: list[tuple[str, float, float]] = [
            (option.name, option.weight, reward(answered)) for option, reward in self._rewards
        ]
        compared = [value for name, _, value in values if name in COMPARING]
        values += [(name, weights[name], value) for name, value in given.items()]
        total = sum(weight * value for _, weight, value in values)
        if not values or not math.isfinite(total):
            return Score(0.0, failed=True)
        parts: dict[str, float] = defaultdict(float)
        for name, weight, value in values:
            parts[name] += weight * value
        tagged = self._place == "tags"
        form = is_well_formed(completion) if tagged else answered.answer is not None
        accuracy = compared[0] if compared else min(max(values[0][2], 0.0), 1.0)
        found = answered.answer is not None if self._rewards else None
        plain = {name: value for name, _, value in values}
        return Score(total, accuracy, float(form), dict(parts), values=plain, answered=found)

    def true_spans(self, question: Question, text: str) -> Sequence[tuple[int, int]]:
        """See `Plan.true_spans`: the last pair of answer tags, if exactly the row's answer stands between them."""
        answer = str(question.entry["answer"])
        return span_answer(text, answer) if answer and self._compares and self._place == "tags" else ()

    def make_true_completion(self, question: Question) -> str:
        before, after = PHRASES.get(self._place, ("", ""))
        return f"{before}{question.entry['answer']}{after}"

    def explain_answer_reading(self, question: Question, completion: str) -> tuple[str, str]:
        truth, found = str(question.entry["answer"]), find_answer(completion, self._place)
        how = f"With answer = {self._place!r}, " + (f"{found!r} is found in it" if found else "nothing is found in it")
        if any(option.name == "numeric" for option, _ in self._rewards):
            numbers = [_number_to_text(read_number(text)) for text in (found or "", truth)]
            how += f"; as numbers, {numbers[0]} is compared with {numbers[1]}"
            if read_number(truth) is None:
                return how, (
                    "Let the column have one number and no formula, leave such rows out, or compare texts: "
                    'swarm.options.rewards = [{name = "exact"}]'
                )
        return how, (
            "Let the column have the answer alone, as the model is to write it, leave such rows out, or choose "
            "swarm.options.answer by where answers stand: docs/swarms/file.md#options"
        )

    def _prompt_for_rewards(self, question: Question) -> Any:
        """This question's prompt in the form that TRL passes to reward functions."""
        if self._inputs == "text":
            return question.messages[-1].content
        return [{"role": message.role, "content": message.content} for message in question.messages]

    def _columns_for_rewards(self, question: Question) -> dict[str, Any]:
        """The row's columns, also under their original names in the data set."""
        return self._columns.add_their_names(self._rows[question.reference.index].columns)

    def _stage_seed(self, place: StageId) -> int:
        return hash_number("questions", self._swarm, place.peer, place.round, place.stage, self._digest)

    def _make_question(self, index: int, seed: int) -> Question:
        row = self._rows[index]
        reference = Reference(row.task, self._digest, seed, index)
        return Question(reference, (*self._before, Message("user", row.prompt)), {"answer": row.answer})


class FileTurnsPlan(FilePlan, ConversationPlan):
    """The kind `file` with tools or an environment: rollouts of several turns."""

    resets_prompt = True
    score = ConversationPlan.score

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        super().__init__(swarm, training, home)
        self.limits = self._options.turns


def make_file_plan(swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> FilePlan:
    """Make the plan for the kind `file`, single-turn or with several turns. Raises as `FilePlan`."""
    make = FileTurnsPlan if decode_options(swarm.options, FileOptions).has_turns else FilePlan
    return make(swarm, training, home)


def _make_tool_box(options: FileOptions, home: Path) -> ToolBox:
    """The tools or the environment, and the functions that reward their use."""
    weights = options.reward_weights or [1.0] * len(options.reward_funcs)
    return ToolBox(
        options.tools,
        options.environment_factory,
        dict(zip(options.reward_funcs, weights, strict=True)),
        lambda paths, each: RewardFunctions(paths, each, "messages", home),
        home,
        options.sandbox,
    )


def _make_named_rewards(options: FileOptions, format_reward: float) -> list[tuple[RewardOption, Reward]]:
    """The named rewards; if neither rewards nor functions are named, the exact answer and the format of the tags."""
    named = options.rewards
    if not named and not options.reward_funcs and not options.has_turns:
        named = (RewardOption("exact"),)
        if options.answer == "tags" and format_reward:
            named = (*named, RewardOption("format-tags", format_reward))
    return [(option, make_reward(option)) for option in named]


def _number_to_text(number: Fraction | None) -> str:
    return "no number" if number is None else str(number)


def _reason_unchecked(options: FileOptions, rewards: Sequence[tuple[RewardOption, Reward]]) -> str:
    if options.reward_funcs:
        return f"the reward functions {', '.join(options.reward_funcs)} decide"
    if options.has_turns:
        return "the environment decides"
    if all(option.name not in COMPARING or option.name == "regex" for option, _ in rewards):
        return "no reward compares the answer with the truth as it stands"
    return ""


def _read_row(row: dict[str, Any], where: str, keeps_columns: bool) -> QuestionRow:
    prompt, answer, task = str(row["prompt"]), extract_final_answer(str(row.get("answer") or "")), row.get("task", TASK)
    if not isinstance(task, str) or not task.isprintable() or not 0 < len(task) <= NAME_CHARACTERS_MAX:
        raise SwarmError(f"{where}: 'task' is not a name", f"Write a text of up to {NAME_CHARACTERS_MAX} characters")
    if len(prompt) > PROMPT_CHARACTERS_MAX:
        raise SwarmError(f"{where}: a prompt of {len(prompt)} characters", f"The limit is {PROMPT_CHARACTERS_MAX}")
    return QuestionRow(task, prompt, answer, split_of(SPLIT, collapse_whitespace(prompt)), row if keeps_columns else {})


def _distinct_row_indices(rows: Sequence[QuestionRow], where: str) -> Collection[int]:
    """Indices of rows whose prompt is not in an earlier row, in order."""
    first: dict[str, int] = {}
    others: list[int] = []  # rows that repeat a prompt with another answer
    for place, row in enumerate(rows):
        if rows[first.setdefault(collapse_whitespace(row.prompt), place)].answer != row.answer:
            others.append(place + 1)
    if others:
        log.warning("questions are repeated with another answer; the first counts", file=where, rows=others[:8])
    return dict.fromkeys(first.values()).keys()
