"""How a local swarm is laid out: identities and port are kept, configurations written anew and checked."""

import socket
from pathlib import Path

import pytest

from swarmd.cli.local_swarm import lay_out, node_places, parse_setting, peer_of, read_history
from swarmd.config import load_config
from swarmd.errors import ConfigError, ModelError, SwarmdError
from swarmd.eventlog.store import EventLog
from swarmd.paths import configs_directory
from tests.core.story import trained


def test_the_nodes_find_each_other(tmp_path: Path) -> None:
    places = node_places(tmp_path, 3)
    assert lay_out(places, rounds=8) == 8
    coordinator, *followers = (load_config(place.config) for place in places)
    assert (coordinator.role, coordinator.coordinator.min_peers, coordinator.coordinator.rounds_max) == (
        "coordinator",
        3,
        8,
    )
    for follower in followers:
        assert follower.role == "follower"
        assert follower.swarm.coordinator == peer_of(places[0])
        assert follower.dht.bootstrap == (f"{coordinator.dht.listen[0]}/p2p/{peer_of(places[0])}",)
    assert [config.name for config in (coordinator, *followers)] == ["node-1", "node-2", "node-3"]


def test_a_second_run_keeps_identities_and_port(tmp_path: Path) -> None:
    places = node_places(tmp_path, 2)
    lay_out(places, rounds=1)
    before = [load_config(places[0].config).dht.listen, *(peer_of(place) for place in places)]
    lay_out(places, rounds=1)
    assert [load_config(places[0].config).dht.listen, *(peer_of(place) for place in places)] == before


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    places = node_places(tmp_path, 1)
    lay_out(places, rounds=1)
    kept = load_config(places[0].config).dht.listen[0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(kept.rpartition("/")[2])))
        other.listen()
        lay_out(places, rounds=1)
        assert load_config(places[0].config).dht.listen[0] != kept


def test_a_model_that_is_not_there_is_found_before_any_node_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ships no model 'embedded-large'"):
        lay_out(node_places(tmp_path, 2), rounds=1, settings={"training.model": "embedded-large"})


def test_the_kind_file_brings_its_questions_along(tmp_path: Path) -> None:
    places = node_places(tmp_path, 2)
    lay_out(places, rounds=1, swarm="file")
    shipped = configs_directory() / "file" / "data" / "questions.jsonl"
    assert [(place.root / "questions.jsonl").read_bytes() for place in places] == [shipped.read_bytes()] * 2


def test_rounds_are_added_to_those_that_were_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = node_places(tmp_path, 1)
    monkeypatch.setattr("swarmd.cli.local_swarm.rounds_run", lambda place: 5)
    assert lay_out(places, rounds=8) == 13
    assert lay_out(places, rounds=0) == 0


def test_a_stage_that_is_told_twice_counts_once(tmp_path: Path) -> None:
    told = [trained(0, 1, 0.2), trained(0, 0, 0.5), trained(0, 1, 0.3), trained(1, 0, 0.9)]
    with EventLog.open(tmp_path / "events", "peer-c", "run", 1 << 20, 1 << 30) as log:
        log.append(1.0, told, b"")
    first, second = read_history(tmp_path / "events")
    assert (first.stages, first.reward) == (((0, 0.5), (1, 0.3)), 0.4)
    assert (second.round, second.reward) == (1, 0.9)


def test_settings_reach_every_node_and_comments_stay(tmp_path: Path) -> None:
    places = node_places(tmp_path, 2)
    lay_out(places, 1, {"training.steps": 3, "swarm.tasks": [{"name": "chain_sum", "config": {"min_terms": 2}}]})
    for place in places:
        config = load_config(place.config)
        assert config.training.steps == 3
        assert config.swarm.tasks[0].config == {"min_terms": 2}
        assert "# optimiser steps in a round" in place.config.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("training.steps=5", "training.steps", 5),
        ("training.model=models/tiny", "training.model", "models/tiny"),
        ('logs.level="debug"', "logs.level", "debug"),
        ('swarm.tasks=[{name = "gcd"}]', "swarm.tasks", [{"name": "gcd"}]),
        ("name=a=b", "name", "a=b"),
    ],
)
def test_a_setting_is_a_key_and_a_toml_value(text: str, key: str, value: object) -> None:
    assert parse_setting(text) == (key, value)


def test_a_kind_has_its_own_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = node_places(tmp_path / "nodes", 2)
    lay_out(places, 1, swarm="reasoning-gym")
    first, second = (load_config(place.config) for place in places)
    assert first.swarm.kind == second.swarm.kind == "reasoning-gym"
    assert first.dht.listen[0].startswith("/ip4/127.0.0.1/") and second.dht.listen == ("/ip4/127.0.0.1/tcp/0",)
    assert second.swarm.coordinator == peer_of(places[0]) and first.data == second.data == "."
    assert first.logs.format == second.logs.format == "text", "for people who read daemon.log"
    monkeypatch.setattr("swarmd.cli.local_swarm.configs_directory", lambda: tmp_path)
    with pytest.raises(ConfigError, match="no configurations of the kind 'gsm8k'") as caught:
        lay_out(places, 1, swarm="gsm8k")
    assert "swarmd swarm scaffold" in caught.value.fix


@pytest.mark.parametrize(
    ("swarm", "told"),
    [
        ("gsm8", "Did you mean 'gsm8k'?"),
        ("none.toml", "no configuration file"),
        ("configs/chain/coordinator.toml", "[chain]"),
    ],
)
def test_what_no_local_swarm_can_be_made_from(tmp_path: Path, swarm: str, told: str) -> None:
    with pytest.raises(SwarmdError) as caught:
        lay_out(node_places(tmp_path, 1), 1, swarm=swarm)
    assert told in str(caught.value)
    assert not (tmp_path / "node-1").exists()
