"""Makes a trainer worker and its ranks run out of memory, if it is on their PYTHONPATH.

`SHORT_RANK` says which rank runs out of memory, `ROWS_THAT_FIT` how many completions fit in its passes.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class Finder(MetaPathFinder):
    """Finds the modules of `CHANGES` as usual, and changes them once they are loaded."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in CHANGES else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def bound_memory(module: Any) -> None:
    """Have larger passes fail on the rank that is short of memory."""
    import torch

    compute = module.SwarmTrainer.compute_loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        short = os.environ.get("RANK", "0") == os.environ["SHORT_RANK"]
        if short and self.args.per_device_train_batch_size > int(os.environ["ROWS_THAT_FIT"]):
            raise torch.OutOfMemoryError("out of memory")
        return compute(self, *args, **kwargs)

    module.SwarmTrainer.compute_loss = compute_loss


CHANGES = {"swarmd.training.trainer": bound_memory} if "SHORT_RANK" in os.environ else {}
sys.meta_path.insert(0, Finder())
