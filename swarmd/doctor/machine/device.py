"""The accelerator, its driver and its numbers, and whether the model fits into the memory there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from swarmd.config import Dtype, TrainingConfig
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.machine.probe import ModelFit, ProbeAnswer
from swarmd.doctor.subject import Subject
from swarmd.errors import ConfigError, SwarmdError
from swarmd.training.distributed.parallelism import find_spread

GIB = 2**30
TIGHT_SHARE = 0.9  # of the free memory; above it a second program on the machine is one too many
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
HALF: tuple[Dtype, ...] = ("float16", "bfloat16")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

PROBE_FAILED = FindingKind(
    "device.torch",
    "error",
    "torch cannot be used",
    "The trainer would end as soon as it starts: torch does not load, or crashes when it looks for devices.",
    "Install torch anew for this machine (pytorch.org says how), then `swarmd doctor --only device`",
)
DEVICE_MISSING = FindingKind(
    "device.missing",
    "error",
    "The configured device is not there",
    "The trainer ends with code 78 at its start.",
    'Set training.device = "auto", or make the device visible to torch',
)
DRIVER_UNUSED = FindingKind(
    "device.driver",
    "warning",
    "There is an NVIDIA driver, but torch finds no GPU",
    "The node trains on the CPU, many times slower. torch was built without CUDA or for a newer driver, or "
    "CUDA_VISIBLE_DEVICES hides the GPUs.",
    "Install the torch that fits the driver (pytorch.org says which), and look at CUDA_VISIBLE_DEVICES",
)
HALF_ON_CPU = FindingKind(
    "device.half",
    "warning",
    "16-bit numbers on a CPU",
    "Some operations are not there in 16 bit on CPUs and end in a RuntimeError, others are slow; small updates vanish.",
    'Set training.dtype = "auto" or "float32"',
)
GPUS_IDLE = FindingKind(
    "device.idle",
    "note",
    "Not all accelerators are used",
    "One trainer process uses one accelerator.",
    "Set training.processes to their number, or run a node for each with its own CUDA_VISIBLE_DEVICES",
)
ACCELERATE_WRONG = FindingKind(
    "device.accelerate",
    "error",
    "The file of training.accelerate cannot be used",
    "The trainer ends with code 78 at its start.",
    'Set training.accelerate to "ddp", "fsdp", "zero2" or "zero3"',
)
GPUS_FEW = FindingKind(
    "device.few",
    "error",
    "More trainer processes than accelerators",
    "The processes would share one device; the trainer does not start so.",
    "Lower training.processes to the number of accelerators",
)
MODEL_TOO_LARGE = FindingKind(
    "memory.short",
    "error",
    "The model does not fit",
    "Training takes more memory than is free: the trainer ends with code 66 at its start.",
    "Free memory, choose a smaller model, or adapters with quantisation: `swarmd model fit --config FILE` weighs them",
)
MODEL_TIGHT = FindingKind(
    "memory.tight",
    "warning",
    "The model only just fits",
    "Any other program may push the trainer out of memory. It then cuts its passes smaller, and rounds take longer.",
    "Lower training.micro_questions or the token counts, set training.gradient_checkpointing, or stop other programs",
)
MODEL_UNKNOWN = FindingKind(
    "memory.unknown",
    "note",
    "The model's size is not known",
    "Whether it fits shows when the trainer loads it.",
    "Download it first, or name a model whose size is in its name",
)
MODEL_UNUSABLE = FindingKind(
    "memory.model",
    "error",
    "The model cannot be used",
    "The trainer ends with code 66 or 78 at its start.",
    "Correct training.model or training.pool",
)
MODEL_ABSENT = FindingKind(
    "memory.download",
    "note",
    "The model is not on this machine yet",
    "It is downloaded when the trainer first starts, which must be over within workers.ready_s.",
    "Download it before the start: `hf download` and its name",
)
MODEL_UNREACHABLE = FindingKind(
    "memory.offline",
    "error",
    "The model is not on this machine, and downloads are forbidden",
    "The trainer cannot load it and ends with code 66.",
    "Unset HF_HUB_OFFLINE for the first start, or name a model directory in training.model",
)


async def check_device(subject: Subject) -> list[Finding]:
    """Device, driver, numbers."""
    training = subject.config.training if subject.config else TrainingConfig()
    try:
        found = await subject.probe()
    except SwarmdError as error:
        return [PROBE_FAILED.found(error.message)]
    if found.fault:
        return [DEVICE_MISSING.found(found.fault, found.fix), *_examine_driver(found)]
    examined = (_examine_driver(found), _examine_numbers(found, training), _examine_count(found, training))
    findings = [*chain(*examined), *_examine_spread(training)]
    names = f" ({', '.join(found.names)})" if found.names else ""
    evidence = f"{found.device}{names}, {found.numbers}, torch {found.torch}, {_gib(found.total)} of memory"
    return findings or [well("device", "Device", evidence)]


def _examine_driver(found: ProbeAnswer) -> Iterator[Finding]:
    if found.names or not NVIDIA_DRIVER.exists():
        return
    version = NVIDIA_DRIVER.read_text(encoding="ascii", errors="replace").partition("\n")[0]
    built = f"built for CUDA {found.cuda}" if found.cuda else "built without CUDA"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = f"; CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
    yield DRIVER_UNUSED.found(f"{version}; torch {found.torch} is {built}{shown}")


def _examine_numbers(found: ProbeAnswer, training: TrainingConfig) -> Iterator[Finding]:
    if found.device == "cpu" and training.dtype in HALF:
        yield HALF_ON_CPU.found(f'training.dtype is "{training.dtype}", and the device is a CPU')


def _examine_count(found: ProbeAnswer, training: TrainingConfig) -> Iterator[Finding]:
    if found.device != "cuda":
        return
    count = len(found.names)
    if training.processes > count:
        yield GPUS_FEW.found(
            f"training.processes is {training.processes}, torch sees {count}: {', '.join(found.names)}"
        )
    elif training.processes < count:
        yield GPUS_IDLE.found(
            f"training.processes is {training.processes}, torch sees {count}: {', '.join(found.names)}"
        )


def _examine_spread(training: TrainingConfig) -> Iterator[Finding]:
    try:
        find_spread(training)
    except ConfigError as error:
        yield ACCELERATE_WRONG.found(error.message, error.fix)


async def check_memory(subject: Subject) -> list[Finding]:
    """The model against the free memory. While the node runs, what it holds is not free, and nothing is said."""
    if (await subject.life()).runs:
        return [well("memory", "Memory", "the node runs with its model; nothing is reckoned beside it")]
    try:
        found = await subject.probe()
    except SwarmdError as error:
        return [MODEL_UNKNOWN.found(error.message, PROBE_FAILED.fix)]
    if found.fault:
        return [MODEL_UNKNOWN.found(f"there is no device to weigh it on: {found.fault}", found.fix)]
    if found.unknown:
        named = subject.whole[0].training.model
        return [_unknown(named, found)]
    return [*_examine_download(found), *_examine_fit(found)]


def _unknown(named: str, found: ProbeAnswer) -> Finding:
    """A wrong directory is an error; a Hub id without a size in its name is none."""
    kind = MODEL_UNKNOWN if "neither in swarmd's table" in found.unknown and named != "auto" else MODEL_UNUSABLE
    return kind.found(found.unknown, found.fix if kind is MODEL_UNUSABLE else "")


def _examine_fit(found: ProbeAnswer) -> Iterator[Finding]:
    fitting = [each for each in found.weighed if each.fits]
    if not fitting:
        least = min(found.weighed, key=lambda each: each.need)
        where = f", bounded by {found.limit}" if found.limit else ""
        reason = least.why or "too large"
        free = f"{_gib(found.free)} are free{where}"
        yield MODEL_TOO_LARGE.found(
            f"{least.model} takes about {_gib(least.need)} on {found.device}, {free} ({reason})"
        )
        return
    chosen = chosen_of(found)
    assert chosen is not None
    evidence = f"{chosen.model} takes about {_gib(chosen.need)} of {_gib(found.free)} free on {found.device}"
    if chosen.need > TIGHT_SHARE * found.free:
        yield MODEL_TIGHT.found(evidence)
    else:
        yield well("memory", "Memory", evidence)


def chosen_of(found: ProbeAnswer) -> ModelFit | None:
    """The configured model, or the largest of the pool that fits; None where none does."""
    return max((each for each in found.weighed if each.fits), key=lambda each: each.need, default=None)


def _examine_download(found: ProbeAnswer) -> Iterator[Finding]:
    if not found.absent:
        return
    forbidden = [name for name in OFFLINE_VARIABLES if os.environ.get(name, "").lower() in ("1", "true", "yes", "on")]
    if forbidden:
        yield MODEL_UNREACHABLE.found(f"{found.absent} is not in the Hub's cache, and {forbidden[0]} is set")
    else:
        yield MODEL_ABSENT.found(f"{found.absent} is not in the Hub's cache")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
