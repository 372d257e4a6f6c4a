"""Hints over gossipsub: the writer of a record tells everybody that it is there. The DHT remains the truth.

A hint says only where to look: kind, key, owner and expiration. It is believed only from the owner itself, whose peer
id p2pd has authenticated, and it leads to nothing but one bounded read of a key that is watched anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from swarmd.bounds import Real
from swarmd.dht.background import spawn
from swarmd.dht.hint_bounds import HintBounds
from swarmd.dht.node import Life, Node
from swarmd.dht.plain import DECODE_ERRORS
from swarmd.dht.records import Signed
from swarmd.errors import NetworkDown, RecordRejected

HINT_BYTES_MAX = 512
PUBLISH_S = 2.0
MEMBERSHIP = "membership"

log = logging.getLogger(__name__)


class Hint(msgspec.Struct, frozen=True, gc=False):
    """The message, as a msgpack map."""

    kind: str
    key: str
    expiration: Real
    sender: str


class Gossip:
    """Sends and receives hints.

    Args:
        node: whose p2pd gossips.
        topic: of the swarm.
        peer_id: this node's; its own hints come back and are ignored, but for memberships, which a twin may have sent.
        admits: may this peer's hints count?
        credited: has the swarm credited this peer?
        hinted: called with (key, owner, expiration) of a hint that may count.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        peer_id: str,
        admits: Callable[[str], bool],
        credited: Callable[[str], bool],
        hinted: Callable[[str, str, float], None],
    ) -> None:
        self._node = node
        self._topic = topic
        self._peer_id = peer_id
        self._admits = admits
        self._hinted = hinted
        self._credited = credited
        self._bounds = HintBounds()
        node.attendants.append(self.listen)

    async def listen(self, life: Life) -> None:
        """Take hints for as long as p2pd lives."""
        async for sender, message in life.p2p.subscribe(self._topic):
            self._take(sender, message)

    def _take(self, sender: str, message: bytes) -> None:
        if not self._admits(sender):
            return
        try:
            hint = self._check(sender, message)
        except RecordRejected:
            return
        if not self._bounds.take_all(
            self._credited(sender)
        ):  # nobody's fault; the keys are read every few seconds in any case
            return
        echo = sender == self._peer_id and hint.kind != MEMBERSHIP
        if hint.sender == sender and not echo:
            self._hinted(hint.key, sender, hint.expiration)

    def _check(self, sender: str, message: bytes) -> Hint:
        """The hint of a message. Raises RecordRejected, counted."""
        if len(message) > HINT_BYTES_MAX:
            raise self._node.door.refusal(sender, "oversized", f"a hint of {len(message)} bytes")
        if not self._bounds.take_own(sender):
            raise self._node.door.refusal(sender, "hints", "too many hints a second")
        try:
            return msgspec.msgpack.decode(message, type=Hint)
        except DECODE_ERRORS as error:
            raise self._node.door.refusal(sender, "malformed", f"no hint: {error}") from error

    def tell(self, signed: Signed) -> None:
        """Hint at an own record, in the background; a lost hint costs time, nothing else."""
        content = signed.content
        kind = str(type(content).__struct_config__.tag)
        spawn(self._send(Hint(kind, content.key, signed.expiration, self._peer_id)))

    async def _send(self, hint: Hint) -> None:
        message = msgspec.msgpack.encode(hint)
        try:
            await self._node.call(lambda life: life.p2p.publish(self._topic, message), PUBLISH_S)
        except NetworkDown as error:
            log.debug("the hint at %s was not sent: %s", hint.key, error)
