"""A node's metrics, for Prometheus and OpenMetrics: counters of its events, and gauges read from its present status.

- Every name begins with `swarmd_` and is documented in docs/MONITORING.md.
- Label values come from fixed lists (`swarmd.observe.labels`), never from peers, providers or files, so the number of
  series has a bound, and no secret gets in.
- Counters begin at the daemon's last `NodeStarted`; gauges are read from a status when they are asked for.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from swarmd import __version__
from swarmd.config import Config
from swarmd.core import events
from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import RoundState, SubmissionState
from swarmd.core.state import State, Submission
from swarmd.core.values import Skill
from swarmd.core.workers import LEAVING
from swarmd.eventlog.fold import FoldBase
from swarmd.observe import labels
from swarmd.observe.layers import WorkerStatus
from swarmd.observe.onchain import ChainStatus, SubmissionsStatus
from swarmd.observe.status import (
    STALE_S,
    DiskUsage,
    NodeProgress,
    Status,
    check_live,
    check_productive,
    check_ready,
    find_fallen_skills,
    measure_disk,
)
from swarmd.observe.times import split_by_part
from swarmd.paths import NodeDirectory
from swarmd.worker.runtime import TimeSource

PART_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)  # bounds of buckets
# A part's time is the time spent in the first state, counted only if the second state follows it.
_PARTS: dict[tuple[RoundState, RoundState], str] = {
    ("round.gathering", "round.training"): "gather",
    ("round.training", "round.publishing"): "train",
    ("round.publishing", "round.submitting"): "publish",
    ("round.publishing", "round.settling"): "publish",
    ("round.submitting", "round.settling"): "submit",
}


class CounterSpec(NamedTuple):
    """One counter: its name, help text and labels."""

    text: str
    labels: Mapping[str, tuple[str, ...]] = {}  # each label with its allowed values


COUNTERS: Mapping[str, CounterSpec] = {
    "rounds_joined": CounterSpec("Rounds joined."),
    "rounds_skipped": CounterSpec("Rounds skipped, by cause.", {"cause": labels.SKIP_CAUSES}),
    "stages_trained": CounterSpec("Stages trained."),
    "stage_time_seconds": CounterSpec(
        "Wall time of trained stages, by part.",
        {"part": labels.TIME_PARTS},
    ),
    "stages_cancelled": CounterSpec("Stages whose training was given up for a newer one."),
    "generated_tokens": CounterSpec("Completion tokens generated."),
    "reports_published": CounterSpec("Signed reports of a stage that are in the DHT."),
    "submissions": CounterSpec(
        "Submissions to the contract that entered a state, by kind.",
        {"kind": labels.SUBMISSION_KINDS, "state": labels.SUBMISSION_STATES},
    ),
    "submissions_refused": CounterSpec(
        "Submissions refused for good, by error.",
        {"kind": labels.SUBMISSION_KINDS, "code": labels.REFUSAL_CODES},
    ),
    "submission_failures": CounterSpec(
        "Submissions that failed for now, by cause; they are tried again.", {"cause": labels.FAILURE_CAUSES}
    ),
    "worker_exits": CounterSpec(
        "Ends of worker processes, each followed by a restart unless permanent, without orderly stops.",
        {"worker": labels.WORKERS, "cause": labels.EXIT_CAUSES},
    ),
    "records_rejected": CounterSpec(
        "Peers' records and groups that were refused, by reason.", {"reason": labels.REJECTION_REASONS}
    ),
    "equivocations": CounterSpec(
        "Peers found to have signed two different records for one place, by kind of record.",
        {"kind": labels.EQUIVOCATIONS},
    ),
    "tokens_set_aside": CounterSpec("Tokens of peers' right completions that were masked."),
    "groups_passed_over": CounterSpec("Peers' groups left out of batches, by reason.", {"reason": labels.PASSED_OVER}),
    "payload_marks": CounterSpec("Peers whose right answers share a text that others lack; counted in each stage."),
    "commands_failed": CounterSpec(
        "Commands that a worker could not carry out; most are repeated.", {"command": labels.COMMANDS}
    ),
    "chain_reorgs": CounterSpec("Reorganisations of the chain."),
    "chain_reorged_blocks": CounterSpec("Blocks that reorganisations dropped."),
    "peer_weights": CounterSpec(
        "Peers' weights, by outcome: fetched, adopted, or why not.", {"outcome": labels.WEIGHTS}
    ),
    "peer_weights_bytes": CounterSpec("Bytes of peers' weights received."),
    "model_pushes": CounterSpec("Attempts to put the model on the Hub.", {"outcome": labels.OUTCOMES}),
}


class EventCounts(msgspec.Struct, array_like=True):
    """Counts of one run of a daemon, encodable so that they can be saved."""

    progress: NodeProgress = msgspec.field(default_factory=NodeProgress)  # input for `check_productive`
    counts: dict[tuple[str, tuple[str, ...]], float] = {}  # counters above 0, by name and label values
    # By part of a stage: the number in each bucket of `PART_SECONDS`, and the sum of seconds.
    parts: dict[str, list[int]] = msgspec.field(
        default_factory=lambda: {part: [0] * (len(PART_SECONDS) + 1) for part in labels.PARTS}
    )
    part_s: dict[str, float] = msgspec.field(default_factory=lambda: dict.fromkeys(labels.PARTS, 0.0))
    reward_confirmed: float = 0.0  # in the unit that rewards are earned in

    def add_to_counter(self, name: str, *values: str, by: float = 1) -> None:
        """Add to a counter of the table; a negative number adds nothing."""
        self.counts[name, values] = self.counts.get((name, values), 0.0) + max(0, by)

    def record_part_time(self, part: str, seconds: float) -> None:
        """Record how long a part of a stage took."""
        self.parts[part][bisect_left(PART_SECONDS, seconds)] += 1
        self.part_s[part] += seconds

    def collect(self) -> Iterator[Metric]:
        """All counters and histograms."""
        for name, counter in COUNTERS.items():
            yield make_counter(name, counter, self.counts)
        parts = HistogramMetricFamily(
            "swarmd_stage_part_seconds",
            "Wall-clock time that the parts of a stage took, where they came to their end.",
            labels=("part",),
        )
        bounds = [*(str(float(bound)) for bound in PART_SECONDS), "+Inf"]
        for part, took in self.parts.items():
            parts.add_metric((part,), list(zip(bounds, accumulate(took), strict=True)), self.part_s[part])
        yield parts
        yield GaugeMetricFamily(
            "swarmd_reward_confirmed",
            "Sum of the rewards confirmed on the chain since the daemon started, in the unit they were earned in.",
            self.reward_confirmed,
        )

    def apply(self, applied: AppliedEvent) -> None:
        """Count an event."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        _count_changes(self, envelope.at, before, after)
        self._count_event(envelope.event, before, after)
        self._record_progress(envelope, after)

    def _count_event(self, event: events.Event, before: State, after: State) -> None:
        """Count what the event itself says."""
        match event:
            case events.StageTrained():
                self.add_to_counter("stages_trained")
                self.add_to_counter("generated_tokens", by=event.tokens)
                self.add_to_counter("tokens_set_aside", by=sum(each.held for each in event.set_aside))
                self.add_to_counter("groups_passed_over", "share", by=sum(each.over_share for each in event.set_aside))
                self.add_to_counter("groups_passed_over", "little", by=sum(each.of_little for each in event.set_aside))
                self.add_to_counter("groups_passed_over", "long", by=sum(each.too_long for each in event.set_aside))
                self.add_to_counter("payload_marks", by=sum(bool(each.mark) for each in event.set_aside))
            case events.TrainingCancelled():
                self.add_to_counter("stages_cancelled")
            case events.ReportPublished():
                self.add_to_counter("reports_published")
            case events.Equivocated():
                if before.equivocations is not after.equivocations:  # else it was already known
                    self.add_to_counter("equivocations", event.kind)
            case events.WorkerExited():
                if before.chart not in LEAVING:
                    self.add_to_counter("worker_exits", event.worker, labels.worker_exit_cause(event))
            case events.WorkerStartFailed():
                self.add_to_counter("worker_exits", event.worker, labels.worker_exit_cause(event))
            case events.CommandFailed():
                kind = labels.known_or_other(event.command.partition("/")[0], labels.COMMANDS)
                self.add_to_counter("commands_failed", kind)
                if kind in ("submit", "broadcast"):
                    self.add_to_counter("submission_failures", labels.submission_failure_cause(event.reason))
            case events.ChainReorged():
                self.add_to_counter("chain_reorgs")
                self.add_to_counter("chain_reorged_blocks", by=event.depth)
            case events.ModelPushed():
                self.add_to_counter("model_pushes", labels.OUTCOMES[bool(event.error)])
            case events.WeightsFetched():
                self.add_to_counter("peer_weights", "fetched")
                self.add_to_counter("peer_weights_bytes", by=event.received_bytes)
            case events.WeightsAdopted():
                self.add_to_counter("peer_weights", "adopted")
            case events.WeightsRefused():
                self.add_to_counter("peer_weights", event.cause)

    def _record_progress(self, envelope: events.Envelope, after: State) -> None:
        progress, clock = self.progress, after.clock
        if clock is not None:
            progress.finished = clock.final
            if not clock.final:  # the mark of the swarm's end has no duration
                progress.stage_s = clock.deadline_at - clock.opened_at
        if isinstance(envelope.event, events.StageTrained):
            progress.trained_at = envelope.at
        elif isinstance(envelope.event, events.SubmissionConfirmed):
            kind = envelope.event.submission.partition("/")[0]
            progress.confirmed_at = {
                **progress.confirmed_at,
                kind: envelope.at,
            }  # a new dict, because other threads still read the old one
        elif isinstance(envelope.event, events.NodeStarted):
            progress.submits = _submits_to_chain(after)


