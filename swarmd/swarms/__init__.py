"""What is trained: each kind of swarm draws questions and scores completions; rollouts name questions on the wire.

Authors of swarms import from `swarmd.plugin`; what else is here is private.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

HEAVY = ("cellpylib",)  # for the game of life; brings matplotlib: 24 MB


def defer_heavy_modules() -> None:
    """Put stand-ins in place of what reasoning-gym imports for a task or two: the first use loads the real module."""
    for name in HEAVY:
        spec = find_spec(name) if name not in sys.modules else None
        if spec is not None:
            sys.modules[name] = stand_in = ModuleType(name)
            stand_in.__spec__ = spec
            stand_in.__getattr__ = _loader_of(stand_in)  # type: ignore[method-assign]


def _loader_of(stand_in: ModuleType) -> Any:
    def load(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(stand_in.__name__) is stand_in:
            del sys.modules[stand_in.__name__]
        return getattr(import_module(stand_in.__name__), attribute)

    return load


defer_heavy_modules()  # before anything imports reasoning_gym
