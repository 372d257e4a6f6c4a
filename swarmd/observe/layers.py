"""The parts that the layers of a status share, what only a running daemon knows, and whether there is anything to
learn. Pure."""

from typing import Literal

import msgspec
from msgspec.structs import replace

from swarmd.core.coordination import is_alone
from swarmd.core.state import Coordination, State, WorkerState
from swarmd.core.values import FlatCause, FlatStage
from swarmd.worker.messages import ProgressMessage


class LiveWorker(msgspec.Struct, frozen=True):
    """A running worker process."""

    pid: int
    age_s: float
    silent_s: float  # since its last frame
    spoken: bool  # has sent a frame; until then it is starting
    answering: bool  # has sent a frame and missed at most two pings
    progress: ProgressMessage | None = None
    progress_age_s: float = 0.0


class LiveDaemon(msgspec.Struct, frozen=True):
    """A running daemon."""

    pid: int
    rss_bytes: int
    network: LiveWorker | None = None
    trainer: LiveWorker | None = None
    chain: LiveWorker | None = None
    writes_checkpoint: bool = False  # is writing the last stage's checkpoint while it already does other work


MIB = 1024 * 1024
ENDING_WORDS = "there is room again: waiting for the trainer, which was told to stop when there was too little"

LayerName = Literal["process", "network", "training", "round", "chain", "submissions", "account", "learning"]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of all layers."""

    state: str
    healthy: bool
    age_s: float
    reason: str = ""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process."""

    pid: int = 0
    restarts: int = 0  # unplanned exits within the restart window, without those counted in `outside`
    outside: int = 0  # exits caused from outside, which do not count against the restart budget
    last_exit: str = ""
    silent_s: float | None = None
    answering: bool | None = None  # unknown when the daemon is down


def worker_status(life: WorkerState, live: LiveDaemon | None, worker: LiveWorker | None) -> WorkerStatus:
    """Combine the log's and the running daemon's knowledge of a worker."""
    return WorkerStatus(
        pid=worker.pid if worker else 0,
        restarts=len(life.exits),
        outside=len(life.outside),
        last_exit=life.reason,
        silent_s=worker.silent_s if worker else None,
        answering=(worker is not None and worker.answering) if live else None,
    )


def describe_silence(worker: LiveWorker | None) -> str:
    """Why a running process does not count as healthy; empty if it does."""
    if worker is None or worker.answering:
        return ""
    if not worker.spoken:
        return f"the worker (pid {worker.pid}) is starting, for {worker.age_s:.0f} s so far"
    return f"the worker (pid {worker.pid}) has been silent for {worker.silent_s:.0f} s"


def describe_pause(state: State) -> str:
    """Why a node pauses because of its disk; empty if it does not pause."""
    low = state.low_space
    if low is not None:
        return f"paused: {low.free_bytes / MIB:.0f} MiB free of {low.wanted_bytes / MIB:.0f} wanted"
    return ENDING_WORDS if state.chart == "paused" else ""


def find_holding_coordination(state: State) -> Coordination | None:
    """The coordination of a node that is alone and holds the open stage; None for any other node."""
    coordination = state.coordination
    if coordination is None or coordination.held_since is None or not is_alone(state):
        return None
    return coordination


def describe_hold(held: Coordination) -> str:
    """Describe the wait of a coordinator that is alone."""
    return f"alone: no peer is connected; round {held.round} stage {held.stage} is held until one is back"


def describe_awaited_members(state: State) -> str:
    """What a coordinator waits for before it opens its first round in this run; empty for any other node."""
    coordination, rules = state.coordination, state.settings.coordination if state.settings else None
    if coordination is None or rules is None or coordination.chart != "mustering" or member_wait_ends_at(state) is None:
        return ""
    if state.restored:
        return "waits for the clock that it kept after its backup was made"
    return f"waits for members: {coordination.members.present} of {rules.min_peers} are there"


def member_wait_ends_at(state: State) -> float | None:
    """When a coordinator stops waiting for members and opens its first round, in POSIX seconds; None if it does not
    wait."""
    return next((deadline.due_at for deadline in state.deadlines if deadline.name == "muster"), None)


