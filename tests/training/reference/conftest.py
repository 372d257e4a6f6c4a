"""Reference servers: in this process behind a real socket, and as processes of their own."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from swarmd.config import TrainingConfig
from swarmd.http_server import Address
from swarmd.training.reference.frame import JobHeader, ScoringBatch, encode_job
from swarmd.training.reference.scoring import ReferenceScorer, load_reference
from swarmd.training.reference.server import ReferenceApp, ServerLimits
from swarmd.uvicorn_server import serve_in_background
from tests.forked import ALL, Forked, order_fork, start_server

TOKEN = "canary-token-0123456789abcdef"
START_S = 240.0
STOP_S = 30.0
CALL_S = 30.0
PLAIN = ServerLimits()


def batch_of(vocabulary: int, prompts: int = 3, group: int = 4, width: int = 6, keep: int = 5) -> dict[str, Any]:
    """Padded prompts, each repeated for its group in shuffled order, with completions of different lengths."""
    torch.manual_seed(1)
    lengths = torch.randint(2, width + 1, (prompts,))
    mask = (torch.arange(width)[None] >= width - lengths[:, None]).long()
    ids = torch.randint(3, vocabulary, (prompts, width)) * mask
    rows = torch.arange(prompts).repeat_interleave(group)[torch.randperm(prompts * group)]
    ends = torch.randint(1, keep + 1, (len(rows),))
    completion_mask = (torch.arange(keep)[None] < ends[:, None]).long()
    completions = torch.randint(3, vocabulary, (len(rows), keep)) * completion_mask
    return {
        "input_ids": torch.cat([ids[rows], completions], 1),
        "attention_mask": torch.cat([mask[rows], completion_mask], 1),
        "logits_to_keep": keep,
        "mask": completion_mask,
    }


class Gate(ReferenceScorer):
    """A reference that computes only while it is let, and counts."""

    def __init__(self, inner: ReferenceScorer) -> None:
        self.__dict__.update(inner.__dict__)
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Semaphore(0)
        self.count = 0
        self.failures: list[Exception] = []

    def log_probabilities(self, *arguments: Any) -> torch.Tensor:
        self.count += 1
        self.begun.release()
        assert self.open.wait(CALL_S)
        if self.failures:
            raise self.failures.pop()
        return super().log_probabilities(*arguments)


class Serving:
    """A server in a thread."""

    def __init__(self, reference: Gate, limits: ServerLimits, token: str, compat: bool) -> None:
        self.reference = reference
        self.url = ""
        self._arguments = reference, limits, token, compat
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(CALL_S)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.application = ReferenceApp(*self._arguments)
        computing = asyncio.create_task(self.application.compute_jobs())
        async with serve_in_background(self.application.make_asgi_app(), Address("127.0.0.1", 0), 1.0) as self.url:
            self._ready.set()
            await computing

    def close(self) -> None:
        self.reference.open.set()
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.application.close)
        self._thread.join(CALL_S)
        assert not self._thread.is_alive()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> requests.Response:
        return requests.request(method, self.url + path, data=body, headers=headers, timeout=CALL_S)


@pytest.fixture(scope="session")
def embedded() -> ReferenceScorer:
    return load_reference(TrainingConfig())


@pytest.fixture
def serve(embedded: ReferenceScorer) -> Iterator[Callable[..., Serving]]:
    """Servers of the embedded model."""
    running: list[Serving] = []

    def start(limits: ServerLimits = PLAIN, token: str = "", compat: bool = False) -> Serving:
        running.append(Serving(Gate(embedded), limits, token, compat))
        return running[-1]

    yield start
    for server in running:
        server.close()


class Process:
    """`swarmd reference-server` as somebody starts it."""

    def __init__(self, directory: Path, *options: str, port: int = 0) -> None:
        self._errors = directory / f"server-{os.urandom(4).hex()}.log"
        order = ("reference-server", "--listen", f"127.0.0.1:{port}", *options)
        with self._errors.open("wb") as errors:
            server = start_server(*ALL)
            pipes = order_fork(server, "swarmd", order, os.environ, cwd=directory, stderr=errors.fileno())
        self._process = Forked(pipes)

    @property
    def log(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def listens(self) -> str:
        """Its URL, once it has one."""
        waited = threading.Event()
        for _ in range(int(START_S * 10)):
            told = [line for line in self.log.splitlines(keepends=True) if "listening on" in line]
            if told and told[0].endswith("\n"):
                return str(json.loads(told[0])["message"].split()[2])
            assert self._process.poll() is None, self.log
            waited.wait(0.1)
        raise AssertionError(self.log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(STOP_S)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        return self._process.wait(STOP_S)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Server processes, ended after the test."""
    running: list[Process] = []

    def start(*options: str, port: int = 0) -> Process:
        running.append(Process(tmp_path, *options, port=port))
        return running[-1]

    yield start
    for process in running:
        process.kill()


def some_batch(reference: ReferenceScorer, prompts: int = 3) -> dict[str, Any]:
    """Arguments of `log_probabilities`."""
    batch = batch_of(reference.vocabulary_size, prompts)
    return {"ids": batch["input_ids"], "mask": batch["attention_mask"], "keep": batch["logits_to_keep"]}


def frame_of(reference: ReferenceScorer, id: str, prompts: int = 3, **changed: Any) -> bytes:
    """A job's frame."""
    batch = some_batch(reference, prompts)
    rows, width = batch["ids"].shape
    header = {"id": id, "rows": rows, "width": width, "keep": batch["keep"], "dtype": "int32"} | changed
    return encode_job(JobHeader(**header), ScoringBatch(batch["ids"].numpy(), batch["mask"].numpy(), batch["keep"]))
