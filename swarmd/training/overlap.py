"""A thread in which the next step's completions are drawn while a step is trained (`training.overlap`).

- On a processor each of the two computes with half of torch's threads, one at least, as long as both are busy: the
  kernels of torch let other Python threads run. On an accelerator the thread has a stream of its own.
- It draws from weights that do not change meanwhile: a copy (`swarmd.training.drawing_copy`), or those of a vLLM
  server. The loss corrects for the step between (`swarmd.training.masking.weight_by_importance_ratio`).
- At the end of a stage nothing is drawn ahead. If a stage ends early, what is being drawn is given up and waited for,
  so that it touches neither the plan nor the weights of what follows.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from swarmd.training.cancellation import Cancellation

STREAMS = ("cuda", "xpu")  # devices on which kernels of two threads overlap
T = TypeVar("T")


class DrawingThread:
    """The thread. What it does must check the cancellation of `running`, which asks for it at the end."""

    def __init__(self, device: str) -> None:
        self._threads = torch.get_num_threads()  # of torch, together
        half = max(self._threads // 2, 1)
        self._left = max(self._threads - half, 1)  # for what runs beside it
        self._executor = ThreadPoolExecutor(1, "drawing", torch.set_num_threads, (half,))
        self._backend: Any = getattr(torch, device) if device in STREAMS else None
        self._stream: Any = self._backend.Stream() if self._backend else None

    @classmethod
    @contextmanager
    def running(cls, device: str, cancellation: Cancellation) -> "Iterator[DrawingThread]":
        """Have the thread within the block."""
        thread = cls(device)
        try:
            yield thread
        finally:
            cancellation.request()
            thread._executor.shutdown()
            thread.rest()

    def submit(self, draw: Callable[[], T]) -> Future[T]:
        """Call `draw` in the thread, after what this one has computed so far."""
        torch.set_num_threads(self._left)
        if self._stream is not None:
            self._stream.wait_stream(self._backend.current_stream())
        return self._executor.submit(self._on_stream, draw)

    def rest(self) -> None:
        """Leave all of torch's threads to the caller, until the next `submit`."""
        torch.set_num_threads(self._threads)

    def _on_stream(self, draw: Callable[[], T]) -> T:
        if self._stream is None:
            return draw()
        with self._backend.stream(self._stream):
            drawn = draw()
        self._stream.synchronize()
        return drawn
