"""The interface between the training engine and a kind of swarm: subclass `Plan`, name it in the registry or an entry
point.

- A plan is deterministic: the same (swarm, peer, round, stage, material) draws the same questions on every machine, and
  a `Reference` identifies a question. The engine generates completions, asks the plan to score them, and publishes
  references; it never sees how a question is made.
- Results of earlier stages come as `Material`: groups of this node and of peers. Each question is generated again and
  each completion scored here, so that only a peer's completions are taken from the peer.
- A plan's return values are checked; errors name the plan.
- A node's questions and scores are kept for people to read (`ScoredGroup`), beside the log, under the digest in
  `StageTrained.scored`. Only views read them.
"""

import abc
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.values import Value
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms.rollouts import COMPLETIONS_MAX, GROUPS_MAX, Reference, find_reference_fault

Split = Literal["train", "dev", "held-out"]
SPLIT_PARTS = 10  # of a task's questions: 2 parts held out, 1 for development, 7 for training


class Message(Value, frozen=True):
    """One chat message. Tags in `trusted` text stay; other text is escaped before it is tokenized."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    trusted: bool = False


class Question(Value, frozen=True):
    """A question that this node generated, with what scoring needs. The true answer never leaves the node."""

    reference: Reference
    messages: tuple[Message, ...]
    entry: Mapping[str, Any]
    stage: int = 0  # the stage of the question; an earlier one if material for the current stage is missing

    @property
    def task(self) -> str:
        return self.reference.task


class Score(Value, frozen=True):
    """The score of one completion. `reward` is trained on; the other fields are metrics."""

    reward: float
    accuracy: float = 0.0  # of the answer, in [0, 1]; 0.99 and more counts as correct
    format: float = 0.0  # of the format, in [0, 1]
    parts: Mapping[str, float] = {}  # the reward's named parts, where it has any
    failed: bool = False  # the scorer raised or returned no number; counts as 0
    values: Mapping[str, float] = {}  # unweighted parts, if they differ
    answered: bool | None = True  # an answer was found; None: unknown, because a reward function parses it


class StageId(Value, frozen=True):
    """One stage of one peer, which determines its questions. Rounds and stages count from 0."""

    peer: str
    round: int
    stage: int


class Outcome(Value, frozen=True):
    """A group published by a peer or this node, regenerated and scored here; one score for each completion."""

    place: StageId
    question: Question
    completions: tuple[str, ...]
    scores: tuple[Score, ...]

    @property
    def best(self) -> int:
        """Index of the completion with the highest reward, the first of several."""
        rewards = [score.reward for score in self.scores]
        return rewards.index(max(rewards))


class Material:
    """Groups that this node and its peers published at earlier stages: `Outcome`s by (round, stage), ordered by
    peer."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._outcomes: dict[tuple[int, int], list[Outcome]] = defaultdict(list)
        self._by_question: dict[tuple[StageId, Reference], Outcome] = {}
        for outcome in outcomes:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, unless this peer already has one for this question and stage."""
        key = (outcome.place, outcome.question.reference.base)
        if key not in self._by_question:
            self._by_question[key] = outcome
            self._outcomes[outcome.place.round, outcome.place.stage].append(outcome)

    def at(self, round: int, stage: int) -> Sequence[Outcome]:
        return sorted(self._outcomes[round, stage], key=lambda outcome: outcome.place.peer)

    def find(self, place: StageId, base: Reference) -> Outcome | None:
        """A peer's outcome for a question (`Reference.base`) at a stage."""
        return self._by_question.get((place, base))


NO_MATERIAL = Material()