def make_progress(state: State) -> NodeProgress:
    """Derive progress from a state, for a log whose beginning was removed.

    The state does not say when the node trained last. The last change of its chart stands in; it is at most one stage
    later.
    """
    confirmed: dict[str, float] = {each.kind: each.since for each in state.submissions if each.chart == "confirmed"}
    trained = state.done >= (0, 0) and state.since > state.started_at
    return NodeProgress(
        started_at=state.started_at,
        trained_at=state.since if trained else 0.0,
        confirmed_at=confirmed,
        submits=_submits_to_chain(state),
    )


def _submits_to_chain(state: State) -> bool:
    chain = state.settings.chain if state.settings else None
    return chain is not None and chain.sends


def make_counter(name: str, counter: CounterSpec, counts: Mapping[tuple[str, tuple[str, ...]], float]) -> Metric:
    """A counter with all its series, including those at 0, so that the first event shows as an increase."""
    family = CounterMetricFamily(f"swarmd_{name}", counter.text, labels=tuple(counter.labels))
    for values in product(*counter.labels.values()):
        family.add_metric(values, counts.get((name, values), 0.0))
    return family


# --- counters from changes of state ---


def _count_changes(to: EventCounts, at: float, before: State, after: State) -> None:
    to.add_to_counter("rounds_joined", by=after.rounds_joined - before.rounds_joined)
    if before.skips is not after.skips and after.rounds_skipped > before.rounds_skipped:
        to.add_to_counter("rounds_skipped", after.skips[-1].cause, by=after.rounds_skipped - before.rounds_skipped)
    part = _PARTS.get((before.chart, after.chart))
    if part is not None:
        to.record_part_time(part, max(0.0, at - before.since))
    if after.last_times is not None and before.last_times is not after.last_times:
        for name, seconds in split_by_part(after.last_times).items():
            to.add_to_counter("stage_time_seconds", name, by=seconds)
    if before.rejections is not after.rejections:
        known = dict(before.rejections)
        for reason, count in after.rejections:
            by = count - known.get(reason, 0)
            to.add_to_counter("records_rejected", labels.known_or_other(reason, labels.REJECTION_REASONS), by=by)
    if before.submissions is not after.submissions:
        _count_submissions(to, before, after)


