"""The sandbox: runs untrusted programs and returns verdicts.

- A program sees the interpreter, its standard library, and the shared libraries that these load. They are mounted under
  `/python`, so that it sees no path of this machine and no neighbouring file.
- Each run is one child process: fed, read up to a bound, and killed at its deadline.
"""

import contextlib
import functools
import json
import marshal
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

from swarmd.errors import SandboxUnavailable
from swarmd.sandbox import syscalls
from swarmd.sandbox.inside import READY
from swarmd.sandbox.session import SandboxSession

MIB = 1024 * 1024

# How programs are confined. `auto`: bubblewrap if it works, else the namespaces of `launcher`, else refuse.
Isolation = Literal["auto", "bubblewrap", "namespaces", "none-i-accept-the-risk"]

Status = Literal[
    "ok",  # ended by itself with exit code 0
    "failed",  # an exception, another exit code, or a signal
    "timeout",  # past the wall deadline, or out of CPU time
    "memory",  # ended by a MemoryError
    "output-limit",  # killed: it printed more than allowed
    "processes",  # tried to start a process or a thread, and ended because of that
    "stopped",  # ended or not run at the caller's request, or not started in time: proves nothing
    "refused",  # never run: program or standard input is too large, or not valid text
]

Seconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on one run. A program is one process with one thread, and cannot start another.

    Total memory is at most `memory_bytes` plus `scratch_bytes`, plus kernel memory: pipe buffers (1 MiB for two of
    `files_open`, at most 64 MiB), 1,024 files and directories, mappings and locks, 35 MiB at worst with the default of
    `files_open`. Without isolation the scratch directory is on the machine's disk, and only `file_bytes` and CPU time
    bound what is written to it.
    """

    wall_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0  # wall time, then it is killed
    cpu_s: Seconds = 2
    memory_bytes: Annotated[int, msgspec.Meta(ge=64 * MIB, le=2**40)] = 512 * MIB  # address space, Python included
    scratch_bytes: Bytes = 16 * MIB  # size of the one writable directory, removed afterwards
    file_bytes: Bytes = 8 * MIB  # size of one file
    files_open: Annotated[int, msgspec.Meta(ge=8, le=1024)] = 32
    program_bytes: Bytes = 64 * 1024
    input_bytes: Bytes = MIB
    output_bytes: Bytes = 64 * 1024  # of standard output, and of standard error


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. The program controls all fields but `status`, the exit code and the times."""

    status: Status
    stdout: str = ""  # cut at `Limits.output_bytes`; invalid UTF-8 is replaced
    stderr: str = ""  # the last `STDERR_BYTES_KEPT` bytes
    exit_code: int = 0  # 128 plus the signal's number if a signal killed it
    wall_s: float = 0.0  # start-up included
    cpu_s: float = 0.0  # start-up included; only bubblewrap's own if it was killed under bubblewrap


STDERR_BYTES_KEPT = 4096
CHUNK_BYTES = 65536
POLL_S = 0.2  # interval of polling `is_stopped`
DRAIN_S = 2.0  # for reading a killed process's pipes

Cut = Literal["", "deadline", "output", "stopped"]


class ProcessOutcome(msgspec.Struct, frozen=True):
    cut: Cut  # why it was killed; empty if it ended by itself
    exit_code: int  # 128 plus the signal's number if a signal killed it
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float  # with its reaped children's


