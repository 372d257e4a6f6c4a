"""Signed records: what peers write into the DHT, and the checks that every reader and every storing node makes.

- A record belongs to one peer and only that peer can write it: its subkey is the owner's peer id. The value is a
  msgpack payload followed by the owner's signature over key, owner, payload and expiration.
- The payload names its swarm, round and stage, so its key can be computed from it: a record is valid under its own key
  only, and anyone can check it. docs/PROTOCOL.md has the format in full.
- `RecordPolicy` decides whose records are valid in a swarm, `AnnouncedShards` in which shards they must be.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Protocol

import msgpack  # type: ignore[import-untyped]
import msgspec

from swarmd.bounds import Count, Integer, Real
from swarmd.dht.identity.identity import Identity, is_peer_id, signature_size, verify
from swarmd.dht.identity.proof_of_work import NUMBER_MAX
from swarmd.dht.wire import names
from swarmd.dht.wire.addresses import LENGTH_MAX
from swarmd.dht.wire.invitations import AdmissionRule, is_packed_ids
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain_msgpack
from swarmd.errors import RecordRejected
from swarmd.weights.manifest import OFFER_BYTES_MAX
from swarmd.worker.runtime import TimeSource

INLINE_BYTES_MAX = 48 * 1024  # of a compressed body inside its record
FIELDS_BYTES_MAX = 1024  # of the other fields in a record that may hold a body
PAYLOAD_BYTES_MAX = {
    "membership": 4 * 1024,
    "clock": 512,
    "report": 768,
    "rollouts": INLINE_BYTES_MAX + FIELDS_BYTES_MAX,
    "leaderboard": INLINE_BYTES_MAX + FIELDS_BYTES_MAX,
}
SIGNATURE_BYTES_MAX = 1200  # an RSA key of 600 bytes, a 4096-bit signature, and their lengths
VALUE_BYTES_MAX = max(PAYLOAD_BYTES_MAX.values()) + SIGNATURE_BYTES_MAX
UNKNOWN_BYTES_MAX = 256  # fields of later versions, and fields with explicit default values

DOMAIN = b"swarmd-record-v1\x00"
SUBKEY_BYTES_MAX = 120
PAST_S = 60.0  # an expiration may be this far in the past, because clocks differ
TTL_MAX_S = 3600.0  # and this far in the future
CHANGES_KEPT = 16  # changes of the number of shards: more than an honest coordinator makes in all valid rounds
ROUND_MAX = 2**31 - 1
STAGE_MAX = 1023
GROUPS_MAX = 256  # in one body of rollouts
ROUNDS_AHEAD = 2  # records this many rounds ahead of the clock are still accepted
ROUNDS_BEHIND = 64
ADMITTED_MAX = 16384  # peer ids on a members list that changes while the node runs
BODY_BYTES_MAX = 16 * 1024 * 1024  # rollouts or leaderboard, decompressed
NAME_LENGTH_MAX = 64
ADDRESSES_MAX = 8


def check_payload_size(payload: bytes, content: msgspec.Struct) -> None:
    """Raise RecordRejected("oversized") if a payload is too large for its kind, or has too many unknown fields."""
    kind: Any = content.__struct_config__.tag
    if len(payload) > PAYLOAD_BYTES_MAX[kind]:
        raise RecordRejected(
            "oversized", f"a {kind} of {len(payload)} bytes fits in no record, the limit is {PAYLOAD_BYTES_MAX[kind]}"
        )
    unknown = len(payload) - len(msgspec.msgpack.encode(content))
    if unknown > UNKNOWN_BYTES_MAX:
        raise RecordRejected("oversized", f"{unknown} bytes of unknown fields, the limit is {UNKNOWN_BYTES_MAX}")


Round = Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]
Stage = Annotated[int, msgspec.Meta(ge=0, le=STAGE_MAX)]
Groups = Annotated[int, msgspec.Meta(ge=0, le=GROUPS_MAX)]

PROTOCOL = 1  # this node's version; a peer whose membership names another one is ignored
ProtocolVersion = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Work = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]  # see `swarmd.dht.identity.proof_of_work`


class RecordContent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind"):
    """Base of all payloads."""

    swarm: str


class Membership(RecordContent, frozen=True, tag="membership"):
    """The owner takes part or, with `leaving`, has just left."""

    name: str
    nonce: str  # random for each run of the process: distinguishes two nodes with one identity
    joined_at: Real
    leaving: bool = False
    addresses: tuple[str, ...] = ()
    work: Work = 0
    invitation: bytes = b""
    protocol: ProtocolVersion = 1
    withdrawn: bytes = b""  # ids of invitations, see `swarmd.dht.wire.invitations`
    weights: bytes = b""  # an offer, see `swarmd.weights.manifest`; one in a later format does not invalidate the rest
    shards: names.Shards = 0  # shards of the memberships, as many as the stages have; 0: one key for all
    epoch: Round = 0  # see `swarmd.dht.wire.names.epoch_of`
    shard: names.Shards = 0  # the owner's shard in that epoch

    @property
    def key(self) -> str:
        return names.members_key(self.swarm, self.shards, self.epoch, self.shard)


class ClockRecord(RecordContent, frozen=True, tag="clock"):
    """The open stage. Valid from the coordinator only."""

    round: Round
    stage: Stage
    opened_at: Real
    deadline_at: Real
    final: bool = False
    opening: Count = 0  # number of the announcement among all of this coordinator's; 0 for the final one
    shards: names.Shards = 0  # shards of each stage's reports and rollouts, from round `sharded_since` on; 0: one key
    sharded_since: Round = 0
    shards_before: names.Shards = 0  # in the rounds before that
    steady_min: Round = 0  # a stage waits for members for whom none timed out in this many rounds

    @property
    def key(self) -> str:
        return names.clock_key(self.swarm)


class ReportRecord(RecordContent, frozen=True, tag="report"):
    """The result of the owner's stage; `digest` names its rollouts."""

    round: Round
    stage: Stage
    reward: Real
    digest: str = ""
    size_bytes: Integer = 0
    groups: Groups = 0
    work: Work = 0
    invitation: bytes = b""
    shards: names.Shards = 0  # the stage's shards, as in the clock
    shard: names.Shards = 0  # the owner's shard, see `swarmd.dht.wire.names`

    @property
    def key(self) -> str:
        return names.reports_key(self.swarm, self.round, self.stage, self.shards, self.shard)


