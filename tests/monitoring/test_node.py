"""A real Prometheus on real nodes: both up, their series there, no alert; then a trainer is killed again and again.

The one that is killed is scripted: what is counted and alerted is the daemon's, whatever ends and starts anew.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE_S, Swarm, audited
from tests.monitoring.scraping import Prometheus, free_port, scraping
from tests.monitoring.tools import series_names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROUNDS = 60
# Not to be seen here: what needs a chain, a bound that is not set, or something to go wrong.
ELSEWHERE = ("swarmd_chain_", "swarmd_submission_", "swarmd_submissions_open", "swarmd_trainer_memory_limit_bytes")


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    with audited(Swarm(tmp_path / "swarm", nodes=2, trained=(1,))) as swarm:
        yield swarm


def test_real_nodes_are_scraped_quietly_and_a_crash_loop_is_alerted(swarm: Swarm, tmp_path: Path) -> None:
    swarm.prepare(ROUNDS, coordinator__rounds_max=ROUNDS)
    targets = [listen(place.config) for place in swarm.places]
    swarm.start()
    swarm.wait_round(2, 1, PATIENCE_S)  # with the rules in a hurry the start would count as trouble
    with scraping(tmp_path / "prometheus", *targets) as prometheus:
        coordinator, follower = targets
        watch_a_quiet_swarm(prometheus, targets, coordinator)
        kill_the_trainer(swarm, prometheus, follower)
        assert prometheus.ever_fired() <= {"SwarmdWorkerRestarting", "SwarmdSkippingRounds", "SwarmdNotReady"}
        spared = f'count(ALERTS{{alertstate="firing", instance="{coordinator}"}})'
        assert prometheus.value(spared) is None, "the other node is well"


def listen(config: Path) -> str:
    """Have a node serve its metrics."""
    address = f"127.0.0.1:{free_port()}"
    with config.open("a") as file:
        file.write(f'\n[web]\nlisten = "{address}"\n')
    return address


def watch_a_quiet_swarm(prometheus: Prometheus, targets: list[str], trained: str) -> None:
    prometheus.until(lambda: prometheus.targets() == dict.fromkeys(targets, "up"), PATIENCE_S, "both up")
    stages = "min(swarmd_stages_trained_total)"
    prometheus.until(lambda: (prometheus.value(stages) or 0) >= 3, PATIENCE_S, "three stages of both")
    assert prometheus.ever_fired() == set()
    known = {name for name in series_names() if not name.startswith(ELSEWHERE)}
    assert known - {"swarmd_chain_reorgs_total"} <= prometheus.names() | {"swarmd_reward_confirmed"}
    assert prometheus.value("min(swarmd_reward_earned)") is not None
    assert prometheus.value('min(swarmd_health{depth="productive"})') == 1
    memory = f'swarmd_worker_memory_bytes{{worker="trainer", instance="{trained}"}}'
    assert prometheus.value(memory) > 50_000_000  # type: ignore[operator]
    assert prometheus.value('sum(swarmd_stage_part_seconds_count{part="train"})') >= 6  # type: ignore[operator]


def kill_the_trainer(swarm: Swarm, prometheus: Prometheus, instance: str) -> None:
    ends = f'sum(swarmd_worker_exits_total{{worker="trainer",cause="killed",instance="{instance}"}})'
    for times in range(1, 5):
        os.kill(trainer_of(swarm), signal.SIGKILL)
        prometheus.until(lambda times=times: prometheus.value(ends) == times, PATIENCE_S, "an end counted")
    prometheus.until(lambda: "SwarmdWorkerRestarting" in prometheus.firing(), PATIENCE_S, "the alert for restarts")


def trainer_of(swarm: Swarm) -> int:
    """Pid of the follower's trainer, once it has one."""
    found: list[int] = []

    def runs() -> bool:
        status = swarm.status(2)
        found[:] = [status.training.worker.pid] if status is not None and status.training.worker.pid else []
        return bool(found)

    swarm.wait_until(runs, PATIENCE_S, "a trainer")
    return found[0]
