"""Starts and restarts a node's web process, which serves the page, sends notifications and pushes metrics.

The web process reads the log and the control socket like any other program. It never causes an event; its exit is
logged as a warning, and it ends with the node.
"""

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec

from swarmd.bounds import Backoff
from swarmd.config import Config, encode
from swarmd.daemon.process import Child, LineReader
from swarmd.logger import get_logger
from swarmd.observe import otlp
from swarmd.observe.logs import LineDeduplicator
from swarmd.observe.redaction import Redactor

PROGRAM = (sys.executable, "-m", "swarmd.web")
RESTART = Backoff(1.0, 60.0)
STEADY_S = 60.0  # a run that lasted longer resets the back-off
STOP_S = 3.0  # for an orderly stop
DRAIN_S = 1.0  # for reading the pipes of an ended process

log = get_logger("swarmd.companion")


def is_web_process_wanted(config: Config, environment: Mapping[str, str]) -> bool:
    """Whether the configuration or the environment enables the web process."""
    notify = config.notify
    messages = notify.urls or notify.command or notify.heartbeat_url
    return bool(config.web.listen or messages) or otlp.is_wanted(environment)


class WebProcess:
    """Keeps the web process running until cancelled. `url`: of the page; empty while it is not served. `trouble`: why
    the process does not run; empty while it does."""

    def __init__(
        self, config: Config, root: Path, environment: Mapping[str, str], cover: Redactor | None = None
    ) -> None:
        self.url = ""
        self.trouble = ""
        self._cover = cover
        self._environment = dict(environment)
        self._order = msgspec.json.encode({"config": encode(config), "root": str(root.resolve())}) + b"\n"
        self._what = "the page" if config.web.listen else "what sends notifications and metrics"

    async def run(self) -> None:
        """Start the process, and restart it whenever it ends, with a growing delay."""
        ends = 0
        while True:
            began = anyio.current_time()
            how = await self._run_once()
            ends = 1 if anyio.current_time() - began > STEADY_S else ends + 1
            self.url, self.trouble = "", f"{self._what} is not there: {how}"
            log.warning("the process beside the node ended", reason=how, restart_s=RESTART.after(ends))
            await anyio.sleep(RESTART.after(ends))

    async def _run_once(self) -> str:
        """Run the process until it ends. Returns how it ended."""
        try:
            child = Child(PROGRAM, self._environment)
        except OSError as error:
            return f"{PROGRAM[0]}: {error.strerror or error}"
        lines = LineReader(self._cover)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_url, child)
                drained = anyio.Event()
                tasks.start_soon(_read_lines, child, lines, drained)
                with contextlib.suppress(BrokenPipeError):  # the process is ending, which is reported below
                    await child.write(self._order)
                await child.wait()
                with anyio.move_on_after(DRAIN_S):
                    await drained.wait()
                tasks.cancel_scope.cancel()
        finally:
            child.terminate()
            with anyio.move_on_after(STOP_S, shield=True):
                await child.wait()
            status = child.reap()  # also kills the rest of its process group
        return (lines.tail().rpartition("\n")[2] or f"it ended with status {status}").removeprefix("ERROR ")

    async def _read_url(self, child: Child) -> None:
        """Read the process's first line: the page's URL, or an empty line if there is no page."""
        told = b""
        while chunk := await child.read_stdout():
            if b"\n" in told:
                continue
            told = (told + chunk)[:1024]
            if b"\n" in told:
                self.url, self.trouble = told.partition(b"\n")[0].decode("utf-8", "replace"), ""
                if self.url:
                    log.info("the page is served", url=self.url)


async def _read_lines(child: Child, lines: LineReader, done: anyio.Event) -> None:
    folder = LineDeduplicator("web")
    while chunk := await child.read_stderr():
        for line in lines.feed(chunk):
            folder.log(line.level, line.text, anyio.current_time())
    for line in lines.finish():
        folder.log(line.level, line.text, anyio.current_time())
    folder.flush()
    done.set()
