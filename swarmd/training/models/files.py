"""Checks of a model's files without torch, to refuse what cannot be a model before anything is loaded.

- Only files that would be read are checked: `config.json`, the tokenizer's, and the weights that transformers would
  read. transformers ignores some files that it cannot read, and casts weights of any type to the wanted one.
- The digest of the weights covers their names, types, shapes and values, however they are spread over files, so that
  nodes of a swarm can compare it.
- For a GGUF file, header and size are checked.
"""

import difflib
import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import GgufRefused, ModelError, ModelUnfit
from swarmd.files import describe_irregular_file, detect_wrong_content, read_start

CONFIG, ADAPTERS = "config.json", "adapter_config.json"
TOKENIZERS = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model")
VOCABULARIES = ("vocab.json", "vocab.txt", "spiece.model", "tekken.json")  # of tokenizers that lack the files above
SETTINGS = (CONFIG, "generation_config.json", *TOKENIZERS[:2])  # those in JSON
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in transformers' search order
HEADER_BYTES_MAX = 100_000_000  # of a safetensors file, as in the library
BLOCK_BYTES = 2**22
_WRAPPERS = {  # part of a weight's name: the wrapper that adds it, and the attribute of the wrapper that is the model
    "_orig_mod": ("torch.compile", "model._orig_mod"),
    "_fsdp_wrapped_module": ("FSDP", "the unwrapped model"),
    "_checkpoint_wrapped_module": ("activation checkpointing", "the unwrapped model"),
    "module": ("DataParallel, DDP or DeepSpeed", "model.module"),
}
_ADAPTERS = re.compile(r"^base_model\.model\.|\.(lora_|base_layer\.|modules_to_save\.)")
_PARTS = re.compile(r".*-\d{5}-of-\d{5}\.(safetensors|bin)")
_OF_TRAINING = re.compile(r"global_step\d+|.*_fsdp_\d+|.*\.distcp")
_QUANTISED_TYPES = {"I8", "U8", "F8_E4M3", "F8_E5M2"}  # types whose values mean nothing without scales
_START_BYTES = 64
_ARCHITECTURE, _SPLIT_COUNT, _TEMPLATE = "general.architecture", "split.count", "tokenizer.chat_template"  # GGUF's keys


def check_directory(directory: Path) -> None:
    """Check that a directory looks like a model's. Raises ModelError, which names the file and the fix; OSError."""
    if (directory / ADAPTERS).is_file() and (directory / CONFIG).is_file():
        raise adapters_beside_weights_error(str(directory))
    if (directory / ADAPTERS).is_file():
        raise _adapters_only_error(directory)
    if not (directory / CONFIG).is_file():
        raise ModelError(f"the model directory {directory} has no config.json", _explain_missing_config(directory))
    _refuse_irregular_files(directory)
    for path in (*(directory / name for name in (*SETTINGS, TOKENIZERS[2])), *list_weights(directory)):
        if path.is_file():
            _check_content(path)
    settings = {name: _read_settings(directory / name) for name in SETTINGS if (directory / name).is_file()}
    declared = settings[CONFIG].get("quantization_config") or {}
    check_quantization(str(directory), declared)
    for path in list_weights(directory):
        if path.suffix == ".safetensors" and path.is_file():
            header = read_header(path)
            _check_weight_names(path, header)
            _check_weight_types(path, {} if declared else header)
        elif path.is_file() and read_start(path, 2) == b"PK" and not zipfile.is_zipfile(path):
            raise ModelError(f"{path} is cut off, at {path.stat().st_size:,} bytes", _AGAIN)


def require_weights(directory: Path) -> None:
    """Raise ModelError if a directory lacks a file of weights; OSError."""
    files = list_weights(directory)
    if not files:
        raise ModelError(
            f"{directory} has no weights: neither {' nor '.join(WEIGHTS)}", _explain_missing_weights(directory)
        )
    for path in files:
        if not path.is_file():
            raise ModelError(
                f"{path} is missing, which the index of its weights names", _explain_broken_links(directory) or _AGAIN
            )


