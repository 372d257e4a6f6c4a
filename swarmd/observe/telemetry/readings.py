"""Figures that are read off a node when it is asked for them, as opposed to those counted event by event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from swarmd import __version__
from swarmd.core.values import Skill
from swarmd.observe.disk import DiskUsage
from swarmd.observe.health import Health, NodeProgress
from swarmd.observe.layers import Layer, LayerName, WorkerStatus
from swarmd.observe.onchain import ChainStatus, SubmissionsStatus
from swarmd.observe.status import Status, last_fallen
from swarmd.observe.telemetry import labels

Reading = tuple[str, tuple[str, ...], float]  # name without its prefix, label values, value


class ConfiguredLimits(msgspec.Struct, frozen=True):
    """Bounds that the node's configuration sets; 0 for none."""

    log_bytes: int = 0
    blob_bytes: int = 0
    free_bytes: int = 0
    trainer_bytes: int = 0


class Gauge(NamedTuple):
    """One gauge: its name, help text and labels."""

    text: str
    labels: tuple[str, ...] = ()


GAUGES: dict[str, Gauge] = {
    "build_info": Gauge("Version of the program that serves these figures; always 1.", ("version",)),
    "node_info": Gauge("The node: its swarm, role and daemon's version; always 1.", ("swarm", "role", "version")),
    "daemon_up": Gauge("1 while the daemon answers."),
    "start_time_seconds": Gauge("When the daemon started, POSIX seconds; counters begin then."),
    "health": Gauge("1 where the node is well to this depth: live, ready, productive.", ("depth",)),
    "layer_healthy": Gauge("1 where a layer of the status is well.", ("layer",)),
    "peers": Gauge("Peers that the network worker is connected to."),
    "isolated": Gauge("1 where the node is connected and cut off from its coordinator, or this from its members."),
    "members": Gauge("Members of the swarm that are present, as the coordinator counts; on a coordinator only."),
    "reports": Gauge("Reports in for the open stage; on a coordinator only."),
    "reports_expected": Gauge("Reports that the open stage waits for; on a coordinator only."),
    "members_not_waited_for": Gauge(
        "Present members that the open stage does not wait for: they, or for newcomers others like them, were silent.",
        ("kind",),
    ),
    "round": Gauge("Round that the swarm is in."),
    "stage": Gauge("Stage that the swarm is in."),
    "stage_limit_seconds": Gauge("Longest the stage that is open may take, by its deadline."),
    "deadline_overdue_seconds": Gauge("Time since the open stage's deadline passed with nothing newer announced."),
    "swarm_finished": Gauge("1 when the swarm has run its rounds."),
    "reward_earned": Gauge("Sum of the node's own rewards, over all lives of its log."),
    "reward_last": Gauge("Reward of the stage trained last."),
    "held_out_accuracy_ratio": Gauge("Accuracy on held-out questions, as measured last."),
    "tasks_fallen": Gauge(
        "Tasks whose held-out accuracy has fallen, four at most, by how they are drawn: more, as-ever.", ("drawn",)
    ),
    "task_kept_lowest_ratio": Gauge(
        "Least that a task has left of its best held-out accuracy; 1 where none has fallen."
    ),
    "stage_trained_timestamp_seconds": Gauge("When a stage was trained last, in this life of the daemon."),
    "submission_confirmed_timestamp_seconds": Gauge(
        "When a submission was confirmed last, in this life, by kind.", ("kind",)
    ),
    "tokens_per_second": Gauge("Completion tokens per second in the stage being trained."),
    "worker_up": Gauge("1 while a worker's process runs and answers.", ("worker",)),
    "worker_silent_seconds": Gauge("Time since a worker's last sign of life.", ("worker",)),
    "worker_memory_bytes": Gauge("Memory that only a worker's end gives back: anonymous pages and swap.", ("worker",)),
    "trainer_memory_limit_bytes": Gauge("training.memory_bytes_max; absent for none."),
    "daemon_resident_memory_bytes": Gauge("Resident memory of the daemon."),
    "log_events": Gauge("Events in the log, those removed by retention included."),
    "log_bytes": Gauge("Size of the event log."),
    "log_segments": Gauge("Files of the event log."),
    "log_limit_bytes": Gauge("storage.log_bytes_max: old segments are removed there."),
    "blob_bytes": Gauge("Size of the rollouts kept."),
    "blob_limit_bytes": Gauge("storage.blob_bytes_max: old rollouts are removed there."),
    "checkpoint_bytes": Gauge("Size of the checkpoints."),
    "disk_free_bytes": Gauge("Room on the data directory's file system."),
    "disk_free_limit_bytes": Gauge("storage.free_bytes_min: below it the node pauses."),
    "chain_head_block": Gauge("The chain's newest block, as the endpoint says."),
    "chain_read_block": Gauge("The newest block that the node has read."),
    "chain_lag_seconds": Gauge("Age of the newest block when it was read."),
    "chain_registered": Gauge("1 when the contract knows this peer."),
    "chain_balance_coins": Gauge("Coins of the account that submits; absent while they are not known."),
    "chain_rounds_paid": Gauge("Rounds that these coins pay for at the present price of gas; 1000000 at most."),
    "chain_day_spent_coins": Gauge("Coins that what was signed today (UTC) may cost at most."),
    "chain_day_budget_coins": Gauge("chain.fees.day_coins_max: more is not signed for in a day; absent for none."),
    "submissions_open": Gauge("Submissions that are not settled: waiting, sent, or in a block.", ("state",)),
    "submission_oldest_seconds": Gauge("How long ago the submission was wanted whose turn it is; absent for none."),
}


