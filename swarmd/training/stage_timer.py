"""Measures how the trainer spends the wall time of a stage, part by part.

- `StageTimer` adds up the time between changes of the current part. Time in a nested part does not count for the outer
  one, except within an evaluation or reading peers' groups, which have no nested parts. Only the thread that trains
  counts: completions drawn ahead by another cost the stage only the wait for them.
- Nothing here waits for an accelerator, except after reading prompts, where the first token is awaited anyway.
  Separating forward and backward passes would cost a wait in each pass, so on an accelerator they are one part.
"""

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator

import torch

from swarmd.core.values import TrainerPart, TrainerTimes
from swarmd.training.models.device import LIGHT_PARAMETERS_MAX

TAIL_SHARE = 8  # a batch is in its tail when at most one of this many completions is still being drawn
WHOLE: tuple[TrainerPart, ...] = ("evaluation", "judge")  # parts without nested parts


class StageTimer:
    """Measures one stage after another.

    Attributes:
        idle_cores: cores that torch's threads leave idle though the model is large enough to use them.
        elsewhere: whether an accelerator or a server computes, so that the processor may wait.
        clock: returns seconds of wall time, or of processor time in a benchmark on a busy machine.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.idle_cores, self.elsewhere = 0, False
        self.start()

    def start(self) -> None:
        """Begin a stage, in the thread that trains."""
        self._thread = threading.get_ident()
        self._seconds: dict[TrainerPart, float] = {}
        self._tail_s = 0.0
        self._part: TrainerPart = "other"
        self._since = self.clock()
        self._processor_s, self._faults = time.process_time(), count_faults()

    @contextlib.contextmanager
    def time(self, part: TrainerPart) -> Iterator[None]:
        """Count the time within the block as this part."""
        outer = self._part
        if outer in WHOLE or threading.get_ident() != self._thread:
            yield
            return
        self.enter(part)
        try:
            yield
        finally:
            self.enter(outer)

    def enter(self, part: TrainerPart) -> None:
        """Count the time from now on as this part, until the next change."""
        now = self.clock()
        self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now

    def add_straggler_s(self, seconds: float) -> None:
        """Count seconds of drawing in which only few completions were left."""
        if self._part != "evaluation" and threading.get_ident() == self._thread:
            self._tail_s += seconds

    def read(self) -> TrainerTimes:
        """The parts so far, in the order in which they first occurred."""
        self.enter(self._part)
        return TrainerTimes(
            parts=tuple((part, seconds) for part, seconds in self._seconds.items() if seconds > 0),
            processor_s=time.process_time() - self._processor_s,
            elsewhere=self.elsewhere,
            idle_cores=self.idle_cores,
            faults=count_faults() - self._faults,
            tail_s=self._tail_s,
        )


def count_faults() -> int:
    """Number of pages that this process has read from disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def count_idle_cores(parameters: int, device: str) -> int:
    """Number of cores that torch leaves idle for a model of this size; 0 for a small one, which is fastest on one
    core."""
    if device != "cpu" or parameters <= LIGHT_PARAMETERS_MAX:
        return 0
    return max(0, len(os.sched_getaffinity(0)) - torch.get_num_threads())
