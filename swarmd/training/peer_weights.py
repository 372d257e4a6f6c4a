"""Weights between nodes: offering this node's checkpoints to peers, and starting stages from a peer's weights.

* Offers are written while training goes on; failures are logged. * A peer's weights are adopted if they answer more of
the held-out questions here than this node's own, or a mean of both if it answers no fewer. The peer's claims about them
are ignored. * The command to train is repeated unchanged. So weights with which a stage did not finish, even because
the process ended, are refused after `ATTEMPTS_MAX` attempts, counted by the size of a file beside them. The count of
newly fetched weights starts from zero: the network worker removes files that it does not know.
"""

import hashlib
import math
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarmd.core.commands import Train
from swarmd.core.events import StageTrained, WeightsAdopted, WeightsRefused
from swarmd.core.values import PeerWeights, WeightsCause
from swarmd.errors import ModelError, NoSpaceLeft, RecordRejected, SwarmdError
from swarmd.files import hash_file, remove_leftover
from swarmd.logger import get_logger
from swarmd.training.checkpoints import WEIGHTS
from swarmd.training.evaluation import Accuracy, estimate_noise, mean_accuracy
from swarmd.training.models.adapters import ADAPTER
from swarmd.training.models.model import Policy
from swarmd.weights.offered import ANNOUNCED, SERVED_BYTES_PER_S, SUFFIX, OfferedWeights
from swarmd.weights.tensors import check_finite, digest_architecture, read_tensors

DTYPE = "BF16"
REASON_MAX = 200  # characters of the library's message, which may quote megabytes of a peer's header
TAKEN = "taken.tmp"  # link to the checkpoint's weights, which outlives the checkpoint
SHARES = (1.0, 0.5)  # shares of the way to the mean, tried in turn
TRIMMED_FROM = 4  # number of offers from which on the extremes at each place are left out of the mean
DEVIATIONS = 1.5  # standard deviations of the difference of two measurements beyond which a task is worse
DEVIATIONS_IN_ALL = 1.0  # the same for all tasks together
ATTEMPTS_MAX = 2  # fewer than the failures after which the core gives up a stage
TRIED = ".tried"

# Measures the policy's accuracy by task, on the same held-out questions each time. Raises Cancelled.
Measure = Callable[[], Mapping[str, Accuracy]]

log = get_logger(__name__)


def write_announced(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write weights as announced: floating-point ones in bfloat16, others unchanged. Raises RecordRejected:
    "non-finite": a value is not finite; OSError: the file cannot be written."""
    rounded = {}
    for name, weight in sorted(weights.items()):
        plain = weight.detach().cpu()
        plain = plain.to(torch.bfloat16) if plain.is_floating_point() else plain
        rounded[name] = plain.contiguous().clone()
    save_file(rounded, path, metadata={"format": "pt"})
    check_finite(path)


def read_announced(path: Path, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Read weights that a peer announced, in their announced dtypes.

    Args:
        path: a file whose digest has been checked.
        own: the weights that they are to replace.

    Raises:
        RecordRejected: the file is not safetensors, or holds values that are not finite.
        ModelError: they are another model's.
        OSError: the file cannot be read.
    """
    check_finite(path)
    shapes = {tensor.name: tensor.shape for tensor in read_tensors(path)}
    wanted = {name: tuple(weight.shape) for name, weight in own.items()}
    if shapes != wanted:
        differing = sorted(name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name))
        raise ModelError(
            f"the weights offered are another model's: {differing[:3]}", "Take them from peers that train this model"
        )
    try:
        loaded = load_file(path)
    except SafetensorError as error:  # the library also checks what no tensor needs, such as metadata
        raise RecordRejected("malformed", f"not a safetensors file: {str(error)[:REASON_MAX]}") from error
    for name, weight in loaded.items():  # they may be too large for float16, which ends at 65,504
        if weight.is_floating_point() and not bool(weight.to(own[name].dtype).isfinite().all()):
            raise RecordRejected("non-finite", f"{name[:80]!r} has values that are not finite as {own[name].dtype}")
    return dict(loaded)


