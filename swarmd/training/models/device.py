"""Choices for a model: its device, dtypes and attention, and whether vLLM draws its completions."""

import importlib.util
from typing import Any, Literal, NamedTuple

import msgspec
import torch

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError
from swarmd.installed import import_optional
from swarmd.training.models.parallelism import find_parallelism

ACCELERATORS = ("cuda", "xpu", "mps")  # in the order of preference of "auto"
HALF = ("bfloat16", "float16")
LIGHT_PARAMETERS_MAX = 10_000_000  # up to this size one torch thread is faster than several


class Precision(msgspec.Struct, frozen=True):
    """The dtypes in which a model is held and computed."""

    weights: str  # "float32", "bfloat16" or "float16"; of a quantised model, the dtype of what is not quantised
    mixed: bool = False  # forward passes are in bfloat16 whatever the weights are
    quantization: str = "none"  # "none", or "8bit" or "4bit" of the frozen linear layers
    adapters: bool = False  # only adapters are trained, in float32

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.weights)
        return dtype

    @property
    def description(self) -> str:
        """The dtypes for people: "float32", "bfloat16 over float32", "4bit, adapters in float32"."""
        base = self.weights if self.quantization == "none" else self.quantization
        base = f"bfloat16 over {base}" if self.mixed and base == "float32" else base
        return f"{base}, adapters in float32" if self.adapters else base


def choose_device(wanted: str) -> str:
    """Choose the device: the first accelerator for "auto", else the wanted one. Raises ConfigError if it is missing."""
    modules = {name: torch.backends.mps if name == "mps" else getattr(torch, name) for name in ACCELERATORS}
    present = [name for name, module in modules.items() if module.is_available()]
    if wanted == "auto":
        return present[0] if present else "cpu"
    if wanted != "cpu" and wanted not in present:
        built = wanted != "cuda" or torch.version.cuda or torch.version.hip
        lacking = "Install the torch that fits the card (pytorch.org/get-started/locally): this one has no CUDA"
        raise ConfigError(
            f"training.device is {wanted!r}, but torch finds none",
            f'{"Check the driver" if built else lacking}; or set training.device = "auto"',
        )
    return wanted


def select_rank_device(wanted: str, rank: int) -> None:
    """Make a rank's own accelerator the current one, before anything is measured or loaded there. Raises ConfigError if
    this rank has none."""
    device = choose_device(wanted)
    if device not in ("cuda", "xpu"):
        return
    module = getattr(torch, device)
    count = int(module.device_count())
    if rank >= count:
        raise ConfigError(
            f"training.processes is {rank + 1} or more, but torch finds {count} {device} devices",
            f"Lower training.processes to {count}",
        )
    module.set_device(rank)


def name_device(device: str) -> str:
    """The name of an accelerator, or the instruction set that torch uses on a processor."""
    if device in ("cuda", "xpu"):
        return str(getattr(torch, device).get_device_name())
    return torch.backends.cpu.get_cpu_capability() if device == "cpu" else device


def has_bfloat16_hardware(device: str) -> bool:
    """Whether the device computes bfloat16 in hardware: CUDA from Ampere on, and XPU."""
    return device == "xpu" or (device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False))


def can_sample_in_bfloat16(training: TrainingConfig, device: str, precision: Precision, parameters: int) -> bool:
    """Whether completions may be drawn from a copy of the weights in bfloat16: the weights are held or trained in
    float32 by this process alone, the configuration leaves the dtype open, and the device computes bfloat16 in
    hardware."""
    if training.dtype != "auto" or training.processes > 1 or choose_vllm(training, device).mode != "off":
        return False
    if precision.quantization != "none" or parameters <= LIGHT_PARAMETERS_MAX:
        return False
    able = torch.cpu.get_capabilities()
    return precision.mixed if device != "cpu" else bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def needs_copy(training: TrainingConfig, device: str) -> bool:
    """Whether completions are drawn from a copy in any case, because the weights are trained meanwhile; never on a
    Mac's device, where torch cannot compute in two threads at once."""
    return training.overlap > 0 and choose_vllm(training, device).mode == "off" and device != "mps"


def choose_precision(training: TrainingConfig, device: str, fast: bool | None = None) -> Precision:
    """Choose the dtypes for a configuration on a device.

    `auto` keeps trained weights in float32, because small updates vanish in 16 bits, and computes in bfloat16 if the
    device does so in hardware. Weights that are frozen under adapters are then held in bfloat16.

    Args:
        fast: whether the device computes bfloat16 in hardware; None to detect it.
    """
    fast = has_bfloat16_hardware(device) if fast is None else fast
    adapters = training.lora.rank > 0
    if training.dtype != "auto":
        return Precision(training.dtype, False, training.quantization, adapters)
    return Precision("bfloat16" if fast and adapters else "float32", fast, training.quantization, adapters)


def list_attention_candidates(wanted: str, device: str, precision: Precision) -> tuple[str, ...]:
    """Attention implementations to try, best first; only the configured one if there is one. FlashAttention runs only
    on CUDA and in 16 bits."""
    if wanted != "auto":
        return (wanted,)
    half = precision.mixed or precision.weights in HALF
    flash = device == "cuda" and half and importlib.util.find_spec("flash_attn") is not None
    return (*(["flash_attention_2"] if flash else []), "sdpa", "eager")


def set_thread_count(wanted: int, model: Any) -> None:
    """Set torch's number of threads; small models run fastest on one."""
    light = model.num_parameters() <= LIGHT_PARAMETERS_MAX
    if wanted or light:
        torch.set_num_threads(wanted or 1)


def synchronize() -> None:
    """Wait until the accelerator has finished its work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


class VllmMode(NamedTuple):
    """How vLLM is used."""

    mode: Literal["off", "colocate", "server"]
    reason: str = ""  # why "auto" chose "off"


def choose_vllm(training: TrainingConfig, device: str) -> VllmMode:
    """The configured mode; for "auto", an engine in the trainer's process if possible, else "off"."""
    if training.vllm.mode != "auto":
        return VllmMode(training.vllm.mode)
    if device != "cuda":
        return VllmMode("off", f'training.vllm.mode = "auto" takes vLLM on CUDA devices, and this is {device}')
    engine = msgspec.structs.replace(training, vllm=msgspec.structs.replace(training.vllm, mode="colocate"))
    try:
        check_vllm(engine)
    except ConfigError as error:
        return VllmMode("off", error.message)
    return VllmMode("colocate")


def check_vllm(training: TrainingConfig) -> None:
    """Raise ConfigError if vLLM is not installed, or another setting forbids it."""
    key = f'training.vllm.mode = "{training.vllm.mode}"'
    if training.quantization != "none":
        raise ConfigError(
            f'{key} does not go with training.quantization = "{training.quantization}": vLLM would draw from other '
            "dtypes than those that are trained",
            "Set one of the two off",
        )
    find_parallelism(training)
    if training.vllm.mode == "server":
        return
    import_optional("vllm", "vllm", key)
