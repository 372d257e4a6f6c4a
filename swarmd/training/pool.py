"""The models that swarmd knows the size of, which of them fit, and the choice that `model = "auto"` makes and keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, ModelError
from swarmd.paths import DataPaths
from swarmd.training.device import Numbers, choose_device, choose_numbers
from swarmd.training.memory import GIB, Need, Room, Shape, estimate_need, measure_room
from swarmd.training.source import AUTO, EMBEDDED, locate_model

CPU_PARAMETERS_MAX = 1_000_000_000  # on a CPU a stage of anything larger takes hours
CHOICE = "model.json"  # in the data directory and in every checkpoint
_CHOICE_FORMAT = 1
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([bBmM])(?![a-zA-Z])")
_log = structlog.get_logger(__name__)


class PooledModel(msgspec.Struct, frozen=True):
    """A row of the table, or a model that the configuration adds to it."""

    name: str  # Hugging Face id, or a directory
    kind: str  # "general" or "coder"
    shape: Shape
    quantization: str = "none"  # recommended; with "4bit" the files themselves may be quantised


def _shape(parameters: int, layers: int, hidden: int, intermediate: int, heads: int, groups: int, **rest: Any) -> Shape:
    vocabulary = rest.pop("vocabulary", 151_936)
    width = rest.pop("width", hidden // heads)
    tied, context = rest.pop("tied", True), rest.pop("context", 32_768)
    return Shape(
        parameters, layers, hidden, intermediate, vocabulary, heads * width, groups * width, tied, context, **rest
    )


_WIDE = {"vocabulary": 152_064, "tied": False}
_HALF_B = _shape(494_032_768, 24, 896, 4864, 14, 2)
_ONE_HALF_B = _shape(1_543_714_304, 28, 1536, 8960, 12, 2)
_THREE_B = _shape(3_085_938_688, 36, 2048, 11_008, 16, 2)
_SEVEN_B = _shape(7_615_616_512, 28, 3584, 18_944, 28, 4, **_WIDE)
_FOURTEEN_B = _shape(14_770_033_664, 48, 5120, 13_824, 40, 8, **_WIDE)
_THIRTY_TWO_B = _shape(32_763_876_352, 64, 5120, 27_648, 40, 8, **_WIDE)
_SEVENTY_TWO_B = _shape(72_706_203_648, 80, 8192, 29_568, 64, 8, **_WIDE)
_QWEN3_SMALL = _shape(596_049_920, 28, 1024, 3072, 16, 8, width=128, context=40_960)
_QWEN3_LARGE = _shape(1_720_574_976, 28, 2048, 6144, 16, 8, width=128, context=40_960)
_DEEPSEEK = _shape(1_346_471_936, 24, 2048, 5504, 16, 16, vocabulary=32_256, tied=False, context=16_384)

TABLE = (
    PooledModel("Gensyn/Qwen2.5-0.5B-Instruct", "general", _HALF_B),
    PooledModel("Qwen/Qwen3-0.6B", "general", _QWEN3_SMALL),
    PooledModel("Gensyn/Qwen2.5-1.5B-Instruct", "general", _ONE_HALF_B),
    PooledModel("nvidia/AceInstruct-1.5B", "general", _ONE_HALF_B),
    PooledModel("dnotitia/Smoothie-Qwen3-1.7B", "general", _QWEN3_LARGE),
    PooledModel("Qwen/Qwen2.5-3B-Instruct", "general", _THREE_B),
    PooledModel("Gensyn/Qwen2.5-7B-Instruct", "general", _SEVEN_B),
    PooledModel("Qwen/Qwen2.5-14B-Instruct", "general", _FOURTEEN_B, "4bit"),
    PooledModel("Gensyn/Qwen2.5-32B-Instruct-bnb-4bit", "general", _THIRTY_TWO_B, "4bit"),
    PooledModel("Gensyn/Qwen2.5-72B-Instruct-bnb-4bit", "general", _SEVENTY_TWO_B, "4bit"),
    PooledModel("Qwen/Qwen2.5-Coder-0.5B-Instruct", "coder", _HALF_B),
    PooledModel("deepseek-ai/deepseek-coder-1.3b-instruct", "coder", _DEEPSEEK),
    PooledModel("Qwen/Qwen2.5-Coder-1.5B-Instruct", "coder", _ONE_HALF_B),
    PooledModel("Qwen/Qwen2.5-Coder-3B-Instruct", "coder", _THREE_B),
    PooledModel("Qwen/Qwen2.5-Coder-7B-Instruct", "coder", _SEVEN_B),
    PooledModel("Qwen/Qwen2.5-Coder-14B-Instruct", "coder", _FOURTEEN_B, "4bit"),
    PooledModel("Qwen/Qwen2.5-Coder-32B-Instruct", "coder", _THIRTY_TWO_B, "4bit"),
)
KINDS = tuple(dict.fromkeys(row.kind for row in TABLE))
_NAME_ANOTHER = f'Name a directory with a model, an id like "user/model-7B", or a kind: {", ".join(KINDS)}'
# other publications of the same weights
_SAME = {"Qwen/Qwen2.5-", "unsloth/Qwen2.5-", "Gensyn/Qwen2.5-"}


class Fit(msgspec.Struct, frozen=True):
    """What training one model of the pool takes here, and whether that is there."""

    model: PooledModel
    need: Need
    fits: bool
    why: str = ""  # it does not fit


class Choice(msgspec.Struct, frozen=True):
    """The model that `auto` took, as it is kept in the data directory."""

    format: int
    model: str
    reason: str  # for people: what was free, what it takes


def count_parameters(name: str) -> int | None:
    """The parameters that a model's name tells: "7B", "1.5b", "360M"; None where it tells none."""
    found = [float(number) * (1e9 if unit in "bB" else 1e6) for number, unit in _SIZE.findall(name.split("/")[-1])]
    return int(found[0]) if found else None