def _count_submissions(to: EventCounts, before: State, after: State) -> None:
    chain = after.settings.chain if after.settings else None
    scale = chain.reward_scale if chain else 1
    charts: dict[str, tuple[SubmissionState, float]] = {
        each.id: (each.chart, each.intended_at) for each in before.submissions
    }
    for each in after.submissions:
        chart, intended_at = charts.get(each.id, (each.chart, -1.0))
        if intended_at != each.intended_at:  # new, or a registration that is wanted again under the same id
            to.add_to_counter("submissions", each.kind, "intended")
            chart = "intended"
        if chart != each.chart:
            to.add_to_counter("submissions", each.kind, each.chart)
            _count_settled(to, each, chart, scale)


def _count_settled(to: EventCounts, submission: Submission, chart: SubmissionState, scale: int) -> None:
    """Count a refusal or a confirmation, or undo one that a reorganisation dropped; `chart` is the state before."""
    if submission.chart == "refused":
        to.add_to_counter(
            "submissions_refused", submission.kind, labels.known_or_other(submission.code, labels.REFUSAL_CODES)
        )
    elif "confirmed" in (submission.chart, chart):
        sign = 1 if submission.chart == "confirmed" else -1
        to.reward_confirmed += sign * submission.reward / scale


Reading = tuple[str, tuple[str, ...], float]  # name without its prefix, label values, value