class RolloutsRecord(RecordContent, frozen=True, tag="rollouts"):
    """The owner's rollouts: small ones are inline as a zlib stream, larger ones are fetched from the owner."""

    round: Round
    stage: Stage
    digest: str
    size_bytes: Integer
    groups: Groups
    body: bytes = b""
    work: Work = 0
    invitation: bytes = b""
    shards: names.Shards = 0  # as in `ReportRecord`
    shard: names.Shards = 0

    @property
    def key(self) -> str:
        return names.rollouts_key(self.swarm, self.round, self.stage, self.shards, self.shard)


class LeaderboardRecord(RecordContent, frozen=True, tag="leaderboard"):
    """Standings and the reports that they sum up, as a body. Valid from the coordinator only."""

    round: Round
    digest: str
    size_bytes: Integer
    body: bytes = b""

    @property
    def key(self) -> str:
        return names.leaderboard_key(self.swarm, self.round)


Payload = Membership | ClockRecord | ReportRecord | RolloutsRecord | LeaderboardRecord


def is_sharded(content: Payload) -> bool:
    return isinstance(content, Membership | ReportRecord | RolloutsRecord) and content.shards > 0


_decoder: msgspec.msgpack.Decoder[Payload] = msgspec.msgpack.Decoder(Payload)


class SignedRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record outside the DHT, encoded as an array of owner, payload, expiration and signature."""

    owner: str
    payload: bytes
    expiration: Real
    signature: bytes

    @property
    def value(self) -> bytes:
        """The bytes that the DHT stores under the owner's subkey."""
        return self.payload + self.signature

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + len(self.signature)

    @property
    def content(self) -> Payload:
        return _decoder.decode(self.payload)

    def encode(self) -> bytes:
        """Encode the record for `ReportSeen.record` and leaderboards; `decode_signed` reads it."""
        return msgspec.msgpack.encode(self)


