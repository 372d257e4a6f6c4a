"""Everything that can happen to a node, as recorded facts.

An event is immutable, and for ever from the first release on: then a field may be added with a default, and a tag is
never renamed or reused (``CONTRIBUTING.md``, law 7). Times are POSIX seconds (float, UTC); rounds and stages count
from 0.
"""

from collections.abc import Sequence

import msgspec

from swarmd.core import values


class EventBase(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all events; the ``type`` tag selects the class when a log is read."""


# --- the node's own life ---


class NodeStarted(EventBase, frozen=True, tag="node_started"):
    """A process opened the log and goes on with it: the first event of each life of the node."""

    settings: values.Settings
    run: str  # random id of this process's life, so that logs of two lives are told apart
    version: str = ""
    restored: bool = False  # the log came from a backup: this node may have signed more than the log knows of
    from_round: int = 0  # first round that such a node may take part in or open, if the one who restored it knew


class NodeForked(EventBase, frozen=True, tag="node_forked"):
    """The log goes on as that of another node, a second life of the one whose events are before; it has never run."""

    parent: str  # peer id of that one
    version: str = ""


class StopRequested(EventBase, frozen=True, tag="stop_requested"):
    """Somebody wants the node to stop: a signal, the operator, or the node itself after a permanent failure."""

    reason: str
    code: int = 0  # exit code to end with


class NodeStopped(EventBase, frozen=True, tag="node_stopped"):
    """The last event of an orderly stop."""

    reason: str
    code: int = 0


class TimerFired(EventBase, frozen=True, tag="timer_fired"):
    """A deadline that stands in the state has passed."""

    name: str
    due_at: float


class SpaceLow(EventBase, frozen=True, tag="space_low"):
    """Too little room is left on the data directory's file system to train on; what may go has gone already."""

    free_bytes: int
    wanted_bytes: int  # that must be free before training goes on


class SpaceFreed(EventBase, frozen=True, tag="space_freed"):
    """There is enough room on the data directory's file system to train on."""

    free_bytes: int


class ClockSet(EventBase, frozen=True, tag="clock_set"):
    """Somebody set this machine's clock."""

    step_s: float  # by which it went forward; negative: back


# --- workers ---


class WorkerStarted(EventBase, frozen=True, tag="worker_started"):
    """A worker's process runs. `attempt` is that of the `StartWorker` it answers."""

    worker: values.Worker
    pid: int
    attempt: int


class WorkerExited(EventBase, frozen=True, tag="worker_exited"):
    """A worker process is gone, whatever the cause."""

    worker: values.Worker
    reason: str
    code: int | None = None  # exit status, absent when a signal ended it
    signal: int | None = None
    permanent: bool = False  # a restart cannot help (bad model path, identity in use, ...)
    exit_code: int = 0  # what the daemon should exit with when permanent
    planned: bool = False  # it had done its share and made room for a fresh process: no failure
    outside: bool = False  # others caused it: another's signal, as the kernel's for want of memory, or room was made


class WorkerStartFailed(EventBase, frozen=True, tag="worker_start_failed"):
    """The worker could not even be executed."""

    worker: values.Worker
    reason: str
    attempt: int
    outside: bool = False  # the machine had no memory, process or file left for it


# --- network ---


class LinkUp(EventBase, frozen=True, tag="link_up"):
    """The DHT answers: at least one other peer for a follower, the own node for a coordinator."""

    peers: int
    addresses: tuple[str, ...] = ()
    isolated: str = ""  # why the node counts as cut off from its coordinator, or this from its members, all the same


class LinkDegraded(EventBase, frozen=True, tag="link_degraded"):
    """The DHT node runs but reaches nobody."""

    reason: str


class LinkDown(EventBase, frozen=True, tag="link_down"):
    """The DHT node is down; the network worker starts it again."""

    reason: str


class Registered(EventBase, frozen=True, tag="registered"):
    """The node's membership record is in the DHT."""

    command: str


class MemberSeen(EventBase, frozen=True, tag="member_seen"):
    """A peer's membership record was read, validated. `name` is what the peer calls itself."""

    peer: str
    name: str = ""
    worked: bool = True  # whether its identity has cost what every node's does; else nobody waits for it


class MemberRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One membership of `MembersSeen`, an array in this order; fields as in `MemberSeen`."""

    peer: str
    name: str = ""
    worked: bool = True


class MembersSeen(EventBase, frozen=True, tag="members_seen"):
    """Several `MemberSeen` that came together, in order: it means what they mean, one after the other."""

    members: tuple[MemberRow, ...]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.members)


class ReportSeen(EventBase, frozen=True, tag="report_seen"):
    """A peer's signed report of a finished stage, validated."""

    peer: str
    round: int
    stage: int
    reward: float  # mean reward of the peer's own completions
    digest: str = ""  # of its rollouts
    record: bytes = b""  # the signed record, for anyone to check
    worked: bool = True  # as in `MemberSeen`


class ReportRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One report of `ReportsSeen`, an array in this order; fields as in `ReportSeen`."""

    peer: str
    reward: float
    digest: str = ""
    record: bytes = b""
    worked: bool = True


class ReportsSeen(EventBase, frozen=True, tag="reports_seen"):
    """Several `ReportSeen` of one stage that came together, in order: it means what they mean, one after the other."""

    round: int
    stage: int
    reports: tuple[ReportRow, ...]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.reports)


class MemberLeft(EventBase, frozen=True, tag="member_left"):
    """A member announced its leaving."""

    peer: str


class RoundAnnounced(EventBase, frozen=True, tag="round_announced"):
    """The coordinator's signed clock, from the DHT. A round and stage may come again with a later deadline."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False  # the swarm has run its rounds: nothing more will open


class NoRoundYet(EventBase, frozen=True, tag="no_round_yet"):
    """The coordinator's clock was read, and nothing has been announced yet; answers `ReadClock`."""


class RoundsSkipped(EventBase, frozen=True, tag="rounds_skipped"):
    """Rounds from `first` to `last` in which this node takes no part. Derived by the node itself, see `advance`."""

    first: int
    last: int
    cause: values.SkipCause


class RolloutsGathered(EventBase, frozen=True, tag="rollouts_gathered"):
    """What peers published of a stage lies in the blob store; answers `Gather`."""

    command: str
    round: int
    stage: int
    rollouts: tuple[values.RolloutsRef, ...] = ()
    missing: int = 0  # announced by peers, and not fetched in time


class ReportPublished(EventBase, frozen=True, tag="report_published"):
    """This node's report of a stage was stored in the DHT; answers `PublishReport`."""

    command: str
    round: int
    stage: int


class RoundPublished(EventBase, frozen=True, tag="round_published"):
    """The coordinator's announcement was stored in the DHT and read back; answers `Announce`."""

    command: str
    round: int
    stage: int


class LeaderboardPublished(EventBase, frozen=True, tag="leaderboard_published"):
    """The leaderboard of a round was stored in the DHT; answers `PublishLeaderboard`."""

    command: str
    round: int


class RecordsRejected(EventBase, frozen=True, tag="records_rejected"):
    """Peers' records that failed validation, counted per peer and reason."""

    peer: str  # empty when the sender cannot be known
    reason: str
    count: int = 1


class Equivocated(EventBase, frozen=True, tag="equivocated"):
    """A peer has signed two different records for one place; both are here, for anyone to check."""

    kind: values.EvidenceKind
    peer: str
    round: int
    stage: int
    first: (
        bytes  # signed records, as `swarmd.dht.wire.records.SignedRecord.encode` gives them, the one that expires first
    )
    second: bytes


class CommandFailed(EventBase, frozen=True, tag="command_failed"):
    """A worker could not do what it was told; it may be told again."""

    command: str
    reason: str


# --- training ---


class TrainerReady(EventBase, frozen=True, tag="trainer_ready"):
    """The trainer has loaded its model onto its device, and can be given a stage."""

    device: str
    model: str
    parameters: int
    digest: str = ""  # of the weights it starts from
    numbers: str = ""  # that it is held and trained in: "float32", "4bit, adapters in float32"
    architecture: str = ""  # digest of what makes weights fit the model; empty if it takes none from peers
    tokenizer: str = ""  # digest of the tokenizer, if it does
    reward_max: float | None = None  # the most that a completion can be worth; None: the plan does not say
    other_weights: str = ""  # how the model's weights differ from those that the swarm's recipe names, in words
    restored: tuple[int, int] | None = None  # round and stage whose checkpoint it starts from; None: from the model
    drawn: int = 0  # tokens drawn for training in all of the node's life


class StageTrained(EventBase, frozen=True, tag="stage_trained"):
    """A stage was trained once and its rollouts are stored; its checkpoint is written beside what follows."""

    command: str
    round: int
    stage: int
    reward: float  # mean reward of the node's own completions
    rollouts: values.RolloutsRef
    steps: int = 0  # optimiser steps
    tokens: int = 0  # completion tokens generated
    seconds: float = 0.0
    peer_groups: int = 0  # peers' groups trained on
    held_out: float | None = None  # accuracy on held-out questions, if measured
    rejected: tuple[tuple[str, int], ...] = ()  # peers' groups refused by the trainer: (reason, count)
    held_out_before: float | None = None  # accuracy before the node's very first step; in its first stage only
    judged: tuple[values.Judgement, ...] = ()  # peers' rollouts of the preceding stage, as scored here
    scored: str = ""  # digest of questions, truths and rewards in words (`swarmd.swarms.plan`), for people to read
    set_aside: tuple[values.SetAside, ...] = ()  # what of peers' rollouts was not learnt from, of eight peers at most
    skills: tuple[
        values.Skill, ...
    ] = ()  # held-out accuracy by task, if measured: 32 at most, those first that fell most
    flat: values.FlatStage | None = None  # why the node's own groups taught nothing; None: they did, or there were none
    staleness: int = 0  # steps by which the weights that drew own groups lagged; none in the first step of a stage
    times: values.TrainerTimes | None = None  # where the time went
    ledger: values.StageTokens | None = None  # what became of the tokens that the node's own model drew


class CheckpointWritten(EventBase, frozen=True, tag="checkpoint_written"):
    """What a stage has learnt is on disk; a kill before that costs it, though the stage counts."""

    round: int
    stage: int
    digest: str


class TrainingCancelled(EventBase, frozen=True, tag="training_cancelled"):
    """A stage was given up after `steps` steps; answers `CancelTraining`."""

    command: str
    round: int
    stage: int
    steps: int = 0
    drawn: int = 0  # as in `TrainerReady`


class WeightsFetched(EventBase, frozen=True, tag="weights_fetched"):
    """A peer's weights are here, whole and as its manifest says; nothing has measured them. Answers `FetchWeights`."""

    command: str
    weights: values.PeerWeights
    received_bytes: int = 0  # in this attempt: less than the file if some of it was here, or a delta was enough
    seconds: float = 0.0
    damaged: values.WeightsDamage = ""  # what was, so that all was fetched


class WeightsRefused(EventBase, frozen=True, tag="weights_refused"):
    """A peer's weights cannot be fetched, or are not begun from; answers `FetchWeights`, or comes amid a `Train`."""

    command: str
    cause: values.WeightsCause
    reason: str = ""  # for people
    peer: str = ""  # whose they are, if there were any
    held_out_before: float | None = None  # accuracy of the own weights, if it was measured
    held_out: float | None = None  # that of the peer's, or of the mean with them


class WeightsAdopted(EventBase, frozen=True, tag="weights_adopted"):
    """The trainer begins a stage from a peer's weights, since they are better here than its own; or from a mean of both
    that is not worse (`PeerWeights.averaged`).

    It counts when the stage is trained: one that is given up leaves the own weights, and the next measures again.
    """

    command: str  # the `Train`
    round: int
    stage: int
    weights: values.PeerWeights
    held_out_before: float  # accuracy of the own weights on the held-out questions here
    held_out: float  # that of the weights it begins from, on the same


class ModelPushed(EventBase, frozen=True, tag="model_pushed"):
    """What became of an attempt to put the model on the Hugging Face Hub. No rule of the core uses it."""

    round: int  # the last one that the pushed model was trained in
    repo: str
    revision: str = ""  # commit on the Hub; empty if it failed
    url: str = ""
    error: str = ""  # why it failed; empty if it did not
    seconds: float = 0.0


# --- chain ---


class ChainLog(values.Value, frozen=True, tag_field="log"):
    """Base of what the swarm's contract said in one log entry; accounts are checksummed addresses. `index` is the
    entry's place in its block, `transaction` the hash of the transaction that caused it."""

    index: int
    transaction: str


class StageLog(ChainLog, frozen=True, tag="stage"):
    """StageAdvanced: the swarm is at this stage now. A new round is told by its stage 0 alone."""

    round: int
    stage: int


class RegistrationLog(ChainLog, frozen=True, tag="registration"):
    """PeerRegistered."""

    account: str
    peer: str


class RewardLog(ChainLog, frozen=True, tag="reward"):
    """RewardSubmitted; `reward` is an int256 in decimal."""

    account: str
    peer: str
    round: int
    stage: int
    reward: str


class VoteLog(ChainLog, frozen=True, tag="vote"):
    """WinnerSubmitted."""

    account: str
    peer: str
    round: int
    winners: tuple[str, ...]


class PolicyLog(ChainLog, frozen=True, tag="policy"):
    """RoundPolicyChanged; 0 turns a condition off."""

    min_submissions: int
    max_stage_s: int


class OtherLog(ChainLog, frozen=True, tag="other"):
    """Any other event of the contract, by name: bootnodes, roles, membership, upgrades."""

    name: str


AnyChainLog = StageLog | RegistrationLog | RewardLog | VoteLog | PolicyLog | OtherLog


class ChainUp(EventBase, frozen=True, tag="chain_up"):
    """Everything up to `head` has been read: the chain and the contract are those of the configuration."""

    chain_id: int
    contract: str
    genesis: str  # hash of block 0: a chain that was reset has another one
    head: values.BlockRef
    stages: int  # stages in a round, as the contract counts
    round: int
    stage: int
    opened_at: float  # when that stage began, POSIX seconds
    account: str = ""  # that this node's submissions come from, empty while nobody knows
    registered_to: str = ""  # account that this node's peer id is registered to, empty while it is not
    extensions: int = 0  # `extensionsVersion()`, 0 for a contract without it
    min_submissions: int = 0  # the policy
    max_stage_s: int = 0
    base_fee: bool = False  # the chain's blocks have a base fee (EIP-1559)


class ChainDegraded(EventBase, frozen=True, tag="chain_degraded"):
    """The chain worker runs but no endpoint answers as it should."""

    reason: str


class ChainBlock(EventBase, frozen=True, tag="chain_block"):
    """A block in which the contract said something; now and then one without, so that a restart has less to read."""

    block: values.BlockRef
    logs: tuple[AnyChainLog, ...] = ()


class SubmissionsCounted(EventBase, frozen=True, tag="submissions_counted"):
    """Rewards for a stage on the chain, by the contract's own count, for nodes that do not read each."""

    round: int
    stage: int
    count: int


class ChainReorged(EventBase, frozen=True, tag="chain_reorged"):
    """Blocks after `fork` are no part of the chain now; `ChainBlock`, then `ChainUp` tell what is there instead."""

    fork: values.BlockRef
    depth: int  # blocks dropped


class MembershipRead(EventBase, frozen=True, tag="membership_read"):
    """Who may take part, as the contract says at its confirmed depth."""

    open: bool
    peers: tuple[str, ...] = ()  # the allow-list, sorted


# --- submissions ---


class SubmissionPrepared(EventBase, frozen=True, tag="submission_prepared"):
    """The next attempt is ready; it is sent once this is durable."""

    submission: str
    prepared: values.SubmissionAttempt


class SubmissionSent(EventBase, frozen=True, tag="submission_sent"):
    """An endpoint or the signer proxy took it; `hash` is what they call it."""

    submission: str
    hash: str = ""


class SubmissionIncluded(EventBase, frozen=True, tag="submission_included"):
    """It is on the chain, by one of our attempts or found there; not yet deep enough to count on."""

    submission: str
    block: values.BlockRef
    hash: str = ""  # of the transaction, if known


class SubmissionConfirmed(EventBase, frozen=True, tag="submission_confirmed"):
    """It is on the chain as deep as the configuration asks."""

    submission: str
    block: values.BlockRef


class SubmissionLost(EventBase, frozen=True, tag="submission_lost"):
    """None of its attempts can be mined any more, and the chain does not have it: a new one is needed."""

    submission: str
    reason: str


class SubmissionRefused(EventBase, frozen=True, tag="submission_refused"):
    """The contract will never take it. `permanent`: nor any other of this node, so that the node must stop."""

    submission: str
    code: str  # the contract's error by name, or swarmd's own word: below-mark, outbox-full, taken
    reason: str
    permanent: bool = False


Event = (
    NodeStarted
    | NodeForked
    | StopRequested
    | NodeStopped
    | TimerFired
    | SpaceLow
    | SpaceFreed
    | ClockSet
    | WorkerStarted
    | WorkerExited
    | WorkerStartFailed
    | LinkUp
    | LinkDegraded
    | LinkDown
    | Registered
    | MemberSeen
    | MembersSeen
    | MemberLeft
    | RoundAnnounced
    | NoRoundYet
    | RoundsSkipped
    | RolloutsGathered
    | ReportPublished
    | ReportSeen
    | ReportsSeen
    | RoundPublished
    | LeaderboardPublished
    | RecordsRejected
    | Equivocated
    | CommandFailed
    | TrainerReady
    | StageTrained
    | CheckpointWritten
    | TrainingCancelled
    | WeightsFetched
    | WeightsRefused
    | WeightsAdopted
    | ModelPushed
    | ChainUp
    | ChainDegraded
    | SubmissionsCounted
    | ChainBlock
    | ChainReorged
    | MembershipRead
    | SubmissionPrepared
    | SubmissionSent
    | SubmissionIncluded
    | SubmissionConfirmed
    | SubmissionLost
    | SubmissionRefused
)


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An event with its place in the log and the time it was committed."""

    seq: int
    at: float  # POSIX seconds
    event: Event


def tag_of(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


def reports_in(event: EventBase) -> Sequence[ReportSeen]:
    """The reports that an event tells of, each as if it were told by itself; none for other events."""
    if isinstance(event, ReportSeen):
        return (event,)
    if isinstance(event, ReportsSeen):
        place = (event.round, event.stage)
        return [ReportSeen(row.peer, *place, row.reward, row.digest, row.record, row.worked) for row in event.reports]
    return ()


def members_in(event: EventBase) -> Sequence[MemberSeen]:
    """The memberships that an event tells of, each as if it were told by itself; none for other events."""
    if isinstance(event, MemberSeen):
        return (event,)
    if isinstance(event, MembersSeen):
        return [MemberSeen(row.peer, row.name, row.worked) for row in event.members]
    return ()
