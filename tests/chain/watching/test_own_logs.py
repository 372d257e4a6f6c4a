"""In a large swarm a node reads of the contract what everybody needs, its own rewards and votes, and a count."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.chain.contract import encode_call
from swarmd.cli.swarm import _read_peers
from swarmd.core.events import (
    AnyChainLog,
    ChainReorged,
    RegistrationLog,
    RewardLog,
    StageLog,
    SubmissionsCounted,
    VoteLog,
)
from tests.chain.grounds import Answer, Ground, Watch, error, middleman, result, watching

pytestmark = pytest.mark.anyio
COUNT = encode_call("stageSubmissionCount()").hex()
REWARD = "submitReward(uint256,uint256,int256,string)"


def members(ground: Ground) -> None:
    """Two that report the first stage and vote."""
    swarm = ground.swarm
    for account, peer in ((swarm.alice, "me"), (swarm.bob, "you")):
        swarm.register(account, peer)
        swarm.send(account, REWARD, 0, 0, 5, peer)
        swarm.send(account, "submitWinners", 0, ["you"], peer)


def said(watch: Watch, kind: type[AnyChainLog]) -> list[Any]:
    return [entry for entries in watch.fold().values() for entry in entries if isinstance(entry, kind)]


async def at_the_head(watch: Watch, ground: Ground) -> None:
    await watch.until(
        lambda: (
            watch.watcher._branch is not None
            and watch.watcher._up
            and watch.watcher.branch.tip.hash == ground.hash_of(ground.height())
        )
    )


async def test_an_endpoint_that_heeds_no_topics_tells_a_node_no_more(ground: Ground) -> None:
    members(ground)

    async def tell_all(call: dict[str, Any]) -> Answer:
        if call["method"] != "eth_getLogs":
            return None
        return result(call, ground.say("eth_getLogs", call["params"][0] | {"topics": []}))

    async with middleman(ground.url) as between:
        between.act = tell_all
        async with watching(ground.config(between.url, shards=16), account=ground.swarm.alice) as watch:
            await at_the_head(watch, ground)
            assert await _read_peers(watch.coordinator.blocks, 0, ground.height()) == (2, ())
    assert [entry.peer for entry in said(watch, RegistrationLog)] == ["me", "you"]
    assert [entry.peer for kind in (RewardLog, VoteLog) for entry in said(watch, kind)] == ["me", "me"]


@pytest.mark.parametrize("blocks_since", [0, 200], ids=["near", "far"])
async def test_of_rewards_and_votes_a_node_reads_its_own(ground: Ground, blocks_since: int) -> None:
    members(ground)
    ground.mine(max(blocks_since, 1))
    config = ground.config(shards=16)
    async with watching(config, account=ground.swarm.alice) as watch:
        await watch.expect(SubmissionsCounted, round=0, stage=0, count=2)
        await at_the_head(watch, ground)
        ground.swarm.move_on()
        await watch.expect(SubmissionsCounted, round=1, stage=0, count=0)
        await at_the_head(watch, ground)
    assert [entry.peer for entry in said(watch, RegistrationLog)] == ["me", "you"]
    assert [entry.peer for entry in said(watch, RewardLog)] == ["me"]
    assert [entry.peer for entry in said(watch, VoteLog)] == ["me"]
    assert [(entry.round, entry.stage) for entry in said(watch, StageLog)][-1] == (1, 0)


async def test_entries_come_in_the_chains_order_whatever_filter_they_passed(ground: Ground) -> None:
    members(ground)
    async with watching(ground.config(shards=16), account=ground.swarm.bob) as watch:
        await at_the_head(watch, ground)
        mine = [entry for entry in (e for es in ground.logs().values() for e in es) if _is_read(entry, "you")]
        assert [entry for entries in watch.fold().values() for entry in entries] == mine


def _is_read(entry: AnyChainLog, peer: str) -> bool:
    return not isinstance(entry, RewardLog | VoteLog) or entry.peer == peer


async def test_those_of_all_are_read_while_nobody_knows_the_account(ground: Ground) -> None:
    members(ground)
    async with watching(ground.config(shards=16)) as watch:
        await watch.settle(ground)
    assert len(said(watch, RewardLog)) == 2


async def test_a_count_is_told_when_it_changes_and_again_after_blocks_were_replaced(ground: Ground) -> None:
    ground.swarm.register(ground.swarm.alice, "me")
    ground.swarm.register(ground.swarm.bob, "you")
    ground.swarm.send(ground.swarm.alice, REWARD, 0, 0, 5, "me")
    async with watching(ground.config(shards=16), account=ground.swarm.alice) as watch:
        await watch.expect(SubmissionsCounted, count=1)
        ground.mine(3)
        await at_the_head(watch, ground)
        assert len(watch.seen(SubmissionsCounted)) == 1, "nothing has changed"
        ground.say("anvil_reorg", 2, [])
        reorged = await watch.expect(ChainReorged)
        await watch.expect(SubmissionsCounted, since=watch.events.index(reorged), count=1)


async def test_a_contract_that_counts_nothing_is_followed(ground: Ground) -> None:
    refused = []

    async def act(call: dict[str, Any]) -> Answer:
        if call["method"] != "eth_call" or COUNT not in str(call["params"]):
            return None
        refused.append(call)
        return error(call, 3, "execution reverted")

    ground.swarm.register(ground.swarm.alice, "me")
    async with middleman(ground.url) as between:
        between.act = act
        async with watching(ground.config(between.url, shards=16), account=ground.swarm.alice) as watch:
            await at_the_head(watch, ground)
    assert refused and not watch.seen(SubmissionsCounted)
