"""Cancelling a running stage."""

import threading
from collections.abc import Callable, Sequence


class Cancelled(BaseException):
    """The stage was cancelled. A BaseException, so that `except Exception` does not take it for a failure."""


class Cancellation:
    """A flag that another thread sets, and the training thread checks between steps and between tokens. `whole`: a
    wider cancellation, which also makes `raise_if_requested` raise, but does not interrupt `sleep`."""

    def __init__(self, whole: "Cancellation | None" = None) -> None:
        self._asked = threading.Event()
        self._whole = whole

    def request(self) -> None:
        self._asked.set()

    @property
    def is_requested(self) -> bool:
        return self._asked.is_set() or (self._whole is not None and self._whole.is_requested)

    def raise_if_requested(self) -> None:
        """Raise Cancelled if cancellation was requested."""
        if self._whole is not None:
            self._whole.raise_if_requested()
        if self._asked.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait. Raises Cancelled as soon as cancellation is requested."""
        if self._asked.wait(seconds):
            raise Cancelled


BodyReader = Callable[[str], bytes]  # reads rollouts by digest; raises SwarmdError if they are missing or damaged
TokenDecoder = Callable[[Sequence[int]], str]  # such as `Policy.decode_completion`
CancellationSource = Callable[[], Cancellation]  # returns the running stage's cancellation
