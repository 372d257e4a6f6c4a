"""Models in GGUF files: read once, dequantised, into an ordinary model directory, by which everything else goes.

- The directory lies in this machine's cache and is named after the SHA-256 of the file: another file is another model.
- Weights are written as float32, exactly the values that the file's blocks stand for. Nothing is rounded a second time,
  and the digest of the weights is the same on every machine, whatever numbers it trains in.
- A file that holds more or fewer values than transformers reads from it is refused: what is missing would be made up,
  and what is left over (frequencies of a scaled rotary embedding) changes what the model computes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from swarmd.errors import GgufRefused, LogWriteFailed, ModelUnfit, NoSpaceLeft
from swarmd.files import make_whole
from swarmd.logger import get_logger
from swarmd.training.checkpoint_files import hash_file
from swarmd.training.models.files import no_template
from swarmd.training.models.known import model_cache
from swarmd.training.models.memory import measure_host
from swarmd.training.models.remembered import Remembered
from swarmd.training.models.source import WITHOUT_CODE, is_gguf

log = get_logger(__name__)

ARCHITECTURE, PARTS, TEMPLATE = "general.architecture", "split.count", "tokenizer.chat_template"
_READ = (ARCHITECTURE, PARTS, TEMPLATE)
ALONE = "model.gguf"  # what the file is called where it lies alone
FLOAT_BYTES = 4
SPARE_BYTES = 64 * 2**20  # of tokenizer and configuration


def unpack_model(source: str) -> str:
    """The directory to read a model from: of a GGUF file the one that it was converted into, else the source itself.

    Raises:
        GgufRefused: no model can be read from the file.
        ModelUnfit: it takes more memory than is free.
        LogWriteFailed: the directory cannot be written.
    """
    if not is_gguf(source):
        return source
    path = Path(source)
    digest = Remembered(path).find("content", lambda: hash_file(path))
    place = model_cache() / f"{path.stem}-{digest[:16]}"
    if make_whole(place, lambda part: convert_gguf(path, part)):
        log.info("converted", file=str(path), directory=str(place))
    return str(place)


def check_gguf(path: Path, is_trained: bool = False) -> int:
    """See that a model can be read from a GGUF file, by its header and size; imports no torch.

    Args:
        is_trained: whether it is to be asked questions, for which it needs a chat template.

    Returns:
        The number of values in its tensors.

    Raises:
        GgufRefused: none can be read from it.
        ModelUnfit: it has no chat template.
    """
    from gguf import GGUFReader
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS

    try:
        reader = GGUFReader(path)
        contents = {name: field.contents() for name, field in reader.fields.items() if name in _READ}
        count = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except Exception as error:  # whatever it meets where bytes are missing or wrong
        raise GgufRefused(f"{path} is damaged, cut off or no GGUF file: {error}", "Download it again") from error
    known = {_plain(name) for name in (*GGUF_CONFIG_MAPPING, *GGUF_CONFIG_ARCHS)} - {"general", "tokenizer"}
    architecture = str(contents.get(ARCHITECTURE, ""))
    if _plain(architecture) not in known:
        raise GgufRefused(
            f"{path} holds a model of the architecture {architecture!r}, which is not read from such files",
            f"Take the model's safetensors, or a model of these: {', '.join(sorted(known))}",
        )
    if int(contents.get(PARTS, 1)) > 1:
        raise GgufRefused(f"{path} is one of several parts of a model", "Put them together: `llama-gguf-split --merge`")
    if is_trained and not contents.get(TEMPLATE):
        raise no_template(str(path))
    return count


def _plain(architecture: str) -> str:
    """ "qwen2moe" of "qwen2_moe": files and transformers write some of them differently."""
    return architecture.replace("-", "").replace("_", "")


def read_gguf_config(path: Path) -> Any:
    """transformers' configuration of the model in a GGUF file. Raises GgufRefused."""
    from transformers import AutoConfig

    check_gguf(path)
    return _read(path, lambda: AutoConfig.from_pretrained(path.parent, gguf_file=path.name, **WITHOUT_CODE))


def convert_gguf(path: Path, directory: Path) -> int:
    """Write the model of a GGUF file into a directory that is there: weights, configuration, tokenizer, chat template.

    Returns:
        The number of its parameters.

    Raises:
        GgufRefused: no model can be read from the file.
        ModelUnfit, NoSpaceLeft: memory or disk has too little room.
        LogWriteFailed, OSError: the directory cannot be written.
    """
    import torch
    from transformers import AutoTokenizer, GgufConfig

    from swarmd.training.models.loading import read_model

    values = check_gguf(path)
    size_bytes, free = values * FLOAT_BYTES, measure_host().free
    needed = 2 * size_bytes  # blocks that are dequantised, and the model
    if needed > free:
        raise ModelUnfit(
            f"to convert {path} takes {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free",
            "Choose a smaller model, or free memory",
        )
    if size_bytes + SPARE_BYTES > shutil.disk_usage(directory).free:
        raise NoSpaceLeft(f"no space left for {size_bytes:,} bytes in {directory.parent}", "Free space there")
    with tempfile.TemporaryDirectory() as alone:  # a tokenizer's files beside it would count
        Path(alone, ALONE).symlink_to(path.absolute())
        place: dict[str, Any] = {"gguf_file": ALONE}
        tokenizer = _read(path, lambda: AutoTokenizer.from_pretrained(alone, **place, **WITHOUT_CODE))
        place |= {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
        model = _read(path, lambda: read_model(str(path), alone, **place))
    if model.num_parameters() != values:
        raise GgufRefused(
            f"{path} holds {values:,} values, the model that transformers reads from it {model.num_parameters():,}",
            "Take the model's safetensors",
        )
    try:
        model.save_pretrained(directory)
    except SafetensorError as error:  # of the system, in the library's own words
        raise LogWriteFailed(f"{directory.parent} cannot be written to: {error}", "Free space there") from error
    tokenizer.save_pretrained(directory)
    for each in directory.iterdir():
        each.chmod(0o644)  # safetensors' own is for the owner alone
    return values


def _read(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:  # whatever transformers meets
        reason = error.message if isinstance(error, ModelUnfit) else error
        fix = "Take another file of the model, or its safetensors"
        raise GgufRefused(f"{path} cannot be read: {reason}", fix) from error
