"""A node's metrics, for Prometheus and OpenMetrics: outcomes counted from its events, and readings of how it is now.

Every name begins with `swarmd_` and stands in docs/MONITORING.md. No label has a value of a peer's, a provider's or a
file's making (`swarmd.observe.telemetry.labels`), so the number of series has a bound, and no secret gets in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from swarmd.config import Config
from swarmd.core.applied import Applied
from swarmd.core.events import NodeStarted
from swarmd.core.state import State
from swarmd.observe.disk import DiskUsage, measure_disk
from swarmd.observe.health import STALE_S, NodeProgress, live, productive, ready
from swarmd.observe.status import Status
from swarmd.observe.telemetry import labels, readings
from swarmd.observe.telemetry.outcomes import Count, Outcomes, counter_of, progress_of
from swarmd.observe.telemetry.readings import ConfiguredLimits
from swarmd.paths import NodeDirectory
from swarmd.worker.runtime import TimeSource

DISK_LOOK_S = 15.0  # at most one look at the disk in so long, however often the figures are asked for
NOTIFICATIONS = Count(
    "Messages about the node's health, by how they were sent and what came of it.",
    {"sender": labels.SENDERS, "outcome": labels.OUTCOMES},
)
ACCEPT_CHARACTERS_MAX = 1024  # of a client's Accept header; a longer one counts as none, as does nonsense


class Metrics:
    """Counts outcomes and renders them, together with what the status says.

    The caller folds the log from its last `NodeStarted` on, or calls `begin` with the state that its log begins with,
    and hands over every event from there; a later one begins the counts anew.

    Args:
        paths: the node's data directory, for sizes on disk; None for none.
        limits: what its configuration allows.
        clock: POSIX seconds.
    """

    def __init__(
        self,
        paths: NodeDirectory | None = None,
        limits: ConfiguredLimits | None = None,
        clock: TimeSource = time.time,
    ) -> None:
        self._paths = paths
        self._limits = limits or ConfiguredLimits()
        self._clock = clock
        self._outcomes = Outcomes()
        self._disk: tuple[float, DiskUsage] | None = None
        self._own = CollectorRegistry()
        self._notifications = counter_of("notifications", NOTIFICATIONS, self._own)

    @property
    def progress(self) -> NodeProgress:
        """What the node got done in its present life, for `swarmd.observe.health.productive`."""
        return self._outcomes.progress

    def now(self) -> float:
        """POSIX seconds, by the clock that these figures go by."""
        return self._clock()

    def begin(self, state: State) -> None:
        """Forget all that was counted: the log begins with this state."""
        self._outcomes = Outcomes(progress_of(state))

    def apply(self, applied: Applied) -> None:
        """Count an event. Never fails on an event that a log may hold."""
        if isinstance(applied.event, NodeStarted):
            self._outcomes = Outcomes(NodeProgress(started_at=applied.at))
        self._outcomes.apply(applied)

    def keep(self) -> bytes:
        """All that was counted of the log so far."""
        return self._outcomes.keep()

    def resume(self, kept: bytes | memoryview) -> None:
        """Go on where `keep` was called. Raises msgspec.DecodeError, ValueError or LookupError where these are not its
        bytes."""
        self._outcomes = Outcomes.resumed(kept)

    def count_notification(self, sender: str, sent: bool) -> None:
        """Note what came of a message; `sender` is one of `swarmd.observe.telemetry.labels.SENDERS`."""
        self._notifications.labels(sender, labels.OUTCOMES[not sent]).inc()

    def render(self, status: Status | None, accept: str = "") -> tuple[bytes, str]:
        """The figures as text. Looks at the disk now and then, so call it in a thread where a loop must not wait.

        Args:
            status: the node's, None when nothing is known of it.
            accept: the client's Accept header; OpenMetrics where it asks for that, else Prometheus' text format 0.0.4.

        Returns:
            The body, and its content type.
        """
        try:
            encoder, content_type = choose_encoder(accept if len(accept) <= ACCEPT_CHARACTERS_MAX else "")
        except (TypeError, ValueError):  # a version that is none
            encoder, content_type = choose_encoder("")
        return encoder(_Collected(tuple(self.families(status)))), content_type

    def families(self, status: Status | None) -> Iterator[Metric]:
        """The figures, family by family: readings, then outcomes."""
        yield from readings.families(self._read(status))
        yield from self._outcomes.collect()
        for family in self._own.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

    def _read(self, status: Status | None) -> Iterator[readings.Reading]:
        now = self._clock()
        if status is not None and now - status.at > STALE_S:
            status = None  # nothing newer is to be had, and this one says nothing of now
        yield from readings.read_build()
        depths = (live(status, now), ready(status, now), productive(status, self.progress, now))
        yield from readings.read_health(zip(labels.DEPTHS, depths, strict=True))
        yield from readings.read_progress(self.progress)
        if self._paths is not None:
            yield from readings.read_disk(self._look(self._paths, now), self._limits)
        if status is None:
            yield "daemon_up", (), 0.0
            return
        yield from readings.read_status(status)
        if self._paths is not None:
            yield from readings.read_memory(status)

    def _look(self, paths: NodeDirectory, now: float) -> DiskUsage:
        known = self._disk
        if known is not None and 0 <= now - known[0] < DISK_LOOK_S:
            return known[1]
        disk = measure_disk(paths)
        self._disk = (now, disk)
        return disk


def limits_of(config: Config) -> ConfiguredLimits:
    """What a node's configuration allows."""
    storage = config.storage
    return ConfiguredLimits(
        log_bytes=storage.log_bytes_max,
        blob_bytes=storage.blob_bytes_max,
        free_bytes=storage.free_bytes_min,
        trainer_bytes=config.training.memory_bytes_max,
    )


class _Collected:
    """Families that were collected already, in the form that encoders take."""

    def __init__(self, families: tuple[Metric, ...]) -> None:
        self._families = families

    def collect(self) -> tuple[Metric, ...]:
        return self._families
