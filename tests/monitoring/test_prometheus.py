"""A real Prometheus on a real daemon and its page: silent while all is well, and the right alert for each trouble.

The daemon's workers are scripted ones, so that this takes seconds; tests/monitoring/test_node.py has a real node.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.node import FakeNode, fake_node
from tests.monitoring.scraping import Prometheus, free_port, scraping

PATIENCE_S = 60.0  # on a machine that has much else to do
ROUNDS = 12  # then the scripted swarm has run its rounds


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with fake_node(tmp_path, rounds=ROUNDS, silent_s=60.0) as node:
        with node.config.open("a") as file:
            file.write(f'[web]\nlisten = "127.0.0.1:{free_port()}"\n')
        node.run_rounds()
        yield node


def address_of(node: FakeNode) -> str:
    return node.config.read_text().rpartition('listen = "')[2].partition('"')[0]


@pytest.mark.soak
def test_a_quiet_node_then_each_trouble_with_its_alert(node: FakeNode, tmp_path: Path) -> None:
    target = address_of(node)
    with scraping(tmp_path / "prometheus", target) as prometheus:
        watch_a_quiet_node(prometheus, target)
        freeze_the_daemon(node, prometheus)
        stop_the_daemon(node, prometheus)
        assert prometheus.ever_fired() == {"SwarmdNodeDown"}, "and nothing else, all the time"


def watch_a_quiet_node(prometheus: Prometheus, target: str) -> None:
    prometheus.until(lambda: prometheus.targets() == {target: "up"}, PATIENCE_S, "the target up")
    prometheus.until(lambda: prometheus.value("swarmd_stages_trained_total") == ROUNDS, PATIENCE_S, "stages counted")
    assert prometheus.value("swarmd_swarm_finished") == 1
    seen = "count_over_time(swarmd_daemon_up[1h])"
    prometheus.until(lambda: (prometheus.value(seen) or 0) > 8, PATIENCE_S, "some scrapes")
    assert prometheus.ever_fired() == set() and prometheus.pending() == set()


def freeze_the_daemon(node: FakeNode, prometheus: Prometheus) -> None:
    node.signal(signal.SIGSTOP)
    prometheus.until(lambda: "SwarmdNodeDown" in prometheus.firing(), PATIENCE_S, "the alert for a daemon that hangs")
    node.signal(signal.SIGCONT)
    prometheus.until(lambda: "SwarmdNodeDown" not in prometheus.firing(), PATIENCE_S, "the end of that alert")


def stop_the_daemon(node: FakeNode, prometheus: Prometheus) -> None:
    assert node.stop() == 0
    prometheus.until(lambda: "SwarmdNodeDown" in prometheus.firing(), PATIENCE_S, "the alert for a node that is gone")
