"""A real node, with network and trainer, as a service in the strictest form of the unit."""

from __future__ import annotations

import pytest

from swarmd.core.events import LinkUp, NodeStarted, StageTrained, TrainerReady
from swarmd.eventlog.offline.replay import verify
from tests.units.nodes import node_on
from tests.units.private_systemd import PrivateSystemd

CONFIG = """
role = "coordinator"
[swarm]
id = "test"
[dht]
listen = ["/ip4/127.0.0.1/tcp/0"]
[coordinator]
rounds_max = 1
[training]
device = "cpu"
steps = 30
questions = 8
held_out_questions = 4
"""


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_an_upgrade_in_the_middle_of_a_round_goes_on_with_it(machine: PrivateSystemd) -> None:
    with node_on(machine, "") as node:
        assert "10-cpu.conf" in node.install("--now", config=CONFIG), "the configuration asks for the CPU"
        node.until(lambda: node.status().get("round", {}).get("state") == "round.training", 400)
        node.until(lambda: node.events_of(TrainerReady), 400)
        assert node.events_of(LinkUp) and not node.events_of(StageTrained)
        machine.run("systemctl", "restart", "swarmd.service")
        node.until(lambda: node.events_of(StageTrained), 400)
        node.until_finished()
        assert [trained.round for trained in node.events_of(StageTrained)] == [0]
        assert len(node.events_of(NodeStarted)) == 2 and node.show("NRestarts") == "0"
        assert "not confined" not in node.journal()
        machine.run("systemctl", "stop", "swarmd.service")
        verify(node.paths.events)
