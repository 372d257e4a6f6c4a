"""Adapters, quantised weights and 16-bit dtypes on the real trainer: what is trained, saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from swarmd import installed
from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import ConfigError, ModelError
from swarmd.installed import extra_command
from swarmd.training.engine import TrainingEngine
from swarmd.training.models import adapters, device
from swarmd.training.models import model as subject
from swarmd.training.models.adapters import merged_weights
from swarmd.training.models.memory import PROJECTIONS
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.peer_weights import combine
from tests.training.conftest import train_stage
from tests.training.models.conftest import GPT, SMALL, configured

Maker = Callable[..., TrainingEngine]
LORA = LoraConfig(rank=4)


def frozen(policy: Policy) -> dict[str, torch.Tensor]:
    return {
        name: parameter.clone() for name, parameter in policy.model.named_parameters() if not parameter.requires_grad
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_stage_trains_the_adapters_and_a_restart_goes_on(make_engine: Maker) -> None:
    engine = make_engine(lora=LORA, learning_rate=3e-3)
    policy = engine.policy
    assert policy.precision.description == "float32, adapters in float32"
    before, base = policy.copy_weights(), frozen(policy)
    assert before and all(".lora_B." in name for name in before)
    first = train_stage(engine, 0)
    after = policy.copy_weights()
    assert not any(torch.equal(before[name], after[name]) for name in before)
    assert same(frozen(policy), base) and engine.policy.digest_current_weights() != policy.digest
    assert engine._sampler.can_share_prefill and engine._trainer._packs is True

    held = engine.checkpoint_directory(first)
    assert same(load_file(held / "model.safetensors"), {**policy.fixed, **after})
    assert (held / "adapter_config.json").is_file() and not (held / "config.json").exists()

    again = make_engine(lora=LORA, learning_rate=3e-3)
    assert (
        again.policy.digest == policy.digest
        and again.policy.digest_current_weights() == engine.policy.digest_current_weights()
    )
    assert again.steps == 2 and same(again.policy.copy_weights(), after)
    assert train_stage(again, 0) == first
    second = train_stage(again, 1)
    assert (second.steps, again.steps) == (2, 4)


def test_a_checkpoint_with_other_fixed_matrices_is_refused() -> None:
    policy = load_policy(TrainingConfig(device="cpu", lora=LORA, seed=1))
    assert same(dict(policy.fixed), dict(load_policy(TrainingConfig(device="cpu", lora=LORA)).fixed)), "whatever seed"
    saved = policy.saved_weights()
    policy.load_weights(saved)
    name = next(iter(policy.fixed))
    with pytest.raises(ModelError, match="other adapters"):
        policy.load_weights(saved | {name: saved[name] + 1})


def test_adapters_that_were_switched_off_train_the_same_matrices_again() -> None:
    policy = load_policy(TrainingConfig(device="cpu", lora=LORA))
    trained = policy.trained_weights().keys()
    with policy.model.disable_adapter():
        pass
    assert policy.trained_weights().keys() == trained and all(".lora_B." in name for name in trained)


def test_adapters_of_another_rank_are_not_taken_for_these(make_engine: Maker) -> None:
    train_stage(make_engine(lora=LORA), 0)
    other = make_engine(lora=LoraConfig(rank=8))
    assert other.steps == 0, "its checkpoint began from other weights"
    with pytest.raises(ModelError, match="does not fit"):
        other.policy.load_weights(load_policy(TrainingConfig(device="cpu", lora=LORA)).trained_weights())


@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_quantised_weights_under_adapters_train_on_a_cpu(make_engine: Maker, quantization: str) -> None:
    engine = make_engine(lora=LORA, quantization=quantization, learning_rate=3e-3, steps=1)
    policy = engine.policy
    kinds = {parameter.dtype for parameter in policy.model.parameters() if not parameter.requires_grad}
    assert (torch.int8 if quantization == "8bit" else torch.uint8) in kinds
    assert {tensor.dtype for tensor in policy.trained_weights().values()} == {torch.float32}
    assert policy.parameter_count == 533_248
    before, base = policy.copy_weights(), frozen(policy)
    train_stage(engine, 0)
    assert not same(policy.copy_weights(), before) and same(frozen(policy), base)
    again = make_engine(lora=LORA, quantization=quantization, learning_rate=3e-3, steps=1)
    assert again.steps == 1 and again.policy.digest_current_weights() == engine.policy.digest_current_weights()


def test_the_eight_bit_optimizer_and_activation_checkpointing_train(make_engine: Maker) -> None:
    engine = make_engine(optimizer="adamw_8bit", gradient_checkpointing="on", steps=1)
    assert type(engine._trainer.optimizer).__module__.startswith("bitsandbytes")
    before = engine.policy.digest_current_weights()
    train_stage(engine, 0)
    assert engine.policy.model.is_gradient_checkpointing and engine.policy.digest_current_weights() != before


def test_merged_weights_are_pefts_own() -> None:
    policy = load_policy(TrainingConfig(device="cpu", lora=LORA))
    randomise(policy)
    ours, base = dict(merged_weights(policy.model)), frozen(policy)
    assert same(frozen(policy), base), "the model itself stays as it is"
    theirs = policy.model.merge_and_unload()
    expected = dict(theirs.named_parameters())
    assert ours.keys() == expected.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, expected[name].detach())


def randomise(policy: Policy) -> None:
    for _, parameter in adapters.trained_parameters(policy.model):
        torch.nn.init.normal_(parameter)


def test_the_mean_of_adapters_is_the_mean_of_what_they_add_to_the_weights() -> None:
    """But for the rounding of float32: with both matrices trained the error was as large as the mean itself."""
    policy = load_policy(TrainingConfig(device="cpu", lora=LORA))
    offers, added = [], []
    for _ in range(2):
        randomise(policy)
        offers.append(policy.copy_weights())
        added.append(products(policy))
    policy.load_weights(combine(offers[0], offers[1:]))
    for name, mean in products(policy).items():
        torch.testing.assert_close(mean, (added[0][name] + added[1][name]) / 2, rtol=1e-5, atol=1e-6)


def products(policy: Policy) -> dict[str, torch.Tensor]:
    """B A of each adapted layer, with the factor."""
    layers = {name: each for name, each in policy.model.named_modules() if hasattr(each, "get_delta_weight")}
    return {name: layer.get_delta_weight("default").detach().clone() for name, layer in layers.items()}


def test_unknown_layers_are_named() -> None:
    with pytest.raises(ConfigError, match="c_attn") as caught:
        load_policy(TrainingConfig(device="cpu", lora=LoraConfig(rank=2, targets=("q_proj", "c_attn"))))
    assert "q_proj" in caught.value.fix


@pytest.mark.parametrize(
    ("architecture", "targets"),
    [
        ("qwen2", set(PROJECTIONS)),
        ("gpt_neox", {"query_key_value"}),
        ("gpt2", {"c_attn"}),
        ("phi", {"q_proj", "v_proj", "fc1", "fc2"}),
        ("olmo2", set(PROJECTIONS)),
        ("phi3", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
    ],
)
def test_layers_are_chosen_by_the_architecture_where_none_are_named(architecture: str, targets: set[str]) -> None:
    """By PEFT's own table; an architecture that is not in it, such as Phi 3, has adapters on all linear layers."""
    settings = GPT if architecture == "gpt2" else SMALL
    plain = AutoModelForCausalLM.from_config(CONFIG_MAPPING[architecture](**settings))
    adapted = adapters.add_adapters(plain, LORA)
    layers = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, _ in adapters.trained_parameters(adapted)}
    assert layers == targets