class Record(Protocol):
    """A valid record: its signature, its key and its owner's rights have been checked."""

    @property
    def owner(self) -> str:
        """Peer id."""

    @property
    def content(self) -> Payload:
        """The decoded payload."""

    @property
    def expiration(self) -> float:
        """POSIX seconds."""

    @property
    def size_bytes(self) -> int:
        """Size of payload and signature."""

    def encode(self) -> bytes:
        """Return the signed record's encoding, for leaderboards."""


def as_signed(record: Record) -> SignedRecord:
    """Return the record as a `SignedRecord`; only the simulated network has other types."""
    assert isinstance(record, SignedRecord), "only a simulated network has other records"
    return record


def decode_signed(encoded: bytes) -> SignedRecord:
    """Decode the output of `SignedRecord.encode`, without verifying it. Raises RecordRejected("malformed")."""
    try:
        return msgspec.msgpack.decode(encoded, type=SignedRecord)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"not a signed record: {error}") from error


def signed_message(key: bytes, owner: str, payload: bytes, expiration: float) -> bytes:
    return DOMAIN + bytes(msgpack.packb([key, owner, payload, expiration], use_bin_type=True))


def sign(identity: Identity, content: Payload, expiration: float) -> SignedRecord:
    """Make a record, valid until `expiration` (POSIX seconds). Raises RecordRejected("oversized")."""
    payload = msgspec.msgpack.encode(content)
    check_payload_size(payload, content)
    message = signed_message(names.key_id(content.key), identity.peer_id, payload, expiration)
    return SignedRecord(identity.peer_id, payload, expiration, identity.sign(message))


class AnnouncedShards:
    """The numbers of shards by round, as the clock announces them; in a swarm on a chain the manifest's fixed number.

    Attributes:
        members: the known sharding of memberships.
        members_before: the sharding before that, even if it ended before this node started; a member that has not heard
            of the change yet is still found there.
        fixed: the manifest's number of shards for all stages and memberships in a swarm on a chain, whose contract
            announces none; memberships then stay in their shards. 0: no shards, or as many as the clock announces.

    Args:
        fixed: as the attribute; None without a contract, so that the swarm's clock may announce shards.
        admission: the swarm's rule. By invitation, memberships are under one key, because all nodes need the
            withdrawals in them.
    """

    def __init__(self, fixed: int | None = None, admission: str = "open") -> None:
        self.fixed = fixed or 0
        self.members = self.members_before = names.MemberSharding(self.fixed)
        self._moved: Callable[[], None] = lambda: None
        self._sharded = fixed is None
        self._members_sharded = self._sharded and admission != "invitation"
        self._round = -1  # round of the latest clock record
        self._counts: dict[int, int] = {}  # first round → number of shards from that round on

    @property
    def needs_clock(self) -> bool:
        """Whether the clock decides the sharding of memberships, and has not been read yet."""
        return self._members_sharded and self._round < 0

    def set_members_moved_listener(self, moved: Callable[[], None]) -> None:
        self._moved = moved

    def apply_clock(self, clock: ClockRecord) -> None:
        if clock.round < self._round:
            return
        self._round = clock.round
        for since in [since for since in self._counts if since >= clock.sharded_since]:
            del self._counts[since]
        if clock.sharded_since > 0 and not self._counts:
            self._counts[0] = clock.shards_before
        self._counts[clock.sharded_since] = clock.shards
        for since in list(self._counts)[:-CHANGES_KEPT]:
            del self._counts[since]
        if self._members_sharded:
            self._update_member_sharding()

    def _update_member_sharding(self) -> None:
        place = self._member_sharding_in(self._round)
        if place != self.members:
            # Memberships moved when the epoch began, or in a later round that changed the number of shards.
            changed = [since for since in self._counts if since <= self._round]
            since = max([names.epoch_of(self._round) * names.EPOCH_ROUNDS, *changed])
            self.members, self.members_before = place, self._member_sharding_in(since - 1)
            self._moved()

    def _member_sharding_in(self, round: int) -> names.MemberSharding:
        shards = self.latest_shards_of(round)
        return names.MemberSharding(shards, names.epoch_of(round)) if shards else names.MemberSharding()

    @property
    def is_large_swarm(self) -> bool:
        """Whether stages currently have shards: there are too many members for all to ask the coordinator."""
        return self.fixed > 0 or self.latest_shards_of(self._round) > 0

    def known_shards_of(self, round: int) -> int | None:
        """Return the number of shards of a round's stages; None if no clock of that round or a later one is known."""
        if not self._sharded:
            return self.fixed
        return self.latest_shards_of(round) if round <= self._round else None

    def latest_shards_of(self, round: int) -> int:
        """Return the number of shards of a round's stages, as far as is known."""
        if not self._sharded:
            return self.fixed
        return next((self._counts[since] for since in reversed(self._counts) if since <= round), 0)


