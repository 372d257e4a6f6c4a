"""Memory is measured by process, and what is loaded is kept out of later collections."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swarmd.training.footprint import is_device_lost, is_out_of_memory, measure_bytes

MEBIBYTE = 1 << 20
HOLD = "import sys; block = bytearray(64 << 20); print(flush=True); sys.stdin.read()"


def test_memory_of_another_process_is_measured() -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        held = measure_bytes(Path(f"/proc/{child.pid}/status"))
        assert 64 * MEBIBYTE < held < 128 * MEBIBYTE < measure_bytes()
    finally:
        child.communicate()


def test_running_out_of_memory_is_known_by_type_and_by_words() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50)  # on the CPU torch raises no MemoryError
    assert is_out_of_memory(raised.value)
    words = ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory (MPS allocated: 9 GB)")
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), *map(RuntimeError, words)):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_a_lost_accelerator_is_no_shortage_of_memory() -> None:
    """Smaller parts would not help, and a fresh process would begin with them for nothing."""
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert is_device_lost(error) and not is_out_of_memory(error)
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
