"""What of this machine a program sees: the interpreter, its standard library, and the shared libraries they load.

They are laid out anew under `/python`, so that no path of this machine, and nothing that lies beside them, shows.
"""

from __future__ import annotations

import functools
import json
import marshal
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from swarmd.errors import SandboxUnavailable
from swarmd.sandbox import syscalls
from swarmd.sandbox.limits import Isolation, Limits

ROOT = PurePosixPath("/python")
LIBRARIES = ROOT / "so"
SCRATCH = "/tmp"
PROBE_S = 60.0
# Extension modules that are of no use without a terminal, a network or a test suite, and bring large libraries.
LEFT_OUT = ("_tkinter", "_curses", "_curses_panel", "readline", "_ssl", "_dbm", "_gdbm", "_test", "_xx", "xx")

# Loads every extension module of the standard library, then tells which shared objects that took, by the names under
# which the linker looked for them. The linker itself is among them.
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
    """Files and directories of this machine and where they stand in the sandbox, read-only."""

    interpreter: str  # in the sandbox
    host_interpreter: str
    binds: tuple[tuple[str, str], ...]  # (here, in the sandbox)
    masked: tuple[str, ...]  # directories in the sandbox under which nothing shows


@functools.cache
def find_layout() -> SandboxLayout:
    """The layout for the Python that runs this; asks a fresh interpreter once, 0.2 s. Raises SandboxUnavailable."""
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
    binds += [(name, name) for name in linkers]  # the interpreter's file names its linker by this very path
    binds += [(name, str(LIBRARIES / Path(name).name)) for name in libraries]
    masked = [str(place / name) for name in ("site-packages", "dist-packages") if (library / name).is_dir()]
    resolved = [(os.path.realpath(here), there) for here, there in binds]  # links would lead into the new root
    return SandboxLayout(str(inside), interpreter, tuple(resolved), tuple(masked))


def _list_shared_objects(interpreter: str) -> list[str]:
    command = [interpreter, "-I", "-S", "-B", "-c", _PROBE, json.dumps(LEFT_OUT)]
    try:
        probed = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=True, env={})
        return sorted({os.path.normpath(name) for name in json.loads(probed.stdout)})
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()
        raise SandboxUnavailable(f"{interpreter} does not tell what it loads: {error} {told}") from error


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
