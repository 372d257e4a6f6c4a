"""Completions by vLLM, against doubles of its server and its engine around a real model on the CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from swarmd import installed
from swarmd.config import LoraConfig, TrainingConfig, VllmConfig
from swarmd.errors import ConfigError, GenerationFailed
from swarmd.training import vllm_sampler
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.adapters import merged_weights
from swarmd.training.models.device import check_vllm, choose_vllm
from swarmd.training.models.memory import estimate_need
from swarmd.training.models.model import Policy
from swarmd.training.sampling import Sampler
from swarmd.training.stage import Stage
from swarmd.training.vllm_sampler import ColocatedSampler, ServerSampler, VllmSampler, make_sampler
from tests.training.conftest import train_stage
from tests.training.impostor import impostor
from tests.training.models.test_memory import shape_of
from tests.training.vllm_double import EngineDouble, ServerDouble

MakeEngine = Callable[..., TrainingEngine]


@pytest.fixture
def server() -> Iterator[ServerDouble]:
    double = ServerDouble()
    with impostor(double.serve) as double.url:
        yield double


@pytest.fixture
def sampler(server: ServerDouble, policy: Policy, tmp_path: Path) -> ServerSampler:
    return ServerSampler(policy, lambda: 0, server.url, tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_sampler, "CONNECT_S", 0.0)
    monkeypatch.setattr(vllm_sampler, "RETRY_S", 0.0)


def draw(sampler: VllmSampler, cancellation: Cancellation | None = None, rooms: tuple[int, ...] = ()) -> Any:
    wanted = cancellation or Cancellation()
    drawn = sampler.sample([[5, 6, 7], [8, 9]], 3, 6, 1.0, torch.Generator(), wanted, rooms=rooms)
    assert all(len(each.logps) == len(each.tokens) for each in drawn)
    return [each.tokens for each in drawn]


def whole_weights(model: Any) -> dict[str, torch.Tensor]:
    return dict(merged_weights(model)) if hasattr(model, "peft_config") else dict(model.named_parameters())


def agree(one: Any, other: Any) -> bool:
    """Whether two models, with or without adapters, have the same weights."""
    own, theirs = whole_weights(one), whole_weights(other)
    return own.keys() == theirs.keys() and all(torch.equal(weight, theirs[name]) for name, weight in own.items())


@pytest.mark.parametrize("rank", [0, 4])
def test_a_server_draws_with_the_weights_of_each_step(server: ServerDouble, make_engine: MakeEngine, rank: int) -> None:
    """Whole models go to it, or adapters alone."""
    vllm = VllmConfig(mode="server", url=server.url)
    engine = make_engine(learning_rate=3e-3, lora=LoraConfig(rank=rank), vllm=vllm)
    agreed: list[bool] = []
    server.before_drawing = lambda model: agreed.append(agree(engine.policy.model, model))
    before = engine.policy.digest_current_weights()
    event = train_stage(engine, 0)
    train_stage(engine, 1)
    assert event.tokens > 0 and engine.steps == 4 and engine.policy.digest_current_weights() != before
    assert len(agreed) >= 5 and all(agreed)
    path = "/v1/load_lora_adapter" if rank else "/collective_rpc"
    assert server.calls.count(path) == 5, "before each of four steps and for the figures after the last"
    left = list((engine._sampler._directory).iterdir())  # type: ignore[attr-defined]
    assert len(left) == len(server.adapters) == (1 if rank else 0), "what a server has read is removed"


def test_a_server_draws_ahead_with_the_weights_before_the_step(
    server: ServerDouble, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = VllmConfig(mode="server", url=server.url)
    engine = make_engine(steps=3, overlap=1, learning_rate=3e-3, warmup_steps=0, held_out_questions=0, vllm=vllm)
    begun: list[dict[str, torch.Tensor]] = []  # weights with which each step begins
    drawn: list[dict[str, torch.Tensor]] = []
    next_batch = Stage.next_batch

    def copy_weights(model: Any) -> dict[str, torch.Tensor]:
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def keep_weights(stage: Stage) -> dict[str, Any]:
        begun.append(copy_weights(engine.policy.model))
        return next_batch(stage)

    monkeypatch.setattr(Stage, "next_batch", keep_weights)
    server.before_drawing = lambda model: drawn.append(copy_weights(model))
    assert train_stage(engine, 0).staleness == 1
    for weights, step in zip(drawn, (0, 0, 1), strict=True):
        assert all(torch.equal(weight, begun[step][name]) for name, weight in weights.items())
    assert server.calls.count("/collective_rpc") == 2, "at the start, and after the first step"


def test_a_server_gets_weights_that_were_loaded_without_a_step(
    server: ServerDouble, policy: Policy, sampler: ServerSampler
) -> None:
    draw(sampler)
    draw(sampler)
    sent = server.calls.count("/collective_rpc")
    weights = policy.copy_weights()
    policy.load_weights({name: weight + 0.25 for name, weight in weights.items()})
    server.before_drawing = lambda model: agreed.append(agree(policy.model, model))
    agreed: list[bool] = []
    draw(sampler)
    policy.load_weights(weights)
    assert sent == 1 and server.calls.count("/collective_rpc") == 2 and agreed == [True]


def test_completions_of_a_server_keep_to_their_rooms_and_equal_prompts_differ(sampler: ServerSampler) -> None:
    rows = draw(sampler, rooms=(2, 5))
    assert [len(row) <= room for row, room in zip(rows, [2, 2, 2, 5, 5, 5], strict=True)] == [True] * 6
    assert max(map(len, rows)) > 2
    many = sampler.sample([[5, 6, 7]] * 8 + [[8, 9]], 1, 6, 1.0, torch.Generator(), Cancellation(), rooms=[5] * 8 + [6])
    assert len({tuple(each.tokens) for each in many[:8]}) > 1


def test_what_a_server_does_wrong_is_an_error_and_weights_are_sent_again(
    server: ServerDouble, sampler: ServerSampler
) -> None:
    draw(sampler)
    for spoil, told in (
        (lambda choices: choices[:-1], "6 completions of this model's tokens"),
        (lambda choices: [{"token_ids": [10**9]} for _ in choices], "6 completions of this model's tokens"),
        (lambda choices: "none", "nonsense"),
    ):
        server.spoil = spoil
        with pytest.raises(GenerationFailed, match=told):
            draw(sampler)
    server.spoil, server.absent = list, {"/v1/completions"}
    with pytest.raises(GenerationFailed, match="answered /v1/completions with 404"):
        draw(sampler)
    server.absent = set()
    assert len(draw(sampler)) == 6
    assert server.calls.count("/collective_rpc") == 5


def test_adapters_reach_a_server_that_was_started_again(server: ServerDouble, make_engine: MakeEngine) -> None:
    engine = make_engine(lora=LoraConfig(rank=4), vllm=VllmConfig(mode="server", url=server.url))
    assert len(draw(engine._sampler)) == 6  # type: ignore[arg-type]
    server.adapters.clear()
    with pytest.raises(GenerationFailed, match="does not exist"):
        draw(engine._sampler)  # type: ignore[arg-type]
    assert len(draw(engine._sampler)) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "absent", "fix"),
    [
        (0, "/server_info", "VLLM_SERVER_DEV_MODE=1"),
        (4, "/v1/load_lora_adapter", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        (0, "/v1/models", "See its log"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_server_that_takes_no_weights_is_known_at_the_start(
    server: ServerDouble, make_engine: MakeEngine, rank: int, absent: str, fix: str
) -> None:
    server.absent = {absent}
    with pytest.raises(GenerationFailed) as caught:
        make_engine(lora=LoraConfig(rank=rank), vllm=VllmConfig(mode="server", url=server.url))
    assert fix in caught.value.fix and absent in caught.value.message


@pytest.mark.usefixtures("impatient")
def test_a_server_that_does_not_answer_is_given_up(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(GenerationFailed) as caught:
        ServerSampler(policy, lambda: 0, "http://127.0.0.1:9", tmp_path)
    assert "training.vllm.url" in caught.value.fix


def test_a_server_is_not_waited_for_after_a_cancellation(server: ServerDouble, sampler: ServerSampler) -> None:
    draw(sampler)
    server.hold.clear()
    cancellation = Cancellation()
    threading.Timer(0.3, cancellation.request).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        draw(sampler, cancellation)
    assert time.monotonic() - began < 5
    server.hold.set()
    assert len(draw(sampler)) == 6


@pytest.mark.parametrize("rank", [0, 4])
def test_an_engine_draws_with_the_weights_of_each_step(make_engine: MakeEngine, rank: int) -> None:
    """Under adapters with their sum and the base's."""
    engine, double = make_engine(learning_rate=3e-3, lora=LoraConfig(rank=rank)), EngineDouble()
    sampler = ColocatedSampler(engine.policy, lambda: engine.steps, double, lambda **settings: settings)
    engine._sampler = sampler
    train_stage(engine, 0)
    assert double.loads == 3 and agree(engine.policy.model, double.model)
    assert len(draw(sampler)) == 6 and double.loads == 3, "what it has is not sent again"
    double.model = None
    with pytest.raises(GenerationFailed, match="AttributeError"):
        draw(sampler)


