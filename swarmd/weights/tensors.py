"""What a file of weights holds, read without loading it: its header bounded and checked, its values finite.

The format is safetensors: u64 little-endian length, so many bytes of JSON (name → dtype, shape, offsets), the values.
https://github.com/huggingface/safetensors has it in full; what the library takes and this module does not (gaps in
names' bounds, sub-byte dtypes) no trainer here writes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import RecordRejected

HEADER_BYTES_MAX = 8 * 1024 * 1024
TENSORS_MAX = 65_536
NAME_LENGTH_MAX = 512
DIMENSIONS_MAX = 8
BLOCK_BYTES = 4 * 1024 * 1024
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_EXPONENT = {"BF16": (np.uint16, 0x7F80), "F16": (np.uint16, 0x7C00), "F32": (np.uint32, 0x7F800000)}

Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[tuple[Dimension, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
    data_offsets: tuple[Dimension, Dimension]


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # of its bytes in the file
    end: int


def read_tensors(path: Path) -> tuple[Tensor, ...]:
    """The tensors of a file, in the order of their bytes.

    Raises:
        RecordRejected: "oversized" or "malformed": it is not safetensors, or there is more or less in it than it says.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= HEADER_BYTES_MAX:
            raise RecordRejected("oversized", f"a header of {length} bytes, the limit is {HEADER_BYTES_MAX}")
        header = file.read(length)
        size_bytes = file.seek(0, 2)
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        tensors = [_tensor(name, raw, 8 + length) for name, raw in entries.items()]
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no safetensors header: {error}") from error
    if not 0 < len(tensors) <= TENSORS_MAX:
        raise RecordRejected("oversized", f"{len(tensors)} tensors, the limit is {TENSORS_MAX}")
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    ends = [8 + length, *(tensor.end for tensor in tensors)]
    if [tensor.start for tensor in tensors] != ends[:-1] or ends[-1] != size_bytes:
        raise RecordRejected("malformed", "the tensors overlap, leave gaps, or are not as long as the file")
    return tuple(tensors)


def _tensor(name: str, raw: msgspec.Raw, offset: int) -> Tensor:
    entry = msgspec.json.decode(raw, type=_Entry)
    start, end = entry.data_offsets
    if len(name) > NAME_LENGTH_MAX or not name.isprintable() or entry.dtype not in _BYTES:
        raise RecordRejected("malformed", f"a tensor {name[:80]!r} of dtype {entry.dtype[:16]!r}")
    if end - start != math.prod(entry.shape) * _BYTES[entry.dtype]:
        raise RecordRejected("malformed", f"the tensor {name[:80]!r} has not the size of its shape")
    return Tensor(name, entry.dtype, entry.shape, offset + start, offset + end)


def check_finite(path: Path) -> None:
    """Is every floating-point value of a file a number? A block at a time is in memory.

    Raises:
        RecordRejected: "non-finite", naming the tensor; as `read_tensors`.
        OSError: it cannot be read.
    """
    for tensor in read_tensors(path):
        if tensor.dtype == "F64":
            raise RecordRejected("malformed", f"{tensor.name[:80]!r} has float64 values, which no trainer here writes")
        if tensor.dtype in _EXPONENT:
            kind, exponent = _EXPONENT[tensor.dtype]
            for block in _blocks(path, tensor):
                words = np.frombuffer(block, dtype=kind)
                if bool(np.any((words & kind(exponent)) == kind(exponent))):
                    raise RecordRejected("non-finite", f"{tensor.name[:80]!r} has values that are no numbers")


def _blocks(path: Path, tensor: Tensor) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(tensor.start)
        for start in range(tensor.start, tensor.end, BLOCK_BYTES):
            yield file.read(min(BLOCK_BYTES, tensor.end - start))


IGNORED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures")


def digest_architecture(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> str:
    """SHA-256 of what makes weights fit a model: its configuration, and the names and shapes of its tensors.

    Args:
        config: as `config.json` has it; what says nothing of the architecture (its name, versions, dtype) is left out.
        shapes: of each tensor that is trained.
    """
    plain = {key: value for key, value in config.items() if key not in IGNORED and value is not None}
    named = sorted((name, list(shape)) for name, shape in shapes.items())
    encoded = msgspec.json.encode([plain, named], order="deterministic")
    return hashlib.sha256(b"swarmd-architecture-1\0" + encoded).hexdigest()
