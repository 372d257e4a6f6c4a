"""Invariants that must hold after every commit, on states and on commands, whatever happens in the world.

They count events and commands themselves; the core's own counts are only compared with the result.
"""

from swarmd.core import events
from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command, Gather, PublishReport
from swarmd.core.events import Event, RolloutsGathered
from swarmd.dht.gather import ANSWER_S, FETCHES_AT_ONCE, LEAST_S, READ_MAX, SETTLE_S, SPARE
from swarmd.dht.publisher import KEPT, RENEWALS, KeptRecord
from swarmd.dht.wire import names
from swarmd.dht.wire.names import member_shard_of, shard_of
from swarmd.dht.wire.records import ClockRecord, Record, check_shard, is_too_far_ahead
from swarmd.sim.chain import SimReceipt
from swarmd.sim.dht import CLOCK, MEMBERS, RECORD_S, SWARM, is_unexpired
from swarmd.sim.network import SimNetworkWorker
from swarmd.sim.node import SimNode
from swarmd.sim.node_checks import CommandChecks, RoundAccounts, TokenChecks, WeightsChecks, check_progress, find_stall
from swarmd.sim.submission_checks import SubmissionChecks
from swarmd.sim.swarm import SimSwarm
from swarmd.sim.swarm_checks import CoordinatorModel, HonestNodesChecks, RecoveryChecks

EARLY_S = 5.0  # records published this long before gathering starts are visible to all nodes
PUBLISH_S = 30.0  # longest time from a stage's first stored record to the fact that all are published
RENEWAL_S = 60.0  # longest time to renew all of a node's records if untrusted peers do not answer
ENOUGH_S = ANSWER_S + 1.5  # enough time to gather everything that is available
WAVE_LATENCIES = 15.0  # time to look up memberships and fetch bodies from all peers asked at once, in latencies
SLACK_S = 0.5  # tolerance of a deadline
KNOWN_S = 60.0  # a node linked for this long is known as a member
CALM_MIN_S = 650.0  # a shorter calm need not contain a renewal


