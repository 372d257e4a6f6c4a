"""Completions drawn by vLLM, beside the trainer on its device or in a server, behind `Sampling`.

TRL's `VLLMGeneration` does the work: it starts the colocated engine, or joins the server's group for weights, sends the
weights and asks for completions. It is driven from here and not through GRPOConfig's `use_vllm`, because TRL then sends
weights when its own step count changes, which begins anew with every stage and does not know of a checkpoint loaded.

The weights are sent before the first completions after each optimiser step. Draws are not the same after a restart:
vLLM promises that to nobody.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, GenerationFailed
from swarmd.training.cancellation import Cancellation, TokenDecoder
from swarmd.training.drawing_copy import DrawingCopy
from swarmd.training.models.adapters import merged_weights, require
from swarmd.training.models.memory import measure_room, vllm_share
from swarmd.training.models.model import Policy, inspect_model
from swarmd.training.models.smoke_test import first_line
from swarmd.training.models.source import commit_of, locate_model
from swarmd.training.sampling import Drawn, Sampler, Sampling, SamplingRequest, draw_seed

CONNECT_S = 120.0  # longest wait for a server that is not up yet
CALL_S = (10.0, 600.0)  # longest connecting and longest silence of a call to the server
POLL_S = 0.1  # how often a cancellation is looked for while the server generates


class Generation(VLLMGeneration):
    """TRL's, with adapters added to what is sent, not to the model: adding and subtracting would wear its weights."""

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        if hasattr(self.model, "peft_config"):
            yield from merged_weights(self.model)
        else:
            yield from super()._iter_named_params()  # type: ignore[no-untyped-call]


class VllmSampler(Sampling):
    """Draws completions through vLLM.

    Args:
        generation: TRL's link to vLLM.
        vocabulary: token ids that there are; an answer with others is refused.
        steps: optimiser steps of the node's life, by which it is known whether the weights have been sent.
    """

    shares_prefill = True  # vLLM computes a prompt once for its group by itself

    def __init__(
        self,
        generation: VLLMGeneration,
        stop_ids: Sequence[int],
        vocabulary: int,
        steps: Callable[[], int],
        decode: TokenDecoder,
    ) -> None:
        super().__init__(stop_ids, decode)
        self._generation = generation
        self._vocabulary = vocabulary
        self._steps = steps
        self._sent: int | None = None
        self._left: threading.Thread | None = None  # a call that was cancelled and still runs

    def _draw(self, wanted: SamplingRequest) -> list[Drawn]:
        """As `Sampling.sample`.

        A server is given up between two looks at the cancellation; a colocated engine finishes its batch first.

        Raises:
            Cancelled: it was asked for.
            GenerationFailed: vLLM cannot be reached, failed, or answered nonsense.
        """
        wanted.cancellation.check()
        self._await_left(wanted.cancellation)
        if self._sent != self._steps():
            _guard(self._generation.sync_weights)
            self._sent = self._steps()
        return self._draw_evenly(self._draw_alike, wanted)

    def _draw_alike(self, wanted: SamplingRequest) -> list[Drawn]:
        """Draw where all completions have the same room: TRL asks for all with one."""
        cancellation, group = wanted.cancellation, wanted.group
        self._set(wanted)
        repeated = [list(prompt) for prompt in wanted.prompts for _ in range(group)]
        call = functools.partial(self._generation.generate, prompts=repeated, images=None, num_generations=group)
        beside = self._generation.mode == "server"
        answer = self._run_beside(call, cancellation) if beside else _guard(call)
        cancellation.check()
        rows = self._check(answer[1], len(repeated))
        cut = [self._cut(tokens[: wanted.tokens_max], wanted.stops)[0] for tokens in rows]
        logps = answer[2] or [[] for _ in rows]  # of the token drawn alone, at the temperature; None: no number
        return [
            Drawn(tokens, [math.nan if each[0] is None else each[0] for each in given[: len(tokens)]])
            for tokens, given in zip(cut, logps, strict=True)
        ]

    def _set(self, wanted: SamplingRequest) -> None:
        generation, seed = self._generation, draw_seed(wanted.generator)
        generation.max_completion_length = wanted.tokens_max
        generation.temperature = wanted.temperature
        settings: dict[str, Any] = {"stop_token_ids": self._stop_ids}
        if wanted.stops:
            settings |= {"stop": list(wanted.stops), "include_stop_str_in_output": True}
        if generation.mode == "server":  # colocated, TRL asks for each completion by itself: one seed would copy them
            settings["seed"] = seed
        generation.generation_kwargs = settings

    def _run_beside(self, call: Callable[[], Any], cancellation: Cancellation) -> Any:
        """The call's result; it runs in a thread, so that a cancellation need not wait for it."""
        outcome: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                outcome.put((call(), None))
            except Exception as error:
                outcome.put((None, error))

        self._left = threading.Thread(target=run, name="vllm", daemon=True)
        self._left.start()
        self._await_left(cancellation)
        result, error = outcome.get()
        if error is not None:
            raise _explain(error) from error
        return result

    def _await_left(self, cancellation: Cancellation) -> None:
        while self._left is not None and self._left.is_alive():
            cancellation.check()
            self._left.join(POLL_S)
        self._left = None

    def _check(self, rows: Any, expected: int) -> list[list[int]]:
        """The completions, if they are what was asked for."""
        whole = isinstance(rows, list) and len(rows) == expected
        if not whole or not all(row and all(0 <= token < self._vocabulary for token in row) for row in rows):
            raise GenerationFailed(
                f"vLLM did not answer with {expected} completions of this model's tokens",
                "Check that it serves the model that is trained",
            )
        return [[int(token) for token in row] for row in rows]


