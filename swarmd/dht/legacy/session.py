"""The parts of the network worker in a legacy network: no hints, no bodies by stream, no signatures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

import anyio

from swarmd.core.events import MemberSeen
from swarmd.dht.identity.identity import is_peer_id
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.guard import CLOCK_ID, LegacyGuard
from swarmd.dht.legacy.newcomers import Newcomers
from swarmd.dht.legacy.protocol import install_legacy
from swarmd.dht.legacy.publisher import LegacyPublisher
from swarmd.dht.legacy.records import read_reward
from swarmd.dht.legacy.search import Findings, Read, search
from swarmd.dht.link import LinkReporter
from swarmd.dht.p2p.multiaddrs import readable
from swarmd.dht.p2p.node import DhtNode
from swarmd.dht.p2p.peers import Rejoin
from swarmd.dht.session import Session, node_settings
from swarmd.dht.wire.records import RecordPolicy
from swarmd.errors import IdentityError, NetworkDown, RecordRejected

NOTE_S = 5.0
REFUSED_KEPT = 4096
SLACK_S = 0.5  # a search ends so long before the call that waits for it
BEAM = 20

T = TypeVar("T")


class LegacySession(Session):
    """The parts, wired."""

    publisher: LegacyPublisher  # type: ignore[assignment]

    def _build(self) -> None:
        self._check()
        install_legacy()
        dht, paths = self.config.dht, self.paths
        self.policy = RecordPolicy(self.swarm, self.coordinator, dht.members, self.peer_id)
        guard = LegacyGuard(self.rejections, self._stored)
        self.node = DhtNode(node_settings(self.config, paths, self.peer_id), guard, self._down, self.door)
        self.node.port = self.book.port
        self.rejoin = Rejoin(self.node, self.book)
        self.publisher = LegacyPublisher(self.node, guard, self.coordinating)
        self.link = LinkReporter(self.node, self.rejoin, self.coordinating, self.emit)
        self.clock_stored = asyncio.Event()  # set when a peer stores the clock with this node: as good as a hint
        self._newcomers = Newcomers()
        self._refused: dict[int, None] = {}  # the latest bad records that were found

    def _check(self) -> None:
        if not self.identity.kind.startswith("rsa-"):
            raise IdentityError(
                f"the identity {self.peer_id} is {self.identity.kind}; peers of RL Swarm v0.4 have RSA keys",
                "Put the node's swarm.pem in its place (`swarmd identity import`), or make one with "
                "`swarmd identity new --rsa`",
            )

    def parts(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """What runs for as long as the session does."""
        return (self.node.run, self.link.run, self.publisher.run, self._tell_rejections, self._note_addresses)

    async def _note_addresses(self) -> None:
        """Remember where peers are, to find them again when the bootstrap nodes are gone: no record tells it here."""
        while True:
            await anyio.sleep(NOTE_S)
            try:
                connected = await self.node.call(lambda life: life.p2p.list_peers())
            except NetworkDown:
                continue
            for peer in connected:
                self.book.meet(peer.peer_id.to_base58(), filter(is_direct, readable(peer.addrs)))

    def _stored(self, key: bytes) -> None:
        if key == CLOCK_ID:
            self.clock_stored.set()

    def refuse(self, error: RecordRejected) -> None:
        """Count a record whose writer nobody can know."""
        self.rejections.count("", error.reason, error.message)

    async def find(self, name: str, read: Read[T], beam: int = BEAM, timeout_s: float | None = None) -> Findings[T]:
        """Read a key. Raises NetworkDown; that nobody answered is told by `Findings.answered`."""
        call_s = timeout_s or self.config.dht.call_s
        until = asyncio.get_running_loop().time() + max(call_s - SLACK_S, call_s / 2)
        refused = partial(self.refuse_once, name)
        return await self.node.call(lambda life: search(life, name, beam, until, read, refused), call_s)

    def refuse_once(self, name: str, subkey: str | None, value: bytes, error: RecordRejected) -> None:
        """Count a refused record; it is found again with every look at its key, and counts once."""
        record = hash((name, subkey, value))
        if record not in self._refused:
            self.refuse(error)
        self._refused[record] = None
        if len(self._refused) > REFUSED_KEPT:
            del self._refused[next(iter(self._refused))]

    async def find_rewards(
        self, round: int, stage: int, beam: int = BEAM, timeout_s: float | None = None
    ) -> Findings[float]:
        """The rewards of a stage. Whoever has one is a member. Raises NetworkDown."""
        found = await self.find(keys.rewards(round, stage), self._read_reward, beam, timeout_s)
        self.meet(found.entries)
        return found

    def _read_reward(self, subkey: str | None, encoded: bytes) -> float:
        if subkey is None:
            raise RecordRejected("malformed", "a plain value where peers have their rewards")
        if not is_peer_id(subkey):
            raise RecordRejected("unowned", "a reward of nobody")
        if not self.policy.admits(subkey):
            raise RecordRejected("not-a-member", f"{subkey} is not on the members list")
        return read_reward(encoded)

    def meet(self, peers: Iterable[str]) -> None:
        """Tell of newcomers, once each. v0.4 has no other sign of membership than a reward."""
        for peer in self._newcomers.among(peers):
            self.emit(MemberSeen(peer))


def is_direct(address: str) -> bool:
    """Does a multiaddr lead to the peer itself, and not through a relay?"""
    return "p2p-circuit" not in address
