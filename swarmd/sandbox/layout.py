"""What of this machine a program sees: the interpreter, its standard library, and the shared libraries they load.

They are laid out anew under `/python`, so that no path of this machine, and nothing that lies beside them, shows.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path, PurePosixPath

import msgspec

from swarmd.errors import SandboxUnavailable

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