class GaugeSpec(NamedTuple):
    """One gauge: its name, help text and labels."""

    text: str
    labels: tuple[str, ...] = ()


GAUGES: dict[str, GaugeSpec] = {
    "build_info": GaugeSpec("Version of the program that serves these metrics; always 1.", ("version",)),
    "node_info": GaugeSpec("The node: its swarm, role and daemon's version; always 1.", ("swarm", "role", "version")),
    "daemon_up": GaugeSpec("1 while the daemon answers."),
    "start_time_seconds": GaugeSpec("When the daemon started, POSIX seconds; counters begin then."),
    "health": GaugeSpec("1 if the node is well to this depth: live, ready, productive.", ("depth",)),
    "layer_healthy": GaugeSpec("1 if a layer of the status is well.", ("layer",)),
    "peers": GaugeSpec("Peers that the network worker is connected to."),
    "isolated": GaugeSpec("1 if the node is connected but cut off from its coordinator or members."),
    "members": GaugeSpec("Members of the swarm that are present, as the coordinator counts; on a coordinator only."),
    "reports": GaugeSpec("Reports in for the open stage; on a coordinator only."),
    "reports_expected": GaugeSpec("Reports that the open stage waits for; on a coordinator only."),
    "members_not_waited_for": GaugeSpec(
        "Present members that the open stage does not wait for.",
        ("kind",),
    ),
    "round": GaugeSpec("Round that the swarm is in."),
    "stage": GaugeSpec("Stage that the swarm is in."),
    "stage_limit_seconds": GaugeSpec("Longest time that the open stage may take, by its deadline."),
    "deadline_overdue_seconds": GaugeSpec("Time since the open stage's deadline passed with nothing newer announced."),
    "swarm_finished": GaugeSpec("1 when the swarm has run its rounds."),
    "reward_earned": GaugeSpec("Sum of the node's own rewards in its log."),
    "reward_last": GaugeSpec("Reward of the last trained stage."),
    "nothing_to_learn": GaugeSpec("1 for the cause of nothing to learn in the last trained stage, else 0.", ("cause",)),
    "stage_bottleneck": GaugeSpec("1 for the bottleneck of the last trained stage, else 0.", ("cause",)),
    "held_out_accuracy_ratio": GaugeSpec("Accuracy on held-out questions, as measured last."),
    "tasks_fallen": GaugeSpec(
        "Tasks whose held-out accuracy has fallen, four at most, by how they are drawn: more, as-ever.", ("drawn",)
    ),
    "task_kept_lowest_ratio": GaugeSpec(
        "Smallest share that a task keeps of its best held-out accuracy; 1 if none has fallen."
    ),
    "stage_trained_timestamp_seconds": GaugeSpec("When a stage was last trained since the daemon started."),
    "submission_confirmed_timestamp_seconds": GaugeSpec(
        "When a submission was last confirmed since the daemon started, by kind.", ("kind",)
    ),
    "tokens_per_second": GaugeSpec("Completion tokens per second in the stage being trained."),
    "worker_up": GaugeSpec("1 while a worker's process runs and answers.", ("worker",)),
    "worker_silent_seconds": GaugeSpec("Time since a worker's last sign of life.", ("worker",)),
    "worker_memory_bytes": GaugeSpec("A worker's anonymous pages and swap.", ("worker",)),
    "trainer_memory_limit_bytes": GaugeSpec("training.memory_bytes_max; absent for none."),
    "daemon_resident_memory_bytes": GaugeSpec("Resident memory of the daemon."),
    "log_events": GaugeSpec("Events in the log, those removed by retention included."),
    "log_bytes": GaugeSpec("Size of the event log."),
    "log_segments": GaugeSpec("Files of the event log."),
    "log_limit_bytes": GaugeSpec("storage.log_bytes_max: old segments are removed there."),
    "blob_bytes": GaugeSpec("Size of the rollouts kept."),
    "blob_limit_bytes": GaugeSpec("storage.blob_bytes_max: old rollouts are removed there."),
    "checkpoint_bytes": GaugeSpec("Size of the checkpoints."),
    "disk_free_bytes": GaugeSpec("Free space on the data directory's file system."),
    "disk_free_limit_bytes": GaugeSpec("storage.free_bytes_min: below it the node pauses."),
    "chain_head_block": GaugeSpec("The chain's newest block, as the endpoint says."),
    "chain_read_block": GaugeSpec("The newest block that the node has read."),
    "chain_lag_seconds": GaugeSpec("Age of the newest block when it was read."),
    "chain_registered": GaugeSpec("1 when the contract knows this peer."),
    "chain_balance_coins": GaugeSpec("Coins of the account that submits; absent while they are not known."),
    "chain_rounds_paid": GaugeSpec("Rounds that these coins pay for at the present price of gas; 1000000 at most."),
    "chain_day_spent_coins": GaugeSpec("Most coins that transactions signed today (UTC) may cost."),
    "chain_day_budget_coins": GaugeSpec("chain.fees.day_coins_max; absent for none."),
    "submissions_open": GaugeSpec("Open submissions: waiting, sent, or in a block.", ("state",)),
    "submission_oldest_seconds": GaugeSpec("Age of the next submission in the queue; absent if there is none."),
}


