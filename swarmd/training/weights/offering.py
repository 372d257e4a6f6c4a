"""Offering a checkpoint's weights to peers, beside training: what fails is logged, and training goes on."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarmd.core.events import StageTrained
from swarmd.errors import ModelError, NoSpaceLeft, RecordRejected, SwarmdError
from swarmd.files import remove_left
from swarmd.logger import get_logger
from swarmd.training.checkpoints.checkpoint import WEIGHTS
from swarmd.training.models.model import Policy
from swarmd.weights.offered import ANNOUNCED, GIVEN_BYTES_PER_S, OfferedWeights
from swarmd.weights.tensors import check_finite, digest_architecture, read_tensors

DTYPE = "BF16"
REASON_MAX = 200  # characters of what the library says, which may hold megabytes of a peer's header


def write_announced(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write weights as they are announced; other tensors than floating-point ones stay as they are.

    Raises:
        RecordRejected: "non-finite": they hold values that are no numbers.
        OSError: they cannot be written.
    """
    rounded = {name: _rounded(weight) for name, weight in sorted(weights.items())}
    save_file(rounded, path, metadata={"format": "pt"})
    check_finite(path)


def write_announced_file(own: Path, path: Path) -> None:
    """Write the weights of a checkpoint's file as they are announced. As `write_announced`."""
    write_announced(load_file(own), path)


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    plain = weight.detach().cpu()
    plain = plain.to(torch.bfloat16) if plain.is_floating_point() else plain
    return plain.contiguous().clone()


def read_announced(path: Path, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that a peer announced, in the dtypes of one's own.

    Args:
        path: a file whose digest has been checked.
        own: the weights in whose place they are to be.

    Raises:
        RecordRejected: it is no safetensors file, or holds values that are no numbers.
        ModelError: they are another model's.
        OSError: it cannot be read.
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
    except SafetensorError as error:  # the library is stricter with what no tensor needs, such as the metadata
        raise RecordRejected("malformed", f"no safetensors file: {str(error)[:REASON_MAX]}") from error
    return {name: _as_own(name, weight, own[name]) for name, weight in loaded.items()}


def _as_own(name: str, weight: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """In the dtype of one's own: float16 reaches no further than 65,504. Raises RecordRejected("non-finite")."""
    taken = weight.to(own.dtype)
    if taken.is_floating_point() and not bool(taken.isfinite().all()):
        raise RecordRejected("non-finite", f"{name[:80]!r} has values that are no numbers as {own.dtype}")
    return taken


TAKEN = "taken.tmp"  # the checkpoint's weights, so that they stay when the checkpoint goes

log = get_logger(__name__)


class WeightsOffering:
    """Offers the weights of every so manieth round, and no more often than a peer can fetch them.

    Only the newest offer and the one before are kept: where rounds are short beside the time that a fetch takes, nobody
    would come to the end of one.

    Args:
        every: rounds between offers; 0 for none.
        stages: of a round; its last one counts.
        directory: where what is offered lies.
        free_bytes_min: of its file system that are left free; where that cannot be, nothing new is offered.
    """

    def __init__(self, every: int, stages: int, directory: Path, free_bytes_min: int = 0) -> None:
        self._every = every
        self._stages = stages
        self._place = directory
        self._free_bytes_min = free_bytes_min
        self._offered = OfferedWeights(directory)
        self._busy = False
        self._next_at = 0.0  # by the monotonic clock, from when on there may be another

    def withdraw_if_off(self) -> None:
        """Where nothing is to be offered, offer nothing of before either; what fails is logged."""
        if self._every:
            return
        try:
            self._offered.withdraw()
        except OSError as error:
            log.warning("weights are still offered", directory=str(self._place), reason=str(error))

    def is_due(self, event: StageTrained) -> bool:
        """Whether the weights after this stage are to be offered; not while others are being written, or as long as a
        peer takes to fetch the latest."""
        if not self._every or self._busy or time.monotonic() < self._next_at:
            return False
        return event.stage + 1 == self._stages and (event.round + 1) % self._every == 0

    def take(self, checkpoint: Path) -> bool:
        """Keep a checkpoint's weights for `offer`: by a hard link, which takes no time, or a copy where these lie on
        another disk or one without links. Returns whether it could."""
        try:
            taken = self._offered.announced.with_name(TAKEN)  # the directory is made
            taken.unlink(missing_ok=True)
            self._link_or_copy(checkpoint / WEIGHTS, taken)
        except (OSError, NoSpaceLeft) as error:
            log.warning("weights are not offered", checkpoint=str(checkpoint), reason=str(error))
            remove_left(self._place / TAKEN)
            return False
        self._busy = True
        return True

    def _link_or_copy(self, source: Path, target: Path) -> None:
        """Raises NoSpaceLeft, OSError."""
        try:
            os.link(source, target)
        except OSError:
            self._see_room(source.stat().st_size)
            shutil.copyfile(source, target)

    def offer(self, event: StageTrained, policy: Policy) -> None:
        """Round, cut and offer what was taken; runs in a thread beside the next stage. Raises nothing."""
        taken = self._place / TAKEN
        try:
            self._see_room(taken.stat().st_size)
            write_announced_file(taken, self._offered.announced)
            fetch_s = self._offered.announced.stat().st_size / GIVEN_BYTES_PER_S
            shapes = {tensor.name: tensor.shape for tensor in read_tensors(self._offered.announced)}
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
            remove_left(taken)
            remove_left(self._place / ANNOUNCED)
            self._busy = False

    def _see_room(self, size_bytes: int) -> None:
        """Is there room for a file no larger than this? Raises NoSpaceLeft, OSError."""
        free = shutil.disk_usage(self._place).free
        if free - size_bytes < self._free_bytes_min:
            raise NoSpaceLeft(
                f"no room in {self._place} for weights of {size_bytes} bytes: {free} are free, {self._free_bytes_min} "
                "are kept free",
                "Free space there or lower storage.free_bytes_min",
            )


def digest_policy(policy: Policy) -> str:
    """The architecture's digest as the policy's own offers have it."""
    shapes = {name: tuple(weight.shape) for name, weight in policy.trained_weights().items()}
    return digest_architecture(describe_architecture(policy), shapes)


def describe_architecture(policy: Policy) -> dict[str, Any]:
    """What makes weights fit this policy: the configuration, and under adapters theirs and the base's digest."""
    config = dict(policy.model.config.to_dict())
    if policy.numbers.adapters:
        settings = policy.model.peft_config["default"]
        config["adapters"] = [policy.frozen_digest, settings.r, settings.lora_alpha]
    return dict(msgspec.json.decode(msgspec.json.encode(config, enc_hook=str)))


def digest_tokenizer(tokenizer: Any) -> str:
    """SHA-256 of what a tokenizer makes of text: its tokens with their ids, its chat template, and its end token."""
    parts = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, tokenizer.eos_token_id]
    return hashlib.sha256(b"swarmd-tokenizer-1\0" + msgspec.json.encode(parts)).hexdigest()
