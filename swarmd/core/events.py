"""Everything that can happen to a node, as recorded facts.

An event is immutable and for ever: a field may be added with a default, a tag is never renamed or reused
(``CONTRIBUTING.md``, law 7). Times are POSIX seconds (float, UTC); rounds and stages count from 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Worker = Literal["network", "trainer"]
Role = Literal["coordinator", "follower"]
BehindPolicy = Literal["finish-stage", "abandon"]
SkipCause = Literal["slow", "late", "fault"]


class Fact(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all events; the ``type`` tag selects the class when a log is read."""


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of the immutable values that events, commands and state are made of."""


class CoordinatorSettings(Value, frozen=True):
    """How the coordinator opens and closes stages."""

    min_peers: int = 1  # members, itself included, before the first round opens
    start_s: float = 60.0  # longest wait for min_peers; then the first round opens with whoever is there
    stage_s: float = 300.0  # longest a stage stays open
    quorum: float = 1.0  # share of the expected members whose reports close a stage early
    rounds_max: int = 0  # rounds to run in all, 0 for no end
    resume_s: float = 15.0  # a stage that was open when the coordinator died stays open at least this much longer


class Settings(Value, frozen=True):
    """The part of a node's configuration that decides its behaviour; logged at every start for replay."""

    peer: str  # this node's peer id
    swarm: str  # swarm id, part of every DHT key
    role: Role
    coordinator: str  # peer id of the one whose announcements count
    name: str = ""
    stages: int = 1  # stages in a round
    behind: BehindPolicy = "finish-stage"
    gather_s: float = 5.0  # longest wait for peers' rollouts
    train_s: float = 600.0  # longest a stage may train on this node
    publish_s: float = 30.0  # a report not acknowledged by then is sent again
    clock_s: float = 20.0  # silence after a passed stage deadline before the clock is read again
    ready_s: float = 180.0  # longest start of a worker until it reports ready
    restarts_max: int = 8  # worker exits within restart_window_s that end the node
    restart_window_s: float = 300.0
    coordination: CoordinatorSettings | None = None  # present on the coordinator only


class RolloutsRef(Value, frozen=True):
    """Rollouts of one peer for one stage; the body lies in the blob store under its digest."""

    peer: str
    round: int
    stage: int
    digest: str  # sha256 of the encoded body, lower-case hex
    size_bytes: int
    groups: int  # questions, each with the same number of completions


class Standing(Value, frozen=True):
    """One row of the leaderboard."""

    peer: str
    name: str
    reward: float  # sum of the stage rewards so far
    rounds: int  # rounds in which at least one report arrived in time
    last_round: int  # last such round


# --- the node's own life ---


class NodeStarted(Fact, frozen=True, tag="node_started"):
    """A process took up the log."""

    settings: Settings
    run: str  # random id of this process's life, so that logs of two lives are told apart
    version: str = ""


class StopRequested(Fact, frozen=True, tag="stop_requested"):
    """Somebody wants the node to stop: a signal, the operator, or the node itself after a permanent failure."""

    reason: str
    code: int = 0  # exit code to end with


class NodeStopped(Fact, frozen=True, tag="node_stopped"):
    """The last event of an orderly stop."""

    reason: str
    code: int = 0


class TimerFired(Fact, frozen=True, tag="timer_fired"):
    """A deadline that stands in the state has passed."""

    name: str
    due_at: float


# --- workers ---


class WorkerStarted(Fact, frozen=True, tag="worker_started"):
    worker: Worker
    pid: int
    attempt: int


class WorkerExited(Fact, frozen=True, tag="worker_exited"):
    """A worker process is gone, whatever the cause."""

    worker: Worker
    reason: str
    code: int | None = None  # exit status, absent when a signal ended it
    signal: int | None = None
    permanent: bool = False  # a restart cannot help (bad model path, identity in use, ...)
    exit_code: int = 0  # what the daemon should exit with when permanent
    planned: bool = False  # it had done its share and made room for a fresh process: no failure


class WorkerStartFailed(Fact, frozen=True, tag="worker_start_failed"):
    """The worker could not even be executed."""

    worker: Worker
    reason: str
    attempt: int


# --- network ---


class LinkUp(Fact, frozen=True, tag="link_up"):
    """The DHT answers: at least one other peer for a follower, the own node for a coordinator."""

    peers: int
    addresses: tuple[str, ...] = ()


