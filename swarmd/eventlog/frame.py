"""Frames, and the commits inside them.

A frame is a length, a CRC-32C seeded with that of the segment's header, and a payload: a commit, which holds the events
that were made durable together and a digest of the commands that they caused. `docs/LOG.md` has the bytes.

- Remains of an interrupted append at the log's end are not damage (`classify_tail`), unless a valid frame follows them.
  Every offset at which a commit could begin is tried, up to a bound on the work; beyond it the tail counts as damaged,
  since only crafted lengths get there.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from crc32c import crc32c

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event
from swarmd.core.step import RULES
from swarmd.errors import CommitTooLarge, OtherVersion

COMMANDS_DIGEST_BYTES = 16

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def _hash_commands(commands: Sequence[Command]) -> bytes:
    return hashlib.blake2b(_encoder.encode(commands), digest_size=COMMANDS_DIGEST_BYTES).digest()


NO_COMMANDS = _hash_commands(())


def digest_commands(commands: Sequence[Command]) -> bytes:
    """BLAKE2b (16 bytes) over the deterministic msgpack array of the commands, in the order they were emitted."""
    return _hash_commands(commands) if commands else NO_COMMANDS


def digest_file(file: FileIO) -> bytes:
    """SHA-256 of a whole open file, as raw bytes."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").digest()


COMMIT_BYTES_MAX = 16 * 1024 * 1024  # one encoded commit; a larger one is refused before anything is written


class Commit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The payload of a frame, a msgpack array in this order; new fields go to the end and have defaults.

    Attributes:
        seq: sequence number of the first event; the others follow without gaps.
        at: POSIX seconds at which the node accepted the events, the same for all of them.
        rules: `swarmd.core.step.RULES` of the writer; a log with other rules is refused.
        events: at least one.
        commands_digest: `digest_commands` of all commands these events caused, in order.
    """

    seq: int
    at: float
    rules: int
    events: tuple[Event, ...]
    commands_digest: bytes

    @property
    def end_seq(self) -> int:
        """Sequence number of the first event after this commit."""
        return self.seq + len(self.events)

    def envelopes(self) -> list[Envelope]:
        """The events, each with its sequence number and time."""
        at = self.at
        return [Envelope(seq, at, event) for seq, event in enumerate(self.events, self.seq)]


_decoder = msgspec.msgpack.Decoder(Commit)


def encode_commit(commit: Commit) -> bytes:
    """The payload of a frame. Raises CommitTooLarge beyond `COMMIT_BYTES_MAX`."""
    assert commit.events, "a commit holds at least one event"
    payload = _encoder.encode(commit)
    if len(payload) > COMMIT_BYTES_MAX:
        raise CommitTooLarge(
            f"a commit of {len(commit.events)} events takes {len(payload)} bytes, the limit is {COMMIT_BYTES_MAX}",
            "Commit fewer events at once",
        )
    return payload


def decode_commit(payload: bytes, path: Path) -> Commit:
    """Decode the commit of a valid frame; `path` names its file in errors. Raises OtherVersion if it has other rules or
    unknown events."""
    try:
        commit = _decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise OtherVersion(
            f"{path} holds a valid frame that this swarmd cannot read: {error}", "Use the swarmd that wrote it"
        ) from error
    if commit.rules != RULES:
        raise OtherVersion.from_numbers(str(path), "rules", commit.rules, RULES)
    return commit


HEAD = struct.Struct("<II")
FRAME_BYTES_MAX = HEAD.size + COMMIT_BYTES_MAX
RESERVE_BYTES = 1024 * 1024  # zeros written ahead of the frames, see `swarmd.eventlog.segment`
TAIL_BYTES_MAX = FRAME_BYTES_MAX + RESERVE_BYTES  # the most that one interrupted append can leave behind
CHUNK_BYTES = 1024 * 1024
LOOKED_AT_MAX = 16 * 1024 * 1024 * 1024  # bytes checked for CRCs in a tail; takes a second or two
COMMIT_FIRST = 0x90 + len(Commit.__struct_fields__)  # first byte of an encoded commit: a msgpack array of that length


class LogTail(NamedTuple):
    """What follows the last valid frame. `verdict`: "end": nothing, or preallocated zeros. "whole": a valid frame (it
    was still being written when reading stopped). "torn": the remains of one interrupted append. "damaged": more than
    that, or a valid frame after bad bytes. `torn_bytes`: size of those remains."""

    verdict: Literal["end", "whole", "torn", "damaged"]
    torn_bytes: int = 0


def encode_frame(payload: bytes, seed: int) -> bytes:
    """One frame; `seed` is the CRC of the segment's header."""
    return HEAD.pack(len(payload), crc32c(payload, seed)) + payload


def read_frames(file: FileIO, offset: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield valid frames from `offset` on, each as (end offset, payload). Stops at the end of the file or at the first
    invalid bytes; `classify_tail` tells which."""
    file.seek(offset)
    unpack, head_bytes = HEAD.unpack_from, HEAD.size
    rest = b""
    while chunk := file.read(CHUNK_BYTES):
        buffer = rest + chunk
        last_start = len(buffer) - head_bytes
        position = 0
        while position <= last_start:
            length, check = unpack(buffer, position)
            start = position + head_bytes
            end = start + length
            if end > len(buffer):
                if length > COMMIT_BYTES_MAX:
                    return
                break
            payload = buffer[start:end]
            if crc32c(payload, seed) != check or not length:
                return
            position = end
            yield offset + end, payload
        offset += position
        rest = buffer[position:]


def classify_tail(file: FileIO, offset: int, seed: int) -> LogTail:
    """Classify the bytes at `offset`, where reading stopped."""
    file.seek(offset)
    rest = _read_upto(file, TAIL_BYTES_MAX + 1)
    if _is_frame_at(rest, 0, seed):
        return LogTail("whole")
    if len(rest) > TAIL_BYTES_MAX:
        return LogTail("damaged")
    torn_bytes = len(rest.rstrip(b"\0"))
    if not torn_bytes:
        return LogTail("end")
    return LogTail("damaged") if _contains_frame(rest, torn_bytes, seed) else LogTail("torn", torn_bytes)


def _contains_frame(buffer: bytes, end: int, seed: int) -> bool:
    """Whether a valid frame begins at an offset from 1 to `end`; also True if deciding takes too long."""
    view, size_bytes, looked_at = memoryview(buffer), len(buffer), 0
    for position in range(1, min(end, size_bytes - HEAD.size)):
        length, check = HEAD.unpack_from(buffer, position)
        start = position + HEAD.size
        if not 0 < length <= size_bytes - start or buffer[start] != COMMIT_FIRST:
            continue
        looked_at += length
        if looked_at > LOOKED_AT_MAX or crc32c(view[start : start + length], seed) == check:
            return True
    return False


def _is_frame_at(buffer: bytes, position: int, seed: int) -> bool:
    if len(buffer) - position < HEAD.size:
        return False
    length, check = HEAD.unpack_from(buffer, position)
    start = position + HEAD.size
    if not 0 < length <= len(buffer) - start:
        return False
    return bool(crc32c(buffer[start : start + length], seed) == check)


def _read_upto(file: FileIO, size_bytes: int) -> bytes:
    """Read up to `size_bytes`, with as many reads as that takes."""
    parts = bytearray()
    while len(parts) < size_bytes and (chunk := file.read(size_bytes - len(parts))):
        parts += chunk
    return bytes(parts)
