"""How a node is, in layers, each with its state, age and a reason in words.

Made from the folded state alone, so it can be made from the log of a node that is down; a running daemon adds what only
it knows (`swarmd.observe.live`). Ages are seconds; an age is counted from when the layer came into its state. What is
no number, or infinite, is left out or bounded: JSON has no such numbers, and whoever asks would understand nothing.
"""

from __future__ import annotations

import math
from typing import Literal, assert_never

import msgspec

from swarmd.bounds import SUM_MAX, fit_real
from swarmd.core.chart_types import CoordinatorState, LinkState, RoundState, TrainerState
from swarmd.core.coordinator.coordination import awaits_trainer
from swarmd.core.node.rounds import is_barred
from swarmd.core.state import Coordination, StageReward, State
from swarmd.core.values import Skill
from swarmd.observe.layers import (
    Layer,
    WorkerStatus,
    first_line,
    hold_words,
    holding,
    pause_words,
    silence,
    worker_status,
)
from swarmd.observe.live import Live
from swarmd.observe.narrative.waiting import Kind, not_waited_for, waiting_notes
from swarmd.observe.narrative.words import coordinator_trouble, equivocation_notes
from swarmd.observe.onchain import UNDER_WAY, ChainStatus, SubmissionsStatus, chain_status, submissions_status
from swarmd.observe.weights import WeightsStatus, weights_status

SKIPS_SHOWN = 5
REWARDS_SHOWN = 32
STANDINGS_SHOWN = 32
ProcessState = Literal["never started", "running", "stopping", "stopped", "dead", "mute"]
LEFT: tuple[RoundState, ...] = ("stopped", "failed", "draining")


class ProcessStatus(Layer, frozen=True, kw_only=True):
    """The daemon. `age_s` is its uptime when it runs."""

    state: ProcessState
    pid: int = 0
    run: str = ""
    version: str = ""
    rss_bytes: int = 0
    exit_code: int | None = None


class NetworkStatus(Layer, frozen=True, kw_only=True):
    """The DHT."""

    state: Literal[LinkState, "isolated"]
    peers: int = 0
    addresses: tuple[str, ...] = ()
    worker: WorkerStatus


class TrainingStatus(Layer, frozen=True, kw_only=True):
    """The trainer."""

    state: TrainerState
    device: str = ""
    model: str = ""
    parameters: int = 0
    numbers: str = ""  # that the model is held and trained in
    doing: str = ""
    done: int = 0
    total: int = 0
    figures: dict[str, float] = msgspec.field(
        default_factory=dict
    )  # tokens_per_s, eta_s, ... as the trainer reports them
    worker: WorkerStatus


class SkipStatus(msgspec.Struct, frozen=True):
    """Rounds that were skipped as one."""

    first: int
    last: int
    cause: str
    age_s: float


class RoundStatus(Layer, frozen=True, kw_only=True):
    """Where the swarm is and where this node is in it. Rounds and stages are -1 when nothing is open."""

    state: RoundState
    round: int = -1
    stage: int = -1
    deadline_in_s: float | None = None  # negative when it has passed
    overdue_s: float = 0.0
    working_round: int = -1
    working_stage: int = -1
    joined: int = 0
    skipped: int = 0
    skips: tuple[SkipStatus, ...] = ()
    policy: str = ""
    stages: int = 1  # in a round
    waits: tuple[tuple[str, float], ...] = ()  # deadlines: (name, seconds from now)


class RewardStatus(msgspec.Struct, frozen=True):
    """One stage's own reward."""

    round: int
    stage: int
    reward: float
    held_out: float | None = None
    set_aside: dict[str, int] = msgspec.field(default_factory=dict)  # of peers' rollouts, by reason
    fallen: tuple[Skill, ...] = ()  # tasks that were answered better before


class StandingStatus(msgspec.Struct, frozen=True):
    """One row of the coordinator's leaderboard."""

    peer: str
    name: str
    reward: float
    rounds: int
    last_round: int
    admitted: bool = True  # by proof of work or an invitation; those that are not come last


