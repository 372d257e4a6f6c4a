"""What a node pays for a round as a swarm grows: real network workers, each with its p2pd, and trainers that only wait.

Each swarm is run twice, with its stages in shards and with one key for all, which is RL Swarm's layout; a larger one,
for which that layout is too slow here, once. `bench.scale_worker` counts in each worker; this process plays daemons.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench import scale_whole
from bench.place import Unavailable
from bench.scale_model import Settings, simulate
from bench.scale_rows import Outcome, agreement_rows, goal_rows, rows_of
from bench.scale_worker import read_counts
from bench.table import Row, cells
from swarmd.core.commands import Announce, CollectReports, Gather, PublishLeaderboard, PublishReport, Register
from swarmd.core.coordination import shard_count_for
from swarmd.core.events import (
    CommandFailed,
    LinkUp,
    MemberSeen,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
)
from swarmd.core.values import Standing
from swarmd.dht.membership import ALERT_S
from tests.dht.driver import Driver, until

SIZES = (16, 32, 64)
SIMULATED_SIZES = (100, 1_000, 10_000)
HERE_S = (0.005, 0.02)  # from a process to another of a busy machine
ROUNDS = 10
SHARD_MEMBERS = 16  # a quarter of the shipped number, so that a machine's worth of nodes has shards
ONE_KEY_MAX = 32  # nodes of a swarm that is run with one key too: of 64, none gathered anything on two cores
GATHER_PEERS = 8  # a quarter of the shipped number
BODY_BYTES = 12 * 1024
TRAIN_S = 10.0  # and up to half of it more
IDLE = Settings(SHARD_MEMBERS, GATHER_PEERS, train_s=(TRAIN_S, TRAIN_S * 1.5), body_bytes=BODY_BYTES)
STARTS_AT_ONCE = 4
READY_S = 600.0
STAGE_S = 120.0
GATHER_S = 30.0
WHOLE_MAX = 9  # whole nodes
WARM = 1  # rounds at the begin that do not count: the first has nothing to gather


class Node(Driver):
    """A node whose worker counts, and whose trainer waits."""

    module = "bench.scale_worker"

    async def follow(self, round: int, peers: int) -> bool:
        """Gather, wait as long as training takes, publish. Returns whether all that was wanted was gathered."""
        since = len(self.events)
        await self.do(Gather(f"gather/{round}/0", round, 0, round - 1, 0, time.time() + GATHER_S))
        await self.wait_answer(RolloutsGathered, round, since, 2 * GATHER_S)
        await asyncio.sleep(TRAIN_S * random.uniform(1.0, 1.5))
        reward, rollouts = random.random(), self.put([[random.randbytes(BODY_BYTES - 8)]], place=(round, 0))
        for attempt in range(5):
            since = len(self.events)
            await self.do(PublishReport(f"publish/{round}/0", round, 0, reward, rollouts))
            if await self.wait_answer(ReportPublished, round, since, STAGE_S):
                break
            say(f"{self.paths.root.name}: its report of round {round} was not published, attempt {attempt + 1}")
        return any(len(event.rollouts) >= peers for event in self.seen(RolloutsGathered, round=round))

    async def wait_answer(self, kind: type[Any], round: int, since: int, s: float) -> bool:
        """Whether a command of a round was done; False when it failed, or is not done within `s` seconds."""
        over = time.monotonic() + s
        while time.monotonic() < over:
            if self.seen(kind, since, round=round):
                return True
            if self.seen(CommandFailed, since):
                return False
            await asyncio.sleep(0.05)
        return False


class Swarm:
    """So many nodes, the first of them the coordinator.

    Args:
        directory: for their data.
        size: number of nodes.
        sharded: whether their stages lie in shards where there are members enough.
    """

    def __init__(self, directory: Path, size: int, sharded: bool) -> None:
        self.nodes: list[Node] = []
        self.sharded = sharded
        self.shards = shard_count_for(size, SHARD_MEMBERS) if sharded else 0
        self.outcome = Outcome()
        self._directory = directory
        self._size = size
        self._settings: dict[str, Any] = {
            "gather_peers": GATHER_PEERS,
            "poll_s": 5.0,
        }
        self._standings: dict[str, Standing] = {}

    async def start(self) -> None:
        """Start all, and wait until the coordinator knows all as members."""
        first = Node(self._directory / "0", **self._settings)
        self.nodes.append(await first.start())
        address = await first.address()
        await self._register(first)
        starting = asyncio.Semaphore(STARTS_AT_ONCE)
        await asyncio.gather(*(self._join(number, address, starting) for number in range(1, self._size)))
        await until(lambda: len({event.peer for event in first.seen(MemberSeen)}) >= self._size, READY_S)
        say(f"{len({event.peer for event in first.seen(MemberSeen)})} of {self._size} members are known")
        await asyncio.sleep(ALERT_S)  # a node that has just registered reads the memberships often

    async def _join(self, number: int, address: str, starting: asyncio.Semaphore) -> None:
        async with starting:
            node = Node(self._directory / str(number), self.nodes[0].peer_id, (address,), **self._settings)
            self.nodes.append(await node.start())
            await node.expect(LinkUp, READY_S)
            await self._register(node)

    async def _register(self, node: Node) -> None:
        for attempt in range(10):
            await node.do(Register("register"))
            with suppress(AssertionError):
                await node.expect(Registered, 10.0)
                return
            say(f"{node.paths.root.name} is not registered, attempt {attempt + 1}")

    async def play(self, round: int) -> None:
        """A round: it closes when all have reported."""
        first, began = self.nodes[0], time.time()
        place: dict[str, Any] = {"shards": self.shards, "sharded_since": 0, "shards_before": 0}
        await first.do(Announce(f"announce/{round}/0/{round + 1}", round, 0, began, began + STAGE_S, **place))
        await first.do(CollectReports(f"collect/{round}/0", round, 0))
        wanted = min(GATHER_PEERS, self._size - 1) if self.shards else self._size - 1
        full = await asyncio.gather(*(self._follow(node, round, began, wanted) for node in self.nodes))
        last = time.time()
        reports = await self._collect(round)
        if round >= WARM:
            self.outcome.add("closed", max(0.0, max(at for at, _ in reports) - last))
            self.outcome.add("seconds", time.time() - began)
            self.outcome.add("full", 100 * sum(full) / self._size)
        await first.do(self._leaderboard(round, [event for _, event in reports]))
        say(f"round {round}: {time.time() - began:.1f} s, {sum(full)} of {self._size} gathered all they wanted")

    async def _follow(self, node: Node, round: int, began: float, wanted: int) -> bool:
        if node is not self.nodes[0]:
            heard = await node.expect(RoundAnnounced, STAGE_S, round=round)
            if round >= WARM:
                self.outcome.add("announced", node.time_of(heard) - began)
        return await node.follow(round, wanted)

    async def _collect(self, round: int) -> list[tuple[float, ReportSeen]]:
        """(when it was seen, report) of all that the coordinator has of a round, once all are there or time is over."""
        over = time.monotonic() + STAGE_S
        while True:
            events = [(at, event) for at, event in self.nodes[0].events if isinstance(event, ReportSeen)]
            seen = {event.peer: (at, event) for at, event in reversed(events) if event.round == round}
            if len(seen) >= self._size or time.monotonic() > over:
                if len(seen) < self._size:
                    say(f"round {round}: {len(seen)} of {self._size} reports were seen")
                return list(seen.values())
            await asyncio.sleep(0.05)

    def _leaderboard(self, round: int, reports: Sequence[ReportSeen]) -> PublishLeaderboard:
        for event in reports:
            row = self._standings.get(event.peer, Standing(event.peer, "", 0.0, 0, -1))
            self._standings[event.peer] = Standing(row.peer, "", row.reward + event.reward, row.rounds + 1, round)
        rows = tuple(sorted(self._standings.values(), key=lambda row: (-row.reward, row.peer)))
        return PublishLeaderboard(f"leaderboard/{round}", round, rows, tuple(event.record for event in reports))

    async def stop(self) -> None:
        """End all, and read what they have counted."""
        await asyncio.gather(*(node.stop(20.0) for node in self.nodes), return_exceptions=True)
        await asyncio.gather(*(node.clean() for node in self.nodes), return_exceptions=True)
        kept = [read_counts(node.paths.network) for node in self.nodes]
        for round in sorted(set.intersection(*(set(each) for each in kept)) if kept else ()):
            if round >= WARM:
                self.outcome.add_counts([each[round] for each in kept])


def run(
    directory: Path,
    sizes: Sequence[int] = (),
    rounds: int = ROUNDS,
    simulated: bool = False,
    churn: float = 0.0,
    whole: int = 0,
) -> Iterable[Row]:
    """Measure network workers of these sizes, models where `simulated`, or so many whole nodes."""
    if any(size < 2 for size in sizes) or (whole and not 2 <= whole <= WHOLE_MAX):
        raise Unavailable(f"a swarm has at least 2 nodes here, and of whole ones (--whole) at most {WHOLE_MAX}")
    os.environ["OMP_NUM_THREADS"] = "1"
    if whole:
        rows = whole_rows(directory, whole, rounds)
    elif simulated:
        rows = simulated_rows(sizes or SIMULATED_SIZES, rounds, churn)
    else:
        rows = real_rows(directory, sizes, rounds)
    for row in rows:
        say(" | ".join(cells(row)))
        yield row


def simulated_rows(sizes: Sequence[int], rounds: int, churn: float) -> Iterable[Row]:
    """Models of swarms with the shipped settings, their stages in shards, each beside one with one key for all."""
    settings = Settings(churn_per_hour=churn)
    smallest: Outcome | None = None
    for size in sorted(sizes):
        ours, theirs = (simulate(size, rounds, settings, sharded=sharded) for sharded in (True, False))
        smallest = smallest or ours
        yield from rows_of(f"N = {size:,}, simulated", ours, "one key", theirs)
        yield from goal_rows(size, ours, smallest, churn > 0)


def whole_rows(directory: Path, size: int, rounds: int) -> Iterable[Row]:
    """Whole nodes beside the model of the same swarm."""
    real = scale_whole.play(directory / f"whole-{size}", size, rounds)
    model = simulate(size, rounds, settings_like(size, real.outcome, real.settings()))
    title = f"N = {size}, whole nodes"
    yield from rows_of(title, real.outcome, "simulated", model)
    yield from agreement_rows(title, real.outcome, model)


def real_rows(directory: Path, sizes: Sequence[int], rounds: int) -> Iterable[Row]:
    """Real nodes, beside others with one key for all where they have shards, and beside the model of the same swarm."""
    for size in sizes or SIZES:
        yield from _real_rows(directory, size, rounds)


def _real_rows(directory: Path, size: int, rounds: int) -> Iterable[Row]:
    ours = play(directory / f"{size}", size, rounds, sharded=True)
    if shard_count_for(size, SHARD_MEMBERS) and size <= ONE_KEY_MAX:
        theirs = play(directory / f"{size}-one-key", size, rounds, sharded=False)
        yield from rows_of(f"N = {size}", ours, "one key", theirs)
    yield from rows_of(f"N = {size}", ours, "simulated", simulate(size, rounds, settings_like(size, ours)))


def settings_like(size: int, real: Outcome, idle: Settings = IDLE) -> Settings:
    """Of the model of a swarm that was run, which is like `idle` but for this: messages and rounds take as long as they
    took on this machine, by when announcements were heard. How many there are, and of how many bytes, is the model's
    own."""
    idle = replace(idle, link_s=HERE_S)
    heard_s = simulate(size, 1, idle).sample("announced p50").median
    slower = max(1.0, real.sample("announced p50").median / heard_s)
    link_s = (HERE_S[0] * slower, HERE_S[1] * slower)
    return replace(idle, link_s=link_s, round_s=real.sample("seconds").median)


def play(directory: Path, size: int, rounds: int, sharded: bool) -> Outcome:
    """Run a swarm for so many rounds beyond those that do not count."""
    say(f"{size} nodes, {'sharded' if sharded else 'one key'}")
    swarm = Swarm(directory, size, sharded)

    async def go() -> None:
        try:
            await swarm.start()
            for round in range(rounds + WARM):
                await swarm.play(round)
        finally:
            await swarm.stop()

    asyncio.run(go())
    return swarm.outcome


def say(line: str) -> None:
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
