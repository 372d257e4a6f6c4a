"""What lies under v0.4's keys: written as it writes it, read strictly."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.dht.identity.identity import is_peer_id, load_identity
from swarmd.dht.identity.rsa import create_rsa_identity
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.records import (
    ROWS_MAX,
    Output,
    leaderboard_of,
    outputs_of,
    read_output,
    read_place,
    read_reward,
)
from swarmd.dht.legacy.rollouts import outputs_in, rollouts_of
from swarmd.dht.legacy.values import VALUE_BYTES_MAX, decode, encode
from swarmd.dht.p2p.hivemind_api import P2P, PeerID
from swarmd.errors import IdentityError, RecordRejected
from swarmd.swarms.rollouts import COMPLETION_CHARACTERS_MAX, QUOTED_CHARACTERS_MAX, Group, Quoted, Rollouts

PEER, OTHER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "Qma9T5YraSnpRDZqRR4krcSJabThc8nwZuJV3LercPHufi"
PEERS = {  # first three bytes of md5, which upstream makes names of
    PEER: "7831d7",
    OTHER: "2855ae",
    "Qmb8wVVVMTRmG4U1tCdaCCqietuWwpGRSbL53PA5azBViP": "110edb",
    "QmQ2gEXoPJg6iMBSUFWGzAabS2VhnzuS782Y637hGjfsRJ": "1a3107",
}
QUESTION = "What is 2+2?"
HASH = keys.question_key(QUESTION)
OUTPUT = Output(1.5, QUESTION, "4", "the prompt", "<answer>4</answer>")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(["question", "answer", "agent_answers"]), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def fields_of(**changes: Any) -> dict[str, Any]:
    return {"question": QUESTION, "answer": "4", "agent_answers": {PEER: "four"}} | changes


def reason_of(read: Any, *args: Any) -> str:
    with pytest.raises(RecordRejected) as refused:
        read(*args)
    return refused.value.reason


@pytest.mark.parametrize(("peer", "start"), PEERS.items())
def test_peer_ids_of_v04_are_peer_ids(peer: str, start: str) -> None:
    assert is_peer_id(peer) and PeerID.from_base58(peer).to_base58() == peer
    assert hashlib.md5(peer.encode()).hexdigest()[:6] == start


def test_our_key_file_is_what_hivemind_would_have_made(tmp_path: Path) -> None:
    made = create_rsa_identity(tmp_path / "ours.key")
    raw = (tmp_path / "ours.key").read_bytes()
    assert raw[:3] == bytes.fromhex("080012") and 1190 < len(raw) < 1210
    assert str(PeerID.from_identity(raw)) == made.peer_id and made.kind == "rsa-2048"
    assert (tmp_path / "ours.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError):
        create_rsa_identity(tmp_path / "ours.key")
    P2P.generate_identity(str(tmp_path / "swarm.pem"))
    theirs = load_identity(tmp_path / "swarm.pem")
    assert theirs.peer_id == str(PeerID.from_identity((tmp_path / "swarm.pem").read_bytes()))


@pytest.mark.parametrize("value", [(3, 1), [3, 1]])
def test_a_clock_is_a_pair(value: Any) -> None:
    assert read_place(encode(value)) == (3, 1)


@pytest.mark.parametrize(
    "value", [3, (3,), (3, 1, 2), (3.0, 1), (True, 1), (-1, 0), (2**31, 0), (0, 3), ("3", "1"), {"a": 1}, None]
)
def test_anything_else_is_no_clock(value: Any) -> None:
    assert reason_of(read_place, encode(value)) == "malformed"


@pytest.mark.parametrize(("value", "reward"), [(4.25, 4.25), (0, 0.0), (-3, -3.0)])
def test_a_reward_is_a_number(value: Any, reward: float) -> None:
    assert read_reward(encode(value)) == reward and type(read_reward(encode(value))) is float


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "non-finite"),
        (-math.inf, "non-finite"),
        (1e30, "oversized"),
        (2**62, "malformed"),
        (True, "malformed"),
        ("1.0", "malformed"),
        ([1.0], "malformed"),
        (None, "malformed"),
    ],
)
def test_anything_else_is_no_reward(value: Any, reason: str) -> None:
    assert reason_of(read_reward, encode(value)) == reason


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, {"question": QUESTION, "answer": "4", "agent_answers": {PEER: OUTPUT.completion}}),
        (
            1,
            {
                "question": QUESTION,
                "answer": "4",
                "stage2_prompt": "the prompt",
                "agent_opinion": {PEER: OUTPUT.completion},
            },
        ),
        (
            2,
            {
                "question": QUESTION,
                "answer": "4",
                "stage3_prompt": "the prompt",
                "final_agent_decision": {PEER: OUTPUT.completion},
            },
        ),
    ],
)
def test_an_output_has_exactly_its_stages_keys(stage: int, expected: dict[str, Any]) -> None:
    value = outputs_of(stage, PEER, OUTPUT)
    assert value == (1.5, expected) and list(value[1]) == list(expected)
    read = read_output(stage, PEER, HASH, encode(value))
    assert read == (OUTPUT if stage else Output(1.5, QUESTION, "4", "", OUTPUT.completion))


def test_an_output_of_older_peers_lies_under_the_question_itself() -> None:
    value = encode((1, fields_of(answer=None)))
    assert read_output(0, PEER, QUESTION, value) == Output(1.0, QUESTION, "", "", "four")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "malformed"),
        ((1.0,), "malformed"),
        ((1.0, [1]), "wrong-keys"),
        (("now", fields_of()), "malformed"),
        ((math.nan, fields_of()), "non-finite"),
        ((1.0, fields_of(more=1)), "wrong-keys"),
        ((1.0, {"question": QUESTION, "answer": "4"}), "wrong-keys"),
        ((1.0, {"question": QUESTION, "answer": "4", "agent_opinion": {PEER: "x"}}), "wrong-keys"),
        ((1.0, fields_of(question=7)), "malformed"),
        ((1.0, fields_of(question="another")), "wrong-key"),
        ((1.0, fields_of(answer=4)), "malformed"),
        ((1.0, fields_of(answer="4" * (QUOTED_CHARACTERS_MAX + 1))), "oversized"),
        ((1.0, fields_of(agent_answers="four")), "malformed"),
        ((1.0, fields_of(agent_answers={})), "unowned"),
        ((1.0, fields_of(agent_answers={OTHER: "four"})), "unowned"),
        ((1.0, fields_of(agent_answers={PEER: "four", OTHER: "five"})), "unowned"),
        ((1.0, fields_of(agent_answers={PEER: ["four"]})), "malformed"),
        ((1.0, fields_of(agent_answers={PEER: "x" * (COMPLETION_CHARACTERS_MAX + 1)})), "oversized"),
    ],
)
def test_outputs_that_are_none_are_refused(value: Any, reason: str) -> None:
    assert reason_of(read_output, 0, PEER, HASH, encode(value)) == reason


@given(junk, st.integers(0, 2))
def test_whatever_peers_write_nothing_but_a_refusal_is_raised(value: Any, stage: int) -> None:
    for read in (read_place, read_reward, lambda raw: read_output(stage, PEER, HASH, raw)):
        for raw in (encode(value), encode((1.0, value))):
            try:
                read(raw)
            except RecordRejected as error:
                assert error.reason and error.message


@given(st.integers(0, 2), texts, texts, texts, texts, st.floats(0, 4e9))
def test_an_output_is_read_back(stage: int, question: str, answer: str, prompt: str, text: str, at: float) -> None:
    output = Output(at, question, answer, prompt if stage else "", text)
    raw = encode(outputs_of(stage, PEER, output))
    assert read_output(stage, PEER, keys.question_key(question), raw) == output


def test_a_time_stamp_of_msgpacks_is_nothing_here() -> None:
    for read in (read_place, read_reward):
        assert reason_of(read, b"\xd6\xff\x00\x00\x00\x00") == "malformed"


def test_the_leaderboard_has_the_highest_reward_first_then_the_greater_peer() -> None:
    rows = leaderboard_of({"Qa": 1.0, "Qb": 2.0, "Qc": 1.0})
    assert rows == [("Qb", 2.0), ("Qc", 1.0), ("Qa", 1.0)]
    assert encode([("A", 2.0)]) == encode(leaderboard_of({"A": 2.0}))


def test_a_leaderboard_of_any_number_of_rewards_fits_into_a_value() -> None:
    rewards = {f"12D3KooW{number:044}": 1e9 - number for number in range(3 * ROWS_MAX)}
    rows = leaderboard_of(rewards)
    assert len(encode(rows)) <= VALUE_BYTES_MAX and rows == list(rewards.items())[:ROWS_MAX]


@given(st.dictionaries(st.sampled_from(list(PEERS)), st.floats(-1e9, 1e9)))
def test_a_leaderboard_is_read_back(rewards: dict[str, float]) -> None:
    rows = decode(encode(leaderboard_of(rewards)))
    assert dict(rows) == rewards


def test_rollouts_become_outputs_and_outputs_rollouts() -> None:
    groups = (
        Group("gsm8k", "d", 1, 2, ("no", "yes"), quoted=Quoted("q1", "a1", "p1", 1)),
        Group("gsm8k", "d", 1, 3, ("silent",)),
        Group("gsm8k", "d", 1, 4, ("only",), quoted=Quoted("q2", choice=5)),
    )
    outputs = outputs_in(Rollouts(1, "swarm", PEER, 0, 1, groups, 2.0))
    assert list(outputs) == [keys.question_key("q1")]
    output = outputs[keys.question_key("q1")]
    assert (output.question, output.answer, output.prompt, output.completion) == ("q1", "a1", "p1", "yes")
    body, encoded, refused = rollouts_of("swarm", PEER, 0, 1, 2.5, [output, output])
    assert [error.reason for error in refused] == ["duplicate"]
    assert (body.peer, body.round, body.stage, body.total, len(body.groups)) == (PEER, 0, 1, 2.5, 1)
    assert body.groups[0].quoted == Quoted("q1", "a1", "p1") and body.groups[0].completions == ("yes",)
    assert b"legacy" in encoded


def test_a_peers_outputs_are_bounded_together() -> None:
    large = [Output(1.0, f"{number}", "x" * 60_000, "", "x" * 16_000) for number in range(20)]
    body, encoded, refused = rollouts_of("swarm", PEER, 0, 0, 0.0, large)
    assert len(body.groups) == 10 and len(encoded) < 2**20
    assert [error.reason for error in refused] == ["oversized"] * 10
