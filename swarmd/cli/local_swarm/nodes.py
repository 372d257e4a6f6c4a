"""A swarm of real nodes on this machine: `swarmd local` and the end-to-end tests run it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.cli.local_swarm.daemons import DaemonProcess, stop_all
from swarmd.cli.local_swarm.layout import lay_out, node_places, peer_of
from swarmd.core.events import RoundsSkipped, StageTrained
from swarmd.daemon.control import ask
from swarmd.daemon.leftovers import find_leftovers, kill_leftovers, node_tag
from swarmd.errors import ControlError, LocalSwarmFailed
from swarmd.eventlog.reader import read_commits
from swarmd.observe.panel import NodeRow, TrainedRound
from swarmd.observe.status import Status

ASK_S = 1.0  # longest wait for one node's status
STOP_S = 30.0  # longest orderly stop of all nodes; beyond it they are killed
NOTE_AFTER_S = 30.0  # a layer that is unwell for longer is mentioned


class LocalSwarm:
    """Nodes in directories node-1, node-2, ... of `directory`; the first coordinates.

    Raises:
        ConfigError: the number of nodes is not sensible.
    """

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.places = node_places(directory, nodes)
        self.daemons = tuple(DaemonProcess(place) for place in self.places)
        self.rounds_max = 0
        self._seen: dict[int, Status] = {}

    def lay_out(self, rounds: int, settings: Mapping[str, Any] | None = None, swarm: str = "") -> int:
        """Write the configurations; arguments and errors as of `swarmd.cli.local_swarm.layout.lay_out`."""
        self.rounds_max = lay_out(self.places, rounds, settings, swarm)
        return self.rounds_max

    def start(self) -> None:
        """Start every node. Raises LocalSwarmFailed when one runs already."""
        self.refuse_running()
        for daemon in self.daemons:
            daemon.start()

    def refuse_running(self) -> None:
        """Raise LocalSwarmFailed when a node runs already; its configuration must then stay as it is."""
        for daemon in self.daemons:
            status = _ask(daemon)
            if status is not None:
                raise LocalSwarmFailed(
                    f"{daemon.place.name} runs already, as process {status.process.pid}",
                    f"End it with `kill {status.process.pid}`, or use another --dir",
                )

    def status(self, number: int) -> Status | None:
        """What node `number` says of itself now; None when it does not answer."""
        daemon = self.daemons[number - 1]
        status = _ask(daemon) if daemon.running else None
        if status is not None:
            self._seen[number] = status
        return status

    def rows(self) -> tuple[NodeRow, ...]:
        """Every node as the live table shows it."""
        return tuple(self._row(daemon) for daemon in self.daemons)

    def _row(self, daemon: DaemonProcess) -> NodeRow:
        place = daemon.place
        if daemon.exit_code is not None:
            return NodeRow(place.name, "exited", note=f"exit code {daemon.exit_code}")
        answered = self.status(place.number)
        known = answered or self._seen.get(place.number)
        if known is None or known.round.state == "stopped":  # it answers before its first commit
            return NodeRow(place.name, "starting")
        return row_of(place.name, known, "" if answered else "does not answer")

    @property
    def ended(self) -> tuple[DaemonProcess, ...]:
        """Nodes that were started and run no more."""
        return tuple(daemon for daemon in self.daemons if daemon.exit_code is not None)

    @property
    def rounds_over(self) -> tuple[bool, ...]:
        """For each node, as of its last answer: has it heard that the rounds are over?"""
        return tuple(self._is_over(place.number) for place in self.places)

    def _is_over(self, number: int) -> bool:
        status = self._seen.get(number)
        if status is None or self.rounds_max <= 0:
            return False
        return status.round.state in ("waiting", "paused") and status.round.round >= self.rounds_max

    def wait_until(self, condition: Callable[[], bool], within_s: float, what: str, every_s: float = 0.1) -> None:
        """Wait until `condition` holds.

        Raises:
            LocalSwarmFailed: it does not hold after `within_s`; `what` says what was waited for.
        """
        until, never = time.monotonic() + within_s, threading.Event()
        while not condition():
            if time.monotonic() > until:
                states = "; ".join(f"{row.name} {row.state} round {row.round}" for row in self.rows())
                raise LocalSwarmFailed(f"waited {within_s:.0f} s for {what} in vain: {states}")
            never.wait(every_s)

    def stop(self, within_s: float = STOP_S) -> dict[str, int]:
        """End every node and whatever it started.

        Returns:
            Exit code by name of the nodes that were started, negative the signal that ended one.
        """
        stop_all(self.daemons, within_s)
        for daemon in self.daemons:
            if daemon.exit_code is not None and daemon.exit_code < 0:
                anyio.run(kill_leftovers, self._tag(daemon))
        return {daemon.place.name: code for daemon in self.daemons if (code := daemon.exit_code) is not None}

    def leftovers(self) -> list[int]:
        """Pids of workers, and of what they started, that still run (Linux)."""
        return [pid for daemon in self.daemons for pid in find_leftovers(self._tag(daemon))]

    def _tag(self, daemon: DaemonProcess) -> str:
        return node_tag(peer_of(daemon.place), daemon.place.root)

    def histories(self) -> dict[str, tuple[TrainedRound, ...]]:
        """What every node made of every round, from its event log."""
        return {place.name: read_history(place.events) for place in self.places}


def _ask(daemon: DaemonProcess) -> Status | None:
    try:
        return msgspec.json.decode(ask(daemon.place.control, "status", ASK_S), type=Status)
    except (ControlError, *DECODE_ERRORS):
        return None


def row_of(name: str, status: Status, note: str = "") -> NodeRow:
    """A node's status as a row of the live table."""
    training, round_status = status.training, status.round
    latest = [reward.held_out for reward in status.rewards if reward.held_out is not None]
    return NodeRow(
        name=name,
        state=round_status.state,
        round=round_status.round if round_status.round >= 0 else None,
        stage=round_status.stage,
        done=training.done if training.state == "busy" else 0,
        total=training.total if training.state == "busy" else 0,
        what=training.doing or training.state,
        stages=round_status.stages,
        rewards=tuple(reward.reward for reward in status.rewards if reward.stage == status.rewards[-1].stage),
        held_out=latest[-1] if latest else None,
        peers=status.network.peers,
        skipped=round_status.skipped,
        restarts=training.worker.restarts + status.network.worker.restarts,
        note=note or _trouble(status),
        on_chain=_on_chain(status),
    )


