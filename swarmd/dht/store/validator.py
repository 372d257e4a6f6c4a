"""Entry point of peers' records: the record validator, and a hardened version of hivemind's protocol.

hivemind decodes what peers send before validating it, drops a whole dictionary because of one bad record, believes the
expiration that a peer states for a dictionary, and has no bounds. `GuardedProtocol` replaces its `DHTProtocol`:

- Dictionaries of records are decoded as untrusted input.
- Every record is checked by itself, refusals are counted against the peer that sent them, and every request has a
  bound.
- An answer is bounded before it is built: the sizes of its records are added up, nothing is encoded.
- A peer's answer has room for some 16,000 records, which take two seconds to verify. Reading stops at the first content
  that an honest peer never sends: it has verified every record itself, and sends one record per requested owner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]
import msgspec
from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.dht.p2p.hivemind_api import (
    DHTID,
    DHTRecord,
    DictionaryDHTValue,
    MSGPackSerializer,
    P2PContext,
    PeerID,
    RecordValidatorBase,
    dht_pb2,
    node_module,
    protocol_module,
)
from swarmd.dht.p2p.limits import PeerLimits, RejectionCounter
from swarmd.dht.store.capacity import KEY_BYTES_MAX, RECORD_BYTES
from swarmd.dht.store.parts import AnswerMemory, FindFilter, KeyPart, Promptness, ShownRecord, read_filter
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.store.storage import STORED_BYTES_MAX, BoundedStorage, RecordForwarding, message_size_bound
from swarmd.dht.wire import names, records
from swarmd.dht.wire.msgpack_guard import check_plain_msgpack
from swarmd.errors import RecordRejected
from swarmd.worker.tasks import spawn_in_background

EXT_DEPTH_MAX = 8  # honest values have 2
ELEMENTS_MAX = 1 << 17  # elements of a dictionary: a full key has some 16,000 records, of four elements each

YIELD_EVERY = 16  # records checked before the event loop may run other tasks
FORGED = "bad-signature"
FORGED_MAX = 4  # forged records in one answer after which reading stops

SHOWN_RECORD_BYTES = 80  # a record's owner and expiration in an answer, besides its value
NEARBY_BYTES = 2048  # peers named for each key


def install_serializer_guard() -> None:
    """Bound the nesting of extension types: otherwise about 200 levels, in 2 KB, end the process with SIGSEGV.

    Unknown extension types are refused instead of being passed on with a log line each. Call this before any node is
    created; a second call changes nothing.
    """
    if getattr(MSGPackSerializer, "swarmd_guarded", False):
        return
    decode = MSGPackSerializer._decode_ext_types.__func__
    depth = 0

    def decode_guarded(cls: Any, type_code: int, encoded: bytes) -> Any:
        nonlocal depth
        if depth >= EXT_DEPTH_MAX:
            raise ValueError("extension types are nested too deeply")
        if type_code not in cls._ext_type_codes and type_code != cls._TUPLE_EXT_TYPE_CODE:
            raise ValueError(f"unknown extension type {type_code}")
        check_nesting(encoded)
        depth += 1
        try:
            return decode(cls, type_code, encoded)
        finally:
            depth -= 1

    MSGPackSerializer._decode_ext_types = classmethod(decode_guarded)
    MSGPackSerializer.swarmd_guarded = True


def check_nesting(encoded: bytes) -> None:
    """Check msgpack's nesting before it is decoded: the decoder allocates each array before reading it, up to a
    thousand levels deep. Raises RecordRejected, as `check_plain_msgpack`."""
    check_plain_msgpack(encoded, elements_max=ELEMENTS_MAX, extensions=True)


def load_dictionary(encoded: bytes) -> DictionaryDHTValue:
    """Decode a dictionary of records. Raises RecordRejected for anything else."""
    if len(encoded) > KEY_BYTES_MAX + KEY_BYTES_MAX // 4:
        raise RecordRejected("oversized", f"a dictionary of {len(encoded)} bytes")
    try:
        check_nesting(encoded)
        value = MSGPackSerializer.loads(encoded)
    except RecordRejected:
        raise
    except Exception as error:
        reason = "nested" if "nested" in str(error) or isinstance(error, RecursionError) else "malformed"
        raise RecordRejected(reason, f"not a dictionary: {error!r:.200}") from error
    if not isinstance(value, DictionaryDHTValue):
        raise RecordRejected("malformed", "not a dictionary")
    return value


Entry = tuple[Any, bytes, float]  # claimed owner, value, expiration


def entries_of(dictionary: DictionaryDHTValue) -> list[Entry]:
    """Return the unexpired entries. Raises RecordRejected("malformed")."""
    try:
        return [(subkey, entry.value, float(entry.expiration_time)) for subkey, entry in dictionary.items()]
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordRejected("malformed", f"a dictionary with odd entries: {error!r:.200}") from error


def check_requested_owners(shown: Sequence[ShownRecord], only: Collection[str]) -> None:
    """Raise RecordRejected("unasked") unless there is one record per owner, each in `only` (if not empty)."""
    owners = {each.owner for each in shown}
    if len(owners) < len(shown) or (only and not owners <= set(only)):
        raise RecordRejected("unasked", f"{len(shown)} records of {len(owners)} owners, of whom {len(only)} were asked")


async def filter_valid_records(
    protocol: Any, sender: str, key: Any, entries: Iterable[Entry]
) -> list[records.SignedRecord]:
    """Return an answer's valid records; count the others against the sender."""
    kept, forged = list[records.SignedRecord](), 0
    for number, entry in enumerate(entries):
        if number % YIELD_EVERY == YIELD_EVERY - 1:
            await asyncio.sleep(0)
        try:
            kept.append(protocol.verify_shown_record(key, *entry))
        except RecordRejected as error:
            protocol._count_rejection(sender, error)
            forged += error.reason == FORGED
            if forged == FORGED_MAX:
                break
    return kept


