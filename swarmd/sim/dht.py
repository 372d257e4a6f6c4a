"""The simulated DHT: records that their owners replace. It can split in two, return stale records, lose some, heal."""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from swarmd.core.values import RolloutsRef, Standing
from swarmd.dht.evidence import DecodedRecord
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.publisher import KeptRecord
from swarmd.dht.store.capacity import KEY_BYTES_MAX, KeyCapacity
from swarmd.dht.store.seniority import Seniority, credited_rounds
from swarmd.dht.wire import names, records
from swarmd.dht.wire.bodies import LeaderboardBody, SavedStandings, decode_leaderboard
from swarmd.sim.simulation import Place, Simulation, peer_id_of

DIGEST_LENGTH = 64  # hex length of a sha256; digests of simulated rollouts are shorter


def to_seen_record(record: records.Record) -> DecodedRecord:
    """Return a record in the form gossiped, with its content; its digest is padded to the length of a real one."""
    if not isinstance(record, records.SignedRecord):
        content = record.content
        if isinstance(content, records.ReportRecord) and content.digest:
            content = replace(content, digest=content.digest.ljust(DIGEST_LENGTH, "0"))
        record = records.SignedRecord(record.owner, msgspec.msgpack.encode(content), record.expiration, b"")
    return DecodedRecord(record, record.content)


T = TypeVar("T")
M = TypeVar("M")


class IdentityCache(Generic[T, M]):
    """Caches `make(value)` for the `kept` latest values, by identity instead of equality. `make` must be deterministic,
    and its results must not be changed."""

    def __init__(self, make: Callable[[T], M], kept: int) -> None:
        self._make = make
        self._kept = kept
        self._made: dict[int, tuple[T, M]] = {}  # by id; the value is kept, so that no other object gets its id

    def __call__(self, value: T) -> M:
        """Return `make(value)`, from the cache if possible. Raises what `make` raises."""
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        made = self._make(value)
        if len(self._made) >= self._kept:
            del self._made[next(iter(self._made))]
        self._made[id(value)] = (value, made)
        return made


BOARDS_KEPT = 4  # leaderboards: all nodes read the same one at about the same time


class LeaderboardCaches:
    """Caches of computations on leaderboards, shared by a world's nodes.

    Attributes:
        unpack: inline body in a record → the body.
        digest: body → its SHA-256 in hex.
        open: body → the leaderboard.
        rounds: standings → rounds of the peers that they credit, see `Seniority`.
    """

    def __init__(self) -> None:
        self.unpack: IdentityCache[bytes, bytes] = IdentityCache(lambda packed: packed[1:], BOARDS_KEPT)
        self.digest: IdentityCache[bytes, str] = IdentityCache(
            lambda body: hashlib.sha256(body).hexdigest(), BOARDS_KEPT
        )
        self.open: IdentityCache[bytes, LeaderboardBody] = IdentityCache(decode_leaderboard, BOARDS_KEPT)
        self.rounds: IdentityCache[Iterable[Standing], dict[str, int]] = IdentityCache(credited_rounds, BOARDS_KEPT)


SWARM = "sim"
CLOCK, MEMBERS = names.clock_key(SWARM), names.members_key(SWARM)
RECORD_S = 900.0  # lifetime of records
SWEEP_S = 120.0  # between two sweeps of keys whose records have all expired
MEMBER_BYTES = 400
CLOCK_BYTES = 250
REPORT_BYTES = 450
ROLLOUTS_BYTES = 4600  # including their body
BARE_BYTES = 450  # without a body
SIGNED_KEPT = 1 << 16
CUT_OFF = 0.4  # probability for each node to be on the smaller side of a partition

FORGOTTEN = (("clock",), ("members",), ("reports", "rollouts"))  # kinds of keys that are lost together


class SimRecord(msgspec.Struct, frozen=True, gc=False):
    """A record, see `swarmd.dht.ports.Record`; not signed, because nobody forges records in the simulation."""

    owner: str
    content: records.Payload
    expiration: float
    size_bytes: int

    def encode(self) -> bytes:
        """Encode a report's fields for the leaderboard; of another record everything, as in gossip."""
        content = self.content
        if isinstance(content, records.ReportRecord):
            return msgspec.msgpack.encode((self.owner, content.round, content.stage, content.reward))
        return records.SignedRecord(self.owner, msgspec.msgpack.encode(content), self.expiration, b"").encode()


