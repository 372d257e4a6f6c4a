"""Whether swarm, plan and model fit together, before anything is trained."""

from __future__ import annotations

from swarmd.config import SwarmConfig
from swarmd.errors import ModelUnfit, SwarmError
from swarmd.swarms.plan import Message, Plan
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


def check_tokens(policy: Policy) -> None:
    """Raise ModelUnfit where text becomes tokens that the model has no embedding of: the first of them, be it a peer's,
    would end the stage, each time. Special ones count where they are in use, for text never becomes them."""
    tokenizer, embeddings = policy.tokenizer, policy.model.get_input_embeddings().num_embeddings
    used = {tokenizer.eos_token_id, tokenizer.pad_token_id, *policy.encode_prompt([Message("user", "1")])}
    unused = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special} - used
    beyond = sorted(text for text, id in tokenizer.get_vocab().items() if id >= embeddings and id not in unused)
    if beyond:
        raise ModelUnfit(
            f"the tokenizer of {policy.name} has tokens of which the model has no embedding: {', '.join(beyond[:3])}",
            "Put the model's own tokenizer beside it, or name another pad_token in its tokenizer_config.json",
        )
