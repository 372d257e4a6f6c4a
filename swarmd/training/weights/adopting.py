"""Beginning a stage from a peer's weights, where they are better here than one's own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

import structlog

from swarmd.core.commands import Train
from swarmd.core.events import WeightsAdopted, WeightsRefused
from swarmd.core.values import PeerWeights, WeightsCause
from swarmd.errors import ModelError, RecordRejected
from swarmd.training.models.model import Policy
from swarmd.training.weights.announced import read_announced
from swarmd.worker.ports import EventSink

ATTEMPTS_MAX = 2  # fewer than the failures after which a stage is given up

_log = structlog.get_logger(__name__)


class Attempts:
    """How often a stage was begun with a peer's weights and came to no end, also by the end of the process.

    The command to train is the same each time, so it is here that weights with which a stage cannot be trained are left
    alone. What is fetched later begins anew: the network worker removes what it does not know.

    Args:
        path: the file of the weights.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_suffix(".tried")

    @property
    def count(self) -> int:
        """So far. Raises OSError."""
        return self._path.stat().st_size if self._path.exists() else 0

    def begin(self) -> None:
        """One more. Raises OSError."""
        with self._path.open("ab") as file:
            file.write(b".")

    def end(self) -> None:
        """The stage was trained, or somebody cancelled it."""
        self._path.unlink(missing_ok=True)


class Measure(Protocol):
    """Measures the policy as it is now."""

    def __call__(self) -> float | None:
        """Accuracy on the held-out questions, the same ones each time; None without questions. Raises Cancelled."""


class PeerWeightsUse:
    """Stages that begin from peers' weights.

    Args:
        policy: takes them over.
        directory: where they lie.
    """

    def __init__(self, policy: Policy, directory: Path) -> None:
        self._policy = policy
        self._directory = directory

    def begin(self, order: Train, before: float | None, measure: Measure, observe: EventSink) -> bool:
        """Adopt what the order names, or not, and say so; `before` is the own accuracy, if it is known already.

        Returns whether the policy has other weights now. Raises Cancelled.
        """
        assert order.weights is not None, "the order names weights"
        own = measure() if before is None else before
        event = adopt(order, order.weights, self._place(order.weights), self._policy, own, measure)
        observe(event)
        return isinstance(event, WeightsAdopted)

    def end(self, order: Train) -> None:
        """The stage was trained, or somebody cancelled it."""
        if order.weights is not None:
            Attempts(self._place(order.weights)).end()

    def _place(self, weights: PeerWeights) -> Path:
        return self._directory / f"{weights.digest}.safetensors"


def adopt(
    order: Train, weights: PeerWeights, path: Path, policy: Policy, own: float | None, measure: Measure
) -> WeightsAdopted | WeightsRefused:
    """Load a peer's weights and keep them if they answer more of the held-out questions than the own ones did.

    Args:
        order: the stage that begins.
        weights: what the log says of them; whose accuracy is a claim, and counts for nothing.
        path: the file.
        own: accuracy of the policy as it is; None where it cannot be measured.
        measure: of the policy after loading.

    Returns:
        What became of it. Where they are refused, or anything is raised, the policy has its own weights again.

    Raises:
        Cancelled: the stage was cancelled.
    """

    def refuse(cause: WeightsCause, reason: str, theirs: float | None = None) -> WeightsRefused:
        _log.warning("a peer's weights are not begun from", peer=weights.peer, cause=cause, reason=reason)
        return WeightsRefused(order.id, cause, reason, weights.peer, own, theirs)

    if own is None:
        return refuse("unmeasured", "there are no held-out questions to measure them by")
    attempts = Attempts(path)
    try:
        if attempts.count >= ATTEMPTS_MAX:
            return refuse("failed", f"{ATTEMPTS_MAX} stages that began with them came to no end")
        attempts.begin()
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != weights.digest:
                return refuse("damaged", "the file is not what was fetched")
        read = read_announced(path, policy.trained_weights())
    except (RecordRejected, OSError) as error:
        return refuse("damaged", str(error))
    except ModelError as error:
        return refuse("unfit", str(error))
    kept = policy.copy_weights()
    theirs: float | None = None
    try:
        policy.load_weights(read)
        theirs = measure()
    finally:
        better = theirs is not None and theirs > own
        if not better:
            policy.load_weights(kept)
    if theirs is None or not better:
        return refuse("no-better", f"an accuracy of {theirs or 0.0:.3f} here, the own weights have {own:.3f}", theirs)
    _log.info("a peer's weights are begun from", peer=weights.peer, own=own, theirs=theirs, claimed=weights.accuracy)
    return WeightsAdopted(order.id, order.round, order.stage, weights, own, theirs)
