"""A delta makes exactly the new file out of the old one, and is small where little has changed."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from swarmd.errors import RecordRejected
from swarmd.weights.tensors import BLOCK_WORDS, MAGIC, PLAIN_BYTES_MAX, apply_delta, write_delta
from tests.weights.making import bfloat16, count_changed

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