def run_command(
    command: Sequence[str], feed: bytes, wall_s: float, output_bytes: int, is_stopped: Callable[[], bool]
) -> ProcessOutcome:
    """Run a command with an empty environment and no other open files. Raises OSError if it cannot start.

    It is killed after `wall_s`, if it prints more than `output_bytes` to standard output or to standard error, and if
    `is_stopped`, which is polled every `POLL_S`, becomes true.
    """
    begun = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, start_new_session=True, cwd="/"
    ) as process:
        talk = _ProcessPipes(process, feed, output_bytes)
        try:
            cut = talk.feed_and_read(begun + wall_s, is_stopped)
        finally:
            os.kill(process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            talk.drain_output(time.monotonic() + DRAIN_S)
            talk.close()
        if not cut and talk.is_output_full:  # it ended before all its output was read
            cut = "output"
        code = process.returncode
        return ProcessOutcome(
            cut,
            code if code >= 0 else 128 - code,
            bytes(talk.stdout[:output_bytes]),
            bytes(talk.stderr[-STDERR_BYTES_KEPT:]),
            time.monotonic() - begun,
            usage.ru_utime + usage.ru_stime,
        )


class _ProcessPipes:
    """Feeds a process and reads from it concurrently, so that neither blocks the other."""

    def __init__(self, process: subprocess.Popen[bytes], feed: bytes, output_bytes: int) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.stdout, self.stderr = bytearray(), bytearray()
        self._stdin, self._feed = process.stdin, memoryview(feed)
        self._output_bytes = output_bytes
        self._end = os.pidfd_open(process.pid)
        self._sinks = {process.stdout.fileno(): self.stdout, process.stderr.fileno(): self.stderr}
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._stdin.fileno(), *self._sinks):
            os.set_blocking(descriptor, False)
        for descriptor in (self._end, *self._sinks):
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(self._stdin.fileno(), selectors.EVENT_WRITE)

    def feed_and_read(self, deadline_s: float, is_stopped: Callable[[], bool]) -> Cut:
        """Feed and read until the process ends or has to be killed. Returns why."""
        try:
            while True:
                ready = self._selector.select(min(POLL_S, max(0.0, deadline_s - time.monotonic())))
                served = [self._handle_ready_descriptor(key.fd) for key, _ in ready]
                if any(served):
                    return "output" if self.is_output_full else ""
                if self.is_output_full:
                    return "output"
                if is_stopped():
                    return "stopped"
                if time.monotonic() >= deadline_s:
                    return "deadline"
        finally:
            self._close_input()

    def drain_output(self, deadline_s: float) -> None:
        """Read the rest, until no process holds the other ends of the pipes."""
        while self._sinks and not self.is_output_full and time.monotonic() < deadline_s:
            for key, _ in self._selector.select(deadline_s - time.monotonic()):
                self._handle_ready_descriptor(key.fd)

    def close(self) -> None:
        self._selector.close()
        os.close(self._end)

    def _handle_ready_descriptor(self, descriptor: int) -> bool:
        """Read or write some bytes. Returns whether the process has ended."""
        if descriptor == self._end:
            self._selector.unregister(self._end)
            return True
        if descriptor in self._sinks:
            self._read_output(descriptor)
        elif not self._stdin.closed:
            self._write_input()
        return False

    def _read_output(self, descriptor: int) -> None:
        chunk = os.read(descriptor, CHUNK_BYTES)
        if chunk:
            self._sinks[descriptor] += chunk
        else:
            self._selector.unregister(descriptor)
            del self._sinks[descriptor]

    def _write_input(self) -> None:
        try:
            self._feed = self._feed[os.write(self._stdin.fileno(), self._feed[:CHUNK_BYTES]) :]
        except BrokenPipeError:  # it closed its standard input: drop the rest
            self._feed = self._feed[:0]
        if not self._feed:
            self._close_input()

    def _close_input(self) -> None:
        if not self._stdin.closed:
            self._selector.unregister(self._stdin.fileno())
            self._stdin.close()

    @property
    def is_output_full(self) -> bool:
        return max(len(self.stdout), len(self.stderr)) > self._output_bytes


ROOT = PurePosixPath("/python")
LIBRARIES = ROOT / "so"
SCRATCH = "/tmp"
PROBE_S = 60.0
# Extension modules that need a terminal, a network or a test suite, and load large libraries.
LEFT_OUT = ("_tkinter", "_curses", "_curses_panel", "readline", "_ssl", "_dbm", "_gdbm", "_test", "_xx", "xx")

