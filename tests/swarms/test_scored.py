"""Questions, truths and rewards in words: bounded, and read back as they were kept."""

from __future__ import annotations

import msgspec
import pytest

from swarmd.config import SwarmConfig
from swarmd.errors import RecordRejected
from swarmd.swarms.plan import Message, Outcome, Question, Score, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import Reference
from swarmd.swarms.scored import (
    QUESTION_CHARACTERS_MAX,
    SCORED_BYTES_MAX,
    TRUTH_CHARACTERS_MAX,
    ScoredGroup,
    decode_scored,
    encode_scored,
    of_peers,
)


def test_groups_are_read_back_as_they_were_kept() -> None:
    groups = (ScoredGroup("a", 3, 1, "sums", 7, 2, "1 + 1?", "2", (1.0, 0.0), (True, False)),)
    assert decode_scored(encode_scored(groups)) == groups


def test_what_is_too_much_is_left_out_from_the_end() -> None:
    long = "x" * QUESTION_CHARACTERS_MAX
    groups = [ScoredGroup("a", 0, 0, "sums", 0, index, long) for index in range(500)]
    body = encode_scored(groups)
    assert len(body) <= SCORED_BYTES_MAX
    kept = decode_scored(body)
    assert len(kept) > 50 and list(kept) == groups[: len(kept)]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"x" * (SCORED_BYTES_MAX + 1), msgspec.msgpack.encode([[1, 2, 3]])])
def test_what_is_no_such_thing_is_refused(body: bytes) -> None:
    with pytest.raises(RecordRejected):
        decode_scored(body)


def test_peers_take_turns_and_texts_are_cut() -> None:
    plan = make_plan(SwarmConfig("test"))

    def outcome(peer: str, index: int) -> Outcome:
        entry = {"answer": "y" * 9999} if index else {"answer": None}
        question = Question(Reference("sums", "c", 0, index), (Message("user", "x" * 9999),), entry)
        return Outcome(StageId(peer, 0, 0), question, ("1",), (Score(1.0, 1.0),))

    found = list(of_peers(plan, [[outcome("a", 0), outcome("a", 1), outcome("a", 2)], [outcome("b", 0)]]))
    assert [(group.peer, group.index) for group in found] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert {len(group.question) for group in found} == {QUESTION_CHARACTERS_MAX}
    assert [len(group.truth) for group in found] == [0, 0, TRUTH_CHARACTERS_MAX, TRUTH_CHARACTERS_MAX]
    assert all(group.rewards == (1.0,) and group.right == (True,) for group in found)
