"""Weights as they are announced: rounded within a bound, refused where they are no numbers or another model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swarmd.errors import ModelError, RecordRejected
from swarmd.training.weights.offering import read_announced, write_announced
from tests.weights.making import write_raw

OWN = {"b": torch.randn(40, 30, generator=torch.Generator().manual_seed(0)), "a": torch.arange(5)}


def test_each_value_is_off_by_a_256th_of_itself_at_most(tmp_path: Path) -> None:
    write_announced(OWN, tmp_path / "w")
    read = read_announced(tmp_path / "w", OWN)
    assert {name: weight.dtype for name, weight in read.items()} == {"a": torch.int64, "b": torch.float32}
    assert torch.equal(read["a"], OWN["a"])
    assert bool(((read["b"] - OWN["b"]).abs() <= OWN["b"].abs() / 256).all()) and not torch.equal(read["b"], OWN["b"])


def test_a_model_with_nan_is_not_announced(tmp_path: Path) -> None:
    with pytest.raises(RecordRejected) as refused:
        write_announced({"a": torch.tensor([1.0, float("nan")])}, tmp_path / "w")
    assert refused.value.reason == "non-finite"


def test_values_beyond_what_the_own_weights_can_hold_are_refused(tmp_path: Path) -> None:
    write_announced({"a": torch.tensor([1.0, 1e5])}, tmp_path / "w")
    assert read_announced(tmp_path / "w", {"a": torch.zeros(2)})["a"][1] == pytest.approx(1e5, rel=1 / 256)
    with pytest.raises(RecordRejected, match="no numbers as") as refused:
        read_announced(tmp_path / "w", {"a": torch.zeros(2, dtype=torch.float16)})
    assert refused.value.reason == "non-finite"


def test_a_header_that_only_the_library_refuses_is_quoted_in_part(tmp_path: Path) -> None:
    tensor = '"w":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}'
    header = f'{{"__metadata__":"{"A" * 5_000_000}",{tensor}}}'
    path = write_raw(tmp_path / "w", header.encode(), bytes(8))
    with pytest.raises(RecordRejected) as refused:
        read_announced(path, {"w": torch.zeros(4)})
    assert refused.value.reason == "malformed" and len(refused.value.message) < 300


@pytest.mark.parametrize(
    "other", [{"b": OWN["b"]}, {**OWN, "c": OWN["a"]}, {**OWN, "b": OWN["b"].T}, {"a": OWN["a"], "c": OWN["b"]}]
)
def test_another_models_weights_are_not_read(tmp_path: Path, other: dict[str, torch.Tensor]) -> None:
    write_announced(other, tmp_path / "w")
    with pytest.raises(ModelError):
        read_announced(tmp_path / "w", OWN)
