"""A swarm's rounds: which stage is open, and what this node publishes and reads in it.

- `SwarmClock`: the coordinator announces the open stage; every node, including the coordinator, follows the
  announcements.
- `StagePublisher`: publishes a stage's rollouts, the report that names them, and the coordinator's leaderboards.
- `LeaderboardFetcher`: fetches the leaderboard of the previous round.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from swarmd.core.commands import Announce, PublishLeaderboard, PublishReport, ReadClock
from swarmd.core.events import LeaderboardPublished, NoRoundYet, ReportPublished, RoundAnnounced, RoundPublished
from swarmd.dht.evidence import announcement_of
from swarmd.dht.gossip import Gossip
from swarmd.dht.ports import Bodies, OwnNode
from swarmd.dht.publisher import Publisher
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names, records
from swarmd.dht.wire.bodies import LeaderboardBody, encode_leaderboard
from swarmd.dht.wire.names import MemberSharding, shard_of
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError
from swarmd.logger import get_logger

POLLS_BETWEEN_READS = 6  # between reads of the clock in a large swarm, where it also arrives by gossip
CALL_FIRST_S = 1.0  # delay of the first call to the coordinator after the start; intervals then double
CALL_EVERY_S = 10.0  # longest interval, unless the swarm is so large that `CALLS_PER_S` demands a longer one
CALLS_PER_S = 100.0  # calls per second that the coordinator gets from all followers together
FETCH_S = 10.0  # timeout for fetching a leaderboard's body

log = get_logger(__name__)


class SwarmClock:
    """Publishes the coordinator's announcements of the open stage, and follows them on every node."""

    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        publisher: Publisher,
        gossip: Gossip,
        reached: Callable[[int], None] = lambda round: None,
    ) -> None:
        self._view = view
        self._store = store
        self._publisher = publisher
        self._gossip = gossip
        self._reached = reached
        self._name = names.clock_key(view.swarm)
        self._watch: KeyWatch | None = None  # set by `watch_clock`
        self._deadline_at = math.inf  # deadline of the stage announced last, POSIX seconds
        self._latest: records.Record | None = None
        self._told: RoundAnnounced | None = None
        gossip.clock.set_listener(self._on_gossiped_record)

    def watch_clock(self) -> None:
        """Watch the clock for the rest of the session, and check that the coordinator can be reached."""
        view, store = self._view, self._store
        self._watch = store.watch(self._name, self._handle_records)
        if not view.coordinating and view.coordinator:
            view.runtime.start(self._call_coordinator())
            view.runtime.start(self._read_when_overdue(self._watch))

    async def _call_coordinator(self) -> None:
        """Check from time to time that the coordinator itself answers, because its records can come from any node. The
        first calls come early: once the coordinator has answered, an absence is noticed much sooner."""
        view, store, pause_s = self._view, self._store, CALL_FIRST_S
        while True:
            await view.runtime.sleep(pause_s)
            pause_s = min(2 * pause_s, max(CALL_EVERY_S, view.members / CALLS_PER_S))
            view.contact.set_call_interval(pause_s)
            try:
                if await store.ping_peer(view.coordinator):
                    view.contact.record_answer()
            except NetworkDown:
                continue

    async def _read_when_overdue(self, watch: KeyWatch) -> None:
        """In a large swarm, read the clock on every poll while a stage is overdue and the next is not announced."""
        view = self._view
        while True:
            await view.runtime.sleep(view.config.dht.poll_s)
            if view.shards.is_large_swarm and view.policy.now() > self._deadline_at:
                watch.read_now()

    def _on_gossiped_record(self, record: records.Record) -> None:
        """Handle a gossiped record. Raises RecordRejected if it is not valid."""
        view, store = self._view, self._store
        if record.owner != view.coordinator:
            raise RecordRejected("not-the-coordinator", f"{record.owner} is not the coordinator")
        self._handle_records({record.owner: store.check_gossiped_record(self._name, record)})

    async def announce(self, command: Announce) -> None:
        """Publish the open stage. Raises NetworkDown."""
        content = records.ClockRecord(
            swarm=self._view.swarm,
            round=command.round,
            stage=command.stage,
            opened_at=command.opened_at,
            deadline_at=command.deadline_at,
            final=command.final,
            opening=command.announcement_number,
            shards=command.shards,
            sharded_since=command.sharded_since,
            shards_before=command.shards_before,
            steady_min=command.steady_min,
        )
        self._view.shards.apply_clock(content)
        await self._publisher.publish(content)
        self._view.emit(RoundPublished(command.id, command.round, command.stage))

    async def read_clock(self, command: ReadClock) -> None:
        """Read the clock and emit it, even if it was emitted before. Raises NetworkDown: no peer answered."""
        found = await self._store.find_records(self._name)
        self._keep_if_later(found.records)
        if self._latest is not None:
            self._emit_announcement(self._latest)
        elif found.answered or self._view.coordinating:
            self._view.emit(NoRoundYet())
        else:
            raise NetworkDown("no peer answered when the clock was read")

    def _handle_records(self, seen: Mapping[str, records.Record]) -> None:
        if self._keep_if_later(seen) and self._latest is not None and announcement_of(self._latest) != self._told:
            self._emit_announcement(self._latest)

    def _keep_if_later(self, seen: Mapping[str, records.Record]) -> bool:
        """Keep the coordinator's record if it is later than the known one. Returns whether it was kept. A known record
        that is too far in the future is ignored: it was made before a clock was set back."""
        record, known = seen.get(self._view.coordinator), self._latest
        if known is not None and records.is_too_far_ahead(known.expiration, self._view.policy.now()):
            known = None
        if record is None or (known is not None and record.expiration <= known.expiration):
            return False
        self._latest = record
        self._forward_record(record)
        return True

    def _forward_record(self, record: records.Record) -> None:
        """Apply the record, store it for peers that ask, and gossip it unless it came by gossip."""
        view, store, gossip, content = self._view, self._store, self._gossip, record.content
        if isinstance(content, records.ClockRecord):
            view.contact.record_announcement(content.deadline_at, content.final)
            view.shards.apply_clock(content)
            self._deadline_at = math.inf if content.final else content.deadline_at
            if self._watch is not None:
                self._watch.set_poll_interval(
                    view.config.dht.poll_s * (POLLS_BETWEEN_READS if view.shards.is_large_swarm else 1)
                )
        store.store_locally(self._name, record)
        gossip.clock.forward_record(record)

    def _emit_announcement(self, record: records.Record) -> None:
        self._told = announcement_of(record)
        self._view.policy.set_round(self._told.round)
        self._view.emit(self._told)
        self._reached(self._told.round)


