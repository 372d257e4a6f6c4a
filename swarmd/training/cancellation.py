"""How a running stage is told to end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol


class Cancelled(BaseException):
    """The stage was cancelled. No Exception, so that nothing between takes it for a failure of its own."""


class Cancellation:
    """A flag that another thread raises and the training thread looks at between steps and between tokens."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def check(self) -> None:
        """Raise Cancelled when it was asked for."""
        if self._asked.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Let so much time pass. Raises Cancelled as soon as it is asked for."""
        if self._asked.wait(seconds):
            raise Cancelled


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