class RecordPolicy:
    """Decides whose records are valid in this swarm. `coordinator`: peer id whose clock and leaderboard are valid.
    `members`: peer ids that may write; empty admits all. The coordinator and `own` always may."""

    def __init__(
        self,
        swarm: str,
        coordinator: str,
        members: tuple[str, ...] = (),
        own: str = "",
        now: TimeSource = time.time,
        admission: AdmissionRule | None = None,
        shards: AnnouncedShards | None = None,
    ) -> None:
        self.admission = admission or AdmissionRule()
        self.swarm = swarm
        self.coordinator = coordinator
        self.own = own
        self.now = now
        self.round: int | None = None  # the swarm's round, once known: records of far rounds are refused
        self.shards = shards or AnnouncedShards()
        self._configured = frozenset((*members, coordinator, own)) if members else None
        self._members = self._configured

    def admit_only(self, peers: Iterable[str]) -> None:
        """Allow only these peers, the coordinator and this node to write from now on. Raises
        RecordRejected("oversized") if there are too many; then nothing changes."""
        listed = frozenset((*peers, self.coordinator, self.own))
        if len(listed) > ADMITTED_MAX:
            raise RecordRejected("oversized", f"a members list of {len(listed)} peers, the limit is {ADMITTED_MAX}")
        self._members = listed

    def admit_configured(self) -> None:
        """Allow the peers that the configuration admits to write."""
        self._members = self._configured

    def set_round(self, round: int) -> None:
        """Set the swarm's round, as announced by its clock."""
        self.round = round

    def raise_round(self, round: int) -> None:
        """Raise the swarm's round to that of a command, whether or not the clock was read."""
        self.round = max(round, self.round or 0)

    def is_listed(self, peer: str) -> bool:
        """Return whether this peer is the coordinator, this node, or on the members list."""
        return peer in (self.coordinator, self.own) or (self._members is not None and peer in self._members)

    def is_admitted(self, peer: str) -> bool:
        """Return whether this peer may write, or fetch bodies."""
        return self._members is None or peer in self._members


def check_record(policy: RecordPolicy, key: bytes, owner: str, value: bytes, expiration: float) -> SignedRecord:
    """Check a record of an owner under a key, cheapest checks first.

    Args:
        key: the 20-byte key id.
        owner: a peer id.
        value: payload and signature.

    Raises:
        RecordRejected: with one of the reasons of docs/PROTOCOL.md.
    """
    check_value_size(value)
    check_expiration(expiration, policy.now())
    check_admitted(policy, owner)
    signed = split_value(owner, value, expiration)
    _check_signature(signed, key, value)
    content = decode_payload(signed.payload)
    if names.key_id(content.key) != key:
        raise RecordRejected("wrong-key", f"a record of {content.key} lies under another key")
    check_shard(owner, content)
    check_write_rights(policy, owner, content)
    return signed


def check_value_size(value: object) -> None:
    """Check that a value is bytes and not too long. Raises RecordRejected: "malformed" or "oversized"."""
    if not isinstance(value, bytes):
        raise RecordRejected("malformed", "the value is not bytes")
    if len(value) > VALUE_BYTES_MAX:
        raise RecordRejected("oversized", f"{len(value)} bytes, the limit is {VALUE_BYTES_MAX}")