def check_answerable(peer_limits: PeerLimits, sender: str, keys: list[bytes], storage: BoundedStorage) -> None:
    """Check that a peer may have all records under these keys. Raises RecordRejected: "doubled" if a key is named
    twice, "oversized" above p2pd's frame, "bytes-out" if the peer has had too much already."""
    if len(set(keys)) < len(keys):
        raise peer_limits.count_refusal(sender, "doubled", "a key is named twice in one call")
    held = [storage.get(DHTID.from_bytes(key)) for key in keys]
    size_bytes = sum(message_size_bound(item.value) for item in held if item is not None)
    peer_limits.check_answer_allowed(sender, size_bytes + NEARBY_BYTES * len(keys))


def select_key_part(storage: BoundedStorage, key: DHTID, wanted: FindFilter) -> KeyPart:
    """Return the held records that a filter selects, and the asker's new cursor."""
    held, changes = storage.dictionary(key) or DictionaryDHTValue(), storage.changes
    owners: Iterable[str] = [owner for owner, _ in held.items()]
    if wanted.owners:
        owners = dict.fromkeys(wanted.owners)
    elif changes.is_known_cursor(wanted.cursor):
        owners = changes.owners_changed_since(key, wanted.cursor)
    entries = [(owner, entry) for owner in owners if (entry := held.get(owner)) is not None]
    found = tuple(ShownRecord(owner, entry.value, entry.expiration_time) for owner, entry in entries)
    return KeyPart(changes.life, changes.last, found)


def answer_find_request(protocol: Any, sender: str, request: Any) -> Any | None:
    """Answer a `FindRequest` for a part of a key: a `FindResult` with the records and the peers nearest to the key.
    Returns None if the request has no filter, like hivemind's own. Raises RecordRejected: it is "malformed", or the
    asker has had too much, as in `check_answerable`."""
    try:
        wanted = read_filter(request)
    except RecordRejected as error:
        raise protocol.p2p.peer_limits.count_refusal(sender, error.reason, error.message) from error
    if wanted is None:
        return None
    key, asker = DHTID.from_bytes(request.keys[0]), DHTID.from_bytes(request.peer.node_id)
    part = select_key_part(protocol.storage, key, wanted)
    size = sum(len(shown.value) + SHOWN_RECORD_BYTES for shown in part.records)
    protocol.p2p.peer_limits.check_answer_allowed(sender, size + NEARBY_BYTES)
    latest = max((shown.expiration for shown in part.records), default=0.0)
    result = dht_pb2.FindResult(
        type=dht_pb2.FOUND_DICTIONARY, value=msgspec.msgpack.encode(part), expiration_time=latest
    )
    for node_id, peer in protocol.routing_table.get_nearest_neighbors(key, k=protocol.bucket_size, exclude=asker):
        result.nearest_node_ids.append(node_id.to_bytes())
        result.nearest_peer_ids.append(peer.to_bytes())
    return result


