"""The weights that a node announces: its own, floating-point ones rounded to bfloat16, as one safetensors file.

Rounding is to the nearest, ties to even, so that each value is off by 2^-8 of itself at most (values below 2^-126 by
2^-134). A step moves few of the rounded values, which is what keeps deltas small; a node that trains in float32 keeps
its own finer values, and what it has announced before plays no part in what it announces next: errors do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarmd.errors import ModelError, RecordRejected
from swarmd.weights.tensors import check_finite, read_tensors

DTYPE = "BF16"
REASON_MAX = 200  # characters of what the library says, which may hold megabytes of a peer's header


def write_announced(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write weights as they are announced; other tensors than floating-point ones stay as they are.

    Raises:
        RecordRejected: "non-finite": they hold values that are no numbers.
        OSError: they cannot be written.
    """
    rounded = {name: _rounded(weight) for name, weight in sorted(weights.items())}
    save_file(rounded, path, metadata={"format": "pt"})
    check_finite(path)


def write_announced_file(own: Path, path: Path) -> None:
    """Write the weights of a checkpoint's file as they are announced. As `write_announced`."""
    write_announced(load_file(own), path)


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    plain = weight.detach().cpu()
    plain = plain.to(torch.bfloat16) if plain.is_floating_point() else plain
    return plain.contiguous().clone()


def read_announced(path: Path, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that a peer announced, in the dtypes of one's own.

    Args:
        path: a file whose digest has been checked.
        own: the weights in whose place they are to be.

    Raises:
        RecordRejected: it is no safetensors file, or holds values that are no numbers.
        ModelError: they are another model's.
        OSError: it cannot be read.
    """
    check_finite(path)
    shapes = {tensor.name: tensor.shape for tensor in read_tensors(path)}
    wanted = {name: tuple(weight.shape) for name, weight in own.items()}
    if shapes != wanted:
        differing = sorted(name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name))
        raise ModelError(
            f"the weights offered are another model's: {differing[:3]}", "Take them from peers that train this model"
        )
    try:
        loaded = load_file(path)
    except SafetensorError as error:  # the library is stricter with what no tensor needs, such as the metadata
        raise RecordRejected("malformed", f"no safetensors file: {str(error)[:REASON_MAX]}") from error
    return {name: _as_own(name, weight, own[name]) for name, weight in loaded.items()}


def _as_own(name: str, weight: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """In the dtype of one's own: float16 reaches no further than 65,504. Raises RecordRejected("non-finite")."""
    taken = weight.to(own.dtype)
    if taken.is_floating_point() and not bool(taken.isfinite().all()):
        raise RecordRejected("non-finite", f"{name[:80]!r} has values that are no numbers as {own.dtype}")
    return taken
