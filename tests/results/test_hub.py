"""A push goes to the Hub whole, or its failure is told; training waits for neither."""

import threading
from pathlib import Path
from queue import Queue

import msgspec
import pytest
import yaml

from swarmd.animals import animal_name
from swarmd.config import Config, HubConfig, ResultsConfig, SwarmConfig
from swarmd.core.events import ModelPushed, StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.errors import ConfigError
from swarmd.paths import NodeDirectory
from swarmd.results import hub as hub_module
from swarmd.results.history import read_history
from swarmd.results.hub import NAME_CHARS_MAX, Pusher, repo_of
from tests.hub_double import COMMIT, TOKEN, HubDouble
from tests.results.conftest import NODE, config_of

PEER = read_history(NODE).peer
REPO = f"someone/embedded-swarmd-{animal_name(PEER, '_')}"


def trained(round: int = 7, stage: int = 0) -> StageTrained:
    return StageTrained("train", round, stage, 0.75, RolloutsRef(PEER, round, stage, "d" * 64, 1, 1), held_out=0.5)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    place = tmp_path / "r000000007-s0000"
    place.mkdir()
    files = {"model.safetensors": b"w" * 100_000, "config.json": b"{}", "tokenizer.json": b"{}"}
    for name, content in {**files, "meta.json": b"{}", "optimizer.pt": b"o", "rollouts.msgpack": b"r"}.items():
        (place / name).write_bytes(content)
    return place


class Pushes(Queue[ModelPushed]):
    """What becomes of pushes."""

    def wait(self) -> ModelPushed:
        return self.get(timeout=120.0)


def pushed(paths: NodeDirectory, checkpoint: Path, config: Config | None = None) -> ModelPushed:
    """What becomes of one push."""
    pushes = Pushes()
    Pusher(config or config_of(), paths, PEER, pushes.put).push(trained(), checkpoint)
    return pushes.wait()


def test_a_push_is_one_commit_of_the_whole_model_with_its_card(
    hub: HubDouble, paths: NodeDirectory, checkpoint: Path
) -> None:
    heard = Pushes()
    pusher = Pusher(config_of(), paths, PEER, heard.put)
    pusher.push(trained(), checkpoint)
    for file in checkpoint.iterdir():  # what the next save does to an old checkpoint
        file.unlink()
    event = heard.wait()
    assert (event.error, event.repo, event.revision, event.round) == ("", REPO, COMMIT, 7)
    assert hub.commits == ["Round 7"] and REPO in hub.repos
    assert set(hub.files[REPO]) == {"model.safetensors", "config.json", "tokenizer.json", "README.md"}
    assert hub.files[REPO]["model.safetensors"] == b"w" * 100_000
    header, body = hub.files[REPO]["README.md"].decode().split("---\n")[1:]
    assert yaml.safe_load(header)["tags"] == [
        "rl-swarm",
        "genrl-swarm",
        "grpo",
        "gensyn",
        "swarmd",
        "trl",
        f"I am {animal_name(PEER)}",
    ]
    assert f'pipeline("text-generation", model="{REPO}")' in body
    assert "| 7 | 0.750 | 0.500 |" in body and "of kind" in body
    assert not (paths.results / "hub").exists()


def test_adapters_are_pushed_as_peft_looks_for_them(hub: HubDouble, paths: NodeDirectory, checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "/srv/models/base"}')
    assert pushed(paths, checkpoint, config_of("someone/mine")).error == ""
    files = hub.files["someone/mine"]
    assert files["adapter_model.safetensors"] == b"w" * 100_000 and "model.safetensors" not in files
    assert msgspec.json.decode(files["adapter_config.json"]) == {"r": 8, "base_model_name_or_path": "embedded"}
    assert b"library_name: peft" in files["README.md"]
    assert "/srv" in (checkpoint / "adapter_config.json").read_text()  # the checkpoint's own is as it was


@pytest.mark.parametrize(("part", "status", "word"), [("/api/", 401, "401"), ("/commit/", 500, "500")])
def test_a_refusal_of_the_hub_is_told_without_the_token(
    hub: HubDouble, paths: NodeDirectory, checkpoint: Path, part: str, status: int, word: str
) -> None:
    hub.faults[part] = status
    event = pushed(paths, checkpoint)
    assert word in event.error and event.revision == "" and TOKEN not in event.error
    assert hub.commits == []


