"""A stage with completions by a real vLLM, and its likeliest tokens beside our own sampler's before and after."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from swarmd.config import Config, LoraConfig, StorageConfig, SwarmConfig, TrainingConfig, VllmConfig
from swarmd.core.commands import Train
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import Message
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.sampling import SampledTokens, Sampler

QUESTIONS = ("4 + 5 =", "reverse 1 2 3", "9 - 4 =", "sort 3 1 2")


def train_and_compare(directory: Path, vllm: VllmConfig, lora: LoraConfig) -> dict[str, Any]:
    """Train two steps whose completions vLLM draws, with the embedded model in float32."""
    training = TrainingConfig(
        device="cpu",
        steps=2,
        questions=4,
        generations=4,
        peer_questions=1,
        held_out_questions=4,
        learning_rate=2e-2,
        warmup_steps=0,
        lora=lora,
        vllm=vllm,
    )
    config = Config(
        SwarmConfig(id="test", kind="digits"),
        role="coordinator",
        training=training,
        storage=StorageConfig(free_bytes_min=0),
    )
    engine = TrainingEngine(config, NodeDirectory(directory), "a", make_plan(config.swarm))
    prompts = [engine.policy.encode_prompt([Message("user", question)]) for question in QUESTIONS]

    def draw(sampler: Any, group: int, temperature: float) -> list[SampledTokens]:
        generator = torch.Generator().manual_seed(1)
        drawn: list[SampledTokens] = sampler.sample(prompts, group, 10, temperature, generator, Cancellation())
        return drawn

    def compare() -> dict[str, Any]:
        samplers = {"own": Sampler(engine.policy), "vllm": engine._sampler}
        return {name: [each.tokens for each in draw(sampler, 1, 0.0)] for name, sampler in samplers.items()}

    def differ(drawn: SampledTokens) -> float:
        """How far vLLM's log-probabilities are from the policy's at most."""
        ids = torch.tensor([prompts[0] + drawn.tokens])
        with torch.no_grad():
            logits = engine.policy.model(input_ids=ids).logits[0, len(prompts[0]) - 1 : -1]
        own = torch.log_softmax(logits, -1).gather(1, torch.tensor(drawn.tokens)[:, None])[:, 0]
        return float((own - torch.tensor(drawn.logps)).abs().max())

    result: dict[str, Any] = {"before": compare()}
    engine.train(Train("train/0/0", 0, 0, ()), Cancellation())
    result |= {"steps": engine.steps, "after": compare()}
    prompts = prompts[:1]
    rows = draw(engine._sampler, 6, 1.0)
    different = len({tuple(row.tokens) for row in rows})
    return result | {"rows": len(rows), "different": different, "apart": max(map(differ, rows))}


if __name__ == "__main__":
    place, rank = Path(sys.argv[1]), int(sys.argv[2])
    print("RESULT" + json.dumps(train_and_compare(place, VllmConfig("colocate"), LoraConfig(rank=rank))))
