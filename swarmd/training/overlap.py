"""A thread that draws the next step's completions while a step is trained (`training.overlap`).

- On a processor each of the two computes with half of torch's threads, at least one, while both are busy: the kernels
  of torch let other Python threads run. On an accelerator the thread has its own stream.
- It draws from weights that do not change meanwhile: a copy (`swarmd.training.drawing_copy`), or those of a vLLM
  server. The loss corrects for the step between (`swarmd.training.masking.weight_by_importance_ratio`).
- Nothing is drawn ahead at the end of a stage. If a stage ends early, the drawing is cancelled and awaited, so that it
  touches neither the plan nor the weights of later work.
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
    """The thread. Its work must check the cancellation given to `running`, which is requested at the end."""

    def __init__(self, device: str) -> None:
        self._threads = torch.get_num_threads()  # total of torch's threads
        half = max(self._threads // 2, 1)
        self._left = max(self._threads - half, 1)  # for the training thread
        self._executor = ThreadPoolExecutor(1, "drawing", torch.set_num_threads, (half,))
        self._backend: Any = getattr(torch, device) if device in STREAMS else None
        self._stream: Any = self._backend.Stream() if self._backend else None

    @classmethod
    @contextmanager
    def running(cls, device: str, cancellation: Cancellation) -> "Iterator[DrawingThread]":
        """Run the thread within the block."""
        thread = cls(device)
        try:
            yield thread
        finally:
            cancellation.request()
            thread._executor.shutdown()
            thread.rest()

    def submit(self, draw: Callable[[], T]) -> Future[T]:
        """Call `draw` in the thread, after the work that the caller has queued on the accelerator so far."""
        torch.set_num_threads(self._left)
        if self._stream is not None:
            self._stream.wait_stream(self._backend.current_stream())
        return self._executor.submit(self._on_stream, draw)

    def rest(self) -> None:
        """Give all of torch's threads to the caller, until the next `submit`."""
        torch.set_num_threads(self._threads)

    def _on_stream(self, draw: Callable[[], T]) -> T:
        if self._stream is None:
            return draw()
        with self._backend.stream(self._stream):
            drawn = draw()
        self._stream.synchronize()
        return drawn
