"""A model's id is looked up at the Hub before the trainer asks for it: here, at a server with the Hub's answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from swarmd.config import TrainingConfig
from swarmd.doctor.machine import hub
from tests.doctor.making import Made

THERE = "someone/model-1B"
NEAR = "Qwen/Qwen3-0.6B"


class Answers(BaseHTTPRequestHandler):
    """One model is there, one needs a token, the server fails for one, and all others are nowhere."""

    def do_GET(self) -> None:
        name = self.path.partition("/api/models/")[2].partition("?")[0]
        known = {THERE: (200, {}), "someone/fails": (500, {}), "someone/gated": (403, {"X-Error-Code": "GatedRepo"})}
        known[f"{THERE}/revision/v1"] = (200, {})
        known[f"{THERE}/revision/v2"] = (404, {"X-Error-Code": "RevisionNotFound"})
        code, headers = known.get(name, (404, {"X-Error-Code": "RepoNotFound"}))
        body = json.dumps({"id": name, "_id": "1"}).encode()
        self.send_response(code)
        for key, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv(hub.ENDPOINT, f"http://127.0.0.1:{listening.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # tests are offline otherwise
    yield
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "node")


def named(made: Made, model: str) -> Made:
    made.write(f'[training]\nmodel = "{model}"')
    return made


def test_a_model_that_is_there(server: None, made: Made) -> None:
    found = named(made, THERE).find("model", offline=False)["model"]
    assert found.severity == "ok" and found.evidence == f"the Hub has {THERE}"


def test_a_model_that_is_not_given_to_everybody(server: None, made: Made) -> None:
    found = named(made, "someone/gated").find("model", offline=False)["model.gated"]
    assert found.severity == "warning" and "someone/gated" in found.evidence and "HF_TOKEN" in found.fix


def test_a_misspelt_model_is_an_error_that_names_the_one_that_was_meant(server: None, made: Made) -> None:
    found = named(made, "Qwen/Qwen3-0.6").find("model", offline=False)["model.nowhere"]
    assert found.severity == "error" and "Qwen/Qwen3-0.6" in found.evidence and f"Did you mean {NEAR}?" in found.fix
    assert "HF_TOKEN" in named(made, "someone/else").find("model", offline=False)["model.nowhere"].fix


def test_a_revision_is_looked_up_with_its_model(server: None, made: Made) -> None:
    made.write(f'[training]\nmodel = "{THERE}"\nrevision = "v1"')
    assert made.find("model", offline=False)["model"].evidence == f"the Hub has {THERE}, revision v1"
    made.write(f'[training]\nmodel = "{THERE}"\nrevision = "v2"')
    found = made.find("model", offline=False)["model.nowhere"]
    assert found.severity == "error" and "no revision v2" in found.evidence and "training.revision" in found.fix


def test_another_revision_in_the_cache_is_not_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / f"models--{THERE.replace('/', '--')}"
    for revision, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        (place / "snapshots" / commit).mkdir(parents=True)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / revision).write_text(commit)
    (place / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert hub.absent_models(TrainingConfig(model=THERE)) == []
    assert hub.absent_models(TrainingConfig(model=THERE, revision="v1")) == [THERE]


def test_every_model_of_a_pool_is_looked_up(server: None, made: Made) -> None:
    made.write(f'[training]\nmodel = "auto"\npool = ["{THERE}", "coder", "someone/else"]')
    found = made.report("model", offline=False).findings
    assert {each.id for each in found} == {"model", "model.nowhere"}
    assert any("someone/else" in each.evidence for each in found)


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1"], ids=["error", "nobody"])
def test_a_hub_that_cannot_say_is_a_note(
    server: None, made: Made, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if endpoint:
        monkeypatch.setenv(hub.ENDPOINT, endpoint)
    found = named(made, "someone/fails").find("model", offline=False)["model.unasked"]
    assert found.severity == "note" and "the Hub did not answer: " in found.evidence


def test_a_hub_that_does_not_answer_is_waited_for_so_long(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HUB_S", 0.01)
    monkeypatch.setattr(hub, "ask_hub", lambda *_: threading.Event().wait(60) or "")
    assert "no answer within" in named(made, THERE).find("model", offline=False)["model.unasked"].evidence


def test_offline_nobody_is_asked_and_a_near_miss_is_told(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ask_hub", lambda *_: pytest.fail("asked"))
    assert set(named(made, THERE).find("model")) == {"model"}
    assert set(named(made, NEAR).find("model")) == {"model"}
    found = named(made, NEAR.replace("Qwen3", "Qwem3")).find("model")["model.unasked"]
    assert f"Did you mean {NEAR}?" in found.fix


def test_directories_and_the_embedded_model_are_no_ids(made: Made, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for training in (
        TrainingConfig(),
        TrainingConfig(model=str(tmp_path)),
        TrainingConfig(model="auto"),
        TrainingConfig(model="auto", pool=("coder",)),
    ):
        assert hub.absent_models(training) == []
    assert hub.absent_models(TrainingConfig(model=THERE)) == [THERE]
