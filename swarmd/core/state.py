"""What a node knows: the fold of its events.

State is only ever made by `swarmd.core.step.step`. Everything in it is bounded; the bounds stand here by name.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from swarmd.core import values
from swarmd.core.by_peer import ValuesByPeer
from swarmd.core.chart_types import CoordinatorState, LinkState, RoundState, SubmissionState, TrainerState
from swarmd.core.commands import Command

SKIPS_KEPT = 32  # most recent skips shown by status; the log has them all
REWARDS_KEPT = 128  # most recent own stage rewards
FALLEN_KEPT = 4  # tasks of each that have fallen, with it
MEMBERS_MAX = 16_384  # members a coordinator keeps count of; further ones are not counted towards quorum
ONCHAIN_PEERS_MAX = 4096  # peers of a contract: those that reported in a stage, are voted for, or are on its list
REJECTIONS_KEPT = 64  # distinct (reason) counters
OUTBOX_MAX = 1024  # submissions not yet on the chain; one more is refused at once, and recorded as such
SETTLED_KEPT = 64  # most recent submissions that are confirmed or refused
PREPARED_KEPT = 8  # attempts at one submission that are remembered, the oldest are forgotten
BLOCKS_KEPT = 64  # most recent blocks that were reported, for finding where a reorganisation forked off


class Deadline(values.Value, frozen=True):
    """A wait with an end. When it passes, the shell records `TimerFired(name, due_at)`."""

    name: str
    due_at: float


class WorkerState(values.Value, frozen=True):
    """The life of one worker process."""

    attempt: int = 0
    pid: int = 0
    exits: tuple[float, ...] = ()  # times of recent unplanned exits, within the restart window
    reason: str = ""  # of the last exit
    outside: tuple[float, ...] = ()  # times of recent ends that others caused: they cost nothing of the budget


class LowSpace(values.Value, frozen=True):
    """The disk is too full to train on."""

    free_bytes: int  # when it was noticed last
    wanted_bytes: int
    since: float  # POSIX seconds


class NetworkLink(values.Value, frozen=True):
    """The connection to the DHT; `chart` is a state of link.yaml."""

    chart: LinkState = "down"
    since: float = 0.0
    reason: str = ""
    peers: int = 0
    addresses: tuple[str, ...] = ()
    isolated: str = ""  # why the node counts as cut off though it is connected
    isolated_at: float | None = None  # since when, POSIX seconds


class Trainer(values.Value, frozen=True):
    """The trainer worker; `chart` is a state of trainer.yaml."""

    chart: TrainerState = "down"
    since: float = 0.0
    device: str = ""
    model: str = ""
    parameters: int = 0
    numbers: str = ""
    train: str = ""  # id of the `Train` it was given last; it is at that one while busy
    architecture: str = ""  # see `TrainerReady`
    tokenizer: str = ""
    reward_max: float | None = None  # the most that anybody's stage can be worth; kept through restarts
    other_weights: str = ""  # see `TrainerReady`


class Clock(values.Value, frozen=True):
    """The round and stage in which the swarm is, as last announced; times in POSIX seconds."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False


class StageResult(values.Value, frozen=True):
    """What training one stage gave."""

    reward: float
    rollouts: values.RolloutsRef
    seconds: float = 0.0
    steps: int = 0
    held_out: float | None = None


class StageWork(values.Value, frozen=True):
    """The stage this node works on, and how far it is."""

    round: int
    stage: int
    joined_at: float
    gathered: bool = False
    rollouts: tuple[values.RolloutsRef, ...] = ()
    result: StageResult | None = None
    published: bool = False
    failures: int = 0  # times the trainer failed at it
    context: tuple[values.RolloutsRef, ...] = ()  # see `swarmd.core.commands.Train`
    begun: bool = False  # whether it was decided, after an absence, what it is trained from
    weights: values.PeerWeights | None = None  # that the trainer is to measure before it
    barred: tuple[values.KnownEvidence, ...] = ()  # see `swarmd.core.commands.Train`