def families(readings: Iterable[Reading]) -> Iterator[Metric]:
    """Gauges in the order of the table; a name without a value is left out."""
    found: dict[str, GaugeMetricFamily] = {}
    for name, values, value in readings:
        if name not in found:
            found[name] = GaugeMetricFamily(f"swarmd_{name}", GAUGES[name].text, labels=GAUGES[name].labels)
        found[name].add_metric(values, float(value))
    return (found[name] for name in GAUGES if name in found)


def read_build() -> Iterator[Reading]:
    """What is known without any node."""
    yield "build_info", (__version__,), 1


def read_status(status: Status) -> Iterator[Reading]:
    """Gauges read off a status."""
    yield "node_info", (status.swarm, status.role, status.process.version), 1
    yield "daemon_up", (), status.source == "daemon"
    yield from _layers(status)
    yield "daemon_resident_memory_bytes", (), status.process.rss_bytes
    yield "peers", (), status.network.peers
    yield "isolated", (), status.network.state == "isolated"
    yield from _round(status)
    yield from _rewards(status)
    if status.training.doing:
        yield "tokens_per_second", (), status.training.figures.get("tokens_per_s", 0.0)
    for name, worker in _workers(status):
        yield from _worker(name, worker)
    yield "log_events", (), status.log.next_seq
    if status.chain is not None:
        yield from _chain(status.chain)
    if status.submissions is not None:
        yield from _submissions(status.submissions)


def _layers(status: Status) -> Iterator[Reading]:
    layers: tuple[tuple[LayerName, Layer | None], ...] = (
        ("process", status.process),
        ("network", status.network),
        ("training", status.training),
        ("round", status.round),
        ("chain", status.chain),
        ("submissions", status.submissions),
    )
    for name, layer in layers:
        if layer is not None:
            yield "layer_healthy", (name,), layer.healthy


def _round(status: Status) -> Iterator[Reading]:
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


def _rewards(status: Status) -> Iterator[Reading]:
    yield "reward_earned", (), status.reward_total
    if status.rewards:
        yield "reward_last", (), status.rewards[-1].reward
    held_out = [each.held_out for each in status.rewards if each.held_out is not None]
    if held_out:
        yield "held_out_accuracy_ratio", (), held_out[-1]
        yield from _skills(last_fallen(status))


def _skills(fallen: Sequence[Skill]) -> Iterator[Reading]:
    """Of all tasks together: a task's name is the operator's to choose, and would be a series for each."""
    more = sum(skill.weight > 1 for skill in fallen)
    for drawn, count in zip(labels.DRAWN, (more, len(fallen) - more), strict=True):
        yield "tasks_fallen", (drawn,), count
    kept = [skill.held_out / skill.best for skill in fallen if skill.best > 0]
    yield "task_kept_lowest_ratio", (), min(kept, default=1.0)


def _workers(status: Status) -> Iterator[tuple[str, WorkerStatus]]:
    yield "network", status.network.worker
    yield "trainer", status.training.worker
    if status.chain is not None:
        yield "chain", status.chain.worker


def _worker(name: str, worker: WorkerStatus) -> Iterator[Reading]:
    yield "worker_up", (name,), bool(worker.answering)
    if worker.silent_s is not None:
        yield "worker_silent_seconds", (name,), worker.silent_s


def _chain(chain: ChainStatus) -> Iterator[Reading]:
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


def _submissions(submissions: SubmissionsStatus) -> Iterator[Reading]:
    counts = (submissions.waiting, submissions.sent, submissions.included)
    for state, count in zip(labels.OPEN_STATES, counts, strict=True):
        yield "submissions_open", (state,), count
    if submissions.oldest_s is not None:
        yield "submission_oldest_seconds", (), submissions.oldest_s


def read_progress(progress: NodeProgress) -> Iterator[Reading]:
    """What the node got done in its present life."""
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


def read_health(depths: Iterable[tuple[str, Health]]) -> Iterator[Reading]:
    """Gauges of health: live, ready, earning."""
    for depth, health in depths:
        yield "health", (depth,), health.ok


def read_disk(disk: DiskUsage, limits: ConfiguredLimits) -> Iterator[Reading]:
    """What the data directory takes, and how much it may."""
    yield "log_bytes", (), disk.log
    yield "log_segments", (), disk.segments
    yield "blob_bytes", (), disk.blobs
    yield "checkpoint_bytes", (), disk.checkpoints
    if disk.free is not None:
        yield "disk_free_bytes", (), disk.free
    bounds = {
        "log_limit_bytes": limits.log_bytes,
        "blob_limit_bytes": limits.blob_bytes,
        "disk_free_limit_bytes": limits.free_bytes,
        "trainer_memory_limit_bytes": limits.trainer_bytes,
    }
    for name, bound in bounds.items():
        if bound:
            yield name, (), bound


def read_memory(status: Status, processes: Path = Path("/proc")) -> Iterator[Reading]:
    """What the workers hold, as this machine's kernel says; nothing where it cannot be told."""
    if status.source != "daemon":
        return
    for name, worker in _workers(status):
        held = _held_bytes(processes / str(worker.pid) / "status") if worker.pid > 0 else None
        if held is not None:
            yield "worker_memory_bytes", (name,), held


def _held_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    parts = [line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))]
    return sum(int(part[1]) for part in parts if len(part) == 3 and part[1].isdigit()) * 1024
