"""Who may write, if a swarm has no list: everybody, whom a member has invited, or whoever has worked for it.

- An invitation is the creator's, or of one whom the creator has invited, and names the guest; it travels in the guest's
  records, so that everybody can check it without asking anybody.
- A host says in its own membership record, which is signed, what it has withdrawn, and every node that has read it
  keeps it. The creator may withdraw any invitation, whoever made it; a guest of the creator those that it made itself.
- What this node's operator made, and withdrew, is a list in its directory, which `swarmd swarm invite` writes and the
  network worker reads.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgpack  # type: ignore[import-untyped]
import msgspec
from cachetools import FIFOCache

from swarmd.bounds import DECODE_ERRORS, RateLimiter, Real
from swarmd.dht.identity.identity import ED25519_BYTES, Identity, is_peer_id, verify
from swarmd.dht.identity.proof_of_work import WORK_BITS, work_bits
from swarmd.dht.wire.msgpack_guard import check_plain
from swarmd.errors import ConfigError, RecordRejected
from swarmd.files import make_directory, read_start, write_durably
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource

DOMAIN = b"swarmd-invitation-v1\x00"
INVITATION_BYTES_MAX = 300  # of one by a guest of the creator, which has the creator's in it
CHAIN_MAX = 2  # invitations one inside the other: the creator's, and one by its guest
VERIFIED_MAX = 4096  # invitations whose signatures need not be checked again

Rule = Literal["open", "invitation", "work"]

ID_BYTES = 6
WITHDRAWN_MAX = 32  # of one host at a time
HOSTS_MAX = 256  # whose lists are kept
CHANGES_BURST, CHANGES_PER_S = 8.0, 1 / 60  # of a guest's list: each has a file written and all records judged anew

MADE_MAX = 4096  # listed; the oldest that are not withdrawn are forgotten
MADE_BYTES_MAX = 2 * 1024 * 1024

log = get_logger(__name__)


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


def check_invitation(encoded: bytes, swarm: str, creator: str, guest: str, now: float, depth: int = CHAIN_MAX) -> float:
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
    while encoded and len(chain) < CHAIN_MAX:
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
        withdrawn: says whether an invitation has been withdrawn.
    """

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
        _check_standing(invitation, owner, self._withdrawn)


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


class IssuedInvitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An invitation that was made here, or one of another host that the creator withdrew here."""

    id: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    guest: str = ""  # peer id; empty where it was made elsewhere
    made_at: Real | None = None  # POSIX seconds
    until: Real = 0.0  # POSIX seconds; 0: without an end
    withdrawn_at: Real | None = None

    def is_over(self, now: float) -> bool:
        """Whether it came to its end by itself."""
        return bool(self.until) and self.until <= now


class OwnInvitations:
    """The list of them in a node's directory; read and written anew with each call.

    Args:
        path: its file; the network worker reads it while the node runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = b""

    def read(self) -> tuple[IssuedInvitation, ...]:
        """All of them, oldest first. Raises ConfigError where the file is there and is none."""
        try:
            return msgspec.json.decode(read_start(self._path, MADE_BYTES_MAX), type=tuple[IssuedInvitation, ...])
        except FileNotFoundError:
            return ()
        except (OSError, *DECODE_ERRORS) as error:
            fix = "Restore it, or remove it; what was withdrawn by it is then withdrawn no more"
            raise ConfigError(f"the list of invitations {self._path} cannot be read: {error}", fix) from error

    def note(self, encoded: bytes, guest: str, until: float, now: float) -> str:
        """Add one that has just been made. Returns its id. Raises ConfigError, NoSpaceLeft, LogWriteFailed."""
        found = id_of(msgspec.msgpack.decode(encoded, type=Invitation)).hex()
        before = next((each for each in self.read() if each.id == found), IssuedInvitation(found))
        self._write(msgspec.structs.replace(before, guest=guest, made_at=now, until=until), now)
        return found

    def withdraw(self, id_: bytes, everybodys: bool, now: float) -> IssuedInvitation:
        """Withdraw one.

        Args:
            id_: which.
            everybodys: whether this host may withdraw what others made, being the creator.

        Raises:
            ConfigError: it was not made here, or too many are withdrawn.
        """
        made = self.read()
        known = next((each for each in made if each.id == id_.hex()), None)
        if known is None and not everybodys:
            fix = "Ask the swarm's creator, who may withdraw any"
            raise ConfigError(f"the invitation {id_.hex()} was not made here", fix)
        if known is not None and known.withdrawn_at is not None:
            return known
        if len(_standing(made, now)) >= WITHDRAWN_MAX:
            fix = (
                "Those with an end (--days) make room then. Withdrawing the invitation of a guest voids all that this "
                "guest made; a list of members (dht.members) needs no invitations"
            )
            raise ConfigError(f"{WITHDRAWN_MAX} invitations are withdrawn already, as many as nodes carry", fix)
        withdrawn = msgspec.structs.replace(known or IssuedInvitation(id_.hex()), withdrawn_at=now)
        self._write(withdrawn, now)
        return withdrawn

    def packed(self, now: float) -> bytes:
        """Those withdrawn that have not come to their end, as they travel. Raises ConfigError."""
        return pack(bytes.fromhex(each.id) for each in _standing(self.read(), now)[:WITHDRAWN_MAX])

    def packed_lately(self) -> bytes:
        """The same, for a node that runs: the last that could be read if the list cannot be."""
        try:
            self._last = self.packed(time.time())
        except ConfigError as error:
            log.warning("%s", error.message)
        return self._last

    def _write(self, changed: IssuedInvitation, now: float) -> None:
        made = [each for each in self.read() if each.id != changed.id and not each.is_over(now)] + [changed]
        spare = [each for each in made if each.withdrawn_at is None][: max(0, len(made) - MADE_MAX)]
        make_directory(self._path.parent)
        write_durably(
            self._path, msgspec.json.format(msgspec.json.encode([each for each in made if each not in spare]))
        )


def _standing(made: Iterable[IssuedInvitation], now: float) -> list[IssuedInvitation]:
    return [each for each in made if each.withdrawn_at is not None and not each.is_over(now)]
