"""An interactive program in the sandbox: one line in, one line out, until it ends or is closed.

Its limits are those of one run, except that each question has its own wall deadline. A session that exceeds a limit is
killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from swarmd.errors import SwarmdError
from swarmd.sandbox.inside import READY

POLL_S = 0.2  # interval of polling `is_stopped`
CHUNK_BYTES = 65536

# A confined process dies with the thread that started it, and each call of a rollout has its own thread.
_starter = ThreadPoolExecutor(1, thread_name_prefix="sandbox-starter")


class SessionEnded(SwarmdError):
    """The program ended, or was killed for exceeding a limit; the text says why."""


class SandboxSession:
    """One program, used by one thread at a time. Must be closed.

    Args:
        command: starts the sandbox with the program's interpreter, see `Sandbox.open`.
        program: source text.
        output_bytes: limit on one answer.
        is_stopped: polled five times a second; once true, the session ends.
        free: called when the session has ended.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        program: bytes,
        output_bytes: int,
        is_stopped: Callable[[], bool],
        free: Callable[[], object],
    ) -> None:
        pipe = subprocess.PIPE
        start = functools.partial(
            subprocess.Popen[bytes], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={}, cwd="/"
        )
        self._process = _starter.submit(start, command, start_new_session=True).result()
        assert self._process.stdin and self._process.stdout
        self._output_bytes, self._is_stopped, self._free = output_bytes, is_stopped, free
        self._feed = program  # bytes still to be written
        self._read = b""  # bytes read ahead
        self._is_ready = False
        self._selector = selectors.DefaultSelector()
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._stdin, self._stdout):
            os.set_blocking(descriptor, False)
        self._selector.register(self._stdout, selectors.EVENT_READ)

    def ask(self, line: str, wall_s: float) -> str:
        """Write a line, given without its line break, and return the next line of output. Raises SessionEnded."""
        if self._process.returncode is not None:
            raise SessionEnded("the program has ended")
        self._feed += line.encode() + b"\n"
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        due = time.monotonic() + wall_s
        try:
            while b"\n" not in self._read:
                self._exchange(min(POLL_S, max(0.0, due - time.monotonic())))
                if len(self._read) > self._output_bytes:
                    raise SessionEnded(f"the program answered with more than {self._output_bytes} bytes")
                if time.monotonic() >= due:
                    raise SessionEnded(f"the program took longer than {wall_s:g} s")
                if self._is_stopped():
                    raise SessionEnded("the stage was cancelled")
        except SessionEnded:
            self.close()
            raise
        finally:
            with contextlib.suppress(KeyError, ValueError):  # all was written, or the session has ended
                self._selector.unregister(self._stdin)
        answer, _, self._read = self._read.partition(b"\n")
        return answer.decode(errors="replace")

    def _exchange(self, wait_s: float) -> None:
        """Write and read as much as possible. Raises SessionEnded if the program has ended."""
        for key, _ in self._selector.select(wait_s):
            if key.fd == self._stdin:
                with contextlib.suppress(BrokenPipeError):  # its output ends as well
                    self._feed = self._feed[os.write(self._stdin, self._feed[:CHUNK_BYTES]) :]
                if not self._feed:
                    self._selector.unregister(self._stdin)
                continue
            chunk = os.read(self._stdout, CHUNK_BYTES)
            if not chunk:
                raise SessionEnded("the program ended, or used more memory or processor time than it may")
            self._read += chunk
            if not self._is_ready and self._read.startswith(READY):
                self._is_ready, self._read = True, self._read[len(READY) :]

    def close(self) -> None:
        """Kill the program. May be called repeatedly."""
        if self._process.returncode is not None:
            return
        os.kill(self._process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        self._process.wait()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._free()
