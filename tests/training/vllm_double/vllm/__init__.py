"""A double of the parts of vLLM that TRL 1.16 uses, around a real model on the CPU; see
tests/training/test_vllm.py."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

__version__ = "0.27.0"


class SamplingParams:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class RequestOutput:
    def __init__(self, prompt: list[int], rows: list[list[int]]) -> None:
        self.prompt_token_ids = prompt
        self.outputs = [Output(row) for row in rows]


class Output:
    def __init__(self, tokens: list[int]) -> None:
        self.token_ids = tokens
        self.logprobs = None


class Weights:
    """Takes weights by name, as vLLM's models do."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.loads = 0

    def load_weights(self, pairs: Any) -> None:
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in pairs:
                own[name].copy_(tensor)
                self.loads += 1


def draw(model: Any, prompt: list[int], settings: dict[str, Any]) -> list[list[int]]:
    """`n` completions of a prompt, ending in a stop id, which stays."""
    if settings.get("seed") is not None:
        torch.manual_seed(settings["seed"])
    stops = settings["stop_token_ids"]
    rows = []
    with torch.no_grad():
        output = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=settings["max_tokens"],
            do_sample=settings["temperature"] > 0,
            temperature=settings["temperature"] or None,
            top_k=0,
            num_return_sequences=settings["n"],
            eos_token_id=stops,
        )
    for row in output[:, len(prompt) :].tolist():
        end = next((place + 1 for place, token in enumerate(row) if token in stops), len(row))
        rows.append(row[:end])
    return rows


class LLM:
    """The colocated engine."""

    def __init__(self, model: str, **settings: Any) -> None:
        self.settings = settings
        self.weights = Weights(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        runner = type("Runner", (), {"model": self.weights})
        worker = type("Worker", (), {"model_runner": runner})
        executor = type("Executor", (), {"driver_worker": worker})
        self.llm_engine = type("Engine", (), {"model_executor": executor})
        self.resets = 0

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def generate(self, prompts: Any, sampling_params: SamplingParams, use_tqdm: bool) -> list[RequestOutput]:
        assert not use_tqdm
        return [
            RequestOutput(
                p["prompt_token_ids"], draw(self.weights.model, p["prompt_token_ids"], sampling_params.settings)
            )
            for p in prompts
        ]
