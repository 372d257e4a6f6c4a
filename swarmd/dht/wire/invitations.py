"""Admission to a swarm without a list of members: anyone, invited guests, or peers with proof of work.

- The swarm's creator, or a guest of the creator, makes an invitation, which names its guest. The guest's records
  contain it, so every node can check it by itself.
- A host lists the invitations that it has withdrawn in its signed membership, and every node that reads it remembers
  them. The creator may withdraw any invitation, a guest of the creator only its own.
- A list in the node's directory holds the invitations that this node's operator made and withdrew. `swarmd swarm
  invite` writes it and the network worker reads it.
"""

import base64
import binascii
import hashlib
import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgpack  # type: ignore[import-untyped]
import msgspec
from cachetools import FIFOCache

from swarmd.bounds import DECODE_ERRORS, RateLimiter, Real
from swarmd.dht.identity.identity import ED25519_BYTES, Identity, is_peer_id, verify
from swarmd.dht.identity.proof_of_work import WORK_BITS, work_bits
from swarmd.dht.wire.msgpack_guard import check_plain_msgpack
from swarmd.errors import ConfigError, RecordRejected
from swarmd.files import make_directory, read_start, write_durably
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource

DOMAIN = b"swarmd-invitation-v1\x00"
INVITATION_BYTES_MAX = 300  # size of an invitation by a guest of the creator, which contains the creator's
CHAIN_MAX = 2  # nested invitations: the creator's, and one by its guest
VERIFIED_MAX = 4096  # invitations whose verified signatures are cached

Rule = Literal["open", "invitation", "work"]

ID_BYTES = 6
WITHDRAWN_MAX = 32  # withdrawn invitations of one host at a time
HOSTS_MAX = 256  # hosts whose lists are kept
CHANGES_BURST, CHANGES_PER_S = 8.0, 1 / 60  # changes of a guest's list; each makes all records be validated again

MADE_MAX = 4096  # listed invitations; the oldest that are not withdrawn are dropped
MADE_BYTES_MAX = 2 * 1024 * 1024

log = get_logger(__name__)


class Invitation(msgspec.Struct, frozen=True, array_like=True):
    """A host's invitation of a guest to its swarm."""

    host: str  # peer id of an Ed25519 key
    until: Real  # POSIX seconds; 0: no expiration
    signature: bytes
    own: bytes = b""  # the host's own invitation, not covered by the signature; empty if the host is the creator


def _signed_message(swarm: str, guest: str, host: str, until: float) -> bytes:
    return DOMAIN + bytes(msgpack.packb([swarm, guest, host, until]))


def make_invitation(
    identity: Identity, swarm: str, creator: str, guest: str, until: float = 0.0, own: bytes = b""
) -> bytes:
    """Return an encoded invitation. `own` is the host's own invitation, ignored if the host is the creator. Raises
    ConfigError: the host may not invite, or the guest is not a peer id."""
    if not is_peer_id(guest):
        raise ConfigError(f"{guest!r} is not a peer id", "`swarmd identity show` prints a node's")
    signature = identity.sign(_signed_message(swarm, guest, identity.peer_id, until))
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


def check_invitation(encoded: bytes, swarm: str, creator: str, guest: str, now: float, depth: int = CHAIN_MAX) -> float:
    """Check an invitation of this guest, except whether it was withdrawn. Returns its expiration in POSIX seconds, or
    infinity. Raises RecordRejected("not-invited")."""
    if not encoded or len(encoded) > INVITATION_BYTES_MAX or not depth:
        raise RecordRejected("not-invited", "no invitation by the creator, or by one of the creator's guests")
    try:
        check_plain_msgpack(encoded)
        invitation = msgspec.msgpack.decode(encoded, type=Invitation)
    except (*DECODE_ERRORS, RecordRejected) as error:
        raise RecordRejected("not-invited", f"no invitation: {error}") from error
    until = invitation.until or math.inf
    if not until > now:
        ended = datetime.fromtimestamp(max(0.0, min(until, now)), UTC)
        raise RecordRejected("not-invited", f"an invitation that ended on {ended:%Y-%m-%d at %H:%M} UTC")
    if len(invitation.signature) != ED25519_BYTES or not is_peer_id(invitation.host):
        raise RecordRejected("not-invited", "an invitation that is not signed")
    if invitation.host == creator:
        if invitation.own:  # not signed, so the guest could choose it and turn one invitation into any number
            raise RecordRejected("not-invited", "the creator needs no invitation of its own, and here is one")
    else:
        until = min(until, check_invitation(invitation.own, swarm, creator, invitation.host, now, depth - 1))
    if not verify(
        invitation.host, invitation.signature, _signed_message(swarm, guest, invitation.host, invitation.until)
    ):
        raise RecordRejected("not-invited", f"{invitation.host} has not invited {guest}")
    return until


