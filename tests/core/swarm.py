"""A small swarm around a coordinator's core: nodes train as long as they take, in simulated time."""

import math
from collections.abc import Collection, Mapping

from swarmd.core.commands import Announce, Command
from swarmd.core.events import Event, MemberSeen, ReportSeen, RoundPublished
from swarmd.core.state import Coordination, next_deadline
from tests.core.story import Story, coordinator_settings

STAGE_S = 300.0  # longest
OWN = "me"


class Swarm:
    """Nodes that finish the stage they are at, and then begin the one that is open, as real ones do.

    Args:
        train_s: how long each node trains, the coordinator ("me") among them.
    """

    kind: type[Story] = Story

    def __init__(self, train_s: Mapping[str, float], stage_s: float = STAGE_S, quorum: float = 1.0) -> None:
        self.node = self.kind(coordinator_settings(min_peers=len(train_s), stage_s=stage_s, quorum=quorum))
        self.train_s = dict(train_s)
        self.asleep: set[str] = set()  # whose trainers do nothing
        self.lasted_s: list[float] = []  # of each stage that is over
        self.credited: list[set[str]] = []  # who reported in it
        self.round = -1
        self._opened_at = 0.0
        self._at_work: dict[str, tuple[float, int]] = {}  # until when, and at which round
        self._done: dict[str, int] = {}  # the last that each has trained
        self._take(self.node.join())
        self.tell(*(MemberSeen(peer) for peer in train_s if peer != OWN))

    @property
    def coordination(self) -> Coordination:
        assert self.node.state.coordination is not None
        return self.node.state.coordination

    def tell(self, *events: Event) -> None:
        """Let something happen now."""
        for event in events:
            self._take(self.node.tell(event))

    def report(self, *peers: str) -> None:
        """Reports of the open stage, by somebody else than the nodes."""
        self.tell(*(report(peer, self.round) for peer in peers))

    def run(self, rounds: int = 1, silent: Collection[str] = ()) -> None:
        """Let time pass until so many rounds are over; the trainers of `silent` sleep meanwhile."""
        until = self.round + rounds
        self.asleep |= set(silent)
        while self.round < until:
            self._go_on()
        self.asleep -= set(silent)

    def _go_on(self) -> None:
        """What happens next."""
        for peer in self.train_s:
            if peer not in self._at_work and self._done.get(peer) != self.round:
                self._at_work[peer] = (self.node.at + self.train_s[peer], self.round)
        done = {peer: at for peer, (at, _) in self._at_work.items() if peer not in self.asleep}
        first = min(done, key=done.__getitem__) if done else OWN
        timer = next_deadline(self.node.state)
        if timer is not None and timer.due_at <= done.get(first, math.inf):
            self.fire(timer.name)
            return
        self.node.at = max(self.node.at, done[first])
        self._done[first] = self._at_work.pop(first)[1]
        self.tell(report(first, self._done[first]))

    def fire(self, timer: str) -> None:
        """Let time pass until a timer is due."""
        self._take(self.node.wait(timer))

    def _take(self, commands: tuple[Command, ...]) -> None:
        for each in commands:
            if isinstance(each, Announce):
                if self.round >= 0:
                    self.lasted_s.append(self.node.at - self._opened_at)
                    members = self.coordination.members
                    self.credited.append({member.peer for member in members if member.last_round == self.round})
                self.round, self._opened_at = each.round, self.node.at
                self._take(self.node.tell(RoundPublished(each.id, each.round, each.stage)))


def report(peer: str, round: int, stage: int = 0) -> ReportSeen:
    return ReportSeen(peer, round, stage, 0.5, record=f"{peer}/{round}/{stage}".encode())
