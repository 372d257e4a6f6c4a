"""The server's own interface over a real socket: jobs, leases, bounds, tokens, hostile bytes."""

import hashlib
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmd.training.reference.frame import decode_result
from swarmd.training.reference.scoring import ReferenceScorer
from swarmd.training.reference.server import QueueLimits, ServerLimits
from tests.training.reference.conftest import CALL_S, TOKEN, Serving, frame_of, some_batch

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
    server.loop.call_soon_threadsafe(server.application.close)
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
    assert told["model"] == embedded.digest and told["vocabulary"] == embedded.vocabulary_size
    assert server.ask("GET", "/healthz").json()["status"] == "ok"


def test_browsers_are_sent_away(serve: Serve) -> None:
    server = serve()
    for headers in ({"Origin": "http://example.org"}, {"Host": "evil.example:59807"}):
        assert server.ask("GET", "/v1/model", **headers).status_code == 403
    assert server.ask("GET", "/v1/model", Host="localhost:1").status_code == 200


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
    frame[place : place + 4] = embedded.vocabulary_size.to_bytes(4, "little")
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
