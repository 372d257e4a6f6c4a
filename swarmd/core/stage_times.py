"""Records where the wall time of a stage goes, for display, from the times of the round chart's changes.

While peers' rollouts are fetched or a report is published, time without a connection counts as "network"; while a stage
is trained, time until its latest `Train` was sent counts as "load".
"""

from msgspec.structs import replace

from swarmd.core.chart_types import RoundState
from swarmd.core.events import RolloutsGathered, StageTrained
from swarmd.core.state import StageTimes, StateBase
from swarmd.core.values import NodePart

PARTS: dict[RoundState, NodePart] = {
    "round.gathering": "gather",
    "round.training": "train",
    "round.publishing": "publish",
    "round.submitting": "submit",
    "round.settling": "wait",
}


def add_time_in_state(state: StateBase, at: float) -> None:
    """Add the time in the round chart's current state, which ends at `at`."""
    times, part = state.stage_times, PARTS.get(state.chart)
    if times is None or part is None:
        return
    whole = max(0.0, at - state.since)
    if part == "train":
        before: NodePart = "load"
        apart = times.train_at - state.since
    else:
        before, apart = "network", seconds_without_link(state, at) if part in ("gather", "publish") else 0.0
    apart = min(max(0.0, apart), whole)
    parts = dict(times.parts)
    for name, seconds in ((before, apart), (part, whole - apart)):
        if seconds > 0:
            parts[name] = parts.get(name, 0.0) + seconds
    state.stage_times = replace(times, parts=tuple(parts.items()))


def seconds_without_link(state: StateBase, at: float) -> float:
    """Return the seconds without a connection since the round chart's last change, judged by the last link change."""
    link = state.link
    return link.since - state.since if link.chart == "up" else at - max(link.since, state.since)


def begin_stage(state: StateBase, round: int, stage: int) -> None:
    """Start the times of a stage, and end those of the one before."""
    end_stage(state)
    state.stage_times = StageTimes(round, stage)


def end_stage(state: StateBase) -> None:
    """End the current stage's times, and keep them if it was trained."""
    times = state.stage_times
    if times is not None and times.trained:
        state.last_times = times
    state.stage_times = None


def record_gathering(state: StateBase, event: RolloutsGathered) -> None:
    """Record how many peers' rollouts could not be fetched."""
    times = state.stage_times
    if times is not None and event.missing and (times.round, times.stage) == (event.round, event.stage):
        state.stage_times = replace(times, missing=event.missing)


def record_training(state: StateBase, event: StageTrained) -> None:
    """Record the trainer's times."""
    times = state.stage_times
    if times is not None and (times.round, times.stage) == (event.round, event.stage):
        state.stage_times = replace(times, trained=True, trainer=event.times)


def record_training_start(state: StateBase, at: float) -> None:
    """Record when the trainer got the stage."""
    times = state.stage_times
    if times is not None:
        state.stage_times = replace(times, train_at=at)
