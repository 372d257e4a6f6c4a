"""The reference server: takes jobs over HTTP, computes them one after another, and returns log-probabilities.

docs/REFERENCE-SERVER.md describes the interface. Jobs and results are bounded in number, bytes and age (`JobQueue`).
"""

import asyncio
import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from swarmd import __version__
from swarmd.config import TrainingConfig
from swarmd.errors import FrameError
from swarmd.http_server import Address, stop_signal_future
from swarmd.logger import get_logger
from swarmd.training.reference import frame
from swarmd.training.reference.scoring import ReferenceScorer, load_reference
from swarmd.uvicorn_server import (
    HEALTH,
    HttpRefusal,
    check_program,
    json_response,
    make_json_app,
    read_body,
    serve_in_background,
)
from swarmd.worker.runtime import TimeSource

BODY_S = 60.0  # longest time for a request's body to arrive
WAIT_S_MAX = 30.0  # longest wait for a result in one request
RETRY_S = 2  # retry-after header while the queue is full or the server stops
BODIES_MAX = 8  # request bodies being read, or answers to uploads being made, at once
FRAME = "application/x-swarmd-reference"
STOPPING = "the server is stopping"
STOP_S = 20.0  # longest time for open requests after the last job is computed
IDENTIFIER = re.compile(frame.ID_PATTERN)

log = get_logger(__name__)


class JobStatus(Enum):
    """Status of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"  # acknowledged, abandoned or expired


class QueueLimits(NamedTuple):
    """Limits of the queue."""

    jobs: int = 256  # not yet acknowledged
    size_bytes: int = 1 << 30  # of their inputs and results together
    age_s: float = 600.0  # a job, waiting or done, is dropped if nobody asks for it during this time
    lease_s: float = 120.0  # a returned result is kept for at least this long, unless it is acknowledged


@dataclass(eq=False)
class ScoringJob:
    """A batch to score, and its result."""

    id: str
    digest: str
    batch: frame.ScoringBatch
    size_bytes: int
    upload: frame.Upload | None  # for simple_GRPO, which takes results in their order, not by id
    status: JobStatus = JobStatus.WAITING
    result: frame.Logs | None = None
    failure: str = ""
    keep_until: float = 0.0
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # done, failed or gone

    def set_final_status(self, status: JobStatus) -> None:
        self.status = status
        self.settled.set()


class JobQueue:
    """Jobs, first in, first out, limited in number, bytes and age. All methods belong to one event loop.

    A result is leased: it stays until the client acknowledges it, or the lease expires.
    """

    def __init__(self, limits: QueueLimits, clock: TimeSource = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._jobs: dict[str, ScoringJob] = {}  # in order of arrival
        self._changed = asyncio.Event()
        self.closed = False

    def put(
        self, id: str, digest: str, batch: frame.ScoringBatch, size_bytes: int, upload: frame.Upload | None = None
    ) -> tuple[ScoringJob, bool]:
        """Add a job, unless there is one of this id. Returns the job, and whether it is new; a failed one is replaced.
        `digest`: of everything that defines the job. `size_bytes`: of the batch, its result, and the rest of the
        upload. Raises HttpRefusal: a job of this id has another digest, a limit is reached, or the queue is closed."""
        if self.closed:
            raise HttpRefusal(503, STOPPING)
        self._drop_expired()
        known = self._jobs.get(id)
        if known is not None and known.digest != digest:
            raise HttpRefusal(409, f"there is another job {id}")
        if known is not None and known.status is not JobStatus.FAILED:
            self._retain_job(known, self.limits.age_s)
            return known, False
        if known is not None:
            self.drop(id)
        if len(self._jobs) >= self.limits.jobs or self.size_bytes + size_bytes > self.limits.size_bytes:
            raise HttpRefusal(503, "the queue is full")
        job = ScoringJob(id, digest, batch, size_bytes, upload)
        self._jobs[id] = job
        self._retain_job(job, self.limits.age_s)
        self._changed.set()
        return job, True

    def find(self, id: str) -> ScoringJob | None:
        """Find a job by its id, and renew its age; None if there is none."""
        self._drop_expired()
        job = self._jobs.get(id)
        if job is not None:
            self._retain_job(job, self.limits.age_s)
        return job

    def retain_result(self, job: ScoringJob) -> None:
        """Keep a job for the lease of its result, which is about to be returned."""
        self._retain_job(job, self.limits.lease_s)

    def drop(self, id: str) -> bool:
        """Drop a job; if it is running, its result is ignored. Returns whether there was one."""
        job = self._jobs.pop(id, None)
        if job is not None:
            job.set_final_status(JobStatus.GONE)
        return job is not None

    def pop_upload(self) -> ScoringJob | None:
        """Remove and return the oldest finished upload; failed ones before it are dropped."""
        self._drop_expired()
        for job in [job for job in self._jobs.values() if job.upload is not None]:
            if job.status is JobStatus.FAILED:
                self.drop(job.id)
            elif job.status is JobStatus.DONE:
                return self._jobs.pop(job.id)
        return None

    async def next(self) -> ScoringJob | None:
        """Wait for the next job to run; None once the queue is closed."""
        while not self.closed:
            self._drop_expired()
            job = next((job for job in self._jobs.values() if job.status is JobStatus.WAITING), None)
            if job is not None:
                job.status = JobStatus.RUNNING
                return job
            self._changed.clear()
            await self._changed.wait()
        return None

    def finish(self, job: ScoringJob, result: frame.Logs | None, failure: str = "") -> None:
        """Set the result of the running job, or why it failed."""
        if job.status is JobStatus.RUNNING:  # else it was dropped meanwhile
            job.result, job.failure = result, failure
            job.set_final_status(JobStatus.FAILED if failure else JobStatus.DONE)
            self._retain_job(job, self.limits.age_s)

    def close(self) -> None:
        """Close the queue: waiting jobs are dropped, the running one may finish."""
        self.closed = True
        self._changed.set()
        for job in [job for job in self._jobs.values() if job.status is JobStatus.WAITING]:
            self.drop(job.id)

    def count(self, status: JobStatus) -> int:
        return sum(job.status is status for job in self._jobs.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of all jobs."""
        return sum(job.size_bytes for job in self._jobs.values())

    def _retain_job(self, job: ScoringJob, seconds: float) -> None:
        job.keep_until = max(job.keep_until, self._clock() + seconds)

    def _drop_expired(self) -> None:
        now = self._clock()
        old = [job.id for job in self._jobs.values() if job.keep_until < now and job.status is not JobStatus.RUNNING]
        for id in old:
            self.drop(id)


