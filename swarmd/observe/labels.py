"""The fixed lists of values that labels of metrics may have; any other value counts as "other".

Values that come from peers, providers or files would make an unbounded number of series, and might be secrets.
"""

from typing import Final, Literal, get_args

from swarmd.core.chart_types import SubmissionState
from swarmd.core.events import WorkerExited, WorkerStartFailed
from swarmd.core.ids import CommandKind
from swarmd.core.values import EvidenceKind, FlatCause, SkipCause, SubmissionKind, WeightsCause, Worker
from swarmd.errors import EXIT_FOR_ROOM
from swarmd.observe import times
from swarmd.observe.words import Kind

OTHER: Final = "other"
EQUIVOCATIONS: tuple[EvidenceKind, ...] = get_args(EvidenceKind)
WORKERS: tuple[Worker, ...] = get_args(Worker)
SKIP_CAUSES: tuple[SkipCause, ...] = get_args(SkipCause)
MEMBER_KINDS: tuple[Kind, ...] = get_args(Kind)
PARTS = ("gather", "train", "publish", "submit")  # of a stage
TIME_PARTS = times.PARTS  # of a stage's wall time
BOTTLENECKS = (*times.PARTS, *times.CAUSES)
DEPTHS = ("live", "ready", "productive")  # of health
EXIT_CAUSES = ("crash", "killed", "silent", "memory", "planned", "permanent", "room")
FLAT_CAUSES: tuple[FlatCause, ...] = get_args(FlatCause)
DRAWN = ("more", "as-ever")  # how often a task whose held-out accuracy has fallen is drawn: more often, or as before
# why no batch has a peer's group: the peer used up its share, little of it counts, or its right answers are too long
PASSED_OVER = ("share", "little", "long")
SUBMISSION_KINDS: tuple[SubmissionKind, ...] = get_args(SubmissionKind)
SUBMISSION_STATES: tuple[SubmissionState, ...] = get_args(SubmissionState)
OPEN_STATES = ("waiting", "sent", "included")  # of submissions that are not settled
FAILURE_CAUSES = ("funds", "fees", "budget", OTHER)  # why a submission could not be made for now
SENDERS = ("url", "command", "heartbeat")  # of notifications
OUTCOMES = ("done", "failed")
WEIGHTS: tuple[str, ...] = ("fetched", "adopted", *get_args(WeightsCause))
COMMANDS: tuple[CommandKind | Literal["other"], ...] = (
    "register", "clock", "gather", "train", "report", "announce", "collect", "leaderboard", "admit", "watch",
    "submit", "broadcast", "weights", OTHER,
)  # fmt: skip
# The contract's names of its errors, then swarmd's own for what it never sends to the contract.
REFUSAL_CODES = (
    "AdvanceNotAllowed", "InvalidRoundNumber", "InvalidStageNumber", "InvalidVote", "InvalidVoterPeerId",
    "OnlyStageManager", "PeerIdAlreadyRegistered", "PeerNotAllowed", "RewardAlreadySubmitted", "StageOutOfBounds",
    "WinnerAlreadyVoted", "Error", "Panic", "below-mark", "follows-only", "moved-on", "not-offered", "not-yet",
    "outbox-full", "taken", OTHER,
)  # fmt: skip
REJECTION_REASONS = (
    "bad-signature", "bytes-in", "bytes-out", "calls", "config-digest", "connections", "doubled", "duplicate",
    "empty", "equivocated", "far-expiration", "flood", "full", "future", "generator", "group-size", "held-out",
    "hints", "idle", "index", "leaderboard-full", "malformed", "members-full", "missing", "nested",
    "no-evidence", "no-work", "non-finite", "not-a-member", "not-invited", "not-the-coordinator", "other-protocol",
    "origin", "oversize", "oversized", "plan", "processor", "prompt-length", "quota", "replayed", "seed",
    "slow", "source", "stale", "streams", "swarm", "turns", "unasked", "unknown-task", "unowned",
    "unsafe-scorer", "unsigned", "version", "withdrawn", "wrong-digest", "wrong-id", "wrong-key",
    "wrong-round", "wrong-shard", "wrong-swarm", OTHER,
)  # fmt: skip


def known_or_other(value: str, values: tuple[str, ...]) -> str:
    """The value, or "other" if it is not among those allowed."""
    return value if value in values else OTHER


def worker_exit_cause(event: WorkerExited | WorkerStartFailed) -> str:
    """Why a worker ended, as a label. An out-of-memory kill is recognised by the reason's words, else it is
    "killed"."""
    if isinstance(event, WorkerStartFailed):
        return "crash"
    headline = event.reason.partition("\n")[0]
    if event.permanent:
        return "permanent"
    if "memory ran out" in headline or "out of memory" in headline.partition(", not by this daemon")[0]:
        return "memory"
    if event.planned:
        return "planned"
    if event.code == EXIT_FOR_ROOM:
        return "room"
    if headline.startswith(("answered no ping", "not ready within")):
        return "silent"
    return "killed" if event.signal in (9, 15) else "crash"


def submission_failure_cause(reason: str) -> str:
    """Why a submission cannot be made now, from the words of swarmd.chain: no coins, gas too dear, the day's budget."""
    if "chain.fees.day_coins_max" in reason:
        return "budget"
    if " coins, and the " in reason:
        return "funds"
    return "fees" if "chain.fees" in reason else OTHER
