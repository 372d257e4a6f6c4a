"""No silent stall: whatever a node waits for, a deadline stands for it, or a process that owes it an answer."""

from __future__ import annotations

from typing import assert_never

from swarmd.core.commands import Announce, PublishReport, Register, Train
from swarmd.core.contract import submissions
from swarmd.core.ids import submission_id, timer_about
from swarmd.core.node import weights
from swarmd.core.node.restored import is_barred
from swarmd.core.node.workers import LEAVING
from swarmd.core.state import Chain, Coordination, State, WorkerState
from swarmd.core.values import Worker

HUNG = "nothing ends what the trainer is busy with"


def find_stall(state: State, killed: tuple[Worker, ...] = ()) -> str:
    """What nothing will ever end in this state; empty when there is nothing.

    Args:
        killed: workers whose present process was ordered killed: their end is owed, whatever they do.
    """
    chart = state.chart
    if chart in LEAVING:
        return ""
    armed = [deadline.name for deadline in state.deadlines]
    chained = state.chain is not None
    alive = state.network.pid and state.training.pid and (state.chaining.pid or not chained)
    if not alive and (stall := _worker_stall(state, armed, killed)):
        return stall
    if not _is_owed(state, armed):
        return f"nothing ends {chart}: armed are {armed}"
    if state.trainer.chart == "busy" and "train" not in armed and "cancel" not in armed:
        return "" if "trainer" in killed else HUNG
    if state.chain is not None:
        return _chain_stall(state, state.chain, armed, killed)
    return "" if state.coordination is None else _coordinator_stall(state, state.coordination)


def _worker_stall(state: State, armed: list[str], killed: tuple[Worker, ...]) -> str:
    """A worker runs, or is about to be started or to be reported dead."""
    lives: tuple[tuple[Worker, WorkerState], ...] = (
        ("network", state.network),
        ("trainer", state.training),
        ("chain", state.chaining),
    )
    for worker, life in lives[: 2 if state.chain is None else 3]:
        if not (
            life.pid
            or timer_about("ready", worker) in armed
            or timer_about("restart", worker) in armed
            or worker in killed
        ):
            return f"there is no {worker} worker and none will be started"
    return ""


def _trains(state: State, armed: list[str]) -> bool:
    """The stage's train is at the trainer, or waits for the trainer, or for its next try."""
    if "train" not in armed:
        return False
    if state.trainer.chart == "busy":
        return True
    waiting = [command.id for command in state.pending if isinstance(command, Train)]
    return bool(waiting) and (state.trainer.chart != "idle" or timer_about("retry", waiting[0]) in armed)


def _publishes(state: State, armed: list[str]) -> bool:
    return "publish" in armed and any(isinstance(command, PublishReport) for command in state.pending)


def _settles(state: State, armed: list[str]) -> bool:
    return "clock" in armed or (state.clock is not None and state.clock.final) or _follows_chain(state)


def _follows_chain(state: State) -> bool:
    """The chain worker owes news of the contract; that somebody moves it on is looked at in `_chain_stall`."""
    return state.chain is not None and state.chain.chart == "up"


def _submits(state: State, armed: list[str]) -> bool:
    """The stage's reward is on its way, or the clock is looked at meanwhile."""
    work = state.work
    assert work is not None, "a stage is being submitted"
    under_way = submissions.awaited(state, work.round, work.stage)
    return under_way and ("clock" in armed or (_follows_chain(state) and "submission" in armed))


def _is_paused(state: State, armed: list[str]) -> bool:
    """The daemon owes the fact of room, or the trainer its answer; the clock is looked at meanwhile."""
    owed = state.low_space is not None or state.trainer.chart == "busy"
    return owed and _settles(state, armed)


def _awaits_weights(state: State, armed: list[str]) -> bool:
    """Peers' rollouts are here, their weights are not, and the round is the one that waits for them."""
    work = state.work
    return work is not None and work.gathered and weights.are_awaited(state, work.round) and "weights" in armed


def _waits(state: State, armed: list[str]) -> bool:
    """A node waits only while no stage is known to be open that it has not trained and may train."""
    clock = state.clock
    idle = clock is None or clock.final or (clock.round, clock.stage) <= state.done or is_barred(state, clock.round)
    return idle and _settles(state, armed)


def _is_owed(state: State, armed: list[str]) -> bool:
    """Whether something ends the state that the node's own chart is in."""
    match state.chart:
        case "registering":
            return any(isinstance(command, Register) for command in state.pending)
        case "syncing":
            return "clock" in armed
        case "waiting":
            return _waits(state, armed)
        case "round.gathering":
            return "gather" in armed or _awaits_weights(state, armed)
        case "round.training":
            return _trains(state, armed)
        case "round.publishing":
            return _publishes(state, armed)
        case "round.submitting":
            return _submits(state, armed)
        case "round.settling":
            return _settles(state, armed)
        case "paused":
            return _is_paused(state, armed)
        case "skipping":
            return state.trainer.chart == "busy"
        case "starting" | "joining" | "draining" | "stopped" | "failed":
            return True  # by its workers, of which the caller asks; one that leaves waits for nothing
        case _:
            assert_never(state.chart)


def _chain_stall(state: State, chain: Chain, armed: list[str], killed: tuple[Worker, ...]) -> str:
    """What is wanted on the chain gets there, and the contract is moved on."""
    if chain.chart == "connecting" and timer_about("ready", "chain") not in armed and "chain" not in killed:
        return "nothing ends the connecting to the chain"
    if chain.chart != "up" or state.settings is None or state.settings.chain is None:
        return ""
    unsettled = {each.id for each in state.submissions if each.chart not in submissions.SETTLED}
    if unsettled and "submission" not in armed:
        return f"nothing looks after {sorted(unsettled)[0]}"
    if not chain.registered and "register" not in unsettled and "register" not in armed:
        return "nobody registers this peer"
    moves = state.settings.chain.drive == "manager" or (state.settings.chain.drive == "policy" and chain.max_stage_s)
    if moves and "drive" not in armed and submission_id("advance", f"{chain.round}/{chain.stage}") not in unsettled:
        return f"nothing moves the contract on from {(chain.round, chain.stage)}"
    return ""


def _coordinator_stall(state: State, coordination: Coordination) -> str:
    if state.link.chart != "up":
        return ""
    chart = coordination.chart
    if chart == "announcing":
        return "" if _announces(state, coordination) else "the coordinator announces nothing"
    needed = "stage" if chart == "open.collecting" else "muster" if chart == "mustering" else ""
    stands = not needed or any(deadline.name == needed for deadline in state.deadlines)
    return "" if stands else f"nothing ends the coordinator's {chart}"


def _announces(state: State, coordination: Coordination) -> bool:
    place = (coordination.round, coordination.stage)
    return any(isinstance(command, Announce) and (command.round, command.stage) == place for command in state.pending)
