"""Which model "auto" chooses, that it keeps it, and the error if none fits."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import ConfigError, ModelError
from swarmd.paths import NodeDirectory
from swarmd.training.models import pool
from swarmd.training.models.device import Precision
from swarmd.training.models.known import TABLE, find_model, parse_parameter_count
from swarmd.training.models.memory import GIB, DeviceMemory, ModelShape
from swarmd.training.models.model import read_model_shape
from swarmd.training.models.pool import choose_model, estimate_fit, list_pool, resolve_auto_model
from swarmd.training.models.source import locate_model

FULL = Precision("float32", True)
SMALL = TrainingConfig(questions=2, generations=2, completion_tokens=64, prompt_tokens=64)


def room(gib: float, device: str = "cuda") -> DeviceMemory:
    return DeviceMemory(device, int(gib * GIB), int(gib * GIB))


def inspect(source: str) -> ModelShape:
    return read_model_shape(source, source)


@pytest.mark.parametrize("row", {row.shape.parameters: row for row in TABLE}.values(), ids=lambda row: row.name)
def test_the_tables_counts_are_those_of_the_shapes(row: Any) -> None:
    shape = row.shape
    family = LlamaConfig if "deepseek" in row.name else Qwen3Config if "Qwen3" in row.name else Qwen2Config
    width = 64 if shape.parameters < 10**9 and family is Qwen2Config else 128
    config = family(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.queries // width,
        num_key_value_heads=shape.keys // width,
        head_dim=width,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        assert AutoModelForCausalLM.from_config(config).num_parameters() == shape.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("user/model-7B", 7e9), ("a/Qwen2.5-0.5B-Instruct", 5e8), ("x-1.5b-bnb-4bit", 1.5e9), ("SmolLM-360M", 3.6e8),
        ("user/gpt", None), ("7B/model", None), ("model-4bit", None), ("v2.5-base", None),
    ],
)  # fmt: skip
def test_a_name_tells_the_size(name: str, parameters: float | None) -> None:
    assert parse_parameter_count(name) == parameters


@given(free=st.floats(1, 2000), quantized=st.booleans(), device=st.sampled_from(["cuda", "cpu"]))
def test_the_choice_fits_and_nothing_larger_would(free: float, quantized: bool, device: str) -> None:
    training = SMALL
    if quantized:
        training = msgspec.structs.replace(SMALL, quantization="4bit", lora=LoraConfig(rank=8))
    here = room(free, device)
    fits = [estimate_fit(row, training, FULL, here) for row in TABLE]
    if not any(fit.fits_memory for fit in fits):
        with pytest.raises(ModelError, match="no model of the pool"):
            choose_model(TABLE, training, FULL, here)
        return
    chosen = choose_model(TABLE, training, FULL, here)
    assert chosen.fits_memory and chosen.need.minimum_bytes <= here.free
    assert all(fit.model.shape.parameters <= chosen.model.shape.parameters for fit in fits if fit.fits_memory)
    assert chosen == choose_model(TABLE, training, FULL, here), "the same every time"


def test_quantised_files_are_taken_only_where_they_are_configured() -> None:
    large = next(row for row in TABLE if row.name.endswith("72B-Instruct-bnb-4bit"))
    assert "quantization" in estimate_fit(large, SMALL, FULL, room(10_000)).why
    training = msgspec.structs.replace(SMALL, quantization="4bit", lora=LoraConfig(rank=8))
    assert estimate_fit(large, training, FULL, room(80)).fits_memory


def test_the_pool_is_kinds_ids_and_directories(llama: Path) -> None:
    training = TrainingConfig(pool=("coder", str(llama), "user/model-7B"))
    rows = list_pool(training, inspect)
    assert [row.name for row in rows[-2:]] == [str(llama), "user/model-7B"]
    assert {row.kind for row in rows[:-2]} == {"coder"} and rows[-2].shape.parameters < 100_000
    with pytest.raises(ConfigError, match="user/nameless") as caught:
        list_pool(TrainingConfig(pool=("user/nameless",)), inspect)
    assert "coder" in caught.value.fix
    with pytest.raises(ModelError, match="no model directory"):
        list_pool(TrainingConfig(pool=("./nowhere",)), inspect)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the free memory."""

    def set_free(gib: float) -> None:
        monkeypatch.setattr(pool, "measure_device_memory", lambda device: room(gib, device))

    return set_free


