"""Commands: what a node wants done. They leave the core only after their cause is on disk.

Every command has an id derived from its subject, so that carrying it out twice has no further effect: after a crash the
same command may be issued again under the same id, and its receiver must recognise it.
"""

import msgspec

from swarmd.core import values


class CommandBase(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all commands."""

    id: str


class StartWorker(CommandBase, frozen=True, tag="start_worker"):
    """Start a worker's process; answered by `WorkerStarted` or `WorkerStartFailed`. `attempt` counts from 1."""

    worker: values.Worker
    attempt: int


class StopWorkers(CommandBase, frozen=True, tag="stop_workers"):
    """Ask all workers to end; when they have, the daemon records `NodeStopped`. `code` is the exit code."""

    reason: str
    code: int = 0


class KillWorker(CommandBase, frozen=True, tag="kill_worker"):
    """Kill a worker's process that missed a deadline; answered by `WorkerExited`."""

    worker: values.Worker
    reason: str


class Register(CommandBase, frozen=True, tag="register"):
    """Publish the membership record and renew it until the worker is asked to end; answered by `Registered`."""


class ReadClock(CommandBase, frozen=True, tag="read_clock"):
    """Read the coordinator's clock now; answered by `RoundAnnounced` or `NoRoundYet`."""


class Gather(CommandBase, frozen=True, tag="gather"):
    """Fetch peers' rollouts of (source_round, source_stage), for use in (round, stage). Answered by `RolloutsGathered`,
    at `until_at` (POSIX seconds) at the latest."""

    round: int
    stage: int
    source_round: int
    source_stage: int
    until_at: float


class Train(CommandBase, frozen=True, tag="train"):
    """Train a stage; answered by `StageTrained`, `TrainingCancelled` or `CommandFailed`.

    Attributes:
        rollouts: peers' rollouts of the preceding stage.
        context: the rollouts that those were made from, including own ones: of all earlier stages of the round, and of
            the round before if this stage is the round's first.
        weights: a peer's, to be evaluated before the first step, and started from if they are better than the own ones.
        barred: evidence against peers whose earlier groups must not be trained on again, either.
        peer_questions: maximum of peers' groups in a step, chosen by their cost; 0: as configured.
    """

    round: int
    stage: int
    rollouts: tuple[values.RolloutsRef, ...] = ()
    context: tuple[values.RolloutsRef, ...] = ()  # in swarms of several stages only
    weights: values.PeerWeights | None = None
    barred: tuple[values.KnownEvidence, ...] = ()
    peer_questions: int = 0


class FetchWeights(CommandBase, frozen=True, tag="fetch_weights"):
    """Fetch weights that a trusted peer offers, of this architecture and tokenizer (digests, lower-case hex).

    Answered by `WeightsFetched` or `WeightsRefused`, at `until_at` (POSIX seconds) at the latest. Without `average`,
    fetch those of the most trusted peer. With it, fetch those of several trusted peers, drawn at random, if they were
    trained in `oldest_round` or later, and since the last averaging with them.
    """

    architecture: str
    tokenizer: str
    size_bytes_max: int
    until_at: float
    average: bool = False
    averaged: tuple[values.AveragedOffer, ...] = ()
    oldest_round: int = 0


class CancelTraining(CommandBase, frozen=True, tag="cancel_training"):
    """Stop training a stage between two steps; answered by `TrainingCancelled` or `StageTrained`."""

    train: str  # id of the `Train` command


class PublishReport(CommandBase, frozen=True, tag="publish_report"):
    """Publish the rollouts of a stage, then the signed report of its reward; answered by `ReportPublished`."""

    round: int
    stage: int
    reward: float
    rollouts: values.RolloutsRef


class Announce(CommandBase, frozen=True, tag="announce"):
    """Publish the coordinator's signed clock: a stage is open until `deadline_at` (POSIX seconds). `final`: no stage
    follows. Answered by `RoundPublished`."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False
    shards: int = 0  # of each stage's reports and rollouts, from the round `sharded_since` on; 0: one key
    sharded_since: int = 0
    shards_before: int = 0  # in the rounds before
    steady_min: int = 0  # rounds since a stage last timed out waiting for a credited member that is still waited for

    @property
    def announcement_number(self) -> int:
        """Number of the announcement, at the end of its id; 0 for the final one. A stage may be announced again."""
        number = self.id.rpartition("/")[2]
        return int(number) if number.isdecimal() and not self.final else 0


class CollectReports(CommandBase, frozen=True, tag="collect_reports"):
    """Report each member's record of (round, stage) as `ReportSeen`, until another stage is requested."""

    round: int
    stage: int


class PublishLeaderboard(CommandBase, frozen=True, tag="publish_leaderboard"):
    """Publish a round's standings and the signed reports in them; answered by `LeaderboardPublished`."""

    round: int
    standings: tuple[values.Standing, ...]
    reports: tuple[bytes, ...] = ()


class AdmitPeers(CommandBase, frozen=True, tag="admit_peers"):
    """Accept records of these peers only or, if `open`, of all, as the contract says. No answer."""

    open: bool
    peers: tuple[str, ...] = ()


class NoteEvidence(CommandBase, frozen=True, tag="note_evidence"):
    """Do not report this evidence again, which is in the log, and gather nothing from the peers that it bans. No
    answer."""

    known: tuple[values.KnownEvidence, ...]


class WatchChain(CommandBase, frozen=True, tag="watch_chain"):
    """Report the contract's logs after the block `recent[-1]`, then `ChainUp`, then new logs.

    The first command to every chain worker. `recent` are the last reported blocks, oldest first, for detecting a
    reorganisation since.
    """

    recent: tuple[values.BlockRef, ...] = ()
    genesis: str = ""  # of the known chain; another one is refused
    base_fee: bool = False  # the known chain's blocks have a base fee: an endpoint must not hide it
    spent_day: int = -1  # the last day on which the account signed, and the most that this day's transactions cost
    spent_wei: str = "0"


class Submit(CommandBase, frozen=True, tag="submit"):
    """Get a submission onto the chain: check if the chain has it, else prepare an attempt, and track it until
    confirmed. Replaces an earlier `Submit` of the same submission."""

    submission: str
    kind: values.SubmissionKind
    round: int = 0
    stage: int = 0
    reward: int = 0
    winners: tuple[str, ...] = ()
    prepared: tuple[values.SubmissionAttempt, ...] = ()  # attempts made so far, oldest first
    mark: tuple[int, int] = (-1, -1)  # (round, stage) up to which nothing new may be signed


class Broadcast(CommandBase, frozen=True, tag="broadcast"):
    """Send an attempt at a submission, which is now in the log."""

    submission: str
    prepared: values.SubmissionAttempt


# Grouped by receiver: `swarmd.shell.supervision.worker_for_command`.
NetworkCommand = (
    Register
    | ReadClock
    | Gather
    | PublishReport
    | Announce
    | CollectReports
    | PublishLeaderboard
    | AdmitPeers
    | NoteEvidence
    | FetchWeights
)
ChainCommand = WatchChain | Submit | Broadcast
TrainerCommand = Train | CancelTraining
SupervisorCommand = StartWorker | StopWorkers | KillWorker
Command = SupervisorCommand | NetworkCommand | TrainerCommand | ChainCommand
