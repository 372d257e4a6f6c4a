"""Invitations that were withdrawn, as their hosts say.

A host says it in its own membership record, which is signed, and every node that has read it keeps it. The creator may
withdraw any invitation, whoever made it; a guest of the creator those that it made itself.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from swarmd.bounds import RateLimiter, Real
from swarmd.dht.members.admission import Invitation
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.errors import ConfigError
from swarmd.files import read_start, write_durably
from swarmd.worker.runtime import TimeSource

ID_BYTES = 6
WITHDRAWN_MAX = 32  # of one host at a time
HOSTS_MAX = 256  # whose lists are kept
CHANGES_BURST, CHANGES_PER_S = 8.0, 1 / 60  # of a guest's list: each has a file written and all records judged anew


def id_of(invitation: Invitation) -> bytes:
    """What names an invitation: a part of its signature's digest, for the same one may be encoded in several ways."""
    return hashlib.sha256(invitation.signature).digest()[:ID_BYTES]


def read_id(text: str) -> bytes:
    """An id as `swarmd swarm invite --list` prints it. Raises ConfigError."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != ID_BYTES:
        fix = "`swarmd swarm invite --list` prints the ids of those made here; an invitation's text will do as well"
        raise ConfigError(f"{text[:80]!r} is no id of an invitation", fix)
    return found


def id_of_text(encoded: bytes) -> bytes:
    """The id of an invitation as it was handed out. Raises ConfigError."""
    try:
        return id_of(msgspec.msgpack.decode(encoded, type=Invitation))
    except DECODE_ERRORS as error:
        raise ConfigError("this text is no invitation", "Copy all of it, or name its id") from error


def pack(ids: Iterable[bytes]) -> bytes:
    """Encode invitation ids for the wire."""
    return b"".join(sorted(ids))


def is_packed(packed: bytes) -> bool:
    """Whether this is a list of ids that is not too long."""
    return len(packed) <= WITHDRAWN_MAX * ID_BYTES and len(packed) % ID_BYTES == 0


def unpack(packed: bytes) -> frozenset[bytes]:
    """Decode invitation ids from the wire."""
    return frozenset(packed[start : start + ID_BYTES] for start in range(0, len(packed), ID_BYTES))


class HostWithdrawals(msgspec.Struct, frozen=True, array_like=True):
    """What one host has withdrawn, and the expiration of the record that says so."""

    host: str
    expiration: Real
    packed: bytes


class KeptWithdrawals(msgspec.Struct, frozen=True):
    """The file that a node keeps them in."""

    swarm: str
    told: tuple[HostWithdrawals, ...]


class Withdrawals:
    """What was heard of withdrawn invitations.

    Args:
        creator: whose word counts for all invitations of the swarm.
        told: what was heard in earlier lives.
        now: a monotone clock in seconds.
    """

    def __init__(self, creator: str, told: Iterable[HostWithdrawals] = (), now: TimeSource = time.monotonic) -> None:
        self._creator = creator
        self._changes = RateLimiter(CHANGES_BURST, CHANGES_PER_S, now, HOSTS_MAX)
        self._told = {each.host: each for each in told if is_packed(each.packed)}
        self._ids = {host: unpack(each.packed) for host, each in self._told.items()}

    @property
    def told(self) -> tuple[HostWithdrawals, ...]:
        """All of it, to be kept."""
        return tuple(self._told.values())

    def learn(self, host: str, packed: bytes, expiration: float, latest: float = math.inf) -> bool:
        """Take a host's word. True where it changes anything; a guest that changes it too often is heard later.

        Args:
            packed: the ids, of a record that was checked.
            expiration: of this record; an older one than the last does not count.
            latest: expiration beyond which no record counts: one of a clock that was ahead is no measure.
        """
        before = self._told.get(host)
        if before is None and (not packed or (len(self._told) >= HOSTS_MAX and host != self._creator)):
            return False
        if before is not None and expiration <= before.expiration <= latest:
            return False
        changes = (before.packed if before else b"") != packed
        if changes and host != self._creator and not self._changes.try_charge(host):
            return False
        self._told[host] = HostWithdrawals(host, expiration, packed)
        self._ids[host] = unpack(packed)
        return changes

    def has(self, invitation: Invitation) -> bool:
        """Whether the one who made it, or the creator, has withdrawn it."""
        found = id_of(invitation)
        return any(found in self._ids.get(host, ()) for host in (self._creator, invitation.host))


def keep_withdrawals(path: Path, swarm: str, told: tuple[HostWithdrawals, ...]) -> None:
    """Write them in the place of earlier ones. Raises NoSpaceLeft, LogWriteFailed."""
    write_durably(path, msgspec.msgpack.encode(KeptWithdrawals(swarm, told)))


def read_withdrawals(path: Path, swarm: str) -> tuple[HostWithdrawals, ...]:
    """What was kept of this swarm; nothing where nothing is there that can be read."""
    try:
        kept = msgspec.msgpack.decode(read_start(path, HOSTS_MAX * 512), type=KeptWithdrawals)
    except (OSError, *DECODE_ERRORS):
        return ()
    return kept.told[:HOSTS_MAX] if kept.swarm == swarm else ()