class Plan(abc.ABC):
    """Base class of all kinds of swarm. Trainers construct it as `Kind(swarm, training, home)`."""

    stages: ClassVar[int] = 1  # in a round
    reward_max: float | None = None  # largest possible reward of a completion; None: unknown
    stops: tuple[str, ...] = ()  # texts at which generation pauses and `react` is called

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig, home: Path) -> None:  # noqa: B027
        """
        Args:
            swarm: this swarm's table of the configuration, with the mixture of tasks and the kind's own options.
            training: the table of training, for plans whose rewards or lengths depend on it.
            home: the node's data directory; files that options name are relative to it.
        """

    @property
    @abc.abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks in the mixture."""

    def begin(self, is_cancelled: Callable[[], bool]) -> None:  # noqa: B027
        """Called at the start of each stage, before anything is drawn or scored.

        Args:
            is_cancelled: whether the stage has been cancelled; callable from any thread. Long calls of `react` and
            `score` must poll it, and return within a second or two once it is true; their result is discarded then.
        """

    def use_tokenizer(self, encode: Callable[[str], list[int]]) -> None:  # noqa: B027
        """Called once, before anything is scored, for plans that need token ids.

        Args:
            encode: token ids of a text for this node's model, without special tokens.
        """

    def expect(self, peers: Collection[str]) -> None:  # noqa: B027
        """Called in each stage, after `begin`, with the peers whose groups will be scored, to divide time between
        them."""

    @abc.abstractmethod
    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """Yield training questions of one node for one stage without end, repeating only when there are no new ones.

        Args:
            place: this node's stage.
            material: what peers and this node published at the earlier stages of the round. It is empty if a node joins
            late: then draw questions that need none.
        """

    @abc.abstractmethod
    def hold_out(self, task: str, count: int) -> list[Question]:
        """Up to `count` questions, the same on every node; `draw` never yields them and `regenerate` refuses them."""

    @abc.abstractmethod
    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """Generate the question that a peer answered. Raises RecordRejected if the peer cannot have drawn it.
        `material`: what this node knows of earlier stages; if a source is missing there, the reason is `source`."""

    @abc.abstractmethod
    def score(self, question: Question, completions: Sequence[str]) -> Sequence[Score]:
        """Score each completion of one question, this node's own or a peer's, in order. Must not raise."""

    def judge(self, outcomes: Sequence[Outcome]) -> float:
        """The value of a peer's groups of one stage in this node's vote: by default their mean reward."""
        rewards = [score.reward for outcome in outcomes for score in outcome.scores]
        return sum(rewards) / len(rewards) if rewards else 0.0

    def react(self, question: Question, text: str) -> str | None:
        """Return the text to append to a completion that paused at one of `stops`, or None to end it. Must not raise.
        Called from several threads. A running call is abandoned when the stage is cancelled."""
        return None

    def foreign_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Character spans of a finished completion that the model did not write, and that are never trained on."""
        return ()

    def true_spans(self, question: Question, text: str) -> Sequence[tuple[int, int]]:
        """Character spans of a completion that are certainly correct, given the question's truth.

        Nothing else in peers' text is sure to be right. A span holds the answer's tags and, between them,
        exactly the answer that this node knows. Empty for plans that accept more than one text.
        """
        return ()

    def truth(self, question: Question) -> str:
        """The expected answer, for display on this node's page; empty if there is none to compare with."""
        answer = question.entry.get("answer")
        return "" if answer is None else str(answer)

    def complete_prompt(self, question: Question) -> Question:
        """The question with the messages that a rollout begins with, if they are only known at that time."""
        return question

    def shorten(self, question: Question) -> Question | None:
        """The same question with less of peers' text; None if nothing can be cut. Reference and scores do not change:
        each node shows as much text as fits its context."""
        return None

    def learn(self, question: Question, scores: Sequence[Score]) -> None:  # noqa: B027
        """Called with each of this node's own groups in training, so that a plan can adapt its difficulty."""

    def read_memory(self) -> Mapping[str, Any]:
        """The state that `learn` changes, as plain values, for the checkpoint."""
        return {}

    def load_memory(self, memory: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore the state from a checkpoint. Raises SwarmError if it cannot be read."""


def hash_number(*parts: object, bits: int = 31) -> int:
    """A number derived from the parts, the same on every machine: the first `bits` bits (at most 64) of their
    SHA-256."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


class SplitPlan(Plan):
    """Base of swarmd's own kinds, which can select questions from any side of the split."""

    unchecked: str = ""  # why `swarmd.swarms.truths` cannot check that right answers are paid; empty if it can

    @abc.abstractmethod
    def select_questions(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` distinct questions of one side of the split, the same on every node."""

    def hold_out(self, task: str, count: int) -> list[Question]:
        return self.select_questions(task, "held-out", count)

    def make_true_completion(self, question: Question) -> str | None:
        """A completion with the question's true answer in the expected form, see `swarmd.swarms.truths`; None if
        questions are generated."""
        return None

    def explain_answer_reading(self, question: Question, completion: str) -> tuple[str, str]:
        """How the answer was parsed from a completion of `make_true_completion`, and the fix if it was not rewarded."""
        return "", ""


def split_of(task: str, canonical: str) -> Split:
    """The side of the split of a question, by the hash of its canonical form: a fifth "held-out", a tenth "dev", the
    rest "train"."""
    part = hash_number("split", task, canonical, bits=63) % SPLIT_PARTS
    return "held-out" if part < 2 else "dev" if part == 2 else "train"


REWARD_MAX = 1e8  # magnitude; sums over a stage must stay within `REAL_MAX`, or peers refuse the report
ENDLESS = "Plan.draw gives questions without end, old ones again where there are no new: docs/swarms/writing.md"
BOUNDED = "A seed is SEED_MAX at most, an index INDEX_MAX, and both are Python's integers: docs/swarms/writing.md"
QUESTIONS = (
    "Plan.draw and Plan.hold_out give swarmd.plugin.Questions with one Message of text or more: docs/swarms/writing.md"
)
FIX = "Plan.score gives a list with a swarmd.plugin.Score of numbers for each completion: docs/swarms/writing.md"


def qualified_plan_name(plan: Plan) -> str:
    return f"{type(plan).__module__}.{type(plan).__qualname__}"


def check_plan(plan: Plan) -> None:
    """Raise SwarmError if an attribute of a plan has a wrong type."""
    tasks, stops, most = plan.tasks, plan.stops, plan.reward_max
    wrong = {
        "tasks": not isinstance(tasks, Iterable) or isinstance(tasks, str) or not _are_texts(tasks),
        "stops": bool(stops) and not (isinstance(stops, tuple) and _are_texts(stops)),
        "reward_max": most is not None and not (isinstance(most, int | float) and math.isfinite(most)),
    }
    for name, value in (("tasks", tasks), ("stops", stops), ("reward_max", most)):
        if wrong[name]:
            raise SwarmError(
                f"{qualified_plan_name(plan)}.{name} is {value!r:.200}",
                "tasks and stops are tuples of texts, reward_max is a number or None: docs/swarms/writing.md",
            )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def draw_questions(plan: Plan, place: StageId, material: Material) -> Iterator[Question]:
    """The plan's questions for a stage. Raises SwarmError if that is not iterable, and later as
    `check_drawn_question`."""
    given = _check_iterable(plan, "draw", plan.draw(place, material), f"round {place.round}, stage {place.stage}")
    return (check_drawn_question(plan, question) for question in given)


def check_drawn_question(plan: Plan, question: object) -> Question:
    """Check a drawn question. Raises SwarmError, before training, if it is not a Question or peers would refuse its
    reference."""
    checked = _check_question(plan, "draw", question)
    fault = find_reference_fault(checked.reference)
    if fault:
        raise SwarmError(
            f"{qualified_plan_name(plan)}.draw gave a question by whose reference no peer can know it: {fault}", BOUNDED
        )
    return checked


def hold_out_questions(plan: Plan, task: str, count: int) -> list[Question]:
    """Up to `count` held-out questions of a task. Raises SwarmError if the plan returns anything else."""
    given = _check_iterable(plan, "hold_out", plan.hold_out(task, count), task)
    return [_check_question(plan, "hold_out", question) for question in islice(given, count)]


def _check_iterable(plan: Plan, method: str, given: object, where: str) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise SwarmError(f"{qualified_plan_name(plan)}.{method} gave {type(given).__name__} for {where}", QUESTIONS)
    return given


def _check_question(plan: Plan, method: str, given: object) -> Question:
    gave = f"{qualified_plan_name(plan)}.{method} gave"
    if not isinstance(given, Question):
        raise SwarmError(f"{gave} {type(given).__name__}, not a Question", QUESTIONS)
    if not isinstance(given.messages, tuple | list) or not given.messages:
        raise SwarmError(f"{gave} a question whose messages are {given.messages!r:.200}", QUESTIONS)
    for message in given.messages:
        if not (isinstance(message, Message) and _is_encodable_text(message.content)):
            raise SwarmError(f"{gave} a question with the message {message!r:.200}", QUESTIONS)
    return given


def _is_encodable_text(value: object) -> bool:
    """Whether it is a text that UTF-8 can encode: lone surrogates cannot be."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def score_completions(plan: Plan, question: Question, texts: Sequence[str]) -> tuple[Score, ...]:
    """Score completions of one question. If reward, accuracy or format is NaN or beyond `REWARD_MAX`, the score becomes
    0 and failed; such a value in a part, which is only a metric, is dropped.

    Raises:
        SwarmError: the plan returned something else or a wrong number of scores; names plan, task and value.
        Exception: whatever the plan raises.
    """
    given = plan.score(question, texts)
    gave = f"{qualified_plan_name(plan)}.score gave"
    if not isinstance(given, Iterable):
        raise SwarmError(f"{gave} {type(given).__name__} for completions of {question.task}", FIX)
    scores = tuple(given)
    if len(scores) != len(texts):
        raise SwarmError(f"{gave} {len(scores)} scores for {len(texts)} completions of {question.task}", FIX)
    return tuple(_with_python_numbers(score, f"{gave} for a completion of {question.task}") for score in scores)


def read_score(plan: Plan, question: Question, given: object) -> Score:
    """Turn a rollout's reward into a score, checked as in `score_completions`. Raises SwarmError.

    A plain number also gives the accuracy, as a share of the plan's largest reward.
    """
    gave = f"{qualified_plan_name(plan)} gave for a rollout of {question.task}"
    if isinstance(given, Score):
        return _with_python_numbers(given, gave)
    try:
        reward = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise SwarmError(f"{gave} a reward that is not a number: {given!r:.100}", FIX) from error
    accuracy = min(max(reward / (plan.reward_max or 1.0), 0.0), 1.0)
    return _with_python_numbers(Score(reward, accuracy, format=1.0), gave)


def _with_python_numbers(score: object, gave: str) -> Score:
    """The score with Python numbers: neither events nor checkpoints can hold numpy's or torch's."""
    if not isinstance(score, Score):
        raise SwarmError(f"{gave} {type(score).__name__}, not a Score", FIX)
    try:
        reward, accuracy, form = map(float, (score.reward, score.accuracy, score.format))
        parts, values = (
            {str(name): number for name, part in table.items() if abs(number := float(part)) <= REWARD_MAX}
            for table in (score.parts, score.values)
        )
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SwarmError(f"{gave} something that is not a number: {error}", FIX) from error
    if not all(abs(number) <= REWARD_MAX for number in (reward, accuracy, form)):
        return Score(0.0, failed=True)
    return Score(reward, accuracy, form, parts, bool(score.failed), values, score.answered)


CORRECT = 0.99  # accuracy from which an answer counts as correct
SCORED_BYTES_MAX = 256 * 1024  # of one stage; the last groups beyond are dropped
SCORED_GROUPS_MAX = 4 * GROUPS_MAX
QUESTION_CHARACTERS_MAX = 2000
TRUTH_CHARACTERS_MAX = 500

Short = Annotated[str, msgspec.Meta(max_length=QUESTION_CHARACTERS_MAX)]


class ScoredGroup(Value, frozen=True):
    """One group of completions for display: the peer, the question, and the rewards computed here."""

    peer: Short  # publisher; this and the next two identify the publication
    round: int
    stage: int
    task: Short  # this and the next two identify the question, as in `Reference`
    seed: int
    index: int
    question: Short = ""  # the last message of the prompt
    truth: Annotated[str, msgspec.Meta(max_length=TRUTH_CHARACTERS_MAX)] = ""  # empty: none to compare with
    rewards: Annotated[tuple[float, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()  # one for each completion
    right: Annotated[tuple[bool, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()  # whether each answer is correct
    steps: int = 0  # of own groups: optimiser steps, over all stages, before it was drawn

    @property
    def key(self) -> tuple[str, int, int, str, int, int]:
        """Identifies the group among those of all peers and stages."""
        return (self.peer, self.round, self.stage, self.task, self.seed, self.index)


Groups = Annotated[tuple[ScoredGroup, ...], msgspec.Meta(max_length=SCORED_GROUPS_MAX)]
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Groups)


def make_scored_group(
    plan: Plan, question: Question, peer: str, round: int, stage: int, scores: Iterable[Score], steps: int = 0
) -> ScoredGroup:
    """Make the group that is kept for display."""
    reference, given = question.reference, tuple(scores)
    return ScoredGroup(
        peer,
        round,
        stage,
        reference.task,
        reference.seed,
        reference.index,
        question.messages[-1].content[:QUESTION_CHARACTERS_MAX] if question.messages else "",
        plan.truth(question)[:TRUTH_CHARACTERS_MAX],
        tuple(score.reward for score in given),
        tuple(score.accuracy >= CORRECT for score in given),
        steps,
    )


def interleave_peer_groups(plan: Plan, judged: Iterable[Iterable[Outcome]]) -> Iterator[ScoredGroup]:
    """Peers' groups, taken from each peer in turn, so that a peer with many does not crowd out others."""
    for turn in zip_longest(*judged):
        for outcome in turn:
            if outcome is not None:
                place = outcome.place
                yield make_scored_group(plan, outcome.question, place.peer, place.round, place.stage, outcome.scores)


def encode_scored_groups(groups: Iterable[ScoredGroup]) -> bytes:
    """Encode the groups for the blob store; the last are dropped until they fit into `SCORED_BYTES_MAX`."""
    kept = tuple(groups)[:SCORED_GROUPS_MAX]
    body = _encoder.encode(kept)
    while len(body) > SCORED_BYTES_MAX:
        kept = kept[: len(kept) * 3 // 4]
        body = _encoder.encode(kept)
    return body


def decode_scored_groups(body: bytes) -> tuple[ScoredGroup, ...]:
    """Decode what `encode_scored_groups` wrote. Raises RecordRejected(`oversize` or `malformed`)."""
    if len(body) > SCORED_BYTES_MAX:
        raise RecordRejected("oversize", f"scored groups of {len(body)} bytes, the limit is {SCORED_BYTES_MAX}")
    try:
        return _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"scored groups cannot be read: {error}") from error
