"""Attackers of whole nodes: each connects to all of them and takes turns until it is told to rest.

A turn is cut off where it takes too long, and whatever it raises is its own affair: what counts is what the nodes make
of it.
"""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from zlib import compress

import msgspec

from swarmd.config import SwarmConfig
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership, Payload, ReportRecord, RolloutsRecord, SignedRecord
from swarmd.swarms.plan import NO_MATERIAL, Plan, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, encode_rollouts
from tests.dht.driver import SWARM
from tests.dht.making import DIGEST, forged, signed_by
from tests.dht.outsider import Outsider
from tests.hostile import floods
from tests.hostile.crowd import Crowd
from tests.hostile.eclipser import Eclipser
from tests.hostile.worked import with_work, worked

ARRIVALS = 5  # tries
TURN_S = 10.0  # longest
PAUSE_S = 0.05  # between turns
LARGE = b"x" * 48 * 1024
LARGE_RECORDS = 20  # under the key that is asked for, of identities that have worked
HALF_OPEN = 300  # connections whose handshake does not go on
FREE = 400  # identities that fill keys, beside those that have done a little work
MEMBERSHIPS = 4300
MEMBERSHIP_S = 25.0
REWRITERS = 6  # connections of one member
STREAMS = 2500

Turn = Callable[[int], Awaitable[None]]


class Actor:
    """One kind of attacker.

    Args:
        root: for sockets.
        addresses: of all nodes, the coordinator's first.
    """

    def __init__(self, root: Path, addresses: Sequence[str]) -> None:
        self._root = root
        self.addresses = addresses
        self.outsiders: list[Outsider] = []
        self._completed: set[int] = set()

    async def arrive(self) -> None:
        """Connect: by default with one identity to each node."""
        for number, address in enumerate(self.addresses):
            await self.add(Outsider(self._root / str(number)), address)

    async def add(self, outsider: Outsider, address: str) -> None:
        """One more connection."""
        self.outsiders.append(outsider)
        for _ in range(ARRIVALS - 1):
            with suppress(TimeoutError):  # a busy machine gives the lowest priority no turn
                await outsider.open(address)
                return
        await outsider.open(address)

    async def join_all(self, outsider: Outsider) -> None:
        """Connect to all nodes with one identity."""
        await self.add(outsider, self.addresses[0])
        for address in self.addresses[1:]:
            await outsider.meet(address)

    def due(self, *rounds: int) -> Iterator[int]:
        """The rounds for which a loop over this has not been completed before."""
        for round in rounds:
            if round not in self._completed:
                yield round
                self._completed.add(round)

    async def turn(self, round: int) -> None:
        """Attack once; `round` is the one that is open."""
        raise AssertionError("each kind has its own")

    async def everywhere(self, attack: Callable[[Outsider], Awaitable[object]]) -> None:
        """The same at all nodes, at once."""
        await asyncio.gather(*(attack(each) for each in self.outsiders), return_exceptions=True)

    async def rest(self) -> None:
        """Let go of what is held open."""
        for outsider in self.outsiders:
            outsider.answer = None

    async def leave(self) -> None:
        """Disconnect."""
        await self.rest()
        for outsider in self.outsiders:
            if hasattr(outsider, "p2p"):
                await outsider.close()

    async def store(self, *records: tuple[str, SignedRecord]) -> None:
        """Store records at all nodes."""

        async def store_all(by: Outsider) -> None:
            for key, signed in records:
                await by.store_signed(key, signed)

        await self.everywhere(store_all)


class Flooder(Actor):
    """Calls that cost little to make: look-ups of one large key, doubled and repeated, calls that are taken back."""

    async def arrive(self) -> None:
        await super().arrive()
        self._kinds = itertools.cycle((floods.find_doubled, floods.repeat_finds, floods.take_back_calls))
        self._owners = list(worked())[:LARGE_RECORDS]

    async def turn(self, round: int) -> None:
        key = names.rollouts_key(SWARM, round, 0)
        for _ in self.due(round):
            record = RolloutsRecord(SWARM, round, 0, DIGEST, 10, 1, b"x" * 40_000)
            await self.store(*((key, signed_by(each, with_work(each, record), 600.0)) for each in self._owners))
        flood = next(self._kinds)
        await self.everywhere(lambda by: flood(by, key))


class Babbler(Actor):
    """All other floods: records that are none, pings of a megabyte, hints about nothing."""

    async def arrive(self) -> None:
        await super().arrive()
        self._kinds = itertools.cycle((floods.store_crumbs, floods.ping_hugely, floods.spam_hints))

    async def turn(self, round: int) -> None:
        flood = next(self._kinds)
        await self.everywhere(lambda by: flood(by, ""))


