"""Whether swarm, plan and model fit together, before anything is trained."""

from __future__ import annotations

from swarmd.config import SwarmConfig
from swarmd.errors import ModelUnfit, SwarmError
from swarmd.swarms.plan import Message, Plan
from swarmd.training.models.model import Policy

QUESTION = "12"  # what every tokenizer of a model that can be asked anything has
SHOWN_CHARACTERS = 160


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
    would end the stage, each time. Special ones count where they are in use, for text never becomes them. So does it
    where a question does not reach the model, or an end token of its settings is none."""
    tokenizer, embeddings = policy.tokenizer, policy.model.get_input_embeddings().num_embeddings
    prompt = policy.encode_prompt([Message("user", QUESTION)])
    if QUESTION not in tokenizer.decode(prompt):
        raise ModelUnfit(
            f"what the tokenizer of {policy.name} makes of a question does not hold it: {QUESTION!r} becomes "
            f"{tokenizer.decode(prompt)[:SHOWN_CHARACTERS]!r}",
            "Put the model's own tokenizer and chat template beside it",
        )
    if ends := [id for id in policy.stop_ids if not 0 <= id < embeddings]:
        raise ModelUnfit(
            f"{policy.name} ends completions at token {ends[0]}, by its config.json or generation_config.json, and has "
            f"tokens from 0 to {embeddings - 1}",
            "Set eos_token_id there to the one of its tokenizer",
        )
    used = {tokenizer.eos_token_id, tokenizer.pad_token_id, *prompt}
    unused = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special} - used
    beyond = sorted(text for text, id in tokenizer.get_vocab().items() if id >= embeddings and id not in unused)
    if beyond:
        raise ModelUnfit(
            f"the tokenizer of {policy.name} has tokens of which the model has no embedding: {', '.join(beyond[:3])}",
            "Put the model's own tokenizer beside it, or another eos_token or pad_token into tokenizer_config.json",
        )
