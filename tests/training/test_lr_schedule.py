"""The learning rate over a node's life."""

from typing import Any

import pytest
import torch
from transformers import get_scheduler

from swarmd.config import TrainingConfig
from swarmd.training.lr_schedule import StepCallback, rate_at
from tests.log_capture import capture_logs


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_falling_schedule_is_that_of_transformers(schedule: str) -> None:
    training = TrainingConfig(learning_rate=1.0, schedule=schedule, warmup_steps=5, schedule_steps=50)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=5, num_training_steps=50)
    for step in range(5, 49):
        scheduler.last_epoch = step - 1
        scheduler.step()
        assert rate_at(training, step) == pytest.approx(max(scheduler.get_last_lr()[0], 0.01), abs=1e-6), step


def test_a_node_that_outlives_its_schedule_goes_on_learning() -> None:
    training = TrainingConfig(learning_rate=2.0, schedule="cosine", warmup_steps=0, schedule_steps=10)
    assert rate_at(training, 10) == rate_at(training, 10**6) == pytest.approx(0.02)


def test_warm_up_rises_to_the_rate_and_stays() -> None:
    training = TrainingConfig(learning_rate=1.0, warmup_steps=4)
    assert [rate_at(training, step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rate_at(TrainingConfig(learning_rate=1.0, warmup_steps=0), 0) == 1.0


def test_the_end_of_a_warm_up_is_told_once() -> None:
    callback: Any = StepCallback(TrainingConfig(learning_rate=2.0, warmup_steps=3))
    with capture_logs() as told:
        for _ in range(6):
            callback.on_step_end(None, None, None)
    assert [(line["event"], line["steps"], line["learning_rate"]) for line in told] == [
        ("the learning rate is warmed up", 3, 2.0)
    ]


def test_fresh_moments_are_warmed_up_again_to_the_rate_that_the_schedule_has() -> None:
    training = TrainingConfig(learning_rate=1.0, warmup_steps=4, schedule="linear", schedule_steps=104)
    rates = [rate_at(training, step, fresh_from=54) for step in (53, 54, 55, 58)]
    scheduled = [rate_at(training, step) for step in (53, 54, 55, 58)]
    assert rates == pytest.approx([scheduled[0], scheduled[1] / 4, scheduled[2] / 2, scheduled[3]])
