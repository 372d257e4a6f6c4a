"""swarmd: an event-sourced node for swarms that train language models with reinforcement learning.

The names here are for other programs (docs/PYTHON.md) and are loaded when they are first used. Authors of swarms import
from `swarmd.plugin` (docs/swarms/writing.md). Everything else is private.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["Log", "RunningNode", "Swarm", "__version__", "open_log", "open_node", "open_swarm", "read_swarm"]


def __getattr__(name: str) -> Any:
    """Import an exported name from `swarmd.api` on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'swarmd' has no attribute {name!r}")
    return getattr(importlib.import_module(".api", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