CHECKED_BYTES_MAX = 8 * 1024 * 1024  # bytes of records whose verified signature is cached
CHECKED_BYTES_MIN = 4096  # minimum that each of them counts for, so that there are at most 2048
KEYS_PER_FIND_MAX = 64
NEARBY_MAX = 64  # peers that one answer may name; an honest one names up to hivemind's bucket size, 20
PEER_ID_BYTES_MAX = 64  # an Ed25519 id has 38, an RSA id 34
WAITING_MAX = 20  # peers waiting for a slot in a full bucket of the routing table
BATCH_BYTES_MAX = 2 * 1024 * 1024  # of one store request
RECORDS_BURST, RECORDS_PER_S = 4096.0, 256.0  # per sender
BYTES_BURST, BYTES_PER_S = 32.0 * 1024 * 1024, 2.0 * 1024 * 1024
REWRITES_BURST, REWRITES_PER_S = 64.0, 2.0  # of one owner's record under one key
REWRITTEN_MAX = STORED_BYTES_MAX // RECORD_BYTES  # records whose rewrites are limited: as many as can be held
RECORDS_PER_STORE_MAX = 8192  # records in one call; an honest one has `BATCH_BYTES_MAX`, at some 300 bytes each
ABUSED_CALL = 16  # weight of the refusal of a call with more
STALE = "stale"
T = TypeVar("T")