@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [({"lora": LORA}, "peft", "lora"), ({"lora": LORA, "quantization": "4bit"}, "bitsandbytes", "gpu")],
)
def test_a_missing_package_is_named_with_its_extra(
    settings: dict[str, Any], package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = installed.importlib.util.find_spec
    monkeypatch.setattr(
        installed.importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(ConfigError, match=package) as caught:
        load_policy(TrainingConfig(device="cpu", **settings))
    assert caught.value.fix == f"Install it: {extra_command(extra)}" and f"'{package}>=" in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "spared"),
    [
        ({}, {"peft", "bitsandbytes", "deepspeed"}),
        ({"lora": LORA}, {"deepspeed"}),
        ({"accelerate": "zero2"}, {"peft", "bitsandbytes"}),
    ],
)
def test_what_nothing_uses_is_not_imported(
    settings: dict[str, Any], spared: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "sys", SimpleNamespace(modules={}))
    adapters.block_unused_imports(TrainingConfig(**settings))
    assert adapters.sys.modules == dict.fromkeys(spared)


@pytest.mark.usefixtures("own_cache")
def test_numbers_that_fail_give_way_to_float32(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What RL Swarm's users met: 16-bit kernels that this CPU does not have, or NaN."""
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(subject.log, "warning", lambda text, **words: told.append((text, words)), raising=False)
    real = subject.smoke_test_model

    def fail(loaded: Any, autocast: Any) -> str:
        return "RuntimeError: no Half here" if loaded.dtype == torch.float16 else real(loaded, autocast)

    monkeypatch.setattr(subject, "smoke_test_model", fail)
    policy = load_policy(TrainingConfig(device="cpu", dtype="float16"))
    assert policy.model.dtype == torch.float32 and policy.precision.description == "float32"
    assert len(told) == 1 and told[0][1]["wanted"] == "float16" and "no Half" in told[0][1]["reason"]


@pytest.mark.parametrize("spoil", ["nan", "raise"])
def test_the_trial_finds_what_does_not_work(spoil: str) -> None:
    policy = load_policy(TrainingConfig(device="cpu"))
    weights = policy.copy_weights()
    assert subject.smoke_test_model(policy.model, policy.autocast) == ""
    assert same(policy.copy_weights(), weights) and all(p.grad is None for p in policy.model.parameters())

    def forward(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nand more")

    if spoil == "nan":
        next(policy.model.parameters()).data.fill_(float("nan"))
    else:
        policy.model.forward = forward
    reason = subject.smoke_test_model(policy.model, policy.autocast)
    assert "not finite" in reason if spoil == "nan" else reason.endswith("not implemented for 'Half'")


@pytest.mark.usefixtures("own_cache")
def test_attention_falls_back_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subject.smoke_test_model

    def fail(loaded: Any, autocast: Any) -> str:
        return "no sdpa" if loaded.config._attn_implementation == "sdpa" else real(loaded, autocast)

    monkeypatch.setattr(subject, "smoke_test_model", fail)
    assert load_policy(TrainingConfig(device="cpu")).attention == "eager"
    with pytest.raises(ModelError, match="no sdpa"):
        load_policy(TrainingConfig(device="cpu", attention="sdpa"))


def test_flash_attention_is_for_cuda_in_short_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = device.Precision("float32", mixed=True), device.Precision("float32")
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())
    assert device.list_attention_candidates("auto", "cuda", short) == ("flash_attention_2", "sdpa", "eager")
    assert device.list_attention_candidates("auto", "cuda", long) == ("sdpa", "eager")
    assert device.list_attention_candidates("auto", "cpu", short) == ("sdpa", "eager")
    assert device.list_attention_candidates("eager", "cuda", short) == ("eager",)


@pytest.mark.parametrize(
    ("settings", "fast", "text"),
    [
        ({}, False, "float32"),
        ({}, True, "bfloat16 over float32"),
        ({"dtype": "bfloat16"}, True, "bfloat16"),
        ({"lora": LORA}, True, "bfloat16, adapters in float32"),
        ({"lora": LORA, "quantization": "4bit"}, True, "4bit, adapters in float32"),
        ({"lora": LORA}, False, "float32, adapters in float32"),
    ],
)
def test_numbers_follow_the_device(settings: dict[str, Any], fast: bool, text: str) -> None:
    assert device.choose_precision(TrainingConfig(**settings), "cuda", fast).description == text


def test_files_that_are_quantised_want_the_setting(model: Path) -> None:
    configured(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})(model)
    with pytest.raises(ConfigError, match="4bit") as caught:
        load_policy(TrainingConfig(model=str(model), device="cpu"))
    assert "quantization" in caught.value.fix
