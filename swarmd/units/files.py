"""Files of ours in other programs' directories: marked, so that what somebody changed is never overwritten."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Literal

import msgspec

from swarmd.errors import UnitError
from swarmd.eventlog.files import remove_left, sync_directory, sync_file

MARK = "# swarmd service install, digest "
_MARKED = re.compile(rf"{MARK}(?P<digest>[0-9a-f]{{64}})\n")
FILE_BYTES_MAX = 1024 * 1024

State = Literal["missing", "same", "ours", "changed"]


class Planned(msgspec.Struct, frozen=True):
    """A file to be written."""

    path: Path
    text: str
    why: str  # what it is for, in a line
    marked: bool = True  # a unit; without a mark any other content counts as changed by somebody
    mode: int = 0o644  # of a new file; one that others may read is closed where they may not


def mark(text: str) -> str:
    """The text below a line with its digest."""
    return f"{MARK}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def unmark(text: str) -> tuple[str, bool]:
    """The text without its first line, and whether it is still as swarmd wrote it."""
    found = _MARKED.match(text)
    if found is None:
        return text, False
    rest = text[found.end() :]
    return rest, hashlib.sha256(rest.encode()).hexdigest() == found["digest"]


def state_of(planned: Planned) -> State:
    """Whether the file is there, and whether somebody has changed it. Raises UnitError where it cannot be read."""
    text = read(planned.path)
    if text is None:
        return "missing"
    rest, intact = unmark(text)
    if rest == planned.text:
        return "same"
    return "ours" if planned.marked and intact else "changed"


def read(path: Path) -> str | None:
    """A file's text, None where there is none. Raises UnitError."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnitError(f"{path} cannot be read: {error}") from error


def refuse_changed(files: list[Planned]) -> None:
    """Raises UnitError where one of them was changed by somebody."""
    changed = [str(planned.path) for planned in files if state_of(planned) == "changed"]
    if changed:
        raise UnitError(
            f"changed since swarmd wrote it, or not written by it: {', '.join(changed)}",
            "Put changes into a drop-in (`systemctl edit UNIT`); --force replaces the file and keeps a copy",
        )


def put(planned: Planned) -> str:
    """Write one file. Returns what was done, in words. Raises UnitError."""
    state = state_of(planned)
    if state == "same":
        if not planned.mode & 0o077:
            _do(planned.path, lambda: planned.path.chmod(planned.mode))
        return "as it should be"
    kept = ""
    if state == "changed":
        copy = planned.path.with_name(f"{planned.path.name}.{time.strftime('%Y%m%d-%H%M%S')}.kept")
        _do(copy, lambda: _keep(planned.path, copy))
        kept = f"; yours is kept as {copy.name}"
    text = mark(planned.text) if planned.marked else planned.text
    _do(planned.path, lambda: _write(planned.path, text, planned.mode))
    return ("written" if state == "missing" else "replaced") + kept


def _keep(path: Path, copy: Path) -> None:
    """Give a file that is about to be replaced a second name: under its own it stays until another is whole."""
    if copy.exists() and copy.samefile(path):
        return  # kept by a try that failed
    try:
        os.link(path, copy)
    except OSError:  # the file system has no links
        shutil.copy2(path, copy)


def _write(path: Path, text: str, mode: int) -> None:
    """Put a file in place, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch()
        temporary.chmod(mode)
        temporary.write_text(text, encoding="utf-8")
        sync_file(temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        remove_left(temporary)
        raise


def remove(path: Path, force: bool = False) -> str:
    """Remove a file that is as swarmd wrote it. Returns what was done, in words. Raises UnitError."""
    text = read(path)
    if text is None:
        return ""
    if not force and not unmark(text)[1]:
        return "kept: it was changed (--force removes it)"
    _do(path, path.unlink)
    if path.parent.name.endswith(".d") and not any(path.parent.iterdir()):
        _do(path.parent, path.parent.rmdir)
    return "removed"


def _do(path: Path, act: object) -> None:
    try:
        act()  # type: ignore[operator]
    except OSError as error:
        fix = "Run as root, or install for yourself with --user" if isinstance(error, PermissionError) else ""
        raise UnitError(f"{path}: {error.strerror or error}", fix) from error
