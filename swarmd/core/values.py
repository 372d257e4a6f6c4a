"""The immutable values that events, commands and state are made of."""

from typing import Literal

import msgspec

Worker = Literal["network", "trainer", "chain"]
Role = Literal["coordinator", "follower"]
BehindPolicy = Literal["finish-stage", "abandon"]
AlonePolicy = Literal["hold", "go-on"]
SkipCause = Literal["slow", "late", "fault", "stopped"]
# Nobody trusted offers weights that fit, or sends them; there is no disk space; they are damaged, or another model's;
# stages that started from them failed; nothing could be measured; they are not better than the own ones; the average is
# worse.
WeightsCause = Literal[
    "none-offered", "unavailable", "no-room", "damaged", "unfit", "failed", "unmeasured", "no-better", "worse"
]
# Why all of a peer's weights were fetched though less should have been enough: the local base, or the local file, did
# not
# match its digest; or the peer's delta yielded another file than its manifest says.
WeightsDamage = Literal["", "base", "file", "delta"]
SubmissionKind = Literal["register", "reward", "winners", "advance"]
Drive = Literal["never", "policy", "manager"]
Votes = Literal["reported", "judged"]
EvidenceKind = Literal["report", "clock", "leaderboard"]  # kind of record that was signed in two versions


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of the immutable values that events, commands and state are made of."""


class CoordinatorSettings(Value, frozen=True):
    """How the coordinator opens and closes stages."""

    min_peers: int = 1  # members, itself included, before the first round opens
    start_s: float = 60.0  # longest wait for min_peers; then the first round opens with the members present
    stage_s: float = 300.0  # longest a stage stays open
    quorum: float = 1.0  # share of the expected members whose reports close a stage early
    rounds_max: int = 0  # rounds to run in all, 0 for no end
    resume_s: float = 15.0  # a stage that was open when the coordinator died stays open at least this much longer
    when_alone: AlonePolicy = "go-on"  # with `min_peers` of 2 or more: what it does while it is cut off from all others
    shard_members: int = 0  # approximate number of members whose records of a stage share a key; 0: all of them


class ChainSettings(Value, frozen=True):
    """How a node takes part in a swarm whose rounds are kept by a contract on an EVM chain."""

    sends: bool = True  # False: it follows the chain and submits nothing
    drive: Drive = "policy"  # how it advances the swarm: never, by `advance()` under the policy, or as stage manager
    stagger_s: float = 3.0  # delay between the attempts of nodes that may advance
    stage_s: float = 300.0  # a stage's time if the contract's policy sets none
    reward_scale: int = 1000  # a reward of 1.0 is submitted as this integer
    winners: int = 1  # maximum of peers that this node votes for in each round; 0: it does not vote
    votes: Votes = "reported"  # by the rewards that peers report, or by this node's own scoring
    resend_s: float = 60.0  # a submission without news for this long is checked again


class PeerSlots(Value, frozen=True):
    """The bounds within which a node chooses, by cost, how many groups of a step come from peers."""

    questions: int  # groups in a step
    usual: int  # peers' groups while too little was measured
    at_most: int  # maximum of peers' groups


class Settings(Value, frozen=True):
    """The part of a node's configuration that decides its behaviour; logged at every start for replay."""

    peer: str  # this node's peer id
    swarm: str  # swarm id, part of every DHT key
    role: Role
    coordinator: str  # peer id of the coordinator, whose announcements count
    name: str = ""
    stages: int = 1  # stages in a round
    behind: BehindPolicy = "finish-stage"
    gather_s: float = 5.0  # longest wait for peers' rollouts
    train_s: float = 600.0  # longest a stage may train on this node
    publish_s: float = 30.0  # a report not acknowledged for this long is sent again
    clock_s: float = 20.0  # silence after a passed stage deadline before the clock is read again
    ready_s: float = 180.0  # longest start of a worker until it reports ready
    restarts_max: int = 8  # worker exits within restart_window_s that end the node
    restart_window_s: float = 300.0
    coordination: CoordinatorSettings | None = None  # present if this node opens and closes the rounds
    chain: ChainSettings | None = None  # present if a contract keeps the rounds; then nobody coordinates them
    kind: str = ""  # what the swarm trains (swarm.kind)
    contract: str = ""  # "CHAIN_ID:address" of the contract that keeps the rounds, in lower case; empty without a chain
    catch_up_rounds: int = 0  # after missing this many rounds, a node adopts a peer's weights; 0: never
    catch_up_s: float = 300.0  # longest that it waits for them
    average_rounds: int = 0  # every this many rounds the own weights are averaged with a peer's; 0: never
    peer_slots: PeerSlots | None = None  # None: the configuration fixes the number of peers' groups in a step


