"""The queue: order, bounds, leases and age, by a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest

from swarmd.training.reference.queue import JobDiffers, JobQueue, JobStatus, QueueFull, QueueLimits, ScoringJob


class Fixture:
    def __init__(self, **limits: float) -> None:
        self.now = 0.0
        wanted = {"jobs": 3, "size_bytes": 100, "age_s": 10.0, "lease_s": 30.0} | limits
        self.queue: JobQueue[str, str] = JobQueue(QueueLimits(**wanted), lambda: self.now)  # type: ignore[arg-type]

    def put(self, id: str, size: int = 10, digest: str = "d", lane: str = "own") -> tuple[ScoringJob[str, str], bool]:
        return self.queue.put(id, digest, f"work of {id}", size, lane)

    async def run(self) -> ScoringJob[str, str]:
        job = await asyncio.wait_for(self.queue.next(), 5)
        assert job is not None
        return job


async def check_order() -> None:
    it = Fixture()
    for id in "abc":
        it.put(id)
    jobs = [await it.run() for _ in range(3)]
    assert [job.id for job in jobs] == ["a", "b", "c"]
    waiting = asyncio.create_task(it.queue.next())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    it.queue.drop("a")
    it.put("d")
    assert (await waiting).id == "d"  # type: ignore[union-attr]


def test_jobs_run_in_the_order_in_which_they_came() -> None:
    asyncio.run(check_order())


def test_the_same_job_twice_is_one_and_another_of_its_id_is_refused() -> None:
    it = Fixture()
    job, new = it.put("a")
    assert new and it.put("a") == (job, False)
    with pytest.raises(JobDiffers):
        it.put("a", digest="e")


def test_number_and_bytes_are_bounded_until_results_are_acknowledged() -> None:
    it = Fixture()
    for id in "abc":
        it.put(id)
    with pytest.raises(QueueFull):
        it.put("d")
    assert it.put("a")[1] is False
    assert it.queue.drop("a") and not it.queue.drop("a")
    with pytest.raises(QueueFull):
        it.put("d", size=81)
    assert it.put("d", size=80)[1]


async def done(it: Fixture, id: str, lane: str = "own") -> ScoringJob[str, str]:
    it.put(id, lane=lane)
    job = await it.run()
    it.queue.finish(job, f"result of {id}")
    return job


def test_a_result_stays_until_it_is_acknowledged() -> None:
    it = Fixture()
    job = asyncio.run(done(it, "a"))
    it.queue.lease(job)
    assert it.queue.find("a") is job and job.stand is JobStatus.DONE and job.result == "result of a"
    assert it.queue.find("a") is job
    assert it.queue.drop("a") and it.queue.find("a") is None and job.stand is JobStatus.GONE


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
    it.queue.lease(job)
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
    it.queue.finish(job, "late")
    assert it.queue.find("a") is job and job.stand is JobStatus.DONE


def test_what_was_given_up_while_it_ran_leaves_nothing() -> None:
    it = Fixture()
    it.put("a")
    job = asyncio.run(it.run())
    it.queue.drop("a")
    it.queue.finish(job, "unwanted")
    assert job.stand is JobStatus.GONE and it.queue.find("a") is None


def test_a_job_that_failed_is_tried_again_when_it_is_posted_again() -> None:
    it = Fixture()
    it.put("a")
    it.queue.fail(asyncio.run(it.run()), "no memory")
    failed = it.queue.find("a")
    assert failed is not None and failed.stand is JobStatus.FAILED and failed.failure == "no memory"
    job, new = it.put("a")
    assert new and job.stand is JobStatus.WAITING


def test_lanes_do_not_mix_and_their_oldest_result_goes_first() -> None:
    it = Fixture()

    async def fill() -> None:
        await done(it, "x", "other")
        await done(it, "a")
        await done(it, "b")

    asyncio.run(fill())
    taken = [it.queue.take_oldest("own") for _ in range(3)]
    assert [job and job.id for job in taken] == ["a", "b", None]
    assert it.queue.find("x") is not None


def test_a_closed_queue_begins_nothing_and_finishes_what_runs() -> None:
    it = Fixture()

    async def close() -> tuple[ScoringJob[str, str], ScoringJob[str, str]]:
        it.put("a")
        running = await it.run()
        waiting, _ = it.put("b")
        it.queue.close()
        assert await it.queue.next() is None
        it.queue.finish(running, "done")
        return running, waiting

    running, waiting = asyncio.run(close())
    assert running.stand is JobStatus.DONE and waiting.stand is JobStatus.GONE and waiting.settled.is_set()
