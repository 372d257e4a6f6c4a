"""Completions in turns: the model pauses, the swarm answers, the model goes on.

A swarm whose models use tools names the texts at which generation pauses (`Plan.stops`); what `Plan.react` puts behind
them is part of the completion, but no token of it is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec
import torch

from swarmd.swarms.plan import Plan, Question
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import is_plans_own, warn_of
from swarmd.training.sampling.generation import Sampler

TURNS_MAX = 16  # answers in one completion, whatever the plan would give
REACTIONS_AT_ONCE = 2  # programs and the like, side by side
LOOK_S = 0.2  # how often a cancellation is looked for meanwhile


class TurnCompletion(msgspec.Struct):
    """One completion. `own` says of every token whether the model drew it (1) or the swarm put it there (0)."""

    tokens: list[int]
    own: list[int]
    text: str


class SamplingLimits(msgspec.Struct, frozen=True):
    """Of sampling: tokens of a completion, foreign ones included, and the temperature."""

    tokens_max: int
    temperature: float


class Turns:
    """Samples completions for one plan.

    Args:
        plan: says where generation pauses and what follows.
        policy: encodes and decodes.
        sampler: draws tokens.
        limits: of a completion.
    """

    def __init__(self, plan: Plan, policy: Policy, sampler: Sampler, limits: SamplingLimits) -> None:
        self._plan = plan
        self._policy = policy
        self._sampler = sampler
        self._limits = limits

    def complete(
        self,
        questions: Sequence[Question],
        prompts: Sequence[list[int]],
        group: int,
        generator: torch.Generator,
        cancellation: Cancellation,
    ) -> list[TurnCompletion]:
        """`group` completions of each question, question by question. Raises Cancelled."""
        completions = [
            TurnCompletion(tokens, [1] * len(tokens), self._policy.decode_completion(tokens))
            for tokens in self._draw(prompts, group, (), generator, cancellation)
        ]
        if self._plan.stops:
            asked = [(questions[place // group], prompts[place // group]) for place in range(len(completions))]
            self._go_on(asked, completions, generator, cancellation)
        return completions

    def _go_on(
        self,
        asked: Sequence[tuple[Question, list[int]]],
        completions: list[TurnCompletion],
        generator: torch.Generator,
        cancellation: Cancellation,
    ) -> None:
        """Let paused completions go on, turn by turn, until each has ended or is full."""
        paused = [place for place, drawn in enumerate(completions) if self._is_paused(drawn)]
        for _ in range(TURNS_MAX):
            cancellation.check()
            paused = self._react([(asked[place][0], completions[place], place) for place in paused], cancellation)
            if not paused:
                return
            prompts = [asked[place][1] + completions[place].tokens for place in paused]
            rooms = [self._limits.tokens_max - len(completions[place].tokens) for place in paused]
            given = self._draw(prompts, 1, rooms, generator, cancellation)
            for place, tokens in zip(paused, given, strict=True):
                self._append(completions[place], tokens, own=1)
            paused = [place for place in paused if self._is_paused(completions[place])]

    def _react(self, paused: Sequence[tuple[Question, TurnCompletion, int]], cancellation: Cancellation) -> list[int]:
        """Put the swarm's answers behind paused completions; places of those that have room to go on."""
        answers = self._ask([(question, drawn.text) for question, drawn, _ in paused], cancellation)
        going = []
        for (_, drawn, place), answer in zip(paused, answers, strict=True):
            if answer is None:
                continue
            room = self._limits.tokens_max - len(drawn.tokens)
            tokens = self._policy.encode_completion(answer, True, room)
            self._append(drawn, tokens, own=0)
            if len(drawn.tokens) < self._limits.tokens_max:
                going.append(place)
        return going

    def _ask(self, paused: Sequence[tuple[Question, str]], cancellation: Cancellation) -> list[str | None]:
        """The plan's answers. A cancellation is not kept waiting: what is under way may end by itself."""
        pool = ThreadPoolExecutor(REACTIONS_AT_ONCE, thread_name_prefix="react")
        try:
            answers = [pool.submit(self._plan.react, question, text) for question, text in paused]
            left = set(answers)
            while left:
                cancellation.check()
                left = wait(left, LOOK_S).not_done
            return self._results(answers)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _results(self, answers: Sequence[Future[str | None]]) -> list[str | None]:
        """What the plan answered; a completion over which it raised ends there."""
        results, raised = [], None
        for answer in answers:
            error = answer.exception()
            if error is not None and not is_plans_own(error):
                raise error
            results.append(answer.result() if error is None else None)
            raised = raised or error
        if raised is not None:
            warn_of(self._plan, raised, "completions are not continued")
        return results

    def _is_paused(self, drawn: TurnCompletion) -> bool:
        full = len(drawn.tokens) >= self._limits.tokens_max
        return not full and drawn.tokens[-1] not in self._policy.stop_ids and drawn.text.endswith(self._plan.stops)

    def _append(self, drawn: TurnCompletion, tokens: Sequence[int], own: int) -> None:
        room = self._limits.tokens_max - len(drawn.tokens)
        drawn.tokens += tokens[:room]
        drawn.own += [own] * len(tokens[:room])
        drawn.text = self._policy.decode_completion(drawn.tokens)

    def _draw(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        rooms: Sequence[int],
        generator: torch.Generator,
        cancellation: Cancellation,
    ) -> list[list[int]]:
        """Tokens of each completion."""
        limits, stops = self._limits, self._plan.stops
        return self._sampler.sample(
            prompts, group, limits.tokens_max, limits.temperature, generator, cancellation, stops, rooms
        )


def encode_turns(plan: Plan, policy: Policy, text: str, cut: bool, tokens_max: int) -> tuple[list[int], list[int]]:
    """Token ids of a finished completion and, for each, whether a model wrote it (1) or the swarm (0)."""
    tokens: list[int] = []
    own: list[int] = []
    start = 0
    spans = [*plan.foreign_spans(text), (len(text), len(text))]
    for place, (begin, end) in enumerate(spans):
        last = place + 1 == len(spans)
        ids = policy.encode_completion(text[start:begin], cut or not last, tokens_max - len(tokens))
        tokens, own = tokens + ids, own + [1] * len(ids)
        ids = policy.encode_completion(text[begin:end], True, tokens_max - len(tokens)) if begin < end else []
        tokens, own = tokens + ids, own + [0] * len(ids)
        start = end
    return tokens, own
