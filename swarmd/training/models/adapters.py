"""Quantised weights (bitsandbytes), low-rank adapters (PEFT) and Unsloth: all optional, imported when asked for.

Under adapters everything else is frozen. What a stage trains, and a checkpoint holds, is then the adapters alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import torch

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import ConfigError
from swarmd.installed import extra_command
from swarmd.training.models.device import HALF, Precision
from swarmd.training.models.source import WITHOUT_CODE


def require(package: str, extra: str, key: str) -> Any:
    """An optional package, imported. Raises ConfigError naming the setting and the extra where it is missing."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{key} needs the package {package}, which is not installed", f"Install it: {extra_command(extra)}"
        )
    return importlib.import_module(package)


def quantize_by(numbers: Precision) -> Any:
    """transformers' settings to quantise a model while it is loaded, None where it stays as it is.

    4-bit is QLoRA's: normal float 4, the scales quantised too. Raises ConfigError without bitsandbytes.
    """
    if numbers.quantization == "none":
        return None
    require("bitsandbytes", "gpu", f'training.quantization = "{numbers.quantization}"')
    import transformers

    settings: Any = transformers.BitsAndBytesConfig  # without annotations
    if numbers.quantization == "8bit":
        return settings(load_in_8bit=True)
    compute = torch.bfloat16 if numbers.mixed else numbers.dtype
    return settings(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def add_adapters(model: Any, lora: LoraConfig, seed: int) -> Any:
    """The model with low-rank adapters, which change nothing until they are trained; all else is frozen.

    The same seed gives the same adapters. Raises ConfigError without PEFT, or where the model has no such layers.
    """
    peft = require("peft", "lora", "training.lora")
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=sorted(lora.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    layers = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    foreign = sorted(set(lora.targets) - layers)
    if foreign or not lora.targets:
        linear = sorted(name for name in layers if name.endswith(("proj", "_attn", "fc1", "fc2", "dense")))
        raise ConfigError(
            f"training.lora.targets: the model has no layer {', '.join(foreign) or 'of no name'}",
            f"Its linear layers are {', '.join(linear)}",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, settings)


def trained_parameters(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Name and parameter of all that is trained."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def lengthen_adapters(model: Any) -> None:
    """Put trained adapters back into float32: TRL shortens those on quantised weights, where small updates vanish."""
    for _, parameter in trained_parameters(model):
        if str(parameter.dtype).removeprefix("torch.") in HALF:
            parameter.data = parameter.data.float()


def spare_unused(training: TrainingConfig) -> None:
    """Keep transformers and TRL from importing PEFT and bitsandbytes where they are installed and nothing uses them.

    They bring torch's whole compiler along: some 50 MiB of memory, and 2 of the 9 s of processor time of a start.
    """
    quantises = training.quantization != "none" or training.optimizer == "adamw_8bit"
    if quantises or training.lora.rank or training.unsloth:
        return
    for name in ("peft", "bitsandbytes"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # to importers: it is not installed


def prepare_unsloth(training: TrainingConfig) -> None:
    """Import Unsloth where it is configured; it changes transformers and TRL, so this comes before TRL's import.

    Raises ConfigError where it is missing, or TRL was imported first.
    """
    if not training.unsloth or "unsloth" in sys.modules:
        return
    if "trl" in sys.modules:
        raise ConfigError("training.unsloth cannot be used: TRL was imported before Unsloth", "Start the node anew")
    if not torch.cuda.is_available():
        raise ConfigError("training.unsloth needs CUDA, and torch finds none", "Set training.unsloth = false")
    require("unsloth", "unsloth", "training.unsloth")


def load_with_unsloth(source: str, training: TrainingConfig, numbers: Precision) -> Any:
    """A model as Unsloth loads and patches it, with adapters where they are configured.

    Raises whatever Unsloth raises.
    """
    loader = require("unsloth", "unsloth", "training.unsloth").FastLanguageModel
    lora = training.lora
    model, _ = loader.from_pretrained(
        model_name=source,
        revision=training.revision or None,
        max_seq_length=training.prompt_tokens + training.completion_tokens,
        dtype=numbers.dtype,
        load_in_4bit=numbers.quantization == "4bit",
        load_in_8bit=numbers.quantization == "8bit",
        full_finetuning=not lora.rank,
        fast_inference=False,  # vLLM is driven by this process itself, where it is configured
        use_exact_model_name=True,
        **WITHOUT_CODE,
    )
    if not lora.rank:
        return model
    return loader.get_peft_model(
        model,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=training.seed,
    )


def merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and weight of the model under adapters, as it would be without them and trained to the same; a copy.

    Names are those of the model before the adapters were added.
    """
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            place, _, end = name.rpartition(".base_layer.")
            if any(name.startswith(f"{layer}.") and not place for layer in layers):
                continue  # the adapters themselves
            value = parameter.detach()
            if end == "weight":
                value = value + layers[place].get_delta_weight("default").to(value.dtype)
            yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), value