def find_model(name: str) -> PooledModel | None:
    """The table's row of a model, or one made from the size in its name and the shape of the nearest row."""
    spellings = {name, *(name.replace(prefix, other) for prefix in _SAME for other in _SAME if prefix in name)}
    for row in TABLE:
        if row.name in spellings:
            return msgspec.structs.replace(row, name=name)
    parameters = count_parameters(name)
    if parameters is None:
        return None
    nearest = min(TABLE, key=lambda row: abs(row.shape.parameters - parameters))
    shape = msgspec.structs.replace(nearest.shape, parameters=parameters, context=0)
    return PooledModel(name, nearest.kind, shape, nearest.quantization)


def list_pool(
    training: TrainingConfig, inspect: Callable[[str], Shape], named_by: str = "training.pool"
) -> list[PooledModel]:
    """The models that `training.pool` names, in its order.

    Args:
        inspect: the shape of a model directory.
        named_by: what errors blame: where the entries really come from.

    Raises:
        ConfigError: an entry whose size cannot be told.
        ModelError: a directory without a model.
    """
    rows: list[PooledModel] = []
    for entry in training.pool or (KINDS[0],):
        if entry in KINDS:
            rows += [row for row in TABLE if row.kind == entry]
            continue
        if entry == EMBEDDED or Path(entry).expanduser().is_dir() or entry.startswith((".", "~", "/")):
            rows.append(PooledModel(entry, KINDS[0], _inspect_directory(entry, inspect, named_by)))
            continue
        row = find_model(entry)
        if row is None:
            raise ConfigError(
                f"{named_by}: the size of {entry!r} is neither in swarmd's table nor in its name", _NAME_ANOTHER
            )
        rows.append(row)
    return rows


def _inspect_directory(entry: str, inspect: Callable[[str], Shape], named_by: str) -> Shape:
    try:
        return inspect(locate_model(entry))
    except ModelError as error:
        raise ModelError(f"{named_by}: {error.message}", _NAME_ANOTHER) from error


def weigh(row: PooledModel, training: TrainingConfig, numbers: Numbers, room: Room) -> Fit:
    """Whether a model can be trained as configured in the memory there is."""
    need = estimate_need(row.shape, training, room.device, numbers.weights, numbers.mixed, room.total)
    longest = training.prompt_tokens + training.completion_tokens
    why = ""
    if row.name.endswith("bnb-4bit") and training.quantization != "4bit":
        why = 'its files are quantised: needs quantization = "4bit" and lora'
    elif room.device == "cpu" and row.shape.parameters > CPU_PARAMETERS_MAX:
        why = "a stage would take hours on a CPU"
    elif row.shape.context and longest > row.shape.context:
        why = f"reads {row.shape.context} tokens, {longest} are configured"
    elif need.total > room.free:
        why = f"{(need.total - room.free) / GIB:.1f} GiB too little"
    return Fit(row, need, not why, why)


