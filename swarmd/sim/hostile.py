"""Hostile actors in a simulated swarm, one class for each kind of attack, each with its own random stream."""

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar

import msgspec

from swarmd.bounds import REAL_MAX
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.wire import records
from swarmd.sim.dht import BARE_BYTES, MEMBER_BYTES, RECORD_S, REPORT_BYTES, SWARM, PartitionStore, SimRecord
from swarmd.sim.guarded import AttackedNetworkWorker
from swarmd.sim.profile import parse_hostile_kinds
from swarmd.sim.simulation import Place
from swarmd.sim.swarm import SimSwarm

RENEW_S = RECORD_S / 3
GROUPS = 16


class HostileActor(ABC):
    """One kind of attack, by one or more identities."""

    kind: ClassVar[str]
    period_s: ClassVar[float] = 4.0

    def __init__(self, world: SimSwarm, random: Random) -> None:
        self.world = world
        self.dht = world.dht
        self.random = random

    def act_repeatedly(self) -> None:
        """Act now and periodically, on both sides of a partition."""
        self.world.call_in(self.random.uniform(0.5, 1.5) * self.period_s, self.act_repeatedly)
        for side in (0, 1) if self.dht.split else (0,):
            self.act(self.dht.stores[side], side)

    @abstractmethod
    def act(self, store: PartitionStore, side: int) -> None:
        """Attack once, on one side of a partition."""

    def current_stage(self, store: PartitionStore) -> Place | None:
        """Return the swarm's round and stage; None before the first or after the last."""
        return (
            None
            if store.clock_record is None or store.clock_record.final
            else (store.clock_record.round, store.clock_record.stage)
        )

    def write_membership(
        self, store: PartitionStore, peer: str, left: bool = False, size_bytes: int = MEMBER_BYTES
    ) -> SimRecord | None:
        """Write a membership. Returns None if there is no room."""
        content = records.Membership(SWARM, self.kind, f"of {peer}", self.world.now, leaving=left)
        return store.put_hostile_record(peer, content, size_bytes)

    def write_report(
        self,
        store: PartitionStore,
        ref: RolloutsRef,
        reward: float,
        report_bytes: int = REPORT_BYTES,
        rollouts_bytes: int = BARE_BYTES,
    ) -> SimRecord | None:
        """Write a report and the rollouts that it names. Returns None if there is no room."""
        if ref.groups and not self.write_rollouts(store, ref, rollouts_bytes):
            self.write_rollouts(store, ref)
        digest = ref.digest if ref.groups else ""
        content = records.ReportRecord(SWARM, ref.round, ref.stage, reward, digest, ref.size_bytes, ref.groups)
        return store.put_hostile_record(ref.peer, content, report_bytes)

    def write_rollouts(self, store: PartitionStore, ref: RolloutsRef, size_bytes: int = BARE_BYTES) -> SimRecord | None:
        """Write rollouts. Returns None if there is no room."""
        content = records.RolloutsRecord(SWARM, ref.round, ref.stage, ref.digest, ref.size_bytes, ref.groups)
        return store.put_hostile_record(ref.peer, content, size_bytes)

    def make_rollouts_ref(self, peer: str, place: Place, groups: int = GROUPS, size_bytes: int = 4096) -> RolloutsRef:
        """Return a reference to a stage's rollouts, which need not exist."""
        return RolloutsRef(peer, *place, f"{self.random.getrandbits(64):016x}", size_bytes, groups)

    def send_hints(self, side: int, record: SimRecord | None) -> None:
        """Send hints at a stored record to the workers that watch its key."""
        if record is None:
            return
        key, latency_s = record.content.key, self.world.profile.latency_s
        for worker in self.dht.watchers_of_key(key, side):
            delay_s = self.random.expovariate(1.0 / latency_s)
            worker.call_later(delay_s, worker.on_hint, key, record.owner, record.expiration)


