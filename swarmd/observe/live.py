"""What a running daemon knows beyond its log: process ids, progress, silence. Never an event."""

from __future__ import annotations

import msgspec

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
