"""A model directory is checked by its files before anything is loaded, and its weights have one digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from swarmd.config import DIGEST, TrainingConfig
from swarmd.errors import ConfigError, ModelError, ModelUnfit
from swarmd.training.models.files import digest_weights
from swarmd.training.models.model import load_policy
from swarmd.training.models.source import locate_configured, locate_model, require_model
from tests.training.models.conftest import WEIGHTS, configured, prefixed, reweighted

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 134515008\n"
PAGE = "\n<!DOCTYPE html><html><title>Sign in</title></html>"


def put(file: str, content: str | bytes, encoding: str = "utf-8") -> Callable[[Path], object]:
    written = content.encode(encoding) if isinstance(content, str) else content
    return lambda model: (model / file).write_bytes(written)


def change(file: str, how: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda model: (model / file).write_bytes(how((model / file).read_bytes()))


ADAPTERS = put("adapter_config.json", '{"base_model_name_or_path": "org/base"}')


def adapters_alone(model: Path) -> None:
    ADAPTERS(model)
    (model / "config.json").unlink()


def gguf_alone(model: Path) -> None:
    for file in model.iterdir():
        file.unlink()
    (model / "tiny-Q4.gguf").write_bytes(b"GGUF")


def a_level_too_high(model: Path) -> None:
    (model / "final").mkdir()
    for file in [each for each in model.iterdir() if each.is_file()]:
        file.rename(model / "final" / file.name)


def in_shards(model: Path) -> dict[str, str]:
    weights = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for start, file in enumerate(files):
        save_file({name: weights[name] for name in sorted(weights)[start::2]}, model / file)
    index = {name: files[place % 2] for place, name in enumerate(sorted(weights))}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return index


def a_shard_too_few(model: Path) -> None:
    (model / in_shards(model)["lm_head.weight"]).unlink()


def shards_alone(model: Path) -> None:
    in_shards(model)
    (model / "model.safetensors.index.json").unlink()


def empty_index(model: Path) -> None:
    in_shards(model)
    (model / "model.safetensors.index.json").write_text('{"weight_map": {}}')


def dangling(file: str) -> Callable[[Path], None]:
    def link(model: Path) -> None:
        (model / file).unlink()
        (model / file).symlink_to("../../blobs/0")

    return link


def with_mark(file: str) -> Callable[[Path], object]:
    return change(file, lambda content: b"\xef\xbb\xbf" + content)


def cast(dtype: torch.dtype) -> Callable[[Path], object]:
    return reweighted(lambda weights: {name: value.to(dtype) for name, value in weights.items()})


def quantised(method: str) -> Callable[[Path], object]:
    return configured(quantization_config={"quant_method": method})


def cut_pickle(model: Path) -> None:
    torch.save(load_file(model / WEIGHTS), model / "pytorch_model.bin")
    (model / WEIGHTS).unlink()
    (model / "pytorch_model.bin").write_bytes((model / "pytorch_model.bin").read_bytes()[:5000])


def of_training(model: Path) -> None:
    (model / WEIGHTS).unlink()
    (model / "global_step10").mkdir()


def hub_cache(model: Path) -> None:
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "config.json").rename(model / "snapshots" / "abc" / "config.json")


WRONG: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a pointer in place of weights": (put(WEIGHTS, POINTER), f"{WEIGHTS} is a pointer of Git LFS", "lfs pull"),
    "a pointer in place of a tokenizer": (
        put("tokenizer.json", POINTER),
        "tokenizer.json is a pointer of Git LFS",
        "lfs pull",
    ),
    "a page in place of weights": (put(WEIGHTS, PAGE), f"{WEIGHTS} is a web page", "Download"),
    "a page in place of settings": (put("config.json", PAGE), "config.json is a web page", "Download"),
    "an empty file": (put(WEIGHTS, b""), "is empty", "again"),
    "weights that are cut off": (change(WEIGHTS, lambda all: all[:-1000]), f"{WEIGHTS} is cut off: it has ", "again"),
    "a header that is cut off": (
        change(WEIGHTS, lambda all: all[:1000]),
        f"{WEIGHTS} is cut off in its header",
        "again",
    ),
    "another format": (put(WEIGHTS, b"PK\3\4" + bytes(100)), f"{WEIGHTS} is not a safetensors file", "again"),
    "a wrapper": (reweighted(prefixed("_orig_mod.")), "all of their names begin with '_orig_mod'", "model._orig_mod"),
    "adapters": (adapters_alone, "holds adapters of 'org/base'", 'training.model = "org/base"'),
    "adapters beside a model": (ADAPTERS, "has adapters beside its weights", "without adapter_config.json"),
    "a GGUF file in it": (gguf_alone, "has no config.json", "tiny-Q4.gguf"),
    "a shard too few": (a_shard_too_few, "is missing, which the index of its weights names", "again"),
    "shards without their index": (shards_alone, "has no weights", "index.json"),
    "an index of nothing": (empty_index, "is not the index of a model's weights", "again"),
    "a link to nothing": (dangling(WEIGHTS), "has no weights", "model.safetensors is a link to nothing"),
    "settings that link to nothing": (dangling("config.json"), "has no config.json", "is a link to nothing"),
    "a byte order mark": (with_mark("config.json"), "config.json is not JSON in UTF-8", "byte order mark"),
    "another mark": (with_mark("tokenizer_config.json"), "tokenizer_config.json is not JSON", "byte order mark"),
    "settings in UTF-16": (put("config.json", "{}", "utf-16"), "config.json is text in UTF-16", "UTF-8"),
    "a list of settings": (put("tokenizer_config.json", "[]"), "holds a list in JSON", "again"),
    "settings of generation, torn": (
        put("generation_config.json", "{"),
        "generation_config.json is not JSON",
        "again",
    ),
    "float8 without scales": (cast(torch.float8_e4m3fn), "is quantised (F8_E4M3)", "plain model"),
    "int8 without scales": (cast(torch.int8), "is quantised (I8)", "plain model"),
    "GPTQ": (quantised("gptq"), "are quantised by gptq", "plain model"),
    "a method that nobody knows": (quantised("mine"), "are quantised by mine", "plain model"),
    "more than weights": (change(WEIGHTS, lambda all: all + b"garbage"), "has something behind its weights", "again"),
    "a pickle that is cut off": (cut_pickle, "pytorch_model.bin is cut off", "again"),
    "a checkpoint of training": (of_training, "has no weights", "global_step10"),
    "a cache of the Hub": (hub_cache, "has no config.json", 'snapshots/abc"'),
    "a level too high": (a_level_too_high, "has no config.json", 'tiny/final"'),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_directory_that_is_no_model_is_refused_before_it_is_loaded(fault: str, model: Path) -> None:
    spoil, told, fix = WRONG[fault]
    spoil(model)
    with pytest.raises(ModelError) as caught:
        locate_model(str(model))
    assert told in caught.value.message and str(model) in caught.value.message, str(caught.value)
    assert fix in caught.value.fix, str(caught.value)


def test_a_directory_that_is_not_there_and_a_file_in_place_of_one(model: Path) -> None:
    with pytest.raises(ModelError, match="there is no model directory") as caught:
        locate_model(str(model / "none"))
    assert str(model / "none") in caught.value.message
    with pytest.raises(ModelError, match="is a file, not a model directory") as caught:
        locate_model(str(model / WEIGHTS))
    assert f'training.model = "{model}"' in caught.value.fix
    (model / "blocks.bin").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(ModelError, match="holds GGUF") as caught:
        locate_model(str(model / "blocks.bin"))
    assert "blocks.bin.gguf" in caught.value.fix


def test_a_relative_path_counts_from_where_swarmd_is_started(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert locate_model("./tiny") == "tiny"
    monkeypatch.chdir("/")
    with pytest.raises(ModelError, match="there is no model directory tiny") as caught:
        locate_model("./tiny")
    assert "counts from here, /" in caught.value.fix


def test_without_a_chat_template_it_is_refused_before_it_is_loaded(model: Path) -> None:
    require_model(TrainingConfig(model=str(model)))
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ModelUnfit, match="no chat template"):
        require_model(TrainingConfig(model=str(model)))


def test_the_digest_goes_by_the_weights_alone(model: Path, tmp_path: Path) -> None:
    """How they are spread over files says nothing; a single value does."""
    read = AutoModelForCausalLM.from_pretrained(model)
    read.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert digest_weights(tmp_path / "parts") == digest_weights(model)
    before, weights = digest_weights(model), load_file(model / WEIGHTS)
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, model / WEIGHTS, metadata={"format": "pt"})
    assert digest_weights(model) != before
    torch.save(weights, model / "pytorch_model.bin")
    (model / WEIGHTS).unlink()
    assert len(digest_weights(model)) == 64


def test_a_node_says_that_it_begins_from_other_weights_than_its_swarm(model: Path) -> None:
    """It trains all the same: they may be meant."""
    named = TrainingConfig(model=str(model), device="cpu", revision=DIGEST + digest_weights(model))
    assert load_policy(named).other_weights == ""
    reweighted(lambda weights: {name: value * 1.5 for name, value in weights.items()})(model)
    differ = load_policy(named).other_weights
    assert named.revision[7:23] in differ and digest_weights(model)[:16] in differ


def test_a_digest_is_no_revision_of_the_hub_nor_a_commit_one_of_a_directory(model: Path) -> None:
    with pytest.raises(ConfigError, match="is a model of the Hub"):
        locate_configured(TrainingConfig(model="org/name", revision=DIGEST + "a" * 64))
    with pytest.raises(ConfigError, match="is a directory or file"):
        locate_configured(TrainingConfig(model=str(model), revision="main"))


def test_an_index_names_the_files_that_count(model: Path) -> None:
    (model / "stray.safetensors").write_text(POINTER)
    (model / WEIGHTS).rename(model / "part.safetensors")
    names = load_file(model / "part.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "part.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert locate_model(str(model)) == str(model), "what lies beside them is never read"
    (model / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="is not the index"):
        locate_model(str(model))