# Loads every extension module of the standard library, then prints the shared objects that this loaded, by the names
# that the linker looked for, including the linker itself.
_PROBE = """
import ctypes, importlib, json, os, sys
left_out, found = tuple(json.loads(sys.argv[1])), []
files = [file for path in sys.path if path.endswith("lib-dynload") for file in os.listdir(path)]
for name in sorted({file.split(".")[0] for file in files}):
    if not name.startswith(left_out):
        try:
            importlib.import_module(name)
        except ImportError:
            pass
class Object(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
def take(entry, size, rest):
    found.append(os.fsdecode(entry.contents.name or b""))
    return 0
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Object), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(kind(take), None)
print(json.dumps([name for name in found if name.startswith("/") and "lib-dynload" not in name]))
"""


class SandboxLayout(msgspec.Struct, frozen=True):
    """Files and directories of this machine, and where they are mounted read-only in the sandbox."""

    interpreter: str  # path in the sandbox
    host_interpreter: str
    binds: tuple[tuple[str, str], ...]  # (path here, path in the sandbox)
    masked: tuple[str, ...]  # directories that appear empty in the sandbox


@functools.cache
def find_sandbox_layout() -> SandboxLayout:
    """Find the layout for this process's Python; runs a fresh interpreter once, 0.2 s. Raises SandboxUnavailable."""
    interpreter = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    library = Path(sysconfig.get_path("stdlib"))
    place = ROOT / "lib" / library.name
    if library.is_relative_to(sys.base_prefix):
        place = ROOT / library.relative_to(sys.base_prefix)
    inside = ROOT / "bin" / Path(interpreter).name
    objects = _list_shared_objects(interpreter)
    linkers = [name for name in objects if Path(name).name.startswith("ld")]
    libraries = [name for name in objects if name not in linkers]
    binds = [(interpreter, str(inside)), (str(library), str(place))]
    binds += [(name, name) for name in linkers]  # the interpreter's ELF header names its linker by this path
    binds += [(name, str(LIBRARIES / Path(name).name)) for name in libraries]
    masked = [str(place / name) for name in ("site-packages", "dist-packages") if (library / name).is_dir()]
    resolved = [(os.path.realpath(here), there) for here, there in binds]  # links would be resolved in the new root
    return SandboxLayout(str(inside), interpreter, tuple(resolved), tuple(masked))


def _list_shared_objects(interpreter: str) -> list[str]:
    command = [interpreter, "-I", "-S", "-B", "-c", _PROBE, json.dumps(LEFT_OUT)]
    try:
        probed = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=True, env={})
        return sorted({os.path.normpath(name) for name in json.loads(probed.stdout)})
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()
        raise SandboxUnavailable(f"{interpreter} does not say what it loads: {error} {told}") from error


HERE = Path(__file__).parent
NOBODY = "65534"
SCRATCH_FILES = 1024  # files and directories; each takes about 1 KiB of kernel memory, which no other limit counts
SIGNALS_PENDING = 64  # signals and timers, which also take kernel memory
MOUNTING = "CAP_SYS_ADMIN"  # in the sandbox's own namespaces, to bound the files; dropped before the program runs
# No site packages, no working directory on the path, no bytecode written. The fixed hash seed makes runs repeatable.
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": str(LIBRARIES)}


def interpreter_command(interpreter: str, limits: Limits, program_bytes: int, way: Isolation) -> list[str]:
    """The interpreter's command line inside the sandbox."""
    left_over = f"{SCRATCH_FILES}:{syscalls.build_syscall_filter().hex()}" if way == "bubblewrap" else ""
    bounds = {
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.files_open,
        "RLIMIT_NPROC": 1,
        "RLIMIT_CORE": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_SIGPENDING": SIGNALS_PENDING,
    }
    source = (HERE / "inside.py").read_text(encoding="utf-8")
    return [
        interpreter,
        *FLAGS,
        "-c",
        source,
        str(program_bytes),
        left_over,
        *(f"{name}={value}" for name, value in bounds.items()),
    ]


