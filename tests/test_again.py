"""What fails is run again only where an accident is possible, and passes only if it passes then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST, STARTING_PROCESSES

ROOT = Path(__file__).parents[1]
COUNTS = """
from pathlib import Path

def test_it():
    runs = Path({runs!r})
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) >= {passes_at}
"""


def write(directory: Path, test: str, text: str) -> None:
    path = directory / test
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -q --import-mode=importlib\n")


def run_pytest(directory: Path, *options: str) -> tuple[int, str]:
    """The exit code, and the output."""
    order = [sys.executable, "-m", "pytest", "-p", "tests.again", "-p", "no:cacheprovider", "--again", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(order, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


def run(directory: Path, test: str, passes_at: int) -> tuple[int, str, int]:
    """One test that passes at its n-th run: the exit code, the output, and how often it ran."""
    runs = directory / "runs"
    write(directory, test, COUNTS.format(runs=str(runs), passes_at=passes_at))
    code, output = run_pytest(directory, test)
    return code, output, len(runs.read_text())


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


def many(count: int) -> str:
    """A module of so many tests that pass at their second run, each in a group of its own."""
    names = [f"ran-{number}@.service" for number in range(count)]
    marked = ", ".join(f"pytest.param({name!r}, marks=pytest.mark.xdist_group({name[:5]!r}))" for name in names)
    return (
        "import pytest\nfrom pathlib import Path\n\n"
        f"@pytest.mark.parametrize('name', [{marked}])\n"
        "def test_it(name):\n    was = Path(name).exists()\n    Path(name).touch()\n    assert was\n"
    )


@pytest.mark.parametrize(("count", "code"), [(MOST, 0), (MOST + 1, 1)])
def test_more_accidents_than_that_fail_the_run(tmp_path: Path, count: int, code: int) -> None:
    write(tmp_path, "tests/chain/test_many.py", many(count))
    found, output = run_pytest(tmp_path, "-p", "xdist.plugin", "-n", "2", "--dist", "loadgroup")
    assert found == code, output
    assert output.count("RAN AGAIN and passed: tests/chain/test_many.py::test_it[") == (0 if code else MOST)
    assert (f"NOT RUN AGAIN: {count} tests failed, and a run may have {MOST} accidents:" in output) == bool(code)
    assert "service]@ran" not in output.partition("RUN AGAIN")[2]


def test_a_long_form_is_run_again_as_one(tmp_path: Path) -> None:
    """Without the option it would be left out, and a test that was not run has not passed."""
    write(tmp_path, "tests/chain/test_one.py", COUNTS.format(runs=str(tmp_path / "runs"), passes_at=2))
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--soak', action='store_true')\n\n"
        "def pytest_collection_modifyitems(config, items):\n    items[:] = items if config.option.soak else []\n"
    )
    code, output = run_pytest(tmp_path, "--soak")
    assert code == 0 and "RAN AGAIN and passed" in output, output


def test_every_path_that_is_named_is_there() -> None:
    """A test whose folder has moved would fail the run at its first accident, and keep all others from a second try."""
    assert [path for path in STARTING_PROCESSES if not (ROOT / path).exists()] == []


def test_an_accident_among_failures_of_pure_code_is_not_run_again(tmp_path: Path) -> None:
    write(tmp_path, "tests/chain/test_many.py", many(1))
    write(tmp_path, "tests/core/test_many.py", many(1).replace("ran-", "pure-"))
    found, output = run_pytest(tmp_path, "-p", "xdist.plugin")
    assert found == 1 and "AGAIN" not in output, output
