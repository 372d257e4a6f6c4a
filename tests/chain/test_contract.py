"""The contract's interface: what is encoded, what is decoded, and what errors say; nothing from the chain breaks it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from swarmd.chain.contract import (
    ERRORS,
    advice_for_error,
    call_view,
    decode_result,
    decode_revert_data,
    encode_call,
)
from swarmd.chain.coordinator import CoordinatorContract, RoundPolicy
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.logs import (
    PEER_CHARS_MAX,
    PLACE_MAX,
    WINNERS_MAX,
    MalformedAbi,
    decode_values,
    event_topic,
    parse_block_time,
)
from swarmd.core.events import OtherLog, PolicyLog, RegistrationLog, RewardLog, StageLog, VoteLog
from swarmd.errors import ChainError, ChainMismatch, ContractRefused
from tests.chain.grounds import Act, Answer, Call, Ground, acting, calls_through, decode_log, error, result
from tests.contracts.chain import INT_REWARD, artefact, error_names

pytestmark = pytest.mark.anyio
ACCOUNT = "0x" + 40 * "1"
PEERS = st.text(st.characters(codec="utf-8"), max_size=PEER_CHARS_MAX)
UINTS = st.integers(0, 2**256 - 1)
INTS = st.integers(-(2**255), 2**255 - 1)


def entry(signature: str, indexed: list[int], types: list[str], *values: Any) -> dict[str, Any]:
    """An entry of eth_getLogs."""
    return {
        "address": ACCOUNT,
        "topics": [event_topic(signature), *("0x" + f"{each:064x}" for each in indexed)],
        "data": "0x" + encode(types, values).hex(),
        "blockNumber": "0x5",
        "blockHash": "0x" + 64 * "a",
        "transactionHash": "0x" + 64 * "b",
        "logIndex": "0x3",
    }


def reward(round: int, stage: int, reward: int, peer: str) -> dict[str, Any]:
    signature = "RewardSubmitted(address,uint256,uint256,int256,string)"
    return entry(signature, [int(ACCOUNT, 16), round, stage], ["int256", "string"], reward, peer)


def vote(round: int, peer: str, winners: list[str]) -> dict[str, Any]:
    signature = "WinnerSubmitted(address,string,uint256,string[])"
    return entry(signature, [int(ACCOUNT, 16), round], ["string", "string[]"], peer, winners)


# --- calls and results ---


def test_every_error_of_the_build_is_known_and_has_advice() -> None:
    own = {name: selector for selector, name in error_names().items()}
    known = {name: selector for selector, name in ERRORS.items()}
    assert own.items() <= known.items()
    assert all(advice_for_error(name) for name in known)
    assert advice_for_error("NoSuchError") == ""


@given(UINTS, INTS, st.booleans(), PEERS, st.lists(PEERS, max_size=5), st.lists(INTS, max_size=5))
def test_results_are_decoded_as_eth_abi_does(
    unsigned: int, signed: int, flag: bool, peer: str, peers: list[str], totals: list[int]
) -> None:
    types = ["uint256", "int256", "bool", "string", "string[]", "int256[]"]
    values = (unsigned, signed, flag, peer, tuple(peers), tuple(totals))
    assert decode_result(types, encode(types, values)) == values


@given(st.binary(max_size=400))
def test_any_bytes_are_a_value_or_an_error(encoded: bytes) -> None:
    for types in (["uint256"], ["string"], ["string[]"], ["address[]"], ["string[][]"]):
        try:
            values = decode_values(types, encoded)
        except MalformedAbi:
            continue
        assert len(values) == 1


def test_offsets_into_one_text_do_not_multiply_it() -> None:
    text = b"\0" * 30 + (60_000).to_bytes(2, "big") + b"x" * 60_000
    count = 20_000
    offsets = (count * 32).to_bytes(32, "big") * count
    encoded = (32).to_bytes(32, "big") + count.to_bytes(32, "big") + offsets + text
    with pytest.raises(ChainError, match="overlapping"):
        decode_result(["string[]"], encoded)


# --- errors ---


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ("0x", "", ""),
        ("0x12345678", "", "0x12345678"),
        ("0x08c379a0" + encode(["string"], ["Start index\nmust"]).hex(), "Error", "Start index must"),
        ("0x08c379a0" + 64 * "f" + 64 * "f" + "41", "Error", ""),
        ("0x4e487b71" + f"{0x11:064x}", "Panic", "overflow"),
        ("0x4e487b71", "Panic", "0x0"),
    ],
)
def test_revert_data_is_explained(data: str, code: str, words: str) -> None:
    assert decode_revert_data(data)[0] == code and words in decode_revert_data(data)[1]


@given(st.text(max_size=300))
def test_any_revert_data_is_explained_shortly(data: str) -> None:
    for given_data in (data, "0x08c379a0" + data, "0x4e487b71" + data):
        code, words = decode_revert_data(given_data)
        assert len(code) < 30 and len(words) <= 300


# --- logs ---


def test_entries_become_facts() -> None:
    origin = (3, "0x" + 64 * "b")
    account = "0x1111111111111111111111111111111111111111"
    assert decode_log(entry("StageAdvanced(uint256,uint256)", [7], ["uint256"], 2)) == StageLog(*origin, 7, 2)
    assert decode_log(reward(7, 1, -(2**255), "p")) == RewardLog(*origin, account, "p", 7, 1, str(-(2**255)))
    assert decode_log(vote(7, "p", ["a", "b"])) == VoteLog(*origin, account, "p", 7, ("a", "b"))
    registered = entry("PeerRegistered(address,string)", [int(ACCOUNT, 16)], ["string"], "p")
    assert decode_log(registered) == RegistrationLog(*origin, account, "p")
    policy = entry("RoundPolicyChanged(address,uint256,uint256)", [1], ["uint256", "uint256"], 3, 60)
    assert decode_log(policy) == PolicyLog(*origin, 3, 60)
    assert decode_log(entry("Upgraded(address)", [1], [])) == OtherLog(*origin, "Upgraded")


def test_every_event_of_the_build_is_a_fact_or_says_nothing_new() -> None:
    for abi in artefact("SwarmCoordinator-3")["abi"]:
        if abi["type"] != "event":
            continue
        signature = f"{abi['name']}({','.join(given['type'] for given in abi['inputs'])})"
        indexed = [1 for given in abi["inputs"] if given["indexed"]]
        types = [given["type"] for given in abi["inputs"] if not given["indexed"]]
        blank = {"string": "", "string[]": [], "bool": False}
        said = decode_log(entry(signature, indexed, types, *(blank.get(kind, 0) for kind in types)))
        assert (said is None) == (abi["name"] in ("RoundAdvanced", "CumulativeRewardsUpdated")), abi["name"]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (reward(0, 0, 1, "x" * (PEER_CHARS_MAX + 1)), "too long"),
        (reward(0, 0, 1, "\U0001f600" * (PEER_CHARS_MAX + 1)), "too long"),
        (reward(PLACE_MAX + 1, 0, 1, "p"), "out of range"),
        (vote(0, "p", ["w"] * (WINNERS_MAX + 1)), "too many"),
        (reward(0, 0, 1, "p") | {"data": "0x" + 128 * "f"}, "too short"),
        (reward(0, 0, 1, "p") | {"data": "0xzz"}, "no hex"),
        (reward(0, 0, 1, "p") | {"data": "0x" + "00" * (2 << 20)}, "too long"),
        (reward(0, 0, 1, "p") | {"topics": reward(0, 0, 1, "p")["topics"][:2]}, "too short"),
        (reward(0, 0, 1, "p") | {"topics": [*reward(0, 0, 1, "p")["topics"][:2], "-0x5", "0x0"]}, "out of range"),
    ],
)
def test_an_entry_that_oversteps_a_bound_is_left_out_and_counted(odd: dict[str, Any], reason: str) -> None:
    rejected: Counter[str] = Counter()
    assert decode_log(odd, rejected) is None
    assert rejected == {reason: 1}


@pytest.mark.parametrize("quantity", ["-0x5", "-0x" + 300 * "f", "0x" + 300 * "f", "soon", "0x10000000000"])
def test_a_time_that_is_none_is_zero(quantity: str) -> None:
    assert parse_block_time(quantity) == 0.0


def test_peer_ids_that_are_no_utf8_stay_different() -> None:
    said = [
        decode_log(reward(0, 0, 1, "??") | {"data": "0x" + encode(["int256", "bytes"], [1, raw]).hex()})
        for raw in (b"\xff\xfe", b"\xff\xff")
    ]
    assert [log.peer for log in said if isinstance(log, RewardLog)] == ["\\xff\\xfe", "\\xff\\xff"]


@given(
    st.binary(max_size=300),
    st.integers(0, 4),
    st.sampled_from(
        sorted(
            event_topic(s)
            for s in (
                "StageAdvanced(uint256,uint256)",
                "RewardSubmitted(address,uint256,uint256,int256,string)",
                "WinnerSubmitted(address,string,uint256,string[])",
                "RoundPolicyChanged(address,uint256,uint256)",
            )
        )
    ),
)
def test_any_data_is_a_fact_or_counted(data: bytes, topics: int, topic: str) -> None:
    rejected: Counter[str] = Counter()
    odd = reward(0, 0, 1, "p") | {"data": "0x" + data.hex(), "topics": [topic, *["0x" + 64 * "0"] * topics]}
    assert (decode_log(odd, rejected) is None) == (sum(rejected.values()) == 1)


# --- reads of a real contract ---


async def test_everything_is_read_by_type(ground: Ground, calls: RpcPool) -> None:
    swarm = ground.swarm
    swarm.register(swarm.alice, "me", "name.eth")
    swarm.move_on(2)
    swarm.send(swarm.alice, INT_REWARD, 2, 0, -7, "me")
    swarm.send(swarm.alice, "submitWinners", 1, ["a", "b"], "me")
    swarm.send(swarm.owner, "addBootnodes", ["/ip4/1.2.3.4/tcp/1/p2p/x"])
    swarm.send(swarm.owner, "setRoundPolicy", 1, 60)
    contract = CoordinatorContract(calls, ground.contract)
    assert await contract.round_and_stage() == (2, 0) and await contract.stage_count() == 1
    assert await contract.round_policy() == RoundPolicy(1, 60) and await contract.can_advance()
    assert await contract.extensions_version() == 1
    assert await contract.account_of_peer("name.eth") == swarm.alice and await contract.account_of_peer("nobody") == ""
    assert await contract.has_reward(2, 0, "me") and not await contract.has_reward(1, 0, "me")
    assert await contract.votes(1, "me") == ("a", "b") and await contract.votes(0, "me") == ()
    assert await contract.total_rewards(["me", "you"]) == {"me": -7, "you": 0}
    assert await contract.bootnodes() == ("/ip4/1.2.3.4/tcp/1/p2p/x",)
    assert await contract.is_membership_open() and await contract.are_members(["me"]) == (True,)
    assert await contract.stage_opened_at() == swarm.ask("stageStartedAt")


LACKING = {
    "0.4.2": (
        *("extensionsVersion()", "stageStartedAt()", "roundPolicy()", "canAdvance()", "membershipOpen()"),
        *("isMember(string[])", "hasSubmittedRoundStageReward(uint256,uint256,string)"),
    ),
    "0.4.3": (
        *("extensionsVersion()", "stageStartedAt()", "roundPolicy()", "canAdvance()", "membershipOpen()"),
        *("isMember(string[])", "hasSubmittedRoundStageReward(uint256,uint256,address)"),
    ),
}


@pytest.mark.parametrize("version", LACKING)
async def test_a_contract_of_an_earlier_version_is_read_too(ground: Ground, version: str) -> None:
    swarm = ground.swarm
    act = lacking(LACKING[version], lambda call: error(call, 3, "execution reverted", "0x"))
    created = ground.height()
    swarm.register(swarm.alice, "me")
    swarm.register(swarm.bob, "you")
    async with calls_through(ground, act) as (_, calls):
        contract = CoordinatorContract(calls, ground.contract, created, range_blocks=10)
        assert await contract.stage_opened_at() == ground.w3.eth.get_block(created)["timestamp"]
        swarm.move_on()
        moved = ground.height()
        swarm.send(swarm.alice, INT_REWARD, 1, 0, 5, "me")
        ground.mine(35)
        assert await contract.stage_opened_at() == ground.w3.eth.get_block(moved)["timestamp"]
        assert await contract.extensions_version() == 0 and await contract.round_policy() == RoundPolicy(0, 0)
        assert not await contract.can_advance() and await contract.are_members(["x"]) == (True,)
        assert await contract.has_reward(1, 0, "me", swarm.alice) and await contract.has_reward(1, 0, "me")
        assert not await contract.has_reward(1, 0, "you", swarm.bob)
        assert not await contract.has_reward(1, 0, "nobody")
        await contract.check_contract()


async def test_what_an_endpoint_once_says_to_be_lacking_is_asked_for_again(ground: Ground) -> None:
    """An account has two peers, of which one reports: asked by account, the other has reported too."""
    swarm = ground.swarm
    views = ("extensionsVersion()", "hasSubmittedRoundStageReward(uint256,uint256,string)")
    swarm.register(swarm.alice, "me", "you")
    swarm.send(swarm.alice, INT_REWARD, 0, 0, 5, "me")
    async with calls_through(ground, lacking(views, lambda call: result(call, "0x"))) as (between, calls):
        contract = CoordinatorContract(calls, ground.contract)
        assert await contract.extensions_version() == 0 and await contract.has_reward(0, 0, "you", swarm.alice)
        between.act = between._pass_on
        assert await contract.extensions_version() == 1 and not await contract.has_reward(0, 0, "you", swarm.alice)


def lacking(views: Sequence[str], answer: Callable[[Call], Answer]) -> Act:
    """An endpoint of a contract without these views."""
    selectors = {"0x" + encode_call(each, *blank(each)).hex()[:8] for each in views}
    return acting(lambda call: answer(call) if call["params"][0]["data"][:10] in selectors else None, "eth_call")


def blank(signature: str) -> list[Any]:
    """Arguments of any value for a call."""
    blanks = {"uint256": 0, "string": "", "string[]": [], "address": ACCOUNT}
    return [blanks[kind] for kind in signature.split("(")[1][:-1].split(",") if kind]


async def test_what_is_no_contract_is_a_mismatch(ground: Ground, calls: RpcPool) -> None:
    with pytest.raises(ChainMismatch, match="no contract at"):
        await call_view(EthereumClient(calls), ACCOUNT, "currentRound()", ["uint256"])
    with pytest.raises(ContractRefused, match="OnlyStageManager"):
        await call_view(EthereumClient(calls), ground.contract, "updateStageAndRound()", ["uint256", "uint256"])
    with pytest.raises(ChainMismatch, match="not a swarm coordinator"):
        ground.say("anvil_setCode", ACCOUNT, "0x00")
        await CoordinatorContract(calls, ACCOUNT).check_contract()
