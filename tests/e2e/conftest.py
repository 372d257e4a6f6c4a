"""Real swarms of three nodes: real daemons and p2pd, and GRPO training of the embedded model, small enough for a test.

A trainer costs many times the processor time of all the rest of a node. So a test has as many real ones as it is about,
and the other nodes have one that draws, scores and judges as the real one does and has no model
(`tests/daemon/scripted_trainer.py`); the rest of such a node is real. A node's workers are forked from a process that
has imported all (`tests/forked.py`). With `TRAINERS=real` in the environment, as in `make soak`, all trainers are real,
and each worker is executed.
"""

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from swarmd.cli.local_swarm import DaemonProcess, LocalNode, LocalSwarm
from swarmd.daemon.process import find_leftovers
from swarmd.observe.status import Status
from tests.daemon.node import RUNNER
from tests.e2e.audit import audit
from tests.forked import ALL, start_server, wait_for_server

NODES = 3
PATIENCE_S = 400.0  # longest wait for anything: it costs nothing where all goes well, and other tests run beside it
QUICK = {
    "training.steps": 3,
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 4,
    # Deadlines that are not to be reached, however busy the machine is: what comes out would be another.
    "coordinator.stage_s": PATIENCE_S,
    "coordinator.start_s": PATIENCE_S,
    "dht.poll_s": 2.0,
    "logs.level": "debug",
}


AnySwarm = TypeVar("AnySwarm", bound="Swarm")


class ForkingDaemon(DaemonProcess):
    """A node whose workers are forked; network worker and chain worker are real.

    Args:
        place: of the node.
        trainer: "real", or "scripted" for one without a model.
    """

    def __init__(self, place: LocalNode, trainer: str) -> None:
        super().__init__(place)
        server = start_server(*ALL)
        wait_for_server(server)
        self._given = (str(place.config), str(place.root), "real", trainer, "real", server)

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(RUNNER), *self._given]


class Swarm(LocalSwarm):
    """A local swarm that notes on leaving whether anything was left behind.

    Args:
        directory: of the nodes.
        nodes: how many.
        trained: numbers of the nodes with a real trainer.
    """

    def __init__(self, directory: Path, nodes: int = NODES, trained: Collection[int] = ()) -> None:
        super().__init__(directory, nodes)
        if os.environ.get("TRAINERS") != "real":
            self.daemons = tuple(
                ForkingDaemon(place, "real" if place.number in trained else "scripted") for place in self.places
            )

    def run(self, rounds: int, kind: str = "", **settings: object) -> None:
        """Lay out and start all nodes of a kind; settings by dotted key, or with __ for the dot."""
        self.prepare(rounds, kind, **settings)
        self.start()

    def prepare(self, rounds: int, kind: str = "", **settings: object) -> None:
        """Lay out without starting."""
        given = {key.replace("__", "."): value for key, value in settings.items()}
        self.prepare_nodes(rounds, QUICK | given, kind)

    def wait_over(self, within_s: float = PATIENCE_S) -> None:
        """Until every node has heard that the rounds are over."""
        self.wait_until(
            lambda: bool(self.rows()) and all(self.are_rounds_over), within_s, "the rounds to be over", every_s=0.5
        )

    def wait_round(self, number: int, round: int, within_s: float = PATIENCE_S) -> None:
        """Until node `number` works on `round` or a later one."""
        self.wait_until(lambda: self.working_round(number) >= round, within_s, f"node {number} to reach round {round}")

    def told(self, number: int) -> Status:
        """What node `number` says of itself, as soon as it answers."""
        told: list[Status | None] = []
        self.wait_until(lambda: told.append(self.status(number)) or told[-1] is not None, PATIENCE_S, "an answer")
        assert told[-1] is not None
        return told[-1]

    def working_round(self, number: int) -> int:
        status = self.status(number)
        return status.round.working_round if status else -1

    def processes_of(self, number: int) -> list[int]:
        """Pids of a node's workers and of what they started."""
        return find_leftovers(self._node_tag(self.daemons[number - 1]))

    def wait_state(self, number: int, state: str, within_s: float = PATIENCE_S) -> None:
        """Until node `number` is in this state of round.yaml."""

        def reached() -> bool:
            status = self.status(number)
            return status is not None and status.round.state == state

        self.wait_until(reached, within_s, f"node {number} to be in {state}", every_s=0.02)


@pytest.fixture
def swarm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Swarm]:
    """Nodes, not yet laid out: three scripted ones, or as `@pytest.mark.nodes(2, trained=(1,))` says."""
    mark = request.node.get_closest_marker("nodes") or pytest.mark.nodes(NODES).mark
    with audited(Swarm(tmp_path / "swarm", *mark.args, **mark.kwargs)) as swarm:
        yield swarm


@contextmanager
def audited(swarm: AnySwarm) -> Iterator[AnySwarm]:
    """After the test: a stop by SIGTERM leaves nothing, and every log verifies."""
    try:
        yield swarm
        codes = swarm.stop(PATIENCE_S)
        assert all(code == 0 for code in codes.values()), f"exit codes {codes}"
        assert swarm.find_leftover_pids() == []
        audit(swarm)
    finally:
        swarm.stop()
