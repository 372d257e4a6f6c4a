"""The node's state: the fold of its events.

Only `swarmd.core.step.step` makes states. Everything in them is bounded; the bounds are named here.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from swarmd.core import values
from swarmd.core.by_peer import ValuesByPeer
from swarmd.core.chart_types import CoordinatorState, LinkState, RoundState, SubmissionState, TrainerState
from swarmd.core.commands import Command

SKIPS_KEPT = 32  # most recent skips, for the status; the log has them all
REWARDS_KEPT = 128  # most recent own stage rewards
FALLEN_KEPT = 4  # tasks per stage reward whose accuracy has fallen
MEMBERS_MAX = 16_384  # members that a coordinator counts; further ones do not count towards the quorum
ONCHAIN_PEERS_MAX = 4096  # peers in a contract: reporters of a stage, candidates of a vote, or the allow-list
REJECTIONS_KEPT = 64  # distinct rejection reasons with a counter
OUTBOX_MAX = 1024  # submissions not yet on the chain; one more is refused, and recorded as such
SETTLED_KEPT = 64  # most recent submissions that are confirmed or refused
PREPARED_KEPT = 8  # attempts remembered per submission; the oldest are dropped
BLOCKS_KEPT = 64  # most recent reported blocks, to find where a reorganisation forked off


class Deadline(values.Value, frozen=True):
    """A wait with an end. When it passes, the daemon records `TimerFired(name, due_at)`."""

    name: str
    due_at: float


class WorkerState(values.Value, frozen=True):
    """The process of one worker, and its recent exits."""

    attempt: int = 0
    pid: int = 0
    exits: tuple[float, ...] = ()  # times of recent unplanned exits, within the restart window
    reason: str = ""  # of the last exit
    outside: tuple[float, ...] = ()  # times of recent exits with an outside cause, outside the restart budget


class LowSpace(values.Value, frozen=True):
    """The disk is too full to train."""

    free_bytes: int  # at the last check
    wanted_bytes: int
    since: float  # POSIX seconds


class NetworkLink(values.Value, frozen=True):
    """The connection to the DHT; `chart` is a state of link.yaml."""

    chart: LinkState = "down"
    since: float = 0.0
    reason: str = ""
    peers: int = 0
    addresses: tuple[str, ...] = ()
    isolated: str = ""  # why the node counts as cut off although it is connected
    isolated_at: float | None = None  # since when, POSIX seconds


class Trainer(values.Value, frozen=True):
    """The trainer worker; `chart` is a state of trainer.yaml."""

    chart: TrainerState = "down"
    since: float = 0.0
    device: str = ""
    model: str = ""
    parameters: int = 0
    numbers: str = ""
    train: str = ""  # id of the latest `Train` sent; the trainer is at it while busy
    architecture: str = ""  # see `TrainerReady`
    tokenizer: str = ""
    reward_max: float | None = None  # highest possible reward of a stage; kept across restarts
    other_weights: str = ""  # see `TrainerReady`


class Clock(values.Value, frozen=True):
    """The swarm's round and stage, as last announced; times in POSIX seconds."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False


class StageResult(values.Value, frozen=True):
    """The result of training one stage."""

    reward: float
    rollouts: values.RolloutsRef
    seconds: float = 0.0
    steps: int = 0
    held_out: float | None = None


class StageWork(values.Value, frozen=True):
    """The stage that this node works on, and its progress."""

    round: int
    stage: int
    joined_at: float
    gathered: bool = False
    rollouts: tuple[values.RolloutsRef, ...] = ()
    result: StageResult | None = None
    published: bool = False
    failures: int = 0  # number of failures of the trainer at this stage
    context: tuple[values.RolloutsRef, ...] = ()  # see `swarmd.core.commands.Train`
    begun: bool = False  # whether the initial weights were decided, after an absence
    weights: values.PeerWeights | None = None  # to be evaluated by the trainer before it starts
    barred: tuple[values.KnownEvidence, ...] = ()  # see `swarmd.core.commands.Train`


class SkippedRounds(values.Value, frozen=True):
    """Rounds `first` to `last`, in which this node took no part; `at` is POSIX seconds."""

    first: int
    last: int
    cause: values.SkipCause
    at: float


class StageReward(values.Value, frozen=True):
    """The mean reward of a stage that this node trained, and the held-out accuracy after it if that was measured."""

    round: int
    stage: int
    reward: float
    held_out: float | None = None
    set_aside: tuple[tuple[str, int], ...] = ()  # of peers' rollouts not trained on, by reason: see `count_set_aside`
    fallen: tuple[values.Skill, ...] = ()  # tasks that were answered better before, at most `FALLEN_KEPT`


