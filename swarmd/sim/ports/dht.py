"""The simulated DHT: records that their owners replace; it can split in two, go stale, forget, and heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmd.core.commands import Announce, PublishLeaderboard, PublishReport
from swarmd.core.events import Event, MemberLeft, MemberSeen, ReportSeen, RoundAnnounced
from swarmd.core.values import RolloutsRef

if TYPE_CHECKING:
    from swarmd.sim.ports.network import NetworkWorker
    from swarmd.sim.world import World

ROUNDS_KEPT = 3  # records of earlier rounds have expired


class SimReport(msgspec.Struct, frozen=True):
    """A published report: what others see of it, and the rollouts that go with it."""

    seen: ReportSeen
    rollouts: RolloutsRef


Reports = dict[tuple[int, int], dict[str, SimReport]]


class Store:
    """What the nodes of one side of a partition hold together."""

    def __init__(self, dht: SimDht) -> None:
        self.dht = dht
        self.clock: RoundAnnounced | None = None
        self.clock_before: RoundAnnounced | None = None
        self.members: dict[str, Event] = {}
        self.reports: Reports = {}
        self.board: PublishLeaderboard | None = None  # the newest leaderboard

    def copy(self) -> Store:
        """What the other side begins with when the network splits."""
        twin = Store(self.dht)
        twin.clock, twin.clock_before = self.clock, self.clock_before
        twin.members = dict(self.members)
        twin.board = self.board
        twin.reports = {place: dict(reports) for place, reports in self.reports.items()}
        return twin

    def merge(self, other: Store) -> None:
        """Come together again: the newer record of each owner stays."""
        if other.clock is not None and (self.clock is None or is_newer(other.clock, self.clock)):
            self.clock, self.clock_before = other.clock, self.clock
        self.members = {**self.members, **other.members}
        boards = [board for board in (self.board, other.board) if board is not None]
        self.board = max(boards, key=lambda board: board.round, default=None)
        for place, reports in other.reports.items():
            self.reports.setdefault(place, {}).update(reports)

    def put_clock(self, clock: RoundAnnounced) -> None:
        if self.clock is None or is_newer(clock, self.clock):
            self.clock, self.clock_before = clock, self.clock
            self.dht.version += 1
            for place in [place for place in self.reports if place[0] < clock.round - ROUNDS_KEPT]:
                self._forget_place(place)

    def _forget_place(self, place: tuple[int, int]) -> None:
        del self.reports[place]

    def put_report(self, report: SimReport) -> bool:
        """Keep a report. False where it finds no room, which it always does among friends."""
        seen = report.seen
        reports = self.reports.setdefault((seen.round, seen.stage), {})
        if reports.get(seen.peer) is not report:
            reports[seen.peer] = report
            self.dht.version += 1
        return True

    def put_member(self, peer: str, fact: Event) -> bool:
        """Keep a membership, likewise."""
        if self.members.get(peer) is not fact:
            self.members[peer] = fact
            self.dht.version += 1
        return True

    def forget(self, what: int) -> None:
        """Lose some of the records: 0 the clock, 1 the memberships, 2 the reports."""
        if what == 0:
            self.clock = None
        elif what == 1:
            self.members = {}
        else:
            self.reports = {}


def is_newer(clock: RoundAnnounced, than: RoundAnnounced) -> bool:
    """Whether an announcement was made later than another: the owner's records expire in the order it made them."""
    return (clock.round, clock.stage, not clock.final, clock.deadline_at) > (
        than.round,
        than.stage,
        not than.final,
        than.deadline_at,
    )


def announcement_of(command: Announce) -> RoundAnnounced:
    """The clock record as others read it."""
    return RoundAnnounced(command.round, command.stage, command.opened_at, command.deadline_at, command.final)


def report_of(peer: str, command: PublishReport) -> SimReport:
    """The signed report as others read it; its record says what it says, so that anyone can add up the leaderboard."""
    rollouts = command.rollouts
    record = msgspec.msgpack.encode((peer, command.round, command.stage, command.reward))
    return SimReport(
        ReportSeen(peer, command.round, command.stage, command.reward, rollouts.digest, record=record), rollouts
    )


def reporters_of(board: PublishLeaderboard) -> dict[int, set[str]]:
    """Whose reports a leaderboard is made of, by stage."""
    reporters: dict[int, set[str]] = {}
    for record in board.reports:
        peer, _, stage, _ = msgspec.msgpack.decode(record)
        reporters.setdefault(stage, set()).add(peer)
    return reporters


class SimDht:
    """The network between the nodes. Side 0 is all of it while it is whole."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.version = 0  # changes so far, of records and of who is there
        self.stores = [self.make_store(), self.make_store()]
        self.workers: list[NetworkWorker] = []
        self.split = False

    def make_store(self) -> Store:
        """An empty one."""
        return Store(self)

    def join(self, worker: NetworkWorker) -> None:
        """A worker's process takes part from now on. Where nobody was, nothing is stored any more."""
        if not self.at_side(worker.node.side):
            self.stores[worker.node.side] = self.make_store()
        self.workers.append(worker)
        self.version += 1

    def leave(self, worker: NetworkWorker) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
            self.version += 1

    def at_side(self, side: int) -> int:
        """How many workers there are on a side."""
        return sum(worker.node.side == side for worker in self.workers)

    def store_of(self, worker: NetworkWorker) -> Store:
        """What a worker can reach."""
        return self.stores[worker.node.side]

    def reached_by(self, worker: NetworkWorker) -> list[NetworkWorker]:
        """Connected workers on the same side, itself included."""
        side = worker.node.side
        return [other for other in self.workers if other.node.side == side and other.linked]

    def part(self) -> None:
        """Split the network in two."""
        self.split = True
        self.version += 1
        for node in self.world.nodes:
            node.side = int(self.world.random.random() < 0.4)
        self.stores[1] = self.stores[0].copy()

    def heal(self) -> None:
        """Make it whole again."""
        if not self.split:
            return
        self.split = False
        self.version += 1
        for node in self.world.nodes:
            node.side = 0
        self.stores[0].merge(self.stores[1])

    def forget(self) -> None:
        """Some record is lost with the nodes that held it; its owner publishes it again after a while."""
        self.version += 1
        self.stores[0].forget(self.world.random.randrange(3))


def member_fact(peer: str, name: str, left: bool) -> Event:
    """A membership record as others read it."""
    return MemberLeft(peer) if left else MemberSeen(peer, name)
