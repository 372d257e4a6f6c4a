"""Which groups of a stage leave the node, and that every peer can read what leaves."""

from __future__ import annotations

from swarmd.swarms.plan import Message, Question, Score
from swarmd.swarms.rollouts import (
    COMPLETION_CHARACTERS_MAX,
    VERSION,
    Group,
    Reference,
    Rollouts,
    decode_rollouts,
    encode_rollouts,
)
from swarmd.training.batches.groups import TrainingGroup
from swarmd.training.batches.publication import Publication


def make_group(index: int, *texts: str) -> TrainingGroup:
    question = Question(Reference("task", "digest", 0, index), (Message("user", "?"),), {})
    rewards = [float(place) for place in range(len(texts))]
    tokens = [[1] for _ in texts]
    return TrainingGroup(question, [1], tokens, list(texts), rewards, [Score(reward) for reward in rewards], tokens)


def test_a_text_too_long_for_the_wire_costs_its_group_and_not_the_stage() -> None:
    """A model that repeats itself reaches the bound within its token limit; the whole body used to be refused then."""
    publication = Publication(8)
    publication.add(make_group(0, "x", "y" * COMPLETION_CHARACTERS_MAX))
    publication.add(make_group(1, "x", "y" * (COMPLETION_CHARACTERS_MAX + 1)))
    chosen = publication.choose()
    groups = tuple(Group("task", "digest", 0, each.question.reference.index, tuple(each.texts)) for each in chosen)
    body = encode_rollouts(Rollouts(VERSION, "swarm", "peer", 0, 0, groups))
    assert [group.index for group in decode_rollouts(body).groups] == [0]
