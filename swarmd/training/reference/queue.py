"""Jobs of a reference server: first in, first out, bounded in number, bytes and age.

A result is leased, not handed over: it stays until its taker acknowledges it, or until its time is over. All methods
belong to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from swarmd.worker.runtime import TimeSource

W = TypeVar("W")
R = TypeVar("R")


class JobStatus(Enum):
    """How far a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"  # acknowledged, given up or too old


class QueueLimits(NamedTuple):
    """Bounds of what is kept."""

    jobs: int = 256  # all that are not acknowledged
    size_bytes: int = 1 << 30  # of their inputs and results together
    age_s: float = 600.0  # a job that nobody asked for during this time is dropped, waiting or done
    lease_s: float = 120.0  # a result that was handed out stays at least so long for its acknowledgement


class QueueFull(Exception):
    """No further job is taken now."""


class JobDiffers(Exception):
    """Another job has this id."""


class ScoringJob(Generic[W, R]):
    """One piece of work and what came of it."""

    def __init__(self, id: str, digest: str, work: W, size_bytes: int, lane: str) -> None:
        self.id = id
        self.digest = digest
        self.work = work
        self.size_bytes = size_bytes
        self.lane = lane
        self.stand = JobStatus.WAITING
        self.result: R | None = None
        self.failure = ""
        self.keep_until = 0.0
        self.settled = asyncio.Event()  # done, failed or gone

    def settle(self, stand: JobStatus) -> None:
        self.stand = stand
        self.settled.set()


class JobQueue(Generic[W, R]):
    """See the module's text.

    Args:
        limits: of number, bytes and age.
        clock: monotonic seconds.
    """

    def __init__(self, limits: QueueLimits, clock: TimeSource = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._jobs: dict[str, ScoringJob[W, R]] = {}  # in the order in which they came
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, id: str, digest: str, work: W, size_bytes: int, lane: str) -> tuple[ScoringJob[W, R], bool]:
        """The job of this id, and whether it is new. One that failed is tried again.

        Args:
            digest: of all that makes the job what it is.
            size_bytes: of the work and its result.
            lane: by whom results are taken, see `take_oldest`.

        Raises:
            JobDiffers: there is a job of this id with another digest.
            QueueFull: a bound is reached.
        """
        self._expire()
        known = self._jobs.get(id)
        if known is not None and known.digest != digest:
            raise JobDiffers(id)
        if known is not None and known.stand is not JobStatus.FAILED:
            self._keep(known)
            return known, False
        if known is not None:
            self.drop(id)
        if len(self._jobs) >= self.limits.jobs or self.size_bytes + size_bytes > self.limits.size_bytes:
            raise QueueFull
        job: ScoringJob[W, R] = ScoringJob(id, digest, work, size_bytes, lane)
        self._jobs[id] = job
        self._keep(job)
        self._changed.set()
        return job, True

    def find(self, id: str) -> ScoringJob[W, R] | None:
        """The job of this id; asking for it keeps it."""
        self._expire()
        job = self._jobs.get(id)
        if job is not None:
            self._keep(job)
        return job

    def lease(self, job: ScoringJob[W, R]) -> None:
        """The result is about to be handed out."""
        job.keep_until = max(job.keep_until, self._clock() + self.limits.lease_s)

    def drop(self, id: str) -> bool:
        """Acknowledge a result or give a job up; whether there was one. What is running ends, and is thrown away."""
        job = self._jobs.pop(id, None)
        if job is not None:
            job.settle(JobStatus.GONE)
        return job is not None

    def take_oldest(self, lane: str) -> ScoringJob[W, R] | None:
        """The oldest finished job of a lane, which leaves the queue; failed ones leave it unseen."""
        self._expire()
        for job in self._of(JobStatus.FAILED, lane):
            self.drop(job.id)
        for job in self._of(JobStatus.DONE, lane):
            return self._jobs.pop(job.id)
        return None

    async def next(self) -> ScoringJob[W, R] | None:
        """The next job to run, as soon as there is one; None once the queue is closed."""
        while not self._closed:
            self._expire()
            job = next((job for job in self._jobs.values() if job.stand is JobStatus.WAITING), None)
            if job is not None:
                job.stand = JobStatus.RUNNING
                return job
            self._changed.clear()
            await self._changed.wait()
        return None

    def finish(self, job: ScoringJob[W, R], result: R) -> None:
        """The running job has its result."""
        job.result = result
        self._settle(job, JobStatus.DONE)

    def fail(self, job: ScoringJob[W, R], failure: str) -> None:
        """The running job came to nothing; `failure` says why."""
        job.failure = failure
        self._settle(job, JobStatus.FAILED)

    def close(self) -> None:
        """Run nothing more: what waits is dropped, what runs may finish."""
        self._closed = True
        self._changed.set()
        for job in [job for job in self._jobs.values() if job.stand is JobStatus.WAITING]:
            self.drop(job.id)

    def count(self, stand: JobStatus) -> int:
        return sum(job.stand is stand for job in self._jobs.values())

    @property
    def size_bytes(self) -> int:
        """Of all jobs that are kept."""
        return sum(job.size_bytes for job in self._jobs.values())

    def _settle(self, job: ScoringJob[W, R], stand: JobStatus) -> None:
        if job.stand is JobStatus.RUNNING:  # else it was given up meanwhile
            job.settle(stand)
            self._keep(job)

    def _keep(self, job: ScoringJob[Any, Any]) -> None:
        job.keep_until = max(job.keep_until, self._clock() + self.limits.age_s)

    def _expire(self) -> None:
        now = self._clock()
        old = [job.id for job in self._jobs.values() if job.keep_until < now and job.stand is not JobStatus.RUNNING]
        for id in old:
            self.drop(id)

    def _of(self, stand: JobStatus, lane: str) -> list[ScoringJob[W, R]]:
        return [job for job in self._jobs.values() if job.stand is stand and job.lane == lane]