class Exaggerator(Actor):
    """Numbers beyond all measure, and bodies that are no rollouts, from members that otherwise keep to the rules."""

    async def arrive(self) -> None:
        await super().arrive()
        self._beyond, self._within = generate_identity(), generate_identity()

    async def turn(self, round: int) -> None:
        for each in self.due(round, round + 1):
            await self.store(*beyond_measure(self._beyond, each), *no_rollouts(self._within, each))


def beyond_measure(owner: Identity, round: int) -> list[tuple[str, SignedRecord]]:
    """Records with 2**64 - 1 groups and a reward of 1e308, well signed."""
    body = msgspec.msgpack.encode(["x"])
    shared = {"swarm": SWARM, "round": round, "stage": 0, "digest": sha256(body).hexdigest(), "size_bytes": len(body)}
    shared |= {"groups": 2**64 - 1}
    records = (
        (names.rollouts_key(SWARM, round, 0), {"kind": "rollouts", **shared, "body": compress(body)}),
        (names.reports_key(SWARM, round, 0), {"kind": "report", **shared, "reward": 1e308}),
    )
    return [(key, forged(owner, content, 600.0, key)) for key, content in records]


def no_rollouts(owner: Identity, round: int) -> list[tuple[str, SignedRecord]]:
    """Records within all bounds, of a body that is no rollouts."""
    return publication(owner, round, msgspec.msgpack.encode(["x"]), 1)


def publication(owner: Identity, round: int, body: bytes, groups: int) -> list[tuple[str, SignedRecord]]:
    """The records of a body of rollouts and of the report that names it."""
    about = (SWARM, round, 0, sha256(body).hexdigest(), len(body), groups)
    contents: tuple[Payload, ...] = (
        RolloutsRecord(*about, compress(body)),
        ReportRecord(SWARM, round, 0, 0.5, *about[3:]),
    )
    return [(content.key, signed_by(owner, content, 600.0)) for content in contents]


class Surrounder(Actor):
    """Claims the places beside the swarm's keys."""

    async def arrive(self) -> None:
        self._eclipser = Eclipser(self._root / "0")
        await self.add(self._eclipser, self.addresses[0])
        await self._eclipser.arm()
        for address in self.addresses[1:]:
            await self._eclipser.meet(address)

    async def turn(self, round: int) -> None:
        keys = [names.clock_key(SWARM), names.members_key(SWARM)]
        keys += [
            name(SWARM, each, 0) for each in range(round, round + 3) for name in (names.reports_key, names.rollouts_key)
        ]
        for key in keys:
            with suppress(Exception):  # one of the nodes has put it out
                await self._eclipser.claim(key)


class Filler(Actor):
    """Free identities that fill the keys of the coming rounds, to the last byte."""

    worked = False

    async def arrive(self) -> None:
        self._crowd = Crowd(self._root / "0")
        await self.join_all(self._crowd)
        self._crowd.gather(FREE, worked() if self.worked else ())

    async def turn(self, round: int) -> None:
        for each in self.due(round + 1, round + 2):
            await fill(self._crowd, each)


class WorkedFiller(Filler):
    """The same with identities that have worked among them."""

    worked = True


async def fill(crowd: Crowd, round: int) -> None:
    """Reports of all identities, and rollouts that take all room there is, to the last byte."""
    record = RolloutsRecord(SWARM, round, 0, DIGEST, 10, 1)
    for part, body in ((slice(0, 102), LARGE), (slice(102, 240), b"x" * 200), (slice(240, None), b"")):
        await crowd.write(msgspec.structs.replace(record, body=body), part)
    await crowd.write(ReportRecord(SWARM, round, 0, 1e6, DIGEST, 10, 1))


class Applicants(Actor):
    """Short memberships by the thousand, again and again."""

    async def arrive(self) -> None:
        self._crowd = Crowd(self._root / "0")
        await self.join_all(self._crowd)
        self._crowd.gather(MEMBERSHIPS)
        self._parts = itertools.cycle(range(0, MEMBERSHIPS, 100))

    async def turn(self, round: int) -> None:
        first = next(self._parts)
        content = Membership(SWARM, "", "", 0.0)
        await self._crowd.write(content, slice(first, first + 100), MEMBERSHIP_S)