@dataclass(eq=False)
class WeightsOffering:
    """Offers the weights every few rounds, but no more often than a peer can fetch them. The newest offer and the one
    before are kept: if rounds are shorter than a fetch, nobody could finish one otherwise."""

    every: int  # rounds between offers; 0 for none
    stages: int  # per round; weights are offered after the last
    directory: Path  # of the offers
    free_bytes_min: int = 0  # bytes kept free on the file system; with less, nothing new is offered

    def __post_init__(self) -> None:
        self._offered = OfferedWeights(self.directory)
        self._busy = False
        self._next_at = 0.0  # on the monotonic clock: no offer before this

    def withdraw_if_off(self) -> None:
        """Withdraw earlier offers if offering is off. Failures are logged."""
        if self.every:
            return
        try:
            self._offered.withdraw()
        except OSError as error:
            log.warning("weights are still offered", directory=str(self.directory), reason=str(error))

    def is_due(self, event: StageTrained) -> bool:
        """Whether to offer the weights after this stage: not while others are being written, or may still be being
        fetched."""
        if not self.every or self._busy or time.monotonic() < self._next_at:
            return False
        return event.stage + 1 == self.stages and (event.round + 1) % self.every == 0

    def keep_weights(self, checkpoint: Path) -> bool:
        """Keep a checkpoint's weights for `publish_offer`, by a hard link, or by a copy on a file system without links.
        Returns whether that worked."""
        try:
            taken = self._offered.announced_path.with_name(TAKEN)  # the directory is made
            taken.unlink(missing_ok=True)
            source = checkpoint / WEIGHTS
            try:
                os.link(source, taken)
            except OSError:
                self._check_disk_space(source.stat().st_size)
                shutil.copyfile(source, taken)
        except (OSError, NoSpaceLeft) as error:
            log.warning("weights are not offered", checkpoint=str(checkpoint), reason=str(error))
            remove_leftover(self.directory / TAKEN)
            return False
        self._busy = True
        return True

    def publish_offer(self, event: StageTrained, policy: Policy) -> None:
        """Round, chunk and offer the kept weights; runs in a thread beside the next stage. Failures are logged."""
        taken = self.directory / TAKEN
        try:
            self._check_disk_space(taken.stat().st_size)
            saved = load_file(taken)
            trained = {name: weight for name, weight in saved.items() if name not in policy.fixed}
            write_announced(trained, self._offered.announced_path)
            fetch_s = self._offered.announced_path.stat().st_size / SERVED_BYTES_PER_S
            shapes = {tensor.name: tensor.shape for tensor in read_tensors(self._offered.announced_path)}
            architecture = digest_architecture(describe_architecture(policy), shapes)
            offered = self._offered.offer(
                architecture, digest_tokenizer(policy.tokenizer), event.round, DTYPE, event.held_out
            )
            self._next_at = time.monotonic() + fetch_s
            log.info("weights offered", round=event.round, manifest=offered.manifest.hex())
        except Exception as error:  # torch and safetensors report a full disk in error types of their own
            reason = str(error) if isinstance(error, SwarmdError | OSError) else f"{type(error).__name__}: {error}"
            log.warning("weights are not offered", round=event.round, reason=reason)
        finally:
            remove_leftover(taken)
            remove_leftover(self.directory / ANNOUNCED)
            self._busy = False

    def _check_disk_space(self, size_bytes: int) -> None:
        """Check that a file of this size fits. Raises NoSpaceLeft, OSError."""
        free = shutil.disk_usage(self.directory).free
        if free - size_bytes < self.free_bytes_min:
            raise NoSpaceLeft(
                f"no room in {self.directory} for weights of {size_bytes} bytes: {free} are free, "
                f"{self.free_bytes_min} are kept free",
                "Free space there or lower storage.free_bytes_min",
            )


def digest_policy_architecture(policy: Policy) -> str:
    """The digest of the architecture that this policy's offers state."""
    shapes = {name: tuple(weight.shape) for name, weight in policy.trained_weights().items()}
    return digest_architecture(describe_architecture(policy), shapes)


