"""The reference server's HTTP interface: jobs in, log-probabilities out. docs/REFERENCE-SERVER.md describes it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import torch
from aiohttp import web

from swarmd import __version__
from swarmd.errors import FrameError
from swarmd.http_server import carries_token, is_address
from swarmd.training.reference.compat import (
    ACCEPTED,
    EMPTY,
    TOKENS_MAX,
    TooLong,
    Upload,
    count_bytes,
    read_upload,
    write_answer,
)
from swarmd.training.reference.frame import (
    ID_PATTERN,
    VERSION,
    FrameLimits,
    Logs,
    ResultHeader,
    ScoringBatch,
    decode_job,
    encode_result,
)
from swarmd.training.reference.queue import JobDiffers, JobQueue, JobStatus, QueueFull, QueueLimits, ScoringJob
from swarmd.training.reference.scoring import ReferenceScorer

BODY_S = 60.0  # a request's body has arrived within this
WAIT_S_MAX = 30.0  # longest wait for a result in one request
RETRY_S = 2  # told to a client that comes while the queue is full or the server ends
BODIES_MAX = 8  # requests whose bodies are read at once
FRAME = "application/x-swarmd-reference"
OWN_LANE, COMPAT_LANE = "own", "compat"
IDENTIFIER = re.compile(ID_PATTERN)

log = logging.getLogger(__name__)


class ServerLimits(NamedTuple):
    """Bounds of one server."""

    body_bytes: int = 64 << 20
    sequences: int = 1024  # of one job
    tokens: int = 8192  # of one sequence
    queue: QueueLimits = QueueLimits()


class ScoringWork(NamedTuple):
    """What is computed, and what came with it."""

    batch: ScoringBatch
    upload: Upload | None = None


Waiting = ScoringJob[ScoringWork, Logs]


class ReferenceHttpError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, error: str, **more: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.more = more


class ReferenceApp:
    """Takes jobs, has them computed one after another, and gives results.

    Args:
        reference: the frozen model.
        limits: of what is taken.
        token: that requests must carry; empty for none.
        compat: also answer simple_GRPO's /upload and /get.
    """

    def __init__(self, reference: ReferenceScorer, limits: ServerLimits, token: str = "", compat: bool = False) -> None:
        self._reference = reference
        self._limits = limits
        self._token = token
        self._compat = compat
        self._frames = FrameLimits(limits.sequences, min(limits.tokens, reference.frozen.context or limits.tokens))
        self._queue: JobQueue[ScoringWork, Logs] = JobQueue(limits.queue)
        self._bodies = asyncio.Semaphore(BODIES_MAX)
        self._uploads = 0
        self._closing = asyncio.Event()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=self._limits.body_bytes, middlewares=[self._guard])
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/v1/model", self._model)
        app.router.add_post("/v1/jobs", self._post)
        app.router.add_get("/v1/jobs/{id}", self._get)
        app.router.add_delete("/v1/jobs/{id}", self._acknowledge)
        if self._compat:
            app.router.add_post("/upload", self._upload)
            app.router.add_get("/get", self._take)
        return app

    async def compute(self) -> None:
        """Compute jobs until `close`; the one that runs then is finished."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "reference") as thread:
            while (job := await self._queue.next()) is not None:
                try:
                    logs = await loop.run_in_executor(thread, self._score, job.work.batch)
                except Exception as error:  # out of memory, most likely; the next job may be smaller
                    log.exception("job %s failed", job.id)
                    self._queue.fail(job, f"{type(error).__name__}: {str(error)[:200]}")
                else:
                    self._queue.finish(job, logs)

    def _score(self, batch: ScoringBatch) -> Logs:
        ids, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask.copy())
        logs: Logs = self._reference.log_probabilities(ids, mask, batch.keep, batch.temperature).cpu().numpy()
        return logs

    def close(self) -> None:
        """Take no more jobs and begin no more."""
        self._closing.set()
        self._queue.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Who may ask; every refusal as JSON."""
        try:
            if request.path != "/healthz":
                self._authorise(request)
            return await handler(request)
        except ReferenceHttpError as refused:
            log.info("%s from %s: %d %s", request.path[:150], request.remote, refused.status, refused)
            return _answer(refused.status, {"error": refused.error} | refused.more)
        except FrameError as error:
            log.info("%s from %s: %s", request.path[:150], request.remote, error.message)
            return _answer(400, {"error": error.message})
        except web.HTTPException as refused:
            return _answer(refused.status, {"error": refused.reason.lower()})
        except Exception as error:
            log.exception("a request failed")
            return _answer(500, {"error": f"unexpected: {type(error).__name__}"})

    def _authorise(self, request: web.Request) -> None:
        if "Origin" in request.headers:  # a page in somebody's browser, which can reach loopback
            raise ReferenceHttpError(403, "not for browsers")
        if not carries_token(request, self._token):
            raise ReferenceHttpError(401, "unauthorized")
        if not self._token and not all(map(is_address, request.headers.getall("Host", [""]))):
            raise ReferenceHttpError(403, "without a token this server goes by its address, or localhost, alone")

    # --- routes ---

    async def _health(self, request: web.Request) -> web.Response:
        if self._closing.is_set():
            return _answer(503, {"status": "stopping"})
        counts = {stand.value: self._queue.count(stand) for stand in JobStatus if stand is not JobStatus.GONE}
        return _answer(200, {"status": "ok", "version": __version__, "protocol": VERSION} | counts)

    async def _model(self, request: web.Request) -> web.Response:
        limits = self._limits
        told = {
            "model": self._reference.digest,
            "vocabulary": self._reference.frozen.vocabulary,
            "protocol": VERSION,
            "body_bytes_max": limits.body_bytes,
            "sequences_max": self._frames.sequences,
            "tokens_max": self._frames.tokens,
            "age_s": limits.queue.age_s,
            "lease_s": limits.queue.lease_s,
        }
        return _answer(200, told)

    async def _post(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        header, batch = await asyncio.to_thread(decode_job, body, self._frames)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        self._check_vocabulary(batch)
        if header.model not in ("", self._reference.digest):
            raise ReferenceHttpError(409, f"the job is for the model {header.model}", model=self._reference.digest)
        size = batch.ids.nbytes + batch.mask.nbytes + 4 * header.rows * header.keep
        job, new = self._put(header.id, digest, ScoringWork(batch), size)
        return self._stands(job, 202 if new else 200)

    async def _get(self, request: web.Request) -> web.Response:
        job = self._find(request)
        await self._wait(job, _seconds(request))
        if job.stand is JobStatus.DONE and job.result is not None:
            self._queue.lease(job)
            rows, keep = job.result.shape
            header = ResultHeader(job.id, job.digest, self._reference.digest, rows, keep)
            return web.Response(body=encode_result(header, job.result), content_type=FRAME)
        if job.stand is JobStatus.FAILED:
            raise ReferenceHttpError(500, f"the job failed: {job.failure}")
        if job.stand is JobStatus.GONE:
            raise ReferenceHttpError(404, "the job was dropped")
        return self._stands(job, 202)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        if not self._queue.drop(request.match_info["id"]):
            raise ReferenceHttpError(404, "no such job")
        return web.Response(status=204)

    async def _upload(self, request: web.Request) -> web.Response:
        limits = self._frames._replace(tokens=min(TOKENS_MAX, self._frames.tokens))
        body = await self._read(request)
        try:
            upload = await asyncio.to_thread(read_upload, body, limits)
        except TooLong as error:
            raise ReferenceHttpError(413, str(error)) from None
        self._check_vocabulary(upload.batch)
        self._uploads += 1
        rows, _ = upload.batch.ids.shape
        held = upload.batch.ids.nbytes + count_bytes([upload.inputs, *upload.others])
        size = held + upload.batch.mask.nbytes + 4 * rows * upload.batch.keep
        work = ScoringWork(upload.batch, upload)
        self._put(f"upload-{self._uploads}", hashlib.sha256(body).hexdigest(), work, size, COMPAT_LANE)
        return web.Response(body=ACCEPTED)

    async def _take(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_S), self._bodies:  # an answer is a copy that the queue does not count
                return await self._give(request)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            raise ReferenceHttpError(408, "the answer was not fetched in time") from None

    async def _give(self, request: web.Request) -> web.Response:
        """The answer to the oldest upload, sent to its end, since until then it is in memory."""
        job = self._queue.take_oldest(COMPAT_LANE)
        if job is None or job.work.upload is None or job.result is None:
            return web.Response(body=EMPTY)
        answer = web.Response(body=await asyncio.to_thread(write_answer, job.work.upload, job.result))
        await answer.prepare(request)
        await answer.write_eof()
        return answer

    # --- what they share ---

    async def _read(self, request: web.Request) -> bytes:
        """The body, within bounds of size and time."""
        if self._closing.is_set():
            raise ReferenceHttpError(503, "the server is stopping")
        if request.content_length is not None and request.content_length > self._limits.body_bytes:
            raise ReferenceHttpError(
                413, f"{request.content_length} bytes, at most {self._limits.body_bytes} are taken"
            )
        try:
            async with asyncio.timeout(BODY_S), self._bodies:
                return await request.read()
        except TimeoutError:
            raise ReferenceHttpError(408, "the body did not arrive in time") from None

    def _check_vocabulary(self, batch: ScoringBatch) -> None:
        if int(batch.ids.max()) >= self._reference.frozen.vocabulary:
            raise FrameError(f"a token id is not below {self._reference.frozen.vocabulary}")

    def _put(
        self, id: str, digest: str, work: ScoringWork, size_bytes: int, lane: str = "own"
    ) -> tuple[ScoringJob[ScoringWork, Logs], bool]:
        if self._closing.is_set():
            raise ReferenceHttpError(503, "the server is stopping")
        try:
            return self._queue.put(id, digest, work, size_bytes, lane)
        except JobDiffers:
            raise ReferenceHttpError(409, f"there is another job {id}") from None
        except QueueFull:
            raise ReferenceHttpError(503, "the queue is full") from None

    def _find(self, request: web.Request) -> Waiting:
        id = request.match_info["id"]
        job = self._queue.find(id) if IDENTIFIER.fullmatch(id) else None
        if job is None or job.lane == COMPAT_LANE:
            raise ReferenceHttpError(404, "no such job")
        return job

    async def _wait(self, job: Waiting, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await job.settled.wait()

    def _stands(self, job: Waiting, status: int) -> web.Response:
        return _answer(status, {"id": job.id, "stand": job.stand.value, "model": self._reference.digest})


def _seconds(request: web.Request) -> float:
    """How long the client wants to wait. Raises Refused."""
    given = request.query.get("wait_s", "0")
    if not re.fullmatch(r"\d{1,4}(\.\d{1,6})?", given):
        raise ReferenceHttpError(400, "wait_s is no number of seconds")
    return min(float(given), WAIT_S_MAX)


def _answer(status: int, content: dict[str, Any]) -> web.Response:
    headers = {"Retry-After": str(RETRY_S)} if status in (429, 503) else {}
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = msgspec.json.encode(content)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
