"""Stages on the real engine, with completions from the double of vLLM; prints what came of them as JSON.

A process of its own, because TRL looks for vLLM while it is imported. The one thing put in TRL's way is the trainer's
device: its client sends weights from CUDA devices only, and here there is none.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from swarmd.config import LoraConfig, VllmConfig
from swarmd.errors import GenerationFailed
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.models.adapters import merged_weights
from swarmd.training.models.source import EMBEDDED_DIR
from swarmd.training.vllm_sampler import Generation, VllmSampler, make_generation
from tests.training.conftest import NodeDirectory, TrainingEngine, make_config, make_plan, order
from tests.training.vllm_double.server import Server


class OnCuda:
    """An accelerator that says it runs on CUDA."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


def agree(engine: TrainingEngine, served: Any) -> bool:
    """Whether vLLM has the weights of the trainer."""
    model = engine.policy.model
    own = merged_weights(model) if engine.policy.numbers.adapters else model.named_parameters()
    theirs = dict(served.named_parameters())
    return all(torch.equal(theirs[name], weight.detach()) for name, weight in own)


def draw_once(
    sampler: VllmSampler, engine: TrainingEngine, cancellation: Cancellation, **settings: Any
) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    drawn = sampler.sample([[5, 6, 7], [8, 9]], 3, 6, 1.0, generator, cancellation, **settings)
    return [each.tokens for each in drawn]


def draw_within_rooms(sampler: VllmSampler) -> list[list[int]]:
    """Draws of prompts with rooms of their own; no room that vLLM is given goes beyond that of any row."""
    given: list[tuple[int, int]] = []
    generate = sampler._generation.generate

    def note(prompts: list[list[int]], **settings: Any) -> Any:
        given.append((sampler._generation.max_completion_length, max(map(len, prompts))))
        return generate(prompts=prompts, **settings)

    sampler._generation.generate = note
    drawn = sampler.sample([[5, 6, 7], [8, 9]], 1, 6, 1.0, torch.Generator(), Cancellation(), (), [2, 5])
    sampler._generation.generate = generate
    assert given[0][0] == 2 and all(room + length <= 7 for room, length in given)
    return [each.tokens for each in drawn]


def main(mode: str, directory: Path, rank: int) -> dict[str, Any]:
    server = Server(str(EMBEDDED_DIR)) if mode == "server" else None
    vllm = VllmConfig(mode=mode, url=server.url if server else "")  # type: ignore[arg-type]
    config = make_config(learning_rate=3e-3, lora=LoraConfig(rank=rank))
    engine = TrainingEngine(config, NodeDirectory(directory), "a", make_plan(config.swarm))
    if server:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        real = Generation.__init__
        Generation.__init__ = lambda self, **kw: real(self, group_port=port, **kw)  # type: ignore[method-assign]
    training = msgspec.structs.replace(config.training, vllm=vllm)
    generation = make_generation(engine.policy, training, engine._trainer.model, OnCuda(engine._trainer.accelerator))
    policy = engine.policy
    sampler = VllmSampler(generation, policy.stop_ids, 320, lambda: engine.steps, policy.decode_completion)
    engine._sampler = sampler
    served = server.weights if server else generation.llm.weights
    sent: list[bool] = []
    send = generation.sync_weights

    def sync() -> None:
        send()
        sent.append(agree(engine, served.model))

    generation.sync_weights = sync
    result: dict[str, Any] = {"before": policy.digest}
    event = engine.train(order(0), Cancellation())
    result |= {"steps": engine.steps, "tokens": event.tokens, "sent": sent, "after": engine.weights_digest}
    engine.train(order(1), Cancellation())
    result |= {"sent_in_all": len(sent), "all_agree": all(sent)}
    rows = draw_once(sampler, engine, Cancellation())
    result |= {"rows": rows, "again": draw_once(sampler, engine, Cancellation()), "sent_at_last": len(sent)}
    result["within_rooms"] = draw_within_rooms(sampler)
    if server:
        result |= try_faults(server, sampler, engine)
        result["calls"] = sorted(set(server.calls))
        server.close()
    return result


def try_faults(server: Server, sampler: VllmSampler, engine: TrainingEngine) -> dict[str, Any]:
    told = {}
    for fault in ("error", "short", "foreign"):
        server.fault = fault
        try:
            draw_once(sampler, engine, Cancellation())
        except GenerationFailed as error:
            told[fault] = str(error)
    server.fault = ""
    server.hold.clear()
    cancellation = Cancellation()
    threading.Timer(0.3, cancellation.ask).start()
    began = time.monotonic()
    try:
        draw_once(sampler, engine, cancellation)
    except Cancelled:
        told["cancelled_s"] = time.monotonic() - began  # type: ignore[assignment]
    server.hold.set()
    return told | {"after_cancel": draw_once(sampler, engine, Cancellation())}


if __name__ == "__main__":
    for mode, rank in json.loads(sys.argv[2]).items():
        print("RESULT" + json.dumps(main(mode, Path(sys.argv[1]) / mode, rank)))
