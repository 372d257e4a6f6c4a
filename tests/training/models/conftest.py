"""Settings of small models, a model directory that a test may change, how it is changed, and a cache of its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

Weights = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 64}


def configured(file: str = "config.json", **settings: Any) -> Callable[[Path], object]:
    """Changes settings of a model."""
    return lambda model: (model / file).write_text(json.dumps(json.loads((model / file).read_text()) | settings))


def reweighted(change: Callable[[Weights], Weights]) -> Callable[[Path], object]:
    """Changes the weights of a model."""
    return lambda model: save_file(change(load_file(model / WEIGHTS)), model / WEIGHTS, {"format": "pt"})


def prefixed(prefix: str) -> Callable[[Weights], Weights]:
    return lambda weights: {prefix + name: value for name, value in weights.items()}


@pytest.fixture
def model(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "tiny"))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was converted, hashed or tried out before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
