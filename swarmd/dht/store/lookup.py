"""Look-ups: a key is read at the peers nearest to it, within bounded time whatever single peers do.

hivemind's own traversal waits for its slowest peer, three seconds if one has just died. Here the nearest peers are
asked concurrently, then the nearer ones that they name, and the search ends shortly after the live ones have answered.

- `look_up_key` collects all records of a key, `look_up_records_by_owners` large records of given owners, each from one
  replica, `look_up_record_by_owner` the record of one owner.
- Every search also asks trusted peers, wherever they are: attackers that crowd around a key cannot hide its records.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from swarmd.dht.identity.identity import is_peer_id
from swarmd.dht.p2p.hivemind_api import DHTID, PeerID, dht_pb2
from swarmd.dht.p2p.node import NodeRun
from swarmd.dht.store.capacity import KEY_BYTES_MAX
from swarmd.dht.store.parts import OWNERS_MAX as ASKED_FOR_MAX
from swarmd.dht.store.parts import (
    AnswerProgress,
    FindFilter,
    LookupShares,
    Promptness,
    add_filter,
    decode_key_part,
    is_key_part,
)
from swarmd.dht.store.validator import (
    GuardedProtocol,
    check_requested_owners,
    dht_id_of,
    entries_of,
    filter_valid_records,
    load_dictionary,
    peers_named_in,
    send_find_request,
)
from swarmd.dht.wire import names
from swarmd.dht.wire.records import SignedRecord, split_value
from swarmd.errors import RecordRejected
from swarmd.worker.tasks import spawn_in_background

BREADTH = 8  # nearest peers to ask
ASKED_MAX = 32  # peers to ask in total, while nearer ones keep turning up
NAMED_MAX = 3  # peers to ask that one and the same peer named first
OWNERS_MAX = 8  # owners whose records are searched for that are asked themselves
REPLICAS = 5  # peers that hold a record
PATIENCE_S = 0.4  # time for further answers once there is one
HEDGE_S = 0.2  # delay after which other peers are asked for a slow peer's share
HASTE_S = 0.1  # time for further answers if only peers with late answers lately are left
SILENCE_S = 3.5  # timeout while no peer has answered
OWNER_S = 1.0  # time for the owner of a record, before others are asked for it


class PeerAnswer(NamedTuple):
    """A peer's answer about a key."""

    records: list[SignedRecord]  # valid ones
    nearby: dict[DHTID, PeerID]


async def ask_peer_for_records(
    protocol: GuardedProtocol, peer: PeerID, key: DHTID, only: Collection[str] = (), since: AnswerProgress | None = None
) -> PeerAnswer | None:
    """Ask a peer for the records of some owners, or for those that it has not sent before (`Validator.remembered`).

    With `only`, ask for the records of these owners. Otherwise ask for what is new since `since`, or for all records if
    that is None. Returns None if the peer gives no answer.
    """
    request = dht_pb2.FindRequest(keys=[key.to_bytes()], peer=protocol.node_info)
    asked = None if only else since or AnswerProgress()
    add_filter(request, FindFilter(tuple(only)) if asked is None else FindFilter((), asked.cursor_of(peer)))
    answers = await send_find_request(
        protocol, peer, request, lambda _, result: _decode_find_result(protocol, peer, key, result, only, asked)
    )
    return None if answers is None else answers[0]


