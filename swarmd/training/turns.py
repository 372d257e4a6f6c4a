"""Conversations as rollouts: the model's turns are drawn, an environment's answers stand between them.

- A rollout is one sequence: the prompt, then turns and answers as the chat template renders them. So a pass computes
  each token once, however many turns there are, and answers' tokens are not trained on.
- All rollouts of a batch go on together, turn by turn. A rollout ends if its environment says so, at the limits of its
  turns and answers (`swarmd.swarms.conversation.TurnLimits`), or at its token limit; then its last turn is cut.
- A rollout whose environment fails or hangs gets reward 0; none of its tokens is trained on, and its group is not
  published.
- A peer's rollout is replayed here with its turns before it is believed. If the answers here differ, or it cannot be
  replayed, it is refused (`turns`).
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch

from swarmd.errors import RecordRejected
from swarmd.swarms.conversation import (
    CALLS_AT_ONCE,
    Conversation,
    ConversationCalls,
    ConversationPlan,
    EnvironmentFailed,
)
from swarmd.swarms.plan import Message, Plan, Question, Score
from swarmd.swarms.rollouts import Group, split_turns
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import score_own
from swarmd.training.sampling import BaseSampler, TurnCompletion, TurnSampler


def make_turn_sampler(
    plan: Plan, policy: Policy, sampler: BaseSampler, tokens_max: int, temperature: float
) -> TurnSampler:
    """Make the sampler for a plan's completions: single texts, or conversations."""
    make = ConversationSampler if isinstance(plan, ConversationPlan) else TurnSampler
    return make(plan, policy, sampler, tokens_max, temperature)


def score_drawn(
    plan: Plan, question: Question, drawn: Sequence[TurnCompletion]
) -> tuple[tuple[Score, ...], BaseException | None]:
    """Score own completions, as `score_own`. A conversation already has its score from its environment."""
    known = [each.score for each in drawn if each.score is not None]
    return (
        (tuple(known), None) if len(known) == len(drawn) else score_own(plan, question, [each.text for each in drawn])
    )


def complete_prompts(plan: Plan, questions: Iterable[Question]) -> Iterator[Question]:
    """The questions with their prompts' messages, without those whose environment fails."""
    for question in questions:
        with contextlib.suppress(EnvironmentFailed):
            yield plan.complete_prompt(question)


