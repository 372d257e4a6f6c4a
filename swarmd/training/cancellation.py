"""Cancelling a running stage."""

import threading
from collections.abc import Callable, Sequence


class Cancelled(BaseException):
    """The stage was cancelled. A BaseException, so that no code in between takes it for a failure."""


class Cancellation:
    """A flag that another thread sets, and the training thread checks between steps and between tokens. `whole`: the
    cancellation of what this is a part of: it ends the part, too, though not its waits."""

    def __init__(self, whole: "Cancellation | None" = None) -> None:
        self._asked = threading.Event()
        self._whole = whole

    def request(self) -> None:
        self._asked.set()

    @property
    def is_requested(self) -> bool:
        return self._asked.is_set() or (self._whole is not None and self._whole.is_requested)

    def raise_if_requested(self) -> None:
        """Raise Cancelled if it was asked for."""
        if self._whole is not None:
            self._whole.raise_if_requested()
        if self._asked.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait. Raises Cancelled as soon as it is asked for."""
        if self._asked.wait(seconds):
            raise Cancelled


BodyReader = Callable[[str], bytes]  # reads rollouts by their digest; raises SwarmdError if missing or damaged
TokenDecoder = Callable[[Sequence[int]], str]  # such as `Policy.decode_completion`
CancellationSource = Callable[[], Cancellation]  # returns that of the running stage
