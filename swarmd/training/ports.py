"""What the parts of the training engine are given to read by and to report by, each a protocol with one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from swarmd.training.cancellation import Cancellation


class FiguresSink(Protocol):
    """Takes how far a stage is, to show it."""

    def __call__(self, done: int, total: int, figures: dict[str, float], /) -> None:
        """Take optimiser steps done, steps in all, and figures by name, after every step. Raises BrokenPipeError."""


class BodyReader(Protocol):
    """Reads bodies of rollouts: `swarmd.eventlog.blobs.Blobs.get`."""

    def __call__(self, digest: str, /) -> bytes:
        """The body. Raises NotFoundError where it is not here, BlobError where it is damaged."""


class TokenDecoder(Protocol):
    """Turns tokens into text: `swarmd.training.models.model.Policy.decode_completion`."""

    def __call__(self, tokens: Sequence[int], /) -> str:
        """The text. Raises nothing for tokens of the model's own."""


class CancellationSource(Protocol):
    """Tells by what the running stage is cancelled."""

    def __call__(self) -> Cancellation:
        """That of the running stage, or one that never comes. Raises nothing."""
