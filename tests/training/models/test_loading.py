"""A model has exactly the weights of its files, or is refused with the names, the cause and the fix.

transformers makes up what a file lacks, with a warning: two nodes would train different random models and look healthy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from swarmd.config import TrainingConfig
from swarmd.errors import ModelUnfit
from swarmd.training.models.loading import read_model
from swarmd.training.models.model import Policy, check_loadable, load_policy, read_base_weights
from swarmd.training.reference.scoring import load_reference
from tests.training.models.conftest import GPT, SMALL, Weights, configured, prefixed, reweighted

ARCHITECTURES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "qwen2", "mistral", "phi", "gpt_neox"), SMALL),
    **dict.fromkeys(("qwen3", "gemma"), SMALL | {"head_dim": 8}),
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 4},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small random model of an architecture."""
    root = tmp_path_factory.mktemp("saved")

    def save(architecture: str) -> Path:
        place = root / architecture
        if not place.exists():
            config = CONFIG_MAPPING[architecture](**ARCHITECTURES[architecture])
            AutoModelForCausalLM.from_config(config).save_pretrained(place)
        return place

    return save


@pytest.fixture
def copy(saved: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of such a model with other weights in its file, and other values in its configuration."""

    def make(architecture: str, change: Callable[[Weights], Weights], **config: Any) -> Path:
        place = tmp_path / architecture
        shutil.copytree(saved(architecture), place)
        reweighted(change)(place)
        configured(**config)(place)
        return place

    return make


def without(*parts: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: value for name, value in weights.items() if not any(p in name for p in parts)}


def refusal(place: Path) -> ModelUnfit:
    with pytest.raises(ModelUnfit) as caught:
        read_model("mine", str(place))
    assert "mine" in caught.value.message and caught.value.fix
    return caught.value


def per_layer(weights: Weights) -> Weights:
    return {name.replace("layers.0.", "layers.0._orig_mod."): value for name, value in weights.items()}


def as_peft(weights: Weights) -> Weights:
    named = {name.replace("q_proj.", "q_proj.base_layer."): value for name, value in weights.items()}
    named["model.layers.0.self_attn.q_proj.lora_A.default.weight"] = torch.zeros(2, 16)
    return prefixed("base_model.model.")(named)


def as_classifier(weights: Weights) -> Weights:
    return without("lm_head")(weights) | {"score.weight": torch.zeros(2, 16)}


def wider(weights: Weights) -> Weights:
    return weights | {"model.embed_tokens.weight": torch.zeros(80, 16)}


CAUSES: dict[str, tuple[Callable[[Weights], Weights], dict[str, Any], str, str]] = {
    "a compiled model": (prefixed("_orig_mod."), {}, "27 are missing (lm_head.weight, ", "model._orig_mod"),
    "DDP": (prefixed("module."), {}, "module.lm_head.weight", "model.module"),
    "compiled layers": (per_layer, {}, "model.layers.0._orig_mod.", "torch.compile"),
    "PEFT": (as_peft, {}, "base_model.model.lm_head.weight", "merge_and_unload"),
    "another prefix": (prefixed("policy."), {}, "policy.lm_head.weight", "'policy.'"),
    "no head": (without("lm_head"), {}, "1 is missing (lm_head.weight)", "tie_word_embeddings"),
    "a classifier": (as_classifier, {}, "score.weight", "classifier"),
    "a classifier, tied": (as_classifier, {"tie_word_embeddings": True}, "score.weight", "classifier"),
    "a trainer's own file": (
        lambda all: {"model": torch.zeros(1), "step": torch.zeros(1)},
        {},
        "step",
        "checkpoint of",
    ),
    "other shapes": (wider, {}, "model.embed_tokens.weight is [80, 16] instead of [64, 16]", "config.json"),
    "a layer too few": (without("layers.1."), {}, "12 are missing (model.layers.1.", "config.json"),
    "a layer too many": (
        dict,
        {"num_hidden_layers": 1, "layer_types": None},
        "12 are not the model's (model.layers.1.",
        "config.json",
    ),
    "a bias too many": (lambda all: all | {"lm_head.bias": torch.zeros(64)}, {}, "lm_head.bias", "config.json"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_weights_that_are_not_the_models_are_refused_with_the_cause(cause: str, copy: Callable[..., Path]) -> None:
    change, config, named, fix = CAUSES[cause]
    refused = refusal(copy("qwen2", change, **config))
    assert named in refused.message and fix in refused.fix, str(refused)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_loads_as_saved_and_not_inside_a_wrapper(
    architecture: str, saved: Callable[[str], Path], copy: Callable[..., Path]
) -> None:
    written = AutoModelForCausalLM.from_pretrained(saved(architecture)).state_dict()
    read = read_model("mine", str(saved(architecture))).state_dict()
    assert all(torch.equal(read[name], value) for name, value in written.items())
    refused = refusal(copy(architecture, prefixed("_orig_mod.")))
    assert "torch.compile" in refused.fix


HARMLESS: dict[str, tuple[str, Callable[[Weights], Weights], dict[str, Any]]] = {
    "no head, tied": ("qwen2", without("lm_head"), {"tie_word_embeddings": True}),
    "a head, tied": (
        "gemma",
        lambda weights: weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()},
        {},
    ),
    "rotary frequencies": (
        "llama",
        lambda weights: weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)},
        {},
    ),
    "causal masks": (
        "gptj",
        lambda weights: weights | {f"transformer.h.0.attn.{name}": torch.ones(1) for name in ("bias", "masked_bias")},
        {},
    ),
    "what the architecture ignores": (
        "gpt_neox",
        lambda weights: weights | {"gpt_neox.layers.0.attention.bias": torch.ones(1)},
        {},
    ),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_is_computed_or_tied_is_no_matter(case: str, copy: Callable[..., Path]) -> None:
    architecture, change, config = HARMLESS[case]
    assert read_model("mine", str(copy(architecture, change, **config))).num_parameters()


def test_adapters_beside_a_model_are_not_read_without_a_word(copy: Callable[..., Path]) -> None:
    """transformers adds them if PEFT is installed; without PEFT the model computes something else."""
    place = copy("qwen2", dict)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(place), LoraConfig(target_modules=["q_proj"]))
    adapted.peft_config["default"].base_model_name_or_path = str(place)
    adapted.save_pretrained(place)
    with pytest.raises(ModelUnfit, match="mine has adapters beside its weights"):
        read_model("mine", str(place))


def test_all_that_reads_a_model_refuses_such_weights(model: Path) -> None:
    """The trainer, the weights that a checkpoint is put back to, and the reference server."""
    training = TrainingConfig(model=str(model), device="cpu")
    policy: Policy = load_policy(training)
    reweighted(without("layers.0.mlp"))(model)
    for use in (
        lambda: load_policy(training),
        lambda: read_base_weights(policy),
        lambda: load_reference(training),
        lambda: check_loadable(training),  # for `swarmd config check`
    ):
        with pytest.raises(ModelUnfit, match=r"are missing \(model\.layers\.0\.mlp"):
            use()


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("gpt2", {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("llama", {"attention_dropout": 0.5}),
        ("phi", {"attention_dropout": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}),
    ],
)
def test_training_has_no_dropout(copy: Callable[..., Path], architecture: str, settings: dict[str, float]) -> None:
    """Else the passes that are trained differ from those that completions are drawn from."""
    model = read_model("m", str(copy(architecture, dict, **settings))).train()
    tokens = torch.arange(32)[None]
    assert torch.equal(model(tokens).logits, model(tokens).logits)