def check_admitted(policy: RecordPolicy, owner: str) -> None:
    """Raise RecordRejected("not-a-member") unless the owner may write here."""
    if not policy.is_admitted(owner):
        raise RecordRejected("not-a-member", f"{owner} is not on the members list")


def split_value(owner: str, value: bytes, expiration: float) -> SignedRecord:
    """Split a value into payload and signature, without verifying it. Raises RecordRejected("unsigned")."""
    try:
        size_bytes = signature_size(owner, value)
    except ValueError as error:
        raise RecordRejected("unsigned", str(error)) from error
    return SignedRecord(owner, value[:-size_bytes], expiration, value[-size_bytes:])


def is_too_far_ahead(expiration: float, now: float) -> bool:
    """Return whether a record expires impossibly late: a clock was ahead, or was set back since."""
    return expiration > now + TTL_MAX_S + PAST_S


def check_expiration(expiration: float, now: float) -> None:
    """Raise RecordRejected if a record has expired ("stale") or lasts too long ("far-expiration")."""
    if not math.isfinite(expiration) or is_too_far_ahead(expiration, now):
        raise RecordRejected("far-expiration", f"expires at {expiration}")
    if expiration < now - PAST_S:
        raise RecordRejected("stale", f"expired {now - expiration:.0f} s ago")


def decode_owner(subkey: bytes) -> str:
    """Return the peer id in a subkey encoded by hivemind; plain values have an empty or nil subkey, and no owner.
    Raises RecordRejected: "oversized" or "unowned"."""
    if len(subkey) > SUBKEY_BYTES_MAX:
        raise RecordRejected("oversized", f"a subkey of {len(subkey)} bytes")
    try:
        return check_owner(msgspec.msgpack.decode(subkey, type=str))
    except DECODE_ERRORS as error:
        raise RecordRejected("unowned", "the subkey is not a peer id") from error


def check_owner(owner: object) -> str:
    """Return the owner if it is a peer id. Raises RecordRejected("unowned")."""
    if not isinstance(owner, str) or not is_peer_id(owner):
        raise RecordRejected("unowned", "the subkey is not a peer id")
    return owner


def _check_signature(signed: SignedRecord, key: bytes, value: bytes) -> None:
    if is_signature_valid(signed, key):
        return
    try:
        decode_payload(value)
    except RecordRejected:
        raise RecordRejected("bad-signature", f"not signed by {signed.owner} for this key and expiration") from None
    raise RecordRejected("unsigned", "a payload without a signature")


def is_signature_valid(signed: SignedRecord, key: bytes) -> bool:
    """Return True if the owner signed exactly this payload, for this key and expiration."""
    message = signed_message(key, signed.owner, signed.payload, signed.expiration)
    return verify(signed.owner, signed.signature, message)


def decode_payload(payload: bytes) -> Payload:
    """Decode and check a payload. Raises RecordRejected: "nested", "malformed", "oversized" or "non-finite"."""
    check_plain_msgpack(payload)
    try:
        content = _decoder.decode(payload)
    except DECODE_ERRORS as error:
        reason = "malformed" if _has_only_finite_numbers(payload) else "non-finite"
        raise RecordRejected(reason, f"not a payload: {error}") from error
    check_payload_size(payload, content)
    _check_values(content)
    return content


def _has_only_finite_numbers(payload: bytes) -> bool:
    """Return whether all numbers of a refused payload are finite, to tell "non-finite" from "malformed"."""
    try:
        fields = msgspec.msgpack.decode(payload)
    except DECODE_ERRORS:
        return True
    numbers = fields.values() if isinstance(fields, dict) else ()
    return all(math.isfinite(number) for number in numbers if isinstance(number, float))


def _check_values(content: Payload) -> None:
    """Check constraints that the fields' types do not express."""
    if isinstance(content, Membership):
        _check_membership(content)
    elif isinstance(content, ClockRecord):
        names.check_shard_number(content.shards)
        names.check_shard_number(content.shards_before)
    else:
        _check_body_reference(content.digest, content.size_bytes, needed=not isinstance(content, ReportRecord))
    if isinstance(content, Membership | ReportRecord | RolloutsRecord):
        names.check_shard_number(content.shards, content.shard)


