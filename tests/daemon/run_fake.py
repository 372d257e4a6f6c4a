"""Runs a node with scripted workers: run_fake.py CONFIG DATA NETWORK_MODE TRAINER_MODE [CHAIN_MODE [FORK_SERVER]].

Modes may end in "+once". "telltale" and "scripted" are other scripts, "real" is the worker itself. Where FORK_SERVER is
given, real and scripted workers are forked by the process that listens there instead of executed.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio

from swarmd.config import load_config
from swarmd.core.values import Worker
from swarmd.daemon import supervisor
from swarmd.daemon.process import Child
from swarmd.daemon.service import WORKER_PROGRAMS, run_node
from swarmd.errors import SwarmdError
from swarmd.eventlog.store import EventLog
from swarmd.observe.logs import log_fatal, set_up_logging
from swarmd.observe.redaction import known_secrets
from swarmd.paths import NodeDirectory
from tests.forked import Forked, order_fork

FAKE = str(Path(__file__).with_name("fake_worker.py"))
TELLTALE = str(Path(__file__).with_name("telltale.py"))
SCRIPTED = "tests.daemon.scripted_trainer"


def program(worker: Worker, mode: str) -> tuple[str, ...]:
    if mode == "missing":
        return ("/nonexistent/program",)
    if mode == "real":
        return WORKER_PROGRAMS[worker]
    if mode == "scripted":
        return (sys.executable, "-m", SCRIPTED)
    if mode == "telltale":
        return (sys.executable, TELLTALE, worker)
    return (sys.executable, FAKE, worker, *mode.split("+"))


class ForkedChild(Child):
    """A worker that is forked by a server; its pid, pipes, group and environment are its own."""

    def __init__(self, server: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        process = self._process = Forked(order_fork(server, argv[argv.index("-m") + 1], (), environment))
        self._stdin, self._stdout, self._stderr = (
            pipe.fileno() for pipe in (process.stdin, process.stdout, process.stderr)
        )
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)

    async def wait(self) -> None:
        await anyio.wait_readable(self._process.told)  # who forked it reaps it at once: there is no pid to watch


def main() -> int:
    config = load_config(Path(sys.argv[1]))
    if size := os.environ.get("SEGMENT_BYTES"):
        EventLog.open = partial(EventLog.open, segment_bytes=int(size))
    set_up_logging(config.logs.level, "json", secrets=known_secrets(config, Path(sys.argv[2]), signing=True))
    programs: dict[Worker, tuple[str, ...]] = {
        "network": program("network", sys.argv[3]),
        "trainer": program("trainer", sys.argv[4]),
    }
    if len(sys.argv) > 5:
        programs["chain"] = program("chain", sys.argv[5])
    if len(sys.argv) > 6:
        supervisor.Child = partial(ForkedChild, sys.argv[6])
    try:
        code = run_node(config, NodeDirectory(Path(sys.argv[2])), programs)
    except SwarmdError as error:
        log_fatal(error)
        code = error.exit_code
    heavy = sorted({"torch", "hivemind", "transformers", "trl"} & set(sys.modules))
    print(f"heavy modules: {heavy}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main() or os.EX_OK)
