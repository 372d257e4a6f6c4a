"""A confined long-running process, possibly under another Python interpreter, that serves requests in JSON lines.

- It gets its own namespaces (no network, no other process), an in-memory root file system with its interpreter,
  packages and system libraries, read-only, and one scratch directory; no capability and no environment. It may start
  threads, but no processes.
- One thread starts each process and reads from it, since a confined process dies with the thread that started it.
- Requests may come from several threads. If the process ends, pending requests fail; the next one starts a new process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import marshal
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, Literal

from swarmd.errors import SandboxUnavailable
from swarmd.sandbox import syscalls
from swarmd.sandbox.sandbox import HERE, MIB

ServiceIsolation = Literal["namespaces", "none-i-accept-the-risk"]

START_S = 120.0  # timeout of the first line
PROBE_S = 30.0
END_S = 2.0  # for a process to end once its output has
LINE_BYTES_MAX = 16 * MIB  # of one line of its output
SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
SCRATCH = "/scratch"
SCRATCH_BYTES, SCRATCH_FILES = 256 * MIB, 8192
ENVIRONMENT = {
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "USER": "nobody",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
_PROBE = "import json, sys; print(json.dumps([sys.base_prefix, sys.prefix, *sys.path]))"


class ServiceFailed(Exception):
    """The process ended or answered with an error; the text says what."""


def find_places(interpreter: Path, kept_out: Path) -> list[str]:
    """Files and directories that an interpreter needs to import its packages, none inside another.

    Raises SandboxUnavailable if it does not run, or one of them contains `kept_out`.
    """
    try:
        probed = subprocess.run(
            [interpreter, "-c", _PROBE], capture_output=True, timeout=PROBE_S, check=True, env={}, cwd="/"
        )
        named = [place for place in json.loads(probed.stdout) if place]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{interpreter} does not run: {error}", "Make its environment again") from error
    places: list[str] = []
    for place in sorted({*SYSTEM, *named}, key=lambda each: (each.count("/"), each)):
        is_inside = any(Path(place).is_relative_to(other) for other in places)
        if Path(place).exists() and not is_inside:
            places.append(place)
    for place in places:
        if kept_out.resolve().is_relative_to(place) or place == "/":
            raise SandboxUnavailable(
                f"{interpreter} imports from {place}, in which the data directory {kept_out} lies",
                "Move the data directory or the environment",
            )
    return places


def service_command(
    interpreter: Path, source: str, arguments: Sequence[str], places: Sequence[str], isolation: ServiceIsolation
) -> list[str]:
    """The command line that runs a script, given as source text, confined under an interpreter."""
    order = {
        "namespaces": isolation == "namespaces",
        "parent": os.getpid(),
        "binds": [(place, place) for place in places],
        "masked": (),
        "scratch": SCRATCH if isolation == "namespaces" else "/tmp",
        "scratch_bytes": SCRATCH_BYTES,
        "scratch_files": SCRATCH_FILES,
        "filter": syscalls.build_syscall_filter(calls=syscalls.REFUSED, has_threads=True),
        "command": [str(interpreter), "-u", "-c", source, *arguments],
        "environment": ENVIRONMENT,
    }
    return [sys.executable, "-I", "-S", "-B", str(HERE / "launcher.py"), marshal.dumps(order).hex()]


class _Process:
    """One process. Raises OSError if it cannot be started."""

    def __init__(self, command: Sequence[str]) -> None:
        self.hello: Future[Any] = Future()  # its first line
        self.is_over = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=self._run, args=(command, started), name="service", daemon=True).start()
        self._process = started.result()

    def _run(self, command: Sequence[str], started: Future[subprocess.Popen[bytes]]) -> None:
        """Start the process, then read from it until it ends."""
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={}, cwd="/", start_new_session=True)
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout is not None
        try:
            while line := process.stdout.readline(LINE_BYTES_MAX):
                self._receive(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):  # its output is no longer readable
            process.kill()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # it has only closed its output
            process.kill()
            process.wait()
        with self._lock:
            self.is_over = True
            waiting = [self.hello, *self._waiting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ServiceFailed(f"its process ended with code {process.returncode}"))

    def _receive(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            future = self._waiting.pop(message["id"], None) if self.hello.done() else self.hello
        if future is None:  # the caller has given up
            return
        if "error" in message:
            future.set_exception(ServiceFailed(str(message["error"])))
        else:
            future.set_result(message if future is self.hello else message["result"])

    def request(self, message: Mapping[str, Any], wait_s: float | None) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            if self.is_over:
                raise ServiceFailed("its process ended")
            number = next(self._numbers)
            self._waiting[number] = answer
            line = json.dumps({"id": number, **message}).encode() + b"\n"
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the reading thread reports the end
                self._process.stdin.write(line)
                self._process.stdin.flush()
        try:
            return answer.result(wait_s)
        except FutureTimeout:
            with self._lock:
                self._waiting.pop(number, None)
            raise ServiceFailed(f"it did not answer within {wait_s:g} s") from None

    def kill(self) -> None:
        self._process.kill()


class ConfinedService:
    """A confined process, restarted when needed; see the module.

    Args:
        command: from `service_command`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._end: Callable[[], object] = lambda: None

    def read_hello(self) -> Mapping[str, Any]:
        """The process's first line; starts the process if needed. Raises ServiceFailed."""
        process = self._ensure_process()
        try:
            return dict(process.hello.result(START_S))
        except FutureTimeout:
            process.kill()
            raise ServiceFailed(f"it was not ready within {START_S:g} s") from None

    def request(self, message: Mapping[str, Any], wait_s: float | None = None) -> Any:
        """Send a request. Returns the result. Raises ServiceFailed, also if there is none within `wait_s`."""
        process = self._ensure_process()
        self.read_hello()
        return process.request(message, wait_s)

    def restart(self) -> None:
        """Kill the process, failing all pending requests, and start another."""
        with self._lock:
            self._end()
            self._process = None
        self._ensure_process()

    def _ensure_process(self) -> _Process:
        with self._lock:
            if self._process is None or self._process.is_over:
                try:
                    self._process = _Process(self._command)
                except OSError as error:
                    raise ServiceFailed(f"its process cannot be started: {error}") from error
                self._end = weakref.finalize(self, self._process.kill)
            return self._process
