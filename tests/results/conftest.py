"""A data directory with the log of a node that trained, and a configuration that pushes its model."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.config import Config, HubConfig, ResultsConfig, SwarmConfig
from swarmd.paths import NodeDirectory
from tests.hub_double import TOKEN, HubDouble, serve_hub

GOLDEN = Path(__file__).parent.parent / "golden"
NODE = GOLDEN / "follower"


@pytest.fixture
def paths(tmp_path: Path) -> NodeDirectory:
    shutil.copytree(NODE / "events", tmp_path / "node" / "events")
    token = tmp_path / "node" / "hub.token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    return NodeDirectory(tmp_path / "node")


def config_of(repo: str = "someone/", every: int = 1) -> Config:
    hub = HubConfig(repo=repo, token="hub.token", every=every)
    return Config(SwarmConfig(id="local"), role="coordinator", results=ResultsConfig(hub=hub))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    yield from serve_hub(monkeypatch)
