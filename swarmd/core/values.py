"""The immutable values that events, commands and state are made of."""

from typing import Literal

import msgspec

Worker = Literal["network", "trainer", "chain"]
Role = Literal["coordinator", "follower"]
BehindPolicy = Literal["finish-stage", "abandon"]
AlonePolicy = Literal["hold", "go-on"]
SkipCause = Literal["slow", "late", "fault", "stopped"]
# Nobody trusted offers any that fit, or gives them; there is no room; they are damaged, or another model's; stages that
# began from them failed; nothing could be measured; they are not better than one's own; the mean of both is worse.
WeightsCause = Literal[
    "none-offered", "unavailable", "no-room", "damaged", "unfit", "failed", "unmeasured", "no-better", "worse"
]
# Why all of a peer's weights were fetched though less should have been enough: the base here, or the file that was here
# already, was not what its name says; or the peer's delta made another file than its manifest says.
WeightsDamage = Literal["", "base", "file", "delta"]
SubmissionKind = Literal["register", "reward", "winners", "advance"]
Drive = Literal["never", "policy", "manager"]
Votes = Literal["reported", "judged"]
EvidenceKind = Literal["report", "clock", "leaderboard"]  # of what somebody signed two different records


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of the immutable values that events, commands and state are made of."""


class CoordinatorSettings(Value, frozen=True):
    """How the coordinator opens and closes stages."""

    min_peers: int = 1  # members, itself included, before the first round opens
    start_s: float = 60.0  # longest wait for min_peers; then the first round opens with those who are there
    stage_s: float = 300.0  # longest a stage stays open
    quorum: float = 1.0  # share of the expected members whose reports close a stage early
    rounds_max: int = 0  # rounds to run in all, 0 for no end
    resume_s: float = 15.0  # a stage that was open when the coordinator died stays open at least this much longer
    when_alone: AlonePolicy = "go-on"  # with `min_peers` of 2 or more: what it does while it is cut off from all others
    shard_members: int = 0  # members whose records of a stage share a key, about; 0: all of them


class ChainSettings(Value, frozen=True):
    """How a node takes part in a swarm whose rounds are kept by a contract on an EVM chain."""

    sends: bool = True  # False: it follows the chain and submits nothing
    drive: Drive = "policy"  # moves the swarm on: never, by `advance()` when the policy allows, or as its stage manager
    stagger_s: float = 3.0  # nodes that may advance try one after another, so far apart
    stage_s: float = 300.0  # a stage's time where the contract's policy sets none
    reward_scale: int = 1000  # a reward of 1.0 is submitted as this integer
    winners: int = 1  # peers that this node votes for in each round, at most; 0: it does not vote
    votes: Votes = "reported"  # by the rewards that peers report, or by what this node's own trainer gives them
    resend_s: float = 60.0  # a submission without news for this long is looked at again


class PeerSlots(Value, frozen=True):
    """Between what bounds a node chooses, by their cost, how many groups of a step come from peers."""

    questions: int  # groups in a step
    usual: int  # of peers, while too little was measured
    at_most: int  # of peers


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
    coordination: CoordinatorSettings | None = None  # present where this node opens and closes the rounds
    chain: ChainSettings | None = None  # present if a contract keeps the rounds; then nobody coordinates them
    kind: str = ""  # what the swarm trains (swarm.kind)
    contract: str = ""  # "CHAIN_ID:address" of the contract that keeps the rounds, in lower case; empty without a chain
    catch_up_rounds: int = 0  # having missed this many, a node takes a peer's weights before it trains; 0: never
    catch_up_s: float = 300.0  # longest that it waits for them
    average_rounds: int = 0  # every this many rounds the own weights are averaged with a peer's; 0: never
    peer_slots: PeerSlots | None = None  # None: what the configuration says of peers' groups in a step is fixed


class RolloutsRef(Value, frozen=True):
    """Rollouts of one peer for one stage; the body lies in the blob store under its digest."""

    peer: str
    round: int
    stage: int
    digest: str  # sha256 of the encoded body, lower-case hex
    size_bytes: int
    groups: int  # questions, each with the same number of completions


class AveragedOffer(Value, frozen=True):
    """A peer's weights that go into a mean with a node's own, or did."""

    peer: str
    round: int  # the last one that they were trained in, as the peer claims
    digest: str  # sha256 of the file, lower-case hex


class PeerWeights(Value, frozen=True):
    """Weights that a peer offered and that are here now, in a file under their digest; what they are is its claim."""

    peer: str
    round: int  # the last one that they were trained in
    digest: str  # sha256 of the file, lower-case hex
    size_bytes: int  # of this file
    accuracy: float | None = None  # on held-out questions
    averaged: bool = False  # the mean of them and of the own ones is meant, not they alone
    others: tuple[AveragedOffer, ...] = ()  # of other peers, for the same mean

    @property
    def offers(self) -> tuple[AveragedOffer, ...]:
        """All that go into the mean, these first."""
        return AveragedOffer(self.peer, self.round, self.digest), *self.others


class Judgement(Value, frozen=True):
    """What this node's own scoring of a peer's published rollouts comes to."""

    peer: str
    worth: float


class SetAside(Value, frozen=True):
    """What of a peer's rollouts a stage did not learn from: tokens that nothing but that peer's word stood for, and
    groups whose places went to others."""

    peer: str
    tokens: int  # of its completions that would have raised something
    held: int  # of these, set aside
    text: str = ""  # one of the completions, cut short, without control characters
    part: str = ""  # what of it was set aside
    mark: str = ""  # a text that stands in the peer's right answers and hardly anywhere else; empty: none found
    mark_right: float = 0.0  # share of the peer's right completions that it stands in
    mark_wrong: float = 0.0  # of its wrong ones
    mark_own: float = 0.0  # of this node's own
    over_share: int = 0  # groups that were passed over, as the peer had its share of a batch
    of_little: int = 0  # groups that were passed over for others', as little of this peer's counts
    too_long: int = 0  # groups that were passed over, as this peer's right answers are longer than others'


SKILL_NAME_MAX = 64  # characters of a task's name
SKILLS_MAX = 32  # tasks of which a stage tells


class Skill(Value, frozen=True):
    """How a node answers the held-out questions of one task, and whether it did so better before."""

    task: str  # `SKILL_NAME_MAX` characters of it
    held_out: float  # accuracy
    questions: int  # that were asked
    best: float  # that the mean of the latest accuracies was
    fallen: bool = False  # that mean is below the best by more than chance explains
    weight: float = 1.0  # how often it is drawn, as a multiple of the others


# What most completions of a stage without anything to learn have in common: no answer in the expected form, cut off at
# the limit before there was one, wrong, right, paid alike for no known reason, or not to be scored.
FlatCause = Literal["form", "cut", "wrong", "right", "constant", "failed"]


class FlatStage(Value, frozen=True):
    """A stage with nothing to learn: in nearly all of the node's own groups every completion was paid alike."""

    cause: FlatCause
    groups: int  # of the node's own
    flat: int  # of these, paid alike
    completions: int  # in the flat groups
    alike: int  # of these, those that the cause explains
    example: str = ""  # one of them, cut short, without control characters


