"""The server over a real socket: jobs, leases, bounds, tokens, hostile bytes; its queue, and what it computes."""

import asyncio
import hashlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, ModelError
from swarmd.training.engine import TrainingEngine
from swarmd.training.reference.frame import decode_result
from swarmd.training.reference.queue import JobQueue, JobStatus, QueueFull, QueueLimits, ScoringJob
from swarmd.training.reference.scoring import ReferenceScorer, load_frozen
from swarmd.training.reference.server import ServerLimits
from tests.training.reference.conftest import CALL_S, TOKEN, Serving, frame_of, some_batch
from tests.training.test_trainer import batch_of

Serve = Callable[..., Serving]


def test_a_job_is_computed_leased_and_acknowledged(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    frame = frame_of(embedded, "job-1")
    posted = server.ask("POST", "/v1/jobs", frame)
    assert posted.status_code == 202 and posted.json()["model"] == embedded.digest
    for _ in range(2):  # a lease hands out the same result again
        answer = server.ask("GET", "/v1/jobs/job-1?wait_s=20")
        header, logs = decode_result(answer.content)
        assert (header.id, header.model, header.job) == ("job-1", embedded.digest, hashlib.sha256(frame).hexdigest())
        torch.testing.assert_close(torch.from_numpy(logs), embedded.log_probabilities(**some_batch(embedded)))
    assert server.ask("DELETE", "/v1/jobs/job-1").status_code == 204
    assert server.ask("GET", "/v1/jobs/job-1").status_code == 404
    assert server.ask("DELETE", "/v1/jobs/job-1").status_code == 404


def test_the_same_job_is_computed_once_and_another_of_its_id_refused(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    frame = frame_of(embedded, "job-1")
    assert [server.ask("POST", "/v1/jobs", frame).status_code for _ in range(3)] == [202, 200, 200]
    assert server.ask("GET", "/v1/jobs/job-1?wait_s=20").status_code == 200
    assert server.ask("POST", "/v1/jobs", frame).json()["stand"] == "done"
    assert server.ask("POST", "/v1/jobs", frame_of(embedded, "job-1", temperature=0.5)).status_code == 409
    assert server.reference.count == 1


def test_a_full_queue_says_when_to_come_again(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(ServerLimits(queue=QueueLimits(jobs=2)))
    server.reference.open.clear()
    posted = [server.ask("POST", "/v1/jobs", frame_of(embedded, f"job-{n}")) for n in range(3)]
    assert [answer.status_code for answer in posted] == [202, 202, 503]
    assert int(posted[2].headers["Retry-After"]) > 0 and "full" in posted[2].json()["error"]
    server.reference.open.set()
    assert server.ask("GET", "/v1/jobs/job-0?wait_s=20").status_code == 200
    assert server.ask("POST", "/v1/jobs", frame_of(embedded, "job-2")).status_code == 503  # not acknowledged yet
    server.ask("DELETE", "/v1/jobs/job-0")
    assert server.ask("POST", "/v1/jobs", frame_of(embedded, "job-2")).status_code == 202


def test_an_ending_server_finishes_what_it_computes_and_begins_nothing(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    server.reference.open.clear()
    for id in ("job-1", "job-2"):
        server.ask("POST", "/v1/jobs", frame_of(embedded, id))
    assert server.reference.begun.acquire(timeout=CALL_S)
    statuses: dict[str, int] = {}

    def wait(id: str) -> None:
        statuses[id] = server.ask("GET", f"/v1/jobs/{id}?wait_s=20").status_code

    waiting = [threading.Thread(target=wait, args=[id]) for id in ("job-1", "job-2")]
    for thread in waiting:
        thread.start()
    threading.Event().wait(0.3)
    server.loop.call_soon_threadsafe(server.desk.close)
    waiting[1].join(CALL_S)
    assert server.ask("POST", "/v1/jobs", frame_of(embedded, "job-3")).status_code == 503
    assert server.ask("GET", "/healthz").status_code == 503
    server.reference.open.set()
    waiting[0].join(CALL_S)
    assert statuses == {"job-1": 200, "job-2": 404} and server.reference.count == 1


def test_a_token_is_asked_for_everywhere_but_at_the_health_check(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(token=TOKEN, compat=True)
    calls = [("GET", "/v1/model"), ("POST", "/v1/jobs"), ("GET", "/v1/jobs/a"), ("DELETE", "/v1/jobs/a")]
    for method, path in [*calls, ("POST", "/upload"), ("GET", "/get")]:
        for headers in ({}, {"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Authorization": f"Basic {TOKEN}"}):
            answer = server.ask(method, path, **headers)
            assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    told = server.ask("GET", "/v1/model", Authorization=f"Bearer {TOKEN}").json()
    assert told["model"] == embedded.digest and told["vocabulary"] == embedded.frozen.vocabulary
    assert server.ask("GET", "/healthz").json()["status"] == "ok"


def test_browsers_are_sent_away(serve: Serve) -> None:
    assert serve().ask("GET", "/v1/model", Origin="http://example.org").status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:59807", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_without_a_token_a_page_that_made_its_name_lead_here_reads_nothing(serve: Serve, host: str) -> None:
    server, closed = serve(compat=True), serve(token=TOKEN)
    for method, path in (("GET", "/v1/model"), ("POST", "/v1/jobs"), ("GET", "/get")):
        answer = server.ask(method, path, Host=host)
        assert answer.status_code == 403 and "address" in answer.json()["error"]
    assert closed.ask("GET", "/v1/model", Host=host or "x", Authorization=f"Bearer {TOKEN}").status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:59807", "[::1]:59807", "[::1]", "localhost:1", "LOCALHOST."])
def test_its_address_and_localhost_are_its_own(serve: Serve, host: str) -> None:
    assert serve().ask("GET", "/v1/model", Host=host).status_code == 200


def test_what_exceeds_a_bound_is_refused(serve: Serve, embedded: ReferenceScorer) -> None:
    frame = frame_of(embedded, "job-1", prompts=6)
    for limits, status in (
        (ServerLimits(body_bytes=512), 413),
        (ServerLimits(sequences=7), 400),
        (ServerLimits(tokens=10), 400),
    ):
        server = serve(limits)
        answer = server.ask("POST", "/v1/jobs", frame)
        assert answer.status_code == status and answer.json()["error"]
        assert server.reference.count == 0


def test_a_body_of_no_length_is_bounded_too(serve: Serve) -> None:
    server = serve(ServerLimits(body_bytes=1 << 16))
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=CALL_S) as connection:
        connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall((b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 3)
        assert b" 413 " in connection.recv(1024)


def test_tokens_that_the_model_does_not_know_are_refused(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    frame = bytearray(frame_of(embedded, "job-1"))
    assert server.ask("POST", "/v1/jobs", bytes(frame)).status_code == 202
    place = frame.index(b"\xa0", 12) + 1  # ids begin after the last field of the header, an empty string
    frame[place : place + 4] = embedded.frozen.vocabulary.to_bytes(4, "little")
    answer = server.ask("POST", "/v1/jobs", bytes(frame))
    assert answer.status_code == 400 and "not below" in answer.json()["error"]


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "1e9", "x", "99999"])
def test_a_wait_is_a_bounded_number(serve: Serve, embedded: ReferenceScorer, wait: str) -> None:
    server = serve()
    server.ask("POST", "/v1/jobs", frame_of(embedded, "job-1"))
    assert server.ask("GET", f"/v1/jobs/job-1?wait_s={wait}").status_code == 400


def test_hostile_bytes_get_an_answer_and_do_no_harm(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(compat=True)
    whole = frame_of(embedded, "job-1")

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(["/v1/jobs", "/upload"]), st.binary(max_size=200), st.integers(0, len(whole)))
    def throw(path: str, body: bytes, kept: int) -> None:
        for hostile in (body, whole[:kept] + body, body + whole):
            if hostile != whole:
                assert server.ask("POST", path, hostile).status_code == 400

    throw()
    assert server.ask("GET", "/healthz").json()["status"] == "ok"


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


def forward(reference: ReferenceScorer, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of all tokens but the first, by one plain forward pass."""
    logits = reference.frozen.model(ids).logits[:, :-1].float() / temperature
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)


def test_they_are_those_of_a_plain_forward_pass(embedded: ReferenceScorer) -> None:
    ids = torch.randint(0, embedded.frozen.vocabulary, (5, 12))
    got = embedded.log_probabilities(ids, torch.ones_like(ids), 7, 0.8)
    torch.testing.assert_close(got, forward(embedded, ids, 0.8)[:, -7:], atol=1e-5, rtol=1e-5)


def check_like_trl(engine: TrainingEngine, reference: ReferenceScorer) -> None:
    batch = batch_of(reference.frozen.vocabulary, prompts=5)
    mask = batch.pop("mask")
    trainer = engine._trainer
    with torch.no_grad():
        expected = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, **batch)[0]
    got = reference.log_probabilities(batch["input_ids"], batch["attention_mask"], 5, trainer.temperature)
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-4)
    assert not got[~mask.bool()].any()


def test_they_are_those_of_trl(
    embedded: ReferenceScorer, make_engine: Callable[..., TrainingEngine], llama: Path
) -> None:
    check_like_trl(make_engine("embedded", temperature=0.7), embedded)
    frozen = load_frozen(TrainingConfig(model=str(llama)))
    check_like_trl(make_engine("llama", model=str(llama), prompt_tokens=500), ReferenceScorer(frozen))


@pytest.mark.parametrize(("tokens", "logits"), [(1, 1 << 30), (1 << 20, 1), (30, 1 << 30), (1 << 20, 8000)])
def test_how_a_batch_is_cut_changes_nothing(embedded: ReferenceScorer, tokens: int, logits: int) -> None:
    batch = batch_of(embedded.frozen.vocabulary, prompts=4)
    arguments = batch["input_ids"], batch["attention_mask"], 5
    cut = ReferenceScorer(embedded.frozen, tokens, logits)
    sizes: list[int] = []
    cut.frozen.model.register_forward_pre_hook(
        lambda model, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    torch.testing.assert_close(
        cut.log_probabilities(*arguments), embedded.log_probabilities(*arguments), atol=1e-5, rtol=1e-5
    )
    assert len(sizes) > 2


def test_what_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model directory"):
        load_frozen(TrainingConfig(model=str(tmp_path / "absent")))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_frozen(TrainingConfig(model=str(tmp_path)))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch finds none"):
            load_frozen(TrainingConfig(device="cuda"))
