"""Loads hivemind's DHT without the rest of hivemind.

`import hivemind` imports torch: 2.5 s and 240 MB that a network process does not need. The DHT does not need it either,
but the packages' `__init__` files import everything. So three empty packages replace them before any import of
hivemind: 0.2 s and 38 MB in total. If hivemind is loaded already, or has another structure, nothing is replaced.
"""

import importlib.util
import sys
import types
from importlib import import_module

PACKAGES = ("hivemind", "hivemind.utils", "hivemind.dht")
LOGGING = "hivemind.utils.logging"
EXPORTS = {  # what hivemind's own modules import from `hivemind.utils`
    LOGGING: ("get_logger",),
    "hivemind.utils.serializer": ("MSGPackSerializer", "SerializerBase"),
    "hivemind.utils.timed_storage": (
        "DHTExpiration",
        "MAX_DHT_TIME_DISCREPANCY_SECONDS",
        "TimedStorage",
        "ValueWithExpiration",
        "get_dht_time",
    ),
}


def load_hivemind_without_torch() -> bool:
    """Install the empty packages and import the DHT. Returns whether hivemind is loaded without torch."""
    if "hivemind" in sys.modules:
        return "torch" not in sys.modules
    try:
        _install_bare_packages()
        import_module("hivemind.dht.node")
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name.split(".")[0] == "hivemind"]:
            del sys.modules[name]
        return False
    return True


def _install_bare_packages() -> None:
    spec = importlib.util.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("hivemind is not installed")
    root = next(iter(spec.submodule_search_locations))
    for name in PACKAGES:
        _install_bare_package(name, "/".join([root, *name.split(".")[1:]]))
    utils = sys.modules["hivemind.utils"]
    for module, exported in EXPORTS.items():
        for name in exported:
            setattr(utils, name, getattr(import_module(module), name))


def _install_bare_package(name: str, location: str) -> None:
    package = types.ModuleType(name)
    package.__path__ = [location]
    package.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


LEAN = load_hivemind_without_torch()