def _on_chain(status: Status) -> str:
    kept = status.submissions
    return "" if kept is None else f"{kept.confirmed} confirmed, {kept.waiting + kept.sent + kept.included} waiting"


def _trouble(status: Status) -> str:
    """The first layer that has been unwell for a while."""
    layers = {"network": status.network, "training": status.training, "round": status.round}
    for name, layer in (layers | {"chain": status.chain, "submissions": status.submissions}).items():
        if layer is not None and not layer.healthy and layer.age_s > NOTE_AFTER_S:
            return f"{name} {layer.state}: {layer.reason}"
    return ""


def read_history(events: Path) -> tuple[TrainedRound, ...]:
    """Reward and held-out accuracy by round, as the event log has them; stages of a round are averaged.

    A stage that is told twice, as after a crash, counts once, as it was told last.
    """
    rounds: dict[int, dict[int, StageTrained]] = {}
    if events.is_dir():
        for commit in read_commits(events):
            for event in commit.events:
                if isinstance(event, StageTrained):
                    rounds.setdefault(event.round, {})[event.stage] = event
    return tuple(_trained(round, [told[stage] for stage in sorted(told)]) for round, told in sorted(rounds.items()))


def _trained(round: int, results: list[StageTrained]) -> TrainedRound:
    mean = sum(result.reward for result in results) / len(results)
    stages = tuple((result.stage, result.reward) for result in results)
    return TrainedRound(round, mean, results[-1].held_out, results[0].held_out_before, stages)


def read_skips(events: Path) -> tuple[RoundsSkipped, ...]:
    """The rounds that a node skipped, as its event log has them."""
    if not events.is_dir():
        return ()
    return tuple(
        event for commit in read_commits(events) for event in commit.events if isinstance(event, RoundsSkipped)
    )
