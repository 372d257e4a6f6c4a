"""The clock record by other ways than the DHT: gossiped by the coordinator, and by whoever heard it otherwise.

It is worth as much from a stranger as from the coordinator, for it is signed: whoever hears any honest peer hears it.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable

import anyio

from swarmd.dht.background import spawn
from swarmd.dht.node import Life, Node
from swarmd.dht.quota import Quota
from swarmd.dht.records import Signed, decode_signed
from swarmd.errors import NetworkDown, RecordRejected

MESSAGE_BYTES_MAX = 2048
MESSAGES_BURST, MESSAGES_PER_S = 20.0, 2.0  # one sender's
ALL_BURST, ALL_PER_S = 200.0, 50.0  # of all senders: each costs a signature's check
SEND_S = 2.0
HEARD_KEPT = 16  # messages that need not be judged again
HEARD_ELSEWHERE_S = 1.0  # longest wait before it is passed on, in which others may have done so

log = logging.getLogger(__name__)


class Herald:
    """Sends and receives the clock record on a topic of its own.

    Args:
        node: whose p2pd gossips.
        topic: of the swarm.
        heard: called with a record that may be the clock's; raises RecordRejected where it does not count.
        refused: called with sender and error.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        heard: Callable[[Signed], None],
        refused: Callable[[str, RecordRejected], None],
    ) -> None:
        self._node = node
        self._topic = topic
        self._heard = heard
        self._refused = refused
        self._latest = 0.0  # expiration of the latest record that was on the topic
        self._heard_lately: deque[bytes] = deque(maxlen=HEARD_KEPT)
        self._quota = Quota(MESSAGES_BURST, MESSAGES_PER_S, time.monotonic)
        self._all = Quota(ALL_BURST, ALL_PER_S, time.monotonic)
        node.attendants.append(self.listen)

    async def listen(self, life: Life) -> None:
        """Take records for as long as p2pd lives."""
        async for sender, message in life.p2p.subscribe(self._topic):
            self._take(sender, message)

    def _take(self, sender: str, message: bytes) -> None:
        if len(message) > MESSAGE_BYTES_MAX or not self._quota.take(sender) or not self._all.take(""):
            return
        if message in self._heard_lately:
            return  # it is passed on by many
        try:
            signed = decode_signed(message)
            self._heard(signed)  # an earlier one too: it may be what somebody else was told instead of a later one
        except RecordRejected as error:
            self._refused(sender, error)
        else:
            self._heard_lately.append(message)
            self._latest = max(self._latest, signed.expiration)

    def tell(self, signed: Signed) -> None:
        """Gossip this node's own record now."""
        self._latest = max(self._latest, signed.expiration)
        spawn(self._send(signed))

    def pass_on(self, signed: Signed) -> None:
        """Gossip a record that was heard otherwise, if nobody else has done so in a moment."""
        if signed.expiration > self._latest:
            spawn(self._send_unless_heard(signed))

    async def _send_unless_heard(self, signed: Signed) -> None:
        await anyio.sleep(random.uniform(0, HEARD_ELSEWHERE_S))
        if signed.expiration > self._latest:
            self._latest = signed.expiration
            await self._send(signed)

    async def _send(self, signed: Signed) -> None:
        message = signed.encode()
        try:
            await self._node.call(lambda life: life.p2p.publish(self._topic, message), SEND_S)
        except NetworkDown as error:
            log.debug("the clock was not gossiped: %s", error)
