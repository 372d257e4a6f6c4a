"""Rollouts of several turns: the model writes, an environment answers, the model writes again.

- A plan of this kind (`ConversationPlan`) opens an `Environment` for each rollout. The trainer's driver
  (`swarmd.training.turns`) calls it: `reset`, then `act` with each text of the model, then `reward`.
- An environment's answers must depend on the question and the model's texts alone. A peer's rollout is checked by
  running it again here: the same texts must get the same answers, and the reward computed here counts.
- Environments are third-party code. `ConversationCalls` runs each call in its own thread, for as long as its rollout
  has time left: a call that hangs costs only its own rollout.
"""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from swarmd.errors import FOREIGN_ERRORS, SwarmError
from swarmd.logger import get_logger
from swarmd.swarms.options import TurnLimits
from swarmd.swarms.plan import Message, Plan, Question, Score, read_score

CALLS_AT_ONCE = 8
HANGING_MAX = 64  # abandoned calls that still run; at this bound no new call starts
POLL_S = 0.2  # how often the cancellation is checked while a call runs
CLOSE_S = 5.0  # for an environment to free its resources
REASON_CHARACTERS_MAX = 300

T = TypeVar("T")
log = get_logger(__name__)


class Environment(Protocol):
    """The model's counterpart in one rollout. A method `close`, if there is one, is called at the end."""

    def reset(self, question: Question) -> Sequence[Any] | None:
        """Start the rollout. Returns the prompt as messages, or None if the question already has it."""

    def act(self, text: str) -> str | None:
        """The answer to the model's text; None if the rollout ends there."""

    def reward(self) -> float | Score:
        """The rollout's reward. Called once, after the last `act`."""


class ConversationPlan(Plan):
    """Base of plans whose rollouts are conversations with an environment."""

    limits: TurnLimits = TurnLimits()
    answer_role: ClassVar[Literal["user", "tool"]] = "user"  # role of answers in the chat template
    resets_prompt: ClassVar[bool] = False  # whether the prompt comes from `Environment.reset`

    @abc.abstractmethod
    def open_environment(self, question: Question) -> Environment:
        """Open a new environment for one rollout. May be called from several threads."""

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """Score completions of a single turn. The trainer scores conversations itself."""
        calls, asked = ConversationCalls(), self.complete_prompt(question)
        rollouts = [Conversation(self, asked) for _ in completions]
        calls.run_each([(rollout, rollout.begin) for rollout in rollouts])
        pairs = zip(rollouts, completions, strict=True)
        calls.run_each([(rollout, partial(rollout.answer, text)) for rollout, text in pairs])
        return calls.finish(rollouts)

    def complete_prompt(self, question: Question) -> Question:
        """See `Plan.complete_prompt`. Raises EnvironmentFailed."""
        if not self.resets_prompt:
            return question
        calls, rollout = ConversationCalls(), Conversation(self, question)
        calls.run_each([(rollout, partial(rollout.begin, fills_prompt=True))])
        calls.close([rollout])
        if rollout.failure:
            raise EnvironmentFailed(rollout.failure)
        return rollout.question


class EnvironmentFailed(SwarmError):
    """An environment raised, returned a wrong type, or took too long."""


class Conversation:
    """One rollout's environment, and how much of its limits the rollout has used. Methods raise what the environment
    raises."""

    def __init__(self, plan: ConversationPlan, question: Question) -> None:
        self.plan = plan
        self.question = question
        self.seconds_left = plan.limits.seconds
        self.failure = ""  # why the rollout is void; empty if it is valid
        self._bytes_left = plan.limits.answer_bytes
        self._turns = 0
        self._environment: Any = None

    def begin(self, fills_prompt: bool = False) -> None:
        """Open and reset the environment.

        Args:
            fills_prompt: use its prompt as the question's; otherwise EnvironmentFailed is raised if they differ.
        """
        self._environment = self.plan.open_environment(self.question)
        given = self._environment.reset(self.question)
        if given is None:
            return
        question = msgspec.structs.replace(self.question, messages=tuple(map(_read_message, given)))
        if question.messages != self.question.messages and not fills_prompt:
            raise EnvironmentFailed("reset gave another prompt than the question has")
        self.question = question

    def answer(self, text: str) -> str | None:
        """The environment's answer to a turn, within the limits; None if the rollout ends there."""
        self._turns += 1
        given = self._environment.act(text)
        if given is None or self._turns >= self.plan.limits.turns or self._bytes_left <= 0:
            return None
        if not isinstance(given, str):
            raise EnvironmentFailed(f"act gave {type(given).__name__}, not a text or None")
        encoded = given.encode("utf-8", "replace")[: self._bytes_left]
        self._bytes_left -= len(encoded)
        return encoded.decode(errors="ignore")

    def finish(self) -> Score:
        return read_score(self.plan, self.question, self._environment.reward())

    def close(self) -> None:
        close = getattr(self._environment, "close", None)
        if close is not None:
            close()


