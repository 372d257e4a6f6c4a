"""Parts of a key: some owners' records, or what is new, instead of the whole dictionary. No hivemind in it.

- A filter is sent with hivemind's `rpc_find`, as a field that hivemind's message does not have: a peer that does not
  know it skips it, as protobuf does, and answers with the dictionary. A peer that knows it answers with a part.
- `AnswerMemory` keeps the records of earlier answers, so that peers need not send them again.
- `LookupShares` says which of a key's replicas is asked for which owners' records, so that each record is sent once.
- `Promptness` knows which peers answer too late: a peer that answers slowly could otherwise delay every read.
"""

import math
import random
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from itertools import count
from typing import Annotated, Any, NamedTuple

import msgspec
from cachetools import FIFOCache
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

from swarmd.bounds import Count, Real
from swarmd.dht.identity.identity import encode_varint
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain_msgpack
from swarmd.dht.wire.records import SignedRecord
from swarmd.errors import RecordRejected

FILTER_FIELD = 15  # of `FindRequest`, whose own are 1 to 3
LENGTH_DELIMITED = 2  # protobuf's wire type of bytes
OWNERS_MAX = 64  # that one request may name; more would not fit into a call
LIFE_BYTES = 8
OWNER_BYTES_MAX = 120
PART_START = 0x93  # a msgpack array of three; a dictionary of hivemind's is an extension type

Owner = Annotated[str, msgspec.Meta(max_length=OWNER_BYTES_MAX)]

KEYS_MAX = 64
BYTES_MAX = 8 * 1024 * 1024  # of all keys, with the memory that records use besides their values
KEY_BYTES_MAX = 2 * 1024 * 1024  # of one key; a larger one is read whole each time
REMEMBERED_RECORD_BYTES = 500
PEERS_MAX = 256  # whose answers about one key are remembered

TRIES_MAX = 3  # peers that are asked for one owner's record in one look-up; the next look-up asks others

LATE_S = 0.4  # an answer that takes longer is late
LATE_MAX = 2  # late answers, one after another, until a peer is not waited for any more
LATE_PEERS_MAX = 4096  # that are remembered; the longest untouched is dropped first


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a storer's answers have brought an asker."""

    life: Annotated[bytes, msgspec.Meta(max_length=LIFE_BYTES)] = b""  # identifies the storer's memory, until it ends
    last: Count = 0  # number of the latest change that was shown


class FindFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an asker wants of a key: the records of these owners or, if it names none, all that are new to it."""

    owners: Annotated[tuple[Owner, ...], msgspec.Meta(max_length=OWNERS_MAX)] = ()
    cursor: Cursor = Cursor()


class ShownRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record in an answer."""

    owner: Owner
    value: bytes
    expiration: Real


class KeyPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An answer, encoded as the `value` of a `FindResult`: records, and how far they bring the asker."""

    life: Annotated[bytes, msgspec.Meta(max_length=LIFE_BYTES)]
    last: Count
    records: tuple[ShownRecord, ...]


_filters: msgspec.msgpack.Decoder[FindFilter] = msgspec.msgpack.Decoder(FindFilter)
_part: msgspec.msgpack.Decoder[KeyPart] = msgspec.msgpack.Decoder(KeyPart)


def add_filter(request: Any, wanted: FindFilter) -> None:
    encoded = msgspec.msgpack.encode(wanted)
    request.MergeFromString(encode_varint(FILTER_FIELD << 3 | LENGTH_DELIMITED) + encode_varint(len(encoded)) + encoded)


def read_filter(request: Any) -> FindFilter | None:
    """The filter of a `FindRequest`; None if it has none, as hivemind's own. Raises RecordRejected: "malformed" if it
    cannot be read, or there is more than one key."""
    found = [field.data for field in UnknownFieldSet(request) if field.field_number == FILTER_FIELD]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], bytes) or len(request.keys) != 1:
        raise RecordRejected("malformed", "a filter is given once, for one key")
    wanted: FindFilter = _decode(_filters, found[0])
    return wanted


def is_key_part(value: bytes) -> bool:
    """Is the `value` of a `FindResult` a part? Otherwise it is a dictionary."""
    return value[:1] == bytes([PART_START])


def decode_key_part(value: bytes, size_bytes_max: int) -> KeyPart:
    """Decode an answer. Raises RecordRejected: "oversized", "malformed", "nested"."""
    if len(value) > size_bytes_max:
        raise RecordRejected("oversized", f"an answer of {len(value)} bytes")
    part: KeyPart = _decode(_part, value)
    return part


def _decode(decoder: Any, encoded: bytes) -> Any:
    check_plain_msgpack(encoded)
    try:
        return decoder.decode(encoded)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"neither a part of a key nor a filter: {error!s:.200}") from error


class AnswerProgress(NamedTuple):
    """How far peers' answers about a key had come when a look-up began, which asks for what is new since then.

    A look-up does not ask for what is new since the latest answer: another look-up may have received that, and this one
    would never see its records.
    """

    cursors: Mapping[Hashable, Cursor] = {}  # by peer
    memory: int = 0  # number of the memory that these belong to; 0 for none

    def cursor_of(self, peer: Hashable) -> Cursor:
        """How far one peer's answers had come."""
        return self.cursors.get(peer, Cursor())


