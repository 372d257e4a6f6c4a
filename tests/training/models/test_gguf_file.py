"""A model in a GGUF file trains like one in a directory; other files are refused with their name."""

from __future__ import annotations

import importlib.util
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from swarmd.cli import run_command
from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import ConfigError, ExitCode, GgufRefused, LogWriteFailed, ModelError, ModelUnfit, NoSpaceLeft
from swarmd.files import make_directory_atomically
from swarmd.installed import extra_command
from swarmd.swarms.plan import Message
from swarmd.training.models import gguf_file, source
from swarmd.training.models.gguf_file import resolve_model_directory
from swarmd.training.models.known import model_cache
from swarmd.training.models.memory import DeviceMemory
from swarmd.training.models.model import load_policy, read_base_weights
from swarmd.training.models.source import locate_configured, require_model
from tests.gguf_model import write_gguf
from tests.training.conftest import train_stage

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


def settings(file: Path, **others: Any) -> TrainingConfig:
    return TrainingConfig(model=str(file), device="cpu", dtype="float32", **others)


def test_its_weights_are_the_files_values_exactly_and_its_tokenizer_is_the_files(tmp_path: Path) -> None:
    values = write_gguf(tmp_path / "small.gguf")
    policy = load_policy(settings(tmp_path / "small.gguf"))
    weights = policy.model.state_dict()
    for name, own in (
        ("token_embd", "model.embed_tokens"),
        ("blk.1.ffn_down", "model.layers.1.mlp.down_proj"),
        ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
    ):
        assert torch.equal(weights[f"{own}.weight"], torch.from_numpy(values[f"{name}.weight"]))
    assert policy.parameter_count == sum(each.size for each in values.values())
    prompt = policy.tokenizer.decode(policy.encode_prompt([Message("user", "ab[INST]")]))
    assert prompt == "[INST]user: ab[ INST]\n[INST]answer: ", "its template, and its markers are escaped"
    assert policy.stop_ids == [1] and policy.name == str(tmp_path / "small.gguf")
    directory = load_policy(settings(Path(resolve_model_directory(str(tmp_path / "small.gguf")))))
    assert directory.digest == policy.digest
    assert read_base_weights(policy).keys() == weights.keys()


def test_it_is_converted_once_and_anew_when_the_file_has_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Path(resolve_model_directory(str(file)))
    made = first.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "hash_file", lambda path: pytest.fail("it was hashed before"))
        assert (resolve_model_directory(str(file)), first.stat().st_ino) == (str(first), made)
    write_gguf(file, chat="{{ messages[0]['content'] }}")
    assert resolve_model_directory(str(file)) != str(first)
    assert sorted(path.suffix for path in model_cache().iterdir()) == sorted(
        Path(path).suffix for path in (first, resolve_model_directory(str(file)))
    )


def test_what_lies_beside_the_file_does_not_count(file: Path) -> None:
    (file.parent / "tokenizer_config.json").write_text('{"chat_template": "another", "eos_token": "ab"}')
    (file.parent / "chat_template.jinja").write_text("another")
    assert load_policy(settings(file)).stop_ids == [1]


def test_a_stage_trains_adapters_on_it_and_a_restart_goes_on(file: Path, make_engine: Callable[..., Any]) -> None:
    training = {"model": str(file), "lora": LoraConfig(rank=4), "learning_rate": 3e-3, "prompt_tokens": 256}
    engine = make_engine(**training)
    held = engine.checkpoint_directory(train_stage(engine, 0))
    assert all(".lora_" in name for name in load_file(held / "model.safetensors"))
    assert make_engine(**training).policy.digest_current_weights() == engine.policy.digest_current_weights()