class SkippedRounds(values.Value, frozen=True):
    """Rounds in which this node took no part, first and last included; `at` is POSIX seconds."""

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
    set_aside: tuple[tuple[str, int], ...] = ()  # of peers' rollouts, by reason: see `count_set_aside`
    fallen: tuple[values.Skill, ...] = ()  # tasks that were answered better before, `FALLEN_KEPT` at most


class LearningStatus(values.Value, frozen=True):
    """Whether the latest stages had anything to learn from; `since` is POSIX seconds."""

    since: float  # the first stage of which it is so, without another between
    stages: int  # of which it is so
    round: int  # the last of them, with the mean reward of the node's own completions
    stage: int
    reward: float
    flat: values.FlatStage | None = None  # what was the matter; None: there was something to learn


class FirstAccuracy(values.Value, frozen=True):
    """The held-out accuracy that a node's training began from: before its very first step, or as first measured."""

    held_out: float
    untrained: bool  # before the first step


class Member(values.Value, frozen=True):
    """A peer as the coordinator knows it."""

    peer: str
    name: str
    since_round: int  # round that was open (or next) when it was first seen or came back
    last_round: int = -1  # last round it reported in
    rounds: int = 0
    reward: float = 0.0
    left: bool = False
    worked: bool = True  # else its reports count, and no stage waits for them
    heard: int = 0  # number of the stage in which it last reported, or that was open when it came (back)
    took_s: float = 0.0  # from a stage's announcement to its report, see `swarmd.core.waiting`


class Report(values.Value, frozen=True):
    """A member's report of the stage that is open."""

    peer: str
    reward: float
    record: bytes
    took_s: float = 0.0  # since the stage's announcement


class Members(ValuesByPeer[Member]):
    """The members a coordinator keeps count of, in the order in which they changed last. `present`: members that have
    not left. `idle`: those that have not done the work that every node does."""

    __slots__ = ("idle", "present")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        super().__init__(members)
        self.present = sum([not member.left for member in self])
        self.idle: ValuesByPeer[Member] = ValuesByPeer.from_values([member for member in self if not member.worked])

    def with_new_values(self, members: list[Member]) -> "Members":
        """The same members with new accounts: who is there, and who has worked, stays."""
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
    """The reports of a stage, in the order in which they came."""

    __slots__ = ()


NO_MEMBERS, NO_REPORTS = Members.empty(), Reports.empty()


def state_enc_hook(value: object) -> object:
    """msgspec's `enc_hook`: what it does not know by itself of a state, as lists. Raises TypeError."""
    if isinstance(value, ValuesByPeer):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not part of a state")


def state_dec_hook(kind: type, value: Any) -> object:
    """The way back (msgspec's `dec_hook`).

    Raises:
        msgspec.ValidationError: the list does not hold what `kind` holds.
        TypeError: `kind` is not part of a state.
    """
    if kind is Members:
        return Members.from_values(msgspec.convert(value, list[Member]))
    if kind is Reports:
        return Reports.from_values(msgspec.convert(value, list[Report]))
    raise TypeError(f"a {kind.__name__} is not part of a state")


class Equivocation(values.Value, frozen=True):
    """Somebody signed two different records for one place; the event of the log has them."""

    kind: values.EvidenceKind
    peer: str
    round: int
    stage: int
    at: float  # when this node learnt of it, POSIX seconds


class StageWaitState(values.Value, frozen=True):
    """Whom the open stage waits for, and how long; rules in `swarmd.core.waiting`."""

    number: int = 0  # of the open stage, counted over all rounds
    since: float = 0.0  # when it was announced last, POSIX seconds
    longest_s: float = 0.0  # longest that it waits for anybody since then
    pace_s: float = 0.0  # how long members take, for those whose own time is not known; 0: nobody's is
    newcomers: bool = True  # whether it waits for members that were never credited
    vain_newcomers: float = 0.0  # stages that waited for such in vain, and are not forgotten


