"""Back-fill: 100,000 log entries of a contract read from anvil into facts.

The limit is what anybody has to do: the same ranges by eth_getLogs over one connection, and json.loads of the answers.
web3's own way, get_logs and process_log, makes dicts of a tenth of them. The watcher does more than both: it checks
the chain, reads headers, bounds and types every entry, and makes one fact a block.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from bench.chain import fill, swarm_on_anvil
from bench.measure import ratios, take_turns, timed
from bench.table import Row
from swarmd.core.events import ChainBlock, ChainUp
from tests.chain.grounds import Ground, watching

BLOCKS, LOGS = 1000, 100  # blocks, and entries in each
RANGE = 100  # blocks asked for at once
ROUNDS = 5
GOAL = 0.4  # of the limit


def run(directory: Path) -> Iterable[Row]:
    with swarm_on_anvil() as ground:
        fill(ground, BLOCKS, LOGS)
        turns = {
            "swarmd": lambda: anyio.run(follow, ground),
            "plain": lambda: read_plainly(ground),
            "web3": lambda: read_by_web3(ground),
        }
        rates = take_turns(turns, ROUNDS)
    ratio = ratios(rates["swarmd"], rates["plain"])
    what = f"{BLOCKS * LOGS:,} entries"
    limit = "eth_getLogs and json.loads"
    yield Row(what, "events/s", rates["swarmd"], limit, rates["plain"], ratio, f">= {GOAL:g}x", ratio.median >= GOAL)
    yield Row(
        what, "events/s", rates["swarmd"], "web3's process_log", rates["web3"], ratios(rates["swarmd"], rates["web3"])
    )


async def follow(ground: Ground) -> float:
    """Events per second until the watcher is up, everything observed."""
    with timed() as watch:
        async with watching(ground.config(), range_blocks=RANGE) as watcher:
            await watcher.expect(ChainUp, timeout_s=120.0)
    said = sum(len(event.logs) for event in watcher.seen(ChainBlock))
    assert said >= BLOCKS * LOGS, f"{said} entries"
    return said / watch.wall_s


def read_plainly(ground: Ground) -> float:
    """Events per second."""
    connection = http.client.HTTPConnection(urlsplit(ground.url).netloc)
    found = 0
    with timed() as watch:
        for first, last in ranges(ground.height()):
            asked = {"address": ground.contract, "fromBlock": hex(first), "toBlock": hex(last)}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": [asked]})
            connection.request("POST", "/", body, {"Content-Type": "application/json"})
            found += len(json.loads(connection.getresponse().read())["result"])
    connection.close()
    return found / watch.wall_s


def read_by_web3(ground: Ground) -> float:
    """Events per second, over a tenth of the blocks."""
    reward = ground.swarm.contract.events.RewardSubmitted()
    with timed() as watch:
        found = reward.get_logs(from_block=ground.height() - BLOCKS // 10 + 1, to_block=ground.height())
    return len(found) / watch.wall_s


def ranges(height: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + RANGE - 1, height)) for first in range(0, height + 1, RANGE))