class HostileMember(HostileActor):
    """A member that writes records in each stage, under identities `peers` with the usual proof of work."""

    count: ClassVar[int] = 1
    delay_s: ClassVar[tuple[float, float]] = (0.0, 0.0)  # between the opening of a stage and its report

    def __init__(self, world: SimSwarm, random: Random) -> None:
        super().__init__(world, random)
        self.peers = [f"{self.kind}-{number}" for number in range(self.count)]
        self._joined: dict[tuple[int, str], float] = {}
        self._due: dict[tuple[int, str], tuple[Place, float]] = {}  # when it reports on a stage
        self.dht.works.update(dict.fromkeys(self.peers, WORK_BITS))

    def act(self, store: PartitionStore, side: int) -> None:
        place, now = self.current_stage(store), self.world.now
        for peer in self.peers:
            here = (side, peer)
            if now >= self._joined.get(here, 0.0) + RENEW_S:
                self._joined[here] = now
                self.send_hints(side, self.write_membership(store, peer))
            if place is None:
                continue
            if self._due.get(here, (None, 0.0))[0] != place:
                self._due[here] = (place, now + self.random.uniform(*self.delay_s))
            if now >= self._due[here][1]:
                self.act_on_stage(store, side, peer, place)

    @abstractmethod
    def act_on_stage(self, store: PartitionStore, side: int, peer: str, place: Place) -> None:
        """Write records, once the report on this stage is due; called repeatedly while the stage is open."""


SIGNATURE_BYTES = 64
FRESH = 8  # identities that a flooder makes at each attack
HINTS = 20  # hints that each of them sends at once
VICTIMS = 0.6  # share of the nodes whose look-ups hostile peers surround all the time
ECLIPSE_S = (30.0, 120.0)  # duration of an eclipse in which a node receives only gossip
HONEST_STAGES = (3, 50)  # number of stages in which a turncoat takes part before it turns
TURNS = ("silent by turns", "gone", "equivocates", "leaves and returns")  # a turncoat's later behaviour
WORKED = 16  # identities of a crowd that have proof of work
FLAPPING = 24  # identities of a crowd that leave and come back at each attack


class Flooder(HostileActor):
    """Sends calls, hints and records that are refused, from new identities all the time, to every node."""

    kind = "flooder"
    period_s = 2.0
    _made = 0

    def act(self, store: PartitionStore, side: int) -> None:
        self._made += FRESH
        senders = [f"flooder-{self._made + number}" for number in range(FRESH)]
        for worker in self.dht.linked_workers_at(side):
            if isinstance(worker, AttackedNetworkWorker):
                worker.receive_hint_flood([*senders, "flooder-0"], HINTS)
                worker.count_rejections(senders, self.random.choice(("quota", "bad-signature", "malformed", "calls")))


class Eclipser(HostileActor):
    """Surrounds all keys that some nodes look up: they find only what their trusted peers know, and some of them
    nothing."""

    kind = "eclipser"
    period_s = 45.0

    def __init__(self, world: SimSwarm, random: Random) -> None:
        super().__init__(world, random)
        self._victims = [index for index in range(world.profile.nodes) if random.random() < VICTIMS]

    def act(self, store: PartitionStore, side: int) -> None:
        eclipsed, world = self.dht.eclipsed, self.world
        eclipsed.update(dict.fromkeys(self._victims, "keys"))
        followers = [node.index for node in world.nodes[1:] if node is not world.newcomer]
        if followers and "all" not in eclipsed.values() and self.random.random() < 0.2:
            alone = self.random.choice(followers)
            eclipsed[alone] = "all"
            world.call_in(self.random.uniform(*ECLIPSE_S), self._end_isolation, alone)

    def _end_isolation(self, alone: int) -> None:
        self.dht.eclipsed.pop(alone)
        if alone in self._victims:
            self.dht.eclipsed[alone] = "keys"


class Equivocator(HostileMember):
    """Signs another report of the same stage at each attack."""

    kind = "equivocator"
    period_s = 2.0

    def act_on_stage(self, store: PartitionStore, side: int, peer: str, place: Place) -> None:
        rollouts = self.make_rollouts_ref(peer, place)
        self.send_hints(side, self.write_report(store, rollouts, round(self.random.random(), 6)))


class FreeRider(HostileMember):
    """Reports the greatest reward at once, without rollouts or with another peer's."""

    kind = "freerider"
    count = 3

    def act_on_stage(self, store: PartitionStore, side: int, peer: str, place: Place) -> None:
        if not store.has_report(place, peer):
            others = store.rollouts_of_stage(place)
            claimed = (
                self.random.choice(others) if others else self.make_rollouts_ref(peer, place, groups=0, size_bytes=0)
            )
            self.send_hints(side, self.write_report(store, msgspec.structs.replace(claimed, peer=peer), 1.0))


class Poisoner(HostileMember):
    """Announces rollouts that cannot be fetched, and extreme numbers."""

    kind = "poisoner"
    period_s = 6.0

    def act_on_stage(self, store: PartitionStore, side: int, peer: str, place: Place) -> None:
        if not store.has_report(place, peer):
            reward = self.random.choice((REAL_MAX, -REAL_MAX, 5e-324, 0.0))
            rollouts = self.make_rollouts_ref(peer, place, groups=records.GROUPS_MAX, size_bytes=2**24)
            self.send_hints(side, self.write_report(store, rollouts, reward))


