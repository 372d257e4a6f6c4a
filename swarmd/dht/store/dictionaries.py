"""Dictionaries of records as hivemind encodes them, read as if every byte were hostile."""

from __future__ import annotations

from typing import Any

from swarmd.dht.p2p.hivemind_api import DictionaryDHTValue, MSGPackSerializer
from swarmd.dht.store.key_capacity import KEY_BYTES_MAX
from swarmd.dht.wire.msgpack_guard import check_plain
from swarmd.errors import RecordRejected

EXT_DEPTH_MAX = 8  # honest values have 2
ELEMENTS_MAX = 1 << 17  # of a dictionary: one that fills a key has some 16,000 records, of four elements each


def guard_serializer() -> None:
    """Bound the nesting of extension types: about 200 levels, in 2 KB, end the process with SIGSEGV otherwise.

    Extension types that hivemind does not know are refused instead of being passed on with a log line each. To be
    called before any node is made; a second call changes nothing.
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
    """Bound what msgpack is to decode: it takes room for each array before it reads it, a thousand inside one another.

    Raises:
        RecordRejected: as `check_plain`.
    """
    check_plain(encoded, elements_max=ELEMENTS_MAX, extensions=True)


def load_dictionary(encoded: bytes) -> DictionaryDHTValue:
    """Decode a dictionary of records. Raises RecordRejected for whatever else it is."""
    if len(encoded) > KEY_BYTES_MAX + KEY_BYTES_MAX // 4:
        raise RecordRejected("oversized", f"a dictionary of {len(encoded)} bytes")
    try:
        check_nesting(encoded)
        value = MSGPackSerializer.loads(encoded)
    except RecordRejected:
        raise
    except Exception as error:
        reason = "nested" if "nested" in str(error) or isinstance(error, RecursionError) else "malformed"
        raise RecordRejected(reason, f"no dictionary: {error!r:.200}") from error
    if not isinstance(value, DictionaryDHTValue):
        raise RecordRejected("malformed", "no dictionary")
    return value


def entries_of(dictionary: DictionaryDHTValue) -> list[tuple[bytes, bytes, float]]:
    """(encoded subkey, value, expiration) of the unexpired entries. Raises RecordRejected("malformed")."""
    try:
        return [
            (MSGPackSerializer.dumps(subkey), entry.value, float(entry.expiration_time))
            for subkey, entry in dictionary.items()
        ]
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordRejected("malformed", f"a dictionary with odd entries: {error!r:.200}") from error
