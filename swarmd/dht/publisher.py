"""Publishing own records: stored, read back from another peer, told to all, and kept alive."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import anyio

from swarmd.dht.background import spawn
from swarmd.dht.clock_watch import ClockWatch
from swarmd.dht.hive import DHTID, PeerID
from swarmd.dht.identity import Identity
from swarmd.dht.lookup import INDEPENDENT, REPLICAS, holds, local, lookup, spread
from swarmd.dht.node import Life, Node
from swarmd.dht.records import Membership, Payload, Signed, is_far, sign
from swarmd.dht.shelf import Shelf
from swarmd.errors import NetworkDown, RecordRejected

ATTEMPTS = 3
LOOK_S = 0.25
STEP_S = 0.001  # the least by which an expiration exceeds the one before
RENEWALS = 3  # within a record's life
COMPANY_S = 5.0  # after a start, for peers to be found before records are published again

log = logging.getLogger(__name__)


class Publisher:
    """Writes this node's records.

    Args:
        node: where to.
        identity: signs them.
        shelf: remembers them.
        ttl_s: how long a record lives.
        alone: may this node be the swarm's first, so that its own storage is proof enough while there is no peer?
        told: called with every record as soon as a peer has it, to hint at it.
    """

    def __init__(
        self,
        node: Node,
        identity: Identity,
        shelf: Shelf,
        ttl_s: float,
        alone: bool,
        told: Callable[[Signed], None],
    ) -> None:
        self._node = node
        self._identity = identity
        self._shelf = shelf
        self._ttl_s = ttl_s
        self._alone = alone
        self._told = told
        self._floors: dict[str, float] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._clock = ClockWatch()
        self._live: dict[str, Payload] = {
            content.key: content for content in shelf.contents() if not isinstance(content, Membership)
        }

    def remembers(self, kind: type[Payload]) -> bool:
        """Whether a record of this kind was published from this data directory lately."""
        return any(isinstance(content, kind) for content in self._live.values())

    async def publish(self, content: Payload) -> Signed:
        """Publish a record and prove that it is there.

        Raises:
            NetworkDown: the network is down, or too few peers could show the record; it may be published again.
            RecordRejected: the record itself cannot count.
        """
        async with self._lock_of(content.key):
            return await self._publish(content)

    def _lock_of(self, key: str) -> anyio.Lock:
        """One record of a key at a time: a renewal must not overtake the record that replaces it."""
        self._locks = {other: lock for other, lock in self._locks.items() if other in self._live or lock.locked()}
        return self._locks.setdefault(key, anyio.Lock())

    async def _publish(self, content: Payload) -> Signed:
        for _ in range(ATTEMPTS):
            signed = sign(self._identity, content, self._expiration(content.key))
            await self._remember(content, signed)  # first: some peer may have it, though none shows it in time
            later = await self._node.call(partial(self._place, content.key, signed))
            if later is None:
                return signed
            self._floors[content.key] = later.expiration
        raise NetworkDown(f"{content.key} keeps being overwritten under this node's own identity")

    def _expiration(self, key: str) -> float:
        """Later than all before under this key, but for those that nobody takes: of a clock that was ahead."""
        now = time.time()
        floor = max(self._floors.get(key, 0.0), self._shelf.floor(key)) + STEP_S
        return now + self._ttl_s if is_far(floor, now) else max(now + self._ttl_s, floor)

    async def _remember(self, content: Payload, signed: Signed) -> None:
        """From now on this is what is renewed, after a restart too, and nothing older under its key."""
        self._floors.pop(content.key, None)
        self._live.pop(content.key, None)
        self._live[content.key] = content
        self._shelf.keep(content, signed.expiration)
        kept = {kept.key for kept in self._shelf.contents()}
        self._live = {key: content for key, content in self._live.items() if key in kept}
        await self._shelf.save()

    async def _place(self, key: str, signed: Signed, life: Life) -> Signed | None:
        """Store and read back. Returns a later record of this node's own that is in the way, if there is one."""
        try:
            life.dht.protocol.storage.admit(local(life, key).key, signed)
        except RecordRejected:
            held = local(life, key).records.get(signed.owner)
            if held is not None:
                return held
            raise
        found = local(life, key)
        near = found.nearest(REPLICAS)
        if not near:
            await self._prove_alone(life)
            self._told(signed)  # clients are in nobody's table, and listen
            return None
        guides = dict(found.guides(()))
        peers = {**dict(near), **guides}
        took = await spread(life, key, signed, peers.values())
        if took:
            self._told(signed)
        later = await self._prove(life, key, signed, took or list(peers.values()), list(guides.values()))
        if later is None:
            self._settle(life, key, signed, set(peers))
        return later

    async def _prove(
        self, life: Life, key: str, signed: Signed, peers: list[PeerID], guides: list[PeerID]
    ) -> Signed | None:
        """Read the record back: one that this node trusts shows it, or as many others as there are, up to two.

        A single stranger might show it to its writer only.

        Returns:
            A later record of this node's own that a peer has instead, if there is one.

        Raises:
            NetworkDown: too few show it.
        """
        peers = sorted(peers, key=lambda peer: peer not in guides)
        shown = 0
        for peer in peers:
            seen, later = await holds(life, peer, key, signed)
            if later is not None:
                return later
            shown += seen
            if shown >= INDEPENDENT or (seen and (peer in guides or len(peers) == 1)):
                return None
        who = f"only one of {len(peers)} peers" if shown else "no peer"
        raise NetworkDown(f"{who} could show {key} after it was stored")

    async def _prove_alone(self, life: Life) -> None:
        if not self._alone:
            raise NetworkDown("there is no peer to keep a record")
        await life.p2p._client.identify()  # with a dead p2pd hivemind stores locally and calls it success

    def _settle(self, life: Life, key: str, signed: Signed, stored: set[DHTID]) -> None:
        """In the background, find the peers truly nearest to the key and store there too."""
        spawn(self._store_nearest(life, key, signed, stored))

    async def _store_nearest(self, life: Life, key: str, signed: Signed, stored: set[DHTID]) -> None:
        try:
            found = await lookup(life, key)
            further = [peer for node_id, peer in found.nearest(REPLICAS) if node_id not in stored]
            await spread(life, key, signed, further)
        except Exception as error:
            log.debug("%s was not spread further: %r", key, error)

    async def run(self) -> None:
        """Publish every live record again: thrice in its life, when p2pd was started anew, when peers are back, when
        this machine's clock was set."""
        while True:
            life = await self._node.wait_up()
            with anyio.move_on_after(COMPANY_S):
                await self._disturbed(life, lonely=True)
            await self._renew_all()
            with anyio.move_on_after(self._ttl_s / RENEWALS):
                await self._disturbed(life, lonely=False)

    async def _disturbed(self, life: Life, lonely: bool) -> None:
        """Wait until p2pd is gone, until a lonely node has peers, or until somebody sets this machine's clock."""
        while self._node.life is life and not (lonely and life.peers) and not self._clock.step_s():
            lonely = lonely or not life.peers
            await anyio.sleep(LOOK_S)

    async def _renew_all(self) -> None:
        for content in list(self._live.values()):
            try:
                async with self._lock_of(content.key):
                    if self._live.get(content.key) is content:  # it may have been replaced meanwhile
                        await self._publish(content)
            except (NetworkDown, RecordRejected) as error:
                log.info("%s was not renewed: %s", content.key, error)
