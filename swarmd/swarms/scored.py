"""What a node made of questions and completions at a stage, in words: question, truth and rewards, for people to read.

The trainer alone knows them, for it generates questions again and scores what it and its peers wrote. It keeps them
beside the log, under the digest in `StageTrained.scored`; nothing but views reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Annotated

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.values import Value
from swarmd.errors import RecordRejected
from swarmd.swarms.plan import Outcome, Plan, Question, Score
from swarmd.swarms.rollouts import COMPLETIONS_MAX, GROUPS_MAX

CORRECT = 0.99  # accuracy from which an answer counts as right, see `Score.accuracy`
SCORED_BYTES_MAX = 256 * 1024  # of one stage; the last groups are left out beyond
SCORED_GROUPS_MAX = 4 * GROUPS_MAX
QUESTION_CHARACTERS_MAX = 2000
TRUTH_CHARACTERS_MAX = 500

Short = Annotated[str, msgspec.Meta(max_length=QUESTION_CHARACTERS_MAX)]


class ScoredGroup(Value, frozen=True):
    """One group of completions: whose it is, what was asked, and what each completion was worth here.

    Attributes:
        peer, round, stage: whose, and when it was published.
        task, seed, index: name the question, as in `Reference`.
        question: the last message of the prompt, cut to `QUESTION_CHARACTERS_MAX`.
        truth: the answer expected; empty where the task has none to compare with.
        rewards: of the completions, in their order.
        right: whether the answer of each counts as correct.
    """

    peer: Short
    round: int
    stage: int
    task: Short
    seed: int
    index: int
    question: Short = ""
    truth: Annotated[str, msgspec.Meta(max_length=TRUTH_CHARACTERS_MAX)] = ""
    rewards: Annotated[tuple[float, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()
    right: Annotated[tuple[bool, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()

    @property
    def key(self) -> tuple[str, int, int, str, int, int]:
        """Which group of which peer and stage it is."""
        return (self.peer, self.round, self.stage, self.task, self.seed, self.index)


Groups = Annotated[tuple[ScoredGroup, ...], msgspec.Meta(max_length=SCORED_GROUPS_MAX)]
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Groups)


def score_group(
    plan: Plan, question: Question, peer: str, round: int, stage: int, scores: Iterable[Score]
) -> ScoredGroup:
    """A scored group in words."""
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
    )


def of_peers(plan: Plan, judged: Iterable[Iterable[Outcome]]) -> Iterator[ScoredGroup]:
    """Groups of peers, of each in turn, so that many of one crowd nobody out."""
    for turn in zip_longest(*judged):
        for outcome in turn:
            if outcome is not None:
                place = outcome.place
                yield score_group(plan, outcome.question, place.peer, place.round, place.stage, outcome.scores)


def encode_scored(groups: Iterable[ScoredGroup]) -> bytes:
    """The groups as they lie in the blob store; the last ones are left out until they fit `SCORED_BYTES_MAX`."""
    kept = tuple(groups)[:SCORED_GROUPS_MAX]
    body = _encoder.encode(kept)
    while len(body) > SCORED_BYTES_MAX:
        kept = kept[: len(kept) * 3 // 4]
        body = _encoder.encode(kept)
    return body


def decode_scored(body: bytes) -> tuple[ScoredGroup, ...]:
    """Read them back. Raises RecordRejected(`oversize` or `malformed`)."""
    if len(body) > SCORED_BYTES_MAX:
        raise RecordRejected("oversize", f"scored groups of {len(body)} bytes, the limit is {SCORED_BYTES_MAX}")
    try:
        return _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"scored groups cannot be read: {error}") from error
