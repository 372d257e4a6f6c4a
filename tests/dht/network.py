"""A network for one node without any network: the shipped view, and records that a test stores."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from swarmd.config import Config, SwarmConfig
from swarmd.core.events import Event
from swarmd.dht.gossip import Gossip
from swarmd.dht.p2p.limits import PeerCheck
from swarmd.dht.ports import OwnNode
from swarmd.dht.record_store import RecordStore
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire.records import Record
from swarmd.sim.coroutines import VirtualRuntime
from swarmd.worker.runtime import LoopRuntime, Runtime

ME = "me"


class VirtualTime:
    """Time that passes as a test says.

    Args:
        now: where it begins; any POSIX seconds will do.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self.runtime = VirtualRuntime(self.later, self, self)

    def __call__(self) -> float:
        return self.now

    def later(self, delay_s: float, act: Callable[..., None], /, *args: Any) -> None:
        """Have something done after a while."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), act, args))

    def run(self, s: float) -> None:
        """So many seconds pass."""
        until = self.now + s
        while self._due and self._due[0][0] <= until:
            self.now, _, act, args = heapq.heappop(self._due)
            act(*args)
        self.now = until


class Kept(NamedTuple):
    """What a look-up has brought, see `swarmd.dht.ports.LookupResult`."""

    records: Mapping[str, Record]
    answered: bool = True

    def has_all(self, wanted: Mapping[str, float]) -> bool:
        return wanted.keys() <= self.records.keys()


class KeptRecords(RecordStore):
    """Records that a test keeps, by key and owner; nothing of it takes time.

    Attributes:
        read: keys that were read whole, one after another.
        asked: keys of which one owner's record was asked for.
    """

    def __init__(self, view: SwarmView) -> None:
        super().__init__(view)
        self.kept: dict[str, dict[str, Any]] = {}
        self.read: list[str] = []
        self.asked: list[str] = []

    def keep(self, record: Any) -> str:
        """Keep a record, as peers do. Returns its key."""
        self.kept.setdefault(record.content.key, {})[record.owner] = record
        return str(record.content.key)

    async def wait_until_up(self) -> None:
        """It is."""

    async def find_records(self, name: str, wanted: Mapping[str, float] | None = None) -> Kept:
        self.read.append(name)
        return Kept(dict(self.kept.get(name, {})))

    async def find_records_by_owners(
        self, name: str, owners: Collection[str], wanted: Collection[str] | None = None
    ) -> Kept:
        """They lie here already: nobody is asked for them."""
        return Kept({owner: self.kept[name][owner] for owner in owners}, answered=False)

    async def find_record_by_owner(self, name: str, owner: str) -> Kept:
        self.asked.append(name)
        found = self.kept.get(name, {})
        return Kept({owner: found[owner]} if owner in found else {})

    def store_locally(self, name: str, record: Record) -> None:
        """Nobody asks this node."""

    def check_gossiped_record(self, name: str, record: Record) -> Record:
        return record

    async def ping_peer(self, peer: str) -> bool:
        return True

    def cpu_time_s(self) -> float:
        return 0.0


class Network:
    """One node's view of its swarm, its records and gossip.

    Attributes:
        events: what was told to the daemon.
        barred: (peer, round) of which nothing counts.

    Args:
        config: of the node; the coordinator's of a swarm "s" if not given.
        runtime: the clock; the event loop's if not given.
        seniority: see `SwarmView`.
    """

    def __init__(
        self,
        config: Config | None = None,
        runtime: Runtime | None = None,
        seniority: Callable[[PeerCheck], Any] = Seniority,
    ) -> None:
        config = config or Config(SwarmConfig(id="s"), role="coordinator")
        runtime = runtime or LoopRuntime()
        self.events: list[Event] = []
        self.barred: set[tuple[str, int]] = set()
        self.view = SwarmView(config, ME, "nonce", runtime, Random(1), self.events.append, seniority=seniority)
        self.store = KeptRecords(self.view)
        bans = lambda peer, round: (peer, round) in self.barred  # noqa: E731
        self.gossip = cast(Gossip, SimpleNamespace(evidence=SimpleNamespace(is_banned=bans)))
        self.node = cast(OwnNode, SimpleNamespace(remember_addresses=lambda *where: None))


async def take_anybody(peer: str) -> None:
    """Everybody is a member."""
