"""The learning rate over a node's life, and the callback between two optimiser steps.

A stage is one call of TRL's `train()`, which restarts its schedule each time. This schedule counts the steps of the
node's life, which checkpoints record, so that neither a stage nor a restart resets it.
"""

import math
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from swarmd.config import TrainingConfig
from swarmd.logger import get_logger
from swarmd.training.cancellation import Cancellation
from swarmd.training.stage_timer import StageTimer

log = get_logger(__name__)


def rate_at(training: TrainingConfig, steps: int, fresh_from: int = 0) -> float:
    """The learning rate of the step after `steps` steps: linear warm-up, then the schedule.

    The schedule is that of transformers' `get_scheduler` of the same name, but ends at a hundredth of the rate and
    stays there after `schedule_steps`, because a node's life has no last step. If the optimiser's moments were reset at
    step `fresh_from`, the rate is warmed up again, up to the schedule's present value.
    """
    scheduled = _scheduled_rate(training, steps)
    since = steps - fresh_from
    if fresh_from and 0 <= since < training.warmup_steps:
        return scheduled * (since + 1) / training.warmup_steps
    return scheduled


def _scheduled_rate(training: TrainingConfig, steps: int) -> float:
    peak = training.learning_rate
    if steps < training.warmup_steps:
        return peak * (steps + 1) / training.warmup_steps
    if training.schedule == "constant":
        return peak
    length = max(training.schedule_steps - training.warmup_steps, 1)
    done = min((steps - training.warmup_steps) / length, 1.0)
    left = 1.0 - done if training.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return peak * max(left, 0.01)


class StepCallback(TrainerCallback):
    """Sets the learning rate, counts and reports steps and what TRL logs about them, and cancels between them."""

    def __init__(self, training: TrainingConfig) -> None:
        self._training = training
        self.optimizer: Any = None
        self.steps = 0  # optimiser steps in the node's life
        self.fresh_from = 0  # value of `steps` when the optimiser's moments were last reset
        self.cancellation = Cancellation()
        self.timer = StageTimer()
        self.before_step: Callable[[], None] = lambda: None  # if it raises, the step is not taken
        self.report: Callable[[], None] = lambda: None
        self.log: Callable[[dict[str, Any]], None] = lambda logs: None

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        rate = rate_at(self._training, self.steps, self.fresh_from)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        with self.timer.time("checkpoint"):
            self.before_step()
        self.timer.enter("optimiser")  # up to `on_log`, before which the loss is read: an accelerator has then finished

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.steps += 1
        if self.steps - self.fresh_from == self._training.warmup_steps:
            rate = rate_at(self._training, self.steps, self.fresh_from)
            log.info("the learning rate is warmed up", steps=self._training.warmup_steps, learning_rate=rate)
        self.report()
        self.cancellation.raise_if_requested()

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any) -> None:
        self.timer.enter("loop")
        if "loss" in logs:  # else the log is about the whole call of `train`
            self.log({**logs, "learning_rate": self.optimizer.param_groups[0]["lr"]})  # TRL logs its own schedule's