class Validator(RecordValidatorBase):  # type: ignore[misc]
    """hivemind's validator: `check_record` with a cache of verified records. It signs nothing, because records come
    signed.

    Attributes:
        promptness: which peers answer late.

    Args:
        accepted: called with every record that a peer has stored here.
        awaits: (key id, owner) → whether a report is wanted, whether or not there is room to keep it.
        verified: called with every record that was verified for the first time.
    """

    def __init__(
        self,
        policy: records.RecordPolicy,
        rejections: RejectionCounter,
        accepted: Callable[[records.SignedRecord], None] = lambda signed: None,
        seniority: Seniority | None = None,
        trusted_peers: Callable[[], Iterable[str]] = tuple,
        awaits: Callable[[bytes, str], bool] = lambda key, owner: False,
        verified: Callable[[records.SignedRecord], None] = lambda signed: None,
    ) -> None:
        self.policy = policy
        self.rejections = rejections
        self.accepted = accepted
        self.seniority = seniority
        self.trusted_peers = trusted_peers
        self.awaits = awaits
        self._verified = verified
        self.records_quota = RateLimiter(RECORDS_BURST, RECORDS_PER_S)
        self.bytes_quota = RateLimiter(BYTES_BURST, BYTES_PER_S)
        self.rewrites_quota = RateLimiter(REWRITES_BURST, REWRITES_PER_S, keys_max=REWRITTEN_MAX)
        self.remembered = AnswerMemory()
        self.promptness = Promptness()
        self._checked: FIFOCache[tuple[bytes, str, float, bytes], records.SignedRecord] = FIFOCache(
            CHECKED_BYTES_MAX, lambda signed: max(len(signed.value), CHECKED_BYTES_MIN)
        )

    def verify_record(self, key: bytes, owner: str, value: bytes, expiration: float) -> records.SignedRecord:
        """Return a valid record. Raises RecordRejected."""
        place = (key, owner, expiration, value[-64:] if isinstance(value, bytes) else b"")
        known = self._checked.get(place)
        if known is not None and known.value == value:
            return self.recheck_record(known)
        signed = records.check_record(self.policy, key, owner, value, expiration)
        self._checked[place] = signed  # with a key of small order, one signature fits many values
        self._verified(signed)
        return signed

    def recheck_record(self, known: records.SignedRecord) -> records.SignedRecord:
        """Return a previously verified record if it is still valid. Raises RecordRejected. Checks only its expiration
        and whether its owner is still admitted, not its signature."""
        records.check_admitted(self.policy, known.owner)
        records.check_expiration(known.expiration, self.policy.now())  # the clock may have been set since
        return known

    def clear_caches(self) -> None:
        """Forget all verified records, because the rules for valid records have changed."""
        self._checked.clear()
        self.remembered.clear()

    def validate(self, record: DHTRecord) -> bool:
        """Validate a record of this node itself, for hivemind."""
        try:
            self.verify_record(record.key, records.decode_owner(record.subkey), record.value, record.expiration_time)
        except RecordRejected as error:
            self.rejections.count("", error.reason, error.message)
            return False
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return the value given to hivemind's `store`, which is signed already, without its wrapping."""
        return bytes(msgpack.unpackb(record.value))

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the whole value, including the signature, as bytes for the reader."""
        return bytes(msgpack.packb(record.value))


class GuardedProtocol(protocol_module.DHTProtocol):  # type: ignore[misc]
    """hivemind's wire protocol, with bounds, and with every record checked by itself."""

    record_validator: Validator
    ids_are_chosen = False  # a DHT id is the hash of the peer id, so that nobody can choose its position
    _rpc_handlers = None
    _stub_type = None

    @classmethod
    async def create(cls, *args: Any, **kwargs: Any) -> "GuardedProtocol":
        """Create the protocol as hivemind does, with the bounded storage."""
        self: GuardedProtocol = await super().create(*args, **kwargs)
        self.storage = BoundedStorage(self.record_validator.seniority)
        self.forwarding = RecordForwarding()
        return self

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        """Return the RPC name with hivemind's class name, as it is on the wire."""
        name = f"DHTProtocol.{method_name}"
        return f"{namespace}::{name}" if namespace else name

    def _count_rejection(self, sender: str, error: RecordRejected) -> None:
        self.record_validator.rejections.count(sender, error.reason, error.message)

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Update the table as hivemind does, but derive each peer's DHT id from its authenticated peer id."""
        if node_id is not None and not self.ids_are_chosen and node_id != dht_id_of(peer_id):
            self._count_rejection(
                peer_id.to_base58(), RecordRejected("wrong-id", f"the DHT id {node_id:040x} is not its own")
            )
            return
        if node_id is not None and responded and node_id not in self.routing_table:
            self._add_new_peer(node_id, peer_id)
        else:
            await super().update_routing_table(node_id, peer_id, responded)
        if node_id is not None and responded:
            # Drop the peers that have waited longest for a slot in a full bucket; hivemind keeps all of them.
            bucket = self.routing_table.buckets[self.routing_table.get_bucket_index(node_id)]
            while len(bucket.replacement_nodes) > WAITING_MAX:
                del self.routing_table[next(iter(bucket.replacement_nodes))]

    def _add_new_peer(self, node_id: DHTID, peer_id: PeerID) -> None:
        """Add a peer to the routing table, and forward the records that it should hold, at a bounded rate."""
        handed = self.forwarding.records_to_forward(self, node_id)
        if handed:
            keys, values, expirations = ([entry[column] for entry in handed] for column in range(3))
            spawn_in_background(self.call_store(peer_id, keys, values, expirations, in_cache=False))
        doubted = self.routing_table.add_or_update_node(node_id, peer_id)
        if doubted is not None:  # the bucket is full: check that its least recently seen peer still answers
            spawn_in_background(self.call_ping(doubted[1]))

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        if request.peer:
            spawn_in_background(self.rpc_ping(dht_pb2.PingRequest(peer=request.peer), context))
        sender = context.remote_id.to_base58()
        if len(request.keys) > RECORDS_PER_STORE_MAX:
            detail = f"{len(request.keys)} records in one call"
            raise self.p2p.peer_limits.count_refusal(sender, "oversized", detail, ABUSED_CALL)
        answers = []
        columns = zip(request.keys, request.subkeys, request.values, request.expiration_time, strict=False)
        for number, (key, tag, value, expiration) in enumerate(columns):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            answers.append(await self._store_value(sender, key, tag, value, expiration))
        return dht_pb2.StoreResponse(store_ok=answers, peer=self.node_info)

    async def _store_value(self, sender: str, key: bytes, tag: bytes, value: bytes, expiration: float) -> bool:
        try:
            self._charge_sender(sender, len(value))
            if tag == self.IS_DICTIONARY:
                return await self._store_dictionary(sender, key, value)
            return self._store_record(sender, key, records.decode_owner(tag), value, expiration, replayed="duplicate")
        except RecordRejected as error:
            self._count_rejection(sender, error)
            return False

    def _charge_sender(self, sender: str, size_bytes: int) -> None:
        validator = self.record_validator
        if not validator.records_quota.try_charge(sender) or not validator.bytes_quota.try_charge(sender, size_bytes):
            raise RecordRejected("quota", "too many records or bytes from one peer")

    async def _store_dictionary(self, sender: str, key: bytes, encoded: bytes) -> bool:
        """Store all records of a key, which a peer forwards to a newly met node."""
        stored = True
        for number, (subkey, value, expiration) in enumerate(entries_of(load_dictionary(encoded))):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            try:
                if number:
                    self._charge_sender(sender, 0)
                stored &= self._store_record(sender, key, records.check_owner(subkey), value, expiration, replayed="")
            except RecordRejected as error:
                stored = False
                if error.reason != STALE:  # other peers' copies may be outdated
                    self._count_rejection(sender, error)
        return stored

    def _store_record(
        self, sender: str, key: bytes, owner: str, value: bytes, expiration: float, replayed: str
    ) -> bool:
        key_id, validator = decode_dht_id(key), self.record_validator
        awaited = validator.awaits(key, sender) and sender == owner
        if not awaited:  # do not verify a record that there is no room for
            records.check_value_size(value)
            self.storage.check_capacity(key_id, records.split_value(owner, value, expiration))
        signed = validator.verify_record(key, owner, value, expiration)
        held = self.storage.held_entry(key_id, owner)
        if held == (signed.value, signed.expiration):
            if replayed and sender != signed.owner:
                raise RecordRejected(replayed, f"a record of {signed.owner} that is held already")
            return True
        if held is not None and sender == owner and held[1] > signed.expiration:
            return False  # the owner's own messages may overtake one another
        # Limit how often a held record is replaced, whichever peers send it.
        if held is not None and not validator.rewrites_quota.try_charge(f"{owner}/{signed.content.key}"):
            raise RecordRejected("flood", f"{owner} rewrites {signed.content.key} too often")
        try:
            stored: bool = self.storage.store_record(key_id, signed)
        except RecordRejected as error:
            if not awaited or error.reason != "full":
                raise
            stored = False  # an awaited report counts even if there is no room to store it
        if stored or awaited:
            validator.accepted(signed)
        return stored

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Answer a request for a part of one key, or for a bounded number of whole keys."""
        del request.keys[KEYS_PER_FIND_MAX:]
        sender = context.remote_id.to_base58()
        result = answer_find_request(self, sender, request)
        if result is None:
            check_answerable(self.p2p.peer_limits, sender, list(request.keys), self.storage)
            return await super().rpc_find(request, context)
        response = await super().rpc_find(dht_pb2.FindRequest(peer=request.peer), context)
        response.results.append(result)
        return response

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]) -> dict[DHTID, Any] | None:
        """Ask a peer for its neighbours of keys, which is all that hivemind's own node search needs."""
        keys = list(keys)
        request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=self.node_info)

        async def read_neighbours(key: DHTID, result: Any) -> tuple[None, dict[DHTID, PeerID]]:
            return None, peers_named_in(result)

        answers = await send_find_request(self, peer, request, read_neighbours)
        return None if answers is None else dict(zip(keys, answers, strict=True))

    async def call_ping(self, peer: PeerID, validate: bool = False, strict: bool = True) -> DHTID | None:
        """Ping as hivemind does, but treat an answer that is not a DHT id as no answer."""
        try:
            answered: DHTID | None = await super().call_ping(peer, validate, strict)
        except AssertionError as error:  # hivemind converts it to a number without checking its size
            self._count_rejection(peer.to_base58(), RecordRejected("malformed", f"not a DHT id: {error!s:.200}"))
            return None
        return answered

    def _update_table_in_background(self, node_id: DHTID | None, peer: PeerID, responded: bool) -> None:
        spawn_in_background(self.update_routing_table(node_id, peer, responded=responded))

    def verify_shown_record(self, key: DHTID, owner: object, value: bytes, expiration: float) -> records.SignedRecord:
        """Return a record sent in an answer, if it is valid. Raises RecordRejected. A record that is also stored here
        is not verified again: a key may have thousands of records, and is read every few seconds."""
        validator, peer_id = self.record_validator, records.check_owner(owner)
        if self.storage.held_entry(key, peer_id) == (value, expiration):
            return validator.recheck_record(records.split_value(peer_id, value, expiration))
        return validator.verify_record(key.to_bytes(), peer_id, value, expiration)

    async def call_store(
        self,
        peer: PeerID,
        keys: Sequence[DHTID],
        values: Sequence[Any],
        expiration_time: Any,
        subkeys: Any = None,
        in_cache: Any = None,
    ) -> list[bool] | None:
        """Store as hivemind does, but send records forwarded to a new peer in batches that fit in a message."""
        if len(keys) <= 1 or subkeys is not None:
            stored: list[bool] | None = await super().call_store(
                peer, keys, values, expiration_time, subkeys=subkeys, in_cache=in_cache
            )
            return stored
        answers: list[bool] = []
        for batch in _batch_indices(values):
            columns = ([column[index] for index in batch] for column in (keys, values, expiration_time))
            answer = await super().call_store(peer, *columns, in_cache=in_cache)
            if answer is None:
                return None
            answers += answer
        return answers