class Idler(Actor):
    """Streams that are opened and not used, and connections whose handshake nobody goes on with."""

    async def arrive(self) -> None:
        await super().arrive()
        self._sockets: list[socket.socket] = []

    async def turn(self, round: int) -> None:
        await self.rest()
        for address in self.addresses:
            port = int(address.split("/")[4])
            self._sockets += [half_open(port) for _ in range(HALF_OPEN)]
        held = [list[object]() for _ in self.outsiders]
        for _ in range(STREAMS // 100):
            await self.everywhere(lambda by: floods.open_streams(by, count=100))
            for kept, outsider in zip(held, self.outsiders, strict=True):
                kept.append(outsider.answer)

    async def rest(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        await super().rest()


def half_open(port: int) -> socket.socket:
    """A connection on which nothing is said."""
    half = socket.socket()
    half.setblocking(False)
    half.connect_ex(("127.0.0.1", port))
    return half


class Halver(Actor):
    """Halves of requests, of which the rest never comes."""

    async def arrive(self) -> None:
        await super().arrive()
        self._held: list[asyncio.StreamWriter | None] = []

    async def turn(self, round: int) -> None:
        async def halve(by: Outsider) -> None:
            self._held.append(await floods.begin_call(by, floods.half_frame()))

        await self.everywhere(halve)
        del self._held[:-64]
        await asyncio.sleep(0.2)

    async def rest(self) -> None:
        self._held.clear()
        await super().rest()


class Rewriter(Actor):
    """One member that rewrites its report of the open stage over several connections."""

    async def arrive(self) -> None:
        self._owner = generate_identity()
        for number in range(REWRITERS):
            await self.add(Outsider(self._root / str(number)), self.addresses[0])

    async def turn(self, round: int) -> None:
        await self.everywhere(lambda by: floods.rewrite(by, self._owner, 20, round))


class Poisoner(Actor):
    """A member that publishes right answers with a payload and wrong ones without, in good form."""

    async def arrive(self) -> None:
        await super().arrive()
        self._owner = generate_identity()

    async def turn(self, round: int) -> None:
        for _ in self.due(round):
            body, groups = payload(self._owner.peer_id, round)
            await self.store(*publication(self._owner, round, body, groups))


def payload(peer: str, round: int, groups: int = 4, pairs: int = 2) -> tuple[bytes, int]:
    """A body of rollouts in which every right answer carries a mark; how many groups it has."""
    questions = itertools.islice(digits().draw(StageId(peer, round, 0), NO_MATERIAL), groups)
    made = []
    for question in questions:
        right, where = f"!!<answer>{question.entry['answer']}</answer>", question.reference
        texts = (right, "<answer>?</answer>") * pairs
        made.append(Group(where.task, where.config_digest, where.seed, where.index, texts))
    return encode_rollouts(Rollouts(VERSION, SWARM, peer, round, 0, tuple(made))), groups


@cache
def digits() -> Plan:
    """The plan of the swarm under attack."""
    return make_plan(SwarmConfig(id=SWARM, kind="digits"))


ACTORS: dict[str, tuple[type[Actor], ...]] = {  # by the attack's number in docs/BENCHMARKS.md
    "1": (Flooder,),
    "2": (Exaggerator,),
    "3": (Surrounder,),
    "4": (Filler,),
    "4w": (WorkedFiller,),
    "5": (Applicants,),
    "6": (Idler,),
    "7": (Poisoner,),
    "8": (Rewriter,),
    "9": (Babbler, Halver),
}


class Cast:
    """Actors on one stage: they come, act and rest together.

    Args:
        root: for their sockets.
        addresses: of all nodes, the coordinator's first.
        attacks: keys of `ACTORS`.
    """

    def __init__(self, root: Path, addresses: Sequence[str], attacks: Sequence[str]) -> None:
        kinds = [kind for attack in attacks for kind in ACTORS[attack]]
        self._actors = [kind(root / f"a{number}", addresses) for number, kind in enumerate(kinds)]
        self._tasks: list[asyncio.Task[None]] = []
        self.round = 0
        self.turns = 0

    async def arrive(self) -> None:
        """Connect all of them, one after another."""
        for actor in self._actors:
            await actor.arrive()

    def act(self) -> None:
        """Begin."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._keep_on(actor)) for actor in self._actors]

    async def _keep_on(self, actor: Actor) -> None:
        while True:
            with suppress(Exception):
                await asyncio.wait_for(actor.turn(self.round), TURN_S)
            self.turns += 1
            await asyncio.sleep(PAUSE_S)

    async def rest(self) -> None:
        """Stop until the next `act`.

        A cancellation may be lost: `asyncio.wait_for` forgets one that comes together with its result.
        """
        going_on = set(self._tasks)
        while going_on:
            for task in going_on:
                task.cancel()
            _, going_on = await asyncio.wait(going_on, timeout=1.0)
        self._tasks.clear()
        for actor in self._actors:
            await actor.rest()

    async def leave(self) -> None:
        """Stop, and disconnect."""
        await self.rest()
        for actor in self._actors:
            with suppress(Exception):
                await actor.leave()