class CoordinatorStatus(Layer, frozen=True, kw_only=True):
    """What only the coordinator sees."""

    state: CoordinatorState
    round: int
    stage: int
    members: int
    reports: int
    expected: int
    # Present members that the open stage does not wait for, by kind (newcomers, members): they were silent before, or
    # newcomers were waited for in vain; without a kind of which it waits for all.
    not_waited_for: dict[Kind, int] = msgspec.field(default_factory=dict)
    standings: tuple[StandingStatus, ...] = ()


class LogStatus(msgspec.Struct, frozen=True):
    """The event log."""

    directory: str
    next_seq: int
    size_bytes: int


class Status(msgspec.Struct, frozen=True):
    """Everything `swarmd status` says."""

    at: float
    source: str  # "daemon" or "log"
    healthy: bool
    peer: str
    name: str
    swarm: str
    role: str
    process: ProcessStatus
    network: NetworkStatus
    training: TrainingStatus
    round: RoundStatus
    reward_total: float
    rewards: tuple[RewardStatus, ...]
    rejections: dict[str, int]
    log: LogStatus
    coordinator: CoordinatorStatus | None = None
    chain: ChainStatus | None = None  # this and the next are present where a contract keeps the rounds
    submissions: SubmissionsStatus | None = None
    notes: tuple[str, ...] = ()  # what is amiss beside the layers, and costs no round
    weights: WeightsStatus | None = None  # that it offers to peers, or took from them; None: neither


def status_of(
    state: State, now: float, log: LogStatus, live: Live | None = None, version: str = "", mute: str = ""
) -> Status:
    """Say how a node is.

    Args:
        state: the fold of its log.
        now: POSIX seconds.
        log: what is known of the log's files.
        live: what the running daemon adds, None when it is down.
        version: of the running daemon.
        mute: why a daemon that seems to run does not answer.
    """
    settings = state.settings
    process = _process(state, now, live, version) if not mute else _mute_process(state, now, mute)
    absent = "the daemon does not answer" if mute else "the daemon does not run"
    network = _network(state, now, live, absent)
    training = _training(state, now, live, absent)
    round_status = _round(state, now, "" if live else absent)
    chain = chain_status(state, state.chain, now, live, absent) if state.chain else None
    submissions = submissions_status(state, now) if state.chain else None
    coordinator = _coordinator(state, state.coordination, now) if state.coordination else None
    layers = (process, network, training, round_status, coordinator, chain, submissions)
    return Status(
        at=now,
        source="daemon" if live else "log",
        healthy=all(layer.healthy for layer in layers if layer is not None),
        peer=settings.peer if settings else "",
        name=settings.name if settings else "",
        swarm=settings.swarm if settings else "",
        role=settings.role if settings else "",
        process=process,
        network=network,
        training=training,
        round=round_status,
        reward_total=fit_real(state.reward_total, SUM_MAX),
        rewards=tuple(_reward(each) for each in state.rewards[-REWARDS_SHOWN:] if math.isfinite(each.reward)),
        rejections=dict(state.rejections),
        log=log,
        coordinator=coordinator,
        chain=chain,
        submissions=submissions,
        notes=(*equivocation_notes(state), *waiting_notes(state)),
        weights=weights_status(state, now),
    )


def last_fallen(status: Status) -> tuple[Skill, ...]:
    """The tasks that had fallen at the last stage whose held-out accuracy was measured."""
    return next((each.fallen for each in reversed(status.rewards) if each.held_out is not None), ())


def _reward(each: StageReward) -> RewardStatus:
    return RewardStatus(each.round, each.stage, each.reward, each.held_out, dict(each.set_aside), each.fallen)


def _process(state: State, now: float, live: Live | None, version: str) -> ProcessStatus:
    if live is not None:
        draining = state.chart in LEFT
        return ProcessStatus(
            state="stopping" if draining else "running",
            healthy=not draining,
            age_s=now - state.started_at,
            reason=state.stop_reason if draining else "",
            pid=live.pid,
            run=state.run,
            version=version,
            rss_bytes=live.rss_bytes,
        )
    ended = state.chart in ("stopped", "failed")
    if not state.settings:
        reason = "it has never run here"
    elif ended:
        reason = state.stop_reason or "it stopped"
    else:
        reason = "no daemon runs, and the log holds no orderly stop: it was killed or crashed"
    return ProcessStatus(
        state="never started" if not state.settings else "stopped" if ended else "dead",
        healthy=False,
        age_s=now - state.since if state.since else 0.0,
        reason=reason,
        run=state.run,
        exit_code=state.exit_code if ended and state.settings else None,
    )


