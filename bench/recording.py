"""Event logs as nodes write them: a real core, each of whose commands is answered at once.

Only the answers are made up (rewards, digests, times); which event follows which, and what every event holds in size
and shape, is what a coordinator and a follower of a swarm record.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from swarmd.core import commands as do
from swarmd.core import events as happened
from swarmd.core.applied import apply_facts
from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event
from swarmd.core.state import State
from swarmd.core.step import step
from swarmd.core.values import CoordinatorSettings, Role, RolloutsRef, Settings
from swarmd.eventlog.frame import Commit, digest_commands
from swarmd.eventlog.store import EventLog

BEGAN_AT = 1_700_000_000.0
STAGE_S = 12.0
RECORD_BYTES = 420  # a signed report as it lies in the DHT
REJECTED_EVERY = 10  # rounds between two bad records
PEERS_CHANGE_EVERY = 5  # rounds between two changes of the number of DHT peers


def peer_id(number: int) -> str:
    """A peer id of the usual 52 characters."""
    return "12D3KooW" + hashlib.sha256(b"peer %d" % number).hexdigest()[:44]


def settings(role: Role, number: int) -> Settings:
    """A node's settings; node 0 coordinates."""
    rules = CoordinatorSettings(min_peers=1, start_s=0.0) if role == "coordinator" else None
    return Settings(peer_id(number), "bench", role, peer_id(0), f"node-{number}", coordination=rules)


class Recorder:
    """One node's life, from its start on.

    Args:
        node: its settings.
        peers: ids of the other nodes.

    Attributes:
        commits: one per observed fact, as an unhurried daemon writes them.
        caused: the commands of each commit.
    """

    def __init__(self, node: Settings, peers: Sequence[str]) -> None:
        self.settings = node
        self.peers = tuple(peers)
        self.state = State()
        self.at = BEGAN_AT
        self.events = 0
        self.commits: list[Commit] = []
        self.caused: list[tuple[Command, ...]] = []
        self._facts: deque[Event] = deque([happened.NodeStarted(self.settings, "run-1", "0")])

    def run(self, rounds: int) -> None:
        """Live through that many further rounds."""
        last = self.round + rounds
        while self.round < last:
            if not self._facts:
                self._facts.append(self._announcement(self.round + 1))
            self._take(self._facts.popleft())

    @property
    def round(self) -> int:
        """The round that was announced last."""
        return self.state.clock.round if self.state.clock else -1

    def _take(self, fact: Event) -> None:
        at, before = self.at, self.state
        events = tuple(applied.event for applied in apply_facts(before, self.events, at, (fact,)))
        caused: list[Command] = []
        for seq, event in enumerate(events, self.events):
            self.state, commands = step(self.state, Envelope(seq, at, event))
            caused += commands
        self.commits.append(Commit(self.events, at, 1, events, digest_commands(caused)))
        self.caused.append(tuple(caused))
        self.events += len(events)
        self.at += 0.01
        for command in caused:
            self._facts.extend(self._answer(command))

    def _answer(self, command: Command) -> Iterable[Event]:
        answer = _ANSWERS.get(type(command))
        return answer(self, command) if answer else ()

    # --- what the world says to a command ---

    def start_worker(self, command: do.StartWorker) -> Iterable[Event]:
        yield happened.WorkerStarted(command.worker, 4000 + command.attempt, command.attempt)
        if command.worker == "network":
            yield happened.LinkUp(len(self.peers), ("/ip4/192.0.2.7/tcp/38333/p2p/" + self.settings.peer,))
        else:
            restored = self.state.done if self.state.done >= (0, 0) else None
            yield happened.TrainerReady("cpu", "embedded", 963_072, digest_of("weights", 0), restored=restored)

    def register(self, command: do.Register) -> Iterable[Event]:
        yield happened.Registered(command.id)
        for number, peer in enumerate(self.peers, 1):
            yield happened.MemberSeen(peer, f"node-{number}")

    def read_clock(self, command: do.ReadClock) -> Iterable[Event]:
        yield happened.NoRoundYet()

    def announce(self, command: do.Announce) -> Iterable[Event]:
        yield happened.RoundPublished(command.id, command.round, command.stage)
        yield happened.RoundAnnounced(command.round, command.stage, command.opened_at, command.deadline_at)

    def gather(self, command: do.Gather) -> Iterable[Event]:
        found = tuple(_rollouts(peer, command.source_round, command.source_stage) for peer in self.peers[:16])
        yield happened.RolloutsGathered(command.id, command.round, command.stage, found)

    def train(self, command: do.Train) -> Iterable[Event]:
        self.at += STAGE_S
        place = (command.round, command.stage)
        yield happened.StageTrained(
            command.id,
            *place,
            reward_of(self.settings.peer, command.round),
            _rollouts(self.settings.peer, *place),
            steps=20,
            tokens=20 * 16 * 8 * 9,
            seconds=STAGE_S,
            peer_groups=4,
            held_out=reward_of("held out", command.round),
        )
        yield happened.CheckpointWritten(*place, digest_of("checkpoint", command.round))

    def publish_report(self, command: do.PublishReport) -> Iterable[Event]:
        yield happened.ReportPublished(command.id, command.round, command.stage)
        if command.round % REJECTED_EVERY == 0:
            yield happened.RecordsRejected(peer_id(77), "bad-signature")
        if command.round % PEERS_CHANGE_EVERY == 0:
            yield happened.LinkUp(len(self.peers) + command.round % 2, self.state.link.addresses)
        if self.settings.role == "coordinator":
            for peer in (self.settings.peer, *self.peers):
                yield self._report_seen(peer, command.round, command.stage)

    def publish_leaderboard(self, command: do.PublishLeaderboard) -> Iterable[Event]:
        yield happened.LeaderboardPublished(command.id, command.round)

    def _report_seen(self, peer: str, round: int, stage: int) -> Event:
        record = hashlib.shake_128(f"{peer} {round}".encode()).digest(RECORD_BYTES)
        return happened.ReportSeen(peer, round, stage, reward_of(peer, round), digest_of(peer, round), record)

    def _announcement(self, round: int) -> Event:
        self.at += 1.0
        return happened.RoundAnnounced(round, 0, self.at, self.at + 300.0)


