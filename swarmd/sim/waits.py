"""No silent stall: whatever a node waits for, a deadline stands for it, or a process that owes it an answer."""

from __future__ import annotations

from collections.abc import Callable

from swarmd.core.commands import Announce, PublishReport, Register, Train
from swarmd.core.state import Coordination, State
from swarmd.core.workers import LEAVING


def find_stall(state: State, killed: bool) -> str:
    """What nothing will ever end in this state; empty when there is nothing.

    Args:
        killed: whether the present trainer process was ordered killed.
    """
    if state.chart in LEAVING:
        return ""
    armed = [deadline.name for deadline in state.deadlines]
    if state.trainer.chart == "busy" and not (killed or "train" in armed or "cancel" in armed):
        return "nothing ends what the trainer is busy with"
    return _worker_stall(state, armed) or _chart_stall(state, armed) or _coordinator_stall(state, armed)


def _worker_stall(state: State, armed: list[str]) -> str:
    if not (state.network.pid or "ready/network" in armed or "restart/network" in armed):
        return "there is no network worker and none will be started"
    if not (state.training.pid or "ready/trainer" in armed or "restart/trainer" in armed):
        return "there is no trainer worker and none will be started"
    return ""


def _chart_stall(state: State, armed: list[str]) -> str:
    """What the state of round.yaml needs to end."""
    rule = _RULES.get(state.chart)
    return "" if rule is None or rule(state, armed) else f"nothing ends {state.chart}: armed are {armed}"


def _trains(state: State, armed: list[str]) -> bool:
    """The stage's train is at the trainer, or waits for the trainer, or for its next try."""
    if "train" not in armed:
        return False
    if state.trainer.chart == "busy":
        return True
    waiting = [command.id for command in state.pending if isinstance(command, Train)]
    return bool(waiting) and (state.trainer.chart != "idle" or f"retry/{waiting[0]}" in armed)


def _publishes(state: State, armed: list[str]) -> bool:
    return "publish" in armed and any(isinstance(command, PublishReport) for command in state.pending)


def _waits(state: State, armed: list[str]) -> bool:
    return "clock" in armed or (state.clock is not None and state.clock.final)


_RULES: dict[str, Callable[[State, list[str]], bool]] = {
    "registering": lambda state, armed: any(isinstance(command, Register) for command in state.pending),
    "syncing": lambda state, armed: "clock" in armed,
    "waiting": _waits,
    "round.gathering": lambda state, armed: "gather" in armed,
    "round.training": _trains,
    "round.publishing": _publishes,
    "round.settling": _waits,
    "skipping": lambda state, armed: state.trainer.chart == "busy",
}


def _coordinator_stall(state: State, armed: list[str]) -> str:
    coordination = state.coordination
    if coordination is None or state.link.chart != "up":
        return ""
    if coordination.chart == "announcing" and not _announces(state, coordination):
        return "the coordinator announces nothing"
    missing = {"mustering": "muster", "open.collecting": "stage"}.get(coordination.chart)
    return f"nothing ends the coordinator's {coordination.chart}" if missing and missing not in armed else ""


def _announces(state: State, coordination: Coordination) -> bool:
    place = (coordination.round, coordination.stage)
    return any(isinstance(command, Announce) and (command.round, command.stage) == place for command in state.pending)