def describe_architecture(policy: Policy) -> dict[str, Any]:
    """The properties that offered weights must share with this policy: the configuration; with adapters their settings
    and base."""
    config = dict(policy.model.config.to_dict())
    if policy.precision.adapters:
        settings = policy.model.peft_config[ADAPTER]
        config["adapters"] = [policy.fixed_digest, settings.r, settings.lora_alpha]
    return dict(msgspec.json.decode(msgspec.json.encode(config, enc_hook=str)))


def digest_tokenizer(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's tokens with their ids, its chat template, and its end token."""
    parts = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, tokenizer.eos_token_id]
    return hashlib.sha256(b"swarmd-tokenizer-1\0" + msgspec.json.encode(parts)).hexdigest()


def combine(
    own: Mapping[str, torch.Tensor], offers: Sequence[Mapping[str, torch.Tensor]], share: float = 1.0
) -> dict[str, torch.Tensor]:
    """The mean of this node's weights and those that peers offer, limited so that no single offer can pull it far.

    An offer's difference from the own weights is shortened to the median length of all offers' differences. From
    `TRIMMED_FROM` offers on, the largest and the smallest value at each place are left out, even if it is the own one.
    Under adapters only B is averaged: A is the same everywhere, so the mean of B is that of the products.

    Args:
        own: what is trained here, by name. Tensors that are not floating-point, such as a buffer of counts or a mask,
            stay as they are.
        offers: of the same names and shapes, in any floating-point dtype.
        share: how far to go from the own weights to the mean.
    """
    lengths = [_distance(own, offer) for offer in offers]
    bound = statistics.median(lengths)
    factors = [min(1.0, bound / length) if length else 0.0 for length in lengths]
    trimmed = int(len(offers) >= TRIMMED_FROM)
    found = {}
    for name, weight in own.items():
        if weight.is_floating_point():
            moves = [(offer[name].float() - weight.float()) * by for offer, by in zip(offers, factors, strict=True)]
            values = torch.stack([torch.zeros_like(moves[0]), *moves])
            kept = values.sort(dim=0).values[trimmed : len(values) - trimmed]
            found[name] = (weight.float() + share * kept.mean(dim=0)).to(weight.dtype)
        else:
            found[name] = weight
    return found


def _distance(own: Mapping[str, torch.Tensor], offer: Mapping[str, torch.Tensor]) -> float:
    """Euclidean length of the difference of two sets of weights."""
    squares = (
        float((offer[name].double() - weight.double()).square().sum())
        for name, weight in own.items()
        if weight.is_floating_point()
    )
    return math.sqrt(sum(squares))


def explain_regression(own: Mapping[str, Accuracy], best: Mapping[str, float], found: Mapping[str, Accuracy]) -> str:
    """Say what is worse with the mean than with this node's own weights; empty if nothing is.

    A task must be worse beyond chance, compared with the node's best at it: otherwise each mean could take a little,
    and all means together everything. A node that is below its best anyway accepts only what is better beyond chance.

    Args:
        own: accuracy by task with the node's own weights.
        best: the node's best accuracy by task.
        found: accuracy by task with the mean, on the same questions as `own`.
    """
    for task, measured in found.items():
        without, questions = own[task].correct, own[task].questions
        chance = DEVIATIONS * estimate_noise(without, questions)
        if measured.correct < min(max(best.get(task, 0.0), without) - chance, without + chance):
            return f"{task} is answered to {measured.correct:.3f} with the mean, {without:.3f} without"
    before, after = mean_accuracy(own) or 0.0, mean_accuracy(found) or 0.0
    questions = sum(each.questions for each in own.values())
    if after < before - DEVIATIONS_IN_ALL * estimate_noise(before, questions):
        return f"an accuracy of {after:.3f} with the mean, {before:.3f} without"
    return ""