def digest_of(what: str, number: int) -> str:
    """A made-up SHA-256 in hex."""
    return hashlib.sha256(f"{what} {number}".encode()).hexdigest()


def reward_of(peer: str, round: int) -> float:
    """A made-up reward, 0 to 1."""
    return int(digest_of(f"reward {peer}", round)[:8], 16) / 2**32


def _rollouts(peer: str, round: int, stage: int) -> RolloutsRef:
    return RolloutsRef(peer, round, stage, digest_of(peer, round), 48_213, 16)


_ANSWERS: dict[type, Callable[[Recorder, Any], Iterable[Event]]] = {
    do.StartWorker: Recorder.start_worker,
    do.Register: Recorder.register,
    do.ReadClock: Recorder.read_clock,
    do.Announce: Recorder.announce,
    do.Gather: Recorder.gather,
    do.Train: Recorder.train,
    do.PublishReport: Recorder.publish_report,
    do.PublishLeaderboard: Recorder.publish_leaderboard,
}


def record(role: Role, events: int, nodes: int = 3) -> Recorder:
    """A life of at least so many events in a swarm of so many nodes."""
    own = 0 if role == "coordinator" else 1
    recorder = Recorder(settings(role, own), [peer_id(number) for number in range(nodes) if number != own])
    while recorder.events < events:
        recorder.run(20)
    return recorder


def events_of(commits: Iterable[Commit]) -> list[Event]:
    """The events alone."""
    return [event for commit in commits for event in commit.events]


def write_log(directory: Path, commits: Iterable[Commit], group: int = 1) -> Path:
    """A log of these commits' events, `group` commits to a frame, with the digests that belong to it."""
    commits = list(commits)
    state = State()
    with EventLog.open(directory, commits[0].events[0].settings.peer, "run-1") as log:  # type: ignore[union-attr]
        for first in range(0, len(commits), group):
            batch = commits[first : first + group]
            at = batch[0].at
            caused: list[Command] = []
            events = events_of(batch)
            for seq, event in enumerate(events, log.next_seq):
                state, commands = step(state, Envelope(seq, at, event))
                caused += commands
            log.append(at, events, digest_commands(caused))
    return directory
