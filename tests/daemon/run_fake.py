"""Runs a node with scripted workers: run_fake.py CONFIG DATA NETWORK_MODE TRAINER_MODE [CHAIN_MODE].

Modes may end in "+once". "telltale" and "scripted" are other scripts, "real" is the worker itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from swarmd.config import load_config
from swarmd.core.values import Worker
from swarmd.daemon.service import WORKER_PROGRAMS, run_node
from swarmd.errors import SwarmdError
from swarmd.observe.logs import configure, tell_fatal
from swarmd.observe.slots import known_secrets
from swarmd.paths import DataPaths

FAKE = str(Path(__file__).with_name("fake_worker.py"))
TELLTALE = str(Path(__file__).with_name("telltale.py"))
SCRIPTED = str(Path(__file__).with_name("scripted_trainer.py"))


def program(worker: Worker, mode: str) -> tuple[str, ...]:
    if mode == "missing":
        return ("/nonexistent/program",)
    if mode == "real":
        return WORKER_PROGRAMS[worker]
    if mode == "scripted":
        return (sys.executable, SCRIPTED)
    if mode == "telltale":
        return (sys.executable, TELLTALE, worker)
    return (sys.executable, FAKE, worker, *mode.split("+"))


def main() -> int:
    config = load_config(Path(sys.argv[1]))
    configure(config.logs.level, "json", secrets=known_secrets(config, Path(sys.argv[2]), signing=True))
    programs: dict[Worker, tuple[str, ...]] = {
        "network": program("network", sys.argv[3]),
        "trainer": program("trainer", sys.argv[4]),
    }
    if len(sys.argv) > 5:
        programs["chain"] = program("chain", sys.argv[5])
    try:
        code = run_node(config, DataPaths(Path(sys.argv[2])), programs)
    except SwarmdError as error:
        tell_fatal(error)
        code = error.exit_code
    heavy = sorted({"torch", "hivemind", "transformers", "trl"} & set(sys.modules))
    print(f"heavy modules: {heavy}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main() or os.EX_OK)