def test_what_vllm_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingConfig(vllm=VllmConfig(mode="colocate"))
    with pytest.raises(ConfigError, match="vllm") as caught:
        check_vllm(training)
    assert "pip install 'vllm" in caught.value.fix
    check_vllm(TrainingConfig(vllm=VllmConfig(mode="server")))
    packed = TrainingConfig(vllm=VllmConfig(mode="server"), quantization="4bit", lora=LoraConfig(rank=4))
    with pytest.raises(ConfigError, match="quantization"):
        check_vllm(packed)


def pretend_installed(monkeypatch: pytest.MonkeyPatch, module: Any = None) -> None:
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(installed.importlib, "import_module", lambda name: module)


def test_auto_takes_an_engine_if_it_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingConfig(vllm=VllmConfig(mode="auto"))
    assert choose_vllm(training, "cpu").mode == "off"
    assert "not installed" in choose_vllm(training, "cuda").reason
    need = estimate_need(shape_of("7B"), training, "cuda", "float32", True)
    assert need.vllm == 0 and need.generation > 0
    pretend_installed(monkeypatch)
    assert choose_vllm(training, "cuda") == ("colocate", "")
    need = estimate_need(shape_of("7B"), training, "cuda", "float32", True)
    assert need.vllm > 0 and need.generation == 0
    cut = msgspec.structs.replace(training, accelerate="fsdp", processes=2)
    assert "accelerate" in choose_vllm(cut, "cuda").reason or "fsdp" in choose_vllm(cut, "cuda").reason
    packed = msgspec.structs.replace(training, quantization="4bit", lora=LoraConfig(rank=4))
    assert "quantization" in choose_vllm(packed, "cuda").reason
    assert choose_vllm(msgspec.structs.replace(training, vllm=VllmConfig(mode="server")), "cpu").mode == "server"


def test_the_model_draws_itself_without_vllm(policy: Policy, tmp_path: Path) -> None:
    for mode in ("off", "auto"):
        training = TrainingConfig(vllm=VllmConfig(mode=mode))  # type: ignore[arg-type]
        assert isinstance(make_sampler(policy, training, None, lambda: 0, tmp_path), Sampler)


def test_auto_draws_without_an_engine_that_does_not_start(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**settings: Any) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    pretend_installed(monkeypatch, SimpleNamespace(LLM=fail))
    monkeypatch.setattr(vllm_sampler.os, "environ", {})
    rank = SimpleNamespace(process_index=0, local_process_index=0, num_processes=1)
    trainer = SimpleNamespace(accelerator=rank)
    monkeypatch.setattr(vllm_sampler, "choose_vllm", lambda *_: ("colocate", ""))
    auto = TrainingConfig(vllm=VllmConfig(mode="auto"))
    assert isinstance(make_sampler(policy, auto, trainer, lambda: 0, tmp_path), Sampler)
    with pytest.raises(GenerationFailed, match="torchvision"):
        make_sampler(policy, TrainingConfig(vllm=VllmConfig(mode="colocate")), trainer, lambda: 0, tmp_path)
