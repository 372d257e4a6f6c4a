"""Tokens a second of swarmd's sampler against transformers' `generate`: same model, prompts, group and longest length.

Both draw at temperature 1 from the whole vocabulary, up to the end token or the configured length, with one torch
thread in this process; only tokens up to and with the end token count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import torch

from bench.measure import ratios, take_turns, timed
from bench.table import Row
from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.sampling import BaseSampler, Sampler, pad_left

PEER = "12D3KooWbench"
SHAPES = ((16, 8), (8, 16))  # prompts and completions of each
ROUNDS = 16
GOAL = 2.0

Draw = Callable[[Sequence[Sequence[int]], int], Sequence[Sequence[int]]]


def run(directory: Path) -> Iterable[Row]:
    silence_libraries()
    training = TrainingConfig(device="cpu", threads=1)
    policy = load_policy(training)
    prompts = draw_prompts(policy, training, max(count for count, _ in SHAPES))
    contestants = {"swarmd": by_sampler(policy, training), "hf": by_generate(policy, training)}
    for draw in contestants.values():
        draw(prompts, 2)
    for count, group in SHAPES:
        asked = prompts[:count]
        rates = take_turns({name: rate_of(draw, asked, group) for name, draw in contestants.items()}, ROUNDS)
        ours, theirs = rates["swarmd"], rates["hf"]
        ratio = ratios(ours, theirs)
        what = f"{count} prompts x {group} completions, processor time"
        met = ratio.median >= GOAL
        yield Row(what, "tokens/s", ours, "HF generate", theirs, ratio, f">= {GOAL:g}x", met)


def draw_prompts(policy: Policy, training: TrainingConfig, count: int) -> list[list[int]]:
    """Token ids of the digit tasks' questions."""
    plan = make_plan(SwarmConfig(id="bench", coordinator=PEER), training)
    questions = islice(plan.draw(StageId(PEER, 0, 0), NO_MATERIAL), count)
    return [policy.encode_prompt(question.messages) for question in questions]


def rate_of(draw: Draw, prompts: Sequence[Sequence[int]], group: int) -> Callable[[], float]:
    """Measures tokens a processor second of one batch."""

    def measure() -> float:
        with timed() as watch:
            drawn = draw(prompts, group)
        return sum(map(len, drawn)) / watch.cpu_s

    return measure


def by_sampler(policy: Policy, training: TrainingConfig, sampler: BaseSampler | None = None) -> Draw:
    sampler = sampler or Sampler(policy)
    generator = torch.Generator(policy.device).manual_seed(0)

    def draw(prompts: Sequence[Sequence[int]], group: int) -> Sequence[Sequence[int]]:
        asked = (prompts, group, training.completion_tokens, 1.0, generator, Cancellation())
        return [each.tokens for each in sampler.sample(*asked)]

    return draw


def by_generate(policy: Policy, training: TrainingConfig) -> Draw:
    policy.model.eval()
    sampler = Sampler(policy)

    def draw(prompts: Sequence[Sequence[int]], group: int) -> Sequence[Sequence[int]]:
        ids, mask = pad_left(prompts, policy.tokenizer.pad_token_id, policy.model.device)
        with torch.no_grad(), policy.autocast():
            output = policy.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=training.completion_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=group,
                eos_token_id=policy.stop_ids,
                pad_token_id=policy.tokenizer.pad_token_id,
            )
        return [sampler._cut_at_stop(row, ())[0] for row in output[:, ids.shape[1] :].tolist()]

    return draw
