"""What hostile actors have in common: identities, records that they write, and whom they tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, ClassVar

import msgspec

from swarmd.core.events import ReportSeen
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.sim.ports.dht import SimReport, Written
from swarmd.sim.strangers.stored_records import (
    BARE_BYTES,
    MEMBER_BYTES,
    RECORD_S,
    REPORT_BYTES,
    GuardedDht,
    GuardedStore,
    Place,
)

if TYPE_CHECKING:
    from swarmd.sim.strangers.hostile import Hostile

RENEW_S = RECORD_S / 3
GROUPS = 16


class Actor(ABC):
    """One kind of attack, by one or many identities.

    Args:
        hostile: where it takes part.
        random: its own.
    """

    kind: ClassVar[str]
    period_s: ClassVar[float] = 4.0

    def __init__(self, hostile: Hostile, random: Random) -> None:
        self.hostile = hostile
        self.world = hostile.world
        self.random = random

    @property
    def dht(self) -> GuardedDht:
        """The network."""
        dht = self.world.dht
        assert isinstance(dht, GuardedDht), "there are strangers in it"
        return dht

    def run(self) -> None:
        """Act now and again and again, on both sides of a partition."""
        self.world.call_in(self.random.uniform(0.5, 1.5) * self.period_s, self.run)
        for side in (0, 1) if self.dht.split else (0,):
            store = self.dht.stores[side]
            assert isinstance(store, GuardedStore), "all stores of a world are of one kind"
            self.act(store, side)

    @abstractmethod
    def act(self, store: GuardedStore, side: int) -> None:
        """Do what this kind does."""

    def place_of(self, store: GuardedStore) -> Place | None:
        """Where the swarm is."""
        return None if store.clock is None or store.clock.final else (store.clock.round, store.clock.stage)

    def join(
        self, store: GuardedStore, peer: str, left: bool = False, size_bytes: int = MEMBER_BYTES
    ) -> Written | None:
        """Write a membership; None where it finds no room."""
        return store.keep_member(peer, self.kind, left, size_bytes)

    def report(
        self,
        store: GuardedStore,
        rollouts: RolloutsRef,
        reward: float,
        report_bytes: int = REPORT_BYTES,
        rollouts_bytes: int = BARE_BYTES,
    ) -> Written | None:
        """Write a report and the rollouts that it names; None where it finds no room."""
        seen = seen_of(rollouts, reward)
        report = SimReport(seen, rollouts)
        if rollouts.groups and not store.keep_rollouts(report, rollouts_bytes):
            store.keep_rollouts(report, BARE_BYTES)
        return store.keep_report(report, report_bytes)

    def rollouts(self, peer: str, place: Place, groups: int = GROUPS, size_bytes: int = 4096) -> RolloutsRef:
        """A name for rollouts of a stage that there may be or not."""
        return RolloutsRef(peer, *place, f"{self.random.getrandbits(64):016x}", size_bytes, groups)

    def hint(self, side: int, record: Written | None) -> None:
        """Tell those who listen of a record that was kept."""
        if record is None:
            return
        key, latency_s = record.content.key, self.world.profile.latency_s
        for worker in self.dht.watching.get(key, ()):
            if worker.linked and worker.node.side == side:
                delay_s = self.random.expovariate(1.0 / latency_s)
                worker.later(delay_s, worker.take_hint, key, record.owner, record.expiration)


class Insider(Actor):
    """A member that writes something in each stage.

    Attributes:
        peers: its identities, which have done the work that every node does.
    """

    count: ClassVar[int] = 1
    delay_s: ClassVar[tuple[float, float]] = (0.0, 0.0)  # from the opening of a stage to its report

    def __init__(self, hostile: Hostile, random: Random) -> None:
        super().__init__(hostile, random)
        self.peers = [f"{self.kind}-{number}" for number in range(self.count)]
        self._joined: dict[tuple[int, str], float] = {}
        self._due: dict[tuple[int, str], tuple[Place, float]] = {}  # when it reports on a stage
        self.dht.works.update(dict.fromkeys(self.peers, WORK_BITS))

    def act(self, store: GuardedStore, side: int) -> None:
        place, now = self.place_of(store), self.world.now
        for peer in self.peers:
            here = (side, peer)
            if now >= self._joined.get(here, 0.0) + RENEW_S:
                self._joined[here] = now
                self.hint(side, self.join(store, peer))
            if place is None:
                continue
            if self._due.get(here, (None, 0.0))[0] != place:
                self._due[here] = (place, now + self.random.uniform(*self.delay_s))
            if now >= self._due[here][1]:
                self.on_stage(store, side, peer, place)

    @abstractmethod
    def on_stage(self, store: GuardedStore, side: int, peer: str, place: Place) -> None:
        """Write something, now that it is time for it in this stage; asked again and again while the stage is open."""


def seen_of(rollouts: RolloutsRef, reward: float) -> ReportSeen:
    """What others see of a report."""
    place = (rollouts.round, rollouts.stage)
    record = msgspec.msgpack.encode((rollouts.peer, *place, reward))
    return ReportSeen(rollouts.peer, *place, reward, rollouts.digest if rollouts.groups else "", record=record)
