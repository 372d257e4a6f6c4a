"""Wheels for a machine with a GPU: those that it lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "packaging" / "gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_other_machine_has_is_not_carried(gpu: ModuleType) -> None:
    everything = {gpu.normal(line.partition("==")[0]) for line in gpu.wanted(set())}
    needed = {gpu.normal(line.partition("==")[0]) for line in gpu.wanted({"torch", "grpcio-tools"})}
    assert everything - needed == {"torch", "grpcio-tools"}
    assert {"trl", "hivemind", "web3", "gguf", "bitsandbytes"} <= needed
    assert not {"pytest", "mypy"} & everything
