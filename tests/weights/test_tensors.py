"""Files of weights: tensors that are read without loading them, and deltas."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from swarmd.errors import RecordRejected
from swarmd.weights.tensors import (
    BLOCK_WORDS,
    HEADER_BYTES_MAX,
    MAGIC,
    PLAIN_BYTES_MAX,
    apply_delta,
    check_finite,
    digest_architecture,
    read_tensors,
    write_delta,
)
from tests.weights.making import bfloat16, count_changed, write_raw, write_safetensors

COUNT = BLOCK_WORDS + 70_000  # more than one block


def moved(values: bytes, share: float, seed: int = 1) -> bytes:
    """Some words one unit up or down."""
    rng = np.random.default_rng(seed)
    words = np.frombuffer(values, dtype="<u2").copy()
    places = rng.choice(len(words), int(len(words) * share), replace=False)
    words[places] += rng.choice(np.array([1, 2**16 - 1], dtype=np.uint16), len(places))
    return words.tobytes()


def through(tmp_path: Path, old: bytes, new: bytes) -> tuple[bytes, int]:
    """What the delta makes of the old, and the size of the delta."""
    (tmp_path / "old").write_bytes(old)
    (tmp_path / "new").write_bytes(new)
    write_delta(tmp_path / "old", tmp_path / "new", tmp_path / "delta")
    apply_delta(tmp_path / "old", tmp_path / "delta", tmp_path / "made")
    return (tmp_path / "made").read_bytes(), (tmp_path / "delta").stat().st_size


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.01, 1.0])
def test_it_is_exact_whatever_has_changed(tmp_path: Path, share: float) -> None:
    old = bfloat16(COUNT, 0)
    new = moved(old, share)
    assert through(tmp_path, old, new)[0] == new
    assert count_changed(tmp_path / "old", tmp_path / "new") == (int(COUNT * share), COUNT)


def test_a_hundredth_of_the_values_costs_less_than_a_hundredth_of_the_bytes(tmp_path: Path) -> None:
    old = bfloat16(COUNT, 0)
    assert through(tmp_path, old, moved(old, 0.01))[1] < 0.01 * len(old)


def block(coded: bytes, changes: bytes) -> bytes:
    return packed(len(coded).to_bytes(4, "little") + coded + changes)


def packed(plain: bytes) -> bytes:
    made = zlib.compress(plain)
    return len(made).to_bytes(4, "little") + made


@pytest.mark.parametrize(
    "delta",
    [
        b"",
        b"PK\x03\x04",
        MAGIC,
        MAGIC + b"\xff\xff\xff\xff",
        MAGIC + b"\x04\0\0\0zlib",
        MAGIC + packed(b""),
        MAGIC + packed(bytes(PLAIN_BYTES_MAX + 1)),
        MAGIC + block(b"\0", b"\1"),
        MAGIC + block(b"\xff", b""),
        MAGIC + block(b"\x08", b"\1\0"),
        MAGIC + block(b"\xff\xff\0", b"\1\0"),
        MAGIC + packed(b"\xff\xff\xff\xff\0\1\0"),
        MAGIC + block(b"", b"") + b"more",
        MAGIC + block(b"", b"")[:-1],
    ],
)
def test_a_bad_delta_is_refused(tmp_path: Path, delta: bytes) -> None:
    (tmp_path / "old").write_bytes(bytes(16))
    (tmp_path / "delta").write_bytes(delta)
    with pytest.raises(RecordRejected):
        apply_delta(tmp_path / "old", tmp_path / "delta", tmp_path / "made")


ENTRY = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}


def test_its_tensors_are_read(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "w", {"a": ("BF16", (2, 3), bfloat16(6, 0)), "n": ("I64", (), bytes(8))})
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in read_tensors(path)] == [
        ("a", "BF16", (2, 3)),
        ("n", "I64", ()),
    ]
    check_finite(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b"not json",
        b'{"a": ' + b"[" * 100_000,
        json.dumps({"a": ENTRY, "b": ENTRY}).encode(),  # the same bytes twice
        json.dumps({"a": {**ENTRY, "data_offsets": [0, 2]}}).encode(),
        json.dumps({"a": {**ENTRY, "data_offsets": [4, 0]}}).encode(),
        json.dumps({"a": {**ENTRY, "shape": [2**40] * 8}}).encode(),
        json.dumps({"a": {**ENTRY, "shape": [1] * 9 + [2]}}).encode(),
        json.dumps({"a": {**ENTRY, "shape": [-1, -2]}}).encode(),
        json.dumps({"a": {**ENTRY, "dtype": "OBJECT"}}).encode(),
        json.dumps({"a": {**ENTRY, "shape": [1], "data_offsets": [0, 2]}}).encode(),  # the file is longer
        json.dumps({"a\n": ENTRY}).encode(),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(RecordRejected):
        read_tensors(write_raw(tmp_path / "w", header, bytes(4)))


def test_a_header_that_states_to_be_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes((HEADER_BYTES_MAX + 1).to_bytes(8, "little"))
    with pytest.raises(RecordRejected) as refused:
        read_tensors(path)
    assert refused.value.reason == "oversized"


@pytest.mark.parametrize(
    ("dtype", "value"), [("BF16", 0x7FC0), ("BF16", 0xFF80), ("F16", 0x7C00), ("F32", 0x7F800000), ("F32", 0xFFC00001)]
)
def test_values_that_are_no_numbers_are_found(tmp_path: Path, dtype: str, value: int) -> None:
    width = 4 if dtype == "F32" else 2
    values = bytes(width * 9) + value.to_bytes(width, "little")
    path = write_safetensors(tmp_path / "w", {"a": (dtype, (2, 5), values)})
    with pytest.raises(RecordRejected) as refused:
        check_finite(path)
    assert refused.value.reason == "non-finite"


def test_an_architecture_is_its_configuration_and_its_tensors() -> None:
    shapes = {"a": (2, 3), "b": (4,)}
    digest = digest_architecture({"layers": 2, "dtype": "float32", "_name_or_path": "here"}, shapes)
    assert digest == digest_architecture({"layers": 2, "dtype": "bfloat16"}, dict(reversed(shapes.items())))
    assert digest != digest_architecture({"layers": 3}, shapes)
    assert digest != digest_architecture({"layers": 2}, {"a": (3, 2), "b": (4,)})
