"""Hints over gossipsub: the writer of a record tells everybody that it is there. The DHT remains the truth.

A hint says only where to look: kind, key, owner and expiration. It is believed only from the owner itself, whose peer
id p2pd has authenticated, and it leads to nothing but one bounded read of a key that is watched anyway.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swarmd.bounds import Real
from swarmd.dht.limits import ALL_HINTS, HINTS, GossipLimits, RequestLimits
from swarmd.dht.ports import PeerCheck, Record
from swarmd.dht.pubsub.topic import Topic
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.errors import RecordRejected

HINT_BYTES_MAX = 512
MEMBERSHIP = "membership"


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
        door: counts what is refused.
        peer_id: this node's; its own hints come back and are ignored, but for memberships, which a twin may have sent.
        admits: may this peer's hints count?
        credited: has the swarm credited this peer?
        hinted: called with (key, owner, expiration) of a hint that may count.
    """

    def __init__(
        self,
        topic: Topic,
        door: RequestLimits,
        peer_id: str,
        admits: PeerCheck,
        credited: PeerCheck,
        hinted: Callable[[str, str, float], None],
    ) -> None:
        self._topic = topic
        self._door = door
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
            raise self._door.refusal(sender, "oversized", f"a hint of {len(message)} bytes")
        if not self._limits.try_charge_sender(sender):
            # Anybody can send again what a peer once wrote, with its signature, when p2pd has forgotten it.
            raise self._door.refusal(sender, "hints", "too many hints a second", weight=0)
        try:
            return msgspec.msgpack.decode(message, type=Hint)
        except DECODE_ERRORS as error:
            raise self._door.refusal(sender, "malformed", f"no hint: {error}") from error

    def publish(self, record: Record) -> None:
        """Hint at an own record."""
        content = record.content
        kind = str(type(content).__struct_config__.tag)
        hint = Hint(kind, content.key, record.expiration, self._peer_id)
        self._topic.publish(msgspec.msgpack.encode(hint))
