"""Plants a mutant in a copy of the tree and runs there the tests that should notice it. The checkout stays as it is."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from tests.patches import read_patches

ROOT = Path(__file__).resolve().parents[2]
BORROWED = (".venv", "contracts/node_modules")  # not tracked, large, and never changed by a mutant
RUN_S = 300.0  # for the tests of one mutant; one that hangs them is caught
PLUGINS = ("anyio", "pytest_timeout", "xdist")  # all others stay out: importing them takes longer than most tests here
FAILED_TESTS = 1  # pytest's exit code; others say that it could not run the tests at all

Outcome = Literal["caught", "survived", "stale", "broken"]

_REASON = re.compile(r"^E +(\S.*)$", re.MULTILINE)
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Mutant(NamedTuple):
    """One mistake: `instead` of `text`, which must stand in `file` exactly once; `tests` should notice, as pytest's
    arguments."""

    name: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


def read_mutants(listed: str) -> tuple[Mutant, ...]:
    """Mutants of a list of patches, each with the tests that should notice it, one a line."""
    return tuple(Mutant(*patch) for patch in read_patches(listed))


class Verdict(NamedTuple):
    """What became of a mutant; `told` is the test that caught it, or why nothing can be said."""

    outcome: Outcome
    seconds: float
    told: str


def occurrences(mutant: Mutant, root: Path = ROOT) -> int:
    """How often the text to replace stands in its file; anything but one makes the mutant stale."""
    path = root / mutant.file
    return path.read_text(encoding="utf-8").count(mutant.text) if path.is_file() else 0


def copy_tree(to: Path, root: Path = ROOT) -> None:
    """Copy what git tracks and what it would, as it lies there now; large folders that tests only read are linked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    for name in BORROWED:
        if (root / name).exists():
            (to / name).symlink_to(root / name)


def judge(mutant: Mutant, tree: Path, scratch: Path) -> Verdict:
    """Run a mutant's tests with it planted in `tree`, a copy, and take it out again."""
    begun = time.monotonic()
    count = occurrences(mutant, tree)
    if count != 1:
        return Verdict("stale", 0.0, f"the text stands {count} times in {mutant.file}")
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8")
    try:
        _put(path, source.replace(mutant.text, mutant.instead))
        outcome, told = run_tests(mutant.tests, tree, scratch)
    finally:
        _put(path, source)
    return Verdict(outcome, time.monotonic() - begun, told)


def run_tests(tests: tuple[str, ...], tree: Path, scratch: Path, within_s: float = RUN_S) -> tuple[Outcome, str]:
    """Run tests of the copy until the first that fails: the outcome, and that test."""
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", *plugins, f"--basetemp={scratch}", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "300", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "caught", f"nothing ended within {within_s:.0f} s"
    if done.returncode == 0:
        return "survived", ""
    failure = _FIRST_FAILURE.search(done.stdout)
    if done.returncode != FAILED_TESTS or failure is None:
        reasons = _REASON.findall(done.stdout) or [(done.stdout + done.stderr).strip()[-300:]]
        return "broken", f"pytest ended with {done.returncode}: {reasons[-1]}"
    return "caught", failure[1]


def _put(path: Path, source: str) -> None:
    """Write a module so that no compiled one of before stands in for it: those are known by second and size alone."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
