"""Why rounds were missed, and what may be done about it, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from swarmd.core.chart_types import RoundState
from swarmd.core.events import StageTrained
from swarmd.core.state import State
from swarmd.observe.narrative.phrases import Sentence

HELD_UP, HELD_UP_S = 2.0, 2.0  # a stage that took so many times its work, and so many seconds more, was held up


def doing(state: State, at: float) -> str:
    """What a node does, as "training round 3 stage 0, for 45 s"; `at` in POSIX seconds."""
    words, since = _words_for(state.chart), state.since
    if state.chart == "round.training" and is_loading(state):
        words, since = "loading its trainer for", state.trainer.since
    if state.chart == "paused" and state.low_space is None:
        words, since = "waiting for its trainer to stop what it was at before the pause", 0.0
    if state.work is not None and (state.chart.startswith("round.") or state.chart == "skipping"):
        words += f" round {state.work.round} stage {state.work.stage}"
    return words + (f", for {max(0.0, at - since):.0f} s so far" if since else "")


def is_loading(state: State) -> bool:
    """Whether the trainer is not there yet."""
    return state.trainer.chart in ("down", "loading")


def reason_of(cause: str, found_doing: str, troubles: Sequence[Sentence]) -> str:
    """Why rounds were missed.

    Args:
        cause: as it is on record.
        found_doing: what the node did when the first of them opened.
        troubles: what went wrong up to then, oldest first.
    """
    if cause == "fault" and troubles:
        return f"{troubles[-1].text}; when the round opened the node was {found_doing or 'down'}"
    if cause == "late":
        return "the swarm was past it when this node joined"
    if cause == "stopped":
        return "this node had been stopped, and the swarm went on without it"
    return f"when it opened this node was {found_doing or 'not running'}, and when it was free the swarm had gone on"


def advice_on(
    cause: str, before: StageTrained | None, took_s: float, loading_s: float, state: State
) -> tuple[str, ...]:
    """What may be done about missed rounds.

    Args:
        cause: as it is on record.
        before: the last stage that the node had trained.
        took_s: from joining that stage to its end, where it held the missed round up; 0 where it did not.
        loading_s: of these, before its trainer was ready.
        state: at the log's end.
    """
    if cause == "late":
        return ("Nothing is wrong: rounds before a node's first are recorded as late.",)
    if cause == "stopped":
        return ("Nothing is wrong: the node was stopped in order, and the swarm went on.",)
    if cause == "fault":
        return (
            "See to what went wrong above; `swarmd doctor` checks the machine and the configuration.",
            "`swarmd replay DIR --from SEQ --step` shows an event, what it changed and what it caused.",
        )
    return _advice_on_speed(before, took_s, loading_s, state)


def _advice_on_speed(before: StageTrained | None, took_s: float, loading_s: float, state: State) -> tuple[str, ...]:
    if before is not None and took_s > HELD_UP * before.seconds + HELD_UP_S:
        work = f"Training round {before.round} stage {before.stage} took {before.seconds:.0f} s of work"
        loading = f", after {loading_s:.0f} s in which its trainer was loaded" if loading_s >= HELD_UP_S else ""
        if took_s - loading_s <= HELD_UP * before.seconds + HELD_UP_S:
            return (f"{work}{loading}: a smaller model loads faster, and a trainer that stays up loads once.",)
        held_up = "the machine or its processes were held up (suspended, swapping, short of CPU)"
        return (f"{work}{loading}, but {took_s:.0f} s passed in all: {held_up}.",)
    clock, settings = state.clock, state.settings
    measured = "This node trains longer than a stage lasts"
    if before is not None and clock is not None:
        open_s = clock.deadline_at - clock.opened_at
        measured = (
            f"A stage takes {before.seconds:.0f} s to train here, and the swarm's are open for up to {open_s:.0f} s"
        )
    advice = [
        f"{measured}: train less ([training] steps, questions, completion_tokens), or take a smaller model or a faster "
        "device (`swarmd model fit`)."
    ]
    if settings is not None and settings.behind == "finish-stage":
        advice.append('With [round] behind = "abandon" the node leaves a stage as soon as a newer one opens.')
    return tuple(advice)


def _words_for(chart: RoundState) -> str:
    """What a node does in a state."""
    match chart:
        case "stopped":
            return "stopped"
        case "failed":
            return "down after a failure"
        case "draining":
            return "stopping"
        case "starting":
            return "starting"
        case "joining":
            return "waiting for the DHT to answer"
        case "registering":
            return "registering"
        case "syncing":
            return "reading where the swarm was"
        case "waiting":
            return "waiting for a stage to open"
        case "round.gathering":
            return "fetching peers' rollouts of"
        case "round.training":
            return "training"
        case "round.publishing":
            return "publishing its report of"
        case "round.submitting":
            return "waiting for the chain to take the reward of"
        case "round.settling":
            return "done with"
        case "skipping":
            return "ending its training of"
        case "paused":
            return "paused for want of disk space"
        case _:
            assert_never(chart)