def _read_message(given: Any) -> Message:
    if isinstance(given, Message):
        return given
    return msgspec.convert({"role": given["role"], "content": given["content"]}, Message)


class _Call(Generic[T]):
    """A call that runs in its own thread, and puts itself into `done` when it ends."""

    def __init__(self, rollout: Conversation, function: Callable[[], T], done: SimpleQueue[_Call[T]]) -> None:
        self.rollout = rollout
        self.due = time.monotonic() + rollout.seconds_left
        self.result: T | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(function, done), name="environment", daemon=True)
        self.thread.start()

    def _run(self, function: Callable[[], T], done: SimpleQueue[_Call[T]]) -> None:
        try:
            self.result = function()
        except BaseException as error:  # whatever third-party code raises ends this thread alone
            self.error = error
        done.put(self)

    @property
    def seconds_left(self) -> float:
        return max(self.due - time.monotonic(), 0.0)

    def settle(self) -> None:
        """Charge the rollout for the time of a call that has ended."""
        self.rollout.seconds_left = self.seconds_left
        if self.error is None:
            return
        if not isinstance(self.error, FOREIGN_ERRORS):
            raise self.error
        told = " ".join(f"{type(self.error).__name__}: {self.error}".split())
        self.rollout.failure = told[:REASON_CHARACTERS_MAX]

    def give_up(self) -> None:
        """Abandon a call that takes too long, and mark its rollout as failed."""
        self.rollout.failure = f"it took longer than turns.seconds = {self.rollout.plan.limits.seconds:g}"
        _hanging.append(self.thread)


_hanging: list[threading.Thread] = []  # threads of abandoned calls in this process, also of cancelled stages


def _count_hanging() -> int:
    _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
    return len(_hanging)


class ConversationCalls:
    """Runs calls of several rollouts concurrently, each within the seconds that its rollout has left.

    Args:
        check: called repeatedly meanwhile; raises if the results are no longer needed.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check

    def run_each(
        self, calls: Sequence[tuple[Conversation, Callable[[], T]]], even_failed: bool = False
    ) -> list[T | None]:
        """Run one call for each rollout. Returns the results in order; a rollout whose call fails or takes too long
        gets a `failure`, and None as its result.

        Args:
            even_failed: also run calls of rollouts that have failed already.
        """
        waiting = [(rollout, function) for rollout, function in calls if even_failed or not rollout.failure]
        done: SimpleQueue[_Call[T]] = SimpleQueue()
        running: list[_Call[T]] = []
        results: dict[int, T | None] = {}
        while waiting or running:
            try:
                self._check()
            except BaseException:
                _hanging.extend(call.thread for call in running)
                raise
            while waiting and len(running) < CALLS_AT_ONCE:
                rollout, function = waiting.pop(0)
                if _count_hanging() < HANGING_MAX:
                    running.append(_Call(rollout, function, done))
                else:
                    rollout.failure = f"{HANGING_MAX} calls of environments hang in this process"
            with contextlib.suppress(Empty):
                call = done.get(timeout=min([POLL_S, *(each.seconds_left for each in running)]))
                if call in running:
                    running.remove(call)
                    call.settle()
                    results[id(call.rollout)] = call.result
            for call in [each for each in running if not each.seconds_left]:
                running.remove(call)
                call.give_up()
        return [results.get(id(rollout)) for rollout, _ in calls]

    def finish(self, rollouts: Sequence[Conversation]) -> list[Score]:
        """Score the rollouts, then close their environments; 0 and failed for each rollout with a `failure`."""
        scores = self.run_each([(rollout, rollout.finish) for rollout in rollouts])
        failures = [rollout.failure for rollout in rollouts if rollout.failure]
        if failures:
            log.warning("rollouts count nothing: their environments failed", rollouts=len(failures), reason=failures[0])
        self.close(rollouts)
        return [Score(0.0, failed=True) if score is None else score for score in scores]

    def close(self, rollouts: Sequence[Conversation]) -> None:
        """Close the environments of all rollouts, failed ones too. Slow ones are not waited for."""
        for rollout in rollouts:
            rollout.seconds_left = CLOSE_S
        self.run_each([(rollout, rollout.close) for rollout in rollouts], even_failed=True)

    def abandon(self, rollouts: Sequence[Conversation]) -> None:
        """Close the environments of rollouts that are no longer needed, without waiting."""
        threading.Thread(target=ConversationCalls().close, args=(rollouts,), name="abandon", daemon=True).start()