def invitation_chain(encoded: bytes) -> tuple[Invitation, ...]:
    """Return a checked invitation, followed by the host's own inside it."""
    chain: list[Invitation] = []
    while encoded and len(chain) < CHAIN_MAX:
        chain.append(msgspec.msgpack.decode(encoded, type=Invitation))
        encoded = chain[-1].own
    return tuple(chain)


def require_invitation(
    encoded: bytes, swarm: str, creator: str, peer: str, withdrawn: Callable[[Invitation], bool] = lambda each: False
) -> None:
    """Raise ConfigError if other nodes would refuse this peer's records."""
    try:
        check_invitation(encoded, swarm, creator, peer, time.time())
        _check_not_withdrawn(encoded, peer, withdrawn)
    except RecordRejected as error:
        fix = f"Ask the swarm's creator, or one whom it has invited, for `swarmd swarm invite {peer}`"
        raise ConfigError(f"dht.invitation: {error.message}", fix) from error


def invitation_to_text(encoded: bytes) -> str:
    """An invitation as text, for a command line or a configuration."""
    return base64.urlsafe_b64encode(encoded).decode("ascii").rstrip("=")


def invitation_from_text(text: str) -> bytes:
    """Decode what `invitation_to_text` wrote. Raises ConfigError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(
            "the invitation is not a text that `swarmd swarm invite` printed", "Copy all of it"
        ) from error


def _check_not_withdrawn(encoded: bytes, guest: str, withdrawn: Callable[[Invitation], bool]) -> None:
    """Raise RecordRejected("withdrawn") if the invitation, or the host's own, was withdrawn."""
    for invitation in invitation_chain(encoded):
        if withdrawn(invitation):
            raise RecordRejected("withdrawn", f"the invitation of {guest} was withdrawn")


class AdmissionRule:
    """The rule by which a swarm without a list of members accepts records."""

    def __init__(
        self,
        rule: Rule = "open",
        swarm: str = "",
        creator: str = "",
        bits: int = WORK_BITS,
        withdrawn: Callable[[Invitation], bool] = lambda invitation: False,
    ) -> None:
        self._withdrawn = withdrawn
        self._rule = rule
        self._swarm = swarm
        self._creator = creator
        self._bits = bits
        self._verified: FIFOCache[tuple[str, bytes], float] = FIFOCache(VERIFIED_MAX)

    def check(self, owner: str, work: int, invitation: bytes, now: TimeSource) -> None:
        """Check that the owner may write. Raises RecordRejected: "not-invited", "withdrawn" or "no-work"."""
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
        _check_not_withdrawn(invitation, owner, self._withdrawn)


def invitation_id(invitation: Invitation) -> bytes:
    """Return an invitation's id: part of its signature's digest, because its encoding is not unique."""
    return hashlib.sha256(invitation.signature).digest()[:ID_BYTES]


