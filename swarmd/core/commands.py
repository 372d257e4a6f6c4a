"""What a node wants done: intentions that leave the core only after their cause is on disk.

Every command carries an id made of what it is about, so that doing it twice is doing it once: after a crash the same
command may be issued again under the same id, and the port that receives it must recognise it.
"""

from __future__ import annotations

import msgspec

from swarmd.core.events import RolloutsRef, Standing, Worker


class Order(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all commands."""

    id: str


class StartWorker(Order, frozen=True, tag="start_worker"):
    worker: Worker
    attempt: int


class StopWorkers(Order, frozen=True, tag="stop_workers"):
    """Ask both workers to end; then the daemon records `NodeStopped`."""

    reason: str
    code: int = 0


class KillWorker(Order, frozen=True, tag="kill_worker"):
    """The worker missed a deadline of its own: end it at once."""

    worker: Worker
    reason: str


class Register(Order, frozen=True, tag="register"):
    """Publish the membership record and keep it alive until told to leave."""


class ReadClock(Order, frozen=True, tag="read_clock"):
    """Read the coordinator's clock now; answered by `RoundAnnounced` or `NoRoundYet`."""


class Gather(Order, frozen=True, tag="gather"):
    """Fetch what peers published at (source_round, source_stage), for use in (round, stage)."""

    round: int
    stage: int
    source_round: int
    source_stage: int
    until_at: float


class Train(Order, frozen=True, tag="train"):
    round: int
    stage: int
    rollouts: tuple[RolloutsRef, ...] = ()


class CancelTraining(Order, frozen=True, tag="cancel_training"):
    train: str  # id of the `Train` command


class PublishReport(Order, frozen=True, tag="publish_report"):
    round: int
    stage: int
    reward: float
    rollouts: RolloutsRef


class Announce(Order, frozen=True, tag="announce"):
    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False


class CollectReports(Order, frozen=True, tag="collect_reports"):
    """Report every member's record of (round, stage) as `ReportSeen`, until told another stage."""

    round: int
    stage: int


class PublishLeaderboard(Order, frozen=True, tag="publish_leaderboard"):
    """Publish the standings after a round, with the signed reports they add up from."""

    round: int
    standings: tuple[Standing, ...]
    reports: tuple[bytes, ...] = ()


Command = (
    StartWorker
    | StopWorkers
    | KillWorker
    | Register
    | ReadClock
    | Gather
    | Train
    | CancelTraining
    | PublishReport
    | Announce
    | CollectReports
    | PublishLeaderboard
)

NETWORK_COMMANDS = (Register, ReadClock, Gather, PublishReport, Announce, CollectReports, PublishLeaderboard)
TRAINER_COMMANDS = (Train, CancelTraining)
