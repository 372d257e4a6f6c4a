"""How a running stage is told to end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


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


BodyReader = Callable[[str], bytes]  # a body of rollouts by its digest; raises SwarmdError if it is missing or damaged
TokenDecoder = Callable[[Sequence[int]], str]  # token ids to text: `Policy.decode_completion`
CancellationSource = Callable[[], Cancellation]  # that of the running stage, or one that never comes