def describe_member_wait(state: State, now: float) -> str:
    """`describe_awaited_members`, with the longest time that it still waits."""
    awaited, due_at = describe_awaited_members(state), member_wait_ends_at(state)
    return f"{awaited}, {max(0.0, due_at - now):.0f} s more at most" if awaited and due_at is not None else ""


def first_line(text: str) -> str:
    """The first line of a reason, without the output that may follow, safe to print."""
    return escape_control_characters(text.partition("\n")[0].removesuffix("; last output:"))


def escape_control_characters(text: str, kept: str = "") -> str:
    """The text with control characters escaped, except those in `kept`, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in text
    )


# --- whether there is anything to learn ---

NOTHING = "nothing to learn"
CAUSES: dict[FlatCause, str] = {
    "form": "have no answer in the form that is asked for",
    "cut": "were cut off at training.completion_tokens before there was an answer",
    "wrong": "are wrong",
    "right": "are right",
    "constant": "got one and the same reward, whatever they say",
    "failed": "could not be scored",
}
ADVICE: dict[FlatCause, str] = {
    "form": 'begin a new node with training.warm_up = "form", take a model that follows instructions, or say the form '
    "more plainly, with an example, in the prompt",
    "cut": "raise training.completion_tokens, or ask for shorter answers",
    "wrong": "give easier questions (the tasks' settings, or a curriculum), raise training.generations, or take a "
    "larger model",
    "right": "give harder questions (the tasks' settings, or a curriculum): this model knows these",
    "constant": "look at the reward function: it does not tell a good completion from a bad one",
    "failed": "mend the reward function or the swarm's scorer: the node's log says what it raised",
}


class LearningStatus(Layer, frozen=True, kw_only=True):
    """Whether there is anything to learn. If not, rounds go on and the node just does not improve."""

    stages: int  # number of last stages that `cause` holds for
    round: int  # of the last of these stages
    stage: int
    reward: float  # mean over the completions of the last stage
    cause: FlatCause | None = None  # why there was nothing to learn; None: there was something
    groups: int = 0  # own groups in the last stage; like `flat`, 0 if there was something to learn
    flat: int = 0  # those in which every completion got the same reward
    example: str = ""  # a completion
    advice: str = ""  # what to do


def learning_status(state: State, now: float, absent: str) -> LearningStatus | None:
    """The learning layer from the log; None until a stage is trained. `absent` says why no daemon answers, if none
    does."""
    known = state.learning
    if known is None:
        return None
    status = LearningStatus(
        state="learning",
        healthy=not absent,
        reason=absent,
        age_s=now - known.since,
        stages=known.stages,
        round=known.round,
        stage=known.stage,
        reward=known.reward,
    )
    flat = known.flat
    if flat is None:
        return status
    last = "" if known.stages == 1 else f"for {known.stages} stages; in the last "
    return replace(
        status,
        state=NOTHING,
        healthy=flat.cause == "right" and not absent,  # a model that knows all its answers is not in trouble
        reason=f"{last}{describe_zero_variance(flat, known.reward)}. {advise_on_flat_cause(flat.cause)}. "
        f"{describe_example(flat)}",
        cause=flat.cause,
        groups=flat.groups,
        flat=flat.flat,
        example=flat.example,
        advice=ADVICE[flat.cause],
    )


def advise_on_flat_cause(cause: FlatCause) -> str:
    """The advice for a cause, as a sentence without its full stop."""
    return ADVICE[cause][0].upper() + ADVICE[cause][1:]


def describe_zero_variance(flat: FlatStage, reward: float) -> str:
    """How many groups had zero variance, the mean reward, and the cause."""
    words = f"{flat.flat} of {flat.groups} own groups had every completion paid alike, mean reward {reward:.3f}: "
    return words + f"{flat.alike} of {flat.completions} completions {CAUSES[flat.cause]}"


def describe_example(flat: FlatStage) -> str:
    return f'An example: "{flat.example}"'
