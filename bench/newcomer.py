"""Rounds until an honest newcomer's first credit, while free identities push memberships and reports.

The nodes are real, but for the trainers, which have no model. A round ends by its deadline: the crowd's memberships
make the quorum unreachable.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Sample
from bench.pushing import Pushing
from bench.table import Row
from swarmd.core.events import RoundPublished, members_in, reports_in
from tests.e2e.conftest import PATIENCE_S
from tests.hostile.attack import memory_mib
from tests.hostile.campaign import LeanSwarm, events_of, started

NODES = 3
CROWD = 10_000
TIMES = 3
ROUNDS_MAX = 3  # until the first credit
PUSHED_S = 60.0  # before the first newcomer comes
GIVEN_UP_S = 300.0
SETTINGS = {
    "training.steps": 40,  # of a tenth of a second: a process starts in less than two rounds
    "round.gather_s": 3.0,
    "coordinator.stage_s": 15.0,
    "coordinator.start_s": 15.0,
    "dht.poll_s": 2.0,
    "logs.level": "info",
}


def run(directory: Path, crowd: int = CROWD, times: int = TIMES) -> Iterable[Row]:
    os.environ["OMP_NUM_THREADS"] = "1"
    swarm = LeanSwarm(directory, NODES + times)
    swarm.prepare(0, "", **SETTINGS)
    try:
        for daemon in swarm.daemons[:NODES]:
            daemon.start()
        waits, pushing, growth = asyncio.run(attack(swarm, crowd, times))
    finally:
        swarm.stop()
    rounds = Sample(tuple(float(rounds) for rounds, _ in waits))
    yield Row(
        "rounds from the start to the first credit",
        "",
        rounds,
        "goal",
        goal=f"<= {ROUNDS_MAX}",
        met=rounds.high <= ROUNDS_MAX,
    )
    yield Row("seconds", "s", Sample(tuple(seconds for _, seconds in waits)))
    yield Row("network worker above its quiet size", "MiB", Sample((growth,)))
    yield Row("records of every identity at a node, times", "", Sample((float(pushing.sweeps),)))
    yield from (Row(f"the crowd's records: {fate}", "", Sample((float(n),))) for fate, n in pushing.sent.most_common())


async def attack(swarm: LeanSwarm, crowd: int, times: int) -> tuple[list[tuple[int, float]], Pushing, float]:
    """((rounds, seconds) of each newcomer, the crowd, growth of the coordinator's network worker in MiB)."""
    await started(swarm, range(1, NODES + 1))
    told = [swarm.told(number) for number in range(1, NODES + 1)]
    addresses = [next(each for each in status.network.addresses if "127.0.0.1" in each) for status in told]
    worker = told[0].network.worker.pid
    quiet = memory_mib(worker)
    with tempfile.TemporaryDirectory(prefix="crowd") as sockets:
        pushing = Pushing(Path(sockets), told[0].swarm, addresses, crowd)
        tasks = [asyncio.ensure_future(pushing.run()), asyncio.ensure_future(follow(swarm, pushing))]
        try:
            await asyncio.sleep(PUSHED_S)
            waits = [await newcomer(swarm, NODES + 1 + number, pushing) for number in range(times)]
            growth = memory_mib(worker) - quiet
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return waits, pushing, growth


async def follow(swarm: LeanSwarm, pushing: Pushing) -> None:
    """Tell the crowd where the swarm is."""
    while True:
        pushing.round = max(pushing.round, await asyncio.to_thread(swarm.working_round, 1))
        await asyncio.sleep(1.0)


def peer_of(swarm: LeanSwarm, number: int) -> str:
    """A node's peer id, once it says one: it answers before it has read its key."""
    swarm.wait_until(lambda: bool(swarm.told(number).peer), PATIENCE_S, "a peer id")
    return swarm.told(number).peer


async def newcomer(swarm: LeanSwarm, number: int, pushing: Pushing) -> tuple[int, float]:
    """Start a node: rounds, this one included, that were begun until its first credit, and seconds."""
    began = time.time()
    swarm.daemons[number - 1].start()
    peer = await asyncio.to_thread(peer_of, swarm, number)
    until, events = time.monotonic() + GIVEN_UP_S, swarm.places[0].events
    while time.monotonic() < until:
        logged = list(await asyncio.to_thread(lambda: list(events_of(events))))
        credit = next(((at, each) for at, event in logged for each in reports_in(event) if each.peer == peer), None)
        if credit is not None:
            opened = {e.round: at for at, e in reversed(logged) if isinstance(e, RoundPublished)}
            at_start = max(round for round, at in opened.items() if at <= began)
            rounds, members = credit[1].round - at_start, sum(len(members_in(event)) for _, event in logged)
            print(
                f"credited in round {credit[1].round}, it came in round {at_start}: {credit[0] - began:.1f} s; "
                f"{members} members were news; {dict(pushing.sent)}",
                file=sys.stderr,
                flush=True,
            )
            return rounds, credit[0] - began
        await asyncio.sleep(1.0)
    print(f"not credited; {dict(pushing.sent)}", file=sys.stderr, flush=True)
    return 10**6, GIVEN_UP_S