def cut(file: Path, keep: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another format": (lambda file: file.write_bytes(b"PK\3\4" * 100), "not a GGUF file"),
    "empty": (lambda file: file.write_bytes(b""), "not a GGUF file"),
    "cut in the header": (lambda file: cut(file, 0.01), "damaged, cut off or not a GGUF file"),
    "cut in the vocabulary": (lambda file: cut(file, 0.04), "damaged, cut off or not a GGUF file"),
    "cut in the weights": (lambda file: cut(file, 0.9), "damaged, cut off or not a GGUF file"),
    "another version": (lambda file: file.write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 0, 0)), "99"),
    "no architecture": (lambda file: file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0)), "architecture ''"),
    "unknown architecture": (lambda file: write_gguf(file, "clipper"), "the architecture 'clipper'"),
    "one of several parts": (lambda file: write_gguf(file, parts=3), "one of several parts"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_file_that_holds_no_model_is_refused(fault: str, file: Path) -> None:
    spoil, told = REFUSED[fault]
    spoil(file)
    for use in (require_model, load_policy):
        with pytest.raises(GgufRefused) as caught:
            use(settings(file))
        assert str(file) in caught.value.message and told in caught.value.message and caught.value.fix
    assert not model_cache().exists() or not list(model_cache().iterdir()), "nothing is left of it"


def test_values_that_transformers_does_not_read_are_no_detail(file: Path) -> None:
    write_gguf(file, extra="rope_freqs.weight")
    with pytest.raises(GgufRefused, match=r"holds [\d,]+ values, the model that transformers reads from it [\d,]+"):
        load_policy(settings(file))


def test_without_the_package_the_extra_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None if name == "gguf" else find(name))
    with pytest.raises(GgufRefused) as caught:
        locate_configured(settings(file))
    assert str(file) in caught.value.message and extra_command("gguf") in caught.value.fix


def test_without_a_chat_template_it_cannot_train(file: Path) -> None:
    write_gguf(file, chat="")
    for use in (require_model, load_policy):
        with pytest.raises(ModelUnfit, match="no chat template"):
            use(settings(file))


def test_a_file_that_is_not_there_and_a_revision_are_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ModelError, match="there is no GGUF file"):
        locate_configured(settings(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match=r"training\.revision"):
        locate_configured(settings(file, revision="main"))


def test_too_little_memory_or_disk_is_told_before_anything_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "measure_host", lambda: DeviceMemory("cpu", 1000, 2000))
        with pytest.raises(ModelUnfit, match="GiB of memory"):
            load_policy(settings(file))
    monkeypatch.setattr(gguf_file, "SPARE_BYTES", 2**60)
    with pytest.raises(NoSpaceLeft, match="no space left"):
        load_policy(settings(file))


def test_a_disk_that_fills_up_meanwhile_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*args: Any, **options: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", fill)
    with pytest.raises(LogWriteFailed, match="No space left"):
        load_policy(settings(file))
    assert not list(model_cache().iterdir())


def test_commands_weigh_and_check_it_without_converting_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["model", "fit", "--model", str(file), "--device", "cpu"]) == ExitCode.OK
    assert f"{file}" in capsys.readouterr().out
    config = file.parent / "node.toml"
    config.write_text(f'role = "coordinator"\n[swarm]\nid = "s"\n[training]\nmodel = "{file}"\n')
    assert run_command(["config", "check", str(config)]) == ExitCode.OK
    cut(file, 0.5)
    assert run_command(["config", "check", str(config)]) == ExitCode.BAD_DATA
    assert f"{file} is damaged" in capsys.readouterr().err
    assert not model_cache().exists()


def test_a_directory_is_made_by_one_of_several_and_begun_again_after_an_end(tmp_path: Path) -> None:
    place, calls = tmp_path / "model", []
    left = tmp_path / ".model.part" / "model"
    left.mkdir(parents=True)
    (left / "half").write_text("of an interrupted one")

    def make(part: Path) -> None:
        calls.append(part)
        (part / "whole").write_text("it")

    threads = [threading.Thread(target=make_directory_atomically, args=(place, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and [path.name for path in place.iterdir()] == ["whole"]
    assert not make_directory_atomically(place, make) and [path.name for path in tmp_path.iterdir()] == ["model"]
