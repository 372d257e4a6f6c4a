"""Telling the daemon how the link is: up, degraded, down; changes only, and not too often."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from swarmd.core.events import LinkDegraded, LinkDown, LinkUp
from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.dht.p2p.peers import Rejoin
from swarmd.worker.messages import EventSink

LOOK_S = 0.2
CALM_S = 2.0  # between two reports of a changed number of peers, and before the loss of the last peer is believed
CALM_MAX_S = 60.0


class LinkReporter:
    """Reports to the daemon whether the DHT link is up, degraded or down.

    Args:
        node: watched.
        rejoin: tells whether peers have been looked for at all.
        alone: the coordinator's link is up without peers.
        emit: takes the events.
        isolation: why a node with so many peers counts as cut off, empty when it does not.
    """

    def __init__(
        self,
        node: DhtNode,
        rejoin: Rejoin,
        alone: bool,
        emit: EventSink,
        isolation: Callable[[int], str] = lambda peers: "",
    ) -> None:
        self._node = node
        self._rejoin = rejoin
        self._alone = alone
        self._emit = emit
        self._isolation = isolation
        self._told: LinkUp | LinkDegraded | LinkDown | None = None
        self._told_at = 0.0
        self._up_at = 0.0  # when the link last came up
        self._life: NodeRun | None = None
        self._seen_at = 0.0  # when a peer was last in the table, or when p2pd started

    def down(self, reason: str) -> None:
        """p2pd is lost or does not start; the same reason is told once."""
        event = LinkDown(reason)
        if self._told != event:
            self._report(event)

    async def run(self) -> None:
        """Check the link at intervals and report changes until cancelled."""
        while True:
            await self._node.wait_up()
            await self._look()
            await anyio.sleep(LOOK_S)

    async def _look(self) -> None:
        peers, now = self._node.peers, anyio.current_time()
        if peers or self._life is not self._node.life:
            self._seen_at, self._life = now, self._node.life
        up = self._told if isinstance(self._told, LinkUp) else None
        if peers or self._alone:
            why = self._isolation(peers)
            if up is None or bool(why) != bool(up.isolated) or self._is_news(up.peers, peers, now):
                addresses = await self._node.addresses()
                if self._node.life is not None:
                    self._report(LinkUp(self._node.peers, addresses, why))
        elif self._is_lonely(now):
            self._report(LinkDegraded("no peer answers; bootstrap and known peers are tried again and again"))

    def _is_news(self, told: int, peers: int, now: float) -> bool:
        """That the last peer is gone, or one is there again, is told soon: a coordinator goes by it."""
        if peers and told:
            return peers != told and now - self._told_at > self._calm_s(now)
        return peers != told and (peers > 0 or now - self._seen_at > CALM_S)

    def _calm_s(self, now: float) -> float:
        """The longer the link has been up, the rarer a changed number of peers is news."""
        return min(max(CALM_S, (now - self._up_at) / 10), CALM_MAX_S)

    def _is_lonely(self, now: float) -> bool:
        """Long enough without a peer, after looking for one, to say so; once."""
        looked = self._rejoin.rounds > 0 and now - self._seen_at > CALM_S
        return looked and not isinstance(self._told, LinkDegraded)

    def _report(self, event: LinkUp | LinkDegraded | LinkDown) -> None:
        now = anyio.current_time()
        if not isinstance(self._told, LinkUp):
            self._up_at = now
        self._told, self._told_at = event, now
        self._emit(event)
