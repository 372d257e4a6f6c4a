"""Who may write, where a swarm has no list: everybody, whom a member has invited, or whoever has worked for it.

An invitation is the creator's, or of one whom the creator has invited, and names the guest; it travels in the guest's
records, so that everybody can check it without asking anybody. `swarmd.dht.members.withdrawal` has those that were
withdrawn.
"""

from __future__ import annotations

import base64
import binascii
import math
import time
from collections.abc import Callable
from typing import Literal

import msgpack  # type: ignore[import-untyped]
import msgspec
from cachetools import FIFOCache

from swarmd.bounds import Real
from swarmd.dht.identity.identity import Identity, is_peer_id
from swarmd.dht.identity.proof_of_work import WORK_BITS, work_bits
from swarmd.dht.identity.signatures import ED25519_BYTES, verify
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain
from swarmd.errors import ConfigError, RecordRejected
from swarmd.worker.runtime import TimeSource

DOMAIN = b"swarmd-invitation-v1\x00"
INVITATION_BYTES_MAX = 300  # of one by a guest of the creator, which has the creator's in it
HOSTS_MAX = 2  # invitations one inside the other: the creator's, and one by its guest
VERIFIED_MAX = 4096  # invitations whose signatures need not be checked again

Rule = Literal["open", "invitation", "work"]


class Invitation(msgspec.Struct, frozen=True, array_like=True):
    """That a host wants a guest in its swarm."""

    host: str  # peer id, of an Ed25519 key
    until: Real  # POSIX seconds; 0: without an end
    signature: bytes
    own: bytes = b""  # the host's own invitation; empty where the host is the creator, for the signature is not over it


def _message(swarm: str, guest: str, host: str, until: float) -> bytes:
    return DOMAIN + bytes(msgpack.packb([swarm, guest, host, until]))


def invite(identity: Identity, swarm: str, creator: str, guest: str, until: float = 0.0, own: bytes = b"") -> bytes:
    """An invitation, encoded.

    Args:
        identity: the host's.
        creator: peer id of the swarm's creator.
        own: the host's own invitation; left out where it is the creator.

    Raises:
        ConfigError: the host may not invite, or the guest is nobody.
    """
    if not is_peer_id(guest):
        raise ConfigError(f"{guest!r} is no peer id", "`swarmd identity show` prints a node's")
    signature = identity.sign(_message(swarm, guest, identity.peer_id, until))
    if len(signature) != ED25519_BYTES:
        raise ConfigError(f"{identity.peer_id} has an RSA key", "A node with an Ed25519 key can invite")
    own = b"" if identity.peer_id == creator else own
    encoded = msgspec.msgpack.encode(Invitation(identity.peer_id, until, signature, own))
    try:
        check_invitation(encoded, swarm, creator, guest, now=0.0)
    except RecordRejected as error:
        fix = "The creator invites, and whom it has invited itself; set dht.invitation, or ask one of them"
        raise ConfigError(f"{identity.peer_id} cannot invite: {error.message}", fix) from error
    return encoded


def check_invitation(encoded: bytes, swarm: str, creator: str, guest: str, now: float, depth: int = HOSTS_MAX) -> float:
    """Is it a good invitation of this guest? Returns until when, infinity where it has no end. Withdrawn it may be.

    Raises:
        RecordRejected: "not-invited".
    """
    if not encoded or len(encoded) > INVITATION_BYTES_MAX or not depth:
        raise RecordRejected("not-invited", "no invitation by the creator, or by one of the creator's guests")
    try:
        check_plain(encoded)
        invitation = msgspec.msgpack.decode(encoded, type=Invitation)
    except (*DECODE_ERRORS, RecordRejected) as error:
        raise RecordRejected("not-invited", f"no invitation: {error}") from error
    until = invitation.until or math.inf
    if not until > now or len(invitation.signature) != ED25519_BYTES or not is_peer_id(invitation.host):
        raise RecordRejected("not-invited", "an invitation that is over, or is not signed")
    if invitation.host == creator:
        if invitation.own:  # of the guest's choice, and read where all of an invitation is looked at
            raise RecordRejected("not-invited", "the creator needs no invitation of its own, and here is one")
    else:
        until = min(until, check_invitation(invitation.own, swarm, creator, invitation.host, now, depth - 1))
    if not verify(invitation.host, invitation.signature, _message(swarm, guest, invitation.host, invitation.until)):
        raise RecordRejected("not-invited", f"{invitation.host} has not invited {guest}")
    return until


def chain_of(encoded: bytes) -> tuple[Invitation, ...]:
    """A checked invitation, and the host's own that is in it."""
    chain: list[Invitation] = []
    while encoded and len(chain) < HOSTS_MAX:
        chain.append(msgspec.msgpack.decode(encoded, type=Invitation))
        encoded = chain[-1].own
    return tuple(chain)


def must_be_invited(
    encoded: bytes, swarm: str, creator: str, peer: str, withdrawn: Callable[[Invitation], bool] = lambda each: False
) -> None:
    """Raises ConfigError where others would take nothing of this peer."""
    try:
        check_invitation(encoded, swarm, creator, peer, time.time())
        _check_standing(encoded, peer, withdrawn)
    except RecordRejected as error:
        fix = f"Ask the swarm's creator, or one whom it has invited, for `swarmd swarm invite {peer}`"
        raise ConfigError(f"dht.invitation: {error.message}", fix) from error


def write_invitation(encoded: bytes) -> str:
    """As text, for a command line or a configuration."""
    return base64.urlsafe_b64encode(encoded).decode("ascii").rstrip("=")


def read_invitation(text: str) -> bytes:
    """What `write_invitation` wrote. Raises ConfigError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("the invitation is no text that `swarmd swarm invite` prints", "Copy all of it") from error


def _check_standing(encoded: bytes, guest: str, withdrawn: Callable[[Invitation], bool]) -> None:
    """Raises RecordRejected where it was withdrawn, or the host's own was."""
    for invitation in chain_of(encoded):
        if withdrawn(invitation):
            raise RecordRejected("withdrawn", f"the invitation of {guest} was withdrawn")


class Admission:
    """The rule of a swarm, for records.

    Args:
        rule: of the swarm.
        swarm: its id.
        creator: peer id of its creator.
        bits: of work that `rule` "work" asks for.

    Attributes:
        withdrawn: says whether an invitation has been withdrawn.
    """

    def __init__(self, rule: Rule = "open", swarm: str = "", creator: str = "", bits: int = WORK_BITS) -> None:
        self.withdrawn: Callable[[Invitation], bool] = lambda invitation: False
        self._rule = rule
        self._swarm = swarm
        self._creator = creator
        self._bits = bits
        self._verified: FIFOCache[tuple[str, bytes], float] = FIFOCache(VERIFIED_MAX)

    def check(self, owner: str, work: int, invitation: bytes, now: TimeSource) -> None:
        """May the owner write? Raises RecordRejected: "not-invited", "withdrawn" or "no-work"."""
        if self._rule == "work" and work_bits(self._swarm, owner, work) < self._bits:
            raise RecordRejected("no-work", f"{owner} has not worked {self._bits} bits")
        if self._rule == "invitation":
            self._check_invited(owner, invitation, now())

    def _check_invited(self, owner: str, invitation: bytes, now: float) -> None:
        until = self._verified.get((owner, invitation))
        if until is None:
            until = check_invitation(invitation, self._swarm, self._creator, owner, now)
            self._verified[owner, invitation] = until
        if until <= now:
            raise RecordRejected("not-invited", f"the invitation of {owner} is over")
        _check_standing(invitation, owner, self.withdrawn)