def estimate_record_bytes(content: records.Payload) -> int:
    match content:
        case records.Membership():
            return MEMBER_BYTES
        case records.ClockRecord():
            return CLOCK_BYTES
        case records.ReportRecord():
            return REPORT_BYTES
        case records.RolloutsRecord():
            return ROLLOUTS_BYTES if content.body else BARE_BYTES
        case records.LeaderboardRecord():
            return BARE_BYTES + len(content.body)


class KeySnapshot(NamedTuple):
    """All records under a key, shared by all readers until one changes; must not be changed."""

    records: Mapping[str, SimRecord]
    first: float  # the earliest expiration
    last: float  # the latest


def make_key_snapshot(held: Mapping[str, SimRecord]) -> KeySnapshot:
    expirations = [record.expiration for record in held.values()]
    return KeySnapshot(dict(held), min(expirations, default=math.inf), max(expirations, default=-math.inf))


class PartitionStore:
    """The records held by the nodes on one side of a partition. `keys`: name → owner → record. `before`: owner → its
    latest replaced clock record."""

    def __init__(self, dht: "SimDht[Any]") -> None:
        self.dht = dht
        self.keys: dict[str, dict[str, SimRecord]] = {}
        self.before: dict[str, SimRecord] = {}
        self._shown: dict[str, KeySnapshot] = {}
        self._capacities: dict[str, KeyCapacity[str]] = {}
        self._ranked: dict[str, int] = {}  # name → version of the seniority in its records' ranks
        self.shards = records.AnnouncedShards(None if dht.world.profile.has_shards else 0)
        self._swept_at = dht.world.now

    def copy(self) -> "PartitionStore":
        """Return a copy, with which the other side starts when the network splits."""
        twin = PartitionStore(self.dht)
        twin.merge(self)
        twin.before = dict(self.before)
        twin.shards = deepcopy(self.shards)
        return twin

    def merge(self, other: "PartitionStore") -> None:
        """Merge the other side's records after a partition; the later record of each owner stays."""
        for name, held in other.keys.items():
            for record in held.values():
                self.put_record(name, record)

    def put_record(self, name: str, record: SimRecord) -> bool:
        """Store a record. Returns False if there is no room, a later one is held, or it is not currently valid."""
        now = self.dht.world.now
        if not is_unexpired(record, now) or not self._has_announced_shards(record.content):
            return False
        if now > self._swept_at + SWEEP_S:
            self._sweep_expired(now)
        held = self.keys.setdefault(name, {}).get(record.owner)
        if held is not None and held.expiration >= record.expiration:
            return held == record
        if not self._admit_by_capacity(name, record):
            return False
        if held is not None and name == CLOCK:
            self.before[record.owner] = held
        self.keys[name][record.owner] = record
        self._shown.pop(name, None)
        if isinstance(record.content, records.ClockRecord):
            self.shards.apply_clock(record.content)
        return True

    def _has_announced_shards(self, content: records.Payload) -> bool:
        """Return whether a record's number of shards is the one announced for its round, as far as this side knows."""
        if not isinstance(content, records.ReportRecord | records.RolloutsRecord):
            return True
        announced = self.shards.known_shards_of(content.round)
        return announced is None or announced == content.shards

    def is_accepted_round(self, content: records.Payload) -> bool:
        """Return whether records of this round are accepted."""
        clock = self.clock_record
        if clock is None or not isinstance(content, records.ReportRecord | records.RolloutsRecord):
            return True
        return -records.ROUNDS_BEHIND <= content.round - clock.round <= records.ROUNDS_AHEAD

    def _admit_by_capacity(self, name: str, record: SimRecord) -> bool:
        """Store a record by rank, and drop those that it displaces. Returns False if it has no room."""
        if not self.dht.bounded:
            return True
        if not self.is_accepted_round(record.content):
            return False
        seniority = self.dht.seniority
        if name not in self._capacities:
            self._capacities[name], self._ranked[name] = KeyCapacity(KEY_BYTES_MAX), seniority.version
        capacity, held = self._capacities[name], self.keys[name].get(record.owner)
        if held is not None and held.size_bytes == record.size_bytes:
            return True
        if capacity.size_bytes + record.size_bytes > KEY_BYTES_MAX:
            self._update_capacity(name, capacity)
        work = self.dht.works.get(record.owner, WORK_BITS)
        rank = seniority.make_rank(record.owner, name.encode(), work, record.size_bytes)
        gone = capacity.try_put(record.owner, record.size_bytes, rank)
        for owner in gone or ():
            self.keys[name].pop(owner, None)
            self._shown.pop(name, None)
        return gone is not None

    def _update_capacity(self, name: str, capacity: KeyCapacity[str]) -> None:
        """Drop expired records, and rank the others by current credit."""
        self._drop_expired(name, self.dht.world.now)
        if self._ranked[name] != self.dht.seniority.version:
            self._ranked[name] = self.dht.seniority.version
            capacity.update_ranks(self.dht.seniority.rounds_of)

    def put_hostile_record(self, peer: str, content: records.Payload, size_bytes: int) -> SimRecord | None:
        """Store a hostile peer's record. Returns None if there is no room, or its round is too old or too far ahead."""
        name, expiration = content.key, self.dht.world.now + RECORD_S
        held = self.keys.get(name, {}).get(peer)
        if held is not None and held.expiration >= expiration:
            expiration = held.expiration + 0.001
        record = SimRecord(peer, content, expiration, size_bytes)
        return record if self.put_record(name, record) else None

    def find_records(self, name: str, now: float) -> Mapping[str, SimRecord]:
        """Return owner → record, for those valid by the simulated time and for a reader whose clock shows `now`.
        Returns the identical mapping while nothing has changed and all records are valid."""
        shown = self._shown.get(name)
        if shown is None:
            shown = self._shown[name] = make_key_snapshot(self.keys.get(name, {}))
        since, until = max(self.dht.world.now, now - records.PAST_S), now + records.TTL_MAX_S + records.PAST_S
        if since <= shown.first and shown.last <= until:
            return shown.records
        return {owner: record for owner, record in shown.records.items() if since <= record.expiration <= until}

    def find_records_in_shards(self, name: str, now: float) -> dict[str, SimRecord]:
        """Return the records of a key and of all of its shards; the latest of each owner."""
        found = dict(self.find_records(name, now))
        if self.dht.world.profile.has_shards:
            for key in [key for key in self.keys if key.startswith(f"{name}/")]:
                for owner, record in self.find_records(key, now).items():
                    if owner not in found or found[owner].expiration < record.expiration:
                        found[owner] = record
        return found

    def _sweep_expired(self, now: float) -> None:
        self._swept_at = now
        self._shown.clear()
        for name in list(self.keys):
            self._drop_expired(name, now)
            if not self.keys[name]:
                del self.keys[name]
                self._capacities.pop(name, None)
                self._ranked.pop(name, None)

    def _drop_expired(self, name: str, now: float) -> None:
        for owner in [owner for owner, record in self.keys[name].items() if record.expiration < now]:
            self._drop_record(name, owner)

    def _drop_record(self, name: str, owner: str) -> None:
        del self.keys[name][owner]
        self._shown.pop(name, None)
        if name in self._capacities:
            self._capacities[name].drop(owner)

    def drop_record_kinds(self, kinds: tuple[str, ...]) -> None:
        for name in [name for name in self.keys if name.split("/")[2] in kinds]:
            for owner in list(self.keys[name]):
                self._drop_record(name, owner)

    @property
    def clock_record(self) -> records.ClockRecord | None:
        record = self.find_records(CLOCK, self.dht.world.now).get(peer_id_of(0))
        return record.content if record is not None and isinstance(record.content, records.ClockRecord) else None

    def has_report(self, place: Place, peer: str) -> bool:
        return peer in self.keys.get(names.reports_key(SWARM, *place), {})

    def has_rollouts(self, place: Place, peer: str) -> bool:
        return peer in self.keys.get(names.rollouts_key(SWARM, *place), {})

    def rollouts_of_stage(self, place: Place) -> list[RolloutsRef]:
        found = self.find_records(names.rollouts_key(SWARM, *place), self.dht.world.now)
        named = [(owner, record.content) for owner, record in found.items()]
        return [
            RolloutsRef(owner, *place, content.digest, content.size_bytes, content.groups)
            for owner, content in named
            if isinstance(content, records.RolloutsRecord)
        ]


