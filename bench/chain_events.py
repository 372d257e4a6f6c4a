"""From sending a transaction until what it made the contract say is a fact, with anvil mining at once.

The watcher runs in this process, so the figure is the chain worker's part: mining, the notification or the poll, the
logs of the block, and the fact.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

import anyio

from bench.chain import swarm_on_anvil
from bench.measure import Sample, sample
from bench.table import Row
from swarmd.core.events import ChainBlock, ChainUp
from tests.chain.grounds import Ground, watching

TIMES = 60
WAYS = {"websocket": ("ws", 2.0), "polling every 0.25 s": ("http", 0.25), "polling every 1 s": ("http", 1.0)}
GOAL_MS = 50.0  # p50 by websocket
REFERENCE = "web3's subscription, measured apart: p50 20..31, p95 50..90 ms"


def run(directory: Path) -> Iterable[Row]:
    for way, (scheme, poll_s) in WAYS.items():
        with swarm_on_anvil() as ground:
            taken = anyio.run(latencies, ground, scheme, poll_s)
        p50 = taken.percentile(0.5)
        goal = f"p50 <= {GOAL_MS:g} ms" if scheme == "ws" else ""
        peer = REFERENCE if scheme == "ws" else ""
        yield Row(f"{way}, {TIMES} events", "ms", taken, peer, goal=goal, met=p50 <= GOAL_MS if goal else None)
        yield Row(f"{way}, p95", "ms", sample(taken.percentile(0.95)))


async def latencies(ground: Ground, scheme: str, poll_s: float) -> Sample:
    """Milliseconds from sending to the fact."""
    taken = []
    pause = Random(0)
    async with watching(ground.config(ground.ws if scheme == "ws" else ground.url, poll_s=poll_s)) as watch:
        await watch.expect(ChainUp)
        for _ in range(TIMES):
            await asyncio.sleep(
                pause.uniform(0.0, poll_s if scheme == "http" else 0.1)
            )  # polls and transactions must not keep step
            seen = len(watch.events)
            began = time.monotonic()
            await asyncio.to_thread(ground.say, "eth_sendTransaction", advance(ground))
            await watch.expect(ChainBlock, since=seen)
            taken.append((watch.times[seen] - began) * 1000)
    return Sample(tuple(taken))


def advance(ground: Ground) -> dict[str, str]:
    """A transaction to the next round."""
    content = "0x" + ground.swarm.call("updateStageAndRound").content.hex()
    return {"from": ground.swarm.owner, "to": ground.contract, "data": content, "gas": hex(200_000)}