class CoordinationBase(msgspec.Struct, gc=False, omit_defaults=True):
    """The coordinator's side as rules read it: `StepContext.coordination`, changed in place, or a `Coordination`."""

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
    openings: int = 0  # announcements made, so that one made again after a restart has an id of its own
    held_since: float | None = None  # the open stage would have closed then, but this node was alone
    barred: tuple[str, ...] = ()  # peers whose reports of the open round do not count, sorted
    shards: int = 0  # of each stage's reports and rollouts from the round `sharded_since` on; 0: they lie together
    sharded_since: int = 0
    shards_before: int = 0  # in the rounds before
    waiting: StageWaitState = StageWaitState()
    expected: int = 0  # members whose reports the open stage waits for
    reported: int = 0  # those of them whose reports have come


class Coordination(CoordinationBase, frozen=True):  # type: ignore[misc]  # as for `State`
    """The coordinator's side between two events; immutable."""


class GroupCosts(values.Value, frozen=True):
    """What informative groups have cost this node: sums over its stages, in which each stage counts half as much as
    the next. Seconds are of wall time."""

    own_groups: float = 0.0  # drawn here
    own_s: float = 0.0  # drawing and scoring them, and the groups without variance beside them
    peer_groups: float = 0.0  # of peers, fetched and scored
    peer_s: float = 0.0  # waiting for them, reading and scoring them
    trained_groups: float = 0.0  # of both
    pass_s: float = 0.0  # in the passes through the model


class StageTimes(values.Value, frozen=True):
    """Where the wall time of a stage went on this node; no rule reads it. The parts lie end to end, from joining the
    stage to joining the next. Time in which the node was down or paused is left out."""

    round: int
    stage: int
    parts: tuple[tuple[values.NodePart, float], ...] = ()  # in seconds
    missing: int = 0  # peers' rollouts that could not be fetched in time
    train_at: float = 0.0  # when the trainer was given the stage last, POSIX seconds
    trained: bool = False
    trainer: values.TrainerTimes | None = None  # what the part "train" is made of, if the trainer says so
    peer_questions: int = 0  # groups of a step from peers at most, chosen by their cost; 0: as configured
    costs: GroupCosts | None = None  # by which these were chosen


class Submission(values.Value, frozen=True):
    """Something this node wants on the chain exactly once; `chart` is a state of submission.yaml."""

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
    attempts: int = 0  # made in all
    hash: str = ""  # of the transaction that was sent or included
    block: values.BlockRef | None = None  # that includes it
    code: str = ""  # why it was refused
    reason: str = ""


class ChainState(values.Value, frozen=True):
    """The chain as this node knows it; `chart` is a state of link.yaml."""

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
    round: int = 0  # where the contract is, which a reorganisation can take back; the node's clock never goes back
    stage: int = 0
    opened_at: float = 0.0
    recent: tuple[values.BlockRef, ...] = ()  # last reported blocks, oldest first
    reward_mark: tuple[int, int] = (-1, -1)  # highest (round, stage) that the chain has a reward of this node for
    reward_block: int = -1  # number of the block with it
    vote_mark: int = -1  # highest round that the chain has a vote of this node for
    vote_block: int = -1
    reporters: tuple[str, ...] = ()  # peers whose rewards for the present stage are on the chain
    counted: int = 0  # how many these are by the contract's count, if not all are read
    handed: str = ""  # submission that the worker was told to bring about, in its present life
    failures: int = 0  # of that one, one after another
    base_fee: bool = False  # its blocks were seen to have one
    spent_day: int = -1  # last day of UTC, counted from 1970, on which the account signed for something,
    spent_wei: str = "0"  # and what that may cost at most, decimal


class VoteScore(values.Value, frozen=True):
    """What a peer's stages of a round come to, by its signed reports or by this node's own scoring."""

    peer: str
    stage: int  # last stage counted
    reward: float


class VoteTally(values.Value, frozen=True):
    """What this node counts of one round, for its vote."""

    round: int
    scores: tuple[VoteScore, ...] = ()


class HeardRound(values.Value, frozen=True):
    """A round that a restored node has heard of, and how long after an opening it heard of one at the earliest.

    `after_s` is this node's clock less the coordinator's, and what the message took; less than nothing where this
    node's clock is behind.
    """

    round: int
    after_s: float


