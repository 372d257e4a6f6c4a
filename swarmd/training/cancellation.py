"""Cancelling a running stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class Cancelled(BaseException):
    """The stage was cancelled. A BaseException, so that no code in between takes it for a failure."""


class Cancellation:
    """A flag that another thread sets, and the training thread checks between steps and between tokens."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def check(self) -> None:
        """Raise Cancelled if it was asked for."""
        if self._asked.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Wait. Raises Cancelled as soon as it is asked for."""
        if self._asked.wait(seconds):
            raise Cancelled


BodyReader = Callable[[str], bytes]  # reads rollouts by their digest; raises SwarmdError if missing or damaged
TokenDecoder = Callable[[Sequence[int]], str]  # such as `Policy.decode_completion`
CancellationSource = Callable[[], Cancellation]  # returns that of the running stage