class StageShard(NamedTuple):
    """The shard of a stage that holds a peer's records."""

    shards: int  # number of shards of the stage; 0 if it is not sharded
    shard: int


async def find_shard_count(view: SwarmView, store: RecordStore, round: int) -> int:
    """Return the number of shards of a round's stages, reading the clock if that is unknown. Raises NetworkDown: no
    peer answered."""
    known = view.shards.known_shards_of(round)
    if known is not None:
        return known
    await _read_clock(view, store, f"for the shards of round {round}")
    return view.shards.latest_shards_of(round)


async def find_member_sharding(view: SwarmView, store: RecordStore) -> MemberSharding:
    """Return the sharding of memberships, reading the clock if that is unknown. Raises NetworkDown."""
    if view.shards.needs_clock:
        await _read_clock(view, store, "for the shards of memberships")
    return view.shards.members


async def _read_clock(view: SwarmView, store: RecordStore, purpose: str) -> None:
    found = await store.find_records(names.clock_key(view.swarm))
    clock = found.records.get(view.coordinator)
    if clock is not None and isinstance(clock.content, records.ClockRecord):
        view.shards.apply_clock(clock.content)
    elif not found.answered and not view.coordinating:
        raise NetworkDown(f"no peer answered when the clock was read {purpose}")