def adopt_peer_weights(
    order: Train,
    directory: Path,
    policy: Policy,
    own: Mapping[str, Accuracy],
    best: Mapping[str, float],
    measure: Measure,
) -> WeightsAdopted | WeightsRefused:
    """Load a peer's weights, or a mean with peers', if they do better on the held-out questions than this node's.

    A mean is tried at each of `SHARES` of the way; the first that answers no fewer questions is taken. If the weights
    are refused, or anything is raised, the policy has its own weights again.

    Args:
        order: the stage that begins, with what the log says about the weights; their accuracy is only a claim.
        directory: of what was fetched.
        own: present accuracy of the policy, by task; empty if it cannot be measured.
        best: the policy's best accuracy so far, by task.
        measure: measures the policy after loading.

    Raises:
        Cancelled: the stage was cancelled.
    """
    weights, before = order.weights, mean_accuracy(own)
    assert weights is not None, "the order names weights"

    def refuse_weights(cause: WeightsCause, reason: str, theirs: float | None = None) -> WeightsRefused:
        log.warning("a peer's weights are not begun from", peer=weights.peer, cause=cause, reason=reason)
        return WeightsRefused(order.id, cause, reason, weights.peer, before, theirs)

    if before is None:
        return refuse_weights("unmeasured", "there are no held-out questions to measure them by")
    try:
        if not (offers := _open_all(directory, weights, policy)):
            return refuse_weights("failed", f"{ATTEMPTS_MAX} stages that began with them came to no end")
    except (RecordRejected, OSError) as error:
        return refuse_weights("damaged", str(error))
    except ModelError as error:
        return refuse_weights("unfit", str(error))

    def find_objection(found: Mapping[str, Accuracy]) -> str:
        if weights.averaged:
            return explain_regression(own, best, found)
        after = mean_accuracy(found) or 0.0
        return "" if after > before else f"an accuracy of {after:.3f} here, the own weights have {before:.3f}"

    kept = policy.copy_weights()
    for share in SHARES if weights.averaged else (1.0,):
        begun = combine(kept, offers, share) if weights.averaged else offers[0]
        found, against = _try_weights(policy, kept, begun, measure, find_objection)
        if not against:
            break
    after = mean_accuracy(found)
    if against or after is None:
        return refuse_weights("worse" if weights.averaged else "no-better", against, after)
    told = {"peer": weights.peer, "own": before, "theirs": after, "claimed": weights.accuracy, "share": share}
    log.info("a peer's weights are begun from", **told)
    return WeightsAdopted(order.id, order.round, order.stage, weights, before, after)


def _open_all(directory: Path, weights: PeerWeights, policy: Policy) -> list[dict[str, torch.Tensor]]:
    """Read the weights that an order names, and count the attempt; none if too many attempts have failed before.

    Unusable offers for a mean are left out. Raises RecordRejected, ModelError, OSError: no offer is usable, because it
    is not what was fetched, not finite, another model's, or unreadable. The error is the last offer's.
    """
    tried = directory / f"{weights.digest}{TRIED}"
    if tried.exists() and tried.stat().st_size >= ATTEMPTS_MAX:
        return []
    with tried.open("ab") as file:
        file.write(b".")
    own, found = policy.trained_weights(), []
    wrong: RecordRejected | ModelError | OSError | None = None
    for offer in weights.offers:
        path = directory / f"{offer.digest}{SUFFIX}"
        try:
            if hash_file(path) != offer.digest:
                raise RecordRejected("wrong-digest", "the file is not what was fetched")
            found.append(read_announced(path, own))
        except (RecordRejected, ModelError, OSError) as error:
            log.warning("a peer's weights are no good", peer=offer.peer, reason=str(error))
            wrong = error
    if wrong is not None and not found:
        raise wrong
    return found


def forget_attempts(directory: Path, weights: PeerWeights) -> None:
    """Reset the count of attempts: a stage that began with these weights was trained or cancelled."""
    (directory / f"{weights.digest}{TRIED}").unlink(missing_ok=True)


def _try_weights(
    policy: Policy,
    kept: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    measure: Measure,
    judge: Callable[[Mapping[str, Accuracy]], str],
) -> tuple[Mapping[str, Accuracy], str]:
    """Measure the policy with these weights. Returns its accuracy, and the objection to them, empty for none. If there
    is one, or anything is raised, the kept weights are restored."""
    against = "not measured"
    try:
        policy.load_weights(weights)
        found = measure()
        against = judge(found)
        return found, against
    finally:
        if against:
            policy.load_weights(kept)
