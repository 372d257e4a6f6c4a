"""`swarmd model fit`: which models can be trained here, and what each takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from swarmd.cli.options import PrintJson, print_json
from swarmd.config import Device, LoraConfig, TrainingConfig, load_config
from swarmd.errors import ConfigError

if TYPE_CHECKING:
    from swarmd.training.models.memory import DeviceMemory
    from swarmd.training.models.pool import Fit

GIB = 2**30
ADAPTED = LoraConfig(rank=16)  # what the second column reckons with
DEVICES: tuple[Device, ...] = ("auto", "cpu", "cuda", "mps", "xpu")


def fit(
    model: Annotated[str, typer.Option("--model", help="As training.model, or a kind of the pool.")] = "",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps or xpu.")] = "",
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Reckon with this file's section training.")
    ] = None,
    memory: Annotated[
        float,
        typer.Option(
            "--memory", metavar="GIB", min=0.0, max=1e5, help="GiB of a card that need not be here, all of it free."
        ),
    ] = 0.0,
    as_json: PrintJson = False,
) -> None:
    """Print what training takes, as configured and as 4-bit weights under adapters: of a model, or each of the pool."""
    from swarmd.training.models.source import AUTO

    training = load_config(config).training if config else TrainingConfig()
    named = model or (training.model if config and not training.pool and training.model != AUTO else "")
    training = msgspec.structs.replace(
        training,
        device=device_named(device) if device else training.device,
        model=model or training.model,
        pool=(named,) if named else training.pool,
    )
    from swarmd.training.library_logging import quieten

    quieten()
    given = f"--model {model}" if model else "training.model"
    room, fits, adapted = _weigh_all(training, given if named else "training.pool", int(memory * GIB))
    if as_json:
        print_json(_describe(room, fits, adapted))
    else:
        _print(room, fits, adapted)


def _weigh_all(training: TrainingConfig, named_by: str, memory: int) -> tuple[DeviceMemory, list[Fit], list[Fit]]:
    """Room and needs; with `memory`, of a card of so many bytes that computes bfloat16, be it here or not."""
    from swarmd.training.models.device import choose_device, choose_precision
    from swarmd.training.models.memory import DeviceMemory, measure_room
    from swarmd.training.models.model import inspect_model
    from swarmd.training.models.pool import list_pool, weigh

    device: str
    if memory:
        device = "cuda" if training.device == "auto" else training.device
        room = DeviceMemory(device, memory, memory)
    else:
        try:
            device = choose_device(training.device)
        except ConfigError as error:
            raise ConfigError(error.message, f"{error.fix}; --memory 24 reckons with a card that is not here") from None
        room = measure_room(device)
    fast = True if memory and device != "cpu" else None
    rows = list_pool(training, lambda source: inspect_model(source, source), named_by)
    small = msgspec.structs.replace(training, lora=ADAPTED, quantization="4bit", optimizer="adamw")
    fits, adapted = (
        [weigh(row, settings, choose_precision(settings, device, fast), room) for row in rows]
        for settings in (training, small)
    )
    return room, fits, adapted


def _print(room: DeviceMemory, fits: Sequence[Fit], adapted: Sequence[Fit]) -> None:
    bound = f", bounded by {room.limit}" if room.limit else ""
    typer.echo(f"{room.device}: {room.free / GIB:.1f} of {room.total / GIB:.1f} GiB free{bound}")
    typer.echo(f"{'model':44} {'parameters':>14} {'GiB':>8} {'4-bit':>8}")
    for fit, small in zip(fits, adapted, strict=True):
        word = "fits" if fit.fits else f"does not fit: {fit.why}"
        word += "; fits in 4-bit with adapters" if small.fits and not fit.fits else ""
        typer.echo(
            f"{fit.model.name:44} {fit.model.shape.parameters:14,} {fit.need.total / GIB:8.1f} "
            f"{small.need.total / GIB:8.1f}  {word}"
        )
    if len(fits) == 1:
        from swarmd.training.models.memory import SLACK

        need = fits[0].need
        for term in ("weights", "optimizer", "reference", "vllm", "context", "process"):
            typer.echo(f"  {term:12} {getattr(need, term) / GIB:8.2f} GiB")
        gradients, passes, layers = (f"{each / GIB:.2f}" for each in (need.gradients, need.passes, need.layers))
        copy, tokens, gathered = (f"{each / GIB:.2f}" for each in (need.drawing, need.generation, need.gathered))
        typer.echo("  and the larger of")
        training = f"gradients {gradients} + {SLACK} x (passes {passes} + layers {layers})"
        typer.echo(f"  training     {need.training / GIB:8.2f} GiB: {training}")
        drawing = f"copy {copy} + {SLACK} x (generation {tokens} + gathered {gathered})"
        typer.echo(f"  drawing      {need.generating / GIB:8.2f} GiB: {drawing}")


def _describe(room: DeviceMemory, fits: Sequence[Fit], adapted: Sequence[Fit]) -> dict[str, Any]:
    return {
        "device": room.device,
        "free_bytes": room.free,
        "total_bytes": room.total,
        "limit": room.limit,
        "models": [
            {
                "model": fit.model.name,
                "kind": fit.model.kind,
                "parameters": fit.model.shape.parameters,
                "context": fit.model.shape.context,
                "recommended_quantization": fit.model.quantization,
                "need_bytes": fit.need.total,
                "terms": msgspec.structs.asdict(fit.need),
                "fits": fit.fits,
                "why": fit.why,
                "need_4bit_bytes": small.need.total,
                "fits_4bit": small.fits,
            }
            for fit, small in zip(fits, adapted, strict=True)
        ],
    }


def device_named(name: str) -> Device:
    """The device of that name. Raises ConfigError."""
    for device in DEVICES:
        if device == name:
            return device
    raise ConfigError(f"there is no device {name!r}", f"Choose one of {', '.join(DEVICES)}")