class ServerLimits(NamedTuple):
    """Limits of one server."""

    body_bytes: int = 64 << 20
    sequences: int = 1024  # per job
    tokens: int = 8192  # per sequence
    queue: QueueLimits = QueueLimits()


class ReferenceApp:
    """The HTTP application and its queue; with `compat` it also serves simple_GRPO's trainers."""

    def __init__(self, reference: ReferenceScorer, limits: ServerLimits, token: str = "", compat: bool = False) -> None:
        self._reference = reference
        self._limits = limits
        self._token = token
        self._compat = compat
        self._frames = frame.FrameLimits(
            limits.sequences, min(limits.tokens, reference.context_tokens or limits.tokens)
        )
        self._queue = JobQueue(limits.queue)
        self._bodies = asyncio.Semaphore(BODIES_MAX)
        self._uploads = 0

    def make_asgi_app(self) -> ASGIApp:
        routes = [
            Route(HEALTH, self._handle_health),
            Route("/v1/model", self._handle_model),
            Route("/v1/jobs", self._handle_post_job, methods=["POST"]),
            Route("/v1/jobs/{id}", self._handle_get_job),
            Route("/v1/jobs/{id}", self._handle_delete_job, methods=["DELETE"]),
        ]
        if self._compat:
            routes += [Route("/upload", self._handle_upload, methods=["POST"]), Route("/get", self._handle_get_result)]
        return make_json_app(routes, lambda request: check_program(request, self._token), RETRY_S, FrameError)

    async def compute_jobs(self) -> None:
        """Compute jobs until `close`; the running one is finished."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "reference") as thread:
            while (job := await self._queue.next()) is not None:
                try:
                    logs = await loop.run_in_executor(thread, self._score, job.batch)
                except Exception as error:  # probably out of memory; the next job may be smaller
                    log.exception("job %s failed", job.id)
                    self._queue.finish(job, None, f"{type(error).__name__}: {str(error)[:200]}")
                else:
                    self._queue.finish(job, logs)

    def _score(self, batch: frame.ScoringBatch) -> frame.Logs:
        ids, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask.copy())
        logs: frame.Logs = self._reference.log_probabilities(ids, mask, batch.keep, batch.temperature).cpu().numpy()
        return logs

    def close(self) -> None:
        """Accept and start no more jobs."""
        self._queue.close()

    # --- routes ---

    async def _handle_health(self, request: Request) -> Response:
        if self._queue.closed:
            return json_response(503, {"status": "stopping"})
        counts = {status.value: self._queue.count(status) for status in JobStatus if status is not JobStatus.GONE}
        return json_response(200, {"status": "ok", "version": __version__, "protocol": frame.VERSION} | counts)

    async def _handle_model(self, request: Request) -> Response:
        limits = self._limits
        told = {
            "model": self._reference.digest,
            "vocabulary": self._reference.vocabulary_size,
            "protocol": frame.VERSION,
            "body_bytes_max": limits.body_bytes,
            "sequences_max": self._frames.sequences,
            "tokens_max": self._frames.tokens,
            "age_s": limits.queue.age_s,
            "lease_s": limits.queue.lease_s,
        }
        return json_response(200, told)

    async def _handle_post_job(self, request: Request) -> Response:
        body = await self._read_body(request)
        header, batch = await asyncio.to_thread(frame.decode_job, body, self._frames)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        self._check_vocabulary(batch)
        if header.model not in ("", self._reference.digest):
            raise HttpRefusal(409, f"the job is for the model {header.model}", model=self._reference.digest)
        size = batch.ids.nbytes + batch.mask.nbytes + 4 * header.rows * header.keep
        job, new = self._queue.put(header.id, digest, batch, size)
        return self._describe(job, 202 if new else 200)

    async def _handle_get_job(self, request: Request) -> Response:
        job = self._find(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(_parse_wait_seconds(request)):
                await job.settled.wait()
        if job.status is JobStatus.DONE and job.result is not None:
            self._queue.retain_result(job)
            rows, keep = job.result.shape
            header = frame.ResultHeader(job.id, job.digest, self._reference.digest, rows, keep)
            return Response(frame.encode_result(header, job.result), media_type=FRAME)
        if job.status is JobStatus.FAILED:
            raise HttpRefusal(500, f"the job failed: {job.failure}")
        if job.status is JobStatus.GONE:
            raise HttpRefusal(404, "the job was dropped")
        return self._describe(job, 202)

    async def _handle_delete_job(self, request: Request) -> Response:
        if not self._queue.drop(request.path_params["id"]):
            raise HttpRefusal(404, "no such job")
        return Response(status_code=204)

    async def _handle_upload(self, request: Request) -> Response:
        limits = self._frames._replace(tokens=min(frame.TOKENS_MAX, self._frames.tokens))
        body = await self._read_body(request)
        try:
            upload = await asyncio.to_thread(frame.read_upload, body, limits)
        except frame.SequencesTooLong as error:
            raise HttpRefusal(413, str(error)) from None
        self._check_vocabulary(upload.batch)
        self._uploads += 1
        rows, _ = upload.batch.ids.shape
        held = upload.batch.ids.nbytes + upload.batch.mask.nbytes
        size = held + sum(each.nbytes for each in (upload.inputs, *upload.others)) + 4 * rows * upload.batch.keep
        self._queue.put(f"upload-{self._uploads}", hashlib.sha256(body).hexdigest(), upload.batch, size, upload)
        return Response(frame.ACCEPTED)

    async def _handle_get_result(self, request: Request) -> Response:
        """Respond with the result of the oldest upload."""
        async with self._bodies:
            job = self._queue.pop_upload()
            if job is None or job.upload is None or job.result is None:
                return Response(frame.EMPTY)
            return Response(await asyncio.to_thread(frame.write_answer, job.upload, job.result))

    # --- helpers of routes ---

    async def _read_body(self, request: Request) -> bytes:
        """Read the body, limited in size and time."""
        if self._queue.closed:
            raise HttpRefusal(503, STOPPING)
        async with self._bodies:
            return await read_body(request, self._limits.body_bytes, BODY_S)

    def _check_vocabulary(self, batch: frame.ScoringBatch) -> None:
        if int(batch.ids.max()) >= self._reference.vocabulary_size:
            raise FrameError(f"a token id is not below {self._reference.vocabulary_size}")

    def _find(self, request: Request) -> ScoringJob:
        id = request.path_params["id"]
        job = self._queue.find(id) if IDENTIFIER.fullmatch(id) else None
        if job is None or job.upload is not None:
            raise HttpRefusal(404, "no such job")
        return job

    def _describe(self, job: ScoringJob, status: int) -> Response:
        return json_response(status, {"id": job.id, "stand": job.status.value, "model": self._reference.digest})


def _parse_wait_seconds(request: Request) -> float:
    """Seconds that the client is willing to wait. Raises HttpRefusal."""
    given = request.query_params.get("wait_s", "0")
    if not re.fullmatch(r"\d{1,4}(\.\d{1,6})?", given):
        raise HttpRefusal(400, "wait_s is not a number of seconds")
    return min(float(given), WAIT_S_MAX)


async def run_server(training: TrainingConfig, listen: Address, token: str, compat: bool, limits: ServerLimits) -> None:
    """Serve until SIGTERM or SIGINT; a job being computed is finished, and its result returned. Raises ConfigError:
    there is no such device; ModelError: the model cannot be loaded; AddressInUse: the address is in use."""
    reference = load_reference(training)
    application = ReferenceApp(reference, limits, token, compat)
    stopped = stop_signal_future()
    computing = asyncio.create_task(application.compute_jobs())
    async with serve_in_background(application.make_asgi_app(), listen, STOP_S) as url:
        log.info("listening on %s with %s (%s) on %s", url, training.model, reference.digest, reference.device)
        await asyncio.wait({computing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        application.close()
        await computing
