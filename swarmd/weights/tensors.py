"""Reads weight files with numpy: tensors without loading them all, checks of values, and deltas.

The format is safetensors: u64 little-endian length, that many bytes of JSON (name → dtype, shape, offsets), the values
(https://github.com/huggingface/safetensors). This module rejects gaps and sub-byte dtypes, which the library accepts
but no trainer here writes.

A delta is exact, and small if little has changed. Both files are read as 16-bit words, the size of bfloat16. A training
step changes few of them, most by one unit in the last place. So a delta holds the positions and amounts of changes,
block by block:

    "swarmd-delta-1\\0", then for each block of 1 Mi words: u32 little-endian length, and that many bytes of zlib, of
    u32 n; n bytes of gaps; the low bytes of the changes, then the high bytes.

A gap is the number of unchanged words before a changed one; 255 stands for 255 unchanged words that no change follows.
A change is the difference of the words modulo 2^16, zigzag-encoded: 0, -1, 1, -2 … become 0, 1, 2, 3 …. Other dtypes
are encoded exactly, too, only less compactly. Both files must have the same size and header.
"""

import hashlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import RecordRejected

MAGIC = b"swarmd-delta-1\0"
BLOCK_WORDS = 1024 * 1024
SKIP = 255
LEVEL = 9
PLAIN_BYTES_MAX = 4 + BLOCK_WORDS * 3 + BLOCK_WORDS // SKIP + 1  # of a decompressed block
PACKED_BYTES_MAX = PLAIN_BYTES_MAX + PLAIN_BYTES_MAX // 100 + 1024

Words = NDArray[np.uint16]
Octets = NDArray[np.uint8]


def write_delta(base: Path, new: Path, to: Path) -> None:
    """Write the delta from one file to another. Raises ValueError if their sizes differ, OSError."""
    if base.stat().st_size != new.stat().st_size:
        raise ValueError(f"{base.name} and {new.name} have different sizes")
    with base.open("rb") as first, new.open("rb") as second, to.open("wb") as delta:
        delta.write(MAGIC)
        for old, now in zip(_read_blocks(first), _read_blocks(second), strict=True):
            packed = zlib.compress(_encode_changes(_to_words(old), _to_words(now)), LEVEL)
            delta.write(len(packed).to_bytes(4, "little") + packed)


def apply_delta(base: Path, delta: Path, to: Path) -> None:
    """Write the file that a delta makes from its base. The caller checks its digest. Raises RecordRejected: "malformed"
    or "oversized": the delta is damaged, or does not match this base; OSError."""
    with base.open("rb") as first, delta.open("rb") as changes, to.open("wb") as new:
        if changes.read(len(MAGIC)) != MAGIC:
            raise RecordRejected("malformed", "not a delta of weights")
        for old in _read_blocks(first):
            words = _to_words(old)
            _apply_changes(words, _unpack_next_block(changes))
            new.write(words.tobytes()[: len(old)])
        if changes.read(1):
            raise RecordRejected("malformed", "the delta goes on after the end of its base")


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(2 * BLOCK_WORDS):
        yield block


def _to_words(block: bytes) -> Words:
    """A block as a mutable array of words; an odd last byte is padded."""
    return np.frombuffer(block + b"\0" * (len(block) % 2), dtype="<u2").copy()


def _encode_changes(old: Words, new: Words) -> bytes:
    places = np.flatnonzero(old != new)
    change = (new[places] - old[places]).view(np.int16)
    folded = ((change << 1) ^ (change >> 15)).view(np.uint16)
    gaps = np.diff(places, prepend=-1) - 1
    skips = gaps // SKIP
    coded: Octets = np.full(int(skips.sum()) + len(places), SKIP, dtype=np.uint8)
    coded[np.cumsum(skips + 1) - 1] = (gaps % SKIP).astype(np.uint8)
    low, high = (folded & 0xFF).astype(np.uint8), (folded >> 8).astype(np.uint8)
    return len(coded).to_bytes(4, "little") + coded.tobytes() + low.tobytes() + high.tobytes()


def _unpack_next_block(changes: BinaryIO) -> bytes:
    """The next block of a delta, decompressed up to its bound."""
    length = int.from_bytes(changes.read(4), "little")
    if not 0 < length <= PACKED_BYTES_MAX:
        raise RecordRejected("oversized", f"a block of a delta of {length} bytes")
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(changes.read(length), PLAIN_BYTES_MAX + 1)
    except zlib.error as error:
        raise RecordRejected("malformed", f"a block of a delta is not a zlib stream: {error}") from error
    if not stream.eof or stream.unused_data or not 4 <= len(plain) <= PLAIN_BYTES_MAX:
        raise RecordRejected("malformed", "a block of a delta is cut, too long, or followed by more")
    return plain