def make_sampler(
    policy: Policy,
    training: TrainingConfig,
    trainer: Any,
    steps: Callable[[], int],
    copy: DrawingCopy | None = None,
) -> Sampling:
    """What draws completions for a node.

    Args:
        copy: of the policy to draw from, where vLLM does not.
        trainer: TRL's; its model is what vLLM is given.
        steps: optimiser steps of the node's life.

    Raises:
        ConfigError: vLLM is not installed, or does not go with the device or the quantisation.
        GenerationFailed: it cannot be started or reached.
    """
    if training.vllm.mode == "off":
        return Sampler(policy, training.processes <= 1, copy)
    check_vllm(training, policy.device)
    generation = make_generation(policy, training, trainer.model, trainer.accelerator)
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    return VllmSampler(generation, policy.stop_ids, vocabulary, steps, policy.decode_completion)


def check_vllm(training: TrainingConfig, device: str) -> None:
    """Raise ConfigError where vLLM is missing or cannot be used with these settings."""
    key = f'training.vllm.mode = "{training.vllm.mode}"'
    require("vllm", "vllm", key)
    if device != "cuda":
        raise ConfigError(
            f"{key} needs a CUDA device for the trainer: weights reach vLLM over NCCL",
            'Set training.vllm.mode = "off"',
        )
    if commit_of(training) and training.vllm.mode == "colocate":
        raise ConfigError(
            f"{key} does not go with training.revision: TRL tells vLLM the model's name alone",
            f"Name a copy: `hf download {training.model} --revision {training.revision} --local-dir DIR`",
        )
    if training.quantization != "none":
        raise ConfigError(
            f'{key} does not go with training.quantization = "{training.quantization}": vLLM would be given '
            "weights in bitsandbytes' packing",
            "Set one of the two off",
        )


def make_generation(policy: Policy, training: TrainingConfig, model: Any, accelerator: Any) -> Generation:
    """TRL's link to vLLM for this node.

    Raises:
        GenerationFailed: it cannot be made.
    """
    server = training.vllm.mode == "server"
    share = 0.0 if server else _choose_share(policy, training)
    make = functools.partial(
        Generation,
        model=model,
        accelerator=accelerator,
        processing_class=policy.tokenizer,
        mode=training.vllm.mode,
        server_base_url=training.vllm.url if server else None,
        server_timeout=CONNECT_S,
        gpu_memory_utilization=share,
        max_model_length=training.prompt_tokens + training.completion_tokens,
        max_num_seqs=training.questions * training.generations,
        top_k=0,
        logprobs=0,
    )
    generation: Generation = _guard(make)
    if server:
        session: Any = generation.vllm_client.session
        session.request = functools.partial(session.request, timeout=CALL_S)
    return generation


def _choose_share(policy: Policy, training: TrainingConfig) -> float:
    shape = inspect_model(locate_model(policy.name), policy.name, policy.revision)
    return vllm_share(shape, training, measure_room(policy.device).total)


def _guard(call: Callable[[], Any]) -> Any:
    """What the call gives. Raises GenerationFailed where vLLM fails, but for memory that ran out."""
    try:
        return call()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _explain(error) from error


def _explain(error: Exception) -> GenerationFailed:
    return GenerationFailed(f"vLLM: {type(error).__name__}: {first_line(error)}", "See its log")
