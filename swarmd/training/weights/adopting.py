"""Beginning a stage from a peer's weights, where they are better here than one's own, or from a mean of both."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from swarmd.core.commands import Train
from swarmd.core.events import WeightsAdopted, WeightsRefused
from swarmd.core.values import PeerWeights, WeightsCause
from swarmd.errors import ModelError, RecordRejected
from swarmd.logger import get_logger
from swarmd.training.evaluation import Accuracy, mean_accuracy
from swarmd.training.models.model import Policy
from swarmd.training.weights.offering import read_announced
from swarmd.worker.ports import EventSink

SHARES = (0.5, 0.25)  # of a peer's weights in the means that are tried, one after another
DEVIATIONS = 1.5  # of the difference of two measurements, beyond which a task has become worse
DEVIATIONS_IN_ALL = 1.0  # beyond which all tasks together have


def mix(own: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """The weighted mean, with this share of theirs; 1 gives theirs as they are. Of the tensors that they have.

    What is no floating-point number, such as a buffer of counts or a mask, has no mean and stays as it is.
    """
    if share >= 1:
        return dict(theirs)
    return {name: _mean(own[name], value, share) for name, value in theirs.items()}


def _mean(own: torch.Tensor, theirs: torch.Tensor, share: float) -> torch.Tensor:
    return torch.lerp(own, theirs.to(own.dtype), share) if own.is_floating_point() else own


def find_worse(own: Mapping[str, Accuracy], best: Mapping[str, float], found: Mapping[str, Accuracy]) -> str:
    """What is worse with the mean than with the own weights, in words; empty where nothing is.

    A task is worse where it is so beyond what may be chance, beside the best that this node has been there: else each
    mean could take a little, and in the end all of it. A node that is below its best anyway takes none that is not
    better there, beyond chance.

    Args:
        own: accuracy of the own weights, by task.
        best: the best that it has been, by task.
        found: accuracy of the mean, on the same questions.
    """
    for task, measured in found.items():
        without, questions = own[task].correct, own[task].questions
        chance = DEVIATIONS * _noise(without, questions)
        if measured.correct < min(max(best.get(task, 0.0), without) - chance, without + chance):
            return f"{task} is answered to {measured.correct:.3f} with the mean, {without:.3f} without"
    before, after = mean_accuracy(own) or 0.0, mean_accuracy(found) or 0.0
    questions = sum(each.questions for each in own.values())
    if after < before - DEVIATIONS_IN_ALL * _noise(before, questions):
        return f"an accuracy of {after:.3f} with the mean, {before:.3f} without"
    return ""


def _noise(share: float, questions: int) -> float:
    """Standard deviation of the difference of two measurements with so many questions each (Agresti and Coull)."""
    share = (share * questions + 2) / (questions + 4)
    return math.sqrt(2 * share * (1 - share) / (questions + 4))


ATTEMPTS_MAX = 2  # fewer than the failures after which a stage is given up

# Measures the policy as it is: accuracy by task on the same held-out questions each time. Raises Cancelled.
Measure = Callable[[], Mapping[str, Accuracy]]

log = get_logger(__name__)


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


class PeerWeightsUse:
    """Stages that begin from peers' weights.

    Args:
        policy: takes them over.
        directory: where they lie.
    """

    def __init__(self, policy: Policy, directory: Path) -> None:
        self._policy = policy
        self._directory = directory

    def begin(
        self,
        order: Train,
        before: Mapping[str, Accuracy],
        best: Mapping[str, float],
        measure: Measure,
        observe: EventSink,
    ) -> bool:
        """Adopt what the order names, or not, and say so.

        Args:
            order: the stage that begins.
            before: accuracy of the own weights by task, if it is known already.
            best: the best that it has been, by task; a mean of weights is held to it.
            measure: of the policy as it is.
            observe: is told what became of them.

        Returns:
            Whether the policy has a peer's weights now, for which the optimiser's moments are none.

        Raises:
            Cancelled: the stage was cancelled.
        """
        weights = order.weights
        assert weights is not None, "the order names weights"
        own = before or measure()
        event = adopt(order, self._place(weights), self._policy, own, best, measure)
        observe(event)
        return isinstance(event, WeightsAdopted) and not weights.averaged

    def end(self, order: Train) -> None:
        """The stage was trained, or somebody cancelled it."""
        if order.weights is not None:
            Attempts(self._place(order.weights)).end()

    def _place(self, weights: PeerWeights) -> Path:
        return self._directory / f"{weights.digest}.safetensors"


def adopt(
    order: Train,
    path: Path,
    policy: Policy,
    own: Mapping[str, Accuracy],
    best: Mapping[str, float],
    measure: Measure,
) -> WeightsAdopted | WeightsRefused:
    """Load a peer's weights and keep them if they answer more of the held-out questions than the own ones did; or the
    first mean of both that answers no fewer.

    Args:
        order: the stage that begins, with what the log says of them; their accuracy is a claim, and counts for nothing.
        path: the file.
        own: accuracy of the policy as it is, by task; none where it cannot be measured.
        best: the best that it has been, by task.
        measure: of the policy after loading.

    Returns:
        What became of it. Where they are refused, or anything is raised, the policy has its own weights again.

    Raises:
        Cancelled: the stage was cancelled.
    """
    weights, before = order.weights, mean_accuracy(own)
    assert weights is not None, "the order names weights"

    def refuse(cause: WeightsCause, reason: str, theirs: float | None = None) -> WeightsRefused:
        log.warning("a peer's weights are not begun from", peer=weights.peer, cause=cause, reason=reason)
        return WeightsRefused(order.id, cause, reason, weights.peer, before, theirs)

    if before is None:
        return refuse("unmeasured", "there are no held-out questions to measure them by")
    try:
        if not (theirs := _open(path, weights.digest, policy)):
            return refuse("failed", f"{ATTEMPTS_MAX} stages that began with them came to no end")
    except (RecordRejected, OSError) as error:
        return refuse("damaged", str(error))
    except ModelError as error:
        return refuse("unfit", str(error))

    def find_no_better(found: Mapping[str, Accuracy]) -> str:
        after = mean_accuracy(found) or 0.0
        return "" if after > before else f"an accuracy of {after:.3f} here, the own weights have {before:.3f}"

    def find_mean_worse(found: Mapping[str, Accuracy]) -> str:
        return find_worse(own, best, found)

    kept = policy.copy_weights()
    shares, judge = (SHARES, find_mean_worse) if weights.averaged else ((1.0,), find_no_better)
    for share in shares:
        found, against = _try(policy, kept, mix(kept, theirs, share), measure, judge)
        if not against:
            break
    after = mean_accuracy(found)
    if against or after is None:
        return refuse("worse" if weights.averaged else "no-better", against, after)
    told = {"peer": weights.peer, "own": before, "theirs": after, "claimed": weights.accuracy, "share": share}
    log.info("a peer's weights are begun from", **told)
    return WeightsAdopted(order.id, order.round, order.stage, weights, before, after)


def _open(path: Path, digest: str, policy: Policy) -> dict[str, torch.Tensor]:
    """The weights in a file; none where stages have failed with them before.

    Raises:
        RecordRejected: they are not what was fetched, or no numbers.
        ModelError: they are another model's.
        OSError: the file cannot be read.
    """
    attempts = Attempts(path)
    if attempts.count >= ATTEMPTS_MAX:
        return {}
    attempts.begin()
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise RecordRejected("wrong-digest", "the file is not what was fetched")
    return read_announced(path, policy.trained_weights())


def _try(
    policy: Policy,
    kept: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    measure: Measure,
    judge: Callable[[Mapping[str, Accuracy]], str],
) -> tuple[Mapping[str, Accuracy], str]:
    """Measure the policy with these weights: its accuracy, and what speaks against them.

    Where anything does, or is raised, the policy has the kept ones again.
    """
    against = "not measured"
    try:
        policy.load_weights(weights)
        found = measure()
        against = judge(found)
        return found, against
    finally:
        if against:
            policy.load_weights(kept)
