"""Doubles of vLLM's server and engine around a real model on the CPU, for what a real vLLM is too slow to start for.

tests/training/test_real_vllm.py does the same with vLLM itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from swarmd.training.models.source import EMBEDDED_DIR
from tests.training.impostor import Door, send


def draw(model: Any, prompt: list[int], settings: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    """`n` completions of a prompt, ending in a stop id, which stays, with the log-probabilities of their tokens."""
    stops = settings["stop_token_ids"]
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
    rows = output[:, len(prompt) :].tolist()
    ends = [next((place + 1 for place, token in enumerate(row) if token in stops), len(row)) for row in rows]
    return [(row[:end], weigh(model, prompt, row[:end])) for row, end in zip(rows, ends, strict=True)]


def weigh(model: Any, prompt: list[int], row: list[int]) -> list[float]:
    """Log-probabilities of a completion's tokens at temperature 1."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + row])).logits[0, len(prompt) - 1 : -1]
    logps: list[float] = torch.log_softmax(logits, -1).gather(1, torch.tensor(row)[:, None])[:, 0].tolist()
    return logps


def as_completion(row: list[int], logps: list[float]) -> SimpleNamespace:
    """As an engine gives it."""
    steps = [{token: SimpleNamespace(logprob=logp)} for token, logp in zip(row, logps, strict=True)]
    return SimpleNamespace(token_ids=row, logprobs=steps)


class EngineDouble:
    """The parts of `vllm.LLM` that are used."""

    def __init__(self) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(EMBEDDED_DIR, dtype=torch.float32)
        self.loads = 0

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        own = dict(self.model.named_parameters(remove_duplicate=False))
        missing = {name for name, _ in self.model.named_parameters()}
        with torch.no_grad():
            for name, weight in kwargs["weights_iterator"]:
                own[name].copy_(weight)
                missing.discard(name)
        assert not missing
        self.loads += 1

    def reset_prefix_cache(self) -> None: ...

    def generate(self, prompts: list[dict[str, Any]], parameters: dict[str, Any], use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        drawn = [draw(self.model, prompt["prompt_token_ids"], parameters) for prompt in prompts]
        return [SimpleNamespace(outputs=[as_completion(*row) for row in rows]) for rows in drawn]


class ServerDouble:
    """`vllm serve` with its endpoints for weights, for an impostor."""

    url: str

    def __init__(self) -> None:
        self.engine = EngineDouble()
        self.adapters: dict[str, Any] = {}
        self.absent: set[str] = set()  # endpoints that it was not started for
        self.calls: list[str] = []
        self.before_drawing: Callable[[Any], object] = lambda model: None  # told of the model that is asked for
        self.spoil: Callable[[list[Any]], Any] = list  # what becomes of the answer's choices
        self.hold = threading.Event()  # completions wait for it
        self.hold.set()

    def serve(self, door: Door) -> None:
        path = door.path.split("?")[0]
        self.calls.append(path)
        absent = path in self.absent
        status, answer = (404, {}) if absent else self.answer(path, json.loads(door.body or b"{}"))
        send(door, status, json.dumps(answer).encode())

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "base"}]}
        if path == "/server_info":
            return 200, {"vllm_config": {"model_config": {"dtype": "torch.float32"}}}
        if path == "/collective_rpc":
            weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            self.engine.collective_rpc(body["method"], {"weights_iterator": weights.items()})
        elif path == "/v1/load_lora_adapter":
            base = AutoModelForCausalLM.from_pretrained(EMBEDDED_DIR, dtype=torch.float32)
            self.adapters[body["lora_name"]] = PeftModel.from_pretrained(base, body["lora_path"]).eval()
        elif path == "/v1/unload_lora_adapter":
            return (200, {}) if self.adapters.pop(body["lora_name"], None) else (404, {})
        elif path == "/v1/completions":
            return self._complete(body)
        return 200, {"success": True}

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.hold.wait(30)
        model = self.engine.model if body["model"] == "base" else self.adapters.get(body["model"])
        if model is None:
            return 404, {"error": {"message": "The model does not exist."}}
        self.before_drawing(model)
        rows = [row for prompt in body["prompt"] for row in draw(model, prompt, body)]
        choices = [{"token_ids": row, "logprobs": {"token_logprobs": logps}} for row, logps in rows]
        return 200, {"choices": self.spoil(choices)}
