"""Gossip about records: hints that a record was written, and the clock's record itself. Does not import hivemind.

- The writer of a record sends a hint: kind, key, owner and expiration. A hint counts only if the owner itself sent it
  (p2pd authenticates the sender's peer id), and causes only one bounded read of a key that is watched anyway. The DHT
  remains the truth.
- The clock's signed record is sent on a topic of its own.
- Evidence of two versions of one record is sent by `swarmd.dht.evidence`.
- `Gossip` announces this node's own records on these topics.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from swarmd.bounds import Real
from swarmd.dht.evidence import EquivocationDetector, EvidenceGossip
from swarmd.dht.p2p.limits import ALL_HINTS, HINTS, GossipLimits, PeerLimits, Rate
from swarmd.dht.ports import RecordSink, Topic
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import ClockRecord, Membership, Record, decode_signed, is_sharded
from swarmd.errors import RecordRejected

HINT_BYTES_MAX = 512
MEMBERSHIP = "membership"

MESSAGE_BYTES_MAX = 2048
SENDER = Rate(burst=20.0, per_s=2.0)
ALL = Rate(burst=200.0, per_s=50.0)  # for all senders together: each message costs a signature check
HEARD_KEPT = 16  # recent messages that need not be checked again
HEARD_ELSEWHERE_S = 1.0  # longest delay before a record is forwarded, to let others forward it first


class Hint(msgspec.Struct, frozen=True, gc=False):
    """A hint, sent as a msgpack map."""

    kind: str
    key: str
    expiration: Real
    sender: str


class HintGossip:
    """Sends and receives hints.

    Own hints come back and are ignored, except those about memberships: another node with the same identity may have
    sent them. `hinted` is called with (key, owner, expiration) of each hint that may count.
    """

    def __init__(
        self, view: SwarmView, topic: Topic, peer_limits: PeerLimits, hinted: Callable[[str, str, float], None]
    ) -> None:
        self._view = view
        self._topic = topic
        self._peer_limits = peer_limits
        self._hinted = hinted
        self._limits = GossipLimits(HINTS, ALL_HINTS)
        topic.listen(self._on_message)

    def _on_message(self, sender: str, message: bytes) -> None:
        if not self._view.policy.is_admitted(sender):
            return
        try:
            hint = self._decode_hint(sender, message)
        except RecordRejected:
            return
        if not self._limits.try_charge_all(self._view.is_credited(sender)):
            return  # not the sender's fault; the keys are polled every few seconds in any case
        echo = sender == self._view.peer_id and hint.kind != MEMBERSHIP
        if hint.sender == sender and not echo:
            self._hinted(hint.key, sender, hint.expiration)

    def _decode_hint(self, sender: str, message: bytes) -> Hint:
        """Decode a hint. Raises RecordRejected, and counts it against the sender."""
        if len(message) > HINT_BYTES_MAX:
            raise self._peer_limits.count_refusal(sender, "oversized", f"a hint of {len(message)} bytes")
        if not self._limits.try_charge_sender(sender):
            # Any peer can resend a message that another peer once signed, after p2pd has forgotten it.
            raise self._peer_limits.count_refusal(sender, "hints", "too many hints a second", weight=0)
        try:
            return msgspec.msgpack.decode(message, type=Hint)
        except DECODE_ERRORS as error:
            raise self._peer_limits.count_refusal(sender, "malformed", f"not a hint: {error}") from error

    def publish(self, record: Record) -> None:
        content = record.content
        kind = str(type(content).__struct_config__.tag)
        hint = Hint(kind, content.key, record.expiration, self._view.peer_id)
        self._topic.publish(msgspec.msgpack.encode(hint))


class ClockGossip:
    """Sends and receives the clock record on a topic of its own."""

    def __init__(self, view: SwarmView, topic: Topic) -> None:
        self._view = view
        self._topic = topic
        self._heard: RecordSink = lambda record: None
        self._latest = 0.0  # expiration of the latest record seen on the topic
        self._heard_lately: deque[bytes] = deque(maxlen=HEARD_KEPT)
        self._limits = GossipLimits(SENDER, ALL, view.runtime.now)
        topic.listen(self._on_message)

    def _on_message(self, sender: str, message: bytes) -> None:
        if message in self._heard_lately:
            return  # many peers forward the same message
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise RecordRejected("oversized", f"{len(message)} bytes of a clock record")
            self._limits.charge(sender, self._view.is_credited(sender))
            signed = decode_signed(message)
            self._heard(signed)  # even if earlier: other peers may have received this one instead of a later one
        except RecordRejected as error:
            self._view.rejections.count(sender, error.reason, error.message)
        else:
            self._heard_lately.append(message)
            self._latest = max(self._latest, signed.expiration)

    def set_listener(self, heard: RecordSink) -> None:
        """Call `heard` with each record on the topic; it raises RecordRejected if the record does not count."""
        self._heard = heard

    def publish(self, record: Record) -> None:
        """Send this node's own record now."""
        self._latest = max(self._latest, record.expiration)
        self._topic.publish(record.encode())

    def forward_record(self, record: Record) -> None:
        """Forward a record that did not arrive on this topic, unless another peer does so first."""
        if record.expiration > self._latest:
            self._view.runtime.start(self._send_unless_heard(record))

    async def _send_unless_heard(self, record: Record) -> None:
        await self._view.runtime.sleep(self._view.random.uniform(0, HEARD_ELSEWHERE_S))
        if record.expiration > self._latest:
            self._latest = record.expiration
            self._topic.publish(record.encode())


class Gossip:
    """Announces own records on the gossip topics. `comparison` looks for evidence in the records that this node sees.
    `accepted` gets each own record, as if a peer had stored it here."""

    def __init__(
        self,
        clock: ClockGossip,
        evidence: EvidenceGossip,
        comparison: EquivocationDetector,
        hint: RecordSink,
        accepted: RecordSink,
    ) -> None:
        self.clock = clock
        self.evidence = evidence
        self.comparison = comparison
        self._hint = hint
        self._accepted = accepted

    def announce_stored(self, record: Record) -> None:
        """Announce an own record that a peer has stored: send a hint, and handle it as every other node does."""
        if not is_sharded(record.content):  # peers that need a sharded record have it, or read its shard
            self._hint(record)
        self._handle_own_record(record)

    def announce_renewed(self, record: Record) -> None:
        """Announce an own record that was renewed on time. A renewed membership needs no hint: peers read it before the
        old one expires."""
        if isinstance(record.content, Membership):
            self._handle_own_record(record)
        else:
            self.announce_stored(record)

    def _handle_own_record(self, record: Record) -> None:
        self.comparison.compare_record(record)
        if isinstance(record.content, ClockRecord):
            self.clock.publish(record)
        self._accepted(record)