def _apply_changes(words: Words, plain: bytes) -> None:
    """Change words in place. Raises RecordRejected."""
    count = int.from_bytes(plain[:4], "little")
    coded = np.frombuffer(plain[4 : 4 + count], dtype=np.uint8)
    rest = np.frombuffer(plain[4 + count :], dtype=np.uint8)
    ends = np.flatnonzero(coded != SKIP)
    if len(coded) != count or len(rest) != 2 * len(ends) or (count and ends[-1:].tolist() != [count - 1]):
        raise RecordRejected("malformed", "a block of a delta has other gaps than changes")
    steps = coded.astype(np.int64) + (coded != SKIP)
    places = np.cumsum(steps)[ends] - 1
    if len(places) and places[-1] >= len(words):
        raise RecordRejected("malformed", "a delta changes what its base does not have")
    folded = rest[: len(ends)].astype(np.uint16) | (rest[len(ends) :].astype(np.uint16) << 8)
    words[places] += (folded >> 1) ^ (0 - (folded & 1)).astype(np.uint16)


HEADER_BYTES_MAX = 8 * 1024 * 1024
TENSORS_MAX = 65_536
NAME_LENGTH_MAX = 512
DIMENSIONS_MAX = 8
BLOCK_BYTES = 4 * 1024 * 1024
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_EXPONENT = {"BF16": (np.uint16, 0x7F80), "F16": (np.uint16, 0x7C00), "F32": (np.uint32, 0x7F800000)}

Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _HeaderEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[tuple[Dimension, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
    data_offsets: tuple[Dimension, Dimension]


class Tensor(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # offset of its data in the file
    end: int


def read_tensors(path: Path) -> tuple[Tensor, ...]:
    """The tensors of a file, in order of their offsets. Raises RecordRejected: "oversized" or "malformed": it is not
    safetensors, or its content does not match its header; OSError."""
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
        raise RecordRejected("malformed", f"not a safetensors header: {error}") from error
    if not 0 < len(tensors) <= TENSORS_MAX:
        raise RecordRejected("oversized", f"{len(tensors)} tensors, the limit is {TENSORS_MAX}")
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    ends = [8 + length, *(tensor.end for tensor in tensors)]
    if [tensor.start for tensor in tensors] != ends[:-1] or ends[-1] != size_bytes:
        raise RecordRejected("malformed", "the tensors overlap, leave gaps, or are not as long as the file")
    return tuple(tensors)


def _tensor(name: str, raw: msgspec.Raw, offset: int) -> Tensor:
    entry = msgspec.json.decode(raw, type=_HeaderEntry)
    start, end = entry.data_offsets
    if len(name) > NAME_LENGTH_MAX or not name.isprintable() or entry.dtype not in _BYTES:
        raise RecordRejected("malformed", f"a tensor {name[:80]!r} of dtype {entry.dtype[:16]!r}")
    if end - start != math.prod(entry.shape) * _BYTES[entry.dtype]:
        raise RecordRejected("malformed", f"the tensor {name[:80]!r} has not the size of its shape")
    return Tensor(name, entry.dtype, entry.shape, offset + start, offset + end)


def check_finite(path: Path) -> None:
    """Check that every floating-point value of a file is finite, one block at a time. Raises RecordRejected:
    "non-finite", naming the tensor, or as `read_tensors`; OSError."""
    for tensor in read_tensors(path):
        if tensor.dtype == "F64":
            raise RecordRejected("malformed", f"{tensor.name[:80]!r} has float64 values, which no trainer here writes")
        if tensor.dtype in _EXPONENT:
            kind, exponent = _EXPONENT[tensor.dtype]
            for block in _read_tensor_blocks(path, tensor):
                words = np.frombuffer(block, dtype=kind)
                if bool(np.any((words & kind(exponent)) == kind(exponent))):
                    raise RecordRejected("non-finite", f"{tensor.name[:80]!r} has values that are not finite")


def _read_tensor_blocks(path: Path, tensor: Tensor) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(tensor.start)
        for start in range(tensor.start, tensor.end, BLOCK_BYTES):
            yield file.read(min(BLOCK_BYTES, tensor.end - start))


IGNORED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures")


def digest_architecture(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> str:
    """SHA-256 of a model's configuration and its tensors' names and shapes: equal if weights are interchangeable.
    `config`: from `config.json`, of which keys that do not describe the architecture (name, versions, dtype) are
    ignored. `shapes`: of each trained tensor."""
    plain = {key: value for key, value in config.items() if key not in IGNORED and value is not None}
    named = sorted((name, list(shape)) for name, shape in shapes.items())
    encoded = msgspec.json.encode([plain, named], order="deterministic")
    return hashlib.sha256(b"swarmd-architecture-1\0" + encoded).hexdigest()
