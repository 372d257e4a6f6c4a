"""A gossip topic: messages of others come in for as long as p2pd lives, own ones go out in the background."""

from __future__ import annotations

from collections.abc import Callable

from swarmd.dht.background import spawn
from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.errors import NetworkDown
from swarmd.logger import get_logger

PUBLISH_S = 2.0

log = get_logger(__name__)


class Topic:
    """One gossip topic: received messages are read in order, own ones sent in the background.

    Args:
        node: whose p2pd gossips.
        name: of the topic.
    """

    def __init__(self, node: DhtNode, name: str) -> None:
        self._node = node
        self._name = name

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        """Have each message taken, with its sender, whose peer id p2pd has authenticated; own ones come back too."""

        async def attend(life: NodeRun) -> None:
            async for sender, message in life.p2p.subscribe(self._name):
                take(sender, message)

        self._node.attendants.append(attend)

    def publish(self, message: bytes) -> None:
        """Send a message in the background; one that is lost costs time, nothing else."""
        spawn(self.send(message))

    async def send(self, message: bytes) -> None:
        """Send a message, if the network is up."""
        try:
            await self._node.call(lambda life: life.p2p.publish(self._name, message), PUBLISH_S)
        except NetworkDown as error:
            log.debug("nothing was sent on %s: %s", self._name, error)
