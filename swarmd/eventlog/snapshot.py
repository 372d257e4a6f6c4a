"""Snapshots of the state, so that a fold can start late in a long log, or in one whose beginning was removed.

`snapshots/<seq, 20 digits>.snap` beside the segments holds the state after all events before `seq`. A snapshot is a
cache: while the log is whole, all of them may be deleted.
"""

import hashlib
import re
import struct
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State, state_dec_hook, state_enc_hook
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, LogForeign, OtherVersion
from swarmd.eventlog.segment import unreadable
from swarmd.files import make_directory, read_regular, remove_leftover, write_durably

MAGIC = b"SWRMSNP1"
FORMAT = 1
SUFFIX = ".snap"
PREFIX = struct.Struct("<8sII")  # magic, format, length of the payload; then the SHA-256 over both
DIGEST_BYTES = 32

_NAME = re.compile(r"(\d{20})\.snap")


class Snapshot(msgspec.Struct, frozen=True):
    """The content of a snapshot file, as a msgpack map.

    Attributes:
        run: id of the daemon run that wrote it.
        seq: the first event not included.
        rules: `swarmd.core.step.RULES` of the swarmd that made it.
    """

    node: str
    run: str
    seq: int
    rules: int
    state: State


_encoder = msgspec.msgpack.Encoder(order="deterministic", enc_hook=state_enc_hook)
_decoder = msgspec.msgpack.Decoder(State, dec_hook=state_dec_hook)
_snapshots = msgspec.msgpack.Decoder(Snapshot, dec_hook=state_dec_hook)


def encode_state(state: State) -> bytes:
    """Encode the state so that equal states give equal bytes, NaN included.

    msgspec omits a field only if its value is identical to the default object, and an equal text from elsewhere is not.
    Decoding replaces texts of `Literal` types with the default's objects, so the state is decoded and encoded again.
    """
    return _encoder.encode(_decoder.decode(_encoder.encode(state)))


def decode_state(encoded: bytes) -> State:
    return _decoder.decode(encoded)


def snapshot_directory(directory: Path) -> Path:
    return directory / "snapshots"


def list_snapshots(directory: Path) -> list[Path]:
    """Snapshot files of a log, the oldest first."""
    place = snapshot_directory(directory)
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if _NAME.fullmatch(path.name))


def snapshot_seq(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))


def check_no_snapshot_ahead(directory: Path, next_seq: int) -> None:
    """Raise LogDamaged for a log that ends before one of its snapshots: durable events are missing."""
    for path in list_snapshots(directory)[-1:]:
        if snapshot_seq(path) > next_seq:
            raise LogDamaged(
                f"the event log in {directory} ends at seq {next_seq}, before its snapshot {path.name}: "
                "events are missing",
                "Restore the segments from a copy; or delete that snapshot, and the node goes on without those events",
            )


def write_snapshot(directory: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot durably and read it back. Raises NoSpaceLeft, LogWriteFailed (the log is untouched); LogDamaged
    if it does not read back: it is removed then, since a fold would start from it."""
    payload = _encoder.encode(snapshot)
    prefix = PREFIX.pack(MAGIC, FORMAT, len(payload))
    make_directory(snapshot_directory(directory))
    path = snapshot_directory(directory) / f"{snapshot.seq:020d}{SUFFIX}"
    write_durably(path, prefix + hashlib.sha256(prefix + payload).digest() + payload)
    try:
        if encode_state(read_snapshot(path, snapshot.node).state) != encode_state(snapshot.state):
            raise _damage_error(path, "the state does not read back as it was written")
    except LogDamaged:
        remove_leftover(path)
        raise
    return path


def read_snapshot(path: Path, node: str) -> Snapshot:
    """Read and check a snapshot of `node`. Raises OtherVersion if it has another format or rules; LogForeign if it is
    another node's; LogDamaged if its digest is wrong or its state cannot be decoded."""
    payload = _read_checked_payload(path)
    try:
        snapshot = _snapshots.decode(payload)
    except DECODE_ERRORS as error:
        raise OtherVersion(
            f"the snapshot {path} holds a state that this swarmd cannot read: {error}",
            "Use the swarmd that wrote it; while the log is whole, the snapshot may be deleted",
        ) from error
    if snapshot.node != node:
        raise LogForeign(f"the snapshot {path} is of node {snapshot.node}, not of {node}", "Remove it from this log")
    if snapshot.rules != RULES:
        raise OtherVersion.from_numbers(f"the snapshot {path}", "rules", snapshot.rules, RULES)
    if path.name != f"{snapshot.seq:020d}{SUFFIX}":
        raise _damage_error(path, f"it says that it is of seq {snapshot.seq}")
    return snapshot


def _damage_error(path: Path, what: str) -> LogDamaged:
    return LogDamaged(
        f"the snapshot {path} is damaged: {what}",
        "Delete it if the log before it is whole, or there is a later one; else restore it from a copy",
    )


def _read_checked_payload(path: Path) -> bytes:
    try:
        content = read_regular(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if content[: len(MAGIC)] != MAGIC or len(content) < PREFIX.size + DIGEST_BYTES:
        raise _damage_error(path, "it does not begin as a snapshot of a swarmd event log")
    _, version, length = PREFIX.unpack_from(content)
    if version != FORMAT:
        raise OtherVersion.from_numbers(f"the snapshot {path}", "format", version, FORMAT)
    prefix, digest = content[: PREFIX.size], content[PREFIX.size : PREFIX.size + DIGEST_BYTES]
    payload = content[PREFIX.size + DIGEST_BYTES :]
    if len(payload) != length or hashlib.sha256(prefix + payload).digest() != digest:
        raise _damage_error(path, "its digest is wrong")
    return payload