def make_gauges(readings: Iterable[Reading]) -> Iterator[Metric]:
    """Gauge families in the order of the table, without those that have no value."""
    found: dict[str, GaugeMetricFamily] = {}
    for name, values, value in readings:
        if name not in found:
            found[name] = GaugeMetricFamily(f"swarmd_{name}", GAUGES[name].text, labels=GAUGES[name].labels)
        found[name].add_metric(values, float(value))
    return (found[name] for name in GAUGES if name in found)


def read_status(status: Status) -> Iterator[Reading]:
    """Gauges read from a status."""
    yield "node_info", (status.swarm, status.role, status.process.version), 1
    yield "daemon_up", (), status.source == "daemon"
    for name, layer in status.layers.items():
        yield "layer_healthy", (name,), layer.healthy
    yield "daemon_resident_memory_bytes", (), status.process.rss_bytes
    yield "peers", (), status.network.peers
    yield "isolated", (), status.network.state == "isolated"
    yield from _read_round(status)
    yield from _read_rewards(status)
    if status.training.doing:
        yield "tokens_per_second", (), status.training.figures.get("tokens_per_s", 0.0)
    for kind, worker in _list_workers(status):
        yield "worker_up", (kind,), bool(worker.answering)
        if worker.silent_s is not None:
            yield "worker_silent_seconds", (kind,), worker.silent_s
    yield "log_events", (), status.log.next_seq
    if status.chain is not None:
        yield from _read_chain(status.chain)
    if status.submissions is not None:
        yield from _read_submissions(status.submissions)


def _read_round(status: Status) -> Iterator[Reading]:
    if status.round.round >= 0:
        yield "round", (), status.round.round
        yield "stage", (), status.round.stage
    yield "deadline_overdue_seconds", (), status.round.overdue_s
    view = status.coordinator
    if view is not None:
        yield "members", (), view.members
        yield "reports", (), view.reports
        yield "reports_expected", (), view.expected
        for kind in labels.MEMBER_KINDS:
            yield "members_not_waited_for", (kind,), view.not_waited_for.get(kind, 0)


def _read_rewards(status: Status) -> Iterator[Reading]:
    yield "reward_earned", (), status.reward_total
    if status.rewards:
        yield "reward_last", (), status.rewards[-1].reward
    if status.times is not None:
        for name in labels.BOTTLENECKS:
            yield "stage_bottleneck", (name,), name == status.times.bottleneck
    if status.learning is not None:
        for cause in labels.FLAT_CAUSES:
            yield "nothing_to_learn", (cause,), cause == status.learning.cause
    held_out = [each.held_out for each in status.rewards if each.held_out is not None]
    if held_out:
        yield "held_out_accuracy_ratio", (), held_out[-1]
        yield from _read_skills(find_fallen_skills(status))