async def send_find_request(
    protocol: GuardedProtocol, peer: PeerID, request: dht_pb2.FindRequest, read: Callable[[DHTID, Any], Awaitable[T]]
) -> list[T] | None:
    """Send a `FindRequest` and read the answer for each of its keys; None if there is no valid answer."""
    try:
        async with protocol.rpc_semaphore:
            response = await protocol.get_stub(peer).rpc_find(request, timeout=protocol.wait_timeout)
    except Exception as error:
        protocol_module.logger.debug(f"find at {peer} failed: {error!r}")
        protocol._update_table_in_background(protocol.routing_table.get(peer_id=peer), peer, responded=False)
        return None
    try:
        if response.peer.node_id:
            protocol._update_table_in_background(decode_dht_id(response.peer.node_id), peer, responded=True)
        if len(response.results) != len(request.keys):
            return None
        results = zip(request.keys, response.results, strict=True)
        return [await read(DHTID.from_bytes(key), result) for key, result in results]
    except RecordRejected as error:
        protocol._count_rejection(peer.to_base58(), error)
    except Exception as error:  # a malformed answer is its sender's fault
        protocol._count_rejection(peer.to_base58(), RecordRejected("malformed", f"not an answer: {error!r:.200}"))
    return None


def peers_named_in(result: Any) -> dict[DHTID, PeerID]:
    """Return the peers that an answer names, by DHT id (derived from the peer id). Only the first `NEARBY_MAX`: one
    message has room for tens of thousands, and every search would sort them all."""
    named = result.nearest_peer_ids[:NEARBY_MAX]
    peers = [PeerID(peer) for peer in named if len(peer) <= PEER_ID_BYTES_MAX]  # decoding base58 takes quadratic time
    return {dht_id_of(peer): peer for peer in peers}


def decode_dht_id(encoded: bytes) -> DHTID:
    """Decode a DHT id from a message. Raises RecordRejected("malformed")."""
    if len(encoded) != DHTID.HASH_NBYTES:
        raise RecordRejected("malformed", f"a DHT id of {len(encoded)} bytes")
    return DHTID.from_bytes(encoded)


def dht_id_of(peer: PeerID) -> DHTID:
    """Return a peer's DHT id, derived from the peer id, which libp2p has authenticated."""
    return DHTID.from_bytes(names.key_id(peer.to_base58()))


def _batch_indices(values: Sequence[Any]) -> Iterable[list[int]]:
    """Yield indices of the values in groups of at most `BATCH_BYTES_MAX`, or of one larger value."""
    batch: list[int] = []
    size = 0
    for index, value in enumerate(values):
        more = message_size_bound(value)
        if batch and size + more > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(index)
        size += more
    if batch:
        yield batch


def install_guards() -> None:
    """Make every `DHTNode` of this process use `GuardedProtocol`, by replacing the class in hivemind's module."""
    install_serializer_guard()
    node_module.DHTProtocol = GuardedProtocol
