"""Parts of a key: some owners' records, or only new records, instead of the whole dictionary. Does not import hivemind.

- A filter is sent with hivemind's `rpc_find`, as a field that hivemind's message does not have: a peer that does not
  know it skips it, as protobuf does, and answers with the dictionary. A peer that knows it answers with a part.
- `AnswerMemory` keeps the records of earlier answers, so that peers need not send them again.
- `LookupShares` decides which replica is asked for which owners' records, so that each record is sent once.
- `Promptness` remembers peers that answer too late: a peer that answers slowly could otherwise delay every read.
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

FILTER_FIELD = 15  # of `FindRequest`, whose own fields are 1 to 3
LENGTH_DELIMITED = 2  # protobuf's wire type of bytes
OWNERS_MAX = 64  # owners in one request; more would not fit into a call
LIFE_BYTES = 8
OWNER_BYTES_MAX = 120
PART_START = 0x93  # a msgpack array of three; hivemind's dictionary is an extension type

Owner = Annotated[str, msgspec.Meta(max_length=OWNER_BYTES_MAX)]

KEYS_MAX = 64
BYTES_MAX = 8 * 1024 * 1024  # bytes of all keys, including the memory that records use besides their values
KEY_BYTES_MAX = 2 * 1024 * 1024  # bytes of one key; a larger one is read whole each time
REMEMBERED_RECORD_BYTES = 500
PEERS_MAX = 256  # peers whose answers about one key are remembered

TRIES_MAX = 3  # peers asked for one owner's record in one look-up; the next look-up asks others

LATE_S = 0.4  # an answer that takes longer is late
LATE_MAX = 2  # late answers in a row after which a peer is not waited for
LATE_PEERS_MAX = 4096  # peers remembered; the least recently updated is dropped first


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of a storer's records an asker has received."""

    life: Annotated[bytes, msgspec.Meta(max_length=LIFE_BYTES)] = b""  # identifies one run of the storer
    last: Count = 0  # number of the latest change sent


class FindFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The records that an asker wants: those of these owners or, if there are none, all that are new to it."""

    owners: Annotated[tuple[Owner, ...], msgspec.Meta(max_length=OWNERS_MAX)] = ()
    cursor: Cursor = Cursor()


class ShownRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    owner: Owner
    value: bytes
    expiration: Real


class KeyPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An answer, encoded as the `value` of a `FindResult`: records, and the asker's new cursor."""

    life: Annotated[bytes, msgspec.Meta(max_length=LIFE_BYTES)]
    last: Count
    records: tuple[ShownRecord, ...]


_filters: msgspec.msgpack.Decoder[FindFilter] = msgspec.msgpack.Decoder(FindFilter)
_part: msgspec.msgpack.Decoder[KeyPart] = msgspec.msgpack.Decoder(KeyPart)


def add_filter(request: Any, wanted: FindFilter) -> None:
    encoded = msgspec.msgpack.encode(wanted)
    request.MergeFromString(encode_varint(FILTER_FIELD << 3 | LENGTH_DELIMITED) + encode_varint(len(encoded)) + encoded)


def read_filter(request: Any) -> FindFilter | None:
    """Return the filter of a `FindRequest`; None if it has none, like hivemind's own. Raises
    RecordRejected("malformed") if it cannot be decoded, or there is more than one key."""
    found = [field.data for field in UnknownFieldSet(request) if field.field_number == FILTER_FIELD]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], bytes) or len(request.keys) != 1:
        raise RecordRejected("malformed", "a filter is given once, for one key")
    wanted: FindFilter = _decode(_filters, found[0])
    return wanted


def is_key_part(value: bytes) -> bool:
    """Return whether the `value` of a `FindResult` is a part of a key; otherwise it is a dictionary."""
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
    """Cursors of peers' answers about a key when a look-up began, which asks for what is new since then.

    A look-up must not use later cursors: a concurrent look-up may have received those records, and this one would never
    see them.
    """

    cursors: Mapping[Hashable, Cursor] = {}  # by peer
    memory: int = 0  # number of the memory that the cursors belong to; 0 for none

    def cursor_of(self, peer: Hashable) -> Cursor:
        return self.cursors.get(peer, Cursor())


class _RememberedKey:
    """Records and cursors of one key. The number changes when the key is forgotten and remembered again."""

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
    """Records by key, and each peer's cursor. A forgotten key is read whole again."""

    def __init__(self) -> None:
        self._keys: FIFOCache[Hashable, _RememberedKey] = FIFOCache(KEYS_MAX)  # each use moves a key to the end
        self._numbers = count(1)

    def progress(self, key: Hashable) -> AnswerProgress:
        """Return the current cursors of a key."""
        known = self._keys.get(key)
        return AnswerProgress() if known is None else AnswerProgress(dict(known.cursors), known.number)

    def records(self, key: Hashable, now: float) -> list[SignedRecord]:
        """Return the records of a key that peers have sent, without expired ones."""
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
        """Remember a peer's answer, and advance its cursor.

        The cursor stays if some of the records are invalid (they may become valid), or if earlier answers were
        forgotten meanwhile: then the peer sends them again. `asked`: the cursors when the look-up began.
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
        return sum(known.size_bytes for known in self._keys.values())

    def clear(self) -> None:
        """Forget everything, because the rules for valid records have changed."""
        self._keys.clear()


def _memory_bytes(signed: SignedRecord) -> int:
    return len(signed.value) + REMEMBERED_RECORD_BYTES


class LookupShares:
    """Divides the owners whose records are searched for among peers.

    Args:
        owners: each is asked for at one peer, and at another if that one does not have its record.
        peers: about how many peers will be asked; they get equal shares.
        first: owners that are asked for before all others, because any number of others may announce records that no
            peer has.
    """

    def __init__(self, owners: Iterable[str], peers: int, first: Collection[str] = ()) -> None:
        self._first = frozenset(first)
        self._open = list(owners)
        random.shuffle(self._open)  # concurrent readers ask each peer for different records
        self._sort_open_owners()
        self._size = min(OWNERS_MAX, math.ceil(len(self._open) / peers))
        self._asked: defaultdict[str, list[Hashable]] = defaultdict(list)

    def assign_share(self, peer: Hashable) -> tuple[str, ...]:
        """Return the owners to ask a peer for now; empty if it was asked for all that are left."""
        share = [owner for owner in self._open if peer not in self._asked[owner]][: self._size]
        for owner in share:
            self._asked[owner].append(peer)
        self._open = [owner for owner in self._open if owner not in share]
        return tuple(share)

    def release_share(self, share: Collection[str], shown: Collection[str]) -> None:
        """End a share: up to `TRIES_MAX` peers are asked for the records that this peer has not sent."""
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