# Parts of the time that a trainer takes for a stage: making questions, batches and rollouts ready, reading and scoring
# peers' groups, reading prompts, drawing tokens, giving the weights to what draws, scoring own groups, the passes
# forward and backward (or both as `gradients`, where they are not told apart), the optimiser's step, TRL's loop around
# all these, held-out accuracy, waiting until the checkpoint of the stage before is on disk.
TrainerPart = Literal[
    "prepare", "judge", "prefill", "decode", "sync", "score", "forward", "backward", "gradients", "optimiser", "loop",
    "evaluation", "checkpoint", "other",
]  # fmt: skip
# Parts of a stage's time besides the trainer's: fetching peers' rollouts, being cut off from the network, waiting for
# the trainer, handing its order and report over (with freeing memory), publishing the report, submitting to the chain,
# waiting for the next stage.
NodePart = Literal["gather", "network", "load", "train", "handover", "publish", "submit", "wait"]


class TrainerTimes(Value, frozen=True):
    """How a trainer spent the wall time of one stage."""

    parts: tuple[tuple[TrainerPart, float], ...]  # in seconds, up to its report
    processor_s: float = 0.0  # processor time of all its threads
    elsewhere: bool = False  # an accelerator or a server computes, and the processor may wait
    idle_cores: int = 0  # that its threads leave idle though the model is large enough for more
    faults: int = 0  # pages of memory that had to be read from disk
    tail_s: float = 0.0  # of drawing, with an eighth of a batch or less left
    own_groups: int = 0  # informative ones that the node drew
    peer_groups: int = 0  # informative ones of peers that it read and scored
    trained_groups: int = 0  # that went through the passes, whoever drew them