class TurncoatMember(HostileMember):
    """Takes part honestly for some stages, and then attacks with the credit that it has."""

    kind = "sleeper"
    delay_s = (2.0, 12.0)
    period_s = 3.0

    def __init__(self, world: SimSwarm, random: Random) -> None:
        super().__init__(world, random)
        self.honest_stages = random.randint(*HONEST_STAGES)
        self.turns_to = random.choice(TURNS)
        self._stages: set[Place] = set()

    def act_on_stage(self, store: PartitionStore, side: int, peer: str, place: Place) -> None:
        turned = len(self._stages) > self.honest_stages
        self._stages.add(place)
        reported = store.has_report(place, peer)
        if turned and self.turns_to == "equivocates":
            self.send_hints(side, self.write_report(store, self.make_rollouts_ref(peer, place), self.random.random()))
        elif turned and self.turns_to == "leaves and returns":
            self.send_hints(side, self.write_membership(store, peer, left=self.random.random() < 0.5))
        elif turned and (self.turns_to == "gone" or place[0] % 2):
            return
        elif not reported:
            self.send_hints(
                side, self.write_report(store, self.make_rollouts_ref(peer, place), round(self.random.random(), 6))
            )


class SybilCrowd(HostileActor):
    """A crowd of free identities: memberships that come and go, and records that fill the keys of coming rounds."""

    kind = "sybil"
    period_s = 10.0
    member_bytes: ClassVar[int] = records.PAYLOAD_BYTES_MAX["membership"] + SIGNATURE_BYTES
    report_bytes: ClassVar[int] = records.PAYLOAD_BYTES_MAX["report"] + SIGNATURE_BYTES
    rollouts_bytes: ClassVar[int] = records.PAYLOAD_BYTES_MAX["rollouts"] + SIGNATURE_BYTES

    def __init__(self, world: SimSwarm, random: Random) -> None:
        super().__init__(world, random)
        self.peers = [f"sybil-{number:04d}" for number in range(self.world.profile.crowd)]
        self.dht.works.update(dict.fromkeys(self.peers, 0))
        self.dht.works.update(dict.fromkeys(self.peers[:WORKED], WORK_BITS))
        self._filled: list[set[Place]] = [set(), set()]
        self._joined = [0.0, 0.0]

    def act(self, store: PartitionStore, side: int) -> None:
        if self.world.now >= self._joined[side] + RENEW_S:
            self._joined[side] = self.world.now
            for peer in self.peers:
                self.write_membership(store, peer, size_bytes=self.member_bytes)
        record = None
        for peer in self.random.sample(self.peers, min(FLAPPING, len(self.peers))):
            record = self.write_membership(store, peer, self.random.random() < 0.5, self.member_bytes) or record
        self.send_hints(side, record)
        place = self.current_stage(store)
        if place is not None:
            self._fill_stage_keys(store, side, place)

    def _fill_stage_keys(self, store: PartitionStore, side: int, place: Place) -> None:
        """Fill the keys of this and coming stages with reports and rollouts."""
        stages = self.world.profile.stages
        coming = [
            (round, stage) for round in range(place[0], place[0] + records.ROUNDS_AHEAD + 1) for stage in range(stages)
        ]
        for each in coming:
            if each in self._filled[side] or each < place:
                continue
            self._filled[side].add(each)
            refs = [RolloutsRef(peer, *each, "sybil", 40960, GROUPS) for peer in self.peers]
            for ref in refs:
                self.write_report(store, ref, 1.0, self.report_bytes, self.rollouts_bytes)
            for ref in refs:  # to the last byte
                if store.has_report(each, ref.peer) and not store.has_rollouts(each, ref.peer):
                    self.write_rollouts(store, ref)


ACTORS: dict[str, type[HostileActor]] = {
    actor.kind: actor for actor in (Flooder, Eclipser, Equivocator, FreeRider, Poisoner, TurncoatMember, SybilCrowd)
}


def start_actors(world: SimSwarm) -> None:
    for kind in parse_hostile_kinds(world.profile.hostile):
        actor = ACTORS[kind](world, Random(f"{world.seed}/{kind}"))
        world.call_in(actor.random.uniform(0.0, 60.0), actor.act_repeatedly)


def is_hostile(peer: str) -> bool:
    """Return whether a peer is not one of the honest nodes."""
    return not peer.startswith("peer-")
