"""The queue: order, bounds, leases and age, with a fake clock."""

import asyncio

import numpy as np
import pytest

from swarmd.training.reference.frame import ScoringBatch
from swarmd.training.reference.server import JobQueue, JobStatus, QueueLimits, ScoringJob
from swarmd.uvicorn_server import HttpRefusal

LOGS = np.zeros((1, 1), np.float32)
BATCH = ScoringBatch(np.zeros((1, 2), np.int64), np.ones((1, 2), np.uint8), 1)


class Fixture:
    def __init__(self, **limits: float) -> None:
        self.now = 0.0
        wanted = {"jobs": 3, "size_bytes": 100, "age_s": 10.0, "lease_s": 30.0} | limits
        self.queue = JobQueue(QueueLimits(**wanted), lambda: self.now)  # type: ignore[arg-type]

    def put(self, id: str, size: int = 10, digest: str = "d") -> tuple[ScoringJob, bool]:
        return self.queue.put(id, digest, BATCH, size)

    async def run(self) -> ScoringJob:
        job = await asyncio.wait_for(self.queue.next(), 5)
        assert job is not None
        return job


def test_number_and_bytes_are_bounded_until_results_are_acknowledged() -> None:
    it = Fixture()
    for id in "abc":
        it.put(id)
    with pytest.raises(HttpRefusal, match="full"):
        it.put("d")
    assert it.put("a")[1] is False
    assert it.queue.drop("a") and not it.queue.drop("a")
    with pytest.raises(HttpRefusal, match="full"):
        it.put("d", size=81)
    assert it.put("d", size=80)[1]


async def done(it: Fixture, id: str) -> ScoringJob:
    it.put(id)
    job = await it.run()
    it.queue.finish(job, LOGS)
    return job


def test_age_ends_what_nobody_asks_for() -> None:
    it = Fixture()
    it.put("waits")
    it.now = 9.0
    assert it.queue.find("waits") is not None
    it.now = 18.0
    assert it.queue.find("waits") is not None  # asked for 9 s ago
    it.now = 28.5
    assert it.queue.find("waits") is None and it.queue.size_bytes == 0


def test_a_lease_outlasts_the_age_limit() -> None:
    it = Fixture()
    job = asyncio.run(done(it, "a"))
    it.queue.retain_result(job)
    it.now = 29.0
    assert it.queue.find("a") is job
    it.now = 39.5
    assert it.queue.find("a") is None


def test_what_runs_does_not_age() -> None:
    it = Fixture()
    it.put("a")
    job = asyncio.run(it.run())
    it.now = 1000.0
    assert it.queue.find("a") is job
    it.queue.finish(job, LOGS)
    assert it.queue.find("a") is job and job.status is JobStatus.DONE


def test_what_was_given_up_while_it_ran_leaves_nothing() -> None:
    it = Fixture()
    it.put("a")
    job = asyncio.run(it.run())
    it.queue.drop("a")
    it.queue.finish(job, LOGS)
    assert job.status is JobStatus.GONE and it.queue.find("a") is None