def parse_invitation_id(text: str) -> bytes:
    """Parse an id as `swarmd swarm invite --list` prints it. Raises ConfigError."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != ID_BYTES:
        fix = "`swarmd swarm invite --list` prints the ids of those made here; an invitation's text will do as well"
        raise ConfigError(f"{text[:80]!r} is not the id of an invitation", fix)
    return found


def encoded_invitation_id(encoded: bytes) -> bytes:
    try:
        return invitation_id(msgspec.msgpack.decode(encoded, type=Invitation))
    except DECODE_ERRORS as error:
        raise ConfigError("this text is not an invitation", "Copy all of it, or name its id") from error


def pack_ids(ids: Iterable[bytes]) -> bytes:
    """Encode invitation ids for the wire."""
    return b"".join(sorted(ids))


def is_packed_ids(packed: bytes) -> bool:
    """Return whether this is an encoded list of ids, and not too long."""
    return len(packed) <= WITHDRAWN_MAX * ID_BYTES and len(packed) % ID_BYTES == 0


def unpack_ids(packed: bytes) -> frozenset[bytes]:
    """Decode invitation ids from the wire."""
    return frozenset(packed[start : start + ID_BYTES] for start in range(0, len(packed), ID_BYTES))


class HostWithdrawals(msgspec.Struct, frozen=True, array_like=True):
    """The ids of the invitations that one host has withdrawn, and the expiration of the membership that lists them."""

    host: str
    expiration: Real
    packed: bytes


class SavedWithdrawals(msgspec.Struct, frozen=True):
    """The contents of the file of withdrawn invitations."""

    swarm: str
    told: tuple[HostWithdrawals, ...]


class Withdrawals:
    """Withdrawn invitations, by the hosts' memberships. `creator` may withdraw all invitations of the swarm."""

    def __init__(self, creator: str, told: Iterable[HostWithdrawals] = (), now: TimeSource = time.monotonic) -> None:
        self._creator = creator
        self._changes = RateLimiter(CHANGES_BURST, CHANGES_PER_S, now, HOSTS_MAX)
        self._told = {each.host: each for each in told if is_packed_ids(each.packed)}
        self._ids = {host: unpack_ids(each.packed) for host, each in self._told.items()}

    @property
    def all_withdrawals(self) -> tuple[HostWithdrawals, ...]:
        """All withdrawals, for saving."""
        return tuple(self._told.values())

    def update_host(self, host: str, packed: bytes, expiration: float, latest: float = math.inf) -> bool:
        """Replace a host's list. Returns whether it has changed; changes of a guest are rate-limited. `expiration` is
        that of the host's record; an older record than the last is ignored. `latest` is the latest valid expiration, so
        that a record of a clock that was ahead is replaced."""
        before = self._told.get(host)
        if before is None and (not packed or (len(self._told) >= HOSTS_MAX and host != self._creator)):
            return False
        if before is not None and expiration <= before.expiration <= latest:
            return False
        changes = (before.packed if before else b"") != packed
        if changes and host != self._creator and not self._changes.try_charge(host):
            return False
        self._told[host] = HostWithdrawals(host, expiration, packed)
        self._ids[host] = unpack_ids(packed)
        return changes

    def is_withdrawn(self, invitation: Invitation) -> bool:
        """Return whether the host that made it, or the creator, has withdrawn it."""
        found = invitation_id(invitation)
        return any(found in self._ids.get(host, ()) for host in (self._creator, invitation.host))


def save_withdrawals(path: Path, swarm: str, told: tuple[HostWithdrawals, ...]) -> None:
    """Replace the saved withdrawals. Raises NoSpaceLeft, LogWriteFailed."""
    write_durably(path, msgspec.msgpack.encode(SavedWithdrawals(swarm, told)))


def read_withdrawals(path: Path, swarm: str) -> tuple[HostWithdrawals, ...]:
    """Return the saved withdrawals of this swarm; empty if there are none or they cannot be read."""
    try:
        kept = msgspec.msgpack.decode(read_start(path, HOSTS_MAX * 512), type=SavedWithdrawals)
    except (OSError, *DECODE_ERRORS):
        return ()
    return kept.told[:HOSTS_MAX] if kept.swarm == swarm else ()


class IssuedInvitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An invitation made by this node, or another host's that the creator withdrew on this node."""

    id: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    guest: str = ""  # peer id; empty if it was made elsewhere
    made_at: Real | None = None  # POSIX seconds
    until: Real = 0.0  # POSIX seconds; 0: no expiration
    withdrawn_at: Real | None = None

    def is_expired(self, now: float) -> bool:
        return bool(self.until) and self.until <= now


class OwnInvitations:
    """The file of invitations in a node's directory, read and written by each call. The network worker reads it while
    the node runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = b""

    def read_all(self) -> tuple[IssuedInvitation, ...]:
        """Return all invitations, oldest first. Raises ConfigError if the file cannot be read."""
        try:
            return msgspec.json.decode(read_start(self._path, MADE_BYTES_MAX), type=tuple[IssuedInvitation, ...])
        except FileNotFoundError:
            return ()
        except (OSError, *DECODE_ERRORS) as error:
            fix = "Restore it, or remove it; what was withdrawn by it is then withdrawn no more"
            raise ConfigError(f"the list of invitations {self._path} cannot be read: {error}", fix) from error

    def add_invitation(self, encoded: bytes, guest: str, until: float, now: float) -> str:
        """Add a new invitation. Returns its id. Raises ConfigError, NoSpaceLeft, LogWriteFailed."""
        found = invitation_id(msgspec.msgpack.decode(encoded, type=Invitation)).hex()
        before = next((each for each in self.read_all() if each.id == found), IssuedInvitation(found))
        self._save_invitation(msgspec.structs.replace(before, guest=guest, made_at=now, until=until), now)
        return found

    def withdraw(self, id_: bytes, everybodys: bool, now: float) -> IssuedInvitation:
        """Withdraw an invitation. `everybodys`: whether this host is the creator, who may withdraw other hosts'
        invitations. Raises ConfigError: it was not made here, or too many are withdrawn."""
        made = self.read_all()
        known = next((each for each in made if each.id == id_.hex()), None)
        if known is None and not everybodys:
            fix = "Ask the swarm's creator, who may withdraw any"
            raise ConfigError(f"the invitation {id_.hex()} was not made here", fix)
        if known is not None and known.withdrawn_at is not None:
            return known
        if len(_current_withdrawals(made, now)) >= WITHDRAWN_MAX:
            fix = (
                "Those with an end (--days) make room then. Withdrawing the invitation of a guest voids all that this "
                "guest made; a list of members (dht.members) needs no invitations"
            )
            raise ConfigError(f"{WITHDRAWN_MAX} invitations are withdrawn already, as many as nodes carry", fix)
        withdrawn = msgspec.structs.replace(known or IssuedInvitation(id_.hex()), withdrawn_at=now)
        self._save_invitation(withdrawn, now)
        return withdrawn

    def packed_withdrawals(self, now: float) -> bytes:
        """Return the ids of withdrawn invitations that have not expired, encoded for the wire. Raises ConfigError."""
        return pack_ids(bytes.fromhex(each.id) for each in _current_withdrawals(self.read_all(), now)[:WITHDRAWN_MAX])

    def latest_packed_withdrawals(self) -> bytes:
        """Return `packed_withdrawals` for a running node; if the file cannot be read, the last result."""
        try:
            self._last = self.packed_withdrawals(time.time())
        except ConfigError as error:
            log.warning("%s", error.message)
        return self._last

    def _save_invitation(self, changed: IssuedInvitation, now: float) -> None:
        made = [each for each in self.read_all() if each.id != changed.id and not each.is_expired(now)] + [changed]
        spare = [each for each in made if each.withdrawn_at is None][: max(0, len(made) - MADE_MAX)]
        make_directory(self._path.parent)
        write_durably(
            self._path, msgspec.json.format(msgspec.json.encode([each for each in made if each not in spare]))
        )


def _current_withdrawals(made: Iterable[IssuedInvitation], now: float) -> list[IssuedInvitation]:
    return [each for each in made if each.withdrawn_at is not None and not each.is_expired(now)]
