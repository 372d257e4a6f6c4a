"""What all layers of a status have in common, what is said of a worker, and what only a running daemon knows."""

from __future__ import annotations

from typing import Literal

import msgspec

from swarmd.core.coordination import is_alone
from swarmd.core.state import Coordination, State, WorkerState
from swarmd.worker.messages import Progress


class WorkerLive(msgspec.Struct, frozen=True):
    """A running worker process."""

    pid: int
    age_s: float
    silent_s: float  # since its last frame
    spoken: bool  # it has sent a frame: until then it is starting
    answering: bool  # it has spoken, and missed no more than two pings
    progress: Progress | None = None
    progress_age_s: float = 0.0


class Live(msgspec.Struct, frozen=True):
    """A running daemon."""

    pid: int
    rss_bytes: int
    network: WorkerLive | None = None
    trainer: WorkerLive | None = None
    chain: WorkerLive | None = None


MIB = 1024 * 1024
ENDING_WORDS = "there is room again: waiting for the trainer, which was told to stop when there was too little"

LayerName = Literal["process", "network", "training", "round", "chain", "submissions", "account", "learning"]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Common to all layers."""

    state: str
    healthy: bool
    age_s: float
    reason: str = ""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process."""

    pid: int = 0
    restarts: int = 0  # unplanned exits within the restart window, without those that others caused,
    outside: int = 0  # which cost nothing of the budget
    last_exit: str = ""
    silent_s: float | None = None
    answering: bool | None = None  # unknown when the daemon is down


def worker_status(life: WorkerState, live: Live | None, worker: WorkerLive | None) -> WorkerStatus:
    """What the log and the running daemon know of a worker."""
    return WorkerStatus(
        pid=worker.pid if worker else 0,
        restarts=len(life.exits),
        outside=len(life.outside),
        last_exit=life.reason,
        silent_s=worker.silent_s if worker else None,
        answering=(worker is not None and worker.answering) if live else None,
    )


def silence(worker: WorkerLive | None) -> str:
    """Why a running process does not count as healthy, empty when it does."""
    if worker is None or worker.answering:
        return ""
    if not worker.spoken:
        return f"the worker (pid {worker.pid}) is starting, for {worker.age_s:.0f} s so far"
    return f"the worker (pid {worker.pid}) has been silent for {worker.silent_s:.0f} s"


def pause_words(state: State) -> str:
    """Why a node pauses whose disk was nearly full, or still is; empty where it does not pause."""
    low = state.low_space
    if low is not None:
        return f"paused: {low.free_bytes / MIB:.0f} MiB free of {low.wanted_bytes / MIB:.0f} wanted"
    return ENDING_WORDS if state.chart == "paused" else ""


def holding(state: State) -> Coordination | None:
    """What the coordinator's side of a node knows that is alone and holds the open stage; None for any other node."""
    coordination = state.coordination
    if coordination is None or coordination.held_since is None or not is_alone(state):
        return None
    return coordination


def hold_words(held: Coordination) -> str:
    """What a coordinator does that is alone."""
    return f"alone: no peer is connected; round {held.round} stage {held.stage} is held until one is back"


def first_line(text: str) -> str:
    """The headline of a reason that carries output, as it may be printed."""
    return printable(text.partition("\n")[0].removesuffix("; last output:"))


def printable(text: str, kept: str = "") -> str:
    """The text with its control characters escaped, but those in `kept`: what others wrote commands no terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in text
    )
