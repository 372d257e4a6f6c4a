"""What came of a node's work since its daemon started, counted event by event.

All of it is a function of the events from the last `NodeStarted` on: whoever folds them gets the same figures, so a
server that is restarted goes on where it was. With the next `NodeStarted` all counts begin at 0, as Prometheus expects
of a process that was restarted; where the log was cut behind that event, they begin at 0 where it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from swarmd.core.applied import Applied
from swarmd.core.chart_types import RoundState, SubmissionState
from swarmd.core.events import (
    ChainReorged,
    CommandFailed,
    Envelope,
    Equivocated,
    EventBase,
    ModelPushed,
    NodeStarted,
    ReportPublished,
    StageTrained,
    SubmissionConfirmed,
    TrainingCancelled,
    WeightsAdopted,
    WeightsFetched,
    WeightsRefused,
    WorkerExited,
    WorkerStartFailed,
)
from swarmd.core.node.workers import LEAVING
from swarmd.core.state import State, Submission
from swarmd.observe.health import NodeProgress
from swarmd.observe.telemetry import labels

PART_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)  # bounds of buckets
# A part of a stage took what the node spent in the first state, where the second one followed.
_PARTS: dict[tuple[RoundState, RoundState], str] = {
    ("round.gathering", "round.training"): "gather",
    ("round.training", "round.publishing"): "train",
    ("round.publishing", "round.submitting"): "publish",
    ("round.publishing", "round.settling"): "publish",
    ("round.submitting", "round.settling"): "submit",
}


class Count(NamedTuple):
    """One counter: its name, help text and labels."""

    text: str
    labels: Mapping[str, tuple[str, ...]] = {}  # the values that each label may have


COUNTERS: Mapping[str, Count] = {
    "rounds_joined": Count("Rounds this node took up."),
    "rounds_skipped": Count("Rounds this node took no part in, by cause.", {"cause": labels.SKIP_CAUSES}),
    "stages_trained": Count("Stages trained."),
    "stages_cancelled": Count("Stages whose training was given up for a newer one."),
    "generated_tokens": Count("Completion tokens generated."),
    "reports_published": Count("Signed reports of a stage that are in the DHT."),
    "submissions": Count(
        "Submissions to the contract that came into a state, by kind.",
        {"kind": labels.SUBMISSION_KINDS, "state": labels.SUBMISSION_STATES},
    ),
    "submissions_refused": Count(
        "Submissions that the contract will never take, by its error or swarmd's own word.",
        {"kind": labels.SUBMISSION_KINDS, "code": labels.REFUSAL_CODES},
    ),
    "submission_failures": Count(
        "Submissions that could not be made for now, by cause; they are tried again.", {"cause": labels.FAILURE_CAUSES}
    ),
    "worker_exits": Count(
        "Ends of worker processes, each followed by a restart unless permanent; orderly stops are not counted.",
        {"worker": labels.WORKERS, "cause": labels.EXIT_CAUSES},
    ),
    "records_rejected": Count(
        "Peers' records and groups that were refused, by reason.", {"reason": labels.REJECTION_REASONS}
    ),
    "equivocations": Count(
        "Peers found to have signed two different records for one place, by kind of record.",
        {"kind": labels.EQUIVOCATIONS},
    ),
    "tokens_set_aside": Count("Tokens of peers' right completions that were not learnt from."),
    "groups_passed_over": Count(
        "Peers' groups whose places in batches went to others, by reason.", {"reason": labels.PASSED_OVER}
    ),
    "payload_marks": Count("Peers whose right answers carry what hardly any other answer has; again in each stage."),
    "commands_failed": Count(
        "Commands that a worker could not carry out; most are given again.", {"command": labels.COMMANDS}
    ),
    "chain_reorgs": Count("Reorganisations of the chain."),
    "chain_reorged_blocks": Count("Blocks that reorganisations dropped."),
    "peer_weights": Count(
        "Peers' weights by what became of them: fetched, begun from, or why not.", {"outcome": labels.WEIGHTS}
    ),
    "peer_weights_bytes": Count("Bytes of peers' weights received."),
    "model_pushes": Count("Attempts to put the model on the Hub.", {"outcome": labels.OUTCOMES}),
}


class _KeptOutcomes(msgspec.Struct, array_like=True):
    """`Outcomes` as they are kept: counters above 0 with their labels' values; by part of a stage how many took so long
    as each bound of `PART_SECONDS`, or longer than all, and their seconds together."""

    counts: list[tuple[str, tuple[str, ...], float]]
    parts: list[tuple[str, list[float], float]]
    reward_confirmed: float
    progress: NodeProgress


class Outcomes:
    """Counts of one life of a daemon.

    Args:
        progress: where it stands when counting begins; by default nothing is known.

    Attributes:
        progress: what health is judged by besides the status.
    """

    def __init__(self, progress: NodeProgress | None = None) -> None:
        registry = self._registry = CollectorRegistry()
        self.progress = progress or NodeProgress()
        self._counters = {name: counter_of(name, count, registry) for name, count in COUNTERS.items()}
        self.part_seconds = Histogram(
            "swarmd_stage_part_seconds",
            "Wall-clock time that the parts of a stage took, where they came to their end.",
            ["part"],
            buckets=PART_SECONDS,
            registry=registry,
        )
        for part in labels.PARTS:
            self.part_seconds.labels(part)
        self.reward_confirmed = Gauge(
            "swarmd_reward_confirmed",
            "Sum of the rewards confirmed on the chain since the daemon started, in the unit they were earned in.",
            registry=registry,
        )

    def count(self, name: str, *values: str, by: int = 1) -> None:
        """Add to a counter of the table; a figure that makes no sense adds nothing."""
        counter = self._counters[name]
        (counter.labels(*values) if values else counter).inc(max(0, by))

    def collect(self) -> Iterable[Metric]:
        """What there is. The times at which this process made its counters are left out: they say nothing of a node."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

    def keep(self) -> bytes:
        """All that was counted."""
        counts: list[tuple[str, tuple[str, ...], float]] = []
        for name, counter in self._counters.items():
            for sample in next(iter(counter.collect())).samples:
                if sample.name.endswith("_total") and sample.value:
                    values = tuple(sample.labels[label] for label in COUNTERS[name].labels)
                    counts.append((name, values, sample.value))
        parts = [(part, *_of_histogram(self.part_seconds.labels(part))) for part in labels.PARTS]
        reward = next(iter(self.reward_confirmed.collect())).samples[0].value
        return msgspec.msgpack.encode(_KeptOutcomes(counts, parts, reward, self.progress))

    @classmethod
    def resumed(cls, kept: bytes | memoryview) -> Outcomes:
        """What was kept. Raises msgspec.DecodeError, ValueError or LookupError where these are not its bytes."""
        read = msgspec.msgpack.decode(kept, type=_KeptOutcomes)
        outcomes = cls(read.progress)
        for name, values, value in read.counts:
            counter = outcomes._counters[name]
            (counter.labels(*values) if values else counter).inc(value)
        for part, counts, seconds in read.parts:
            _fill_histogram(outcomes.part_seconds.labels(part), counts, seconds)
        outcomes.reward_confirmed.set(read.reward_confirmed)
        return outcomes

    def apply(self, applied: Applied) -> None:
        """Count an event."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        _count_changes(self, envelope.at, before, after)
        rule = _RULES.get(type(envelope.event))
        if rule is not None:
            rule(self, envelope.event, before, after)
        self._note_progress(envelope, after)

    def _note_progress(self, envelope: Envelope, after: State) -> None:
        progress, clock = self.progress, after.clock
        if clock is not None:
            progress.finished = clock.final
            if not clock.final:  # the final mark has no time of its own
                progress.stage_s = clock.deadline_at - clock.opened_at
        if isinstance(envelope.event, StageTrained):
            progress.trained_at = envelope.at
        elif isinstance(envelope.event, SubmissionConfirmed):
            kind = envelope.event.submission.partition("/")[0]
            progress.confirmed_at = {**progress.confirmed_at, kind: envelope.at}  # anew: other threads read it
        elif isinstance(envelope.event, NodeStarted):
            progress.submits = _submits(after)


def progress_of(state: State) -> NodeProgress:
    """What a state tells of a life whose beginning the log does not have any more.

    When it trained last is not among it: the last change of state, which is later by a stage at most, counts for that.
    """
    confirmed: dict[str, float] = {each.kind: each.since for each in state.submissions if each.chart == "confirmed"}
    trained = state.done >= (0, 0) and state.since > state.started_at
    return NodeProgress(
        started_at=state.started_at,
        trained_at=state.since if trained else 0.0,
        confirmed_at=confirmed,
        submits=_submits(state),
    )


def _submits(state: State) -> bool:
    chain = state.settings.chain if state.settings else None
    return chain is not None and chain.sends


def counter_of(name: str, count: Count, registry: CollectorRegistry) -> Counter:
    """A counter with every series at 0, so that the first event is an increase."""
    counter = Counter(f"swarmd_{name}", count.text, list(count.labels), registry=registry)
    for values in product(*count.labels.values()) if count.labels else ():
        counter.labels(*values)
    return counter


def _of_histogram(histogram: Histogram) -> tuple[list[float], float]:
    """How many observations lie in each bucket, and their sum; prometheus_client tells sums up to each bound alone."""
    return [bucket.get() for bucket in histogram._buckets], histogram._sum.get()


def _fill_histogram(histogram: Histogram, counts: list[float], total: float) -> None:
    """What `_of_histogram` told, in an empty histogram of the same buckets."""
    for bucket, count in zip(histogram._buckets, counts, strict=True):
        bucket.set(count)
    histogram._sum.set(total)


# --- what the states show ---


def _count_changes(to: Outcomes, at: float, before: State, after: State) -> None:
    to.count("rounds_joined", by=after.rounds_joined - before.rounds_joined)
    if before.skips is not after.skips and after.rounds_skipped > before.rounds_skipped:
        to.count("rounds_skipped", after.skips[-1].cause, by=after.rounds_skipped - before.rounds_skipped)
    part = _PARTS.get((before.chart, after.chart))
    if part is not None:
        to.part_seconds.labels(part).observe(max(0.0, at - before.since))
    if before.rejections is not after.rejections:
        _count_rejections(to, dict(before.rejections), after.rejections)
    if before.submissions is not after.submissions:
        _count_submissions(to, before, after)


def _count_rejections(to: Outcomes, before: dict[str, int], after: tuple[tuple[str, int], ...]) -> None:
    for reason, count in after:
        by = count - before.get(reason, 0)
        to.count("records_rejected", labels.known(reason, labels.REJECTION_REASONS), by=by)


def _count_submissions(to: Outcomes, before: State, after: State) -> None:
    chain = after.settings.chain if after.settings else None
    scale = chain.reward_scale if chain else 1
    charts: dict[str, tuple[SubmissionState, float]] = {
        each.id: (each.chart, each.intended_at) for each in before.submissions
    }
    for each in after.submissions:
        chart, intended_at = charts.get(each.id, (each.chart, -1.0))
        if intended_at != each.intended_at:  # a new one, or a registration that is wanted again under its id
            to.count("submissions", each.kind, "intended")
            chart = "intended"
        if chart != each.chart:
            to.count("submissions", each.kind, each.chart)
            _count_settled(to, each, chart, scale)


def _count_settled(to: Outcomes, submission: Submission, chart: SubmissionState, scale: int) -> None:
    """Count what was refused or confirmed, and take back what a reorganisation dropped; `chart` is the one before."""
    if submission.chart == "refused":
        to.count("submissions_refused", submission.kind, labels.known(submission.code, labels.REFUSAL_CODES))
    elif "confirmed" in (submission.chart, chart):
        sign = 1 if submission.chart == "confirmed" else -1
        to.reward_confirmed.inc(sign * submission.reward / scale)


# --- what an event says itself ---


def _on_stage_trained(to: Outcomes, event: StageTrained, before: State, after: State) -> None:
    to.count("stages_trained")
    to.count("generated_tokens", by=event.tokens)
    to.count("tokens_set_aside", by=sum(each.held for each in event.set_aside))
    to.count("groups_passed_over", "share", by=sum(each.over_share for each in event.set_aside))
    to.count("groups_passed_over", "little", by=sum(each.of_little for each in event.set_aside))
    to.count("payload_marks", by=sum(bool(each.mark) for each in event.set_aside))


def _on_equivocated(to: Outcomes, event: Equivocated, before: State, after: State) -> None:
    if before.equivocations is not after.equivocations:  # else it was known, and is told again
        to.count("equivocations", event.kind)


def _on_worker_exited(to: Outcomes, event: WorkerExited, before: State, after: State) -> None:
    if before.chart not in LEAVING:
        to.count("worker_exits", event.worker, labels.exit_cause(event))


def _on_worker_start_failed(to: Outcomes, event: WorkerStartFailed, before: State, after: State) -> None:
    to.count("worker_exits", event.worker, labels.exit_cause(event))


def _on_command_failed(to: Outcomes, event: CommandFailed, before: State, after: State) -> None:
    kind = labels.command_of(event.command)
    to.count("commands_failed", kind)
    if kind in ("submit", "broadcast"):
        to.count("submission_failures", labels.failure_cause(event.reason))


def _on_chain_reorged(to: Outcomes, event: ChainReorged, before: State, after: State) -> None:
    to.count("chain_reorgs")
    to.count("chain_reorged_blocks", by=event.depth)


def _on_model_pushed(to: Outcomes, event: ModelPushed, before: State, after: State) -> None:
    to.count("model_pushes", labels.OUTCOMES[bool(event.error)])


def _on_weights_fetched(to: Outcomes, event: WeightsFetched, before: State, after: State) -> None:
    to.count("peer_weights", "fetched")
    to.count("peer_weights_bytes", by=event.received_bytes)


_RULES: dict[type[EventBase], Callable[[Outcomes, Any, State, State], None]] = {
    StageTrained: _on_stage_trained,
    TrainingCancelled: lambda to, *_: to.count("stages_cancelled"),
    ReportPublished: lambda to, *_: to.count("reports_published"),
    Equivocated: _on_equivocated,
    WorkerExited: _on_worker_exited,
    WorkerStartFailed: _on_worker_start_failed,
    CommandFailed: _on_command_failed,
    ChainReorged: _on_chain_reorged,
    ModelPushed: _on_model_pushed,
    WeightsFetched: _on_weights_fetched,
    WeightsAdopted: lambda to, *_: to.count("peer_weights", "adopted"),
    WeightsRefused: lambda to, event, *_: to.count("peer_weights", event.cause),
}