def _mute_process(state: State, now: float, why: str) -> ProcessStatus:
    age_s = now - state.started_at if state.started_at else 0.0
    return ProcessStatus(state="mute", healthy=False, age_s=age_s, reason=why, run=state.run)


def _network(state: State, now: float, live: Live | None, absent: str) -> NetworkStatus:
    link = state.link
    process = live.network if live else None
    reason = link.reason or _link_words(link.chart)
    if link.chart == "down" and state.network.reason:
        reason = f"the network worker is down: {first_line(state.network.reason)}"
    mute = silence(process)
    isolated = link.isolated if live and link.chart == "up" else ""
    since = link.isolated_at or link.since if isolated else link.since
    return NetworkStatus(
        state=("isolated" if isolated else link.chart) if live else "down",
        healthy=live is not None and link.chart == "up" and process is not None and not mute and not isolated,
        age_s=now - since if since else 0.0,
        reason=(mute or isolated or reason) if live else absent,
        peers=link.peers if live else 0,
        addresses=link.addresses,
        worker=worker_status(state.network, live, process),
    )


def _training(state: State, now: float, live: Live | None, absent: str) -> TrainingStatus:
    trainer = state.trainer
    process = live.trainer if live else None
    progress = process.progress if process and trainer.chart != "idle" else None
    reason = _trainer_words(trainer.chart)
    if trainer.chart == "down" and state.training.reason:
        reason = f"the trainer worker is down: {first_line(state.training.reason)}"
    mute = silence(process)
    return TrainingStatus(
        state=trainer.chart if live else "down",
        healthy=live is not None and trainer.chart in ("idle", "busy") and process is not None and not mute,
        age_s=now - trainer.since if trainer.since else 0.0,
        reason=(mute or (progress.note if progress else "") or reason) if live else absent,
        device=trainer.device,
        model=trainer.model,
        parameters=trainer.parameters,
        numbers=trainer.numbers,
        doing=progress.what if progress else "",
        done=progress.done if progress else 0,
        total=progress.total if progress else 0,
        figures={name: value for name, value in progress.figures.items() if math.isfinite(value)} if progress else {},
        worker=worker_status(state.training, live, process),
    )


def _round(state: State, now: float, absent: str) -> RoundStatus:
    clock, work, settings = state.clock, state.work, state.settings
    overdue_s = max(0.0, now - clock.deadline_at) if clock and not clock.final else 0.0
    patience_s = settings.clock_s if settings else 0.0
    stalled = overdue_s > 2 * patience_s
    in_swarm = state.chart == "waiting" or state.chart.startswith("round.") or state.chart == "skipping"
    return RoundStatus(
        state=state.chart,
        healthy=in_swarm and not stalled and state.low_space is None and not absent,
        age_s=now - state.since if state.since else 0.0,
        reason=_round_reason(state, overdue_s) if state.chart in LEFT or not absent else absent,
        round=clock.round if clock else -1,
        stage=clock.stage if clock else -1,
        deadline_in_s=clock.deadline_at - now if clock else None,
        overdue_s=overdue_s,
        working_round=work.round if work else -1,
        working_stage=work.stage if work else -1,
        joined=state.rounds_joined,
        skipped=state.rounds_skipped,
        skips=tuple(SkipStatus(s.first, s.last, s.cause, now - s.at) for s in state.skips[-SKIPS_SHOWN:]),
        policy=settings.behind if settings else "",
        stages=settings.stages if settings else 1,
        waits=tuple(sorted(((d.name, d.due_at - now) for d in state.deadlines), key=lambda wait: wait[1])),
    )


