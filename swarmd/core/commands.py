"""What a node wants done: intentions that leave the core only after their cause is on disk.

Every command carries an id made of what it is about, so that doing it twice is doing it once: after a crash the same
command may be issued again under the same id, and the port that receives it must recognise it.
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
    """End a worker's process at once: it missed a deadline. Answered by `WorkerExited`."""

    worker: values.Worker
    reason: str


class Register(CommandBase, frozen=True, tag="register"):
    """Publish the membership record and keep it alive until the worker is asked to end; answered by `Registered`."""


class ReadClock(CommandBase, frozen=True, tag="read_clock"):
    """Read the coordinator's clock now; answered by `RoundAnnounced` or `NoRoundYet`."""


class Gather(CommandBase, frozen=True, tag="gather"):
    """Fetch what peers published at (source_round, source_stage), for use in (round, stage). Answered by
    `RolloutsGathered`, at `until_at` (POSIX seconds) at the latest."""

    round: int
    stage: int
    source_round: int
    source_stage: int
    until_at: float


class Train(CommandBase, frozen=True, tag="train"):
    """Train a stage; answered by `StageTrained`, `TrainingCancelled` or `CommandFailed`.

    Attributes:
        rollouts: peers' rollouts of the preceding stage.
        context: what those were made of, this node's own rollouts too: all earlier stages of the round, and of the
            round before if this stage begins a round.
        weights: of a peer, to be measured before the first step, and begun from if they are better than one's own.
        barred: evidence for which earlier groups of peers are not trained on again, either.
        peer_questions: groups of a step that come from peers at most, chosen by their cost; 0: as configured.
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

    Answered by `WeightsFetched` or `WeightsRefused`, at `until_at` (POSIX seconds) at the latest. To be averaged with,
    those of several trusted peers, drawn at random, if they were trained in `oldest_round` or later, and after the last
    mean with them; else those of the peer that is trusted most.
    """

    architecture: str
    tokenizer: str
    size_bytes_max: int
    until_at: float
    average: bool = False
    averaged: tuple[values.AveragedOffer, ...] = ()
    oldest_round: int = 0


class CancelTraining(CommandBase, frozen=True, tag="cancel_training"):
    """Give up the stage that is trained, between two steps; answered by `TrainingCancelled` or `StageTrained`."""

    train: str  # id of the `Train` command


class PublishReport(CommandBase, frozen=True, tag="publish_report"):
    """Publish the rollouts of a stage, then the signed report of its reward; answered by `ReportPublished`."""

    round: int
    stage: int
    reward: float
    rollouts: values.RolloutsRef


class Announce(CommandBase, frozen=True, tag="announce"):
    """Store the coordinator's signed clock: a stage is open until `deadline_at` (POSIX seconds); `final`: none follows.
    Answered by `RoundPublished`."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False
    shards: int = 0  # of each stage's reports and rollouts, from the round `sharded_since` on; 0: they lie together
    sharded_since: int = 0
    shards_before: int = 0  # in the rounds before
    steady_min: int = 0  # rounds since a stage last waited for it in vain, of a credited member that is waited for

    @property
    def announcement_number(self) -> int:
        """Number of the announcement, in which its id ends; 0 for the final one. A stage may be announced again."""
        number = self.id.rpartition("/")[2]
        return int(number) if number.isdecimal() and not self.final else 0


class CollectReports(CommandBase, frozen=True, tag="collect_reports"):
    """Report each member's record of (round, stage) as `ReportSeen`, as they come, until another stage is asked for."""

    round: int
    stage: int


class PublishLeaderboard(CommandBase, frozen=True, tag="publish_leaderboard"):
    """Publish the standings after a round, and the signed reports they add up; answered by `LeaderboardPublished`."""

    round: int
    standings: tuple[values.Standing, ...]
    reports: tuple[bytes, ...] = ()


class AdmitPeers(CommandBase, frozen=True, tag="admit_peers"):
    """Accept records of these peers only or, if `open`, of all: the contract's word on membership. No answer."""

    open: bool
    peers: tuple[str, ...] = ()


class NoteEvidence(CommandBase, frozen=True, tag="note_evidence"):
    """Report this evidence no more, as the log holds it, and gather nothing of the peers that it bars. No answer."""

    known: tuple[values.KnownEvidence, ...]


class WatchChain(CommandBase, frozen=True, tag="watch_chain"):
    """Report what the contract said after the block `recent[-1]`, then `ChainUp`, then what it says from then on.

    The first command to every chain worker.

    `recent` are the last blocks that were reported, oldest first, so that a reorganisation meanwhile is noticed.
    """

    recent: tuple[values.BlockRef, ...] = ()
    genesis: str = ""  # of the chain seen before; another one is refused
    base_fee: bool = False  # that chain's blocks were seen to have one: no endpoint may hide it
    spent_day: int = -1  # the last day on which the account signed for something, and what that may cost, in wei
    spent_wei: str = "0"


class Submit(CommandBase, frozen=True, tag="submit"):
    """Bring a submission about: look whether the chain has it, else prepare an attempt, and follow it until confirmed.
    Takes the place of an earlier `Submit` of the same submission."""

    submission: str
    kind: values.SubmissionKind
    round: int = 0
    stage: int = 0
    reward: int = 0
    winners: tuple[str, ...] = ()
    prepared: tuple[values.SubmissionAttempt, ...] = ()  # attempts made so far, oldest first
    mark: tuple[int, int] = (-1, -1)  # (round, stage) up to which nothing new may be signed


class Broadcast(CommandBase, frozen=True, tag="broadcast"):
    """Send an attempt at a submission: it is in the log by now."""

    submission: str
    prepared: values.SubmissionAttempt


# By who carries them out: `swarmd.shell.supervision.worker_of`.
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
