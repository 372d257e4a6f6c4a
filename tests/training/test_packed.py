"""Packed passes compute what plain ones do, gradients included, whatever the model."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from swarmd.training.packed import can_pack, compute_packed_logps, number_prompts, pack_batch, prepare_packing

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = SHAPE | {"num_key_value_heads": 2}
WIDE: dict[str, Any] = GROUPED | {"head_dim": 8}
MODELS: dict[str, Any] = {
    "llama": LlamaConfig(**GROUPED),
    "llama, tied": LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**WIDE),
    "gemma": GemmaConfig(**WIDE),
    "gpt-neox": GPTNeoXConfig(**SHAPE),
    "phi": PhiConfig(**SHAPE),
    "mistral, in windows": MistralConfig(**GROUPED, sliding_window=6),
    "gemma3, some layers in windows": Gemma3TextConfig(**WIDE, sliding_window=6),
}
TEMPERATURE = 0.8


class Rows(NamedTuple):
    """A batch as TRL makes it, with the rows in any order."""

    ids: torch.Tensor
    mask: torch.Tensor
    keep: int


def make_rows(prompts: list[int], completions: list[list[int]], seed: int = 0) -> Rows:
    """Rows of random tokens; the arguments are lengths in tokens, completions by prompt."""
    generator = torch.Generator().manual_seed(seed)
    width, keep = max(prompts), max(max(each) for each in completions)
    rows, masks = [], []
    for length, group in zip(prompts, completions, strict=True):
        prompt = torch.randint(3, 100, (length,), generator=generator)
        for written in group:
            completion = torch.randint(3, 100, (written,), generator=generator)
            left, right = torch.zeros(width - length), torch.zeros(keep - written)
            rows.append(torch.cat([left, prompt, completion, right]).long())
            masks.append(torch.cat([left, torch.ones(length + written), right]).long())
    order = torch.randperm(len(rows), generator=generator)
    return Rows(torch.stack(rows)[order], torch.stack(masks)[order], keep)


def make_model(name: str, config: Any = None) -> Any:
    """A model with weights large enough for attention to matter."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config or MODELS[name]).float().train()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 3
    return model


def compute_plain(model: Any, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Every row whole, and all logits."""
    positions = (rows.mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=rows.ids, attention_mask=rows.mask, position_ids=positions).logits
    logs = torch.log_softmax(logits[:, -rows.keep - 1 : -1].float() / TEMPERATURE, -1)
    written = rows.mask[:, -rows.keep :]
    chosen = logs.gather(2, rows.ids[:, -rows.keep :, None]).squeeze(2)
    return chosen * written, -(logs.exp() * logs).sum(-1) * written


def take_gradients(model: Any, logs: torch.Tensor) -> dict[str, torch.Tensor]:
    weights = torch.randn(logs.shape, generator=torch.Generator().manual_seed(2))
    (logs * weights).sum().backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return gradients


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_passes(name: str) -> None:
    rows = make_rows([9, 5, 1], [[12, 1, 7, 3], [8, 2, 12, 5], [4, 4, 4, 4]])
    model = make_model(name)
    plain, entropies = compute_plain(model, rows)
    expected = take_gradients(model, plain)
    prepare_packing(model)
    assert can_pack(model)
    torch.testing.assert_close(compute_plain(model, rows)[0], plain, atol=0, rtol=0)
    for recompute in (False, True):
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        packed, packed_entropies = compute_packed_logps(model, *rows, TEMPERATURE)
        torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(packed_entropies, entropies.detach(), atol=1e-5, rtol=1e-5)
        found = take_gradients(model, packed)
        assert found.keys() == expected.keys()
        for each, gradient in expected.items():
            torch.testing.assert_close(found[each], gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_lengths(data: st.DataObject) -> None:
    """Completions of one token and of none, prompts that begin alike, batches of one."""
    prompts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    groups = st.lists(st.integers(0, 5), min_size=1, max_size=3)
    completions = [[max(each, 1) if not place else each for each in data.draw(groups)] for place in range(len(prompts))]
    rows = make_rows(prompts, completions, seed=data.draw(st.integers(0, 9)))
    model = make_model("llama").eval()
    prepare_packing(model)
    with torch.no_grad():
        expected, got = compute_plain(model, rows), compute_packed_logps(model, *rows, TEMPERATURE)
    for plain, packed in zip(expected, got, strict=True):
        torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)


def test_a_packed_row_has_no_padding_and_each_prompt_once() -> None:
    rows = make_rows([4, 3], [[5, 2], [1, 3]])
    packed = pack_batch(*rows)
    assert packed.tokens.shape == packed.positions.shape == (1, 4 + 3 + 4 + 1 + 0 + 2)
    assert packed.targets.numel() == 5 + 2 + 1 + 3
    assert sorted(torch.bincount(number_prompts(*rows)).tolist()) == [2, 2]


def test_other_attention_is_left_as_it_is() -> None:
    model = make_model("llama")
    model.set_attn_implementation("eager")
    prepare_packing(model)
    assert not can_pack(model)


def test_saved_models_know_nothing_of_it(tmp_path: Path) -> None:
    model = make_model("llama")
    prepare_packing(model)
    model.save_pretrained(tmp_path)
    assert "swarmd" not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