@dataclass(eq=False)
class ConversationSampler(TurnSampler):
    """Draws conversations for one plan."""

    def complete_questions(
        self,
        questions: Sequence[Question],
        prompts: Sequence[list[int]],
        group: int,
        generator: torch.Generator,
        cancellation: Cancellation,
    ) -> list[TurnCompletion]:
        """Hold `group` conversations about each question, question by question. Raises Cancelled."""
        assert isinstance(self.plan, ConversationPlan)
        draw = self._make_draw(generator, cancellation)
        timer, calls = self.sampler.timer, ConversationCalls(cancellation.raise_if_requested)
        rollouts = [Conversation(self.plan, question) for question in questions for _ in range(group)]
        parts: list[list[TurnCompletion]] = [[] for _ in rollouts]  # each rollout's turns and answers
        try:
            with timer.time("score"):
                calls.run_each([(rollout, rollout.begin) for rollout in rollouts])
            going, drawn = list(range(len(rollouts))), draw(prompts, group)
            while True:
                for place, turn in zip(going, drawn, strict=True):
                    text = self.policy.decode_completion(turn.tokens)
                    parts[place].append(TurnCompletion(turn.tokens, [1] * len(turn.tokens), text, turn.logps))
                with timer.time("score"):
                    going = self._append_answers(going, rollouts, parts, calls)
                if not going:
                    break
                begun = [prompts[place // group] + join_tokens(parts[place]) for place in going]
                drawn = draw(begun, 1, [self._count_room(parts[place]) for place in going])
            with timer.time("score"):
                scores = calls.finish(rollouts)
        except BaseException:
            calls.abandon(rollouts)
            raise
        return [join_parts(each, score) for each, score in zip(parts, scores, strict=True)]

    def _append_answers(
        self,
        going: Sequence[int],
        rollouts: Sequence[Conversation],
        parts: Sequence[list[TurnCompletion]],
        calls: ConversationCalls,
    ) -> list[int]:
        """Append to each rollout the answer to its last turn. Returns the indices of those that go on."""
        answers = calls.run_each(
            [(rollouts[place], partial(rollouts[place].answer, parts[place][-1].text)) for place in going]
        )
        left = []
        for place, answer in zip(going, answers, strict=True):
            turn = parts[place][-1]
            if answer is None or turn.tokens[-1] not in self.policy.stop_ids:
                continue
            encoded = encode_answer(self.policy, rollouts[place].plan, answer, bool(turn.logps))
            if len(encoded.tokens) < self._count_room(parts[place]):  # a turn has at least one token
                parts[place].append(encoded)
                left.append(place)
        return left

    def _count_room(self, parts: Sequence[TurnCompletion]) -> int:
        """Number of tokens that a rollout may still have."""
        return self.tokens_max - sum(len(part.tokens) for part in parts)


def encode_answer(policy: Policy, plan: ConversationPlan, answer: str, has_logps: bool) -> TurnCompletion:
    """Encode an environment's answer as the model sees it between two turns."""
    tokens = policy.encode_answer(Message(plan.answer_role, answer))
    return TurnCompletion(tokens, [0] * len(tokens), answer, [0.0] * len(tokens) if has_logps else [])


def join_tokens(parts: Sequence[TurnCompletion]) -> list[int]:
    return [token for part in parts for token in part.tokens]


def join_parts(parts: Sequence[TurnCompletion], score: Score) -> TurnCompletion:
    """Join a rollout's parts to one completion. If its environment failed, none of its tokens counts as the model's
    own."""
    return TurnCompletion(
        join_tokens(parts),
        [0 if score.failed else own for part in parts for own in part.own],
        "".join(part.text for part in parts),
        [logp for part in parts for logp in part.logps],
        tuple(accumulate(len(part.text) for part in parts[:-1])),
        score,
    )


class Replay:
    """Replays peers' rollouts of one stage. `peers`: number of peers, which share the seconds for it. `check`: raises
    if the stage is cancelled."""

    def __init__(
        self, plan: ConversationPlan, policy: Policy, tokens_max: int, peers: int, check: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._policy = policy
        self._tokens_max = tokens_max
        self._seconds = plan.limits.peer_s / max(peers, 1)  # for one peer's replays
        self._calls = ConversationCalls(check)
        self._used: dict[str, float] = {}  # by peer

    def run_group(
        self, peer: str, question: Question, group: Group
    ) -> tuple[Question, list[TurnCompletion], tuple[Score, ...]]:
        """Replay a peer's group. Returns the question with its prompt's messages, the group in this node's tokens, and
        its scores here. Raises RecordRejected: `turns` (it cannot be replayed, answers differ here, or the peer's
        seconds are used up) or `empty`."""
        left = self._seconds - self._used.get(peer, 0.0)
        if left <= 0:
            raise RecordRejected("turns", f"there is no time left to run again what {peer} wrote")
        begun, calls = time.monotonic(), self._calls
        parts = [self._encode(peer, group, index) for index in range(len(group.completions))]
        rollouts: list[Conversation] = []
        try:
            question = self._plan.complete_prompt(question)
            rollouts += [Conversation(self._plan, question) for _ in parts]
            share = left / math.ceil(len(rollouts) / CALLS_AT_ONCE)  # so many run one after the other
            for rollout in rollouts:
                rollout.seconds_left = min(rollout.seconds_left, share)
            calls.run_each([(rollout, rollout.begin) for rollout in rollouts])
            pairs = zip(rollouts, parts, strict=True)
            calls.run_each([(rollout, partial(repeat_turns, rollout, each)) for rollout, each in pairs])
            scores = calls.finish(rollouts)
        except BaseException:
            calls.abandon(rollouts)
            raise
        finally:
            self._used[peer] = self._used.get(peer, 0.0) + time.monotonic() - begun
        failure = next((rollout.failure for rollout in rollouts if rollout.failure), "")
        if failure or any(score.failed for score in scores):
            raise RecordRejected("turns", f"what {peer} wrote cannot be run again: {failure or 'it has no score'}")
        drawn = [join_parts(each, score) for each, score in zip(parts, scores, strict=True)]
        return question, drawn, tuple(scores)

    def _encode(self, peer: str, group: Group, index: int) -> list[TurnCompletion]:
        """Turns and answers in this node's tokens. What does not fit is left out, and the last turn is cut."""
        texts = split_turns(group.completions[index], group.turns[index] if group.turns else ())
        parts: list[TurnCompletion] = []
        room = self._tokens_max
        for place, text in enumerate(texts):
            is_last = place + 1 == len(texts)
            if place % 2:
                answer = encode_answer(self._policy, self._plan, text, False)
                if len(answer.tokens) >= room:
                    break
                parts.append(answer)
            else:
                tokens = self._policy.encode_completion(text, is_last and index in group.cut, room)
                is_whole = tokens[-1:] == [self._policy.tokenizer.eos_token_id]
                shown = text if is_whole else self._policy.decode_completion(tokens)
                parts.append(TurnCompletion(tokens, [1] * len(tokens), shown))
                if not is_whole:
                    break
            room -= len(parts[-1].tokens)
        if not parts[0].tokens:
            raise RecordRejected("empty", f"{peer} sent an empty completion")
        return parts


def repeat_turns(rollout: Conversation, parts: Sequence[TurnCompletion]) -> None:
    """Replay a rollout's turns and compare the environment's answers. Raises EnvironmentFailed if they differ."""
    for place in range(0, len(parts), 2):
        answer = rollout.answer(parts[place].text)
        if place + 1 < len(parts) and answer != parts[place + 1].text:
            raise EnvironmentFailed("it answers something else here")
