"""What each hostile actor does to a simulated swarm."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from swarmd.bounds import REAL_MAX
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.wire.records import GROUPS_MAX, PAYLOAD_BYTES_MAX, ROUNDS_AHEAD, check_payload
from swarmd.errors import RecordRejected
from swarmd.sim.ports.dht import SimReport
from swarmd.sim.strangers.actor import GROUPS, RENEW_S, Actor, Insider, seen_of
from swarmd.sim.strangers.stored_records import BARE_BYTES, GuardedStore, Place

if TYPE_CHECKING:
    from swarmd.sim.strangers.hostile import Hostile

SIGNATURE_BYTES = 64
FRESH = 8  # identities that a flooder makes for each of its visits
HINTS = 20  # that each of them sends at once
VICTIMS = 0.6  # of the nodes: strangers stand beside what they search for, all the time
ECLIPSE_S = (30.0, 120.0)  # for so long one hears nothing but gossip
HONEST_STAGES = (3, 50)  # that a sleeper takes part in before it turns
TURNS = ("silent by turns", "gone", "equivocates", "leaves and returns")  # what a sleeper does then
WORKED = 16  # identities of a crowd for which somebody has done the work
FLAPPING = 24  # identities of a crowd that leave and come back at each visit
RIDERS = 3


class Flooder(Actor):
    """Calls, hints and records that are refused, by ever new identities, at every node."""

    kind = "flooder"
    period_s = 2.0

    def __init__(self, hostile: Hostile, random: Random) -> None:
        super().__init__(hostile, random)
        self._made = 0

    def act(self, store: GuardedStore, side: int) -> None:
        self._made += FRESH
        senders = [f"flooder-{self._made + number}" for number in range(FRESH)]
        for worker in self.hostile.workers(side):
            worker.flood([*senders, "flooder-0"], HINTS)
            worker.refuse(senders, self.random.choice(("quota", "bad-signature", "malformed", "calls")))


class Eclipser(Actor):
    """Stands beside all keys that some nodes search: they find what their guides know, and some of them nothing."""

    kind = "eclipser"
    period_s = 45.0

    def __init__(self, hostile: Hostile, random: Random) -> None:
        super().__init__(hostile, random)
        self._victims = [index for index in range(hostile.world.profile.nodes) if random.random() < VICTIMS]

    def act(self, store: GuardedStore, side: int) -> None:
        eclipsed, world = self.dht.eclipsed, self.world
        eclipsed.update(dict.fromkeys(self._victims, "keys"))
        followers = [node.index for node in world.nodes[1:] if node is not world.newcomer]
        if followers and "all" not in eclipsed.values() and self.random.random() < 0.2:
            alone = self.random.choice(followers)
            eclipsed[alone] = "all"
            world.call_in(self.random.uniform(*ECLIPSE_S), self._let_go, alone)

    def _let_go(self, alone: int) -> None:
        self.dht.eclipsed.pop(alone)
        if alone in self._victims:
            self.dht.eclipsed[alone] = "keys"


class Equivocator(Insider):
    """Signs another report of the same stage at each visit."""

    kind = "equivocator"
    period_s = 2.0

    def on_stage(self, store: GuardedStore, side: int, peer: str, place: Place) -> None:
        rollouts = self.rollouts(peer, place)
        self.hint(side, self.report(store, rollouts, round(self.random.random(), 6)))


class FreeRider(Insider):
    """Reports the greatest reward at once, with no rollouts or with another's."""

    kind = "freerider"
    count = RIDERS

    def on_stage(self, store: GuardedStore, side: int, peer: str, place: Place) -> None:
        if not store.has_report(place, peer):
            self.hint(side, self.report(store, self._claimed(store, peer, place), 1.0))

    def _claimed(self, store: GuardedStore, peer: str, place: Place) -> RolloutsRef:
        others = store.rollouts_at(place)
        if not others:
            return self.rollouts(peer, place, groups=0, size_bytes=0)
        return msgspec.structs.replace(self.random.choice(others), peer=peer)


class Poisoner(Insider):
    """Rollouts that cannot be had, and numbers at and beyond every bound."""

    kind = "poisoner"
    period_s = 6.0

    def on_stage(self, store: GuardedStore, side: int, peer: str, place: Place) -> None:
        self._write_beyond(side, peer, place)
        if not store.has_report(place, peer):
            reward = self.random.choice((REAL_MAX, -REAL_MAX, 5e-324, 0.0))
            rollouts = self.rollouts(peer, place, groups=GROUPS_MAX, size_bytes=2**24)
            self.hint(side, self.report(store, rollouts, reward))

    def _write_beyond(self, side: int, peer: str, place: Place) -> None:
        """Records that the shipped decoder must refuse."""
        field, value = self.random.choice(BEYOND)
        honest = {"kind": "report", "swarm": "sim", "round": place[0], "stage": place[1], "reward": 0.5}
        try:
            check_payload(msgspec.msgpack.encode(honest | {field: value}))
        except RecordRejected as error:
            for worker in self.hostile.workers(side):
                worker.refuse([peer], error.reason)
        else:
            self.world.fail(None, f"a report with {field} = {value!r} is taken")


