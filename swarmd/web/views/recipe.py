"""What a node trains and how: from its log, and from its configuration where that is known."""

from __future__ import annotations

from typing import Any

from swarmd.config import Config
from swarmd.core.state import State, Trainer
from swarmd.web.shapes import RecipeView, TaskRow
from swarmd.web.views.moments import plain

# Of [training]: what decides what is learnt, and what is shared; in the order in which it is shown.
SETTINGS = (
    "steps",
    "questions",
    "generations",
    "peer_questions",
    "peer_loss",
    "completion_tokens",
    "prompt_tokens",
    "temperature",
    "learning_rate",
    "schedule",
    "optimizer",
    "beta",
    "clip_low",
    "clip_high",
    "format_reward",
    "replay_questions",
    "share_groups",
    "staleness_rounds",
    "held_out_questions",
    "held_out_every",
    "seed",
)


def recipe_view(state: State, trainer: Trainer, config: Config | None) -> RecipeView:
    """The recipe, free of what looks like a secret; `trainer` is the one that was ready last."""
    settings = state.settings
    return RecipeView(
        swarm=settings.swarm if settings else config.swarm.id if config else "",
        kind=(settings.kind if settings else "") or (config.swarm.kind if config else ""),
        role=settings.role if settings else "",
        stages=settings.stages if settings else 1,
        model=plain(trainer.model or (config.training.model if config else "")),
        revision=config.training.revision if config else "",
        device=trainer.device,
        parameters=trainer.parameters,
        numbers=trainer.numbers,
        configured=config is not None,
        tasks=_tasks(config) if config else (),
        settings=_settings(config) if config else (),
    )


def _tasks(config: Config) -> tuple[TaskRow, ...]:
    return tuple(TaskRow(task.name, task.weight, plain(task.config)) for task in config.swarm.tasks)


def _settings(config: Config) -> tuple[tuple[str, Any], ...]:
    return tuple((key, plain(getattr(config.training, key))) for key in SETTINGS)
