"""Bounds connections by peer and by address, and reports the state of the link to the daemon.

- p2pd's own connection manager bounds only the total number of connections and ignores addresses. So
  `ConnectionLimiter` checks them every few seconds and disconnects peers that exceed a bound, unknown and newly
  connected peers first; it disconnects peers that `PeerLimits` marks as unwanted immediately.
- `LinkReporter` reports whether the link to the DHT is up, degraded or down, without a report for every change in the
  number of peers.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import anyio

from swarmd.core.events import LinkDegraded, LinkDown, LinkUp
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.p2p.limits import PeerBounds, PeerLimits
from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.dht.p2p.peers import RejoinLoop
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.tasks import spawn_in_background

LOOK_S = 2.0
OUT_S = 60.0  # time before a peer that was disconnected for misbehaviour may connect again
CLOSE_S = 15.0  # p2pd waits 10 s for a peer that reads nothing

Place = tuple[str, str]  # (peer id, address prefix) of one connection

LINK_LOOK_S = 0.2
CALM_S = 2.0  # between two reports of a changed number of peers, and before the loss of the last peer counts
CALM_MAX_S = 60.0

log = get_logger(__name__)


class ConnectionLimiter:
    """Enforces `connections_max` while p2pd runs; one address prefix may have half of them."""

    def __init__(self, node: DhtNode, peer_limits: PeerLimits, connections_max: int) -> None:
        self._peer_limits = peer_limits
        self._bounds = PeerBounds(4, max(connections_max // 2, 1), connections_max)
        self._since: dict[str, float] = {}  # when a connected peer was first seen
        self._leaving: set[str] = set()  # being disconnected
        self._unwanted = anyio.Event()  # set when there is an unwanted peer
        peer_limits.on_unwanted = lambda: self._unwanted.set()
        node.attendants.append(self.watch)

    async def watch(self, run: NodeRun) -> None:
        """Check connections at intervals and close unwanted ones at once, until cancelled."""
        looked_at = 0.0
        while True:
            now = anyio.current_time()
            if now - looked_at >= LOOK_S:
                looked_at = now
                await self._check_connections(run, now)
            self._unwanted = anyio.Event()
            self._disconnect_unwanted(run, now)
            with anyio.move_on_after(looked_at + LOOK_S - now):
                await self._unwanted.wait()

    async def disconnect_unknown_peers(self, run: NodeRun, all_strangers: bool) -> int:
        """Disconnect peers unknown to this node, with `all_strangers` even those being served; returns how many."""
        places = await run.p2p.control.list_connections()
        strangers = {peer for peer, _ in places if not self._peer_limits.remote_peer_of(peer).known}
        going = {peer for peer in strangers if all_strangers or not self._peer_limits.is_served(peer)}
        for peer in going:
            self._disconnect(run, peer)
        return len(going)

    async def _check_connections(self, run: NodeRun, now: float) -> None:
        places = await run.p2p.control.list_connections()
        self._peer_limits.note_connections(places)
        connected = self._peer_limits.connected
        self._since = {peer: self._since.get(peer, now) for peer in connected}
        for peer in [peer for peer, until in self._peer_limits.out.items() if until <= now]:
            del self._peer_limits.out[peer]
        for peer in connected & self._peer_limits.out.keys():
            self._disconnect(run, peer)
        for peer in self.find_surplus_peers(places):
            self._peer_limits.count_refusal(peer, "connections", "too many connections")
            self._disconnect(run, peer)

    def find_surplus_peers(self, places: Iterable[Place]) -> list[str]:
        """Return peers whose connections exceed a bound; known peers and earlier connections have priority."""
        connections, prefixes, total, surplus = Counter(places), Counter[str](), 0, []
        peers = Counter(peer for peer, _ in connections.elements())
        for (peer, prefix), count in sorted(connections.items(), key=lambda each: self._sort_key(each[0][0])):
            over = peers[peer] > self._bounds.peer or prefixes[prefix] + count > self._bounds.prefix
            if over or total + count > self._bounds.all:
                surplus.append(peer)
            else:
                prefixes[prefix] += count
                total += count
        return surplus

    def _sort_key(self, peer: str) -> tuple[bool, float]:
        return not self._peer_limits.remote_peer_of(peer).known, self._since.get(peer, 0.0)

    def _disconnect_unwanted(self, run: NodeRun, now: float) -> None:
        while self._peer_limits.unwanted:
            peer = self._peer_limits.unwanted.pop()
            if peer not in self._peer_limits.out:
                log.info("%s is disconnected: it goes on though it is refused", peer)
            if not self._peer_limits.remote_peer_of(peer).known:
                self._peer_limits.out.setdefault(peer, now + OUT_S)
            self._disconnect(run, peer)

    def _disconnect(self, run: NodeRun, peer: str) -> None:
        """Start to disconnect a peer in the background: p2pd waits for peers that do not read."""
        if peer not in self._leaving:
            self._leaving.add(peer)
            spawn_in_background(self._close_connection(run, peer))

    async def _close_connection(self, run: NodeRun, peer: str) -> None:
        try:
            with anyio.move_on_after(CLOSE_S):
                await run.p2p.control.disconnect(PeerID.from_base58(peer))
        finally:
            self._leaving.discard(peer)


class LinkReporter:
    """Reports to the daemon whether the DHT link is up, degraded or down. `alone`: the link counts as up without peers,
    as the coordinator's does. `isolation` maps the number of peers to the reason why the node counts as cut off, or "".
    """

    def __init__(
        self, node: DhtNode, rejoin: RejoinLoop, alone: bool, emit: EventSink, isolation: Callable[[int], str]
    ) -> None:
        self._node = node
        self._rejoin = rejoin
        self._alone = alone
        self._emit = emit
        self._isolation = isolation
        self._told: LinkUp | LinkDegraded | LinkDown | None = None
        self._told_at = 0.0
        self._up_at = 0.0  # when the link last came up
        self._run: NodeRun | None = None
        self._seen_at = 0.0  # when the routing table last held a peer, or p2pd started

    def report_down(self, reason: str) -> None:
        """Report that p2pd is lost or does not start, once for each reason."""
        event = LinkDown(reason)
        if self._told != event:
            self._report(event)

    async def run(self) -> None:
        """Check the link at intervals and report changes until cancelled."""
        while True:
            await self._node.wait_until_up()
            await self._check_link()
            await anyio.sleep(LINK_LOOK_S)

    async def _check_link(self) -> None:
        peers, now = self._node.peer_count, anyio.current_time()
        if peers or self._run is not self._node.p2pd_run:
            self._seen_at, self._run = now, self._node.p2pd_run
        up = self._told if isinstance(self._told, LinkUp) else None
        if peers or self._alone:
            why = self._isolation(peers)
            if up is None or bool(why) != bool(up.isolated) or self._is_worth_reporting(up.peers, peers, now):
                addresses = await self._node.addresses()
                if self._node.p2pd_run is not None:
                    self._report(LinkUp(self._node.peer_count, addresses, why))
        elif self._rejoin.rounds > 0 and now - self._seen_at > CALM_S and not isinstance(self._told, LinkDegraded):
            self._report(LinkDegraded("no peer answers; bootstrap and known peers are tried again and again"))

    def _is_worth_reporting(self, told: int, peers: int, now: float) -> bool:
        """Return whether a changed number of peers must be reported; changes from or to 0 are reported soon."""
        if peers and told:
            calm_s = min(max(CALM_S, (now - self._up_at) / 10), CALM_MAX_S)  # longer if the link has been up for long
            return peers != told and now - self._told_at > calm_s
        return peers != told and (peers > 0 or now - self._seen_at > CALM_S)

    def _report(self, event: LinkUp | LinkDegraded | LinkDown) -> None:
        now = anyio.current_time()
        if not isinstance(self._told, LinkUp):
            self._up_at = now
        self._told, self._told_at = event, now
        self._emit(event)
