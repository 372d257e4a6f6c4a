"""A node's status, layer by layer, from its log and its running daemon; and its health, from the status.

- `status_of` is pure. If no daemon runs, `status_from_log` makes the status from the log alone.
- Health has three depths: live, ready for a stage, productive. Restart a node that is not live; wait for one that is
  not ready, or investigate; investigate one that is live but not productive.
"""

import contextlib
import math
import os
import shutil
import time
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from swarmd.bounds import SUM_MAX, clamp_real
from swarmd.config import Config
from swarmd.core.chart_types import CoordinatorState, LinkState, RoundState, TrainerState
from swarmd.core.coordination import should_extend_for_trainer
from swarmd.core.rounds import may_have_signed
from swarmd.core.state import Coordination, FirstAccuracy, State
from swarmd.core.values import Skill
from swarmd.eventlog.store import log_disk_bytes
from swarmd.observe.credit import CreditStatus, read_credit
from swarmd.observe.layers import (
    MIB,
    Layer,
    LayerName,
    LearningStatus,
    LiveDaemon,
    WorkerStatus,
    describe_awaited_members,
    describe_hold,
    describe_member_wait,
    describe_pause,
    describe_silence,
    find_holding_coordination,
    first_line,
    learning_status,
    worker_status,
)
from swarmd.observe.onchain import UNDER_WAY, ChainStatus, SubmissionsStatus, chain_status, submissions_status
from swarmd.observe.stopping import SafeToStop, find_safe_moment
from swarmd.observe.times import TimesStatus, times_status
from swarmd.observe.tokens import TokensStatus, tokens_status
from swarmd.observe.words import (
    Kind,
    count_not_waited_for,
    describe_coordinator_trouble,
    describe_weights_outcome,
    equivocation_notes,
    waiting_notes,
)
from swarmd.paths import NodeDirectory
from swarmd.weights.offered import OFFER, OfferedWeights
from swarmd.worker.messages import STAGE_FAILED

FILES_MAX = 100_000  # counted per directory; further ones are ignored
SEGMENT = ".seg"