class StagePublisher:
    """Publishes reports, rollouts and leaderboards."""

    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        publisher: Publisher,
        bodies: Bodies,
        node: OwnNode,
        learn: Callable[[LeaderboardBody], None],
    ) -> None:
        self._view = view
        self._store = store
        self._publisher = publisher
        self._bodies = bodies
        self._node = node
        self._learn = learn
        self._remembers = publisher.has_published(records.ReportRecord)
        self._too_large: tuple[int, int] = (-1, -1)  # (round, stage) whose rollouts no peer stored with their body

    async def publish_report(self, command: PublishReport) -> None:
        """Publish a stage's rollouts, then the report that names them. Raises NetworkDown: the command may be tried
        again; SwarmdError: the rollouts are not in the blob store, or too large."""
        view, round, stage = self._view, command.round, command.stage
        shards = await find_shard_count(view, self._store, round)
        place = StageShard(shards, shard_of(view.swarm, view.peer_id, round, stage, shards))
        if not await self._has_other_report(command, place):
            await self._publish_rollouts(command, place)
            await self._publish_report(command, place)
        view.emit(ReportPublished(command.id, round, stage))

    async def _publish_report(self, command: PublishReport, place: StageShard) -> None:
        view, rollouts = self._view, command.rollouts
        report = records.ReportRecord(
            swarm=view.swarm,
            round=command.round,
            stage=command.stage,
            reward=command.reward,
            digest=rollouts.digest,
            size_bytes=rollouts.size_bytes,
            groups=rollouts.groups,
            work=await self._node.proof_of_work(),
            invitation=view.invitation,
            shards=place.shards,
            shard=place.shard,
        )
        await self._publisher.publish(report)
        self._remembers = True

    async def _has_other_report(self, command: PublishReport, place: StageShard) -> bool:
        """Return whether peers hold a different report of this node for this stage; that one then counts, and no other
        is signed.

        Only checked if this node remembers no own report: its data directory may be new while its key is not, or a
        second node may use the same key. A node that signs two different reports of one stage is excluded.
        """
        if self._remembers:
            return False
        name = names.reports_key(self._view.swarm, command.round, command.stage, *place)
        own = self._view.peer_id
        # asks every peer near the key, for this record only
        found = await self._store.find_records(name, {own: math.inf})
        standing = found.records[own].content if own in found.records else None
        if not isinstance(standing, records.ReportRecord) or standing.digest == command.rollouts.digest:
            return False
        log.warning("%s holds another report of this node; it stands, this directory's is not published", name)
        return True

    async def _publish_rollouts(self, command: PublishReport, shard: StageShard) -> None:
        rollouts = command.rollouts
        if not rollouts.groups:  # nothing to share
            return
        body = await self._bodies.get(rollouts.digest)
        _check_body_size(len(body))
        place = (command.round, command.stage)
        inline = b"" if place == self._too_large else await self._compress_inline_body(body, shard)
        content = records.RolloutsRecord(
            swarm=self._view.swarm,
            round=command.round,
            stage=command.stage,
            digest=rollouts.digest,
            size_bytes=len(body),
            groups=rollouts.groups,
            body=inline,
            work=await self._node.proof_of_work(),
            invitation=self._view.invitation,
            shards=shard.shards,
            shard=shard.shard,
        )
        try:
            await self._publisher.publish(content)
        except (NetworkDown, RecordRejected):
            self._too_large = place  # next time without the body: peers then fetch it from this node
            raise

    async def _compress_inline_body(self, body: bytes, shard: StageShard) -> bytes:
        """Return the compressed body to put into the record, or b"" for none.

        None in a sharded stage, where a reader reads all records of a shard but needs only some bodies. A node in
        client mode cannot be dialled, so its record always contains the body.
        """
        view, bodies = self._view, self._bodies
        to_fetch = not view.config.dht.client_mode
        if shard.shards and to_fetch:
            return b""
        return await bodies.deflate(body, view.members // max(shard.shards, 1), to_fetch)

    async def publish_leaderboard(self, command: PublishLeaderboard) -> None:
        """Publish a round's standings and reports. Raises NetworkDown."""
        board = LeaderboardBody(command.round, command.standings, command.reports)
        self._learn(board)
        body = encode_leaderboard(board)
        _check_body_size(len(body))
        digest = await self._bodies.put(body)
        assert digest == hashlib.sha256(body).hexdigest()
        record = records.LeaderboardRecord(
            swarm=self._view.swarm,
            round=command.round,
            digest=digest,
            size_bytes=len(body),
            body=await self._bodies.deflate(body, 1),
        )
        await self._publisher.publish(record)
        self._view.emit(LeaderboardPublished(command.id, command.round))


def _check_body_size(size_bytes: int) -> None:
    if size_bytes > records.BODY_BYTES_MAX:
        raise RecordRejected("oversized", f"a body of {size_bytes} bytes, peers take at most {records.BODY_BYTES_MAX}")


class LeaderboardFetcher:
    def __init__(
        self, view: SwarmView, store: RecordStore, bodies: Bodies, take: Callable[[LeaderboardBody], None]
    ) -> None:
        self._view = view
        self._store = store
        self._bodies = bodies
        self._take = take
        self._name = ""

    def watch_previous_leaderboard(self, round: int) -> None:
        """Watch for the previous round's leaderboard until it is found. Does nothing on the coordinator, which makes
        the leaderboards, and in a swarm with a contract, which has none."""
        view, store = self._view, self._store
        name = names.leaderboard_key(view.swarm, round - 1)
        follows = bool(view.coordinator) and not view.coordinating and view.config.chain is None
        if round < 1 or name == self._name or not follows:
            return
        store.unwatch(self._name)
        self._name = name
        store.watch(name, self._handle_records)

    def _handle_records(self, seen: Mapping[str, records.Record]) -> None:
        record = seen.get(self._view.coordinator)
        if record is not None and isinstance(record.content, records.LeaderboardRecord):
            self._store.unwatch(self._name)
            self._view.runtime.start(self._fetch_leaderboard(record.content))

    async def _fetch_leaderboard(self, record: records.LeaderboardRecord) -> None:
        """Fetch a leaderboard's body. On failure it is skipped: the next round has another."""
        coordinator, bodies = self._view.coordinator, self._bodies
        try:
            if record.body:
                body = await bodies.inflate(record.body, record.size_bytes)
            else:
                body = await bodies.fetch(coordinator, record.digest, record.size_bytes, FETCH_S)
            await bodies.check(body, record.digest, record.size_bytes)
            board = bodies.decode_leaderboard(body)
            if board.round != record.round:
                raise RecordRejected("malformed", f"it says of itself that it is of round {board.round}")
        except SwarmdError as error:
            log.info("the leaderboard of round %d: %s", record.round, error)
        else:
            self._take(board)
