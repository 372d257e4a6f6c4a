"""Errors of the Hub, or of a proxy in its place, are explained with the status, the cause and the fix."""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import HubUnreachable, ModelError
from swarmd.training.models.hub import explain_hub, fetch_commit
from swarmd.training.models.model import load_policy, read_model_shape
from swarmd.training.models.source import require_model
from tests.training.impostor import impostor, send

PAGE = b"<!DOCTYPE html><html>Please log in to this network</html>"
JSON = {"Content-Type": "application/json"}
COMMIT = "c" * 40

Set = Callable[..., None]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Set]:
    """A server that gives every request the same answer, and that huggingface_hub takes for the Hub."""
    given: tuple[int, dict[str, str], bytes] = 404, {}, b""

    def answer(status: int, headers: dict[str, str], body: bytes) -> None:
        nonlocal given
        given = status, headers, body

    with impostor(lambda door: send(door, given[0], given[2], given[1])) as url:
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield answer


def model_info(*files: str) -> bytes:
    siblings = [{"rfilename": file} for file in files]
    return json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}).encode()


CASES: dict[str, tuple[int, dict[str, str], bytes, str, str]] = {
    "gated": (403, {"X-Error-Code": "GatedRepo"}, b"{}", "accounts that it was granted to (403)", "/org/name"),
    "absent": (404, {"X-Error-Code": "RepoNotFound"}, b"{}", "shows none with this name", "hf auth login"),
    "no such revision": (404, {"X-Error-Code": "RevisionNotFound"}, b"{}", "no revision 'v1'", "training.revision"),
    "a token that is none": (401, JSON, b'{"error": "Invalid credentials"}', "(401)", "HF_TOKEN"),
    "a token without the right": (403, JSON, b"{}", "forbids org/name to this token (403)", "the right to read"),
    "too many requests": (429, JSON, b"{}", "(429)", "Wait some minutes"),
    "trouble": (502, {"Content-Type": "text/html"}, PAGE, "(502)", "Try again"),
    "a captive portal": (200, {"Content-Type": "text/html"}, PAGE, "is not the Hub", "in a browser"),
    "a proxy that wants a password": (407, {}, b"", "it answers 407", "network"),
    "adapters alone": (200, JSON, model_info("adapter_config.json"), "holds adapters", "made for"),
    "GGUF alone": (200, JSON, model_info("name-Q4.gguf"), "only GGUF files", "hf download"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_told_by_its_cause(case: str, answers: Set) -> None:
    status, headers, body, told, fix = CASES[case]
    answers(status, headers, body)
    with pytest.raises(ModelError) as caught:
        fetch_commit("org/name", "v1", ("embedded",))
    assert told in caught.value.message and fix in caught.value.fix, str(caught.value)
    assert "org/name" in caught.value.message
    assert isinstance(caught.value, HubUnreachable) == (case in UNREACHABLE)


@pytest.mark.parametrize("case", ["too many requests", "trouble"])
def test_a_start_asks_once_where_libraries_would_for_a_minute(case: str, answers: Set) -> None:
    status, headers, body, told, _ = CASES[case]
    answers(status, headers, body)
    begun = time.monotonic()
    with pytest.raises(HubUnreachable, match=re.escape(told)):
        load_policy(TrainingConfig(model="org/name", device="cpu", lora=LoraConfig(rank=4)))
    assert time.monotonic() - begun < 10


def test_a_cache_that_cannot_be_written_is_no_fault_of_the_network(tmp_path: Path) -> None:
    error = NotADirectoryError(errno.ENOTDIR, "Not a directory", str(tmp_path / "hub"))
    told = explain_hub(error, "org/name")
    assert f"{tmp_path / 'hub'}: Not a directory" in told.message and "HF_HOME" in told.fix


UNREACHABLE = {"too many requests", "trouble", "a captive portal", "a proxy that wants a password"}


def test_a_model_that_is_there_has_a_commit(answers: Set) -> None:
    answers(200, JSON, model_info("config.json", "model.safetensors"))
    assert fetch_commit("org/name", "", ()) == COMMIT
    require_model(TrainingConfig(model="org/name"))


@pytest.mark.parametrize("case", ["gated", "absent", "no such revision", "a captive portal"])
def test_transformers_own_words_for_it_are_not_what_is_told(case: str, answers: Set) -> None:
    """It says the same of a model that is not there, of one that is gated, and of a network that is not."""
    status, headers, body, told, _ = CASES[case]
    answers(status, headers, body)
    with pytest.raises(ModelError) as caught:
        read_model_shape("org/name", "org/name")
    assert told.replace("revision 'v1'", "such revision") in caught.value.message, str(caught.value)