class LearningStatus(values.Value, frozen=True):
    """Whether the latest stages had a learning signal; `since` is POSIX seconds."""

    since: float  # start of the unbroken series of stages for which this holds
    stages: int  # number of stages in the series
    round: int  # last stage of the series, with the mean reward of the node's own completions
    stage: int
    reward: float
    flat: values.FlatStage | None = None  # why there was no signal; None: there was one


class FirstAccuracy(values.Value, frozen=True):
    """The held-out accuracy from which a node's training started: before its first step, or as first measured."""

    held_out: float
    untrained: bool  # before the first step


class Member(values.Value, frozen=True):
    """A peer in the coordinator's records."""

    peer: str
    name: str
    since_round: int  # round that was open (or next) when the peer first came or came back
    last_round: int = -1  # last round it reported in
    rounds: int = 0
    reward: float = 0.0
    left: bool = False
    worked: bool = True  # whether it has proof of work; if not, its reports count, but no stage waits for them
    heard: int = 0  # number of the stage in which it last reported, or that was open when it came (back)
    took_s: float = 0.0  # seconds from a stage's announcement to its report, see `swarmd.core.waiting`


class Report(values.Value, frozen=True):
    """A member's report of the open stage."""

    peer: str
    reward: float
    record: bytes
    took_s: float = 0.0  # since the stage's announcement


class Members(ValuesByPeer[Member]):
    """The members that a coordinator counts, in the order of their last change. `present`: number of members that have
    not left. `idle`: members without proof of work."""

    __slots__ = ("idle", "present")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        super().__init__(members)
        self.present = sum([not member.left for member in self])
        self.idle: ValuesByPeer[Member] = ValuesByPeer.from_values([member for member in self if not member.worked])

    def with_new_values(self, members: list[Member]) -> "Members":
        """Return the same members with new totals; presence and proof of work must be unchanged."""
        made = super().with_new_values(members)
        if self.idle:
            made.idle = ValuesByPeer.from_values([member for member in members if not member.worked])
        return made

    def _copy_counts_to(self, made: "Members") -> None:
        made.present, made.idle = self.present, self.idle

    def _update_counts(self, before: Member | None, after: Member | None) -> None:
        self.present += (after is not None and not after.left) - (before is not None and not before.left)
        if after is not None and not after.worked:
            self.idle = self.idle.put(after)
        elif before is not None and not before.worked:
            self.idle = self.idle.without_peer(before.peer)


class Reports(ValuesByPeer[Report]):
    """The reports of a stage, in order of arrival."""

    __slots__ = ()


NO_MEMBERS, NO_REPORTS = Members.empty(), Reports.empty()


def state_enc_hook(value: object) -> object:
    """Encode a state's `ValuesByPeer` as a list, as msgspec's `enc_hook`. Raises TypeError for any other type."""
    if isinstance(value, ValuesByPeer):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not part of a state")


def state_dec_hook(kind: type, value: Any) -> object:
    """Decode what `state_enc_hook` encoded, as msgspec's `dec_hook`.

    Raises:
        msgspec.ValidationError: the list's items do not fit `kind`.
        TypeError: `kind` is not part of a state.
    """
    if kind is Members:
        return Members.from_values(msgspec.convert(value, list[Member]))
    if kind is Reports:
        return Reports.from_values(msgspec.convert(value, list[Report]))
    raise TypeError(f"a {kind.__name__} is not part of a state")


class Equivocation(values.Value, frozen=True):
    """Evidence that a peer signed two different records for one place; the records are in the log's event."""

    kind: values.EvidenceKind
    peer: str
    round: int
    stage: int
    at: float  # when this node learned of it, POSIX seconds


class StageWaitState(values.Value, frozen=True):
    """Which members the open stage waits for, and how long; rules in `swarmd.core.waiting`."""

    number: int = 0  # number of the open stage, counted over all rounds
    since: float = 0.0  # time of its last announcement, POSIX seconds
    longest_s: float = 0.0  # longest wait for any member since then
    pace_s: float = 0.0  # typical report time, for members whose own is unknown; 0: none is known
    newcomers: bool = True  # whether it waits for members that were never credited
    vain_newcomers: float = 0.0  # stages that timed out waiting for such members, each gradually forgotten


