"""The parts of the simulated world on their own: disk, chain and contract, DHT, and what is made of a value once."""

from random import Random

import pytest
from msgspec.structs import replace

from swarmd.core.events import StopRequested
from swarmd.dht.wire.records import PAST_S, TTL_MAX_S, Membership
from swarmd.eventlog.frame import Commit
from swarmd.sim import network
from swarmd.sim.chain import FEE, ContractCall, SignedTx, SimChain, sign_call
from swarmd.sim.dht import MEMBERS, SWARM, IdentityCache, SimRecord
from swarmd.sim.machine import CrashableLog
from swarmd.sim.profile import CALM, LARGE
from swarmd.sim.world import World


def commit(seq: int, events: int = 1) -> Commit:
    return Commit(seq, 1.0, 1, tuple(StopRequested(f"reason {seq}") for _ in range(events)), b"d" * 16)


def test_the_synced_part_always_survives_and_the_rest_only_whole() -> None:
    outcomes = set()
    for seed in range(200):
        log = CrashableLog()
        log.append(commit(0, 3))
        log.sync()
        log.append(commit(3))
        log.append(commit(4))
        log.lose_unsynced(Random(seed))
        assert log.commits[0] == commit(0, 3)
        assert log.commits == [commit(0, 3), commit(3), commit(4)][: len(log.commits)]
        assert log.synced == len(log.commits)
        outcomes.add(len(log.commits))
    assert outcomes >= {1, 2}


def test_the_same_value_is_made_once_and_an_equal_one_for_itself() -> None:
    asked: list[list[int]] = []

    def make(value: list[int]) -> int:
        asked.append(value)
        return len(asked)

    once, one, equal = IdentityCache(make, 2), [1], [1]
    assert [once(one), once(equal), once(one)] == [1, 2, 1]
    assert once([2]) == 3 and once(equal) == 2, "the first has made room"
    assert once(one) == 4 and len(asked) == 4