def _read_skills(fallen: Sequence[Skill]) -> Iterator[Reading]:
    """Gauges over all tasks together: operators choose task names, so a label by name would be unbounded."""
    more = sum(skill.weight > 1 for skill in fallen)
    for drawn, count in zip(labels.DRAWN, (more, len(fallen) - more), strict=True):
        yield "tasks_fallen", (drawn,), count
    kept = [skill.held_out / skill.best for skill in fallen if skill.best > 0]
    yield "task_kept_lowest_ratio", (), min(kept, default=1.0)


def _list_workers(status: Status) -> Iterator[tuple[str, WorkerStatus]]:
    yield "network", status.network.worker
    yield "trainer", status.training.worker
    if status.chain is not None:
        yield "chain", status.chain.worker


def _read_chain(chain: ChainStatus) -> Iterator[Reading]:
    if chain.head >= 0:
        yield "chain_head_block", (), chain.head
    if chain.block >= 0:
        yield "chain_read_block", (), chain.block
    if chain.lag_s is not None:
        yield "chain_lag_seconds", (), chain.lag_s
    yield "chain_registered", (), chain.registered
    if chain.balance_coins is not None and chain.rounds_paid is not None:
        yield "chain_balance_coins", (), chain.balance_coins
        yield "chain_rounds_paid", (), chain.rounds_paid
    if chain.day_spent_coins is not None:
        yield "chain_day_spent_coins", (), chain.day_spent_coins
    if chain.day_coins_max is not None:
        yield "chain_day_budget_coins", (), chain.day_coins_max


def _read_submissions(submissions: SubmissionsStatus) -> Iterator[Reading]:
    counts = (submissions.waiting, submissions.sent, submissions.included)
    for state, count in zip(labels.OPEN_STATES, counts, strict=True):
        yield "submissions_open", (state,), count
    if submissions.oldest_s is not None:
        yield "submission_oldest_seconds", (), submissions.oldest_s


def read_progress(progress: NodeProgress) -> Iterator[Reading]:
    if progress.started_at:
        yield "start_time_seconds", (), progress.started_at
    if progress.trained_at:
        yield "stage_trained_timestamp_seconds", (), progress.trained_at
    for kind, at in progress.confirmed_at.items():
        if kind in labels.SUBMISSION_KINDS:
            yield "submission_confirmed_timestamp_seconds", (kind,), at
    if progress.stage_s:
        yield "stage_limit_seconds", (), progress.stage_s
    if progress.stage_s or progress.finished:
        yield "swarm_finished", (), progress.finished


def read_disk(disk: DiskUsage, config: Config | None) -> Iterator[Reading]:
    yield "log_bytes", (), disk.log
    yield "log_segments", (), disk.segments
    yield "blob_bytes", (), disk.blobs
    yield "checkpoint_bytes", (), disk.checkpoints
    if disk.free is not None:
        yield "disk_free_bytes", (), disk.free
    if config is None:
        return
    bounds = {
        "log_limit_bytes": config.storage.log_bytes_max,
        "blob_limit_bytes": config.storage.blob_bytes_max,
        "disk_free_limit_bytes": config.storage.free_bytes_min,
        "trainer_memory_limit_bytes": config.training.memory_bytes_max,
    }
    for name, bound in bounds.items():
        if bound:
            yield name, (), bound


def read_memory(status: Status, processes: Path = Path("/proc")) -> Iterator[Reading]:
    """Gauges of the workers' memory from /proc; none for what cannot be read."""
    if status.source != "daemon":
        return
    for name, worker in _list_workers(status):
        held = _read_held_bytes(processes / str(worker.pid) / "status") if worker.pid > 0 else None
        if held is not None:
            yield "worker_memory_bytes", (name,), held


def _read_held_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    parts = [line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))]
    return sum(int(part[1]) for part in parts if len(part) == 3 and part[1].isdigit()) * 1024


DISK_LOOK_S = 15.0  # least time between two measurements of the disk
NOTIFICATIONS = CounterSpec(
    "Notifications, by sender and outcome.",
    {"sender": labels.SENDERS, "outcome": labels.OUTCOMES},
)
ACCEPT_CHARACTERS_MAX = 1024  # of a client's Accept header; a longer or malformed one is ignored


