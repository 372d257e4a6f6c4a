"""One worker process: executed in a session of its own, spoken to over pipes, ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence

import anyio
from anyio import to_thread

CHUNK_BYTES = 65536
REAP_S = 2.0  # longest wait for a killed process to be gone

# Not for workers: they must not speak to the service manager in the daemon's name.
PRIVATE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def worker_environment(
    environ: Mapping[str, str], tag: str, withheld: Collection[str] = (), repeats: bool = False
) -> dict[str, str]:
    """The environment of a worker.

    Args:
        environ: of the daemon.
        tag: marks the worker and all its children as belonging to one node.
        withheld: further variables that it does not get.
        repeats: sets of texts have the same order in it on every machine, each time.
    """
    kept = {name: value for name, value in environ.items() if name not in PRIVATE_VARIABLES and name not in withheld}
    if repeats:
        kept["PYTHONHASHSEED"] = "0"
    return kept | {
        TAG_VARIABLE: tag,
        "PYTHONUNBUFFERED": "1",  # what a worker prints reaches the log at once
        "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a traceback in the log
        "MALLOC_ARENA_MAX": kept.get("MALLOC_ARENA_MAX", "2"),  # glibc gives memory back
    }


TAG_VARIABLE = "SWARMD_NODE"


def keep_memory_off_disk() -> None:
    """No core dump of this process or of any that it starts: their memory has secrets in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


class Child:
    """A running worker process, leader of its own session and process group.

    A terminal's Ctrl-C therefore reaches only the daemon, and killing the group takes p2pd with it.

    Raises:
        OSError: the program cannot be executed, or not watched.
    """

    _end = -1  # on Linux a descriptor that tells of its end

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        self._stderr = self._process.stderr.fileno()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        if sys.platform == "linux":
            self._watch()

    def _watch(self) -> None:
        """Have what tells of its end from the start, for there may be no descriptor later. Raises OSError."""
        try:
            self._end = os.pidfd_open(self.pid)
        except OSError:
            self.reap()
            raise

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self._process.pid

    def prefer_for_oom(self, score: int) -> None:
        """Tell the kernel to take this process before the daemon when memory runs out (Linux)."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/oom_score_adj", "w") as adjust:  # noqa: PTH123
            adjust.write(str(score))

    async def read_stdout(self) -> bytes:
        """The next bytes, empty at the end."""
        return await _read(self._stdout)

    async def read_stderr(self) -> bytes:
        """The next bytes, empty at the end."""
        return await _read(self._stderr)

    async def write(self, frame: bytes) -> None:
        """Write all of it. Raises BrokenPipeError when the worker has closed its stdin."""
        rest = memoryview(frame)
        while rest:
            await anyio.wait_writable(self._stdin)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._stdin, rest) :]

    async def wait(self) -> None:
        """Return when the process has ended. On Linux it is left unreaped, so that its group id cannot be reused."""
        if self._end >= 0:
            await anyio.wait_readable(self._end)
        else:
            await to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def terminate(self) -> None:
        """Ask the process to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and everything in its group at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> int | None:
        """Kill what is left of the group, close the pipes, collect the exit status.

        Returns:
            The exit status, negative the number of the signal that ended it, None when the kernel does not let it go.
        """
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        try:
            return self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return None


async def _read(descriptor: int) -> bytes:
    while True:
        await anyio.wait_readable(descriptor)
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            continue
