"""Messages between the daemon and a worker process, one per frame.

The daemon writes to the worker's stdin, the worker answers on its stdout; what a worker prints goes to stderr, which
the daemon takes into its log line by line.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swarmd.core.commands import Command
from swarmd.core.events import Event

# Takes events for the log; those of one caller keep their order. Raises BrokenPipeError if the daemon is gone, and
# FrameError if the event is larger than a frame may be.
EventSink = Callable[[Event], None]


class WorkerMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all messages."""


# --- daemon to worker ---


class Start(WorkerMessage, frozen=True, tag="start"):
    """First frame: who the worker is. `config` is the node's configuration, as `swarmd.config.encode` made it."""

    config: bytes
    data_dir: str
    peer: str = ""  # this node's peer id, which the daemon read from the identity


class Perform(WorkerMessage, frozen=True, tag="perform"):
    command: Command


class Ping(WorkerMessage, frozen=True, tag="ping"):
    number: int


class Stop(WorkerMessage, frozen=True, tag="stop"):
    """End by yourself within `grace_s`; the daemon kills what is left."""

    grace_s: float


ToWorker = Start | Perform | Ping | Stop


# --- worker to daemon ---


class Observed(WorkerMessage, frozen=True, tag="observed"):
    """A fact for the event log."""

    event: Event


class Progress(WorkerMessage, frozen=True, tag="progress"):
    """How far a running command is: for status and metrics only, never logged as an event."""

    what: str  # e.g. "training", "connecting"
    done: int = 0
    total: int = 0  # 0 when unknown
    note: str = ""
    figures: dict[str, float] = {}  # e.g. tokens_per_s, eta_s, peers


class Pong(WorkerMessage, frozen=True, tag="pong"):
    number: int


class Fault(WorkerMessage, frozen=True, tag="fault"):
    """The worker is about to end for this reason; `permanent` when a restart cannot help."""

    reason: str
    permanent: bool = False
    exit_code: int = 0
    planned: bool = False  # it has done its share: a fresh process is to follow, and no failure is counted


FromWorker = Observed | Progress | Pong | Fault
