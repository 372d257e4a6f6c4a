"""The digits swarm: the four tasks that the embedded model can learn, see `swarmd.swarms.gym.digits`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.plugin import SwarmConfig, SwarmError, TaskConfig, TrainingConfig
from swarmd.swarms.gym.digits import KNOWN_NAMES, TASK_NAMES
from swarmd.swarms.gym.reasoning_gym import ReasoningGymPlan


class DigitsPlan(ReasoningGymPlan):
    """Four tasks on digits that the embedded model learns in minutes.

    Without `swarm.tasks` all four, evenly. Raises SwarmError for any other task.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        for task in swarm.tasks:
            if task.name not in KNOWN_NAMES:
                raise SwarmError(
                    f"the task {task.name!r} is none of the digit tasks, {', '.join(KNOWN_NAMES)}",
                    'Write kind = "reasoning-gym" in [swarm] for its tasks',
                )
        tasks = swarm.tasks or tuple(TaskConfig(name) for name in TASK_NAMES)
        super().__init__(msgspec.structs.replace(swarm, tasks=tasks), training, home)
