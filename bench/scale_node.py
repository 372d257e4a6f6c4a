"""A whole node whose network worker counts and whose trainer has no model: `python -m bench.scale_node CONFIG DATA`."""

from __future__ import annotations

import sys
from pathlib import Path

from swarmd.config import load_config
from swarmd.core.values import Worker
from swarmd.daemon.service import run_node
from swarmd.observe.logs import set_up_logging
from swarmd.paths import NodeDirectory

PROGRAMS: dict[Worker, tuple[str, ...]] = {
    "network": (sys.executable, "-m", "bench.scale_worker"),
    "trainer": (sys.executable, "-m", "tests.daemon.scripted_trainer"),
}


def main(config: Path, data: Path) -> int:
    """Run it until it is stopped. Returns the daemon's exit code."""
    loaded = load_config(config)
    set_up_logging(loaded.logs.level, "json")
    return run_node(loaded, NodeDirectory(data), PROGRAMS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
