"""Weights that a node offers to peers, and what became of those that it took: a line of the status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from swarmd.core.state import State, WeightsOutcome
from swarmd.observe.disk import sizes
from swarmd.weights.offered import OFFER, OfferedWeights

if TYPE_CHECKING:
    from swarmd.observe.status import Status

PEER_SHOWN = 12  # last characters of a peer's id
MIB = 1024 * 1024


class OfferedStatus(msgspec.Struct, frozen=True):
    """What this node offers now."""

    round: int  # the last one that it was trained in
    age_s: float
    accuracy: float | None  # on held-out questions, as this node claims it
    size_bytes: int  # that it takes on disk, with the one before and deltas
    words: str  # for people


class TakenStatus(msgspec.Struct, frozen=True):
    """What became of a peer's weights last."""

    outcome: Literal["fetched", "adopted", "refused", "late"]
    age_s: float
    peer: str  # whose; empty where there were none
    round: int  # the last one that they were trained in; -1: unknown
    cause: str  # of a refusal
    reason: str
    received_bytes: int
    held_out_before: float | None  # accuracy of the own weights here
    held_out: float | None  # that of the peer's, or of the mean with them
    words: str  # for people


class WeightsStatus(msgspec.Struct, frozen=True):
    """Weights given and taken. Nothing of it is a fault."""

    awaited_s: float | None = None  # seconds that are left to the wait for a peer's; None: it does not wait
    offered: OfferedStatus | None = None
    taken: TakenStatus | None = None


def weights_status(state: State, now: float) -> WeightsStatus | None:
    """What the log says of peers' weights; None where it says nothing."""
    catch_up, last = state.catch_up, state.weights
    awaits = catch_up is not None and not catch_up.over and not catch_up.average
    awaited_s = catch_up.until_at - now if catch_up is not None and awaits else None
    if awaited_s is None and last is None:
        return None
    return WeightsStatus(awaited_s, taken=_taken(last, now) if last is not None else None)


def with_offer(status: Status, directory: Path) -> Status:
    """The status with what lies in the directory of offered weights; the same where nothing is offered there."""
    offer = OfferedWeights(directory).current()
    if offer is None:
        return status
    try:
        age_s = max(0.0, status.at - (directory / OFFER).stat().st_mtime)
    except OSError:  # taken back since
        return status
    size_bytes = sum(sizes(directory).values())
    claimed = "" if offer.accuracy is None else f", held-out accuracy {offer.accuracy:.2f}"
    words = f"offers its own after round {offer.round}{claimed}, {size_bytes / MIB:.1f} MiB on disk"
    offered = OfferedStatus(offer.round, age_s, offer.accuracy, size_bytes, words)
    return replace(status, weights=replace(status.weights or WeightsStatus(), offered=offered))


def _taken(last: WeightsOutcome, now: float) -> TakenStatus:
    return TakenStatus(
        last.outcome,
        max(0.0, now - last.at),
        last.peer,
        last.round,
        last.cause,
        last.reason,
        last.received_bytes,
        last.held_out_before,
        last.held_out,
        _words(last),
    )


def _words(last: WeightsOutcome) -> str:
    whose = f"the weights of {last.peer[-PEER_SHOWN:]}" if last.peer else "a peer's weights"
    whose += f" after round {last.round}" if last.round >= 0 else ""
    match last.outcome:
        case "fetched":
            return f"fetched {whose}, {last.received_bytes / MIB:.1f} MiB, not measured yet"
        case "adopted":
            began = f"began from {'a mean with ' if last.averaged else ''}{whose}"
            here, before = _number(last.held_out), _number(last.held_out_before)
            return f"{began}: held-out accuracy {here} here, its own had {before}"
        case "refused":
            return f"did not begin from {whose} ({last.cause}): {last.reason}"
        case "late":
            return f"{whose} did not come in time"


def _number(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{accuracy:.2f}"
