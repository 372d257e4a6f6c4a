"""The configuration of a node in a legacy network, and the identity that such a node begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.config import load_config, parse_config
from swarmd.daemon.identity import node_identity
from swarmd.dht.addresses import check_addresses
from swarmd.errors import ConfigError
from swarmd.paths import DataPaths

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "gsm8k"
BOOTSTRAP = "/ip4/192.0.2.1/tcp/38331/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def parse(stages: int, records: str = "legacy", coordinator: str = "") -> None:
    text = f"""
        [swarm]
        id = "gsm8k"
        kind = "gsm8k"
        stages = {stages}
        coordinator = "{coordinator}"
        [dht]
        records = "{records}"
        bootstrap = ["{BOOTSTRAP}"]
    """
    check_addresses(parse_config(text, "node.toml"))


def test_a_round_has_three_stages() -> None:
    parse(3)
    with pytest.raises(ConfigError, match="stages is 1"):
        parse(1)


def test_only_with_signed_records_a_follower_needs_to_know_its_coordinator() -> None:
    with pytest.raises(ConfigError, match="coordinator"):
        parse(3, "signed")
    with pytest.raises(ConfigError, match="coordinator"):
        parse(3, coordinator="nobody")


@pytest.mark.parametrize("name", ["legacy-follower", "legacy-coordinator"])
def test_the_shipped_configurations_are_legacy_ones(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.toml")
    check_addresses(config)
    assert config.role == name.removeprefix("legacy-")
    assert (config.dht.records, config.swarm.kind, config.swarm.stages) == ("legacy", "gsm8k", 3)
    assert config.swarm.options["rewards"] == "compat"
    assert config.round.gather_s > 10  # v0.4 looks for rewards for so long


def test_the_first_start_makes_an_identity_as_v04_has(tmp_path: Path) -> None:
    config = load_config(CONFIGS / "legacy-follower.toml")
    made = node_identity(config, DataPaths(tmp_path))
    assert made.kind == "rsa-2048" and made.peer_id.startswith("Qm")
    assert node_identity(config, DataPaths(tmp_path)).peer_id == made.peer_id
