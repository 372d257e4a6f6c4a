"""Runs several commands at once and prints what each said when it ends, with its seconds."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.quick.choice import WORKERS, Choice, Chosen
from tests.quick.imports import ROOT

BIN = Path(sys.executable).parent
NO_TESTS = 5  # pytest's code where nothing was left to run
CHECKS = {
    "ruff": ("ruff", "check", "--quiet", "."),
    "format": ("ruff", "format", "--check", "--quiet", "."),
    "layers": ("lint-imports", "--no-logo"),
    "types": ("mypy", "--no-error-summary"),
}


@dataclass(frozen=True)
class Command:
    """One command, and the codes with which it may end."""

    name: str
    words: tuple[str, ...]
    well: tuple[int, ...] = (0,)
    quiet: bool = False  # says nothing when it went well


@dataclass(frozen=True)
class Ended:
    command: Command
    code: int
    seconds: float
    said: str

    @property
    def well(self) -> bool:
        return self.code in self.command.well

    def __str__(self) -> str:
        verdict = "well" if self.well else f"FAILED with {self.code}"
        said = "" if self.well and self.command.quiet else self.said.rstrip() + "\n"
        return f"{said}== {self.command.name}: {verdict}, {self.seconds:.1f} s"


def checks() -> list[Command]:
    return [Command(name, (str(BIN / program), *words), quiet=True) for name, (program, *words) in CHECKS.items()]


def tests(name: str, chosen: list[Chosen], written: Path, workers: int, plugins: frozenset[str]) -> list[Command]:
    """pytest for these files; each file stays in one process. Nothing for no files."""
    if not chosen:
        return []
    words = [sys.executable, "-m", "pytest", "-m", "not e2e", f"--basetemp={written / name}", "--tb=short"]
    words += ["-n", str(workers), "--dist", "loadfile"] if workers > 1 else ["-p", "no:xdist"]
    words += [] if "schemathesis" in plugins else ["-p", "no:schemathesis"]  # a second for each process
    words += [each.file for each in chosen]
    words += [f"--deselect={each.file}::{test}" for each in chosen for test in each.without]
    return [Command(name, tuple(words), well=(0, NO_TESTS))]


def run(command: Command) -> Ended:
    began_s = time.monotonic()
    done = subprocess.run(command.words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return Ended(command, done.returncode, time.monotonic() - began_s, done.stdout)


def run_all(commands: list[Command]) -> list[Ended]:
    """All at once; each is printed as it ends."""
    ended: list[Ended] = []
    printing = threading.Lock()

    def one(command: Command) -> None:
        outcome = run(command)
        with printing:
            ended.append(outcome)
            print(outcome, flush=True)

    threads = [threading.Thread(target=one, args=(command,)) for command in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A short name, for a Unix socket's path has at most 107 bytes. It stays where something failed."""
    directory = Path(tempfile.mkdtemp(prefix="t.", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def free_and_torch(choice: Choice, written: Path, opening_schemathesis: set[str]) -> list[Command]:
    """Tests without torch share a few processes; those with it have one or two of their own."""
    commands = []
    for number, chosen in enumerate([choice.free(), *choice.torch()]):
        files = {each.file for each in chosen}
        plugins = frozenset({"schemathesis"} if files & opening_schemathesis else ())
        workers = 1 if number else min(WORKERS, len(chosen))
        commands += tests(f"torch-{number}" if number else "tests", chosen, written, workers, plugins)
    return commands
