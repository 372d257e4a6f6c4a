"""Bodies from anyone, and groups kept in words: what is read, and what is refused under which word."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.config import SwarmConfig
from swarmd.core.values import RolloutsRef
from swarmd.errors import RecordRejected
from swarmd.swarms.plan import (
    QUESTION_CHARACTERS_MAX,
    SCORED_BYTES_MAX,
    TRUTH_CHARACTERS_MAX,
    Message,
    Outcome,
    Question,
    Score,
    ScoredGroup,
    StageId,
    decode_scored_groups,
    encode_scored_groups,
    interleave_peer_groups,
)
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import (
    BODY_BYTES_MAX,
    COMPLETION_CHARACTERS_MAX,
    COMPLETIONS_MAX,
    GROUPS_MAX,
    INDEX_MAX,
    SEED_MAX,
    VERSION,
    Group,
    Reference,
    Rollouts,
    check_origin,
    decode_rollouts,
    encode_rollouts,
)

GROUP = Group("digits_sort", "0" * 16, 5, 7, ("<answer>1</answer>", "2"), (1,))
BODY = Rollouts(VERSION, "swarm", "peer", 3, 0, (GROUP,))


def plain(**changes: Any) -> dict[str, Any]:
    """The body as plain values, with changes, as a hostile sender could make it."""
    return {**msgspec.to_builtins(BODY), **changes}


def group(**changes: Any) -> dict[str, Any]:
    return plain(groups=[{**msgspec.to_builtins(GROUP), **changes}])


def reason(body: bytes) -> str:
    with pytest.raises(RecordRejected) as caught:
        decode_rollouts(body)
    return caught.value.reason


names = st.text(min_size=1, max_size=20)
groups = st.builds(
    Group,
    names,
    names,
    st.integers(0, SEED_MAX),
    st.integers(0, INDEX_MAX),
    st.lists(st.text(max_size=40), min_size=1, max_size=8).map(tuple),
)
bodies = st.builds(
    Rollouts,
    st.just(VERSION),
    names,
    names,
    st.integers(0, 2**40),
    st.integers(0, 5),
    st.lists(groups, max_size=5, unique_by=lambda g: (g.task, g.seed, g.index)).map(tuple),
)


@given(bodies)
def test_what_is_written_is_read(body: Rollouts) -> None:
    assert decode_rollouts(encode_rollouts(body)) == body


@settings(max_examples=200)
@given(st.data())
def test_a_cut_or_bent_body_never_crashes(data: st.DataObject) -> None:
    body = bytearray(encode_rollouts(BODY))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    try:
        decode_rollouts(bytes(body))
    except RecordRejected as error:
        assert error.reason in ("malformed", "version", "group-size", "duplicate")
    assert reason(bytes(body[:place])) == "malformed"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (plain(version=VERSION + 1), "version"),
        (plain(round=-1), "malformed"),
        (plain(extra=1), "malformed"),
        (plain(peer=""), "malformed"),
        (plain(groups=[msgspec.to_builtins(GROUP)] * 2), "duplicate"),
        (plain(groups=[{**msgspec.to_builtins(GROUP), "index": n} for n in range(GROUPS_MAX + 1)]), "malformed"),
        (group(seed=SEED_MAX + 1), "malformed"),
        (group(index=INDEX_MAX + 1), "malformed"),
        (group(task="x" * 1000), "malformed"),
        (group(completions=[]), "group-size"),
        (group(completions=["a"] * (COMPLETIONS_MAX + 1)), "malformed"),
        (group(completions=["a" * (COMPLETION_CHARACTERS_MAX + 1), "b"]), "malformed"),
        (group(completions=["a"], cut=[1]), "group-size"),
    ],
)
def test_hostile_bodies(body: dict[str, Any], expected: str) -> None:
    assert reason(msgspec.msgpack.encode(body)) == expected


def test_an_oversized_body_is_not_read() -> None:
    assert reason(b"\x00" * (BODY_BYTES_MAX + 1)) == "oversize"


def test_deep_nesting_is_malformed() -> None:
    assert reason(b"\x91" * 100_000) == "malformed"
    deep = msgspec.msgpack.encode(plain(groups=0))[:-1] + b"\x91" * 100_000 + b"\x00"
    assert reason(deep) == "malformed"


def test_too_much_is_cut_before_it_is_published() -> None:
    texts = tuple("x" * COMPLETION_CHARACTERS_MAX for _ in range(8))
    body = Rollouts(VERSION, "swarm", "peer", 0, 0, tuple(Group("t", "d", 1, n, texts) for n in range(20)))
    encoded = encode_rollouts(body)
    assert len(encoded) <= BODY_BYTES_MAX
    assert 0 < len(decode_rollouts(encoded).groups) < 20


def test_the_body_must_be_what_its_reference_says() -> None:
    ref = RolloutsRef("peer", 3, 0, "", 0, 1)
    check_origin(BODY, ref, "swarm")
    for wrong in (
        msgspec.structs.replace(ref, peer="other"),
        msgspec.structs.replace(ref, round=4),
        msgspec.structs.replace(ref, stage=1),
    ):
        with pytest.raises(RecordRejected, match="published under"):
            check_origin(BODY, wrong, "swarm")
    with pytest.raises(RecordRejected, match="reached swarm"):
        check_origin(BODY, ref, "another")


def test_groups_are_read_back_as_they_were_kept() -> None:
    groups = (ScoredGroup("a", 3, 1, "sums", 7, 2, "1 + 1?", "2", (1.0, 0.0), (True, False)),)
    assert decode_scored_groups(encode_scored_groups(groups)) == groups


def test_what_is_too_much_is_left_out_from_the_end() -> None:
    long = "x" * QUESTION_CHARACTERS_MAX
    groups = [ScoredGroup("a", 0, 0, "sums", 0, index, long) for index in range(500)]
    body = encode_scored_groups(groups)
    assert len(body) <= SCORED_BYTES_MAX
    kept = decode_scored_groups(body)
    assert len(kept) > 50 and list(kept) == groups[: len(kept)]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"x" * (SCORED_BYTES_MAX + 1), msgspec.msgpack.encode([[1, 2, 3]])])
def test_what_is_no_such_thing_is_refused(body: bytes) -> None:
    with pytest.raises(RecordRejected):
        decode_scored_groups(body)


def test_peers_take_turns_and_texts_are_cut() -> None:
    plan = make_plan(SwarmConfig("test"))

    def outcome(peer: str, index: int) -> Outcome:
        entry = {"answer": "y" * 9999} if index else {"answer": None}
        question = Question(Reference("sums", "c", 0, index), (Message("user", "x" * 9999),), entry)
        return Outcome(StageId(peer, 0, 0), question, ("1",), (Score(1.0, 1.0),))

    found = list(interleave_peer_groups(plan, [[outcome("a", 0), outcome("a", 1), outcome("a", 2)], [outcome("b", 0)]]))
    assert [(group.peer, group.index) for group in found] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert {len(group.question) for group in found} == {QUESTION_CHARACTERS_MAX}
    assert [len(group.truth) for group in found] == [0, 0, TRUTH_CHARACTERS_MAX, TRUTH_CHARACTERS_MAX]
    assert all(group.rewards == (1.0,) and group.right == (True,) for group in found)