class RolloutsRef(Value, frozen=True):
    """A reference to one peer's rollouts of one stage; the body is in the blob store under its digest."""

    peer: str
    round: int
    stage: int
    digest: str  # sha256 of the encoded body, lower-case hex
    size_bytes: int
    groups: int  # questions, each with the same number of completions


class AveragedOffer(Value, frozen=True):
    """A peer's weights that are, or were, averaged with a node's own."""

    peer: str
    round: int  # the last round that they were trained in, as the peer claims
    digest: str  # sha256 of the file, lower-case hex


class PeerWeights(Value, frozen=True):
    """A peer's weights that were fetched, in a file named by their digest; the other fields are the peer's claims."""

    peer: str
    round: int  # the last round that they were trained in
    digest: str  # sha256 of the file, lower-case hex
    size_bytes: int  # of this file
    accuracy: float | None = None  # on held-out questions
    averaged: bool = False  # use the average of them and the own weights instead of them alone
    others: tuple[AveragedOffer, ...] = ()  # of other peers, for the same average

    @property
    def offers(self) -> tuple[AveragedOffer, ...]:
        """All weights that are averaged, these first."""
        return AveragedOffer(self.peer, self.round, self.digest), *self.others


class Judgement(Value, frozen=True):
    """This node's own score of a peer's published rollouts."""

    peer: str
    worth: float


class SetAside(Value, frozen=True):
    """Parts of a peer's rollouts that a stage did not train on: tokens supported only by that peer's rollouts, and
    groups whose slots went to others."""

    peer: str
    tokens: int  # tokens of its completions with positive advantage
    held: int  # how many of these were masked
    text: str = ""  # one of the completions, cut short, without control characters
    part: str = ""  # the part of it that was masked
    mark: str = ""  # a text that occurs in the peer's right answers and hardly anywhere else; empty: none found
    mark_right: float = 0.0  # share of the peer's right completions that contain it
    mark_wrong: float = 0.0  # of its wrong ones
    mark_own: float = 0.0  # of this node's own
    over_share: int = 0  # groups skipped because the peer had its share of a batch
    of_little: int = 0  # groups skipped for others' because few of this peer's count
    too_long: int = 0  # groups skipped because this peer's right answers are longer than others'


SKILL_NAME_MAX = 64  # characters of a task's name
SKILLS_MAX = 32  # tasks that a stage reports


class Skill(Value, frozen=True):
    """A node's accuracy on the held-out questions of one task, and whether it was better before."""

    task: str  # `SKILL_NAME_MAX` characters of it
    held_out: float  # accuracy
    questions: int  # number of questions asked
    best: float  # highest running mean of the accuracies
    fallen: bool = False  # whether the running mean is below the best by more than chance explains
    weight: float = 1.0  # how often it is drawn, relative to the others


# What most completions of a stage without a learning signal have in common: no answer in the expected form, cut off at
# the limit before there was one, wrong, right, equal rewards for an unknown reason, or not scorable.
FlatCause = Literal["form", "cut", "wrong", "right", "constant", "failed"]


class FlatStage(Value, frozen=True):
    """A stage without a learning signal: nearly all of the node's own groups have zero variance."""

    cause: FlatCause
    groups: int  # number of the node's own groups
    flat: int  # how many of these have zero variance
    completions: int  # completions in the zero-variance groups
    alike: int  # how many of these the cause explains
    example: str = ""  # one of them, cut short, without control characters