def _explain_missing_weights(directory: Path) -> str:
    """Advice about missing weights, from the directory's content."""
    names = sorted(path.name for path in directory.iterdir())
    if broken := _explain_broken_links(directory):
        return broken
    if parts := [name for name in names if _PARTS.fullmatch(name)]:
        index = "model.safetensors.index.json or pytorch_model.bin.index.json"
        return f"Copy the index that belongs to {parts[0]}, too: {index}"
    if saved := [name for name in names if _OF_TRAINING.fullmatch(name)]:
        return f"Load {saved[0]}, a checkpoint of training, with what wrote it, and save the model with save_pretrained"
    return "Copy all of its files, or save the model with save_pretrained"


def _explain_broken_links(directory: Path) -> str:
    """Advice about a broken link in a directory; empty if there is none."""
    broken = [path.name for path in sorted(directory.iterdir()) if path.is_symlink() and not path.exists()]
    return f"{broken[0]} is a link to nothing: copy with `cp -rL`, or `hf download` with --local-dir" if broken else ""


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_bytes().decode())
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and "BOM" not in error.msg:
            raise ModelError(f"{path} is not JSON: {error}", "Correct it there, or copy the file again") from error
        raise ModelError(
            f"{path} is not JSON in UTF-8: {error}", "Save it as UTF-8 without a byte order mark, or copy it again"
        ) from error
    if not isinstance(settings, dict):
        held = "a list" if isinstance(settings, list) else json.dumps(settings)[:40]
        raise ModelError(f"{path} holds {held} in JSON, not an object", "Copy or download it again")
    return settings


def read_context(directory: Path) -> int | None:
    """The model's context in tokens; None if its config.json leaves that to transformers."""
    settings = _read_settings(directory / CONFIG)
    context = (settings.get("text_config") or settings).get("max_position_embeddings")
    return context if isinstance(context, int) else None


def check_context(name: str, context: int | None, prompt_tokens: int, completion_tokens: int) -> None:
    """Raise ModelUnfit if a prompt and a completion of the configured lengths exceed the model's context."""
    if context is not None and prompt_tokens + completion_tokens > context:
        raise ModelUnfit(
            f"{name} reads {context} tokens, training.prompt_tokens + training.completion_tokens is "
            f"{prompt_tokens + completion_tokens}",
            "Lower one of the two",
        )


def check_quantization(name: str, declared: Mapping[str, Any]) -> None:
    """Raise ModelUnfit if a model's `quantization_config` names a method that is not supported."""
    if declared and not (declared.get("load_in_4bit") or declared.get("load_in_8bit")):
        method = declared.get("quant_method") or "a method without a name"
        raise ModelUnfit(
            f"the files of {name} are quantised by {method}, and only those of bitsandbytes are trained here",
            "Take the plain model, with training.quantization if memory is short",
        )


