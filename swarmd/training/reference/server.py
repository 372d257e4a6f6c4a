"""The reference server's HTTP interface: jobs in, log-probabilities out. docs/REFERENCE-SERVER.md describes it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from swarmd import __version__
from swarmd.config import TrainingConfig
from swarmd.errors import FrameError
from swarmd.http_server import Address, bears_token, check_listen, is_address, on_signals
from swarmd.logger import get_logger
from swarmd.training.library_logging import refuse_telemetry
from swarmd.training.reference.frame import (
    ACCEPTED,
    EMPTY,
    ID_PATTERN,
    TOKENS_MAX,
    VERSION,
    FrameLimits,
    Logs,
    ResultHeader,
    ScoringBatch,
    TooLong,
    Upload,
    count_bytes,
    decode_job,
    encode_result,
    read_upload,
    write_answer,
)
from swarmd.training.reference.queue import JobDiffers, JobQueue, JobStatus, QueueFull, QueueLimits, ScoringJob
from swarmd.training.reference.scoring import ReferenceScorer, load_frozen
from swarmd.uvicorn_server import HEALTH, HttpRefusal, answer, cut, listening, make_json_app, read_body

BODY_S = 60.0  # a request's body has arrived within this
WAIT_S_MAX = 30.0  # longest wait for a result in one request
RETRY_S = 2  # told to a client that comes while the queue is full or the server ends
BODIES_MAX = 8  # requests whose bodies are read, or answers that are written, at once
CHUNK_BYTES = 1 << 16
FRAME = "application/x-swarmd-reference"
OWN_LANE, COMPAT_LANE = "own", "compat"
IDENTIFIER = re.compile(ID_PATTERN)

log = get_logger(__name__)


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


class SlowAnswer(Response):
    """An answer that is in memory until its client has it: few at once, and each within `BODY_S`."""

    def __init__(self, content: bytes, answers: asyncio.Semaphore) -> None:
        super().__init__(content)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(BODY_S), self._answers:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                # In pieces: the server takes the next one when the client has taken most of those before.
                for start in range(0, len(self.body), CHUNK_BYTES):
                    piece = self.body[start : start + CHUNK_BYTES]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            await cut(scope)


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

    def app(self) -> ASGIApp:
        """The application."""
        routes = [
            Route(HEALTH, self._health),
            Route("/v1/model", self._model),
            Route("/v1/jobs", self._post, methods=["POST"]),
            Route("/v1/jobs/{id}", self._get),
            Route("/v1/jobs/{id}", self._acknowledge, methods=["DELETE"]),
        ]
        if self._compat:
            routes += [Route("/upload", self._upload, methods=["POST"]), Route("/get", self._take)]
        return make_json_app(routes, self._authorise, RETRY_S, FrameError)

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

    def _authorise(self, request: Request) -> None:
        if "origin" in request.headers:  # a page in somebody's browser, which can reach loopback
            raise HttpRefusal(403, "not for browsers")
        if not bears_token(request.headers.get("authorization", ""), self._token):
            raise HttpRefusal(401, "unauthorized")
        if not self._token and not all(map(is_address, request.headers.getlist("host") or [""])):
            raise HttpRefusal(403, "without a token this server goes by its address, or localhost, alone")

    # --- routes ---

    async def _health(self, request: Request) -> Response:
        if self._closing.is_set():
            return answer(503, {"status": "stopping"})
        counts = {stand.value: self._queue.count(stand) for stand in JobStatus if stand is not JobStatus.GONE}
        return answer(200, {"status": "ok", "version": __version__, "protocol": VERSION} | counts)

    async def _model(self, request: Request) -> Response:
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
        return answer(200, told)

    async def _post(self, request: Request) -> Response:
        body = await self._read(request)
        header, batch = await asyncio.to_thread(decode_job, body, self._frames)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        self._check_vocabulary(batch)
        if header.model not in ("", self._reference.digest):
            raise HttpRefusal(409, f"the job is for the model {header.model}", model=self._reference.digest)
        size = batch.ids.nbytes + batch.mask.nbytes + 4 * header.rows * header.keep
        job, new = self._put(header.id, digest, ScoringWork(batch), size)
        return self._stands(job, 202 if new else 200)

    async def _get(self, request: Request) -> Response:
        job = self._find(request)
        await self._wait(job, _seconds(request))
        if job.stand is JobStatus.DONE and job.result is not None:
            self._queue.lease(job)
            rows, keep = job.result.shape
            header = ResultHeader(job.id, job.digest, self._reference.digest, rows, keep)
            return Response(encode_result(header, job.result), media_type=FRAME)
        if job.stand is JobStatus.FAILED:
            raise HttpRefusal(500, f"the job failed: {job.failure}")
        if job.stand is JobStatus.GONE:
            raise HttpRefusal(404, "the job was dropped")
        return self._stands(job, 202)

    async def _acknowledge(self, request: Request) -> Response:
        if not self._queue.drop(request.path_params["id"]):
            raise HttpRefusal(404, "no such job")
        return Response(status_code=204)

    async def _upload(self, request: Request) -> Response:
        limits = self._frames._replace(tokens=min(TOKENS_MAX, self._frames.tokens))
        body = await self._read(request)
        try:
            upload = await asyncio.to_thread(read_upload, body, limits)
        except TooLong as error:
            raise HttpRefusal(413, str(error)) from None
        self._check_vocabulary(upload.batch)
        self._uploads += 1
        rows, _ = upload.batch.ids.shape
        held = upload.batch.ids.nbytes + count_bytes([upload.inputs, *upload.others])
        size = held + upload.batch.mask.nbytes + 4 * rows * upload.batch.keep
        work = ScoringWork(upload.batch, upload)
        self._put(f"upload-{self._uploads}", hashlib.sha256(body).hexdigest(), work, size, COMPAT_LANE)
        return Response(ACCEPTED)

    async def _take(self, request: Request) -> Response:
        """The answer to the oldest upload."""
        async with self._bodies:
            job = self._queue.take_oldest(COMPAT_LANE)
            if job is None or job.work.upload is None or job.result is None:
                return Response(EMPTY)
            content = await asyncio.to_thread(write_answer, job.work.upload, job.result)
        return SlowAnswer(content, self._bodies)

    # --- what they share ---

    async def _read(self, request: Request) -> bytes:
        """The body, within bounds of size and time."""
        if self._closing.is_set():
            raise HttpRefusal(503, "the server is stopping")
        async with self._bodies:
            return await read_body(request, self._limits.body_bytes, BODY_S)

    def _check_vocabulary(self, batch: ScoringBatch) -> None:
        if int(batch.ids.max()) >= self._reference.frozen.vocabulary:
            raise FrameError(f"a token id is not below {self._reference.frozen.vocabulary}")

    def _put(
        self, id: str, digest: str, work: ScoringWork, size_bytes: int, lane: str = "own"
    ) -> tuple[ScoringJob[ScoringWork, Logs], bool]:
        if self._closing.is_set():
            raise HttpRefusal(503, "the server is stopping")
        try:
            return self._queue.put(id, digest, work, size_bytes, lane)
        except JobDiffers:
            raise HttpRefusal(409, f"there is another job {id}") from None
        except QueueFull:
            raise HttpRefusal(503, "the queue is full") from None

    def _find(self, request: Request) -> Waiting:
        id = request.path_params["id"]
        job = self._queue.find(id) if IDENTIFIER.fullmatch(id) else None
        if job is None or job.lane == COMPAT_LANE:
            raise HttpRefusal(404, "no such job")
        return job

    async def _wait(self, job: Waiting, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await job.settled.wait()

    def _stands(self, job: Waiting, status: int) -> Response:
        return answer(status, {"id": job.id, "stand": job.stand.value, "model": self._reference.digest})


def _seconds(request: Request) -> float:
    """How long the client wants to wait. Raises HttpRefusal."""
    given = request.query_params.get("wait_s", "0")
    if not re.fullmatch(r"\d{1,4}(\.\d{1,6})?", given):
        raise HttpRefusal(400, "wait_s is no number of seconds")
    return min(float(given), WAIT_S_MAX)


STOP_S = 20.0  # requests under way may take so long once the last job is computed

log = get_logger(__name__)


class ReferenceServerSetup(NamedTuple):
    """What a reference server is to do."""

    training: TrainingConfig  # of which the model, device, dtype and threads count
    listen: Address
    token: str = ""
    compat: bool = False
    limits: ServerLimits = ServerLimits()


def quieten() -> None:
    """Keep progress bars and advice of transformers out of the log, and what the hub's library would report."""
    refuse_telemetry()
    library: Any = import_module("transformers.utils.logging")
    library.set_verbosity_error()
    library.disable_progress_bar()


async def run_server(order: ReferenceServerSetup) -> None:
    """Serve until SIGTERM or SIGINT; what is being computed then is finished and handed out.

    Raises:
        ConfigError: strangers could reach it, or there is no such device.
        ModelError: the model cannot be loaded.
        AddressInUse: the address cannot be listened on.
    """
    check_listen(order.listen, order.token, "the reference server")
    quieten()
    reference = ReferenceScorer(load_frozen(order.training))
    desk = ReferenceApp(reference, order.limits, order.token, order.compat)
    stopped = on_signals()
    computing = asyncio.create_task(desk.compute())
    async with listening(desk.app(), order.listen, STOP_S) as url:
        log.info(
            "listening on %s with %s (%s) on %s", url, order.training.model, reference.digest, reference.frozen.device
        )
        await asyncio.wait({computing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        desk.close()
        await computing
