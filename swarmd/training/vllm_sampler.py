"""Completions drawn by vLLM: by an engine in the trainer's process, or by a separate `vllm serve`.

* vLLM gets the weights before the first completions after each optimiser step, and after other weights were loaded. *
An engine gets them in memory, by vLLM's own `reload_weights`; under adapters the sum of base and adapters, because an
engine that adds them itself generates more slowly. * A server reads them from files in the node's directory, so the
trainer needs neither NCCL nor vLLM. Under adapters only those are written, each time under a new name, which requests
for completions then give. * Draws are not reproducible after a restart. A seed would not change that, since vLLM's sums
depend on the rest of the batch; and equal prompts with one seed would get equal completions.
"""

import abc
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from trl.trainer.utils import ensure_master_addr_port

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.errors import GenerationFailed
from swarmd.http_client import HttpFailed, HttpRequest, send_request
from swarmd.installed import import_optional
from swarmd.logger import get_logger
from swarmd.training.cancellation import Cancellation
from swarmd.training.drawing_copy import SamplingCopy
from swarmd.training.models.adapters import merged_weights
from swarmd.training.models.device import check_vllm, choose_vllm
from swarmd.training.models.memory import measure_device_memory, vllm_share
from swarmd.training.models.model import Policy, first_line, read_model_shape
from swarmd.training.models.source import hub_revision_of
from swarmd.training.sampling import BaseSampler, SampledTokens, Sampler, SamplingRequest

CONNECT_S = 120.0  # longest wait for a server to come up
RETRY_S = 1.0
CALL_S = 600.0  # longest call to the server
ANSWER_BYTES_MAX = 256 << 20
REASON_CHARS_MAX = 300  # quoted from a refusal, which may be a page of HTML
BATCH_TOKENS = 4096  # prompt tokens that an engine computes at once
HINTS = {  # for endpoints that a server has only if it was started with them
    "/v1/load_lora_adapter": "Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, and so that it "
    "can read this node's directory",
    "/server_info?config_format=json": "Start it with VLLM_SERVER_DEV_MODE=1 in its environment",
}

log = get_logger(__name__)


class VllmSampler(BaseSampler):
    """Draws completions through vLLM. `policy`: has the weights that are sent to vLLM. `steps`: returns the optimiser
    steps of the node's life, by which changes of the weights are noticed."""

    shares_prefill = True  # vLLM itself computes a prompt once for its group

    def __init__(self, policy: Policy, steps: Callable[[], int]) -> None:
        super().__init__(policy.stop_ids, policy.decode_completion)
        self._policy = policy
        self._steps = steps
        self._sent: tuple[int, int] | None = None  # steps and loads of the weights that vLLM has

    def _draw_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
        """Draw completions. A cancellation does not wait for a server, but for an engine's batch. Raises Cancelled:
        cancellation was requested; GenerationFailed: vLLM cannot be reached, failed, or gave an invalid answer."""
        try:
            return self._count_completions(self._draw_to_smallest_bound(self._draw_with_one_bound, wanted))
        except GenerationFailed:
            self._sent = None  # a restarted server has the weights of its own files
            raise

    @property
    def can_freeze(self) -> bool:
        return True

    def _update_weights(self, cancellation: Cancellation) -> None:
        """Send the weights if vLLM does not have them yet."""
        cancellation.raise_if_requested()
        current = (self._steps(), self._policy.loads)
        if self._sent != current:
            self._sent = None
            with self.timer.time("sync"):
                self._send_weights(cancellation)
            self._sent = current

    def _draw_with_one_bound(self, wanted: SamplingRequest) -> list[SampledTokens]:
        """Draw completions that all have the same token limit."""
        rows = self._generate_completions(wanted)
        wanted.cancellation.raise_if_requested()
        vocabulary = self._policy.model.get_input_embeddings().num_embeddings
        drawn = [row.tokens for row in rows]
        if len(rows) != wanted.row_count or not all(row and 0 <= min(row) <= max(row) < vocabulary for row in drawn):
            raise GenerationFailed(
                f"vLLM did not answer with {wanted.row_count} completions of this model's tokens",
                "Check that it serves the model that is trained",
            )
        cut = [self._cut_at_stop(tokens[: wanted.tokens_max], wanted.stops)[0] for tokens in drawn]
        return [SampledTokens(tokens, row.logps[: len(tokens)]) for tokens, row in zip(cut, rows, strict=True)]

    def _sampling_parameters(self, wanted: SamplingRequest) -> dict[str, Any]:
        """vLLM's sampling parameters, with all that the model's own generation settings could change."""
        settings: dict[str, Any] = {
            "n": wanted.group,
            "max_tokens": wanted.tokens_max,
            "temperature": wanted.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": self._stop_ids,
            "logprobs": 0,  # only of the token that was drawn
        }
        if wanted.stops:
            settings |= {"stop": list(wanted.stops), "include_stop_str_in_output": True}
        return settings

    @abc.abstractmethod
    def _send_weights(self, cancellation: Cancellation) -> None:
        """Give vLLM the present weights."""

    @abc.abstractmethod
    def _generate_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
        """Draw `group` completions of each prompt by vLLM, prompt by prompt."""


