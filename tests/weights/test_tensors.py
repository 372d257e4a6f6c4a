"""A file of weights is looked through before anything loads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmd.errors import RecordRejected
from swarmd.weights.tensors import HEADER_BYTES_MAX, check_finite, digest_architecture, read_tensors
from tests.weights.making import bfloat16, write_raw, write_safetensors

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
