"""The events: everything that can happen to a node, as recorded facts.

Events are immutable. From the first release on, a field may be added with a default, and a tag is never renamed or
reused (``CONTRIBUTING.md``, law 7). Times are POSIX seconds (float, UTC); rounds and stages count from 0.
"""

from collections.abc import Sequence

import msgspec

from swarmd.core import values


class EventBase(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all events; the ``type`` tag selects the class when a log is read."""


# --- the node's own life ---


class NodeStarted(EventBase, frozen=True, tag="node_started"):
    """A process opened the log to continue it: the first event of each run of the node."""

    settings: values.Settings
    run: str  # random id of this run, to tell logs of two runs apart
    version: str = ""
    restored: bool = False  # the log came from a backup: this node may have signed more than the log contains
    from_round: int = 0  # first round that a restored node may take part in or open, if the operator gave one


class NodeForked(EventBase, frozen=True, tag="node_forked"):
    """The log continues as that of another node, whose first events are the parent's; the new node has never run."""

    parent: str  # the parent's peer id
    version: str = ""


class StopRequested(EventBase, frozen=True, tag="stop_requested"):
    """A request to stop: by a signal, the operator, or the node itself after a permanent failure."""

    reason: str
    code: int = 0  # exit code to end with


class NodeStopped(EventBase, frozen=True, tag="node_stopped"):
    """The last event of an orderly stop."""

    reason: str
    code: int = 0


class TimerFired(EventBase, frozen=True, tag="timer_fired"):
    """A deadline in the state has passed."""

    name: str
    due_at: float


class SpaceLow(EventBase, frozen=True, tag="space_low"):
    """The data directory's file system has too little free space to train; removable files are removed already."""

    free_bytes: int
    wanted_bytes: int  # bytes that must be free before training continues


class SpaceFreed(EventBase, frozen=True, tag="space_freed"):
    """The data directory's file system has enough free space to train again."""

    free_bytes: int


class ClockSet(EventBase, frozen=True, tag="clock_set"):
    """This machine's clock was set."""

    step_s: float  # step in seconds, negative if the clock was set back


# --- workers ---


class WorkerStarted(EventBase, frozen=True, tag="worker_started"):
    """A worker's process runs. `attempt` is that of the `StartWorker` command."""

    worker: values.Worker
    pid: int
    attempt: int


class WorkerExited(EventBase, frozen=True, tag="worker_exited"):
    """A worker process ended, for whatever reason."""

    worker: values.Worker
    reason: str
    code: int | None = None  # exit status; None if a signal ended it
    signal: int | None = None
    permanent: bool = False  # a restart cannot help (bad model path, identity in use, ...)
    exit_code: int = 0  # the daemon's exit code if permanent
    planned: bool = False  # the worker ended on purpose to be replaced by a fresh process: no failure
    outside: bool = False  # caused from outside: a signal, such as the kernel's if out of memory, or lack of memory


class WorkerStartFailed(EventBase, frozen=True, tag="worker_start_failed"):
    """The worker's process could not be started."""

    worker: values.Worker
    reason: str
    attempt: int
    outside: bool = False  # the machine had no memory, process or file descriptor left for it


# --- network ---


class LinkUp(EventBase, frozen=True, tag="link_up"):
    """The DHT answers: at least one other peer for a follower, this node itself for a coordinator."""

    peers: int
    addresses: tuple[str, ...] = ()
    isolated: str = ""  # why the node counts as cut off from its coordinator, or a coordinator from its members


class LinkDegraded(EventBase, frozen=True, tag="link_degraded"):
    """The DHT node runs but reaches no peer."""

    reason: str


class LinkDown(EventBase, frozen=True, tag="link_down"):
    """The DHT node is down; the network worker starts it again."""

    reason: str


class Registered(EventBase, frozen=True, tag="registered"):
    """The node's membership record is in the DHT."""

    command: str


class MemberSeen(EventBase, frozen=True, tag="member_seen"):
    """A valid membership record of a peer was read. `name` is the peer's own name for itself."""

    peer: str
    name: str = ""
    worked: bool = True  # whether its identity has proof of work; otherwise no stage waits for it


class MemberRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One membership of `MembersSeen`, an array in this order; fields as in `MemberSeen`."""

    peer: str
    name: str = ""
    worked: bool = True


class MembersSeen(EventBase, frozen=True, tag="members_seen"):
    """Several `MemberSeen` at once, equivalent to them one after the other."""

    members: tuple[MemberRow, ...]

    @property
    def count(self) -> int:
        return len(self.members)


class ReportSeen(EventBase, frozen=True, tag="report_seen"):
    """A valid signed report of a peer on a finished stage."""

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
    """Several `ReportSeen` of one stage at once, equivalent to them one after the other."""

    round: int
    stage: int
    reports: tuple[ReportRow, ...]

    @property
    def count(self) -> int:
        return len(self.reports)


class MemberLeft(EventBase, frozen=True, tag="member_left"):
    """A member announced that it leaves."""

    peer: str


class RoundAnnounced(EventBase, frozen=True, tag="round_announced"):
    """The coordinator's signed clock, from the DHT. A round and stage may come again with a later deadline."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False  # the swarm has run all its rounds


class NoRoundYet(EventBase, frozen=True, tag="no_round_yet"):
    """The coordinator's clock was read, and nothing has been announced yet; answers `ReadClock`."""


class RoundsSkipped(EventBase, frozen=True, tag="rounds_skipped"):
    """Rounds `first` to `last`, in which this node takes no part. Derived by the node itself, see
    `find_skipped_rounds`."""

    first: int
    last: int
    cause: values.SkipCause


class RolloutsGathered(EventBase, frozen=True, tag="rollouts_gathered"):
    """Peers' rollouts of a stage are in the blob store; answers `Gather`."""

    command: str
    round: int
    stage: int
    rollouts: tuple[values.RolloutsRef, ...] = ()
    missing: int = 0  # number of rollouts announced by peers, but not fetched in time


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

    peer: str  # empty if the sender is unknown
    reason: str
    count: int = 1


class Equivocated(EventBase, frozen=True, tag="equivocated"):
    """A peer has signed two different records for one place; the event holds both, for anyone to check."""

    kind: values.EvidenceKind
    peer: str
    round: int
    stage: int
    first: bytes  # signed records, encoded by `swarmd.dht.wire.records.SignedRecord.encode`; `first` expires first
    second: bytes


class CommandFailed(EventBase, frozen=True, tag="command_failed"):
    """A worker could not carry out a command, which may be sent again."""

    command: str
    reason: str


# --- training ---


class TrainerReady(EventBase, frozen=True, tag="trainer_ready"):
    """The trainer has loaded its model onto its device, and can be given a stage."""

    device: str
    model: str
    parameters: int
    digest: str = ""  # of the initial weights
    numbers: str = ""  # numeric format of the weights and of training: "float32", "4bit, adapters in float32"
    architecture: str = ""  # digest that compatible peer weights share; empty if it accepts none from peers
    tokenizer: str = ""  # digest of the tokenizer, if it accepts weights from peers
    reward_max: float | None = None  # highest possible reward of a completion; None: the plan does not say
    other_weights: str = ""  # how the model's weights differ from those named by the swarm's recipe, in words
    restored: tuple[int, int] | None = None  # round and stage whose checkpoint it starts from; None: from the model
    drawn: int = 0  # tokens drawn for training since the node was created


class StageTrained(EventBase, frozen=True, tag="stage_trained"):
    """A stage was trained and its rollouts are stored; its checkpoint is still being written."""

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
    held_out_before: float | None = None  # accuracy before the node's very first step; only in its first stage
    judged: tuple[values.Judgement, ...] = ()  # peers' rollouts of the preceding stage, as scored by this node
    scored: str = ""  # digest of questions, truths and rewards as readable text (`swarmd.swarms.plan`)
    set_aside: tuple[values.SetAside, ...] = ()  # parts of peers' rollouts not trained on, of at most eight peers
    skills: tuple[
        values.Skill, ...
    ] = ()  # held-out accuracy by task, if measured: at most 32, those that fell most first
    flat: values.FlatStage | None = None  # why the own groups had zero variance; None: some had not, or there were none
    staleness: int = 0  # steps by which the weights that drew own groups lagged; none in a stage's first step
    times: values.TrainerTimes | None = None  # the trainer's time by part
    ledger: values.StageTokens | None = None  # fate of the tokens that the node's own model drew


class CheckpointWritten(EventBase, frozen=True, tag="checkpoint_written"):
    """A stage's checkpoint is on disk; a kill before that loses what was learnt, although the stage counts."""

    round: int
    stage: int
    digest: str


class TrainingCancelled(EventBase, frozen=True, tag="training_cancelled"):
    """Training of a stage was stopped after `steps` steps; answers `CancelTraining`."""

    command: str
    round: int
    stage: int
    steps: int = 0
    drawn: int = 0  # as in `TrainerReady`


class WeightsFetched(EventBase, frozen=True, tag="weights_fetched"):
    """A peer's weights are complete and match their manifest; they are not evaluated yet. Answers `FetchWeights`."""

    command: str
    weights: values.PeerWeights
    received_bytes: int = 0  # in this attempt; less than the file if a part of it was present, or a delta sufficed
    seconds: float = 0.0
    damaged: values.WeightsDamage = ""  # which local file was damaged, so that the whole file was fetched


class WeightsRefused(EventBase, frozen=True, tag="weights_refused"):
    """A peer's weights cannot be fetched, or are not used; answers `FetchWeights`, or arrives during a `Train`."""

    command: str
    cause: values.WeightsCause
    reason: str = ""  # human-readable
    peer: str = ""  # the weights' owner, if there were any weights
    held_out_before: float | None = None  # accuracy of the own weights, if it was measured
    held_out: float | None = None  # accuracy of the peer's weights, or of the average with them


class WeightsAdopted(EventBase, frozen=True, tag="weights_adopted"):
    """The trainer starts a stage from a peer's weights, which are better here than its own; or from an average of both
    that is not worse (`PeerWeights.averaged`).

    It takes effect when the stage is trained: a cancelled stage leaves the own weights, and the next one evaluates
    again.
    """

    command: str  # id of the `Train` command
    round: int
    stage: int
    weights: values.PeerWeights
    held_out_before: float  # accuracy of the own weights on the held-out questions here
    held_out: float  # accuracy of the adopted weights on the same questions


class ModelPushed(EventBase, frozen=True, tag="model_pushed"):
    """The outcome of pushing the model to the Hugging Face Hub. No rule of the core uses it."""

    round: int  # the last round that the pushed model was trained in
    repo: str
    revision: str = ""  # commit on the Hub; empty if it failed
    url: str = ""
    error: str = ""  # why it failed; empty on success
    seconds: float = 0.0


# --- chain ---


class ChainLog(values.Value, frozen=True, tag_field="log"):
    """Base of the contract's log entries; accounts are checksummed addresses. `index` is the entry's index in its
    block, `transaction` the hash of the transaction that caused it."""

    index: int
    transaction: str


class StageLog(ChainLog, frozen=True, tag="stage"):
    """StageAdvanced: the swarm is at this stage now. Only stage 0 marks a new round."""

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
    """The chain has been read up to `head`; chain and contract match the configuration."""

    chain_id: int
    contract: str
    genesis: str  # hash of block 0, which differs on a chain that was reset
    head: values.BlockRef
    stages: int  # number of stages in a round, by the contract
    round: int
    stage: int
    opened_at: float  # when that stage began, POSIX seconds
    account: str = ""  # the account of this node's submissions; empty if unknown
    registered_to: str = ""  # the account that this node's peer id is registered to; empty if none
    extensions: int = 0  # `extensionsVersion()`, 0 for a contract without it
    min_submissions: int = 0  # the round policy
    max_stage_s: int = 0
    base_fee: bool = False  # the chain's blocks have a base fee (EIP-1559)


class ChainDegraded(EventBase, frozen=True, tag="chain_degraded"):
    """The chain worker runs but no endpoint answers as it should."""

    reason: str


class ChainBlock(EventBase, frozen=True, tag="chain_block"):
    """A block with log entries of the contract; occasionally one without, so that a restart has less to read."""

    block: values.BlockRef
    logs: tuple[AnyChainLog, ...] = ()


class SubmissionsCounted(EventBase, frozen=True, tag="submissions_counted"):
    """The contract's own count of rewards for a stage, for nodes that do not read each reward."""

    round: int
    stage: int
    count: int


class ChainReorged(EventBase, frozen=True, tag="chain_reorged"):
    """Blocks after `fork` are no longer part of the chain; `ChainBlock`, then `ChainUp` report what replaced them."""

    fork: values.BlockRef
    depth: int  # number of blocks dropped


class MembershipRead(EventBase, frozen=True, tag="membership_read"):
    """Who may take part, by the contract at its confirmed depth."""

    open: bool
    peers: tuple[str, ...] = ()  # the allow-list, sorted


# --- submissions ---


class SubmissionPrepared(EventBase, frozen=True, tag="submission_prepared"):
    """The next attempt is signed; it is sent once this event is durable."""

    submission: str
    prepared: values.SubmissionAttempt


class SubmissionSent(EventBase, frozen=True, tag="submission_sent"):
    """An endpoint or the signer proxy accepted the submission; `hash` is the transaction's hash by their answer."""

    submission: str
    hash: str = ""


class SubmissionIncluded(EventBase, frozen=True, tag="submission_included"):
    """The submission is on the chain, by one of this node's attempts or not, but not yet confirmed."""

    submission: str
    block: values.BlockRef
    hash: str = ""  # of the transaction, if known


class SubmissionConfirmed(EventBase, frozen=True, tag="submission_confirmed"):
    """The submission is on the chain at the configured depth."""

    submission: str
    block: values.BlockRef


class SubmissionLost(EventBase, frozen=True, tag="submission_lost"):
    """None of the submission's attempts can be mined any more, and the chain does not have it: it needs a new one."""

    submission: str
    reason: str


class SubmissionRefused(EventBase, frozen=True, tag="submission_refused"):
    """The contract will never accept the submission. `permanent`: nor any of this node's, which must stop."""

    submission: str
    code: str  # the contract error's name, or swarmd's own code: below-mark, outbox-full, taken
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
    """Return the reports in an event, each as a `ReportSeen`; empty for other events."""
    if isinstance(event, ReportSeen):
        return (event,)
    if isinstance(event, ReportsSeen):
        place = (event.round, event.stage)
        return [ReportSeen(row.peer, *place, row.reward, row.digest, row.record, row.worked) for row in event.reports]
    return ()


def members_in(event: EventBase) -> Sequence[MemberSeen]:
    """Return the memberships in an event, each as a `MemberSeen`; empty for other events."""
    if isinstance(event, MemberSeen):
        return (event,)
    if isinstance(event, MembersSeen):
        return [MemberSeen(row.peer, row.name, row.worked) for row in event.members]
    return ()