BEYOND: tuple[tuple[str, Any], ...] = (
    ("reward", 1e308),
    ("reward", float("nan")),
    ("reward", float("inf")),
    ("groups", 2**64 - 1),
    ("groups", -1),
    ("round", 2**31),
    ("stage", 1024),
    ("size_bytes", 2**63),
    ("digest", "not a digest"),
    ("pad", b"x" * 512),
)


class Sleeper(Insider):
    """Takes part like anybody for some stages, and then does, with the credit that it has, what others do."""

    kind = "sleeper"
    delay_s = (2.0, 12.0)
    period_s = 3.0

    def __init__(self, hostile: Hostile, random: Random) -> None:
        super().__init__(hostile, random)
        self.honest_stages = random.randint(*HONEST_STAGES)
        self.turns_to = random.choice(TURNS)
        self._stages: set[Place] = set()

    def on_stage(self, store: GuardedStore, side: int, peer: str, place: Place) -> None:
        turned = len(self._stages) > self.honest_stages
        self._stages.add(place)
        reported = store.has_report(place, peer)
        if turned and self.turns_to == "equivocates":
            self.hint(side, self.report(store, self.rollouts(peer, place), self.random.random()))
        elif turned and self.turns_to == "leaves and returns":
            self.hint(side, self.join(store, peer, left=self.random.random() < 0.5))
        elif turned and (self.turns_to == "gone" or place[0] % 2):
            return
        elif not reported:
            self.hint(side, self.report(store, self.rollouts(peer, place), round(self.random.random(), 6)))


class Sybil(Actor):
    """A crowd of free identities: memberships that come and go, and all room under the keys of coming rounds."""

    kind = "sybil"
    period_s = 10.0
    member_bytes: ClassVar[int] = PAYLOAD_BYTES_MAX["membership"] + SIGNATURE_BYTES
    report_bytes: ClassVar[int] = PAYLOAD_BYTES_MAX["report"] + SIGNATURE_BYTES
    rollouts_bytes: ClassVar[int] = PAYLOAD_BYTES_MAX["rollouts"] + SIGNATURE_BYTES

    def __init__(self, hostile: Hostile, random: Random) -> None:
        super().__init__(hostile, random)
        self.peers = [f"sybil-{number:04d}" for number in range(hostile.crowd)]
        self.dht.works.update(dict.fromkeys(self.peers, 0))
        self.dht.works.update(dict.fromkeys(self.peers[:WORKED], WORK_BITS))
        self._filled: list[set[Place]] = [set(), set()]
        self._joined = [0.0, 0.0]

    def act(self, store: GuardedStore, side: int) -> None:
        if self.world.now >= self._joined[side] + RENEW_S:
            self._joined[side] = self.world.now
            for peer in self.peers:
                self.join(store, peer, size_bytes=self.member_bytes)
        record = None
        for peer in self.random.sample(self.peers, min(FLAPPING, len(self.peers))):
            record = self.join(store, peer, self.random.random() < 0.5, self.member_bytes) or record
        self.hint(side, record)
        place = self.place_of(store)
        if place is not None:
            self._fill(store, side, place)

    def _fill(self, store: GuardedStore, side: int, place: Place) -> None:
        """Reports and rollouts under the keys of this stage and of those to come."""
        stages = self.world.profile.stages
        coming = [(round, stage) for round in range(place[0], place[0] + ROUNDS_AHEAD + 1) for stage in range(stages)]
        for each in coming:
            if each in self._filled[side] or each < place:
                continue
            self._filled[side].add(each)
            refs = [RolloutsRef(peer, *each, "sybil", 40960, GROUPS) for peer in self.peers]
            for ref in refs:
                self.report(store, ref, 1.0, self.report_bytes, self.rollouts_bytes)
            for ref in refs:  # to the last byte
                if store.has_report(each, ref.peer) and not store.has_rollouts(each, ref.peer):
                    store.keep_rollouts(SimReport(seen_of(ref, 1.0), ref), BARE_BYTES)


ACTORS: dict[str, type[Actor]] = {
    actor.kind: actor for actor in (Flooder, Eclipser, Equivocator, FreeRider, Poisoner, Sleeper, Sybil)
}