def is_unexpired(record: SimRecord, now: float) -> bool:
    """Return whether a record is valid by a clock that shows `now`."""
    return now - records.PAST_S <= record.expiration <= now + records.TTL_MAX_S + records.PAST_S


class Participant(Protocol):
    """A network worker, as seen by the simulated network."""

    @property
    def index(self) -> int:
        """Its node's number."""

    @property
    def peer(self) -> str:
        """Its peer id."""

    @property
    def linked(self) -> bool:
        """Whether it reaches the swarm."""


W = TypeVar("W", bound=Participant)


class SimDht(Generic[W]):
    """The network between the nodes. Side 0 is all of it while it is not split.

    Attributes:
        sides: side of a partition, by node number.
        workers: the participating workers.
        on_side: number of workers on each side.
        watching: name → workers that watch the key.
        own_records: node number → own records on its disk.
        standings: node number → the newest leaderboard on its disk.
        blobs: node number → digests of bodies on its disk.
        signed: records in the form gossiped, shared by all readers.
        boards: caches of computations on leaderboards.
        lossy_at: when stored records may last have been lost.
        bounded: whether the shipped rules of capacity, rank and work apply to stored records, as among hostile peers.
        seniority: that of the nodes that hold records for others.
        works: bits of work of identities that differ from the usual.
        eclipsed: node → how it is eclipsed, "keys" or "all"; look-ups show it only what its trusted peers know.
    """

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.bounded = world.has_strangers
        self.seniority = Seniority(lambda peer: peer == world.coordinator, b"the holders of records")
        self.works: dict[str, int] = {}
        self.eclipsed: dict[int, str] = {}
        self.stores = [PartitionStore(self), PartitionStore(self)]
        self.sides = [0] * world.profile.nodes
        self.workers: list[W] = []
        self.on_side = [0, 0]
        self._by_peer: dict[Hashable, W] = {}
        self.watching: dict[str, dict[W, None]] = {}
        self.split = False
        self.own_records: dict[int, list[KeptRecord]] = {}
        self.standings: dict[int, SavedStandings] = {}
        self.blobs: dict[int, dict[str, bytes]] = {}
        self.signed = IdentityCache(to_seen_record, SIGNED_KEPT)
        self.boards = LeaderboardCaches()
        self.lossy_at = 0.0

    def lose_disk(self, node: int) -> None:
        """Drop what was on a lost machine's disk and is in no backup."""
        self.own_records.pop(node, None)
        self.standings.pop(node, None)
        self.blobs.pop(node, None)

    def add_worker(self, worker: W) -> None:
        """Add a worker to the network. If its side was empty, the records stored there are lost."""
        side = self.sides[worker.index]
        if not self.on_side[side]:
            self.stores[side] = PartitionStore(self)
            self.lossy_at = self.world.now
        self.workers.append(worker)
        self.on_side[side] += 1
        self._by_peer[worker.peer] = worker

    def remove_worker(self, worker: W) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
            self.on_side[self.sides[worker.index]] -= 1
            if self._by_peer[worker.peer] is worker:
                del self._by_peer[worker.peer]
            for name in [name for name, watching in self.watching.items() if worker in watching]:
                self.unwatch_key(worker, name)

    def unwatch_key(self, worker: W, name: str) -> None:
        """Stop a worker's watch of a key."""
        if name in self.watching:
            self.watching[name].pop(worker, None)
            if not self.watching[name]:
                del self.watching[name]

    def watchers_of_key(self, name: str, side: int) -> list[W]:
        """Return the linked workers on a side that watch a key."""
        return [each for each in self.watching.get(name, ()) if each.linked and self.sides[each.index] == side]

    def worker_of_peer(self, peer: Hashable) -> W | None:
        """Return the worker of an honest node, if it participates."""
        return self._by_peer.get(peer)

    def linked_workers_at(self, side: int) -> list[W]:
        return [each for each in self.workers if self.sides[each.index] == side and each.linked]

    def split_network(self, share: float) -> None:
        """Split the network in two: each node is cut off with probability `share`."""
        self.split, self.lossy_at = True, self.world.now
        self.sides = [int(self.world.random.random() < share) for _ in self.sides]
        self._recount_workers_by_side()
        self.stores[1] = self.stores[0].copy()

    def heal_network(self) -> None:
        if not self.split:
            return
        self.split, self.lossy_at = False, self.world.now
        self.sides = [0] * len(self.sides)
        self._recount_workers_by_side()
        self.stores[0].merge(self.stores[1])

    def _recount_workers_by_side(self) -> None:
        cut_off = sum(self.sides[worker.index] for worker in self.workers)
        self.on_side = [len(self.workers) - cut_off, cut_off]

    def lose_random_records(self) -> None:
        """Lose some records with the nodes that held them; their owners publish them again later."""
        self.lossy_at = self.world.now
        self.stores[0].drop_record_kinds(FORGOTTEN[self.world.random.randrange(3)])
