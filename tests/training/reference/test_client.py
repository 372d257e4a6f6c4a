"""The client: what it does if the server is away, slow, has another model, or dies."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from swarmd.errors import ConfigError, ReferenceFailed, ReferenceMismatch
from swarmd.training import kl as subject
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.kl import ReferenceClient
from swarmd.training.reference.frame import ResultHeader, encode_result
from swarmd.training.reference.scoring import ReferenceScorer
from tests.training.impostor import Answer, Door, impostor, send
from tests.training.reference.conftest import TOKEN, Process, Serving, some_batch

Serve = Callable[..., Serving]


def client_of(
    url: str, reference: ReferenceScorer, token: str = "", cancellation: Cancellation | None = None
) -> ReferenceClient:
    stage = cancellation or Cancellation()
    return ReferenceClient(url, reference.digest, 0.7, token, "node", lambda: stage)


def check_right(client: ReferenceClient, reference: ReferenceScorer, prompts: int = 3) -> None:
    batch = some_batch(reference, prompts)
    expected = reference.log_probabilities(**batch, temperature=0.7)
    torch.testing.assert_close(client.log_probabilities(**batch), expected, atol=1e-5, rtol=1e-5)


def test_it_gives_what_the_model_says_and_acknowledges(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(token=TOKEN)
    client = client_of(server.url, embedded, TOKEN)
    for prompts in (1, 4):
        check_right(client, embedded, prompts)
    told = server.ask("GET", "/healthz").json()
    assert server.reference.count == 2 and (told["waiting"], told["done"]) == (0, 0)


def test_a_cancelled_stage_gives_its_job_up(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    server.reference.open.clear()
    stage = Cancellation()
    threading.Timer(0.3, stage.request).start()
    with pytest.raises(Cancelled):
        client_of(server.url, embedded, cancellation=stage).log_probabilities(**some_batch(embedded))
    told = server.ask("GET", "/healthz").json()
    assert (told["waiting"], told["running"], told["done"]) == (0, 0, 0)


def test_a_job_that_failed_once_is_asked_for_again(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    server.reference.failures.append(RuntimeError("out of memory"))
    check_right(client_of(server.url, embedded), embedded)
    assert server.reference.count == 2


def test_another_model_is_an_error_of_its_own_and_computes_nothing(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve()
    client = ReferenceClient(server.url, "0" * 64, 1.0)
    with pytest.raises(ReferenceMismatch, match=f"holds the weights {embedded.digest[:16]}, this node began with 0000"):
        client.log_probabilities(**some_batch(embedded))
    assert server.reference.count == 0


def test_a_wrong_token_is_told_at_once(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(token=TOKEN)
    with pytest.raises(ReferenceFailed, match=r"401 unauthorized.*training.reference.token"):
        client_of(server.url, embedded, TOKEN[:-1] + "x").log_probabilities(**some_batch(embedded))


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "ftp://a", "http://", "http://a:x", "http://a?b", "http://u:p@a"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not an HTTP address"):
        ReferenceClient(url, "0" * 64, 1.0)


def sends(status: int, body: bytes) -> Answer:
    return lambda door: send(door, status, body)


def result(model: str, value: float = -1.0) -> bytes:
    logs = torch.full((12, 5), value).numpy()
    return encode_result(ResultHeader("other", "0" * 64, model, 12, 5), logs)


@pytest.mark.parametrize(
    ("body", "error", "told"),
    [
        (lambda model: b"SWRF garbage", ReferenceFailed, "nonsense"),
        (lambda model: b"", ReferenceFailed, "nonsense"),
        (lambda model: b"{}", ReferenceMismatch, "holds the weights"),
        (lambda model: result("1" * 64), ReferenceMismatch, "holds the weights 1111"),
        (lambda model: result(model, float("nan")), ReferenceFailed, "nonsense"),
        (lambda model: result(model), ReferenceMismatch, "another job"),
    ],
)
def test_answers_that_are_not_to_the_question_are_refused(
    embedded: ReferenceScorer, body: Callable[[str], bytes], error: type[Exception], told: str
) -> None:
    with impostor(sends(200, body(embedded.digest))) as url, pytest.raises(error, match=told):
        client_of(url, embedded).log_probabilities(**some_batch(embedded))


def drips(door: Door) -> None:
    """One byte after another, for ever: no single read takes long."""
    door.send_response(200)
    door.end_headers()
    try:
        while True:
            door.wfile.write(b"x")
            door.wfile.flush()
            threading.Event().wait(0.02)
    except OSError:
        return


def silent(door: Door) -> None:
    door.rfile.read(1)


@pytest.mark.parametrize("answer", [drips, silent])
def test_an_attempt_ends_in_time_whatever_the_server_does(
    embedded: ReferenceScorer, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "ATTEMPTS_MAX", 2)
    monkeypatch.setattr(subject, "CALL_S", 0.5)
    began = time.monotonic()
    with impostor(answer) as url, pytest.raises(ReferenceFailed):
        client_of(url, embedded).log_probabilities(**some_batch(embedded))
    assert time.monotonic() - began < 5


def test_an_answer_without_end_is_not_read_to_it(embedded: ReferenceScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "ATTEMPTS_MAX", 1)
    monkeypatch.setattr(subject, "ANSWER_BYTES_MAX", 1000)
    with impostor(sends(200, b"x" * 2000)) as url, pytest.raises(ReferenceFailed, match="longer than 1000 bytes"):
        client_of(url, embedded).log_probabilities(**some_batch(embedded))


def test_a_server_killed_in_mid_job_and_started_again_is_asked_again(
    launch: Callable[..., Process], embedded: ReferenceScorer, tmp_path: Path
) -> None:
    """The real command: killed with a job posted and unanswered, started again on its port, ended in order."""
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    (tmp_path / "token").chmod(0o600)
    options = ("--token-file", "token", "--threads", "1")
    first = launch(*options)
    url = first.listens()
    client = client_of(url, embedded, TOKEN)
    check_right(client, embedded)

    second: list[Process] = []
    exchange = client._send_request

    def killing(method: str, *arguments: Any) -> tuple[int, bytes]:
        answer = exchange(method, *arguments)
        if method == "POST" and not second:
            first.kill()
            second.append(launch(*options, port=urlsplit(url).port or 0))
        return answer

    client._send_request = killing  # type: ignore[method-assign]
    check_right(client, embedded, prompts=4)
    assert second[0].end() == 0
    assert "stopping" in second[0].log and TOKEN not in first.log + second[0].log