def _check_membership(content: Membership) -> None:
    short = len(content.name) <= NAME_LENGTH_MAX and len(content.nonce) <= NAME_LENGTH_MAX
    if not short or len(content.addresses) > ADDRESSES_MAX or not is_packed_ids(content.withdrawn):
        raise RecordRejected("oversized", "a name, nonce, list of addresses or of withdrawn invitations is too long")
    if len(content.weights) > OFFER_BYTES_MAX:
        raise RecordRejected("oversized", f"an offer of weights of {len(content.weights)} bytes")
    texts = (content.name, content.nonce, *content.addresses)
    if not all(text.isprintable() for text in texts):
        raise RecordRejected("malformed", "control characters in a name or address")
    if not all(text.startswith("/") and len(text) <= LENGTH_MAX for text in content.addresses):
        raise RecordRejected("malformed", "an address is not a multiaddr")


def _check_body_reference(digest: str, size_bytes: int, needed: bool = True) -> None:
    whole = len(digest) == 64 and set(digest) <= set("0123456789abcdef")
    if not whole and (digest or needed):
        raise RecordRejected("malformed", "a digest is not a lower-case sha256")
    if not 0 <= size_bytes <= BODY_BYTES_MAX:
        raise RecordRejected("oversized", f"a body of {size_bytes} bytes, the limit is {BODY_BYTES_MAX}")


def check_shard(owner: str, content: Payload) -> None:
    """Raise RecordRejected("wrong-shard") unless a record is in its owner's shard."""
    if isinstance(content, Membership):
        own = names.member_shard_of(content.swarm, owner, names.MemberSharding(content.shards, content.epoch))
    elif isinstance(content, ReportRecord | RolloutsRecord):
        own = names.shard_of(content.swarm, owner, content.round, content.stage, content.shards)
    else:
        return
    if content.shard != own:
        raise RecordRejected("wrong-shard", f"shard {content.shard} of {content.shards}, the owner's is {own}")


def _check_member_epoch(policy: RecordPolicy, content: Membership) -> None:
    """Check the epoch and the shards of a membership. Raises RecordRejected: "wrong-shard" or "wrong-round"."""
    fixed = policy.shards.fixed
    if fixed and (content.shards, content.epoch) != (fixed, 0):
        raise RecordRejected("wrong-shard", f"{content.shards} shards in epoch {content.epoch}, not {fixed} in 0")
    if not content.shards:
        return
    if not fixed and policy.round is not None and abs(content.epoch - names.epoch_of(policy.round)) > 1:
        raise RecordRejected("wrong-round", f"epoch {content.epoch} while the swarm is in round {policy.round}")


def check_write_rights(policy: RecordPolicy, owner: str, content: Payload) -> None:
    """Check that the owner may write this content at present. Raises RecordRejected."""
    if content.swarm != policy.swarm:
        raise RecordRejected("wrong-swarm", f"swarm {content.swarm!r}")
    if isinstance(content, ClockRecord | LeaderboardRecord) and owner != policy.coordinator:
        raise RecordRejected("not-the-coordinator", f"{owner} is not the coordinator")
    if isinstance(content, Membership):
        if content.protocol != PROTOCOL:
            raise RecordRejected("other-protocol", f"it speaks version {content.protocol}, this node {PROTOCOL}")
        _check_member_epoch(policy, content)
    elif isinstance(content, ReportRecord | RolloutsRecord):
        announced = policy.shards.known_shards_of(content.round)
        if announced is not None and content.shards != announced:
            raise RecordRejected("wrong-shard", f"{content.shards} shards where the stage has {announced}")
    if isinstance(content, Membership | ReportRecord | RolloutsRecord) and not policy.is_listed(owner):
        policy.admission.check(owner, content.work, content.invitation, policy.now)
    if policy.round is None or isinstance(content, Membership | ClockRecord):
        return
    if not policy.round - ROUNDS_BEHIND <= content.round <= policy.round + ROUNDS_AHEAD:
        raise RecordRejected("wrong-round", f"round {content.round} while the swarm is in {policy.round}")
