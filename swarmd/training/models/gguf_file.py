"""Models in GGUF files: converted once into an ordinary model directory, which everything else uses.

- The directory is in this machine's cache and named after the file's SHA-256, so another file is another model.
- Weights are written as float32, with exactly the values that the file's blocks encode. Nothing is rounded again, and
  the digest of the weights is the same on every machine, whatever dtype it trains in.
- A file with more or fewer values than transformers reads from it is refused: missing values would be made up, and
  extra ones (frequencies of a scaled rotary embedding) change what the model computes.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, GgufConfig

from swarmd.errors import GgufRefused, LogWriteFailed, ModelUnfit, NoSpaceLeft
from swarmd.files import hash_file, make_directory_atomically
from swarmd.logger import get_logger
from swarmd.training.models.files import check_gguf
from swarmd.training.models.known import model_cache
from swarmd.training.models.loading import read_model
from swarmd.training.models.memory import measure_host
from swarmd.training.models.remembered import DigestCache
from swarmd.training.models.source import WITHOUT_CODE, is_gguf

log = get_logger(__name__)

ALONE = "model.gguf"  # name of the file's link in a directory that has nothing else
FLOAT_BYTES = 4
SPARE_BYTES = 64 * 2**20  # for tokenizer and configuration


def resolve_model_directory(source: str) -> str:
    """The directory from which to read a model: for a GGUF file the converted one, else the source itself. Raises
    GgufRefused: no model can be read from the file; ModelUnfit: converting takes more memory than is free;
    LogWriteFailed: the directory cannot be written."""
    if not is_gguf(source):
        return source
    path = Path(source)
    digest = DigestCache(path).get_or_compute("content", lambda: hash_file(path))
    place = model_cache() / f"{path.stem}-{digest[:16]}"
    if make_directory_atomically(place, lambda part: convert_gguf(path, part)):
        log.info("converted", file=str(path), directory=str(place))
    return str(place)


def read_gguf_config(path: Path) -> Any:
    """transformers' configuration of the model in a GGUF file. Raises GgufRefused."""
    check_gguf(path)
    return _load_gguf(path, lambda: AutoConfig.from_pretrained(path.parent, gguf_file=path.name, **WITHOUT_CODE))


def convert_gguf(path: Path, directory: Path) -> int:
    """Write the model of a GGUF file into an existing directory: weights, configuration, tokenizer, chat template.

    Returns:
        The number of its parameters.

    Raises:
        GgufRefused: no model can be read from the file.
        ModelUnfit, NoSpaceLeft: memory or disk has too little room.
        LogWriteFailed, OSError: the directory cannot be written.
    """
    values = check_gguf(path)
    size_bytes, free = values * FLOAT_BYTES, measure_host().free
    needed = 2 * size_bytes  # dequantised blocks, and the model
    if needed > free:
        raise ModelUnfit(
            f"to convert {path} takes {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free",
            "Choose a smaller model, or free memory",
        )
    if size_bytes + SPARE_BYTES > shutil.disk_usage(directory).free:
        raise NoSpaceLeft(f"no space left for {size_bytes:,} bytes in {directory.parent}", "Free space there")
    with tempfile.TemporaryDirectory() as alone:  # transformers would read a tokenizer's files beside it, too
        Path(alone, ALONE).symlink_to(path.absolute())
        place: dict[str, Any] = {"gguf_file": ALONE}
        tokenizer = _load_gguf(path, lambda: AutoTokenizer.from_pretrained(alone, **place, **WITHOUT_CODE))
        place |= {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
        model = _load_gguf(path, lambda: read_model(str(path), alone, **place))
    if model.num_parameters() != values:
        raise GgufRefused(
            f"{path} holds {values:,} values, the model that transformers reads from it {model.num_parameters():,}",
            "Take the model's safetensors",
        )
    try:
        model.save_pretrained(directory)
    except SafetensorError as error:  # a system error, reported by the library as its own
        raise LogWriteFailed(f"{directory.parent} cannot be written to: {error}", "Free space there") from error
    tokenizer.save_pretrained(directory)
    for each in directory.iterdir():
        each.chmod(0o644)  # safetensors makes files readable only by the owner
    return values


def _load_gguf(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:  # transformers may raise anything
        reason = error.message if isinstance(error, ModelUnfit) else error
        fix = "Take another file of the model, or its safetensors"
        raise GgufRefused(f"{path} cannot be read: {reason}", fix) from error