def choose_model(rows: Sequence[PooledModel], training: TrainingConfig, numbers: Numbers, room: Room) -> Fit:
    """The largest model that fits, the first of the pool among equals. Raises ModelError when none does."""
    fits = [weigh(row, training, numbers, room) for row in rows]
    possible = [fit for fit in fits if fit.fits]
    if possible:
        return max(possible, key=lambda fit: fit.model.shape.parameters)  # max keeps the first of equals
    smallest = min(fits, key=lambda fit: fit.need.total)
    raise ModelError(
        f"no model of the pool can be trained on {room.device} with {room.free / GIB:.1f} GiB free; the least, "
        f"{smallest.model.name}, takes {smallest.need.total / GIB:.1f} GiB",
        'Free memory, lower training.questions or the token counts, or set training.model = "embedded"; '
        "`swarmd model fit` shows the whole table",
    )


def check_fit(name: str, shape: Shape, training: TrainingConfig, numbers: Numbers, device: str) -> None:
    """Raise ModelError when training the model as configured takes more memory than is free; it says what would fit."""
    room = measure_room(device)
    need = estimate_need(shape, training, device, numbers.weights, numbers.mixed, room.total).total
    if need <= room.free:
        return
    fitting = [row.name for row in TABLE if weigh(row, training, numbers, room).fits]
    raise ModelError(
        f"training {name} takes about {need / GIB:.1f} GiB on {device}, {room.free / GIB:.1f} GiB are free",
        (f"Of the models swarmd knows these fit: {', '.join(fitting)}. " if fitting else "")
        + "Choose a smaller model, adapters or quantisation, or free memory; `swarmd model fit` shows the terms",
    )


def settle_model(training: TrainingConfig, paths: DataPaths, inspect: Callable[[str], Shape]) -> TrainingConfig:
    """The configuration with the model that `auto` stands for.

    The choice is made once and kept in `model.json` in the data directory, durably. Later starts keep it, however much
    memory is free then: another model would begin anew. Checkpoints name it too, and count where the file is lost.

    Args:
        inspect: the shape of a model directory.

    Raises:
        ModelError: no model fits, or the one that was chosen is no longer there.
        ConfigError: the file is not what was written, or the pool names what cannot be weighed.
    """
    if training.model != AUTO:
        return training
    kept = paths.root / CHOICE
    choice = read_choice(kept)
    if choice is None:
        choice = _find_trained(paths.checkpoints) or _choose(training, inspect)
        write_choice(kept, choice)
        _log.info("model chosen", model=choice.model, reason=choice.reason)
    _check_there(choice.model, kept)
    return msgspec.structs.replace(training, model=choice.model)


def _find_trained(checkpoints: Path) -> Choice | None:
    """The model that the newest checkpoint names."""
    names = sorted((place for place in checkpoints.glob(f"r*/{CHOICE}")), reverse=True)
    return read_choice(names[0]) if names else None


def _choose(training: TrainingConfig, inspect: Callable[[str], Shape]) -> Choice:
    device = choose_device(training.device)
    room = measure_room(device)
    fit = choose_model(list_pool(training, inspect), training, choose_numbers(training, device), room)
    place = Path(fit.model.name).expanduser()
    name = str(place.absolute()) if place.is_dir() else fit.model.name
    reason = f"takes about {fit.need.total / GIB:.1f} of {room.free / GIB:.1f} GiB free on {device}"
    return Choice(_CHOICE_FORMAT, name, reason)


def _check_there(name: str, kept: Path) -> None:
    try:
        locate_model(name)
    except ModelError as error:
        raise ModelError(
            f'{name}, the model that training.model = "auto" stands for on this node, is no longer there',
            f"Put it back, or name another in training.model; without {kept} and the checkpoints a new one is chosen",
        ) from error


def read_choice(path: Path) -> Choice | None:
    """The kept choice, None where none was made. Raises ConfigError when the file is something else."""
    try:
        choice = msgspec.json.decode(path.read_bytes(), type=Choice)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}, which keeps the chosen model, cannot be read: {error}", _MEND) from error
    if choice.format != _CHOICE_FORMAT or not choice.model:
        raise ConfigError(f"{path} has format {choice.format}, this version reads {_CHOICE_FORMAT}", _MEND)
    return choice


_MEND = "Put it back from a backup, or name the model in training.model"


def describe_choice(name: str, reason: str = "") -> bytes:
    """The content of a file that names the model."""
    return msgspec.json.format(msgspec.json.encode(Choice(_CHOICE_FORMAT, name, reason)), indent=1)


def write_choice(path: Path, choice: Choice) -> None:
    """Keep the choice: under a temporary name, synced, renamed. Raises ModelError naming the path."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(describe_choice(choice.model, choice.reason))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ModelError(f"the chosen model cannot be kept in {path}: {error}", "Free space there") from error
