"""Peers whose right answers are longer than those of others make nobody write more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import pytest

from swarmd.core.values import RolloutsRef
from swarmd.observe.words import describe_masked_rollouts
from swarmd.swarms.plan import NO_MATERIAL, Question, Score, StageId
from swarmd.swarms.rollouts import VERSION, Group, Reference, Rollouts, encode_rollouts
from swarmd.training.engine import TrainingEngine
from swarmd.training.groups import TrainingGroup
from swarmd.training.lengths import RIGHTS_MIN, split_by_length
from tests.training.conftest import train_stage

RIGHT, WRONG = Score(1.0, 1.0, 0.0), Score(0.0, 0.0, 0.0)


def group(peer: str, rights: Sequence[int], wrongs: Sequence[int] = (90,), task: str = "sort") -> TrainingGroup:
    """A group with right and wrong answers of these lengths."""
    lengths = [*rights, *wrongs]
    scores = [RIGHT] * len(rights) + [WRONG] * len(wrongs)
    question = Question(Reference(task, "digest", 0, 0), (), {})
    tokens = [[1] * length for length in lengths]
    return TrainingGroup(
        question, [1], tokens, ["text"] * len(tokens), [each.reward for each in scores], scores, tokens, peer
    )


USUAL = [group("anna", [10, 11, 12, 13]), group("otto", [9, 12, 12, 15]), group("ida", [12, 12])]


@pytest.mark.parametrize(
    ("made", "left_out"),
    [
        ([*USUAL, group("eve", [20] * 4)], ["eve"]),
        ([*USUAL, group("eve", [20] * 2), group("eve", [20] * 2)], ["eve", "eve"]),  # over all of its groups
        ([*USUAL, group("eve", [12] * 4), group("eve", [20] * 4)], ["eve"]),  # as many as make it too long
        ([*USUAL, group("eve", [12] * 4)], []),
        ([*USUAL, group("eve", [12] * 4, wrongs=[99] * 4)], []),  # only wrong ones are long
        ([*USUAL, group("eve", [20] * (RIGHTS_MIN - 1))], []),  # too few to say
        ([*USUAL[:1], group("eve", [20] * 4)], []),  # nobody knows what is usual
        ([*USUAL[:2], group("eve", [20] * 4, task="rare")], []),  # a task that nobody else can do
        ([*USUAL[:2], group("ida", [3] * 4), group("eve", [11] * 4)], ["otto"]),  # of two that differ the longer one
    ],
)
def test_groups_with_needlessly_long_right_answers_are_left_out(made: list[TrainingGroup], left_out: list[str]) -> None:
    kept, long = split_by_length(made)
    assert [each.peer for each in long] == left_out
    assert sorted(map(id, [*kept, *long])) == sorted(map(id, made))


def test_what_the_swarm_put_there_does_not_count() -> None:
    """Such as a program's output in a turn."""
    long = group("eve", [40] * 4)
    answered = [[1] * 12 + [0] * 28 for _ in range(4)] + [[1] * 90]
    eve = TrainingGroup(long.question, [1], long.completions, long.texts, long.rewards, long.scores, answered, "eve")
    assert split_by_length([*USUAL, eve])[1] == []
    assert split_by_length([*USUAL, long])[1] == [long]


def publish(engine: TrainingEngine, peer: str, right: str) -> RolloutsRef:
    """Put a peer's rollouts into the engine's store: half of each group is right, in this form."""
    questions = islice(engine._plan.draw(StageId(peer, 0, 0), NO_MATERIAL), 16)
    groups = []
    for question in questions:
        where, text = question.reference, right.replace("{}", str(question.entry["answer"]))
        groups.append(Group(where.task, where.config_digest, where.seed, where.index, (text, "?", text, "?")))
    body = encode_rollouts(Rollouts(VERSION, "test", peer, 0, 0, tuple(groups)))
    return RolloutsRef(peer, 0, 0, engine._blobs.put(body), len(body), len(groups))


def test_a_stage_leaves_a_peer_out_that_pads_and_says_so(make_engine: Callable[..., TrainingEngine]) -> None:
    engine = make_engine(completion_tokens=26, questions=6, peer_questions=5, steps=3, held_out_questions=0)
    forms = {"anna": "<answer>{}</answer>", "otto": "<answer>{}</answer>", "eve": "{} {} <answer>{}</answer>"}
    event = train_stage(engine, 1, tuple(publish(engine, peer, form) for peer, form in forms.items()))
    assert event.peer_groups > 0
    (aside,) = (each for each in event.set_aside if each.too_long)
    assert aside.peer == "eve" and aside.too_long >= 12, "a task of which it has few right answers may be left"
    assert f"{aside.too_long} as its right answers are longer than others'" in describe_masked_rollouts(event)