class CoordinationBase(msgspec.Struct, gc=False, omit_defaults=True):
    """The coordinator's state as rules see it: `StepContext.coordination`, changed in place, or a `Coordination`."""

    chart: CoordinatorState = "idle"
    since: float = 0.0
    round: int = 0
    stage: int = 0
    opened_at: float = 0.0
    deadline_at: float = 0.0
    members: Members = NO_MEMBERS
    reports: Reports = NO_REPORTS  # of the open stage
    round_reports: tuple[Report, ...] = ()  # of the earlier stages of the open round
    standings: tuple[values.Standing, ...] = ()  # after the last closed round
    openings: int = 0  # number of announcements, so that one repeated after a restart gets its own id
    held_since: float | None = None  # time when the open stage would have closed if this node had not been alone
    barred: tuple[str, ...] = ()  # banned peers, whose reports of the open round do not count, sorted
    shards: int = 0  # shards of each stage's reports and rollouts from the round `sharded_since` on; 0: one key
    sharded_since: int = 0
    shards_before: int = 0  # in the rounds before
    waiting: StageWaitState = StageWaitState()
    expected: int = 0  # members whose reports the open stage waits for
    reported: int = 0  # how many of them have reported


class Coordination(CoordinationBase, frozen=True):  # type: ignore[misc]  # as for `State`
    """The coordinator's state between two events; immutable."""


class GroupCosts(values.Value, frozen=True):
    """Costs of informative groups on this node: sums over its stages, each weighted half as much as the next one.
    Seconds are wall time."""

    own_groups: float = 0.0  # drawn by this node
    own_s: float = 0.0  # seconds of drawing and scoring them, and the zero-variance groups among them
    peer_groups: float = 0.0  # peers' groups, fetched and scored
    peer_s: float = 0.0  # seconds of waiting for them, reading and scoring them
    trained_groups: float = 0.0  # own and peers' together
    pass_s: float = 0.0  # seconds in forward and backward passes


class StageTimes(values.Value, frozen=True):
    """Where a stage's wall time went on this node; no rule uses it. The parts are contiguous, from joining the stage to
    joining the next. Time in which the node was down or paused is left out."""

    round: int
    stage: int
    parts: tuple[tuple[values.NodePart, float], ...] = ()  # in seconds
    missing: int = 0  # peers' rollouts that could not be fetched in time
    train_at: float = 0.0  # when the trainer last got the stage, POSIX seconds
    trained: bool = False
    trainer: values.TrainerTimes | None = None  # breakdown of the part "train", if the trainer reports it
    peer_questions: int = 0  # maximum of peers' groups in a step, chosen by cost; 0: as configured
    costs: GroupCosts | None = None  # the costs behind that choice


class Submission(values.Value, frozen=True):
    """A submission that must reach the chain exactly once; `chart` is a state of submission.yaml."""

    id: str  # register, reward/<round>/<stage>, winners/<round>, advance/<round>/<stage>
    kind: values.SubmissionKind
    chart: SubmissionState = "intended"
    since: float = 0.0
    intended_at: float = 0.0
    round: int = 0
    stage: int = 0
    reward: int = 0
    winners: tuple[str, ...] = ()
    prepared: tuple[values.SubmissionAttempt, ...] = ()
    attempts: int = 0  # attempts made in total
    hash: str = ""  # of the transaction that was sent or included
    block: values.BlockRef | None = None  # the block that includes it
    code: str = ""  # why it was refused
    reason: str = ""


class ChainState(values.Value, frozen=True):
    """The node's view of the chain; `chart` is a state of link.yaml."""

    chart: LinkState = "down"
    since: float = 0.0
    reason: str = ""
    chain_id: int = 0
    contract: str = ""
    genesis: str = ""
    stages: int = 0
    account: str = ""
    registered: bool = False
    extensions: int = 0
    min_submissions: int = 0
    max_stage_s: int = 0
    round: int = 0  # the contract's round, which a reorganisation can take back; the node's clock never goes back
    stage: int = 0
    opened_at: float = 0.0
    recent: tuple[values.BlockRef, ...] = ()  # last reported blocks, oldest first
    reward_mark: tuple[int, int] = (-1, -1)  # highest (round, stage) with a reward of this node on the chain
    reward_block: int = -1  # number of the block with it
    vote_mark: int = -1  # highest round with a vote of this node on the chain
    vote_block: int = -1
    reporters: tuple[str, ...] = ()  # peers whose rewards for the current stage are on the chain
    counted: int = 0  # their number by the contract's count, if not all rewards are read
    handed: str = ""  # id of the submission that the current chain worker is carrying out
    failures: int = 0  # its failures in a row
    base_fee: bool = False  # whether its blocks have a base fee
    spent_day: int = -1  # last UTC day, counted from 1970, on which the account signed a transaction,
    spent_wei: str = "0"  # and the most that this day's may cost, decimal


class VoteScore(values.Value, frozen=True):
    """A peer's sum over the stages of a round, by its signed reports or by this node's own scoring."""

    peer: str
    stage: int  # last stage counted
    reward: float


class VoteTally(values.Value, frozen=True):
    """The scores that this node adds up over one round, for its vote."""

    round: int
    scores: tuple[VoteScore, ...] = ()