class _RememberedKey:
    """What is remembered of one key; it gets a new number if it was forgotten in between."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: dict[str, SignedRecord] = {}
        self.cursors: FIFOCache[Hashable, Cursor] = FIFOCache(PEERS_MAX)
        self.size_bytes = 0

    def merge(self, signed: SignedRecord) -> None:
        before = self.records.get(signed.owner)
        if before is not None and before.expiration >= signed.expiration:
            return
        self.size_bytes += _memory_bytes(signed) - (_memory_bytes(before) if before is not None else 0)
        self.records[signed.owner] = signed


class AnswerMemory:
    """Records by key, and how far each peer's answers reach. A forgotten key is read whole again."""

    def __init__(self) -> None:
        self._keys: FIFOCache[Hashable, _RememberedKey] = FIFOCache(KEYS_MAX)  # set again at each use
        self._numbers = count(1)

    def progress(self, key: Hashable) -> AnswerProgress:
        """How far peers' answers about a key have come."""
        known = self._keys.get(key)
        return AnswerProgress() if known is None else AnswerProgress(dict(known.cursors), known.number)

    def records(self, key: Hashable, now: float) -> list[SignedRecord]:
        """The records of a key that peers have sent, without expired ones."""
        known = self._keys.get(key)
        if known is None:
            return []
        self._keys[key] = known
        for owner in [owner for owner, signed in known.records.items() if signed.expiration < now]:
            known.size_bytes -= _memory_bytes(known.records.pop(owner))
        return [*known.records.values()]

    def remember_answer(
        self, key: Hashable, peer: Hashable, part: KeyPart, genuine: Collection[SignedRecord], asked: AnswerProgress
    ) -> None:
        """Remember a peer's answer.

        If some of its records do not count, which they may later, or earlier answers were forgotten in between, the
        peer is asked for them again. `asked`: how far answers had come when the look-up began.
        """
        known = self._keys[key] = self._keys.get(key) or _RememberedKey(next(self._numbers))
        continues = asked.memory == known.number or asked.cursor_of(peer) == Cursor()
        for signed in genuine:
            known.merge(signed)
        if continues and len(genuine) == len(part.records):
            known.cursors[peer] = Cursor(part.life, part.last)
        if known.size_bytes > KEY_BYTES_MAX:
            del self._keys[key]
        while self.size_bytes() > BYTES_MAX:
            self._keys.popitem()

    def size_bytes(self) -> int:
        """Approximate size of all that is remembered."""
        return sum(known.size_bytes for known in self._keys.values())

    def clear(self) -> None:
        """Forget everything: the rules by which records count have changed."""
        self._keys.clear()


def _memory_bytes(signed: SignedRecord) -> int:
    return len(signed.value) + REMEMBERED_RECORD_BYTES


class LookupShares:
    """Owners whose records are searched for, and which peers were asked for them.

    Args:
        owners: each is asked for at one peer, and at another if that one does not have its record.
        peers: number of peers that will be asked, about, which get equal shares.
        first: owners that are asked for before all others; any number of others may announce what no peer has.
    """

    def __init__(self, owners: Iterable[str], peers: int, first: Collection[str] = ()) -> None:
        self._first = frozenset(first)
        self._open = list(owners)
        random.shuffle(self._open)  # nodes that search at the same time ask each peer for different ones
        self._sort_open_owners()
        self._size = min(OWNERS_MAX, math.ceil(len(self._open) / peers))
        self._asked: defaultdict[str, list[Hashable]] = defaultdict(list)

    def assign_share(self, peer: Hashable) -> tuple[str, ...]:
        """The owners that a peer is asked for now; none if it was asked for all that are left."""
        share = [owner for owner in self._open if peer not in self._asked[owner]][: self._size]
        for owner in share:
            self._asked[owner].append(peer)
        self._open = [owner for owner in self._open if owner not in share]
        return tuple(share)

    def release_share(self, share: Collection[str], shown: Collection[str]) -> None:
        """Release a share: a few other peers are asked for what the peer has not sent."""
        self._open += [owner for owner in share if owner not in shown and len(self._asked[owner]) < TRIES_MAX]
        self._sort_open_owners()

    def _sort_open_owners(self) -> None:
        self._open.sort(key=lambda owner: owner not in self._first)


class Promptness:
    """Number of late answers of each peer since the last prompt one."""

    def __init__(self) -> None:
        self._late: FIFOCache[str, int] = FIFOCache(LATE_PEERS_MAX)

    def record_answer(self, peer: str, took_s: float, answered: bool) -> None:
        if took_s > LATE_S:
            self._late[peer] = self._late.get(peer, 0) + 1
        elif answered:
            self._late.pop(peer, None)

    def is_late(self, peer: str) -> bool:
        return self._late.get(peer, 0) >= LATE_MAX
