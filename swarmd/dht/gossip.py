"""Gossip about records: hints that one is there, and the clock's record itself. No hivemind in it.

- The writer of a record hints at it: kind, key, owner and expiration. A hint is believed only from the owner itself,
  whose peer id p2pd has authenticated, and it leads to nothing but one bounded read of a key that is watched anyway.
  The DHT remains the truth.
- The clock's signed record travels on a topic of its own.
- Evidence of two versions of one thing is told as `swarmd.dht.evidence` has it.
- `Gossip` says on each of these what an own record is worth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import msgspec

from swarmd.bounds import Real
from swarmd.dht.evidence import EvidenceGossip, RecordComparison
from swarmd.dht.p2p.limits import ALL_HINTS, HINTS, GossipLimits, PeerCheck, PeerLimits, Rate, RefusalCounter
from swarmd.dht.ports import RecordSink, Topic
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import ClockRecord, Membership, Record, decode_signed, is_sharded
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import Runtime

HINT_BYTES_MAX = 512
MEMBERSHIP = "membership"

MESSAGE_BYTES_MAX = 2048
SENDER = Rate(burst=20.0, per_s=2.0)
ALL = Rate(burst=200.0, per_s=50.0)  # of all senders: each message costs a signature's check
HEARD_KEPT = 16  # messages that need not be judged again
HEARD_ELSEWHERE_S = 1.0  # longest wait before it is passed on, in which others may have done so


class Hint(msgspec.Struct, frozen=True, gc=False):
    """The message, as a msgpack map."""

    kind: str
    key: str
    expiration: Real
    sender: str


class HintGossip:
    """Sends and receives hints.

    Args:
        topic: of the swarm.
        peer_limits: counts what is refused.
        peer_id: this node's; its own hints come back and are ignored, except of memberships: another node with the same
            identity may have sent those.
        admits: may this peer's hints count?
        credited: has the swarm credited this peer?
        hinted: called with (key, owner, expiration) of a hint that may count.
    """

    def __init__(
        self,
        topic: Topic,
        peer_limits: PeerLimits,
        peer_id: str,
        admits: PeerCheck,
        credited: PeerCheck,
        hinted: Callable[[str, str, float], None],
    ) -> None:
        self._topic = topic
        self._peer_limits = peer_limits
        self._peer_id = peer_id
        self._admits = admits
        self._hinted = hinted
        self._credited = credited
        self._limits = GossipLimits(HINTS, ALL_HINTS)
        topic.listen(self._on_message)

    def _on_message(self, sender: str, message: bytes) -> None:
        if not self._admits(sender):
            return
        try:
            hint = self._check(sender, message)
        except RecordRejected:
            return
        if not self._limits.try_charge_all(self._credited(sender)):
            return  # nobody's fault; the keys are read every few seconds in any case
        echo = sender == self._peer_id and hint.kind != MEMBERSHIP
        if hint.sender == sender and not echo:
            self._hinted(hint.key, sender, hint.expiration)

    def _check(self, sender: str, message: bytes) -> Hint:
        """The hint of a message. Raises RecordRejected, counted."""
        if len(message) > HINT_BYTES_MAX:
            raise self._peer_limits.refusal(sender, "oversized", f"a hint of {len(message)} bytes")
        if not self._limits.try_charge_sender(sender):
            # Anybody can send again what a peer once wrote, with its signature, when p2pd has forgotten it.
            raise self._peer_limits.refusal(sender, "hints", "too many hints a second", weight=0)
        try:
            return msgspec.msgpack.decode(message, type=Hint)
        except DECODE_ERRORS as error:
            raise self._peer_limits.refusal(sender, "malformed", f"no hint: {error}") from error

    def publish(self, record: Record) -> None:
        """Hint at an own record."""
        content = record.content
        kind = str(type(content).__struct_config__.tag)
        hint = Hint(kind, content.key, record.expiration, self._peer_id)
        self._topic.publish(msgspec.msgpack.encode(hint))


class ClockGossip:
    """Sends and receives the clock record on a topic of its own. No hivemind in it.

    Args:
        topic: of its own.
        refused: counts what was refused.
        known: has the swarm credited this peer, or does it need no credit? The others leave it room.
        runtime: the clock.
        random: chance.
    """

    def __init__(
        self,
        topic: Topic,
        refused: RefusalCounter,
        known: PeerCheck,
        runtime: Runtime,
        random: Random,
    ) -> None:
        self._topic = topic
        self._heard: RecordSink = lambda record: None
        self._refused = refused
        self._is_known = known
        self._runtime = runtime
        self._random = random
        self._latest = 0.0  # expiration of the latest record that was on the topic
        self._heard_lately: deque[bytes] = deque(maxlen=HEARD_KEPT)
        self._limits = GossipLimits(SENDER, ALL, runtime.now)
        topic.listen(self._on_message)

    def _on_message(self, sender: str, message: bytes) -> None:
        if message in self._heard_lately:
            return  # it is passed on by many
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise RecordRejected("oversized", f"{len(message)} bytes of a clock record")
            self._limits.charge(sender, self._is_known(sender))
            signed = decode_signed(message)
            self._heard(signed)  # an earlier one too: it may be what somebody else was told instead of a later one
        except RecordRejected as error:
            self._refused(sender, error.reason, error.message)
        else:
            self._heard_lately.append(message)
            self._latest = max(self._latest, signed.expiration)

    def follow(self, heard: RecordSink) -> None:
        """Have each record that may be the clock's taken by `heard`; it raises RecordRejected if one does not count."""
        self._heard = heard

    def publish(self, record: Record) -> None:
        """Gossip this node's own record now."""
        self._latest = max(self._latest, record.expiration)
        self._topic.publish(record.encode())

    def pass_on(self, record: Record) -> None:
        """Gossip a record that was heard otherwise, if nobody else has done so in a moment."""
        if record.expiration > self._latest:
            self._runtime.start(self._send_unless_heard(record))

    async def _send_unless_heard(self, record: Record) -> None:
        await self._runtime.sleep(self._random.uniform(0, HEARD_ELSEWHERE_S))
        if record.expiration > self._latest:
            self._latest = record.expiration
            await self._topic.send(record.encode())


class Gossip:
    """Tells others what this node publishes and finds, by each of the topics.

    Attributes:
        clock: the clock's records.
        evidence: what contradicts itself.
        comparison: finds it.

    Args:
        clock, evidence, comparison: as the attributes.
        hint: hints at an own record.
        accepted: takes each own record, as if a peer had stored it here.
    """

    def __init__(
        self,
        clock: ClockGossip,
        evidence: EvidenceGossip,
        comparison: RecordComparison,
        hint: RecordSink,
        accepted: RecordSink,
    ) -> None:
        self.clock = clock
        self.evidence = evidence
        self.comparison = comparison
        self._hint = hint
        self._accepted = accepted

    def told(self, record: Record) -> None:
        """An own record is out: hint at it, and look at it like everybody else."""
        if not is_sharded(record.content):  # those who need it have it, or ask for its shard
            self._hint(record)
        self._note_out(record)

    def renewed(self, record: Record) -> None:
        """An own record is out again, for it is time, and others have it: they find a membership before it expires."""
        if isinstance(record.content, Membership):
            self._note_out(record)
        else:
            self.told(record)

    def _note_out(self, record: Record) -> None:
        self.comparison.see(record)
        if isinstance(record.content, ClockRecord):
            self.clock.publish(record)
        self._accepted(record)