class WeightsCatchUp(values.Value, frozen=True):
    """Weights of a peer that a node takes over or averages its own with, until it has trained a stage since."""

    round: int  # in which they were asked for; after an absence it waits for them, and later ones do not
    until_at: float  # when they are given up, POSIX seconds
    over: bool = False  # whether they are here, or given up
    weights: values.PeerWeights | None = None
    given: bool = False  # whether the trainer has been given them
    average: bool = False  # the own weights are averaged with them, and no round waits


class WeightsOutcome(values.Value, frozen=True):
    """What became of a peer's weights last, for people; no rule reads it."""

    at: float  # POSIX seconds
    outcome: Literal["fetched", "adopted", "refused", "late"]
    peer: str = ""  # whose; empty if there were none
    round: int = -1  # the last one that they were trained in; -1: unknown
    cause: str = ""  # of a refusal, see `swarmd.core.values.WeightsCause`
    reason: str = ""
    received_bytes: int = 0  # when they were fetched
    held_out_before: float | None = None  # accuracy of the own weights here
    held_out: float | None = None  # that of the peer's, or of the mean with them
    averaged: bool = False  # the mean was adopted


class StateBase(msgspec.Struct, gc=False, omit_defaults=True):
    """The node's state as rules read it: a `StepContext`'s, changed in place, or a `State`. `chart` is one of
    round.yaml."""

    settings: values.Settings | None = None
    forked_from: str = ""  # peer id of the node whose events the log begins with; empty if they are all its own
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
    pending: tuple[Command, ...] = ()  # issued or due, not yet answered; issued again when their port comes up
    deadlines: tuple[Deadline, ...] = ()
    faulted: bool = False  # something broke since a stage was last trained: the cause of rounds missed meanwhile
    stopped: bool = False  # it was stopped in order since then
    low_space: LowSpace | None = None  # while it is there, no stage is begun
    restored: bool = False  # from a backup, and no round has been seen opening since
    first_heard: int = -1  # the round that such a node heard of first
    floor: int = 0  # first round to take part in; what was signed before a restore is below
    skipped_to: int = -1  # last round recorded as skipped
    skips: tuple[SkippedRounds, ...] = ()
    rounds_skipped: int = 0
    rounds_joined: int = 0
    rewards: tuple[StageReward, ...] = ()
    learning: LearningStatus | None = None  # None until a stage is trained
    stage_times: StageTimes | None = None  # of the stage in hand, up to when `chart` was entered
    last_times: StageTimes | None = None  # of the stage before it that was trained
    group_costs: GroupCosts = GroupCosts()
    reward_total: float = 0.0
    first_accuracy: FirstAccuracy | None = None  # None before any was measured
    tokens: values.TokenLedger = values.TokenLedger()
    rejections: tuple[tuple[str, int], ...] = ()
    stop_reason: str = ""
    exit_code: int = 0
    chain: ChainState | None = None  # present if a contract keeps the rounds
    chaining: WorkerState = WorkerState()  # the chain worker's process
    submissions: tuple[Submission, ...] = ()  # in the order in which they go out
    tally: VoteTally | None = None
    judging: VoteTally | None = None  # the round before, whose last stage is still to be judged
    members: tuple[str, ...] | None = None  # the contract's allow-list, None where everybody may take part
    equivocations: tuple[Equivocation, ...] = ()  # see `swarmd.core.evidence`, by round
    heard: HeardRound | None = None  # by a restored node in this life, until it has seen a round opening
    catch_up: WeightsCatchUp | None = None
    weights: WeightsOutcome | None = None
    averaged: tuple[values.AveragedOffer, ...] = ()  # that a later offer may still be, the oldest first


class State(StateBase, frozen=True):  # type: ignore[misc]  # mypy knows of this for data classes only
    """The node's state between two events; immutable."""


def next_deadline(state: State) -> Deadline | None:
    """The deadline that passes first, if any."""
    first: Deadline | None = None
    for deadline in state.deadlines:
        if first is None or deadline.due_at < first.due_at:
            first = deadline
    return first
