"""On PYTHONPATH of a trainer worker: has passes of one of its ranks run out of memory, as a device does.

`SHORT_RANK` says which rank, `ROWS_THAT_FIT` how many completions fit in a pass.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TRAINER = "swarmd.training.trainer"


class Finder(MetaPathFinder):
    """Finds that one module as usual, and changes it once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == TRAINER else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_bound(module: ModuleType) -> None:
            load(module)
            bound_memory(module.SwarmTrainer)

        spec.loader.exec_module = load_and_bound  # type: ignore[method-assign]
        return spec


def bound_memory(trainer: Any) -> None:
    """Have larger passes fail on the rank that is short of memory."""
    import torch

    compute = trainer.compute_loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        short = os.environ.get("RANK", "0") == os.environ["SHORT_RANK"]
        if short and self.args.per_device_train_batch_size > int(os.environ["ROWS_THAT_FIT"]):
            raise torch.OutOfMemoryError("out of memory")
        return compute(self, *args, **kwargs)

    trainer.compute_loss = compute_loss


sys.meta_path.insert(0, Finder())
