"""What happens to the machine of a node: its disk is nearly full, its clock was set.

- While the disk is nearly full the log goes on, no stage is begun, and the node joins again by itself.
- After the clock was set, no wait may lie further away than it ever does.
"""

from msgspec.structs import replace

from swarmd.core import contract_clock, rounds
from swarmd.core.chart_types import RoundState
from swarmd.core.coordination import settings_of
from swarmd.core.events import ClockSet, SpaceFreed, SpaceLow
from swarmd.core.ids import TimerKind, TimerName, kind_of_timer
from swarmd.core.rounds import CANCEL_S, RETRY_S
from swarmd.core.state import LowSpace
from swarmd.core.turn import StepContext
from swarmd.core.workers import RESTART

# states in which the node does no work, or next to none
IDLE: tuple[RoundState, ...] = ("syncing", "waiting", "round.gathering", "round.settling")


def on_space_low(turn: StepContext, event: SpaceLow) -> None:
    """Begin no stage until there is room; `hold` sees to the one in hand."""
    before = turn.state.low_space
    since = turn.at if before is None else before.since
    turn.state.low_space = LowSpace(event.free_bytes, event.wanted_bytes, since)


def pause_for_low_space(turn: StepContext) -> None:
    """The last part of every step while space is low: pause, unless the trainer or a report is under way. A stage that
    the trainer is at is finished or left, as the policy for nodes that are behind says."""
    chart, work = turn.state.chart, turn.state.work
    if chart in IDLE:
        turn.fire_round_trigger("pause")
    elif chart == "round.training" and work is not None:
        at_it = rounds.is_training(turn, rounds.train_command_id(work.round, work.stage))
        if not at_it or turn.settings.behind == "abandon":
            rounds.cancel_training(turn)
            turn.fire_round_trigger("pause")
    if turn.state.chart == "paused":
        turn.state.faulted = True
        turn.clear_deadlines("gather", "train", "publish")


def on_space_freed(turn: StepContext, event: SpaceFreed) -> None:
    """There is room again: join where the swarm is, as soon as the trainer has stopped as it was told to."""
    turn.state.low_space = None
    rounds.rejoin_swarm(turn)


def on_clock_set(turn: StepContext, event: ClockSet) -> None:
    """Waits that began while the clock was ahead end as if they began now; nearer ones stand."""
    for deadline in list(turn.deadlines.values()):
        longest_s = _longest_wait_s(turn, kind_of_timer(deadline.name))
        if longest_s is not None and deadline.due_at > turn.at + longest_s:
            turn.set_deadline(TimerName(deadline.name), turn.at + longest_s)
    if turn.open_if_coordinating():
        coordination = turn.coordination
        if coordination.chart != "finished":  # its end stays as it was announced
            coordination.deadline_at = min(coordination.deadline_at, turn.at + _longest_stage_s(turn))
            since = min(coordination.waiting.since, turn.at)
            coordination.waiting = replace(coordination.waiting, since=since)
    if turn.state.chain is not None:
        contract_clock.reschedule_advance(turn)


def _longest_wait_s(turn: StepContext, kind: TimerKind) -> float | None:
    """The longest wait of a kind; None if this node does not decide it, but a contract, say."""
    settings = turn.settings
    waits: dict[TimerKind, float] = {
        "ready": settings.ready_s,
        "restart": RESTART.most_s,
        "retry": RETRY_S,
        "gather": settings.gather_s,
        "train": settings.train_s,
        "cancel": CANCEL_S,
        "publish": settings.publish_s,
        "clock": settings.clock_s,  # to look too early costs a read
    }
    if settings.coordination is not None:
        waits |= {"stage": _longest_stage_s(turn), "muster": settings.coordination.start_s}
    if settings.chain is not None:
        waits |= {"submission": settings.chain.resend_s, "register": settings.chain.resend_s}
    return waits.get(kind)


def _longest_stage_s(turn: StepContext) -> float:
    return max(settings_of(turn).stage_s, settings_of(turn).resume_s)