class Metrics:
    """Counts events and renders the counters together with the gauges of a status.

    The caller folds the log from its last `NodeStarted` on, or calls `restart` with the state that its log begins with
    and applies every event from there. A later `NodeStarted` resets the counts.

    Args:
        paths: the node's data directory, for sizes on disk; None to leave these out.
        config: the node's, for its limits; None if unknown.
        clock: returns POSIX seconds.
    """

    def __init__(
        self,
        paths: NodeDirectory | None = None,
        config: Config | None = None,
        clock: TimeSource = time.time,
    ) -> None:
        self._paths = paths
        self._config = config
        self._clock = clock
        self.outcomes = EventCounts()
        self._disk: tuple[float, DiskUsage] | None = None
        self._notified: dict[tuple[str, tuple[str, ...]], float] = {}

    @property
    def progress(self) -> NodeProgress:
        """The node's progress in this run, for `swarmd.observe.status.check_productive`."""
        return self.outcomes.progress

    def current_time(self) -> float:
        """POSIX seconds, by the clock of these metrics."""
        return self._clock()

    def restart(self, base: FoldBase) -> None:
        """Reset all counts to those of a log that begins with this state."""
        self.outcomes = EventCounts(make_progress(base.state))

    def apply(self, applied: AppliedEvent) -> None:
        """Count an event. Does not fail on any event that a log may hold."""
        if isinstance(applied.event, events.NodeStarted):
            self.outcomes = EventCounts(NodeProgress(started_at=applied.at))
        self.outcomes.apply(applied)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.outcomes)

    def restore(self, kept: bytes | memoryview) -> None:
        """Restore the counts from what `encode` returned. Raises msgspec.DecodeError if the bytes are not valid."""
        self.outcomes = msgspec.msgpack.decode(kept, type=EventCounts)

    def count_notification(self, sender: str, sent: bool) -> None:
        """Count a message sent or failed; `sender` is one of `swarmd.observe.labels.SENDERS`."""
        key = "notifications", (sender, labels.OUTCOMES[not sent])
        self._notified[key] = self._notified.get(key, 0.0) + 1

    def render(self, status: Status | None, accept: str = "") -> tuple[bytes, str]:
        """Render the metrics as text; returns the body and its content type. May read the disk: not for an event loop.

        Args:
            status: the node's, None if nothing is known of it.
            accept: the client's Accept header; OpenMetrics if it asks for that, else Prometheus' text format 0.0.4.
        """
        try:
            encoder, content_type = choose_encoder(accept if len(accept) <= ACCEPT_CHARACTERS_MAX else "")
        except (TypeError, ValueError):  # a malformed version
            encoder, content_type = choose_encoder("")
        families_now = tuple(self.metric_families(status))
        return encoder(SimpleNamespace(collect=lambda: families_now)), content_type

    def metric_families(self, status: Status | None) -> Iterator[Metric]:
        """All metric families: gauges, then counters."""
        yield from make_gauges(self._read_gauges(status))
        yield from self.outcomes.collect()
        yield make_counter("notifications", NOTIFICATIONS, self._notified)

    def _read_gauges(self, status: Status | None) -> Iterator[Reading]:
        now = self._clock()
        if status is not None and now - status.at > STALE_S:
            status = None  # too old to describe the present, and there is no newer one
        yield "build_info", (__version__,), 1
        depths = (check_live(status), check_ready(status), check_productive(status, self.progress))
        for depth, health in zip(labels.DEPTHS, depths, strict=True):
            yield "health", (depth,), health.ok
        yield from read_progress(self.progress)
        if self._paths is not None:
            yield from read_disk(self._measure_disk_if_due(self._paths, now), self._config)
        if status is None:
            yield "daemon_up", (), 0.0
            return
        yield from read_status(status)
        if self._paths is not None:
            yield from read_memory(status)

    def _measure_disk_if_due(self, paths: NodeDirectory, now: float) -> DiskUsage:
        known = self._disk
        if known is not None and 0 <= now - known[0] < DISK_LOOK_S:
            return known[1]
        disk = measure_disk(paths)
        self._disk = (now, disk)
        return disk
