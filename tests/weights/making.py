"""Files of weights without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """A file with these tensors: name → dtype, shape, values."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(values)]}
        offset += len(values)
    return write_raw(path, json.dumps(header).encode(), b"".join(values for _, _, values in tensors.values()))


def write_raw(path: Path, header: bytes, values: bytes) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + values)
    return path


def bfloat16(count: int, seed: int) -> bytes:
    """Random finite bfloat16 values."""
    values = np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def count_changed(base: Path, new: Path) -> tuple[int, int]:
    """How many 16-bit words of two files of one size differ, and of how many; an odd last byte is left out."""
    old, now = (path.read_bytes() for path in (base, new))
    words = [np.frombuffer(content[: len(content) // 2 * 2], dtype="<u2") for content in (old, now)]
    return int(np.count_nonzero(words[0] != words[1])), len(words[0])
