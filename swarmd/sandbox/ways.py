"""The commands that put a program into a sandbox, one for each kind of isolation."""

from __future__ import annotations

import marshal
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from swarmd.sandbox import syscalls
from swarmd.sandbox.layout import LIBRARIES, SCRATCH, SandboxLayout
from swarmd.sandbox.limits import Isolation, Limits

HERE = Path(__file__).parent
NOBODY = "65534"
SCRATCH_FILES = 1024  # and directories: each takes about 1 KiB of the kernel's memory, which no other limit counts
SIGNALS_PENDING = 64  # and timers: each takes memory of the kernel's, too
MOUNTING = "CAP_SYS_ADMIN"  # in the sandbox's own namespaces; bounds the files, and is dropped before the program runs
# Flags: no sites, no path of the working directory, no byte code written. The hash seed makes runs repeatable.
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": str(LIBRARIES)}


def interpreter_command(interpreter: str, limits: Limits, program_bytes: int, way: Isolation) -> list[str]:
    """How the interpreter is started where a program is to run."""
    left_over = f"{SCRATCH_FILES}:{syscalls.build_filter().hex()}" if way == "bubblewrap" else ""
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
    """A bubblewrap command. The bound on files and the system call filter are left to `inside.py`: bubblewrap has no
    option for the one, and the other refuses what it takes. bubblewrap 0.6 or newer."""
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
    """A command of this package's own launcher: in namespaces, or in none, where `scratch` is given."""
    order = {
        "namespaces": not scratch,
        "parent": os.getpid(),
        "binds": layout.binds,
        "masked": layout.masked,
        "scratch": scratch or SCRATCH,
        "scratch_bytes": limits.scratch_bytes,
        "scratch_files": SCRATCH_FILES,
        "filter": syscalls.build_filter(),
        "command": list(command),
        "environment": {"PYTHONHASHSEED": "0"} if scratch else ENVIRONMENT,
    }
    return [layout.host_interpreter, "-I", "-S", "-B", str(HERE / "launcher.py"), marshal.dumps(order).hex()]