def bubblewrap_command(layout: SandboxLayout, limits: Limits, command: Sequence[str]) -> list[str]:
    """The command line for bubblewrap 0.6 or newer. `inside.py` bounds the files and filters system calls: bubblewrap
    has no option for the former, and itself needs calls that the filter refuses."""
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"]
    arguments += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--cap-add", MOUNTING]
    arguments += ["--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    for here, there in layout.binds:
        arguments += ["--ro-bind", here, there]
    for path in layout.masked:
        arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    arguments += ["--size", str(limits.scratch_bytes), "--tmpfs", SCRATCH, "--chdir", SCRATCH, "--remount-ro", "/"]
    return [shutil.which("bwrap") or "bwrap", *arguments, "--", *command]


def launcher_command(layout: SandboxLayout, limits: Limits, command: Sequence[str], scratch: str = "") -> list[str]:
    """The command line for `launcher.py`: with namespaces, or without them if `scratch` is given."""
    order = {
        "namespaces": not scratch,
        "parent": os.getpid(),
        "binds": layout.binds,
        "masked": layout.masked,
        "scratch": scratch or SCRATCH,
        "scratch_bytes": limits.scratch_bytes,
        "scratch_files": SCRATCH_FILES,
        "filter": syscalls.build_syscall_filter(),
        "command": list(command),
        "environment": {"PYTHONHASHSEED": "0"} if scratch else ENVIRONMENT,
    }
    return [layout.host_interpreter, "-I", "-S", "-B", str(HERE / "launcher.py"), marshal.dumps(order).hex()]


@contextlib.contextmanager
def make_scratch_directory() -> Iterator[str]:
    """A new directory, removed at the end of the block. Raises OSError or CalledProcessError."""
    top = tempfile.mkdtemp(prefix="swarmd-program-")
    scratch = Path(top, "scratch")
    scratch.mkdir()
    try:
        yield str(scratch)
    finally:
        # A program may have nested directories deeper than Python's recursion, or removed their permissions.
        for command in (["chmod", "-R", "u+rwx", top], ["rm", "-r", top]):
            subprocess.run(command, check=True)


RISKY: Isolation = "none-i-accept-the-risk"
PROBE_LIMITS = Limits(wall_s=30.0, cpu_s=10)
BEST_FIRST: tuple[Isolation, ...] = ("bubblewrap", "namespaces")  # the first is faster and widely reviewed
STARTS = 2  # attempts to set up a working sandbox: a busy machine may fail to start a process
CUTS: dict[Cut, Status] = {"deadline": "timeout", "output": "output-limit", "stopped": "stopped"}
NO_PROCESS = ("BlockingIOError: [Errno 11]", "RuntimeError: can't start new thread")
FIX = (
    "Install bubblewrap (package `bubblewrap`) or allow user namespaces; in a systemd unit see docs/OPERATING.md, "
    "section Sandbox"
)


class Sandbox:
    """Runs untrusted Python programs. Thread-safe.

    `auto` uses the strongest isolation that works on this machine. Raises SandboxUnavailable if the requested
    isolation, or with `auto` any, does not work, so that a node reports it at its start.
    """

    def __init__(self, limits: Limits | None = None, isolation: Isolation = "auto") -> None:
        self.limits = limits or Limits()
        if not syscalls.has_filter_for():
            raise SandboxUnavailable(f"there is no system call filter for {os.uname().machine}", "Use x86-64 or arm64")
        self._is_stopped: Callable[[], bool] = lambda: False
        self._layout = find_sandbox_layout()
        self.isolation = self._choose_isolation(isolation)

    def stop_when(self, is_stopped: Callable[[], bool]) -> None:
        """While `is_stopped()` is true, kill programs and start none: their status is `stopped`. It is called from
        several threads, five times a second."""
        self._is_stopped = is_stopped

    def run(self, program: str, stdin: str = "", wall_s: float = math.inf) -> Verdict:
        """Run one program and wait for it, at most `wall_s`; if that ends it before its own limits do, it is `stopped`.

        Raises SandboxUnavailable if the sandbox has stopped working.
        """
        try:
            source, feed = program.encode(), stdin.encode()
        except UnicodeEncodeError:
            return Verdict(status="refused", stderr="the program or its input is not text")
        if len(source) > self.limits.program_bytes or len(feed) > self.limits.input_bytes:
            return Verdict(status="refused", stderr="the program or its input is too large")
        if self._is_stopped() or wall_s <= 0:
            return Verdict(status="stopped")
        limits = msgspec.structs.replace(self.limits, wall_s=min(wall_s, self.limits.wall_s))
        for _ in range(STARTS):
            ended = self._run_isolated(self.isolation, limits, source, feed)
            if ended.stdout.startswith(READY):
                is_cut_short = ended.cut == "deadline" and wall_s < self.limits.wall_s
                return make_verdict(msgspec.structs.replace(ended, cut="stopped") if is_cut_short else ended, limits)
            if ended.cut:  # the program was not started: a busy machine, or hardly any time
                return Verdict(status="stopped", wall_s=ended.wall_s)
        raise SandboxUnavailable(
            f"the sandbox ({self.isolation}) cannot be set up any more: {_describe_failure(ended)}", FIX
        )

    def run_all(self, programs: Sequence[str], wall_s: float = math.inf) -> list[Verdict]:
        """Run several in parallel, one for each CPU, at most `wall_s` in total; verdicts in the same order."""
        due = time.monotonic() + wall_s
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="sandbox") as pool:
            return list(pool.map(lambda program: self.run(program, wall_s=due - time.monotonic()), programs))

    def open(self, program: str) -> SandboxSession:
        """Start an interactive program. Raises SandboxUnavailable."""
        source = program.encode()
        stack = contextlib.ExitStack()
        try:
            scratch = stack.enter_context(make_scratch_directory()) if self.isolation == RISKY else ""
            command = self._command(self.isolation, self.limits, len(source), scratch)
            return SandboxSession(command, source, self.limits.output_bytes, lambda: self._is_stopped(), stack.close)
        except (OSError, subprocess.CalledProcessError) as error:
            stack.close()
            raise _unavailable(error) from error

    def _choose_isolation(self, wanted: Isolation) -> Isolation:
        failures = []
        ways = BEST_FIRST if wanted == "auto" else (wanted,)
        for way in ways:
            if way == "bubblewrap" and shutil.which("bwrap") is None:
                failures.append("bubblewrap: not installed")
                continue
            ended = self._run_isolated(way, PROBE_LIMITS, b"", b"")
            if ended.stdout == READY and ended.exit_code == 0:
                return way
            failures.append(f"{way}: {_describe_failure(ended)}")
        raise SandboxUnavailable(f"programs cannot be confined on this machine ({'; '.join(failures)})", FIX)

    def _run_isolated(self, way: Isolation, limits: Limits, source: bytes, feed: bytes) -> ProcessOutcome:
        try:
            with make_scratch_directory() if way == RISKY else contextlib.nullcontext("") as scratch:
                command = self._command(way, limits, len(source), scratch)
                output_bytes = limits.output_bytes + len(READY)
                return run_command(command, source + feed, limits.wall_s, output_bytes, self._is_stopped)
        except (OSError, subprocess.CalledProcessError) as error:
            raise _unavailable(error) from error

    def _command(self, way: Isolation, limits: Limits, program_bytes: int, scratch: str) -> list[str]:
        inner = self._layout.host_interpreter if way == RISKY else self._layout.interpreter
        command = interpreter_command(inner, limits, program_bytes, way)
        if way == "bubblewrap":
            return bubblewrap_command(self._layout, limits, command)
        return launcher_command(self._layout, limits, command, scratch)


def _unavailable(error: Exception) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"a process for the sandbox cannot be started, or its directory made or removed: {error}",
        "Free memory, processes and space in the temporary directory",
    )


def _describe_failure(ended: ProcessOutcome) -> str:
    text = ended.stderr.decode(errors="replace").strip()
    return text.splitlines()[-1][:300] if text else f"ended with {ended.exit_code}"


def make_verdict(ended: ProcessOutcome, limits: Limits) -> Verdict:
    """The verdict on a run in which the program was started."""
    stderr = ended.stderr.decode(errors="replace")
    return Verdict(
        status=_determine_status(ended, limits, stderr.rstrip().rpartition("\n")[2]),
        stdout=ended.stdout.removeprefix(READY).decode(errors="replace"),
        stderr=stderr,
        exit_code=ended.exit_code,
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
    )


def _determine_status(ended: ProcessOutcome, limits: Limits, last_line: str) -> Status:
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
