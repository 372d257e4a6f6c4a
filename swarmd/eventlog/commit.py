"""A commit: the events that were made durable together."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.events import Envelope, Event
from swarmd.core.step import RULES
from swarmd.errors import CommitTooLarge, OtherVersion

COMMIT_BYTES_MAX = 16 * 1024 * 1024  # one encoded commit; a larger one is refused before anything is written


class Commit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one frame holds, as a msgpack array in this order; fields may only be added behind, with defaults.

    Attributes:
        seq: sequence number of the first event; the others follow without gaps.
        at: POSIX seconds at which the node took the events up, the same for all of them.
        rules: `swarmd.core.step.RULES` of whoever wrote it; a log of other rules is refused.
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
        """The events, each with its place and time."""
        at = self.at
        return [Envelope(seq, at, event) for seq, event in enumerate(self.events, self.seq)]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
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
    """The commit of a valid frame; `path` names its file in errors.

    Raises:
        OtherVersion: it has other rules, or it holds events that this swarmd does not know.
    """
    try:
        commit = _decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise OtherVersion(
            f"{path} holds a valid frame that this swarmd cannot read: {error}", "Use the swarmd that wrote it"
        ) from error
    if commit.rules != RULES:
        raise OtherVersion.of(str(path), "rules", commit.rules, RULES)
    return commit