class LinkDegraded(Fact, frozen=True, tag="link_degraded"):
    """The DHT node runs but reaches nobody."""

    reason: str


class LinkDown(Fact, frozen=True, tag="link_down"):
    reason: str


class Registered(Fact, frozen=True, tag="registered"):
    """The node's membership record is in the DHT."""

    command: str


class MemberSeen(Fact, frozen=True, tag="member_seen"):
    peer: str
    name: str = ""


class MemberLeft(Fact, frozen=True, tag="member_left"):
    """A member announced its leaving."""

    peer: str


class RoundAnnounced(Fact, frozen=True, tag="round_announced"):
    """The coordinator's signed clock, from the DHT. A round and stage may come again with a later deadline."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False  # the swarm has run its rounds: nothing more will open


class NoRoundYet(Fact, frozen=True, tag="no_round_yet"):
    """The clock was read and holds nothing."""


class RoundsSkipped(Fact, frozen=True, tag="rounds_skipped"):
    """Rounds that this node will not take part in, as one fact."""

    first: int
    last: int
    cause: SkipCause


class RolloutsGathered(Fact, frozen=True, tag="rollouts_gathered"):
    command: str
    round: int
    stage: int
    rollouts: tuple[RolloutsRef, ...] = ()
    missing: int = 0  # announced by a peer but not to be had in time


class ReportPublished(Fact, frozen=True, tag="report_published"):
    command: str
    round: int
    stage: int


class ReportSeen(Fact, frozen=True, tag="report_seen"):
    """A peer's signed report of a finished stage, validated."""

    peer: str
    round: int
    stage: int
    reward: float  # mean reward of the peer's own completions
    digest: str = ""  # of its rollouts
    record: bytes = b""  # the signed record, for anyone to check


class RoundPublished(Fact, frozen=True, tag="round_published"):
    """The coordinator's announcement was stored and read back."""

    command: str
    round: int
    stage: int


class LeaderboardPublished(Fact, frozen=True, tag="leaderboard_published"):
    command: str
    round: int


class RecordsRejected(Fact, frozen=True, tag="records_rejected"):
    """Peers' records that failed validation, counted per peer and reason."""

    peer: str  # empty when the sender cannot be known
    reason: str
    count: int = 1


class CommandFailed(Fact, frozen=True, tag="command_failed"):
    """A worker could not do what it was told; it may be told again."""

    command: str
    reason: str


# --- training ---


class TrainerReady(Fact, frozen=True, tag="trainer_ready"):
    device: str
    model: str
    parameters: int
    digest: str = ""  # of the weights it starts from


class StageTrained(Fact, frozen=True, tag="stage_trained"):
    """A stage was trained once and its checkpoint is durable."""

    command: str
    round: int
    stage: int
    reward: float  # mean reward of the node's own completions
    rollouts: RolloutsRef
    checkpoint: str = ""  # digest of the checkpoint
    steps: int = 0  # optimiser steps
    tokens: int = 0  # completion tokens generated
    seconds: float = 0.0
    peer_groups: int = 0  # peers' groups trained on
    held_out: float | None = None  # accuracy on held-out questions, where measured
    rejected: tuple[tuple[str, int], ...] = ()  # peers' groups refused by the trainer: (reason, count)
    held_out_before: float | None = None  # accuracy before the node's very first step; in its first stage only


class TrainingCancelled(Fact, frozen=True, tag="training_cancelled"):
    command: str
    round: int
    stage: int
    steps: int = 0


Event = (
    NodeStarted
    | StopRequested
    | NodeStopped
    | TimerFired
    | WorkerStarted
    | WorkerExited
    | WorkerStartFailed
    | LinkUp
    | LinkDegraded
    | LinkDown
    | Registered
    | MemberSeen
    | MemberLeft
    | RoundAnnounced
    | NoRoundYet
    | RoundsSkipped
    | RolloutsGathered
    | ReportPublished
    | ReportSeen
    | RoundPublished
    | LeaderboardPublished
    | RecordsRejected
    | CommandFailed
    | TrainerReady
    | StageTrained
    | TrainingCancelled
)


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An event with its place in the log and the time it was committed."""

    seq: int
    at: float  # POSIX seconds
    event: Event


def tag_of(event: Event) -> str:
    """The event's ``type`` tag."""
    return str(type(event).__struct_config__.tag)