class DiskUsage(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    log: int
    segments: int  # number of files
    blobs: int
    checkpoints: int
    free: int | None  # bytes that this user may still write; None if unknown


def measure_disk(paths: NodeDirectory) -> DiskUsage:
    """Measure a data directory. Directories that do not exist count as empty. Blocks while the disk is read."""
    log = measure_file_sizes(paths.events)
    free: int | None = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(paths.root).free
    segments = [size for name, size in log.items() if name.endswith(SEGMENT)]
    return DiskUsage(
        log=sum(log.values()),
        segments=len(segments),
        blobs=sum(measure_file_sizes(paths.blobs).values()),
        checkpoints=sum(measure_file_sizes(paths.checkpoints).values()),
        free=free,
    )


def measure_file_sizes(directory: Path) -> dict[str, int]:
    """Size of every file below a directory, by path; files that are removed meanwhile are left out."""
    found: dict[str, int] = {}
    for base, _, names in os.walk(directory):
        for name in names:
            path = Path(base) / name
            try:
                found[str(path)] = path.lstat().st_size
            except OSError:  # removed since the listing
                continue
            if len(found) >= FILES_MAX:
                return found
    return found


class OfferedStatus(msgspec.Struct, frozen=True):
    """The weights that this node offers to peers."""

    round: int  # the last round that they were trained in
    age_s: float
    accuracy: float | None  # on held-out questions, as this node claims
    size_bytes: int  # on disk, including the previous offer and deltas
    words: str  # for people


class TakenStatus(msgspec.Struct, frozen=True):
    """The outcome of this node's last request for a peer's weights."""

    outcome: Literal["fetched", "adopted", "refused", "late"]
    age_s: float
    peer: str  # owner of the weights; empty if there were none
    round: int  # the last round that they were trained in; -1: unknown
    cause: str  # of a refusal
    reason: str
    received_bytes: int
    held_out_before: float | None  # accuracy of this node's own weights
    held_out: float | None  # accuracy of the peer's weights, or of the mean with them
    words: str  # for people


class WeightsStatus(msgspec.Struct, frozen=True):
    """Weights offered to peers and taken from them. They do not affect health."""

    awaited_s: float | None = None  # seconds left to wait for a peer's weights; None if it does not wait
    offered: OfferedStatus | None = None
    taken: TakenStatus | None = None


def weights_status(state: State, now: float) -> WeightsStatus | None:
    """Peers' weights, from the log; None if it has nothing on them."""
    catch_up, last = state.catch_up, state.weights
    awaits = catch_up is not None and not catch_up.over and not catch_up.average
    awaited_s = catch_up.until_at - now if catch_up is not None and awaits else None
    if awaited_s is None and last is None:
        return None
    if last is None:
        return WeightsStatus(awaited_s)
    taken = TakenStatus(
        last.outcome,
        max(0.0, now - last.at),
        last.peer,
        last.round,
        last.cause,
        last.reason,
        last.received_bytes,
        last.held_out_before,
        last.held_out,
        describe_weights_outcome(last),
    )
    return WeightsStatus(awaited_s, taken=taken)


def add_offer(status: "Status", directory: Path) -> "Status":
    """Add the offer in the directory of weights to a status, if there is one."""
    offer = OfferedWeights(directory).current()
    if offer is None:
        return status
    try:
        age_s = max(0.0, status.at - (directory / OFFER).stat().st_mtime)
    except OSError:  # withdrawn meanwhile
        return status
    size_bytes = sum(measure_file_sizes(directory).values())
    claimed = "" if offer.accuracy is None else f", held-out accuracy {offer.accuracy:.2f}"
    words = f"offers its own after round {offer.round}{claimed}, {size_bytes / MIB:.1f} MiB on disk"
    offered = OfferedStatus(offer.round, age_s, offer.accuracy, size_bytes, words)
    return replace(status, weights=replace(status.weights or WeightsStatus(), offered=offered))


SKIPS_SHOWN = 5
REWARDS_SHOWN = 32
STANDINGS_SHOWN = 32
ProcessState = Literal["never started", "running", "stopping", "stopped", "dead", "mute"]
ENDED: tuple[ProcessState, ...] = ("stopped", "dead", "never started")
LEFT: tuple[RoundState, ...] = ("stopped", "failed", "draining")


class ProcessStatus(Layer, frozen=True, kw_only=True):
    """The daemon. `age_s` is its uptime while it runs."""

    state: ProcessState
    pid: int = 0
    run: str = ""
    version: str = ""
    rss_bytes: int = 0
    exit_code: int | None = None


class NetworkStatus(Layer, frozen=True, kw_only=True):
    """The connection to the DHT."""

    state: Literal[LinkState, "isolated"]
    peers: int = 0
    addresses: tuple[str, ...] = ()
    worker: WorkerStatus


class TrainingStatus(Layer, frozen=True, kw_only=True):
    """The trainer and its model."""

    state: TrainerState
    device: str = ""
    model: str = ""
    parameters: int = 0
    numbers: str = ""  # dtype of the model, such as bfloat16
    other_weights: str = ""  # how the initial weights differ from those of the swarm's recipe; empty if they do not
    doing: str = ""  # the activity, such as "measuring held-out accuracy"
    done: int = 0  # parts done of it
    total: int = 0  # 0 if its parts are not counted
    step: str = ""  # the present step, such as "drawing 18 of 32 tokens"
    figures: dict[str, float] = msgspec.field(default_factory=dict)  # tokens_per_s, eta_s, ..., by the trainer
    worker: WorkerStatus

    @property
    def activity_text(self) -> str:
        """The activity in words, such as "training 3 of 40: drawing 18 of 32 tokens"; empty for none."""
        parts = f" {self.done} of {self.total}" if self.total else ""
        return f"{self.doing}{parts}{': ' if self.step else ''}{self.step}" if self.doing else ""


class SkipStatus(msgspec.Struct, frozen=True):
    """A run of skipped rounds."""

    first: int
    last: int
    cause: str
    age_s: float


class RoundStatus(Layer, frozen=True, kw_only=True):
    """The stage that the swarm is at, and the one that this node is at. Rounds and stages are -1 if unknown.

    If the daemon does not run, these are the last ones in the log, without deadlines.
    """

    state: RoundState | Literal["dead"]
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
    stages: int = 1  # per round
    final: bool = False  # all rounds have been run, and `round` is their number
    waits: tuple[tuple[str, float], ...] = ()  # deadlines: (name, seconds from now)


class RewardStatus(msgspec.Struct, frozen=True):
    """This node's reward in one stage."""

    round: int
    stage: int
    reward: float
    held_out: float | None = None
    set_aside: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # what was not learnt from peers' rollouts, by reason
    fallen: tuple[Skill, ...] = ()  # tasks whose accuracy has fallen


class StandingStatus(msgspec.Struct, frozen=True):
    """One row of the coordinator's leaderboard."""

    peer: str
    name: str
    reward: float
    rounds: int
    last_round: int
    admitted: bool = True  # by proof of work or an invitation; rows that are not admitted come last


class CoordinatorStatus(Layer, frozen=True, kw_only=True):
    """The coordinator's view of the swarm."""

    state: CoordinatorState
    round: int
    stage: int
    members: int
    reports: int
    expected: int
    # Present members that the open stage does not wait for, by kind, because they were silent before or because waits
    # for newcomers timed out. Kinds without such members are left out.
    not_waited_for: dict[Kind, int] = msgspec.field(default_factory=dict)
    standings: tuple[StandingStatus, ...] = ()


class LogStatus(msgspec.Struct, frozen=True):
    """The event log."""

    directory: str  # an absolute path
    next_seq: int
    size_bytes: int
    last_at: float | None = None  # commit time of its last event, POSIX seconds; None from a running daemon


class Status(msgspec.Struct, frozen=True):
    """The data of `swarmd status`."""

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
    chain: ChainStatus | None = None  # like `submissions`, present only if a contract keeps the rounds
    submissions: SubmissionsStatus | None = None
    learning: LearningStatus | None = None  # None until a stage is trained
    notes: tuple[str, ...] = ()  # problems outside the layers that cost no round
    weights: WeightsStatus | None = None  # offered to peers or taken from them; None: neither
    first_accuracy: FirstAccuracy | None = None  # held-out accuracy before training; None: not measured
    forked_from: str = ""  # peer id of the node that the log was copied from; empty if it is this node's own
    safe_to_stop: SafeToStop | None = None  # whether a restart now would cost a round; None: no daemon answers
    credit: CreditStatus | None = None  # whether its reports count; None for the node that keeps the leaderboard
    times: TimesStatus | None = None  # where the wall time of the last trained stage went; None until there is one
    tokens: TokensStatus | None = None  # what became of the tokens that it generated; None before there are any

    @property
    def layers(self) -> dict[LayerName, Layer]:
        """The layers that this node has, by name."""
        found: dict[LayerName, Layer | None] = {
            "process": self.process,
            "network": self.network,
            "training": self.training,
            "round": self.round,
            "chain": self.chain,
            "submissions": self.submissions,
            "learning": self.learning,
        }
        return {name: layer for name, layer in found.items() if layer is not None}


def measure_log(directory: Path, next_seq: int, last_at: float | None = None) -> LogStatus:
    """Measure a log's files. Raises NotFoundError if there are none."""
    return LogStatus(str(directory.resolve()), next_seq, log_disk_bytes(directory), last_at)


def status_from_log(
    data: NodeDirectory, state: State, log: LogStatus, mute: str = "", config: Config | None = None
) -> Status:
    """The status of a node whose daemon does not answer; for the arguments see `status_of`."""
    status = status_of(state, time.time(), log, mute=mute, restored=data.restored.exists())
    return with_files(status, state, data, config)


def with_files(status: Status, state: State, data: NodeDirectory, config: Config | None) -> Status:
    """Add what files of the data directory say on offered weights and on credit to a status."""
    runs = status.process.state in ("running", "stopping", "mute")
    credit = read_credit(state, status.at, data, status.chain, config, runs)
    return replace(add_offer(status, data.weights), credit=credit)


def status_of(
    state: State,
    now: float,
    log: LogStatus,
    live: LiveDaemon | None = None,
    version: str = "",
    mute: str = "",
    restored: bool = False,
) -> Status:
    """Make a node's status.

    Args:
        state: the fold of its log.
        now: POSIX seconds.
        log: measurements of the log's files.
        live: what the running daemon adds, None if it is down.
        version: of the running daemon.
        mute: why a daemon that seems to run does not answer.
        restored: whether the data was restored from a backup and the node not started since.
    """
    settings = state.settings
    process = _make_process_status(state, now, live, version, mute, restored)
    absent = "the daemon does not answer" if mute else "the daemon does not run"
    network = _make_network_status(state, now, live, absent)
    training = _make_training_status(state, now, live, absent)
    round_status = _make_round_status(state, now, "" if live else absent, process.state)
    chain = chain_status(state, state.chain, now, live, absent) if state.chain else None
    submissions = submissions_status(state, now) if state.chain else None
    coordinator = (
        _make_coordinator_status(state, state.coordination, now, "" if live else absent) if state.coordination else None
    )
    learning = learning_status(state, now, "" if live else absent)
    layers = (process, network, training, round_status, coordinator, chain, submissions, learning)
    ended_at = log.last_at if process.state in ENDED else None
    return Status(
        at=now,
        source="daemon" if live else "log",
        healthy=all(layer.healthy for layer in layers if layer is not None),
        peer=settings.peer if settings else "",
        name=settings.name if settings else "",
        swarm=settings.swarm if settings else "",
        role=settings.role if settings else "",
        process=mark_layer_ended(process, ended_at, now),
        network=mark_layer_ended(network, ended_at, now),
        training=mark_layer_ended(training, ended_at, now),
        round=mark_layer_ended(round_status, ended_at, now),
        reward_total=clamp_real(state.reward_total, SUM_MAX),
        rewards=tuple(
            RewardStatus(each.round, each.stage, each.reward, each.held_out, dict(each.set_aside), each.fallen)
            for each in state.rewards[-REWARDS_SHOWN:]
            if math.isfinite(each.reward)
        ),
        rejections=dict(state.rejections),
        log=log,
        coordinator=mark_layer_ended(coordinator, ended_at, now) if coordinator else None,
        chain=mark_layer_ended(chain, ended_at, now) if chain else None,
        submissions=submissions,
        learning=mark_layer_ended(learning, ended_at, now) if learning else None,
        notes=(*equivocation_notes(state), *waiting_notes(state)),
        weights=weights_status(state, now),
        first_accuracy=state.first_accuracy,
        forked_from=state.forked_from,
        safe_to_stop=find_safe_moment(state, now, live) if live is not None else None,
        times=times_status(state),
        tokens=tokens_status(state),
    )


SomeLayer = TypeVar("SomeLayer", bound=Layer)


def mark_layer_ended(layer: SomeLayer, ended_at: float | None, now: float) -> SomeLayer:
    """A layer with its age counted from `ended_at`, when the node ended; unchanged if that is None."""
    return layer if ended_at is None else msgspec.structs.replace(layer, age_s=now - ended_at)


def find_fallen_skills(status: Status) -> tuple[Skill, ...]:
    """The tasks whose accuracy had fallen at the latest measurement of held-out accuracy."""
    return next((each.fallen for each in reversed(status.rewards) if each.held_out is not None), ())


def _make_process_status(
    state: State, now: float, live: LiveDaemon | None, version: str, mute: str, restored: bool
) -> ProcessStatus:
    if mute:
        age_s = now - state.started_at if state.started_at else 0.0
        return ProcessStatus(state="mute", healthy=False, age_s=age_s, reason=mute, run=state.run)
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
    ended = state.chart in ("stopped", "failed") and not restored
    if not state.settings:
        reason = "it has never run here"
    elif restored:
        reason = "restored from a backup, and never started here"
    elif ended:
        reason = state.stop_reason or "it stopped"
    else:
        reason = "no daemon runs, and the log holds no orderly stop: it was killed or crashed"
    return ProcessStatus(
        state="never started" if restored or not state.settings else "stopped" if ended else "dead",
        healthy=False,
        age_s=now - state.since if state.since else 0.0,
        reason=reason,
        run=state.run,
        exit_code=state.exit_code if ended and state.settings else None,
    )


def _make_network_status(state: State, now: float, live: LiveDaemon | None, absent: str) -> NetworkStatus:
    link = state.link
    process = live.network if live else None
    reason = link.reason or LINK_WORDS[link.chart]
    if link.chart == "down" and state.network.reason:
        reason = f"the network worker is down: {first_line(state.network.reason)}"
    mute = describe_silence(process)
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


def _make_training_status(state: State, now: float, live: LiveDaemon | None, absent: str) -> TrainingStatus:
    trainer = state.trainer
    process = live.trainer if live else None
    progress = process.progress if process and trainer.chart != "idle" else None
    reason, failed = TRAINER_WORDS[trainer.chart], ""
    if trainer.chart == "idle" and process and process.progress and process.progress.what == STAGE_FAILED:
        failed = process.progress.note
        reason = f"{reason}; the last stage failed: {failed}"
    if trainer.chart == "down" and state.training.reason:
        reason = f"the trainer worker is down: {first_line(state.training.reason)}"
    mute = describe_silence(process)
    return TrainingStatus(
        state=trainer.chart if live else "down",
        healthy=live is not None and trainer.chart in ("idle", "busy") and process is not None and not (mute or failed),
        age_s=now - trainer.since if trainer.since else 0.0,
        reason=(mute or reason) if live else absent,
        device=trainer.device,
        model=trainer.model,
        parameters=trainer.parameters,
        numbers=trainer.numbers,
        other_weights=trainer.other_weights,
        doing=progress.what if progress else "",
        done=progress.done if progress else 0,
        total=progress.total if progress else 0,
        step=progress.note if progress else "",
        figures={name: value for name, value in progress.figures.items() if math.isfinite(value)} if progress else {},
        worker=worker_status(state.training, live, process),
    )


def _make_round_status(state: State, now: float, absent: str, process: ProcessState) -> RoundStatus:
    clock, work, settings = state.clock, state.work, state.settings
    ended = process in ENDED
    waits = [] if ended else [(deadline.name, deadline.due_at - now) for deadline in state.deadlines]
    overdue_s = max(0.0, now - clock.deadline_at) if clock and not clock.final and not ended else 0.0
    patience_s = settings.clock_s if settings else 0.0
    stalled = overdue_s > 2 * patience_s
    in_swarm = state.chart == "waiting" or state.chart.startswith("round.") or state.chart == "skipping"
    return RoundStatus(
        state="dead" if process == "dead" else "stopped" if process == "never started" else state.chart,
        healthy=in_swarm and not stalled and state.low_space is None and not absent,
        age_s=now - state.since if state.since else 0.0,
        reason=_describe_round_state(state, overdue_s, now) if state.chart in LEFT or not absent else absent,
        round=clock.round if clock else -1,
        stage=clock.stage if clock else -1,
        deadline_in_s=clock.deadline_at - now if clock and not ended else None,
        overdue_s=overdue_s,
        working_round=work.round if work else -1,
        working_stage=work.stage if work else -1,
        joined=state.rounds_joined,
        skipped=state.rounds_skipped,
        skips=tuple(SkipStatus(s.first, s.last, s.cause, now - s.at) for s in state.skips[-SKIPS_SHOWN:]),
        policy=settings.behind if settings else "",
        stages=settings.stages if settings else 1,
        final=clock.final if clock else False,
        waits=tuple(sorted(waits, key=lambda wait: wait[1])),
    )


def _describe_round_state(state: State, overdue_s: float, now: float) -> str:
    if state.chart in LEFT:
        return state.stop_reason or ("the node has stopped" if state.settings else "it has never run here")
    if state.clock is not None and state.clock.final:
        return "the swarm has run its rounds"
    if pause := describe_pause(state):
        return pause
    reason = ROUND_WORDS.get(state.chart, state.chart)
    if awaited := describe_member_wait(state, now):
        reason = f"the coordinator {awaited}"
    if doubt := describe_coordinator_trouble(state):
        reason += f"; {doubt}"
    if state.chart == "waiting" and state.clock is not None and may_have_signed(state, state.clock.round):
        first = max(state.floor, state.clock.round + 1) + state.restored
        origin = "a fork" if state.forked_from and not state.restored else "restored from a backup"
        reason = f"{origin}: it takes part from round {first} on"
    if state.chart == "syncing" and state.chain:
        reason = "reading where the contract is"
    if overdue_s > 0:
        who = "the contract has not moved on" if state.chain else "the coordinator has announced nothing newer"
        who = "this node, the coordinator, is alone and holds it" if find_holding_coordination(state) else who
        who = "this node, the coordinator, waits for a trainer" if should_extend_for_trainer(state) else who
        reason += f"; the stage's deadline passed {overdue_s:.0f} s ago and {who}"
    return reason


def _make_coordinator_status(state: State, coordination: Coordination, now: float, absent: str) -> CoordinatorStatus:
    held = find_holding_coordination(state)
    reason = describe_hold(held) if held else describe_member_wait(state, now)
    standings = sorted(coordination.standings, key=lambda row: (not row.admitted, -row.reward))[:STANDINGS_SHOWN]
    return CoordinatorStatus(
        state=coordination.chart,
        healthy=held is None and not absent,
        reason=absent or reason,
        age_s=now - coordination.since if coordination.since else 0.0,
        round=coordination.round,
        stage=coordination.stage,
        members=coordination.members.present,
        reports=len(coordination.reports),
        expected=coordination.expected,
        not_waited_for=count_not_waited_for(coordination),
        standings=tuple(
            StandingStatus(r.peer, r.name, clamp_real(r.reward, SUM_MAX), r.rounds, r.last_round, r.admitted)
            for r in standings
        ),
    )


def make_headline(state: State) -> str:
    """One line for the service manager."""
    parts: list[str] = [state.chart]
    parts += filter(None, (describe_pause(state), describe_awaited_members(state)))
    if state.clock is not None:
        parts.append(f"round {state.clock.round} stage {state.clock.stage}")
    parts.append(f"network {state.link.chart} ({state.link.peers} peers)")
    parts.append(f"trainer {state.trainer.chart}")
    held = find_holding_coordination(state)
    if held is not None:
        parts.append(describe_hold(held))
    if state.chain is not None:
        waiting = sum(each.chart in UNDER_WAY for each in state.submissions)
        parts.append(f"chain {state.chain.chart} ({waiting} waiting)")
    if state.rewards:
        parts.append(f"last reward {state.rewards[-1].reward:.3f}")
    if state.chart in LEFT and state.stop_reason:
        parts.append(first_line(state.stop_reason))
    return ", ".join(parts)


# The reason of a round layer if there is no other.
ROUND_WORDS: dict[RoundState, str] = {  # without the states in which a node does not take part in rounds
    "starting": "waiting for the network worker",
    "joining": "waiting for the DHT to answer",
    "registering": "writing the membership record",
    "syncing": "reading the coordinator's clock",
    "waiting": "no stage is open for this node",
    "round.gathering": "fetching what peers published",
    "round.training": "training the stage",
    "round.publishing": "publishing rollouts and report",
    "round.submitting": "submitting the result",
    "round.settling": "done with this stage, waiting for the next",
    "skipping": "a newer stage opened, training is being cancelled",
}
TRAINER_WORDS: dict[TrainerState, str] = {
    "down": "the trainer worker does not run",
    "loading": "loading the model",
    "idle": "ready for a stage",
    "busy": "at work",
}
LINK_WORDS: dict[LinkState, str] = {
    "down": "the network worker does not run",
    "connecting": "connecting to the DHT",
    "up": "",
    "degraded": "the node runs but reaches nobody",
}


STALE_S = 30.0  # a status older than this says nothing about the present
DEADLINES = 3.0  # in stage lengths: a productive node trains, and on a chain is confirmed, within this time
NEEDED_LAYERS: tuple[LayerName, ...] = ("process", "network", "training", "round")  # needed to take part in a stage
STAGE_LEAST_S = 20.0  # shorter stages count as this long: a trainer's restart must not make a node look unproductive


class Health(msgspec.Struct, frozen=True):
    """Whether a node is healthy at one depth, and why not."""

    ok: bool
    reasons: tuple[str, ...] = ()


class NodeProgress(msgspec.Struct):
    """What a node achieved since its daemon started; times are POSIX seconds, 0 for never."""

    started_at: float = 0.0
    stage_s: float = 0.0  # length of the open stage, 0 while unknown
    trained_at: float = 0.0  # latest
    confirmed_at: dict[str, float] = {}  # latest, by type of submission
    submits: bool = False  # whether the node submits to a contract
    finished: bool = False  # whether the swarm has run all its rounds


def check_live(status: Status | None) -> Health:
    """Whether the daemon answers, which it does from its main loop."""
    if status is None:
        return Health(False, ("nothing is known of the daemon",))
    if status.source != "daemon":
        return Health(False, (status.process.reason or "the daemon does not run",))
    return Health(True)


def check_ready(status: Status | None) -> Health:
    """Whether the node can do its part of a stage: it is live and connected, its trainer works, and the round is not
    stalled.

    A node that is starting is live but not ready. The chain does not count, because the node trains without it.
    """
    alive = check_live(status)
    if not alive.ok or status is None:
        return alive
    needed = ((name, layer) for name, layer in status.layers.items() if name in NEEDED_LAYERS)
    reasons = tuple(describe_layer_problem(name, layer) for name, layer in needed if not layer.healthy)
    return Health(not reasons, reasons)


def check_productive(status: Status | None, progress: NodeProgress) -> Health:
    """Whether the node is live and, within the last `DEADLINES` stage lengths, trained a stage and, on a chain, had a
    reward confirmed. A newly started daemon gets that long. For `progress` see `Metrics.progress`."""
    alive = check_live(status)
    if not alive.ok or status is None:
        return alive
    now, patience_s = status.at, DEADLINES * max(progress.stage_s, STAGE_LEAST_S)
    if progress.finished or now - progress.started_at <= patience_s:
        return Health(True)
    reasons = []
    if now - progress.trained_at > patience_s:
        reasons.append(_describe_inactivity("trained", progress.trained_at, now))
    if progress.submits and now - progress.confirmed_at.get("reward", 0.0) > patience_s:
        reasons.append(_describe_inactivity("confirmed on the chain", progress.confirmed_at.get("reward", 0.0), now))
    return Health(not reasons, tuple(reasons))


def _describe_inactivity(what: str, last_at: float, now: float) -> str:
    return (
        f"nothing was {what} for {now - last_at:.0f} s" if last_at else f"nothing was {what} since the daemon started"
    )


def describe_layer_problem(name: LayerName, layer: Layer) -> str:
    """An unhealthy layer in words, such as "network: connecting to the DHT"."""
    return f"{name}: {layer.reason or layer.state}"
