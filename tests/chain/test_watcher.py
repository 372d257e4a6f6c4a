"""The watcher on a real chain: whatever the chain does, the facts come to what the chain says."""

from __future__ import annotations

import pytest

from swarmd.core.events import ChainBlock, ChainReorged, ChainUp
from tests.chain.grounds import Ground, watching

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("way", ["http", "ws"])
async def test_it_reads_what_was_said_before_and_what_is_said_after(ground: Ground, way: str) -> None:
    ground.swarm.register(ground.swarm.alice, "me", "you")
    async with watching(ground.config(ground.ws if way == "ws" else ground.url)) as watch:
        up = await watch.expect(ChainUp)
        assert up.head.number == ground.height() and up.genesis == ground.hash_of(0)
        assert (up.round, up.stage, up.stages, up.extensions) == (0, 0, 1, 1)
        assert up.registered_to == ground.swarm.alice
        assert watch.fold() == ground.logs()
        ground.swarm.move_on()
        ground.swarm.send(ground.swarm.alice, "submitReward(uint256,uint256,int256,string)", 0, 0, -5, "me")
        ground.swarm.send(ground.swarm.alice, "submitWinners", 0, ["you", "me"], "me")
        await watch.settle(ground)
        assert len(watch.seen(ChainUp)) == 1


@pytest.mark.parametrize("depth", range(1, 9))
async def test_a_reorganisation_is_found_with_its_depth(ground: Ground, depth: int) -> None:
    for number in range(8):
        ground.swarm.register(ground.swarm.alice, f"peer {number}")
    async with watching(ground.config(ground.ws)) as watch:
        await watch.settle(ground)
        ground.say("anvil_reorg", depth, [])
        reorged = await watch.expect(ChainReorged)
        assert (reorged.fork.number, reorged.depth) == (ground.height() - depth, depth)
        await watch.settle(ground)
        assert len(watch.fold()) < 11 and len(watch.seen(ChainUp)) == 2
        assert isinstance(watch.events[-1], ChainUp)
        ground.swarm.register(ground.swarm.alice, "after")
        await watch.settle(ground)
        assert watch.seen(ChainBlock)[-1].block.number == ground.height()
