"""What is trained: each kind of swarm draws questions and scores completions; rollouts name questions on the wire.

Authors of swarms import from `swarmd.plugin`; everything else here is private.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def _defer_module_import(name: str) -> None:
    """Put a proxy into `sys.modules` that imports the real module on first use. importlib's LazyLoader does not help
    here: its modules are loaded as soon as they are imported."""
    spec = find_spec(name) if name not in sys.modules else None
    if spec is None:
        return
    stand_in = ModuleType(name)
    stand_in.__spec__ = spec

    def load_attribute(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    stand_in.__getattr__ = load_attribute  # type: ignore[method-assign]
    sys.modules[name] = stand_in


# reasoning_gym imports it only for the game of life, and it pulls in matplotlib: 24 MB
_defer_module_import("cellpylib")
