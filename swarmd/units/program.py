"""How a unit calls swarmd: the program beside the interpreter in use, if a service can see it."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import swarmd
from swarmd.errors import UnitError
from swarmd.installed import tool_of

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # ProtectHome=yes and PrivateTmp=yes show them empty
PLAIN = re.compile(r"[A-Za-z0-9._/@+-]+")  # anything else would mean something in a unit
FIX = (
    "Install swarmd outside home directories, with the system's Python: `sudo sh install.sh --wheel swarmd-*.whl` "
    "(docs/OPERATING.md, Install), then `sudo /opt/swarmd/bin/swarmd service install`; or have a service of your own: "
    "`swarmd service install --user`"
)


def find_command(executable: str = sys.executable, user: bool = False) -> str:
    """The command of this swarmd, for ExecStart.

    Args:
        executable: the interpreter.
        user: for the service manager of a user, who sees the same files as now.

    Raises:
        UnitError: a service could not start it.
    """
    interpreter = Path(executable)
    script = interpreter.with_name("swarmd")
    command = str(script) if script.is_file() else f"{interpreter} -m swarmd"
    if not PLAIN.fullmatch(str(script)):
        raise UnitError(f"the path {script} has characters that mean something in a unit", FIX)
    if user:
        return command
    for place in _needed(interpreter):
        if hidden := why_hidden(place):
            raise UnitError(f"a service cannot run {interpreter}: {hidden}", _fix(interpreter))
    return command


def _needed(interpreter: Path) -> Iterator[Path]:
    """What a start reads: the interpreter, what its links lead to, its library, swarmd itself."""
    yield interpreter
    yield interpreter.resolve()
    yield Path(sys.base_prefix if str(interpreter) == sys.executable else interpreter.resolve())
    yield Path(swarmd.__file__).resolve()


def _fix(interpreter: Path) -> str:
    tool = tool_of(interpreter.parent.parent)
    return f"{tool} installs for you alone. {FIX}" if tool else FIX


def why_hidden(path: Path) -> str:
    """Why the unit's user cannot see a file; empty where it can."""
    for hidden in HIDDEN:
        if path.is_relative_to(hidden):
            return f"{path} lies below {hidden}, which is empty for the service"
    for place in (path, *path.parents):
        try:
            mode = os.stat(place).st_mode  # noqa: PTH116
        except OSError as error:
            return f"{place}: {error.strerror}"
        if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
            return f"{place} is closed to other users"
    return ""