def auto(*models: object, **settings: Any) -> TrainingConfig:
    return TrainingConfig(model="auto", device="cpu", pool=tuple(map(str, models)), **settings)


def test_the_choice_is_kept_whatever_is_free_later(tmp_path: Path, llama: Path, scarce: Any) -> None:
    paths = NodeDirectory(tmp_path / "node")
    scarce(16)
    training = auto(llama, "embedded", completion_tokens=8, prompt_tokens=64)
    assert resolve_auto_model(training, paths, inspect).model == "embedded", "the larger of the two"
    scarce(0.001)
    assert resolve_auto_model(training, paths, inspect).model == "embedded"
    assert resolve_auto_model(auto(llama), paths, inspect).model == "embedded", "also with another pool"
    overridden = msgspec.structs.replace(training, model=str(llama))
    assert resolve_auto_model(overridden, paths, inspect) is overridden
    with pytest.raises(ModelError, match="no model of the pool"):
        resolve_auto_model(training, NodeDirectory(tmp_path / "other"), inspect)


def test_a_kept_model_that_is_gone_is_named(tmp_path: Path, llama: Path, scarce: Any) -> None:
    scarce(16)
    paths = NodeDirectory(tmp_path / "node")
    place = tmp_path / "model"
    place.symlink_to(llama)
    training = auto(place, prompt_tokens=64)
    assert resolve_auto_model(training, paths, inspect).model == str(place)
    place.unlink()
    with pytest.raises(ModelError, match="no longer there") as caught:
        resolve_auto_model(training, paths, inspect)
    assert str(place) in caught.value.message and str(paths.root / pool.CHOICE) in caught.value.fix


def test_a_lost_choice_is_found_in_the_newest_checkpoint(tmp_path: Path, llama: Path, scarce: Any) -> None:
    scarce(16)
    paths = NodeDirectory(tmp_path)
    for round, name in ((3, "embedded"), (10, str(llama))):
        directory = paths.checkpoints / f"r{round:09d}-s0000"
        directory.mkdir(parents=True)
        (directory / pool.CHOICE).write_bytes(pool.encode_choice(name))
    assert resolve_auto_model(auto("embedded"), paths, inspect).model == str(llama)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 9, "model": "x", "reason": ""}', b"\xff"])
def test_a_damaged_choice_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / pool.CHOICE).write_bytes(content)
    with pytest.raises(ConfigError, match=pool.CHOICE):
        resolve_auto_model(auto("embedded"), NodeDirectory(tmp_path), inspect)


def test_a_refusal_says_what_would_fit(scarce: Any) -> None:
    scarce(40)
    row = find_model("Qwen/Qwen2.5-7B-Instruct")
    assert row is not None
    with pytest.raises(ModelError) as caught:
        pool.check_fit("Qwen/Qwen2.5-7B-Instruct", row.shape, SMALL, FULL, "cuda")
    assert "40.0 GiB are free" in caught.value.message and "Qwen2.5-1.5B" in caught.value.fix
    assert "-7B" not in caught.value.fix.split("Choose")[0]
    scarce(400)
    pool.check_fit("Qwen/Qwen2.5-7B-Instruct", row.shape, SMALL, FULL, "cuda")


UNKNOWN = "~nobody-whom-this-machine-knows/model"
TOO_LONG = f"/{'m' * 300}"  # the system refuses to look there, as it does where this user may not read


@pytest.mark.parametrize("name", [UNKNOWN, TOO_LONG], ids=["unknown user", "not to be looked into"])
def test_a_path_that_cannot_be_followed_is_named(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        locate_model(name)
    assert name in caught.value.message and caught.value.fix
