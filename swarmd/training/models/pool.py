"""Which models of the table, or of the user's own, fit, and the lasting choice of `model = "auto"`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, GgufRefused, ModelError, ModelUnfit
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.training.models.device import Precision, choose_device, choose_precision
from swarmd.training.models.known import KINDS, PACKAGED, TABLE, PooledModel, find_model
from swarmd.training.models.memory import (
    GIB,
    DeviceMemory,
    MemoryNeed,
    ModelShape,
    estimate_need,
    measure_device_memory,
)
from swarmd.training.models.source import AUTO, is_local, locate_model

CPU_PARAMETERS_MAX = 1_000_000_000  # a stage of a larger model takes hours on a CPU
CHOICE = "model.json"  # in the data directory and in every checkpoint
_CHOICE_FORMAT = 1
_NAME_ANOTHER = f'Name a directory with a model, an id like "user/model-7B", or a kind: {", ".join(KINDS)}'
log = get_logger(__name__)


class FitEstimate(msgspec.Struct, frozen=True):
    """Memory that training one model of the pool takes here, and whether it fits."""

    model: PooledModel
    need: MemoryNeed
    why: str = ""  # why it does not fit; empty if it does

    @property
    def fits_memory(self) -> bool:
        return not self.why


class ModelChoice(msgspec.Struct, frozen=True):
    """The model that `auto` chose, as saved in the data directory."""

    format: int
    model: str
    reason: str  # for people: what was free, and what the model takes


def list_pool(
    training: TrainingConfig, inspect: Callable[[str], ModelShape], named_by: str = "training.pool"
) -> list[PooledModel]:
    """The models that `training.pool` names, in its order. Errors give `named_by` as the source of the entries. Raises
    ConfigError: the size of an entry is unknown; ModelError: a directory has no model."""
    rows: list[PooledModel] = []
    for entry in training.pool or (KINDS[0],):
        if entry in KINDS:
            rows += [row for row in TABLE if row.kind == entry]
            continue
        if is_local(entry):
            rows.append(PooledModel(entry, KINDS[0], _inspect_directory(entry, inspect, named_by)))
            continue
        row = find_model(entry)
        if row is None:
            raise ConfigError(
                f"{named_by}: the size of {entry!r} is neither in swarmd's table nor in its name", _NAME_ANOTHER
            )
        rows.append(row)
    return rows


def _inspect_directory(entry: str, inspect: Callable[[str], ModelShape], named_by: str) -> ModelShape:
    try:
        return inspect(locate_model(entry))
    except GgufRefused:
        raise
    except ModelError as error:
        fix = error.fix if entry in PACKAGED else _NAME_ANOTHER
        raise ModelError(f"{named_by}: {error.message}", fix) from error


def estimate_fit(row: PooledModel, training: TrainingConfig, precision: Precision, room: DeviceMemory) -> FitEstimate:
    """Estimate whether a model can be trained as configured in the memory available."""
    need = estimate_need(row.shape, training, room.device, precision.weights, precision.mixed, room.free)
    longest = training.prompt_tokens + training.completion_tokens
    why = ""
    if row.name.endswith("bnb-4bit") and training.quantization != "4bit":
        why = 'its files are quantised: needs quantization = "4bit" and lora'
    elif room.device == "cpu" and row.shape.parameters > CPU_PARAMETERS_MAX:
        why = "a stage would take hours on a CPU"
    elif row.shape.context and longest > row.shape.context:
        why = f"reads {row.shape.context} tokens, {longest} are configured"
    elif need.minimum_bytes > room.free:
        why = f"{(need.minimum_bytes - room.free) / GIB:.1f} GiB too little"
    return FitEstimate(row, need, why)


def choose_model(
    rows: Sequence[PooledModel], training: TrainingConfig, precision: Precision, room: DeviceMemory
) -> FitEstimate:
    """Choose the largest model that fits, the first if several are equally large. Raises ModelError if none fits."""
    fits = [estimate_fit(row, training, precision, room) for row in rows]
    possible = [fit for fit in fits if fit.fits_memory]
    if possible:
        return max(possible, key=lambda fit: fit.model.shape.parameters)  # max keeps the first of equals
    smallest = min(fits, key=lambda fit: fit.need.minimum_bytes)
    raise ModelUnfit(
        f"no model of the pool can be trained on {room.device} with {room.free / GIB:.1f} GiB free; the least, "
        f"{smallest.model.name}, takes {smallest.need.minimum_bytes / GIB:.1f} GiB",
        'Free memory, lower training.questions or the token counts, or set training.model = "embedded"; '
        "`swarmd model fit` shows the whole table",
    )


def check_fit(name: str, shape: ModelShape, training: TrainingConfig, precision: Precision, device: str) -> None:
    """Raise ModelUnfit if training the model as configured takes more memory than is free; the error names models that
    fit."""
    room = measure_device_memory(device)
    need = estimate_need(shape, training, device, precision.weights, precision.mixed).minimum_bytes
    if need <= room.free:
        return
    fitting = [row.name for row in TABLE if estimate_fit(row, training, precision, room).fits_memory]
    raise ModelUnfit(
        f"training {name} takes about {need / GIB:.1f} GiB on {device}, {room.free / GIB:.1f} GiB are free",
        (f"Of the models swarmd knows these fit: {', '.join(fitting)}. " if fitting else "")
        + "Choose a smaller model, adapters or quantisation, or free memory; `swarmd model fit` shows the terms",
    )


def resolve_auto_model(
    training: TrainingConfig, paths: NodeDirectory, inspect: Callable[[str], ModelShape]
) -> TrainingConfig:
    """Replace the model "auto" in a configuration by the chosen one.

    The choice is made once and saved in `model.json` in the data directory. Later starts keep it, however much memory
    is then free, since another model would start from zero. If the file is lost, it is read from a checkpoint.

    Raises:
        ModelError: no model fits, or the chosen one is no longer there.
        ConfigError: the file is damaged, or the pool names a model of unknown size.
    """
    if training.model != AUTO:
        return training
    kept = paths.model
    choice = read_choice(kept)
    if choice is None:
        trained = sorted(paths.checkpoints.glob(f"r*/{CHOICE}"))  # the newest last
        choice = (read_choice(trained[-1]) if trained else None) or _choose_for_device(training, inspect)
        write_choice(kept, choice)
        log.info("model chosen", model=choice.model, reason=choice.reason)
    try:
        locate_model(choice.model)
    except ModelError as error:
        raise ModelError(
            f'{choice.model}, the model that training.model = "auto" stands for on this node, is no longer there',
            f"Put it back, or name another in training.model; without {kept} and the checkpoints a new one is chosen",
        ) from error
    return msgspec.structs.replace(training, model=choice.model)


def _choose_for_device(training: TrainingConfig, inspect: Callable[[str], ModelShape]) -> ModelChoice:
    device = choose_device(training.device)
    room = measure_device_memory(device)
    fit = choose_model(list_pool(training, inspect), training, choose_precision(training, device), room)
    place = Path(fit.model.name).expanduser()
    name = str(place.absolute()) if place.exists() else fit.model.name
    reason = f"takes about {fit.need.total / GIB:.1f} of {room.free / GIB:.1f} GiB free on {device}"
    return ModelChoice(_CHOICE_FORMAT, name, reason)


def read_choice(path: Path) -> ModelChoice | None:
    """Read the saved choice, None if there is none. Raises ConfigError if the file is damaged."""
    try:
        choice = msgspec.json.decode(path.read_bytes(), type=ModelChoice)
    except FileNotFoundError:
        return None
    except (OSError, *DECODE_ERRORS) as error:
        raise ConfigError(f"{path}, which keeps the chosen model, cannot be read: {error}", _MEND) from error
    if choice.format != _CHOICE_FORMAT or not choice.model:
        raise ConfigError(f"{path} has format {choice.format}, this version reads {_CHOICE_FORMAT}", _MEND)
    return choice


_MEND = "Put it back from a backup, or name the model in training.model"


def encode_choice(name: str, reason: str = "") -> bytes:
    """Encode the file that names the model."""
    return msgspec.json.format(msgspec.json.encode(ModelChoice(_CHOICE_FORMAT, name, reason)), indent=1)


def write_choice(path: Path, choice: ModelChoice) -> None:
    """Save the choice. Raises ModelError, which names the path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, encode_choice(choice.model, choice.reason))
    except OSError as error:
        raise ModelError(f"the chosen model cannot be kept in {path}: {error}", "Free space there") from error
