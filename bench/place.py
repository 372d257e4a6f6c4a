"""Where benchmarks work, and what they say when they cannot."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.machine import file_system

PLACE = Path(__file__).resolve().parent.parent / ".swarmd" / "bench"  # in the checkout, so on a real disk
END_S = 60.0  # a process of nodes ends them one after another


class Unavailable(Exception):
    """Something that a benchmark needs is not there; the message says what to do."""


def need_disk(directory: Path) -> None:
    """Raise Unavailable when a sync there would cost nothing."""
    kind = file_system(directory)
    if kind in ("tmpfs", "ramfs"):
        raise Unavailable(f"{directory} lies on {kind}, where a sync costs nothing; use a checkout on a real disk")


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """While a benchmark runs: an empty directory of its own, which no other run takes away.

    It is removed at the end, unless that is an error: then the logs of its nodes are of use.

    Raises:
        Unavailable: the same benchmark runs there already.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"{directory} is another run's: wait for its end, or use another checkout") from None
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        failed = False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            if not failed:
                shutil.rmtree(directory, ignore_errors=True)


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, which ends what it started, too; it is killed only where it does not within `END_S`."""
    process.terminate()
    try:
        process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def check_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raises Unavailable: there is no such arm, payload or whatever it is a kind of."""
    if unknown := [name for name in names if name not in known]:
        raise Unavailable(f"there is no {kind} {unknown[0]!r}; there are {', '.join(known)}")


def read_lines(path: Path) -> list[bytes]:
    """Whole lines of a file to which one is added for each finished run; a last one that was cut off is removed.

    Raises:
        Unavailable: it cannot be read.
    """
    try:
        body = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"--outcomes names a file, a line for each run: {path}: {error.strerror}") from error
    whole = body[: body.rfind(b"\n") + 1]
    if len(whole) < len(body):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.splitlines()
