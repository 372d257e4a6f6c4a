"""Quantised weights (bitsandbytes) and low-rank adapters (PEFT): optional, imported only if configured.

An adapter adds B A to a layer's weights, and only B is trained. Base and A are the same on all nodes, so the mean of
several nodes' B is the mean of what they have learned (docs/adr/0061-means-exact-and-bounded.md). Checkpoints hold both
matrices, as PEFT needs them.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import ConfigError
from swarmd.installed import import_optional
from swarmd.training.models.device import HALF, Precision
from swarmd.training.models.memory import PROJECTIONS

FIXED_SEED = 0  # for A, which must be the same on all nodes of a swarm
ADAPTER = "default"  # PEFT's name for it


def make_quantization_config(precision: Precision) -> Any:
    """transformers' settings for quantising a model while it is loaded; None without quantisation. 4-bit is QLoRA's:
    normal float 4, with quantised scales. Raises ConfigError without bitsandbytes."""
    if precision.quantization == "none":
        return None
    import_optional("bitsandbytes", "gpu", f'training.quantization = "{precision.quantization}"')
    import transformers

    settings: Any = transformers.BitsAndBytesConfig  # without annotations
    if precision.quantization == "8bit":
        return settings(load_in_8bit=True)
    compute = torch.bfloat16 if precision.mixed else precision.dtype
    return settings(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )


def add_adapters(model: Any, lora: LoraConfig) -> Any:
    """Add low-rank adapters to a model, and freeze all but their matrices B. Until B is trained they change nothing.
    The same settings give the same adapters. Raises ConfigError without PEFT, or if the model lacks a named layer."""
    peft = import_optional("peft", "lora", "training.lora")
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=choose_targets(model, lora),
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FIXED_SEED)
        adapted = peft.get_peft_model(model, settings, adapter_name=ADAPTER)
    for module in adapted.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.frozen_peft_weight_names = {ADAPTER: ("lora_A",)}  # also when adapters are switched off and on again
    adapted.set_adapter(ADAPTER)
    return adapted


def fixed_matrices(model: Any) -> dict[str, torch.Tensor]:
    """Copies of the matrices A of all adapters, by the names that PEFT uses to save them."""
    return {
        _saved_name(name): parameter.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        if ".lora_A." in name
    }


def trained_matrices(model: Any) -> Mapping[str, torch.nn.Parameter]:
    """The matrices B of all adapters, by the names that PEFT uses to save them."""
    return {_saved_name(name): parameter for name, parameter in trained_parameters(model)}


def _saved_name(name: str) -> str:
    return name.replace(f".{ADAPTER}.", ".")


def choose_targets(model: Any, lora: LoraConfig) -> list[str] | str:
    """The layers that get adapters, in PEFT's form. Raises ConfigError if the model has no such layers."""
    from transformers.pytorch_utils import Conv1D

    linear = {
        name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)
    }
    foreign = sorted(set(lora.targets) - linear)
    if foreign:
        raise ConfigError(
            f"training.lora.targets: the model has no linear layer {', '.join(foreign)}",
            f"Its linear layers are {', '.join(sorted(linear))}; without targets they are chosen by its architecture",
        )
    return sorted(lora.targets) or _choose_targets(model.config.model_type, linear)


def _choose_targets(architecture: str, linear: set[str]) -> list[str] | str:
    """Layers that get adapters if none are configured: all of Llama's projections if the model has them, else those in
    PEFT's table for the architecture, else all linear layers except the output head.
    """
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    if linear.issuperset(PROJECTIONS):
        return sorted(PROJECTIONS)
    known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(architecture, ())
    return sorted(known) if known and linear.issuperset(known) else "all-linear"


def trained_parameters(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The trained parameters with their names."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def cast_adapters_to_float32(model: Any) -> None:
    """Cast trained adapters back to float32: on quantised weights TRL casts them to 16 bits, in which small updates
    vanish."""
    for _, parameter in trained_parameters(model):
        if str(parameter.dtype).removeprefix("torch.") in HALF:
            parameter.data = parameter.data.float()


def block_unused_imports(training: TrainingConfig) -> None:
    """Keep transformers and TRL from importing PEFT, bitsandbytes and DeepSpeed if they are installed but not used.

    The first two import torch's whole compiler: about 50 MiB of memory, and 2 of the 9 s of processor time of a start.
    """
    quantises = training.quantization != "none" or training.optimizer == "adamw_8bit"
    unused = [] if quantises or training.lora.rank else ["peft", "bitsandbytes"]
    for name in unused if training.accelerate else [*unused, "deepspeed"]:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # importers then find it not installed


def merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and copies of the model's weights with its adapters merged, under the names from before the adapters were
    added."""
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            place, _, end = name.rpartition(".base_layer.")
            if any(name.startswith(f"{layer}.") and not place for layer in layers):
                continue  # the adapters themselves
            value = parameter.detach()
            if end == "weight":
                value = value + layers[place].get_delta_weight(ADAPTER).to(value.dtype)
            yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), value