def _check_weight_types(path: Path, header: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ModelUnfit for quantised weights that transformers would load without their scales."""
    for name, entry in header.items():
        if name.endswith(".weight") and entry["dtype"] in _QUANTISED_TYPES:
            raise ModelUnfit(
                f"{path}: {name} is quantised ({entry['dtype']}), and config.json has no quantization_config",
                "Take the plain model, or put the config.json that belongs to the weights beside them",
            )


def _check_weight_names(path: Path, names: Iterable[str]) -> None:
    """Raise ModelUnfit if the names of all weights begin with those of a wrapper in which the model was saved."""
    first = {name.partition(".")[0] for name in names}
    if len(first) == 1 and (first <= _WRAPPERS.keys() or first == {"base_model"}):
        raise ModelUnfit(
            f"the weights in {path} have other names than a model's: all of their names begin with {first.pop()!r}",
            explain_wrapped_weights(names),
        )


def explain_wrapped_weights(names: Iterable[str]) -> str:
    """The wrapper in which a model was saved, and advice, from its weights' names; empty if there is none."""
    if any(_ADAPTERS.search(name) for name in names):
        return "A PEFT model was saved whole: save `model.merge_and_unload()` with save_pretrained instead"
    for part, (wrapper, inner) in _WRAPPERS.items():
        if any(part in name.split(".") for name in names):
            return f"The model was saved inside the wrapper of {wrapper}: save {inner} with save_pretrained instead"
    return ""


def adapters_beside_weights_error(name: str) -> ModelUnfit:
    """The error for a model whose directory also has adapters, which transformers would load silently."""
    return ModelUnfit(
        f"{name} has adapters beside its weights ({ADAPTERS}), which change what the model computes",
        f"Merge them (`merge_and_unload()`, `save_pretrained`), or take a copy without {ADAPTERS}",
    )


def _adapters_only_error(directory: Path) -> ModelError:
    """The error for a directory of adapters alone, for which transformers would load the base that it names."""
    try:
        base = str(json.loads((directory / ADAPTERS).read_bytes()).get("base_model_name_or_path") or "")
    except (ValueError, AttributeError):
        base = ""
    of = f" of {base!r}" if base else ""
    return ModelError(
        f"{directory} holds adapters{of}, not a model: it has {ADAPTERS}",
        f"Train adapters of your own: training.model = {json.dumps(base) if base else 'the base model'} with "
        "training.lora.rank; or merge these (`merge_and_unload()`, `save_pretrained`) and name what comes of it",
    )


def _explain_missing_config(directory: Path) -> str:
    """A guess at what was meant, from the content of a directory without config.json."""
    names = sorted(path.name for path in directory.iterdir())
    if found := [name for name in names if name.lower().endswith(".gguf")]:
        return f'Name the file itself: training.model = "{directory / found[0]}"'
    inner = [path.parent for place in ("*", "snapshots/*") for path in sorted(directory.glob(f"{place}/{CONFIG}"))]
    if inner:
        return f'Did you mean training.model = "{inner[0]}"?'
    if broken := _explain_broken_links(directory):
        return broken
    return "Point training.model at a directory that save_pretrained wrote, or `hf download` with --local-dir"


def _refuse_irregular_files(directory: Path) -> None:
    """Raise ModelError for files such as pipes, which could block the reader forever."""
    for path in sorted(directory.iterdir()):
        try:
            mode = path.stat().st_mode
        except OSError:  # a broken link, reported later if the file is needed
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ModelError(
                f"{path}, of a model: {describe_irregular_file(mode)}", "Point training.model at a saved model"
            )


def list_weights(directory: Path) -> list[Path]:
    """The files of weights that transformers would read, existing or not; empty if nothing hints at any."""
    for name in WEIGHTS:
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.is_file():
            _check_content(index)
            try:
                parts = set(json.loads(index.read_bytes())["weight_map"].values())
                if not parts:
                    raise LookupError("it names no file")
                return [directory / Path(part).name for part in sorted(parts)]
            except (ValueError, LookupError, AttributeError, TypeError) as error:
                raise ModelError(f"{index} is not the index of a model's weights", "Copy the file again") from error
    return []


def _check_content(path: Path) -> None:
    """Raise ModelError if something else is in place of a file: a pointer of Git LFS, or a proxy's web page."""
    start = read_start(path, _START_BYTES)
    if found := detect_wrong_content(path, start):
        raise ModelError(*found)
    if not start:
        raise ModelError(f"{path} is empty", _AGAIN)


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Read a safetensors header: dtype, shape and bounds (`data_offsets`, from the file's beginning) by name.

    Raises ModelError if the file is not safetensors or is cut off, OSError.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length <= HEADER_BYTES_MAX else b""
        size_bytes = file.seek(0, 2)
    try:
        header: dict[str, dict[str, Any]] = msgspec.json.decode(raw, type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        for entry in header.values():
            entry["data_offsets"] = [8 + length + offset for offset in entry["data_offsets"]]
        whole_bytes = max((entry["data_offsets"][1] for entry in header.values()), default=8 + length)
    except (*DECODE_ERRORS, LookupError, TypeError) as error:
        if raw.startswith(b"{") and len(raw) < length:
            raise ModelError(f"{path} is cut off in its header, at {size_bytes:,} bytes", _AGAIN) from error
        raise ModelError(f"{path} is not a safetensors file: it has no such header", _AGAIN) from error
    if size_bytes != whole_bytes:
        what = "is cut off" if size_bytes < whole_bytes else "has something behind its weights"
        raise ModelError(f"{path} {what}: it has {size_bytes:,} of {whole_bytes:,} bytes", _AGAIN)
    return header


_AGAIN = "Copy or download it again"


def digest_weights(directory: Path) -> str:
    """SHA-256 over name, type, shape and values of each weight in a model directory, in hex. Weights in other formats
    than safetensors count as whole files. Raises ModelError, OSError."""
    digest, places = hashlib.sha256(), dict[str, tuple[Path, dict[str, Any]]]()
    for path in list_weights(directory):
        if path.suffix == ".safetensors":
            places |= {name: (path, entry) for name, entry in read_header(path).items()}
        else:
            digest.update(path.name.encode())
            _hash_range(digest, path, 0, path.stat().st_size)
    for name, (path, entry) in sorted(places.items()):
        digest.update(msgspec.json.encode([name, entry["dtype"], entry["shape"]]))
        _hash_range(digest, path, *entry["data_offsets"])
    return digest.hexdigest()


def _hash_range(digest: Any, path: Path, start: int, end: int) -> None:
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (block := file.read(min(BLOCK_BYTES, end - start))):
            digest.update(block)
            start += len(block)


def check_gguf(path: Path, is_trained: bool = False) -> int:
    """Check by its header and size that a model can be read from a GGUF file. Returns the number of values in its
    tensors. `is_trained`: whether the model will be trained, which requires a chat template. Raises GgufRefused: no
    model can be read from it; ModelUnfit: it has no chat template."""
    from gguf import GGUFReader
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS

    try:
        reader = GGUFReader(path)
        wanted = (_ARCHITECTURE, _SPLIT_COUNT, _TEMPLATE)
        contents = {name: reader.fields[name].contents() for name in wanted if name in reader.fields}
        count = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except Exception as error:  # the reader may raise anything
        raise GgufRefused(f"{path} is damaged, cut off or not a GGUF file: {error}", "Download it again") from error
    known = {_normalize_architecture(name) for name in (*GGUF_CONFIG_MAPPING, *GGUF_CONFIG_ARCHS)} - {
        "general",
        "tokenizer",
    }
    architecture = str(contents.get(_ARCHITECTURE, ""))
    if _normalize_architecture(architecture) not in known:
        raise GgufRefused(
            f"{path} holds a model of the architecture {architecture!r}, which is not read from such files",
            f"Take the model's safetensors, or a model of these: {', '.join(sorted(known))}",
        )
    if int(contents.get(_SPLIT_COUNT, 1)) > 1:
        raise GgufRefused(f"{path} is one of several parts of a model", "Put them together: `llama-gguf-split --merge`")
    if is_trained and not contents.get(_TEMPLATE):
        raise missing_template_error(str(path))
    return count


def _normalize_architecture(architecture: str) -> str:
    """Remove "-" and "_", which files and transformers use differently: "qwen2moe" for "qwen2_moe"."""
    return architecture.replace("-", "").replace("_", "")


def check_template(directory: Path, name: str) -> None:
    """Raise ModelUnfit if, judging by its files, a model lacks a tokenizer or a chat template."""
    settings = directory / TOKENIZERS[0]
    if not any((directory / each).exists() for each in (*TOKENIZERS[1:], *VOCABULARIES)):
        raise ModelUnfit(
            f"the model directory {directory} has no tokenizer: no tokenizer.json and no other file of one",
            "Copy the tokenizer's files beside the weights, or save it there: `tokenizer.save_pretrained(DIR)`",
        )
    if not settings.is_file() or any((directory / each).exists() for each in TEMPLATES):
        return
    if not _read_settings(settings).get("chat_template"):
        raise missing_template_error(name)


def similar_directory(name: str) -> str:
    """An existing model directory with a name similar to a missing one, as a configuration would name it; else
    empty."""
    place = Path(name).expanduser().parent
    there = [path.parent.name for path in place.glob("*/config.json")]
    near = difflib.get_close_matches(Path(name).name, there, n=1)
    return f"{'' if place.is_absolute() else './'}{place / near[0]}" if near else ""


def missing_template_error(name: str) -> ModelUnfit:
    """The error for a model without a chat template."""
    return ModelUnfit(
        f"the tokenizer of {name} has no chat template",
        "Take the instruction-tuned model of that name (-Instruct, -it, -chat), or put chat_template.jinja beside it: "
        "one line will do, which docs/MODELS.md has under `A model without a chat template`",
    )