class NetworkChecks:
    """Checks on all nodes' network workers."""

    def __init__(self, world: SimSwarm) -> None:
        self.world = world
        self._latest: list[dict[str, KeptRecord]] = [{} for _ in world.nodes]  # key → own record, by node
        self._announced: tuple[int, int, bool] = (-1, -1, False)
        self._gathers: dict[
            tuple[SimNetworkWorker, str], tuple[Gather, float]
        ] = {}  # (worker, command id) → command, start time

    # --- what it writes ---

    def reset_node(self, node: SimNode) -> None:
        """Forget a node's records after its disk was lost."""
        self._latest[node.index].clear()

    def on_record_signed(self, node: SimNode, record: Record) -> None:
        """Check that each of a node's records under a key expires later than earlier ones: else peers would keep an old
        one. A node need not remember all of them, because peers return the others."""
        content, latest = record.content, self._latest[node.index]
        check_shard(record.owner, content)
        kept = latest.pop(content.key, None)
        before = 0.0 if kept is None else kept.expiration
        if record.expiration <= before and not is_too_far_ahead(before, node.local_time()):
            what = f"{content.key} is signed until {record.expiration:.3f}, before until {before:.3f}"
            node.fail_run(f"{what}: an earlier record would stand in its way")
        latest[content.key] = KeptRecord(content, record.expiration)
        same = [key for key, kept in latest.items() if type(kept.content) is type(content)]
        for key in same[: -KEPT[type(content)]]:
            del latest[key]
        if isinstance(content, ClockRecord):
            self._check_clock_record(node, content)

    def _check_clock_record(self, node: SimNode, content: ClockRecord) -> None:
        """Check that the clock never goes back to an earlier announcement, which would lead the swarm back."""
        told = (content.round, content.stage, not content.final)  # a swarm may continue after a final one
        if told < self._announced:
            node.fail_run(f"it announces {told} again, and has announced {self._announced}")
        self._announced = told

    def on_network_fact(self, worker: SimNetworkWorker, event: events.Event) -> None:
        """Check that records reported as published can be found, unless the nodes that held them are gone."""
        if self.world.now < self.world.dht.lossy_at + PUBLISH_S:
            return
        for key in _published_keys(worker, event):
            own = worker.own.get(key)
            if own is not None and not (own.expiration >= self.world.now and is_unexpired(own, self.world.now)):
                continue  # the node's clock is wrong, and only its own
            if own is not None and not worker.partition_store.is_accepted_round(own.content):
                continue  # announced by a clock that was ahead: no peer has accepted that round yet
            if worker.node.peer not in worker.partition_store.find_records(key, self.world.now):
                worker.node.fail_run(f"{type(event).__name__} is told, and nobody can show {key}")

    # --- what it gathers ---

    def on_gather_command(self, worker: SimNetworkWorker, command: Gather) -> None:
        self._gathers[worker, command.id] = (command, self.world.now)

    def on_rollouts_gathered(self, worker: SimNetworkWorker, event: events.RolloutsGathered) -> None:
        """Check a gathering's result: in time, for the commanded stage, with the announced bodies."""
        node, asked = worker.node, self._gathers.pop((worker, event.command), None)
        if asked is None:
            return
        command, began = asked
        place = (command.source_round, command.source_stage)
        for ref in event.rollouts:
            if (ref.round, ref.stage) != place or ref.peer == node.peer:
                node.fail_run(f"{command.id} asks for the rollouts of {place}, and has {ref}")
            if not worker.session.bodies.has(ref.digest):
                node.fail_run(f"it has gathered {ref} without its body")
        if began > self.world.calm_from and worker.frozen_until < began and place[0] >= 0:
            had_s = command.until_at - node.skew_s - began
            took_s = self.world.now - began
            if took_s > max(had_s - ANSWER_S, LEAST_S) + SLACK_S:  # training has begun without it
                node.fail_run(f"{command.id} took {took_s:.1f} s and had {had_s:.1f} s")
            # In a large swarm, gathering from more peers than are asked at once takes longer.
            profile = self.world.profile
            sources = min(profile.nodes, profile.gather_peers + profile.gather_peers // SPARE)
            waves_s = (sources - 1) // FETCHES_AT_ONCE * WAVE_LATENCIES * profile.latency_s
            if had_s > ENOUGH_S + waves_s:
                self._check_nothing_missing(worker, place, event, began)

    def _check_nothing_missing(
        self, worker: SimNetworkWorker, place: tuple[int, int], event: events.RolloutsGathered, began: float
    ) -> None:
        """Check that everything published early enough by reachable honest peers was gathered, and without delay."""
        profile, took_s = self.world.profile, self.world.now - began
        store, peer = worker.partition_store, worker.node.peer
        found = store.find_records_in_shards(names.rollouts_key(SWARM, *place), worker.node.local_time())
        reports = store.find_records_in_shards(names.reports_key(SWARM, *place), worker.node.local_time())
        gathered = {ref.peer for ref in event.rollouts}
        slow = profile.latency_s > 0.1 or self.world.has_strangers
        if slow or not reports.keys() <= found.keys() | {peer}:
            return
        workers = [
            each for each in self.world.dht.workers if each.joined and each.partition_side == worker.partition_side
        ]
        there = [each.node for each in workers if each.node.state.link.chart == "up"]
        wrote = {node.peer: node for node in there if node.local_time() - node.state.link.since > took_s}
        # Records from well before the gathering: a record expires RECORD_S after publication, by its owner's clock.
        early_s = began - EARLY_S + RECORD_S
        early = {
            owner
            for owner, record in found.items()
            if owner in wrote and record.expiration - wrote[owner].skew_s < early_s
        }
        missing = sorted(early & reports.keys() - gathered - {peer})
        if missing and not (profile.has_shards and len(gathered) >= profile.gather_peers):
            worker.node.fail_run(
                f"{missing[0]} published its rollouts of {place} in time, gathered are {gathered} after {took_s:.1f} s"
            )
        # Reading a sharded stage takes two keys per shard, one after another.
        look_s = 4 * READ_MAX * profile.latency_s if profile.has_shards else 0.0
        if early == found.keys() and took_s > SETTLE_S + 2 * SLACK_S + look_s:
            worker.node.fail_run(f"it went on looking for rollouts of {place} for {took_s:.1f} s, and had all")

    # --- the end ---

    def check_at_end(self) -> None:
        """Check that after the calm all members are known, and their records are renewed."""
        if self.world.now - self.world.calm_from < CALM_MIN_S:
            return
        for node in self.world.nodes:
            worker, link = node.supervisor.running["network"], node.state.link
            if worker is None or link.chart != "up" or node.local_time() - link.since < KNOWN_S:
                continue
            self._check_member(node)
        self._check_coordinator_members()

    def _check_member(self, node: SimNode) -> None:
        record = (
            self.world.dht.stores[self.world.dht.sides[node.index]]
            .find_records_in_shards(MEMBERS, self.world.now)
            .get(node.peer)
        )
        lives_s = 0.0 if record is None else record.expiration - self.world.now
        renewed_s = RECORD_S / RENEWALS
        if lives_s < RECORD_S - 2 * renewed_s - RENEWAL_S:
            node.fail_run(f"its membership lives for {lives_s:.0f} s more, it is renewed every {renewed_s:.0f} s")

    def _check_coordinator_members(self) -> None:
        """Check that the coordinator knows all present members."""
        coordination = self.world.nodes[0].state.coordination
        if coordination is None or self.world.nodes[0].state.link.chart != "up":
            return
        here = {member.peer for member in coordination.members if not member.left}
        since = self.world.nodes[0].state.link.since
        for node in self.world.nodes:
            link = node.state.link
            linked_s = min(node.local_time() - link.since, self.world.nodes[0].local_time() - since)
            if link.chart == "up" and linked_s > KNOWN_S and node.peer not in here:
                node.fail_run("it has been there for long, and the coordinator does not know it as a member")


def _published_keys(worker: SimNetworkWorker, event: events.Event) -> tuple[str, ...]:
    """Return the keys of the records that a fact reports as published; none for other facts."""
    match event:
        case events.Registered():
            lies = worker.agent.members.place
            return (names.members_key(SWARM, *lies, member_shard_of(SWARM, worker.node.peer, lies)),)
        case events.RoundPublished():
            return (CLOCK,)
        case events.ReportPublished():
            shards = worker.session.view.shards.latest_shards_of(event.round)
            shard = shard_of(SWARM, worker.node.peer, event.round, event.stage, shards)
            place = (SWARM, event.round, event.stage, shards, shard)
            return names.reports_key(*place), names.rollouts_key(*place)
        case events.LeaderboardPublished():
            return (names.leaderboard_key(SWARM, event.round),)
        case _:
            return ()


class NodeChecks:
    """The checks of one node's journal; `submissions` only with a contract."""

    def __init__(
        self,
        world: SimSwarm,
        node: SimNode,
        honest: HonestNodesChecks,
        recovery: RecoveryChecks,
        submissions: SubmissionChecks | None,
    ) -> None:
        self.node = node
        self.orders = CommandChecks(node)
        self._accounts = RoundAccounts(node)
        self._tokens = TokenChecks(node)
        takes = node.settings.catch_up_rounds or node.settings.average_rounds
        self._weights = WeightsChecks(node) if takes else None
        coordinates = node.settings.coordination is not None
        self._coordinator = CoordinatorModel(world, node, honest, recovery) if coordinates else None
        self._honest = honest
        self._submissions = submissions

    def check_event(self, applied: AppliedEvent) -> None:
        """Check a durable event; called once each, in the order of the log."""
        before, after = applied.before, applied.after
        self.orders.check_event(applied)
        if self._weights is not None:
            self._weights.check_event(applied)
        self._honest.check_event(self.node, applied)
        if after is before:
            return
        check_progress(self.node, applied)
        self._accounts.check_event(applied)
        self._tokens.check_event(applied)
        if self._coordinator is not None:
            self._coordinator.check_event(applied)
        if self._submissions is not None and after.chain is not None:
            self._submissions.check_event(applied)
        stall = find_stall(after)
        if stall and find_stall(after, self.orders.killed_workers(after)):
            self.node.fail_run(stall)


class WorldChecks:
    def __init__(self, world: SimSwarm) -> None:
        self.world = world
        self.recovery = RecoveryChecks(world)
        self.honest = HonestNodesChecks(world)
        self.network = NetworkChecks(world)
        chain = world.chain
        self.submissions = [] if chain is None else [SubmissionChecks(node, chain) for node in world.nodes]
        self._by_peer = {checks.node.peer: checks for checks in self.submissions}
        self.nodes = [self._make_node_checks(node) for node in world.nodes]
        self.reports: dict[tuple[str, int, int], PublishReport] = {}

    def _make_node_checks(self, node: SimNode) -> NodeChecks:
        submissions = self.submissions[node.index] if self.submissions else None
        return NodeChecks(self.world, node, self.honest, self.recovery, submissions)

    def reset_node(self, node: SimNode) -> None:
        """Reset a node's own counts to its backup. What it has published stays published."""
        self.nodes[node.index] = self._make_node_checks(node)
        self.honest.reset_node(node)
        self.network.reset_node(node)

    def on_network_command(self, worker: SimNetworkWorker, command: Command) -> None:
        """Check a command to a network worker: there is one report for each stage, whatever happened in between."""
        if isinstance(command, Gather):
            self.network.on_gather_command(worker, command)
        elif isinstance(command, PublishReport):
            self.world.counts["reports"] += 1
            place = (command.round, command.stage)
            known = self.reports.setdefault((worker.peer, *place), command)
            if known != command:
                worker.node.fail_run(f"two reports for round {place[0]}, stage {place[1]}: {known} and {command}")

    def on_network_fact(self, worker: SimNetworkWorker, event: Event) -> None:
        """Check a fact that a network worker is about to report."""
        if isinstance(event, RolloutsGathered):
            self.network.on_rollouts_gathered(worker, event)
        else:
            self.network.on_network_fact(worker, event)

    def on_receipt(self, receipt: SimReceipt) -> None:
        """Check a transaction that was mined."""
        if receipt.tx.submission:
            self._by_peer[receipt.tx.call.peer].on_transaction_mined(receipt)

    def check_at_end(self) -> None:
        self.recovery.check_at_end()
        if self.recovery.settled is not None:
            for each in self.submissions:
                each.check_at_end()
        self.network.check_at_end()
        self.honest.check_at_end()