class PeerTokens(Value, frozen=True):
    """Tokens of one peer's completions that this node was taught by: those that raised something."""

    peer: str  # empty: all others together
    tokens: int


class StageTokens(Value, frozen=True):
    """What became of the tokens that a node's model drew in a stage that was trained; see `TokenLedger`."""

    drawn: int  # in all of the node's life, at the end of the stage
    generated: int  # in the stage
    trained: int = 0
    flat: int = 0
    set_aside: int = 0
    shared: int = 0
    cancelled: int = 0  # drawn once more, since memory ran out
    teachers: tuple[PeerTokens, ...] = ()  # peers whose tokens were trained on, those with most first


class TokenLedger(Value, frozen=True):
    """What became of all tokens that a node's model drew for training; rules in `swarmd.core.token_ledger`."""

    drawn: int = 0  # the trainer's count, as last told
    generated: int = 0  # the sum of the classes that follow
    trained: int = 0  # in groups that were trained on
    flat: int = 0  # in groups without variance: every completion was paid alike
    stale: int = 0  # trained on, and the weights that learnt from them are gone: they were never on disk
    cancelled: int = 0  # for stages that were given up, or failed, or were interrupted
    set_aside: int = 0  # in groups that could teach something, for which a batch had no room, and that were not shared
    shared: int = 0  # the same, and they were shared: other nodes may have been taught by them
    unsaved: int = 0  # of `trained`: those of the stage `unsaved_at`, whose checkpoint is not known to be on disk
    unsaved_at: tuple[int, int] = (-1, -1)
    teachers: tuple[PeerTokens, ...] = ()  # peers whose tokens were trained on, those with most first


class Standing(Value, frozen=True):
    """One row of the leaderboard."""

    peer: str
    name: str
    reward: float  # sum of the stage rewards so far
    rounds: int  # rounds in which at least one report arrived in time
    last_round: int  # last such round
    admitted: bool = True  # by proof of work or an invitation


class BlockRef(Value, frozen=True):
    """A block; hashes are lower-case hex with 0x."""

    number: int
    hash: str
    parent: str = ""  # hash of the block before
    at: float = 0.0  # the block's own time, POSIX seconds


def utc_day_of(at: float) -> int:
    """The day of UTC that a time in POSIX seconds belongs to, counted from 1970."""
    return int(at // 86_400)


class SubmissionAttempt(Value, frozen=True):
    """One attempt at a submission, complete before it leaves.

    A wallet's is a signed transaction, which can be sent any number of times and be mined once. One through a signer
    proxy has no transaction of its own: nonce -1, and hash and raw are empty.
    """

    hash: str = ""
    nonce: int = -1
    raw: bytes = b""
    fee_wei: str = "0"  # most that a unit of gas may cost, decimal
    cost_wei: str = "0"  # most that it may cost in all, decimal


class KnownEvidence(Value, frozen=True):
    """Evidence of two different signed records that the log holds, without the records."""

    kind: EvidenceKind
    peer: str  # who signed both
    round: int