class ColocatedSampler(VllmSampler):
    """Draws with an engine in this process. `engine`: a `vllm.LLM`. `parameters`: `vllm.SamplingParams`."""

    def __init__(self, policy: Policy, steps: Callable[[], int], engine: Any, parameters: Callable[..., Any]) -> None:
        super().__init__(policy, steps)
        self._engine = engine
        self._parameters = parameters

    def _send_weights(self, cancellation: Cancellation) -> None:
        weights = {"weights_iterator": _iterate_full_weights(self._policy)}
        _convert_vllm_errors(lambda: self._engine.collective_rpc("reload_weights", kwargs=weights))
        self._engine.reset_prefix_cache()

    def _generate_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in wanted.prompts]
        parameters = self._parameters(**self._sampling_parameters(wanted), detokenize=bool(wanted.stops))
        outputs = _convert_vllm_errors(lambda: self._engine.generate(prompts, parameters, use_tqdm=False))
        return [_read_completion(completion) for output in outputs for completion in output.outputs]


def _read_completion(completion: Any) -> SampledTokens:
    """Convert an engine's completion, whose log-probabilities are by position and token."""
    tokens = list(completion.token_ids)
    return SampledTokens(
        tokens, [each[token].logprob for token, each in zip(tokens, completion.logprobs or [], strict=False)]
    )


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs | None = None


class _Completions(msgspec.Struct):
    choices: list[_Choice]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class ServerSampler(VllmSampler):
    """Draws with a server that reads weights from this machine's files, in a directory that is emptied first. Raises
    GenerationFailed: the server cannot be reached, or was started without the endpoints for weights."""

    def __init__(self, policy: Policy, steps: Callable[[], int], url: str, directory: Path) -> None:
        super().__init__(policy, steps)
        self._url = url.rstrip("/")
        self._directory = directory
        self._adapters = ""  # name of the adapters that the server has
        shutil.rmtree(directory, ignore_errors=True)
        self._base = self._await_server()
        self._update_weights(Cancellation())  # so that a server that accepts no weights fails at the start

    def _await_server(self) -> str:
        """Wait until the server answers. Returns the name of the model with which it was started."""
        deadline, never = time.monotonic() + CONNECT_S, Cancellation()
        while True:
            try:
                models: _Models = self._call_server("/v1/models", never, _Models)
                return models.data[0].id
            except GenerationFailed:
                if time.monotonic() > deadline:
                    raise
            never.sleep(RETRY_S)

    def _send_weights(self, cancellation: Cancellation) -> None:
        name = f"swarmd-{uuid.uuid4().hex}"
        place = self._directory / name
        place.mkdir(parents=True)
        if self._policy.precision.adapters:
            self._send_adapters(name, place, cancellation)
        else:
            self._send_model(place, cancellation)

    def _send_adapters(self, name: str, place: Path, cancellation: Cancellation) -> None:
        self._policy.model.save_pretrained(place, save_embedding_layers=False)  # else PEFT looks for them on the Hub
        body = {"lora_name": name, "lora_path": str(place.resolve())}
        self._call_server("/v1/load_lora_adapter", cancellation, body=body)
        former, self._adapters = self._adapters, name
        if former:  # a restarted server no longer has them, which is fine
            self._send_request("/v1/unload_lora_adapter", cancellation, {"lora_name": former})
        for other in self._directory.iterdir():  # including leftovers of a cancelled call
            if other != place:
                shutil.rmtree(other)

    def _send_model(self, place: Path, cancellation: Cancellation) -> None:
        info = self._call_server("/server_info?config_format=json", cancellation, dict[str, Any])
        dtype = getattr(torch, info["vllm_config"]["model_config"]["dtype"].removeprefix("torch."))
        # Copies, because safetensors refuses two names of one tensor.
        whole = _iterate_full_weights(self._policy)
        weights = {name: weight.to("cpu", dtype, copy=True).contiguous() for name, weight in whole}
        order = {"method": "reload_weights", "kwargs": {"weights_path": str(place.resolve())}}
        try:
            save_file(weights, place / "model.safetensors")
            self._call_server("/collective_rpc", cancellation, body=order)
        finally:
            shutil.rmtree(place)
        self._call_server("/reset_prefix_cache", cancellation, body={})

    def _generate_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
        body = {
            "model": self._adapters or self._base,
            "prompt": [list(prompt) for prompt in wanted.prompts],
            "return_token_ids": True,
            **self._sampling_parameters(wanted),
        }
        answer = self._call_server("/v1/completions", wanted.cancellation, _Completions, body)
        # A server's log-probabilities are those before the temperature, unless it was started otherwise.
        told = wanted.temperature == 1.0
        return [
            SampledTokens(
                choice.token_ids,
                [math.nan if each is None else each for each in choice.logprobs.token_logprobs]
                if choice.logprobs and told
                else [],
            )
            for choice in answer.choices
        ]

    def _call_server(self, path: str, cancellation: Cancellation, kind: Any = None, body: Any = None) -> Any:
        """Call the server: GET without a body, else POST. Returns the answer, decoded as `kind` if that is given.
        Raises Cancelled: cancellation was requested; the server stops its work; GenerationFailed: there was no answer,
        a refusal, or an invalid answer."""
        status, answer = self._send_request(path, cancellation, body)
        if status != 200:
            reason = answer[:REASON_CHARS_MAX].decode(errors="replace")
            raise GenerationFailed(
                f"vLLM at {self._url} answered {path} with {status}: {reason}",
                HINTS.get(path, "See its log") if status == 404 else "See its log",
            )
        try:
            return None if kind is None else msgspec.json.decode(answer, type=kind)
        except DECODE_ERRORS as error:
            raise GenerationFailed(
                f"vLLM at {self._url} answered {path} with nonsense: {first_line(error)}", "See what listens there"
            ) from error

    def _send_request(self, path: str, cancellation: Cancellation, body: Any) -> tuple[int, bytes]:
        """Send one request; returns the answer's status and body."""
        method, sent = ("GET", b"") if body is None else ("POST", msgspec.json.encode(body))
        request = HttpRequest(method, self._url + path, sent, {"Content-Type": "application/json"})
        try:
            return send_request(request, time.monotonic() + CALL_S, ANSWER_BYTES_MAX, cancellation.raise_if_requested)
        except HttpFailed as error:
            raise GenerationFailed(f"vLLM at {self._url}: {error}", "Start it, or correct training.vllm.url") from error


