"""What must hold of a node's place in the network: what it signs, what it says is published, what it gathers.

An honest node is never accused, whatever befalls it: what nodes sign is compared as real nodes compare it.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import msgspec

from swarmd.core.commands import Announce, Command, Gather, PublishLeaderboard, PublishReport
from swarmd.core.events import (
    Event,
    LeaderboardPublished,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundPublished,
)
from swarmd.dht.evidence import RecordComparison
from swarmd.dht.gather import ANSWER_S, FETCHES_AT_ONCE, LEAST_S, READ_MAX, SETTLE_S, SPARE
from swarmd.dht.publisher import KEPT, RENEWALS, Kept
from swarmd.dht.report_collector import NEWCOMERS_MAX
from swarmd.dht.wire import names
from swarmd.dht.wire.bodies import LeaderboardBody, encode_board
from swarmd.dht.wire.evidence import Evidence
from swarmd.dht.wire.names import member_shard_of, shard_of
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Payload,
    ReportRecord,
    SignedRecord,
    check_shard,
    is_far,
    is_sharded,
)
from swarmd.sim.ports.dht import CLOCK, MEMBERS, RECORD_S, SWARM, Place, Written, is_alive

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode
    from swarmd.sim.ports.network import NetworkWorker
    from swarmd.sim.world import World

EARLY_S = 5.0  # what was published so long before rollouts are gathered is there for whoever looks
PUBLISH_S = 30.0  # longest from the first record of a stage that is stored to the fact that all are published
RENEWAL_S = 60.0  # longest that it takes to write all of a node's records anew, where strangers do not answer
ENOUGH_S = ANSWER_S + 1.5  # in which everything that is there is gathered
WAVE_LATENCIES = 15.0  # to look for memberships and fetch bodies of so many peers at once, until the last has answered
SLACK_S = 0.5  # of a deadline
KNOWN_S = 60.0  # a node that has been linked for so long is known as a member
CALM_MIN_S = 650.0  # a shorter calm has no renewal that must have been


class NetworkChecks:
    """Checks of all nodes' network workers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calm_at = math.inf
        self._latest: list[dict[str, Kept]] = [{} for _ in world.nodes]  # key → own record, by node
        self._announced: tuple[int, int, bool] = (-1, -1, False)
        self._began: dict[tuple[int, str], float] = {}  # (pid, command) → when gathering began
        self.brought = BroughtReports(world)

    def expect(self) -> None:
        """The faults have ceased."""
        self.calm_at = self.world.now

    # --- what it writes ---

    def forget(self, node: SimNode) -> None:
        """A node's disk is lost, and what it remembers of its records with it."""
        self._latest[node.index].clear()

    def on_signed(self, node: SimNode, record: Written) -> None:
        """Each record of a node under a key expires later than those before: else peers would keep an old one.

        Of those that a node need not keep in mind it hears from the peers that have them.
        """
        content, latest = record.content, self._latest[node.index]
        check_shard(record.owner, content)
        kept = latest.pop(content.key, None)
        before = 0.0 if kept is None else kept.expiration
        if record.expiration <= before and not is_far(before, node.clock()):
            what = f"{content.key} is signed until {record.expiration:.3f}, before until {before:.3f}"
            self.world.fail(node, f"{what}: an earlier record would stand in its way")
        latest[content.key] = Kept(content, record.expiration)
        same = [key for key, kept in latest.items() if type(kept.content) is type(content)]
        for key in same[: -KEPT[type(content)]]:
            del latest[key]
        if isinstance(content, ClockRecord):
            self._check_clock(node, content)

    def _check_clock(self, node: SimNode, content: ClockRecord) -> None:
        """What is renewed is never an announcement of before: it would lead the swarm back."""
        told = (content.round, content.stage, not content.final)  # after a final one a swarm may go on
        if told < self._announced:
            self.world.fail(node, f"it announces {told} anew, and has announced {self._announced}")
        self._announced = told

    def on_fact(self, worker: NetworkWorker, event: Event) -> None:
        """What counts as published can be found, unless those who held it are gone since."""
        if isinstance(event, ReportSeen):
            self.brought.on_seen(worker, event)
        if self.world.now < self.world.dht.lossy_at + PUBLISH_S:
            return
        for key in _keys_of(worker, event):
            own = worker.own.get(key)
            if own is not None and not (own.expiration >= self.world.now and is_alive(own, self.world.now)):
                continue  # a node whose clock is wrong, and who is alone with that
            if worker.node.peer not in worker.store.find(key, self.world.now):
                self.world.fail(worker.node, f"{type(event).__name__} is told, and nobody can show {key}")

    # --- what it gathers ---

    def on_gather(self, worker: NetworkWorker, command: Gather) -> None:
        """A node is told to gather."""
        self._began[worker.pid, command.id] = self.world.now

    def on_gathered(self, worker: NetworkWorker, command: Gather, event: RolloutsGathered) -> None:
        """A node has gathered: in time, what it was told to, with bodies that are what was announced."""
        node, began = worker.node, self._began.pop((worker.pid, command.id), self.world.now)
        place = (command.source_round, command.source_stage)
        for ref in event.rollouts:
            if (ref.round, ref.stage) != place or ref.peer == node.peer:
                self.world.fail(node, f"{command.id} asks for the rollouts of {place}, and has {ref}")
            if not worker.session.bodies.has(ref.digest):
                self.world.fail(node, f"it has gathered {ref} without its body")
        if began > self.calm_at and worker.frozen_until < began and place[0] >= 0:
            had_s = command.until_at - node.skew_s - began
            took_s = self.world.now - began
            if took_s > max(had_s - ANSWER_S, LEAST_S) + SLACK_S:  # training has begun without it
                self.world.fail(node, f"{command.id} took {took_s:.1f} s and had {had_s:.1f} s")
            # From more peers than are asked at once, of a large swarm, it takes longer.
            profile = self.world.profile
            sources = min(profile.nodes, profile.gather_peers + profile.gather_peers // SPARE)
            waves_s = (sources - 1) // FETCHES_AT_ONCE * WAVE_LATENCIES * profile.latency_s
            if had_s > ENOUGH_S + waves_s:
                self._check_all_there(worker, place, event, began)

    def _check_all_there(
        self, worker: NetworkWorker, place: tuple[int, int], event: RolloutsGathered, began: float
    ) -> None:
        """Of honest peers that are there, what was published long before is gathered, and then without delay."""
        profile, took_s = self.world.profile, self.world.now - began
        store, peer = worker.store, worker.node.peer
        found = store.find_all(names.rollouts(SWARM, *place), worker.node.clock())
        reports = store.find_all(names.reports(SWARM, *place), worker.node.clock())
        gathered = {ref.peer for ref in event.rollouts}
        slow = profile.latency_s > 0.1 or self.world.hostile is not None
        if slow or not reports.keys() <= found.keys() | {peer}:
            return
        joined = [each.node for each in self.world.dht.workers if each.joined]
        there = [node for node in joined if node.side == worker.node.side and node.state.link.chart == "up"]
        wrote = {node.peer for node in there if node.clock() - node.state.link.since > took_s}
        # What was there well before gathering began, as far as its owner's clock can be believed.
        early_s = began - 2 * profile.skew_s - EARLY_S + RECORD_S
        early = {owner for owner, record in found.items() if owner in wrote and record.expiration < early_s}
        missing = sorted(early & reports.keys() - gathered - {peer})
        if missing and not (profile.sharded and len(gathered) >= profile.gather_peers):
            self.world.fail(
                worker.node,
                f"{missing[0]} published its rollouts of {place} in time, gathered are {gathered} after {took_s:.1f} s",
            )
        # A look at a stage in shards reads two keys of each, one after another.
        look_s = 4 * READ_MAX * profile.latency_s if profile.sharded else 0.0
        if early == found.keys() and took_s > SETTLE_S + 2 * SLACK_S + look_s:
            self.world.fail(worker.node, f"it went on looking for rollouts of {place} for {took_s:.1f} s, and had all")

    # --- the end ---

    def check(self) -> None:
        """After the calm all members are known, and their records are kept alive."""
        if self.world.now - self.calm_at < CALM_MIN_S:
            return
        for node in self.world.nodes:
            worker, link = node.supervisor.running["network"], node.state.link
            if worker is None or link.chart != "up" or node.clock() - link.since < KNOWN_S:
                continue
            self._check_member(node)
        self._check_known()

    def _check_member(self, node: SimNode) -> None:
        record = self.world.dht.stores[node.side].find_all(MEMBERS, self.world.now).get(node.peer)
        lives_s = 0.0 if record is None else record.expiration - self.world.now
        renewed_s = RECORD_S / RENEWALS
        if lives_s < RECORD_S - 2 * renewed_s - RENEWAL_S:
            self.world.fail(
                node, f"its membership lives for {lives_s:.0f} s more, it is renewed every {renewed_s:.0f} s"
            )

    def _check_known(self) -> None:
        """The coordinator knows who is there."""
        coordination = self.world.nodes[0].state.coordination
        if coordination is None or self.world.nodes[0].state.link.chart != "up":
            return
        here = {member.peer for member in coordination.members if not member.left}
        since = self.world.nodes[0].state.link.since
        for node in self.world.nodes:
            link = node.state.link
            linked_s = min(node.clock() - link.since, self.world.nodes[0].clock() - since)
            if link.chart == "up" and linked_s > KNOWN_S and node.peer not in here:
                self.world.fail(node, "it has been there for long, and the coordinator does not know it as a member")


def _keys_of(worker: NetworkWorker, event: Event) -> tuple[str, ...]:
    """The keys of the records that a fact says are published; none for other facts."""
    match event:
        case Registered():
            lies = worker.agent.members.place
            return (names.members(SWARM, *lies, member_shard_of(SWARM, worker.node.peer, lies)),)
        case RoundPublished():
            return (CLOCK,)
        case ReportPublished():
            shards = worker.session.view.shards.latest_of(event.round)
            shard = shard_of(SWARM, worker.node.peer, event.round, event.stage, shards)
            place = (SWARM, event.round, event.stage, shards, shard)
            return names.reports(*place), names.rollouts(*place)
        case LeaderboardPublished():
            return (names.leaderboard(SWARM, event.round),)
        case _:
            return ()


ROUNDING_S = 1e-6
BROUGHT_S = 1.0  # longest from a report that its owner brings to the fact that it was seen


class BroughtReports:
    """Reports that are stored with a node which collects them from shards are told before long."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._told: dict[int, tuple[Place, set[str]]] = {}  # pid → (stage, whose reports of it were told)

    def on_seen(self, worker: NetworkWorker, event: ReportSeen) -> None:
        """A worker tells of a report."""
        self._told_of(worker, (event.round, event.stage)).add(event.peer)

    def on_stored(self, worker: NetworkWorker, record: Written) -> None:
        """A record was stored with a worker by its owner.

        Where there are more newcomers than a stage has places for, some are not told.
        """
        content = record.content
        if self.world.profile.nodes > NEWCOMERS_MAX or not isinstance(content, ReportRecord):
            return
        if is_sharded(content) and content.key in worker.session.store.watches:
            self._check_later(worker, record.owner, content)

    def _check_later(self, worker: NetworkWorker, owner: str, content: ReportRecord) -> None:
        worker.later(BROUGHT_S, self._check, worker, owner, content, self.world.now + BROUGHT_S)

    def _check(self, worker: NetworkWorker, owner: str, content: ReportRecord, due: float) -> None:
        if self.world.now > due + ROUNDING_S:  # the process stood still, and goes on with all that waited just now
            self._check_later(worker, owner, content)
            return
        place = (content.round, content.stage)
        if content.key in worker.session.store.watches and owner not in self._told_of(worker, place):
            self.world.fail(worker.node, f"{owner} has brought its report of {place}, and it is not told")

    def _told_of(self, worker: NetworkWorker, place: Place) -> set[str]:
        """Whose reports of a stage a process has told of; of the stage that it is at alone."""
        if worker.pid not in self._told or self._told[worker.pid][0] != place:
            self._told[worker.pid] = (place, set())
        return self._told[worker.pid][1]


STEP_S = 0.001  # a node's expirations grow with each record, as `swarmd.dht.publisher` has it


class SignedRecords:
    """Sees the record of each order that makes one, in the order in which a node gets them, over all of its lives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at = 0.0
        self._node: SimNode | None = None
        coordinator = next((node.peer for node in world.nodes if node.coordinates), "")
        self._compared = RecordComparison(coordinator, lambda peer: True, self._accuse)

    def on_dispatch(self, node: SimNode, command: Command) -> None:
        """An order goes to a node's network worker, which signs a record if it is one for that."""
        content = record_of(command)
        if content is not None:
            self._at, self._node = self._at + STEP_S, node
            self._compared.see(SignedRecord(node.peer, msgspec.msgpack.encode(content), self._at, b""))

    def _accuse(self, evidence: Evidence) -> None:
        assert self._node is not None
        one, other = evidence.first.content, evidence.second.content
        self._world.fail(self._node, f"two different records that others would take for a lie: {one} and {other}")


def record_of(command: Command) -> Payload | None:
    """The record that an order makes a node sign; None for another order."""
    if isinstance(command, PublishReport):
        body = command.rollouts
        place = (command.round, command.stage, command.reward)
        return ReportRecord("sim", *place, body.digest, body.size_bytes, body.groups)
    if isinstance(command, Announce):
        times = (command.opened_at, command.deadline_at, command.final, command.opening)
        return ClockRecord("sim", command.round, command.stage, *times)
    if isinstance(command, PublishLeaderboard):
        board = encode_board(LeaderboardBody(command.round, command.standings, command.reports))
        return LeaderboardRecord("sim", command.round, hashlib.sha256(board).hexdigest(), len(board))
    return None
