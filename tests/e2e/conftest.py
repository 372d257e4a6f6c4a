"""Real swarms of three nodes: real daemons, p2pd and GRPO training of the embedded model, small enough for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from swarmd.cli.swarm import LocalSwarm
from swarmd.daemon.leftovers import find_leftovers
from tests.e2e.audit import audit

QUICK = {
    "training.steps": 3,
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 4,
    "coordinator.stage_s": 120.0,
    "coordinator.start_s": 90.0,
    "dht.poll_s": 2.0,
    "logs.level": "debug",
}


AnySwarm = TypeVar("AnySwarm", bound="Swarm")


class Swarm(LocalSwarm):
    """A local swarm that notes on leaving whether anything was left behind."""

    def run(self, rounds: int, kind: str = "", **settings: object) -> None:
        """Lay out and start all nodes of a kind; settings by dotted key, or with __ for the dot."""
        self.prepare(rounds, kind, **settings)
        self.start()

    def prepare(self, rounds: int, kind: str = "", **settings: object) -> None:
        """Lay out without starting."""
        given = {key.replace("__", "."): value for key, value in settings.items()}
        self.lay_out(rounds, QUICK | given, kind)

    def wait_over(self, within_s: float = 200.0) -> None:
        """Until every node has heard that the rounds are over."""
        self.wait_until(lambda: bool(self.rows()) and all(self.rounds_over), within_s, "the rounds to be over")

    def wait_round(self, number: int, round: int, within_s: float = 150.0) -> None:
        """Until node `number` works on `round` or a later one."""
        self.wait_until(lambda: self.working_round(number) >= round, within_s, f"node {number} to reach round {round}")

    def working_round(self, number: int) -> int:
        status = self.status(number)
        return status.round.working_round if status else -1

    def processes_of(self, number: int) -> list[int]:
        """Pids of a node's workers and of what they started."""
        return find_leftovers(self._tag(self.daemons[number - 1]))

    def wait_state(self, number: int, state: str, within_s: float = 100.0) -> None:
        """Until node `number` is in this state of round.yaml."""

        def reached() -> bool:
            status = self.status(number)
            return status is not None and status.round.state == state

        self.wait_until(reached, within_s, f"node {number} to be in {state}", every_s=0.02)


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """Three nodes, not yet laid out."""
    with audited(Swarm(tmp_path / "swarm", nodes=3)) as swarm:
        yield swarm


@contextmanager
def audited(swarm: AnySwarm) -> Iterator[AnySwarm]:
    """After the test: a stop by SIGTERM leaves nothing, and every log verifies."""
    try:
        yield swarm
        codes = swarm.stop()
        assert all(code == 0 for code in codes.values()), f"exit codes {codes}"
        assert swarm.leftovers() == []
        audit(swarm)
    finally:
        swarm.stop()