def make_sampler(
    policy: Policy,
    training: TrainingConfig,
    trainer: Any,
    steps: Callable[[], int],
    directory: Path,
    copy: SamplingCopy | None = None,
) -> BaseSampler:
    """Make the sampler of a node.

    Args:
        directory: for the weights that a vLLM server reads.
        copy: the copy of the policy to draw from without vLLM.

    Raises:
        ConfigError: vLLM is not installed, or conflicts with other settings.
        GenerationFailed: it cannot be started or reached.
    """
    mode, reason = choose_vllm(training, policy.device)
    if mode != "off":
        check_vllm(training)
        try:
            sampler: BaseSampler = (
                ServerSampler(policy, steps, training.vllm.url, directory)
                if mode == "server"
                else _start_engine(policy, training, trainer.accelerator, steps)
            )
            log.info("completions are drawn by vLLM", mode=mode)
            return sampler
        except GenerationFailed as error:
            if training.vllm.mode != "auto":
                raise
            reason = error.message
    if reason:
        log.info("completions are drawn without vLLM", reason=reason)
    return Sampler(policy, training.processes <= 1, copy)


def _start_engine(
    policy: Policy, training: TrainingConfig, accelerator: Any, steps: Callable[[], int]
) -> ColocatedSampler:
    """Start a vLLM engine on this rank's device. Raises GenerationFailed if it does not start."""
    vllm = import_optional("vllm", "vllm", "training.vllm.mode")
    source = policy.model.name_or_path
    shape = read_model_shape(source, training.model, hub_revision_of(training))
    # The variables that torchrun would set: the engine shares this process, and, with several ranks, its process group.
    ranks = {"RANK": "process_index", "LOCAL_RANK": "local_process_index", "WORLD_SIZE": "num_processes"}
    os.environ |= {name: str(getattr(accelerator, attribute)) for name, attribute in ranks.items()}
    ensure_master_addr_port()
    engine = _convert_vllm_errors(
        lambda: vllm.LLM(
            model=source,
            revision=hub_revision_of(training) or None,
            dtype="bfloat16" if policy.precision.mixed else policy.precision.weights,
            gpu_memory_utilization=vllm_share(shape, training, measure_device_memory(policy.device).total),
            max_model_len=training.prompt_tokens + training.completion_tokens,
            max_num_seqs=training.questions * training.generations,
            max_num_batched_tokens=BATCH_TOKENS,
            logprobs_mode="processed_logprobs",  # at the temperature
            distributed_executor_backend="external_launcher",
            seed=accelerator.process_index,
        )
    )
    return ColocatedSampler(policy, steps, engine, vllm.SamplingParams)


def _iterate_full_weights(policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights of the model, with adapters merged. Tied weights come under each of their names: on a CPU vLLM
    keeps its own copy of a tied output layer."""
    if policy.precision.adapters:
        return merged_weights(policy.model)  # tied layers have no adapters
    return ((name, weight.detach()) for name, weight in policy.model.named_parameters(remove_duplicate=False))


def _convert_vllm_errors(call: Callable[[], Any]) -> Any:
    """Turn vLLM's exceptions into GenerationFailed, except those of running out of memory."""
    try:
        return call()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise GenerationFailed(f"vLLM: {type(error).__name__}: {first_line(error)}", "See the log") from error