async def _decode_find_result(
    protocol: GuardedProtocol,
    peer: PeerID,
    key: DHTID,
    result: Any,
    only: Collection[str],
    asked: AnswerProgress | None,
) -> PeerAnswer:
    """Decode a peer's `FindResult` and verify its records. Raises RecordRejected."""
    sender = peer.to_base58()
    if is_key_part(result.value):
        part = decode_key_part(result.value, KEY_BYTES_MAX + KEY_BYTES_MAX // 4)
        check_requested_owners(part.records, only)
        entries = [(shown.owner, shown.value, shown.expiration) for shown in part.records]
        records = await filter_valid_records(protocol, sender, key, entries)
        if asked is not None:
            protocol.record_validator.remembered.remember_answer(key, peer, part, records, asked)
        return PeerAnswer(records, peers_named_in(result))
    # A peer that does not support filters answers with a whole dictionary.
    if result.type == dht_pb2.FOUND_REGULAR:
        raise RecordRejected("unowned", "a plain value")
    entries = entries_of(load_dictionary(result.value)) if result.type == dht_pb2.FOUND_DICTIONARY else []
    return PeerAnswer(await filter_valid_records(protocol, sender, key, entries), peers_named_in(result))


class KeySearch:
    """What a search for the records of a key has found, and which peers it has asked.

    Attributes:
        records: the latest record of each owner.
        answered: whether any other peer answered.
        known: peers near the key.
    """

    def __init__(self, run: NodeRun, name: str) -> None:
        self.only: tuple[str, ...] = ()  # owners whose records are searched for; all if empty
        self.since = AnswerProgress()  # peers answer with what is new since then
        self.key = DHTID.from_bytes(names.key_id(name))
        self.records: dict[str, SignedRecord] = {}
        self.answered = False
        self.known: dict[DHTID, PeerID] = {}
        self.asked: set[DHTID] = set()
        self.showed: set[DHTID] = set()  # peers that have sent a record
        self.named_by: dict[DHTID, DHTID] = {}  # peer → the peer that named it; without peers of the own routing table
        self._sharded = names.is_shard_key(name)
        self._run = run
        self._validator = run.dht.protocol.record_validator
        self._own_id = run.dht.node_id

    def nearest_peers(self, count: int) -> list[tuple[DHTID, PeerID]]:
        ranked = sorted(self.known, key=self.key.xor_distance)
        return [(node_id, self.known[node_id]) for node_id in ranked[:count]]

    def add_peers(
        self, nearby: Mapping[DHTID, PeerID] | Iterable[tuple[DHTID, PeerID]], named_by: DHTID | None = None
    ) -> None:
        for node_id, peer in dict(nearby).items():
            if named_by is not None and node_id not in self.known:
                self.named_by[node_id] = named_by
            self.known[node_id] = peer
        self.known.pop(self._own_id, None)

    def restrict_to_owners(self, owners: Iterable[str]) -> None:
        """Search for these owners' records if they are few, else for all records that peers have not sent before."""
        self.only = tuple(islice(owners, ASKED_FOR_MAX + 1))
        if len(self.only) > ASKED_FOR_MAX:
            self.only = ()
        if not self.only:  # peers will not send again what they have sent before
            self.since = self._validator.remembered.progress(self.key)
            self._merge_verified(self._validator.remembered.records(self.key, time.time()))

    def trusted_peers(self, wanted: Iterable[str]) -> list[tuple[DHTID, PeerID]]:
        """Return peers to ask first, wherever they are: owners of wanted records, and the most trusted peers."""
        named = dict.fromkeys([*islice(wanted, OWNERS_MAX), *self._validator.trusted_peers()])
        peers = [PeerID.from_base58(name) for name in named if is_peer_id(name)]  # a leaderboard may credit other names
        return [(dht_id_of(peer), peer) for peer in peers if dht_id_of(peer) != self._own_id]

    def trusted_peers_to_read(self, wanted: Iterable[str]) -> list[tuple[DHTID, PeerID]]:
        """Return the trusted peers to read from; in a large swarm without the coordinator, to spare it."""
        trusted, policy = self.trusted_peers(wanted), self._validator.policy
        if not self._sharded and not policy.shards.is_large_swarm:
            return trusted
        return [each for each in trusted if each[1].to_base58() != policy.coordinator]

    def next_peers(self) -> list[tuple[DHTID, PeerID]]:
        """Return the nearest peers not asked yet, at most `NAMED_MAX` of them named by the same peer."""
        fresh, paths = [], Counter(self.named_by.get(node_id) for node_id in self.asked)
        for node_id, peer in self.nearest_peers(BREADTH):
            path = self.named_by.get(node_id)
            if node_id in self.asked or len(self.asked) >= ASKED_MAX or (path is not None and paths[path] >= NAMED_MAX):
                continue
            paths[path] += 1
            self.asked.add(node_id)
            fresh.append((node_id, peer))
        return fresh

    def merge_records(self, records: Iterable[SignedRecord]) -> None:
        """Merge valid records; the latest of each owner stays."""
        for signed in records:
            before = self.records.get(signed.owner)
            if before is None or before.expiration < signed.expiration:
                self.records[signed.owner] = signed

    def merge_own_records(self) -> None:
        """Merge the records that this node itself holds, which were verified on arrival."""
        held = self._run.dht.protocol.storage.records(self.key)
        self._merge_verified(split_value(owner, *entry) for owner, entry in held.items())

    def _merge_verified(self, records: Iterable[SignedRecord]) -> None:
        for signed in records:
            try:
                self.merge_records([self._validator.recheck_record(signed)])
            except RecordRejected as error:
                self._validator.rejections.count("", error.reason, error.message)

    def has_all(self, wanted: Mapping[str, float]) -> bool:
        late = (owner in self.records and self.records[owner].expiration >= wanted[owner] for owner in wanted)
        return bool(wanted) and all(late)

    async def ask_peer(self, node_id: DHTID, peer: PeerID, only: tuple[str, ...] = ()) -> bool:
        """Ask one peer and merge its answer. Returns whether it answered."""
        protocol, began = self._run.dht.protocol, time.monotonic()
        answer = await ask_peer_for_records(protocol, peer, self.key, only or self.only, self.since)
        took_s = time.monotonic() - began
        self._validator.promptness.record_answer(peer.to_base58(), took_s, answer is not None)
        if answer is None:
            self.known.pop(node_id, None)
            return False
        self.answered = True
        if answer.records:
            self.showed.add(node_id)
        self.merge_records(answer.records)
        self.add_peers(answer.nearby, node_id)
        return True


def search_locally(run: NodeRun, name: str) -> KeySearch:
    """Return what this node itself holds under a key, and the peers near it in its routing table."""
    found = KeySearch(run, name)
    found.add_peers(
        run.routing_table.get_nearest_neighbors(found.key, run.dht.protocol.bucket_size, exclude=run.dht.node_id)
    )
    found.merge_own_records()
    return found


async def look_up_key(
    run: NodeRun, name: str, wanted: Mapping[str, float] | None = None, only: Iterable[str] = ()
) -> KeySearch:
    """Collect the records of a key. `wanted` (owner → expiration): the search ends when all of these are found; None
    searches for the latest of all. `only`: owners to ask for; if empty, those in `wanted`, or all."""
    found = search_locally(run, name)
    wanted = wanted or {}
    found.restrict_to_owners(only or wanted)
    trusted = found.trusted_peers_to_read(wanted)
    found.asked.update(node_id for node_id, _ in trusted)
    asking = {spawn_in_background(found.ask_peer(*peer)): peer[1] for peer in trusted if not found.has_all(wanted)}
    loop = asyncio.get_running_loop()
    deadline, hurried = loop.time() + SILENCE_S, math.inf
    while not found.has_all(wanted):
        asking |= {spawn_in_background(found.ask_peer(*peer)): peer[1] for peer in found.next_peers()}
        until = min(deadline, hurried) if all(_is_late(run, peer) for peer in asking.values()) else deadline
        remaining_s = until - loop.time()
        if not asking or remaining_s <= 0:
            break
        done, _ = await asyncio.wait(asking, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        asking = {task: peer for task, peer in asking.items() if task not in done}
        if any(task.result() for task in done):
            deadline, hurried = min(deadline, loop.time() + PATIENCE_S), loop.time() + HASTE_S
    return found


def _is_late(run: NodeRun, peer: PeerID) -> bool:
    """Return whether not to wait for a peer: its last answers were late, and it is not configured."""
    name = peer.to_base58()
    promptness: Promptness = run.dht.protocol.record_validator.promptness
    return promptness.is_late(name) and not run.p2p.peer_limits.is_configured(name)


async def look_up_records_by_owners(
    run: NodeRun, name: str, owners: Collection[str], wanted: Collection[str] | None = None
) -> KeySearch:
    """Collect the records of these owners, each from one replica of the key.

    The records may be large: otherwise each reader would receive all of them from every replica. `wanted`: the owners
    whose records are worth waiting for; all if None.
    """
    found = search_locally(run, name)
    wanted = owners if wanted is None else wanted
    shares = LookupShares([owner for owner in owners if owner not in found.records], BREADTH, wanted)
    idle, asked = found.trusted_peers(()), dict[asyncio.Task[tuple[DHTID, PeerID] | None], _PendingShare]()
    found.asked.update(node_id for node_id, _ in idle)
    loop = asyncio.get_running_loop()
    until = deadline = loop.time() + SILENCE_S
    while True:
        for each in [each for each in asked.values() if loop.time() >= each.at + HEDGE_S]:
            shares.release_share(each.release(), found.records)
        shared = [(peer, shares.assign_share(peer[0])) for peer in (*idle, *found.next_peers())]
        idle = [peer for peer, share in shared if not share]
        for place, share in shared:
            if share:
                asked[spawn_in_background(_ask_for_share(found, place, share))] = _PendingShare(share, loop.time())
        if not asked or loop.time() >= deadline:
            return found
        wake_at = min(deadline, *(each.at + HEDGE_S for each in asked.values()))
        wait_s = max(wake_at - loop.time(), 0.0)
        done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            shares.release_share(asked.pop(task).release(), found.records)
        showing = [peer for task in done if (peer := task.result()) is not None]
        idle += showing  # asked next for what others have not sent
        if found.answered:
            if all(owner in found.records for owner in wanted):
                until = min(until, loop.time() + PATIENCE_S)
            deadline = min(until if showing else deadline, loop.time() + PATIENCE_S)


class _PendingShare:
    """The owners that one peer was asked for, until it has answered or is slow and others may be asked."""

    def __init__(self, share: tuple[str, ...], at: float) -> None:
        self._share = share
        self.at = at

    def release(self) -> tuple[str, ...]:
        """Return the owners, to ask other peers for them; empty when called again."""
        share, self._share, self.at = self._share, (), math.inf
        return share


async def _ask_for_share(
    found: KeySearch, place: tuple[DHTID, PeerID], share: tuple[str, ...]
) -> tuple[DHTID, PeerID] | None:
    """Ask one peer for some owners' records. Returns the peer if it has sent any record in this search."""
    await found.ask_peer(*place, share)
    return place if place[0] in found.showed else None


async def look_up_record_by_owner(run: NodeRun, name: str, owner: str) -> KeySearch:
    """Look up one owner's record: ask the owner first, then its replicas."""
    found = search_locally(run, name)
    if owner in found.records:
        return found
    found.restrict_to_owners((owner,))
    peer = PeerID.from_base58(owner)
    await asyncio.wait({spawn_in_background(found.ask_peer(dht_id_of(peer), peer))}, timeout=OWNER_S)
    return found if owner in found.records else await look_up_key(run, name, {owner: 0.0})
