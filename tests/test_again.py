"""What fails is run again only where an accident is possible, and passes only if it passes then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COUNTS = """
from pathlib import Path

def test_it():
    runs = Path({runs!r})
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) >= {passes_at}
"""


def run(directory: Path, test: str, passes_at: int) -> tuple[int, str, int]:
    """One test that passes at its n-th run: the exit code, the output, and how often it ran."""
    runs, path = directory / "runs", directory / test
    path.parent.mkdir(parents=True)
    path.write_text(COUNTS.format(runs=str(runs), passes_at=passes_at))
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -q --import-mode=importlib\n")
    order = [sys.executable, "-m", "pytest", "-p", "tests.again", "-p", "no:cacheprovider", "--again", test]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(order, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, len(runs.read_text())


@pytest.mark.parametrize(
    ("test", "passes_at", "code", "count", "told"),
    [
        ("tests/chain/test_one.py", 1, 0, 1, ""),
        ("tests/chain/test_one.py", 2, 0, 2, "RAN AGAIN and passed: tests/chain/test_one.py::test_it"),
        ("tests/chain/test_one.py", 3, 1, 2, "RAN AGAIN and failed again: tests/chain/test_one.py::test_it"),
        ("tests/core/test_one.py", 2, 1, 1, ""),
    ],
    ids=["passing", "once", "twice", "pure"],
)
def test_what_fails_by_accident_is_run_again(
    tmp_path: Path, test: str, passes_at: int, code: int, count: int, told: str
) -> None:
    found, output, runs = run(tmp_path, test, passes_at)
    assert (found, runs) == (code, count), output
    assert told in output and ("RAN AGAIN" in output) == bool(told)
