"""The simulated chain and contract on their own, and what a swarm does while the chain is away."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarmd.sim.ports.chain import FEE, REORG_DEPTH_MAX, SimChain, Tx, sign
from swarmd.sim.ports.contract import Call
from swarmd.sim.profile import CALM
from swarmd.sim.world import World

ME = "0xaccount1"
REGISTER = Call("register", ME, "peer-001")
REWARD = Call("reward", ME, "peer-001", 0, 0, 5)


@pytest.fixture
def chain() -> SimChain:
    """A chain that has just begun, its blocks made by hand."""
    chain = World(1, replace(CALM, chain=True, nodes=2, reorg_loss=0.0)).chain
    assert chain is not None
    return chain


def mine(chain: SimChain, *sent: Tx) -> list[str]:
    """A block of what was sent; the errors of its transactions."""
    for tx in sent:
        chain.send(tx)
    chain.world.now += 2.0
    chain._mine(chain.world.now, 0.0)
    return [receipt.error for receipt in chain.blocks[-1].receipts]


def test_the_contract_takes_each_thing_once_and_of_its_owner_only(chain: SimChain) -> None:
    assert mine(chain, sign(REWARD, 0, FEE), sign(REGISTER, 1, FEE)) == ["InvalidVoterPeerId", ""]
    assert mine(chain, sign(REWARD, 2, FEE), sign(replace(REWARD, reward=6), 3, FEE)) == ["", "RewardAlreadySubmitted"]
    assert mine(chain, sign(replace(REGISTER, account="0xother"), 0, FEE)) == ["PeerIdAlreadyRegistered"]
    assert mine(chain, sign(replace(REWARD, account="0xother", round=0, stage=1), 1, FEE)) == ["InvalidStageNumber"]
    assert chain.contract.reward_block(0, 0, "peer-001") == 2


def test_the_contract_moves_on_when_its_policy_allows(chain: SimChain) -> None:
    step = Call("advance", ME)
    assert mine(chain, sign(step, 0, FEE)) == ["AdvanceNotAllowed"]
    chain.world.now += chain.contract.rules.max_stage_s
    assert mine(chain, sign(step, 1, FEE), sign(step, 2, FEE)) == ["", "AdvanceNotAllowed"]
    assert chain.contract.place == (1, 0)


def test_nonces_are_mined_in_order_and_once(chain: SimChain) -> None:
    assert mine(chain, sign(REGISTER, 1, FEE)) == []
    assert chain.pending_nonce_of(ME) == 0
    assert mine(chain, sign(Call("idle", ME), 0, FEE)) == ["", ""]
    assert chain.send(sign(REWARD, 1, FEE)) == "nonce too low"
    assert chain.send(sign(REGISTER, 1, FEE)) == "nonce too low" and chain.is_known(sign(REGISTER, 1, FEE).hash)


def test_a_replacement_has_to_pay_more(chain: SimChain) -> None:
    chain.fee = 2 * FEE
    assert mine(chain, sign(REGISTER, 0, FEE)) == []
    assert chain.send(sign(REGISTER, 0, FEE + 1)) == "replacement transaction underpriced"
    assert mine(chain, sign(REGISTER, 0, 2 * FEE)) == [""]


@pytest.mark.parametrize("depth", range(1, REORG_DEPTH_MAX + 1))
def test_a_reorganisation_takes_back_all_that_its_blocks_held(chain: SimChain, depth: int) -> None:
    mine(chain)
    tip = chain.head
    mine(chain, sign(REGISTER, 0, FEE), sign(REWARD, 1, FEE))
    for _ in range(depth - 1):
        mine(chain)
    gone = chain.head
    chain.world.profile = replace(chain.world.profile, reorg_loss=1.0)
    chain.reorganise(depth)
    assert chain.has(tip) and not chain.has(gone) and chain.head.number == gone.number + 1
    assert chain.contract.account_of("peer-001") == "" and chain.contract.reward_block(0, 0, "peer-001") is None
    assert chain.contract.nonce_of(ME) == 0 and chain.receipts == {}


def test_training_goes_on_while_the_chain_is_away_and_the_outbox_empties_afterwards() -> None:
    world = World(2, replace(CALM, chain=True, policy="time", nodes=3, stage_s=25.0))
    cut_off = world.nodes[1]
    trained = []

    def count() -> None:
        trained.append(len(cut_off.disk.trained))

    def cut() -> None:
        cut_off.rpc_out_until = world.now + 600.0

    for at_s, act in ((300.0, cut), (330.0, count), (890.0, count)):
        world.call_in(at_s, act)
    world.play()
    before, after = trained
    assert after - before >= 15, "the coordinator's clock leads on"
    rewards = [each for each in world.checks.ledgers[1].claims.charts if each.startswith("reward/")]
    assert len(rewards) == len(cut_off.disk.trained)
    assert cut_off.state.skips == () or cut_off.state.rounds_skipped <= 2