class HeardRound(values.Value, frozen=True):
    """The latest round that a restored node received, and the shortest delay between an opening and its arrival.

    `after_s` is the difference of this node's clock and the coordinator's, plus the message's delay; negative if this
    node's clock is behind.
    """

    round: int
    after_s: float


class WeightsCatchUp(values.Value, frozen=True):
    """A peer's weights that a node adopts or averages with its own, until it has trained its next stage."""

    round: int  # round of the request; after an absence this round waits for them, and later ones do not
    until_at: float  # deadline for waiting, POSIX seconds
    over: bool = False  # whether they have arrived or the wait was given up
    weights: values.PeerWeights | None = None
    given: bool = False  # whether the trainer has got them
    average: bool = False  # the own weights are averaged with them, and no round waits


class WeightsOutcome(values.Value, frozen=True):
    """The latest outcome of fetching a peer's weights, for display; no rule uses it."""

    at: float  # POSIX seconds
    outcome: Literal["fetched", "adopted", "refused", "late"]
    peer: str = ""  # the weights' owner; empty if there were none
    round: int = -1  # the last round that they were trained in; -1: unknown
    cause: str = ""  # of a refusal, see `swarmd.core.values.WeightsCause`
    reason: str = ""
    received_bytes: int = 0  # when they were fetched
    held_out_before: float | None = None  # accuracy of the own weights here
    held_out: float | None = None  # accuracy of the peer's weights, or of the average with them
    averaged: bool = False  # whether the average was adopted


class StateBase(msgspec.Struct, gc=False, omit_defaults=True):
    """The node's state as rules see it: a `StepContext`'s, changed in place, or a `State`. `chart` is a state of
    round.yaml."""

    settings: values.Settings | None = None
    forked_from: str = ""  # peer id of the node whose events the log begins with; empty if all are this node's own
    run: str = ""
    started_at: float = 0.0
    chart: RoundState = "stopped"
    since: float = 0.0  # when `chart` was entered
    clock: Clock | None = None
    work: StageWork | None = None
    done: tuple[int, int] = (-1, -1)  # last (round, stage) trained: never trained again
    link: NetworkLink = NetworkLink()
    network: WorkerState = WorkerState()
    trainer: Trainer = Trainer()
    training: WorkerState = WorkerState()
    coordination: Coordination | None = None
    pending: tuple[Command, ...] = ()  # unanswered commands; issued again when their worker comes up
    deadlines: tuple[Deadline, ...] = ()
    faulted: bool = False  # whether a fault occurred since the last trained stage: the cause of missed rounds
    stopped: bool = False  # whether it was stopped in order since then
    low_space: LowSpace | None = None  # no stage is started while this is set
    restored: bool = False  # restored from a backup, and no round has been seen opening since
    first_heard: int = -1  # the first round that a restored node received
    floor: int = 0  # first round to take part in; records signed before a restore are of earlier rounds
    skipped_to: int = -1  # last round recorded as skipped
    skips: tuple[SkippedRounds, ...] = ()
    rounds_skipped: int = 0
    rounds_joined: int = 0
    rewards: tuple[StageReward, ...] = ()
    learning: LearningStatus | None = None  # None until a stage is trained
    stage_times: StageTimes | None = None  # of the current stage, up to when `chart` was entered
    last_times: StageTimes | None = None  # of the last trained stage before it
    group_costs: GroupCosts = GroupCosts()
    reward_total: float = 0.0
    first_accuracy: FirstAccuracy | None = None  # None until measured
    tokens: values.TokenLedger = values.TokenLedger()
    rejections: tuple[tuple[str, int], ...] = ()
    stop_reason: str = ""
    exit_code: int = 0
    chain: ChainState | None = None  # present if a contract keeps the rounds
    chaining: WorkerState = WorkerState()  # the chain worker's process
    submissions: tuple[Submission, ...] = ()  # in the order in which they go out
    tally: VoteTally | None = None
    judging: VoteTally | None = None  # the previous round's tally, whose last stage is not judged yet
    members: tuple[str, ...] | None = None  # the contract's allow-list; None if anyone may take part
    equivocations: tuple[Equivocation, ...] = ()  # see `swarmd.core.evidence`, by round
    heard: HeardRound | None = None  # of a restored node in this run, until it has seen a round opening
    catch_up: WeightsCatchUp | None = None
    weights: WeightsOutcome | None = None
    averaged: tuple[values.AveragedOffer, ...] = ()  # peers' weights averaged so far that may be offered again


class State(StateBase, frozen=True):  # type: ignore[misc]  # mypy knows of this for data classes only
    """The node's state between two events; immutable."""


def next_deadline(state: State) -> Deadline | None:
    """Return the earliest deadline, if any."""
    first: Deadline | None = None
    for deadline in state.deadlines:
        if first is None or deadline.due_at < first.due_at:
            first = deadline
    return first
