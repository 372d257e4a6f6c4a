"""Whether swarm, plan and model fit together, before anything is trained."""

from __future__ import annotations

from swarmd.config import SwarmConfig
from swarmd.errors import ModelUnfit, SwarmError
from swarmd.swarms.plan import Plan
from swarmd.training.models.model import Policy


def check_stages(plan: Plan, swarm: SwarmConfig) -> None:
    """Raise SwarmError when a round of the swarm has not as many stages as its plan."""
    if plan.stages != swarm.stages:
        raise SwarmError(
            f"swarm.stages is {swarm.stages}, but a round of {swarm.kind} has {plan.stages}",
            f"Set swarm.stages = {plan.stages}",
        )


def check_context(policy: Policy, prompt_tokens: int, completion_tokens: int) -> None:
    """Raise ModelError when the model cannot hold a prompt and a completion of the configured lengths."""
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and prompt_tokens + completion_tokens > context:
        raise ModelUnfit(
            f"{policy.name} reads {context} tokens, training.prompt_tokens + training.completion_tokens is "
            f"{prompt_tokens + completion_tokens}",
            "Lower one of the two",
        )
