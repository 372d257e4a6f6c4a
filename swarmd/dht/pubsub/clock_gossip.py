"""The clock record by other ways than the DHT: gossiped by the coordinator, and by whoever heard it otherwise.

It is worth as much from a stranger as from the coordinator, for it is signed: whoever hears any honest peer hears it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from swarmd.dht.limits import GossipLimits, Rate
from swarmd.dht.ports import PeerCheck, Record, RecordSink, Topic
from swarmd.dht.wire.records import decode_signed
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import Runtime

MESSAGE_BYTES_MAX = 2048
SENDER = Rate(burst=20.0, per_s=2.0)
ALL = Rate(burst=200.0, per_s=50.0)  # of all senders: each message costs a signature's check
HEARD_KEPT = 16  # messages that need not be judged again
HEARD_ELSEWHERE_S = 1.0  # longest wait before it is passed on, in which others may have done so


class ClockGossip:
    """Sends and receives the clock record on a topic of its own. No hivemind in it.

    Args:
        topic: of its own.
        heard: called with a record that may be the clock's; raises RecordRejected where it does not count.
        refused: called with sender and error.
        known: has the swarm credited this peer, or does it need no credit? The others leave it room.
        runtime: the clock.
        random: chance.
    """

    def __init__(
        self,
        topic: Topic,
        heard: RecordSink,
        refused: Callable[[str, RecordRejected], None],
        known: PeerCheck,
        runtime: Runtime,
        random: Random,
    ) -> None:
        self._topic = topic
        self._heard = heard
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
            self._refused(sender, error)
        else:
            self._heard_lately.append(message)
            self._latest = max(self._latest, signed.expiration)

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
