"""The sandbox itself: takes programs, gives verdicts."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from swarmd.errors import SandboxUnavailable
from swarmd.sandbox import syscalls
from swarmd.sandbox.conversation import Cut, Ended, converse
from swarmd.sandbox.inside import READY
from swarmd.sandbox.layout import bubblewrap_command, find_layout, interpreter_command, launcher_command
from swarmd.sandbox.limits import Isolation, Limits, Status, Verdict


@contextlib.contextmanager
def make_scratch() -> Iterator[str]:
    """A new directory, removed in the end. Raises OSError where that cannot be done."""
    top = Path(tempfile.mkdtemp(prefix="swarmd-program-"))
    scratch = top / "scratch"
    scratch.mkdir()
    try:
        yield str(scratch)
    finally:
        _bring_up(scratch)
        shutil.rmtree(top)


def _bring_up(scratch: Path) -> None:
    """Put all directories beside each other: a program may have made more in each other than a path has room for, or
    than Python descends into, and have closed them."""
    waiting, number = [scratch], 0
    while waiting:
        directory = waiting.pop()
        directory.chmod(0o700)
        with os.scandir(directory) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for path in inner:
            path.chmod(0o700)  # to give a directory another parent is to write to it
            number += 1
            waiting.append(path.rename(scratch.with_name(str(number))))


RISKY: Isolation = "none-i-accept-the-risk"
PROBE_LIMITS = Limits(wall_s=30.0, cpu_s=10)
BEST_FIRST: tuple[Isolation, ...] = ("bubblewrap", "namespaces")  # the first is quicker and looked at by many
STARTS = 2  # tries to set a sandbox up, once it has been seen to work: a busy machine may refuse a process
CUTS: dict[Cut, Status] = {"deadline": "timeout", "output": "output-limit", "stopped": "stopped"}
NO_PROCESS = ("BlockingIOError: [Errno 11]", "RuntimeError: can't start new thread")
FIX = (
    "Install bubblewrap (package `bubblewrap`) or allow user namespaces; in a systemd unit see docs/OPERATING.md, "
    "section Sandbox"
)


class Sandbox:
    """Runs Python programs that nobody vouches for. Safe to use from several threads.

    Args:
        limits: bounds on every run.
        isolation: how programs are kept in; `auto` takes the strongest that works on this machine.
        at_once: programs that `run_all` runs side by side; 0 takes the number of CPUs.

    Raises:
        SandboxUnavailable: it does not work on this machine. It is tried here, so that a node says so at its start.
    """

    def __init__(self, limits: Limits | None = None, isolation: Isolation = "auto", at_once: int = 0) -> None:
        self.limits = limits or Limits()
        self._at_once = at_once or len(os.sched_getaffinity(0))
        if not syscalls.is_known():
            raise SandboxUnavailable(f"there is no system call filter for {os.uname().machine}", "Use x86-64 or arm64")
        self._is_stopped: Callable[[], bool] = _never
        self._layout = find_layout()
        self.isolation = self._choose(isolation)

    def heed(self, is_stopped: Callable[[], bool]) -> None:
        """From now on end programs, and begin none, while this says so: their status is `stopped`. It is asked from
        several threads, five times a second."""
        self._is_stopped = is_stopped

    def run(self, program: str, stdin: str = "", wall_s: float = math.inf) -> Verdict:
        """Run one program and wait for it, `wall_s` at most where that is less than the limits give.

        Raises SandboxUnavailable when the sandbox has stopped working.
        """
        try:
            source, feed = program.encode(), stdin.encode()
        except UnicodeEncodeError:
            return Verdict(status="refused", stderr="the program or its input is no text")
        if len(source) > self.limits.program_bytes or len(feed) > self.limits.input_bytes:
            return Verdict(status="refused", stderr="the program or its input is too large")
        if self._is_stopped():
            return Verdict(status="stopped")
        ended = None
        limits = msgspec.structs.replace(self.limits, wall_s=min(wall_s, self.limits.wall_s))
        for _ in range(STARTS):
            ended = self._perform(self.isolation, limits, source, feed, self._is_stopped)
            if ended.stdout.startswith(READY):
                return judge(ended, limits)
            if ended.cut:  # the program was not begun: a busy machine's fault, or there was hardly any time
                return Verdict(status="stopped", wall_s=ended.wall_s)
        raise SandboxUnavailable(f"the sandbox ({self.isolation}) cannot be set up any more: {_told(ended)}")

    def run_all(self, programs: Sequence[str], stdins: Sequence[str] = ()) -> list[Verdict]:
        """Run several side by side; verdicts in their order. `stdins`, where given, has one for each."""
        inputs = stdins or [""] * len(programs)
        with ThreadPoolExecutor(max_workers=self._at_once, thread_name_prefix="sandbox") as pool:
            runs = [pool.submit(self.run, program, feed) for program, feed in zip(programs, inputs, strict=True)]
            return [run.result() for run in runs]

    def _choose(self, wanted: Isolation) -> Isolation:
        failures = []
        ways = BEST_FIRST if wanted == "auto" else (wanted,)
        for way in ways:
            if way == "bubblewrap" and shutil.which("bwrap") is None:
                failures.append("bubblewrap: not installed")
                continue
            ended = self._perform(way, PROBE_LIMITS, b"", b"", _never)
            if ended.stdout == READY and ended.exit_code == 0:
                return way
            failures.append(f"{way}: {_told(ended)}")
        raise SandboxUnavailable(f"programs cannot be kept in on this machine ({'; '.join(failures)})", FIX)

    def _perform(
        self, way: Isolation, limits: Limits, source: bytes, feed: bytes, is_stopped: Callable[[], bool]
    ) -> Ended:
        inner = self._layout.host_interpreter if way == RISKY else self._layout.interpreter
        command = interpreter_command(inner, limits, len(source), way)
        if way == "bubblewrap":
            return _talk(bubblewrap_command(self._layout, limits, command), limits, source + feed, is_stopped)
        if way == "namespaces":
            return _talk(launcher_command(self._layout, limits, command), limits, source + feed, is_stopped)
        try:
            with make_scratch() as scratch:
                alone = launcher_command(self._layout, limits, command, scratch)
                return _talk(alone, limits, source + feed, is_stopped)
        except OSError as error:
            raise SandboxUnavailable(f"a scratch directory cannot be made or removed: {error}") from error


def _never() -> bool:
    return False


def _talk(command: Sequence[str], limits: Limits, feed: bytes, is_stopped: Callable[[], bool]) -> Ended:
    try:
        return converse(command, feed, limits.wall_s, limits.output_bytes + len(READY), is_stopped)
    except OSError as error:
        raise SandboxUnavailable(f"a process for the sandbox cannot be started: {error}") from error


def _told(ended: Ended | None) -> str:
    text = ended.stderr.decode(errors="replace").strip() if ended else ""
    return text.splitlines()[-1][:300] if text else f"ended with {ended.exit_code if ended else 'nothing'}"


def judge(ended: Ended, limits: Limits) -> Verdict:
    """The verdict on a run that got as far as the program."""
    stderr = ended.stderr.decode(errors="replace")
    return Verdict(
        status=_status_of(ended, limits, stderr.rstrip().rpartition("\n")[2]),
        stdout=ended.stdout.removeprefix(READY).decode(errors="replace"),
        stderr=stderr,
        exit_code=ended.exit_code,
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
    )


def _status_of(ended: Ended, limits: Limits, last_line: str) -> Status:
    if ended.cut:
        return CUTS[ended.cut]
    if ended.exit_code == 0:
        return "ok"
    killed = ended.exit_code == 128 + signal.SIGKILL
    if ended.exit_code == 128 + signal.SIGXCPU or (killed and ended.wall_s >= limits.cpu_s):
        return "timeout"
    if last_line.startswith("MemoryError"):
        return "memory"
    return "processes" if last_line.startswith(NO_PROCESS) else "failed"