def test_a_hub_that_never_answers_is_given_up_and_the_next_round_pushes(
    hub: HubDouble, paths: NodeDirectory, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "PUSH_S", 1.5)
    hub.faults["/commit/"] = "hang"
    heard = Pushes()
    pusher = Pusher(config_of(), paths, PEER, heard.put)
    pusher.push(trained(7), checkpoint)
    assert heard.empty(), "training is not kept waiting for what becomes of it"
    assert "given up" in heard.wait().error
    hub.faults.clear()
    monkeypatch.setattr(hub_module, "PUSH_S", 60.0)
    pusher = Pusher(config_of(), paths, PEER, heard.put)
    pusher.push(trained(8), checkpoint)
    assert heard.wait().revision == COMMIT and hub.commits == ["Round 8"]


def test_only_the_last_stage_of_every_so_many_rounds_is_pushed(paths: NodeDirectory) -> None:
    config = msgspec.structs.replace(config_of(every=3), swarm=SwarmConfig(id="local", stages=3))
    pusher = Pusher(config, paths, PEER, print)
    due = [(round, stage) for round in range(7) for stage in range(3) if pusher.is_due(trained(round, stage))]
    assert due == [(2, 2), (5, 2)]
    silent = Pusher(msgspec.structs.replace(config, results=ResultsConfig()), paths, PEER, print)
    assert not silent.is_due(trained(2, 2))


def test_the_name_is_completed_and_fits() -> None:
    def name(repo: str, model: str) -> str:
        return repo_of(config_of(repo), PEER, model)

    animal = animal_name(PEER, "_")
    assert name("someone/", "Qwen/Qwen2.5-0.5B-Instruct") == f"someone/Qwen2.5-0.5B-Instruct-swarmd-{animal}"
    assert name("someone/", "/data/models/my model/") == f"someone/my-model-swarmd-{animal}"
    assert name("someone/mine", "whatever") == "someone/mine"
    assert len(name("someone/", "x" * 300).partition("/")[2]) == NAME_CHARS_MAX


@pytest.mark.parametrize("repo", ["someone", "a/b/c", "/x", "some one/", "-x/", "someone/na me"])
def test_a_wrong_repository_ends_the_start(paths: NodeDirectory, repo: str) -> None:
    with pytest.raises(ConfigError, match=r"results\.hub\.repo"):
        Pusher(config_of(repo), paths, PEER, print)


def test_a_missing_open_or_empty_token_ends_the_start(paths: NodeDirectory) -> None:
    token = paths.root / "hub.token"
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        Pusher(config_of(), paths, PEER, print)
    token.chmod(0o600)
    token.write_text(" \n")
    with pytest.raises(ConfigError, match="there is no token"):
        Pusher(config_of(), paths, PEER, print)
    token.unlink()
    with pytest.raises(ConfigError, match="there is no token"):
        Pusher(config_of(), paths, PEER, print)
    nameless = ResultsConfig(hub=HubConfig(repo="someone/"))
    with pytest.raises(ConfigError, match=r"results\.hub\.token"):
        Pusher(msgspec.structs.replace(config_of(), results=nameless), paths, PEER, print)


def test_without_a_token_of_its_own_that_of_the_environment_counts(
    hub: HubDouble, paths: NodeDirectory, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (paths.root / "hub.token").unlink()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    bare = msgspec.structs.replace(config_of(), results=ResultsConfig(hub=HubConfig("someone/")))
    assert pushed(paths, checkpoint, bare).revision == COMMIT


def test_a_wrong_token_is_told_and_a_new_one_is_taken_at_the_next_push(
    hub: HubDouble, paths: NodeDirectory, checkpoint: Path
) -> None:
    token = paths.root / "hub.token"
    token.write_text("hf_wrong\n")
    heard = Pushes()
    pusher = Pusher(config_of(), paths, PEER, heard.put)
    pusher.push(trained(7), checkpoint)
    error = heard.wait().error
    assert "401" in error and "hf_wrong" not in error
    token.write_text(f"{TOKEN}\n")
    while pusher.is_busy:
        threading.Event().wait(0.01)
    pusher.push(trained(8), checkpoint)
    assert heard.wait().error == ""
