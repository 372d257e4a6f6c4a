"""Three depths of health: it lives, it is ready for a stage, it earns. Pure.

Restart what does not live; wait for, or look at, what is not ready; look at what lives and earns nothing.
"""

from __future__ import annotations

import msgspec

from swarmd.observe.layers import Layer, LayerName
from swarmd.observe.status import Status

STALE_S = 30.0  # a status older than this says nothing of now
DEADLINES = 3.0  # stage lengths within which a node is expected to have trained and, on a chain, been confirmed
STAGE_LEAST_S = 20.0  # a shorter stage counts as so long: a trainer's restart must not make a node look barren


class Health(msgspec.Struct, frozen=True):
    """Whether it is well, and why not."""

    ok: bool
    reasons: tuple[str, ...] = ()


class NodeProgress(msgspec.Struct):
    """What a node got done since its daemon started; times are POSIX seconds, 0 where there is none yet."""

    started_at: float = 0.0
    stage_s: float = 0.0  # length of the stage that is open, 0 while none is known
    trained_at: float = 0.0  # last
    confirmed_at: dict[str, float] = {}  # last, by kind of submission
    submits: bool = False  # the node is to submit to a contract
    finished: bool = False  # the swarm has run its rounds


def live(status: Status | None, now: float | None = None) -> Health:
    """Whether the daemon answers. Its answer comes out of its one loop, so that moves as well.

    Args:
        status: the last one known.
        now: POSIX seconds; without it the status counts as of now.
    """
    if status is None:
        return Health(False, ("nothing is known of the daemon",))
    if status.source != "daemon":
        return Health(False, (status.process.reason or "the daemon does not run",))
    age_s = 0.0 if now is None else now - status.at
    if age_s > STALE_S:
        return Health(False, (f"the daemon answered last {age_s:.0f} s ago",))
    return Health(True)


def ready(status: Status | None, now: float | None = None) -> Health:
    """Whether it can do its part of a stage: it lives, is connected, its trainer is able, and the round not stalled.

    A node that starts lives and is not ready. The chain does not count: while it is away the node trains on.
    """
    alive = live(status, now)
    if not alive.ok or status is None:
        return alive
    layers: tuple[tuple[LayerName, Layer], ...] = (
        ("process", status.process),
        ("network", status.network),
        ("training", status.training),
        ("round", status.round),
    )
    reasons = tuple(told(name, layer) for name, layer in layers if not layer.healthy)
    return Health(not reasons, reasons)


def productive(
    status: Status | None, progress: NodeProgress, now: float | None = None, deadlines: float = DEADLINES
) -> Health:
    """Whether it earns: it lives, trained a stage lately, and on a chain had a reward confirmed lately.

    Args:
        progress: of the same node, as `swarmd.observe.telemetry.metrics.Metrics.progress` has it.
        now: POSIX seconds; without it the status counts as of now.
        deadlines: how many stage lengths "lately" is. A daemon that started lately is given as long.
    """
    alive = live(status, now)
    if not alive.ok or status is None:
        return alive
    at = status.at if now is None else now
    patience_s = deadlines * max(progress.stage_s, STAGE_LEAST_S)
    if progress.finished or at - progress.started_at <= patience_s:
        return Health(True)
    reasons = []
    if at - progress.trained_at > patience_s:
        reasons.append(_nothing("trained", progress.trained_at, at))
    if progress.submits and at - progress.confirmed_at.get("reward", 0.0) > patience_s:
        reasons.append(_nothing("confirmed on the chain", progress.confirmed_at.get("reward", 0.0), at))
    return Health(not reasons, tuple(reasons))


def _nothing(what: str, last_at: float, now: float) -> str:
    return (
        f"nothing was {what} for {now - last_at:.0f} s" if last_at else f"nothing was {what} since the daemon started"
    )


def told(name: LayerName, layer: Layer) -> str:
    """A layer that is not well, in words: "network: connecting to the DHT"."""
    return f"{name}: {layer.reason or layer.state}"
