"""How accelerate's configuration file spreads a model over several processes of one node.

accelerate itself reads the file when the processes start. Here it is checked: a setting that swarmd does not support is
an error. Imports no torch, because estimates of memory need this module.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError
from swarmd.paths import configs_directory

Kind = Literal["replicas", "fsdp", "zero"]
SHIPPED = ("ddp", "fsdp", "zero2", "zero3")
FSDP_KEYS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "fsdp_version": ((2,), "swarmd cuts models by FSDP2"),
    "fsdp_reshard_after_forward": ((True, False), "FSDP2 knows two answers"),
    "fsdp_auto_wrap_policy": (("TRANSFORMER_BASED_WRAP",), "swarmd cuts layer by layer"),
    "fsdp_offload_params": ((False,), "parts stay on their device"),
    "fsdp_cpu_ram_efficient_loading": ((False,), "swarmd loads the model on every rank before it is cut"),
    "fsdp_activation_checkpointing": ((False,), "training.gradient_checkpointing decides"),
}
ZERO_KEYS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "zero_stage": ((2, 3), "swarmd runs the stages 2 and 3"),
    "offload_optimizer_device": (("none",), "parts stay on their device"),
    "offload_param_device": (("none",), "parts stay on their device"),
    "zero3_init_flag": ((False,), "swarmd loads the model on every rank before it is cut"),
    "deepspeed_config_file": ((None,), "swarmd reads no further file; the keys go into deepspeed_config"),
}
DEFAULTS = {"fsdp_version": 1}  # accelerate's own; for other keys it is the first possible value


class Parallelism(msgspec.Struct, frozen=True):
    """The numbers of parts into which weights, gradients and moments are sharded; 1: every rank holds all."""

    kind: Kind = "replicas"
    weights: int = 1
    gradients: int = 1
    moments: int = 1


WRITE_IT = "Write it with `accelerate config --config_file FILE`"


def locate_file(name: str) -> Path:
    """The file that `training.accelerate` names: a shipped one by name, or any by path."""
    shipped = configs_directory() / "accelerate" / f"{name}.yaml"
    return shipped if name in SHIPPED else Path(name)


def find_parallelism(training: TrainingConfig) -> Parallelism:
    """Read how a configuration spreads the model. Raises ConfigError: the file is not accelerate's, has a setting that
    swarmd does not support, or conflicts with another setting."""
    if not training.accelerate or training.processes == 1:
        return Parallelism()
    path, ranks = locate_file(training.accelerate), training.processes
    keys = _read_yaml(path)
    kind = str(keys.get("distributed_type", "")).upper()
    if kind == "FSDP":
        own = _check_keys(keys.get("fsdp_config"), FSDP_KEYS, path)
        parallelism = Parallelism("fsdp", ranks if own["fsdp_reshard_after_forward"] else 1, ranks, ranks)
    elif kind == "DEEPSPEED":
        own = _check_keys(keys.get("deepspeed_config"), ZERO_KEYS, path)
        parallelism = Parallelism("zero", ranks if own["zero_stage"] == 3 else 1, ranks, ranks)
    else:
        return Parallelism()
    for setting, why in _list_conflicting_settings(training):
        raise ConfigError(f"{setting} does not go with {path}: {why}", 'Set training.accelerate = "ddp", or unset it')
    return parallelism


def _check_keys(section: Any, known: Mapping[str, tuple[tuple[Any, ...], str]], path: Path) -> dict[str, Any]:
    """Values of the keys that swarmd reads in a section. Raises ConfigError for an unsupported value."""
    given = section if isinstance(section, dict) else {}
    values = {key: given.get(key, DEFAULTS.get(key, possible[0])) for key, (possible, _) in known.items()}
    for key, (possible, why) in known.items():
        if values[key] not in possible:
            wanted = " or ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in possible)
            raise ConfigError(f"training.accelerate: {path} has {key}: {values[key]}; {why}", f"Set {key}: {wanted}")
    return values


def _list_conflicting_settings(training: TrainingConfig) -> Iterator[tuple[str, str]]:
    """Settings that need the whole model on each rank, with the reason."""
    if training.quantization != "none":
        yield f'training.quantization = "{training.quantization}"', "packed weights cannot be cut"
    if training.optimizer != "adamw":
        yield f'training.optimizer = "{training.optimizer}"', "its moments cannot be cut"
    if training.vllm.mode not in ("off", "auto"):
        yield f'training.vllm.mode = "{training.vllm.mode}"', "vLLM is sent the weights of one rank"


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"training.accelerate: there is no file {path}", f"Name one, or one of {', '.join(SHIPPED)}")
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"training.accelerate: {path} is not a configuration of accelerate: {error}", WRITE_IT
        ) from error
    if not isinstance(read, dict):
        raise ConfigError(f"training.accelerate: {path} is not a configuration of accelerate: it has no keys", WRITE_IT)
    return read
