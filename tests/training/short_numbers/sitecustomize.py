"""On PYTHONPATH of a trainer worker and its ranks: has them compute in bfloat16 over float32, as on an accelerator."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DEVICE = "swarmd.training.device"


class Finder(MetaPathFinder):
    """Finds that one module as usual, and changes it once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == DEVICE else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            module.computes_bfloat16 = lambda device: True  # type: ignore[attr-defined]

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