def test_what_cannot_be_made_is_tried_again() -> None:
    once = IdentityCache(int, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid"):
            once("x")


SMALL = replace(LARGE, nodes=24, hours=0.15, shard_members=4, gather_peers=3, min_peers=16)


def member(peer: str, expiration: float) -> SimRecord:
    return SimRecord(peer, Membership(SWARM, peer, peer, 0.0), expiration, 400)


def test_a_key_shows_the_same_until_it_changes_or_a_record_ends() -> None:
    world = World(0, CALM)
    store, now = world.dht.stores[0], world.now
    assert store.find_records(MEMBERS, now) == {}
    store.put_record(MEMBERS, member("one", now + 100.0))
    store.put_record(MEMBERS, member("two", now + 200.0))
    found = store.find_records(MEMBERS, now)
    assert list(found) == ["one", "two"] and store.find_records(MEMBERS, now + 1.0) is found
    assert list(store.find_records(MEMBERS, now + 100.0 + 2 * PAST_S)) == ["two"], "by a clock that is ahead"
    assert store.find_records(MEMBERS, now - TTL_MAX_S) == {}, "by one that is behind"
    store.put_record(MEMBERS, member("one", now + 300.0))
    assert found["one"].expiration == now + 100.0, "what was read stays as it was"
    assert store.find_records(MEMBERS, now)["one"].expiration == now + 300.0
    world.now += 250.0
    assert list(store.find_records(MEMBERS, world.now)) == ["one"]
    store.drop_record_kinds(("members",))
    assert store.find_records(MEMBERS, world.now) == {}


@pytest.mark.parametrize("inline_bytes_max", [0, 40960])
def test_a_leaderboard_is_read_also_where_it_is_too_large_for_its_record(
    inline_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "INLINE_BYTES_MAX", inline_bytes_max)
    world = World(0, SMALL)
    world.run_and_check()
    last = world.dht.standings[1].round
    kept = [each.standings for node, each in world.dht.standings.items() if node and each.round == last]
    assert last >= 3 and len(kept) >= 20
    assert all(standings is kept[0] for standings in kept), "all followers have the same one, and not each its own"


ME = "0xaccount1"
REGISTER = ContractCall("register", ME, "peer-001")
REWARD = ContractCall("reward", ME, "peer-001", 0, 0, 5)


@pytest.fixture
def chain() -> SimChain:
    """A chain that has just begun, its blocks made by hand."""
    chain = World(1, replace(CALM, chain=True, nodes=2, reorg_loss=0.0)).chain
    assert chain is not None
    return chain


def mine(chain: SimChain, *sent: SignedTx) -> list[str]:
    """A block of what was sent; the errors of its transactions."""
    for tx in sent:
        chain.submit_transaction(tx)
    chain.world.now += 2.0
    chain._mine_block(chain.world.now, 0.0)
    return [receipt.error for receipt in chain.blocks[-1].receipts]


def test_the_contract_takes_each_thing_once_and_of_its_owner_only(chain: SimChain) -> None:
    assert mine(chain, sign_call(REWARD, 0, FEE), sign_call(REGISTER, 1, FEE)) == ["InvalidVoterPeerId", ""]
    assert mine(chain, sign_call(REWARD, 2, FEE), sign_call(replace(REWARD, reward=6), 3, FEE)) == [
        "",
        "RewardAlreadySubmitted",
    ]
    assert mine(chain, sign_call(replace(REGISTER, account="0xother"), 0, FEE)) == ["PeerIdAlreadyRegistered"]
    assert mine(chain, sign_call(replace(REWARD, account="0xother", round=0, stage=1), 1, FEE)) == [
        "InvalidStageNumber"
    ]
    assert chain.contract.block_of_submission("reward", 0, 0, "peer-001") == 2


def test_the_contract_moves_on_when_its_policy_allows(chain: SimChain) -> None:
    step = ContractCall("advance", ME)
    assert mine(chain, sign_call(step, 0, FEE)) == ["AdvanceNotAllowed"]
    chain.world.now += chain.contract.rules.max_stage_s
    assert mine(chain, sign_call(step, 1, FEE), sign_call(step, 2, FEE)) == ["", "AdvanceNotAllowed"]
    assert chain.contract.round_and_stage == (1, 0)


def test_nonces_are_mined_in_order_and_once(chain: SimChain) -> None:
    assert mine(chain, sign_call(REGISTER, 1, FEE)) == []
    assert chain.pending_nonce_of(ME) == 0
    assert mine(chain, sign_call(ContractCall("idle", ME), 0, FEE)) == ["", ""]
    assert chain.submit_transaction(sign_call(REWARD, 1, FEE)) == "nonce too low"
    assert chain.submit_transaction(sign_call(REGISTER, 1, FEE)) == "nonce too low" and chain.has_transaction(
        sign_call(REGISTER, 1, FEE).hash
    )


def test_a_replacement_has_to_pay_more(chain: SimChain) -> None:
    chain.fee = 2 * FEE
    assert mine(chain, sign_call(REGISTER, 0, FEE)) == []
    assert chain.submit_transaction(sign_call(REGISTER, 0, FEE + 1)) == "replacement transaction underpriced"
    assert mine(chain, sign_call(REGISTER, 0, 2 * FEE)) == [""]


@pytest.mark.parametrize("depth", range(1, 9))
def test_a_reorganisation_takes_back_all_that_its_blocks_held(chain: SimChain, depth: int) -> None:
    mine(chain)
    tip = chain.head
    mine(chain, sign_call(REGISTER, 0, FEE), sign_call(REWARD, 1, FEE))
    for _ in range(depth - 1):
        mine(chain)
    gone = chain.head
    chain.world.profile = replace(chain.world.profile, reorg_loss=1.0)
    chain.reorganise(depth)
    assert chain.has_block(tip) and not chain.has_block(gone) and chain.head.number == gone.number + 1
    assert (
        chain.contract.account_of_peer("peer-001") == ""
        and chain.contract.block_of_submission("reward", 0, 0, "peer-001") is None
    )
    assert chain.contract.nonce_of(ME) == 0 and chain.receipts == {}