def _round_reason(state: State, overdue_s: float) -> str:
    if state.chart in LEFT:
        return state.stop_reason or "the node has stopped"
    if state.clock is not None and state.clock.final:
        return "the swarm has run its rounds"
    if pause := pause_words(state):
        return pause
    reason = _round_words(state.chart)
    if doubt := coordinator_trouble(state):
        reason += f"; {doubt}"
    if state.chart == "waiting" and state.clock is not None and is_barred(state, state.clock.round):
        first = max(state.floor, state.clock.round + 1) + state.restored
        reason = f"restored from a backup: it takes part from round {first} on"
    if state.chart == "syncing" and state.chain:
        reason = "reading where the contract is"
    if overdue_s > 0:
        who = "the contract has not moved on" if state.chain else "the coordinator has announced nothing newer"
        who = "this node, the coordinator, is alone and holds it" if holding(state) else who
        who = "this node, the coordinator, waits for a trainer" if awaits_trainer(state) else who
        reason += f"; the stage's deadline passed {overdue_s:.0f} s ago and {who}"
    return reason


def _coordinator(state: State, coordination: Coordination, now: float) -> CoordinatorStatus:
    held = holding(state)
    standings = sorted(coordination.standings, key=lambda row: (not row.admitted, -row.reward))[:STANDINGS_SHOWN]
    return CoordinatorStatus(
        state=coordination.chart,
        healthy=held is None,
        reason=hold_words(held) if held else "",
        age_s=now - coordination.since if coordination.since else 0.0,
        round=coordination.round,
        stage=coordination.stage,
        members=coordination.members.present,
        reports=len(coordination.reports),
        expected=coordination.expected,
        not_waited_for=not_waited_for(coordination),
        standings=tuple(
            StandingStatus(r.peer, r.name, fit_real(r.reward, SUM_MAX), r.rounds, r.last_round, r.admitted)
            for r in standings
        ),
    )


def headline(state: State) -> str:
    """One line for the service manager."""
    parts: list[str] = [state.chart]
    if pause := pause_words(state):
        parts.append(pause)
    if state.clock is not None:
        parts.append(f"round {state.clock.round} stage {state.clock.stage}")
    parts.append(f"network {state.link.chart} ({state.link.peers} peers)")
    parts.append(f"trainer {state.trainer.chart}")
    held = holding(state)
    if held is not None:
        parts.append(hold_words(held))
    if state.chain is not None:
        waiting = sum(each.chart in UNDER_WAY for each in state.submissions)
        parts.append(f"chain {state.chain.chart} ({waiting} waiting)")
    if state.rewards:
        parts.append(f"last reward {state.rewards[-1].reward:.3f}")
    if state.chart in LEFT and state.stop_reason:
        parts.append(first_line(state.stop_reason))
    return ", ".join(parts)


def _round_words(chart: RoundState) -> str:
    """What a node does in a state, where nothing else is to be said."""
    match chart:
        case "starting":
            return "waiting for the network worker"
        case "joining":
            return "waiting for the DHT to answer"
        case "registering":
            return "writing the membership record"
        case "syncing":
            return "reading the coordinator's clock"
        case "waiting":
            return "no stage is open for this node"
        case "round.gathering":
            return "fetching what peers published"
        case "round.training":
            return "training the stage"
        case "round.publishing":
            return "publishing rollouts and report"
        case "round.submitting":
            return "submitting the result"
        case "round.settling":
            return "done with this stage, waiting for the next"
        case "skipping":
            return "a newer stage opened, training is being cancelled"
        case "stopped" | "failed" | "draining" | "paused":  # of which more is said instead
            return chart
        case _:
            assert_never(chart)


def _trainer_words(chart: TrainerState) -> str:
    """What the trainer does, where nothing else is to be said."""
    match chart:
        case "down":
            return "the trainer worker does not run"
        case "loading":
            return "loading the model"
        case "idle":
            return "ready for a stage"
        case "busy":
            return "at work"
        case _:
            assert_never(chart)


def _link_words(chart: LinkState) -> str:
    """How the link is, where nothing else is to be said."""
    match chart:
        case "down":
            return "the network worker does not run"
        case "connecting":
            return "connecting to the DHT"
        case "up":
            return ""
        case "degraded":
            return "the node runs but reaches nobody"
        case _:
            assert_never(chart)