# Parts of a trainer's time for a stage: preparing questions, batches and rollouts, reading and scoring peers' groups,
# reading prompts, drawing tokens, copying weights to the generator, scoring own groups, the forward and backward passes
# (or both as `gradients`, if they are not distinguished), the optimiser's step, TRL's loop around all these, held-out
# accuracy, waiting until the previous stage's checkpoint is on disk.
TrainerPart = Literal[
    "prepare", "judge", "prefill", "decode", "sync", "score", "forward", "backward", "gradients", "optimiser", "loop",
    "evaluation", "checkpoint", "other",
]  # fmt: skip
# Parts of a stage's time besides the trainer's: fetching peers' rollouts, being cut off from the network, waiting for
# the trainer, transferring its command and report (and freeing memory), publishing the report, submitting to the chain,
# waiting for the next stage.
NodePart = Literal["gather", "network", "load", "train", "handover", "publish", "submit", "wait"]


class TrainerTimes(Value, frozen=True):
    """How a trainer spent the wall time of one stage."""

    parts: tuple[tuple[TrainerPart, float], ...]  # in seconds, up to its report
    processor_s: float = 0.0  # processor time of all its threads
    elsewhere: bool = False  # an accelerator or a server computes, and the processor may wait
    idle_cores: int = 0  # cores left idle by its threads although the model is large enough for more
    faults: int = 0  # pages of memory that had to be read from disk
    tail_s: float = 0.0  # seconds of drawing with an eighth of a batch or less left
    own_groups: int = 0  # informative groups that the node drew
    peer_groups: int = 0  # informative groups of peers that it read and scored
    trained_groups: int = 0  # groups that went through the passes, own or peers'


class PeerTokens(Value, frozen=True):
    """Tokens of one peer's completions that this node trained on, with positive advantage."""

    peer: str  # empty: all others together
    tokens: int


class StageTokens(Value, frozen=True):
    """The fate of the tokens that a node's model drew in a trained stage; classes as in `TokenLedger`."""

    drawn: int  # since the node was created, up to the end of the stage
    generated: int  # in the stage
    trained: int = 0
    flat: int = 0
    set_aside: int = 0
    shared: int = 0
    cancelled: int = 0  # drawn again because memory ran out
    teachers: tuple[PeerTokens, ...] = ()  # peers whose tokens were trained on, those with most first


class TokenLedger(Value, frozen=True):
    """The fate of all tokens that a node's model drew for training; rules in `swarmd.core.token_ledger`."""

    drawn: int = 0  # the trainer's count, as last reported
    generated: int = 0  # the sum of the following classes
    trained: int = 0  # in groups that were trained on
    flat: int = 0  # in zero-variance groups, where all completions got the same reward
    stale: int = 0  # trained on, but the weights that learned from them were lost before they were on disk
    cancelled: int = 0  # for stages that were given up, failed, or were interrupted
    set_aside: int = 0  # in informative groups that did not fit into a batch and were not shared
    shared: int = 0  # the same, but shared: other nodes may have trained on them
    unsaved: int = 0  # those of `trained` from the stage `unsaved_at`, whose checkpoint is not known to be on disk
    unsaved_at: tuple[int, int] = (-1, -1)
    teachers: tuple[PeerTokens, ...] = ()  # peers whose tokens were trained on, those with most first


class Standing(Value, frozen=True):
    """One row of the leaderboard."""

    peer: str
    name: str
    reward: float  # sum of the stage rewards so far
    rounds: int  # rounds in which at least one report arrived in time
    last_round: int  # the last such round
    admitted: bool = True  # by proof of work or an invitation


class BlockRef(Value, frozen=True):
    """A block; hashes are lower-case hex with 0x."""

    number: int
    hash: str
    parent: str = ""  # hash of the block before
    at: float = 0.0  # the block's own time, POSIX seconds


def utc_day_of(at: float) -> int:
    """Return the UTC day of a time in POSIX seconds, counted from 1970."""
    return int(at // 86_400)


class SubmissionAttempt(Value, frozen=True):
    """One attempt at a submission, complete before it is sent.

    A wallet's attempt is a signed transaction, which can be sent any number of times and mined once. One through a
    signer proxy has no transaction of its own: nonce -1, and hash and raw are empty.
    """

    hash: str = ""
    nonce: int = -1
    raw: bytes = b""
    fee_wei: str = "0"  # the most that a unit of gas may cost, decimal
    cost_wei: str = "0"  # the most that it may cost in total, decimal


class KnownEvidence(Value, frozen=True):
    """Evidence of two different signed records, without the records, which are in the log."""

    kind: EvidenceKind
    peer: str  # the signer of both
    round: int
