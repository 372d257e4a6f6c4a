"""What a machine lacks is skipped, named and counted, and with STRICT=1 it fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDY = """
import pytest
from tests.programs import path_of

@pytest.fixture(scope="module")
def browser():
    return path_of("chromium")

@pytest.mark.needs("chromium")
def test_marked():
    assert path_of("chromium")

@pytest.mark.parametrize("number", [1, 2])
def test_asked_for_by_a_fixture(browser, number):
    assert browser

def test_asked_for_in_the_test():
    assert path_of("chromium")

def test_that_needs_nothing():
    assert path_of
"""
REFUSED = """
import pytest

@pytest.mark.parametrize("number", [1, 2, 3])
def test_root(number):
    pytest.skip("only root may do that")

@pytest.mark.xfail(reason="known", strict=True)
def test_known():
    assert False
"""
ACCIDENT = """
from pathlib import Path

def test_accident():
    ran = Path("ran")
    was = ran.exists()
    ran.touch()
    assert was
"""
WHOLE = "import pytest\npytest.skip('no such package', allow_module_level=True)\n"
WRONG = "import pytest\n\n@pytest.mark.needs('a miracle')\ndef test_it():\n    assert True\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -q --import-mode=importlib --strict-markers\nmarkers = needs(program): x\n"
    )
    return tmp_path


def run(tree: Path, *options: str, **environment: str) -> tuple[int, str]:
    """The exit code and the output of a run of pytest; `sh` is there to be a Chromium."""
    argv = [sys.executable, "-m", "pytest", "-p", "tests.missing", "-p", "xdist.plugin", "-p", "no:cacheprovider"]
    inherited = {name: value for name, value in os.environ.items() if name not in ("STRICT", "WITHOUT")}
    chosen = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CHROMIUM": "sh", **environment}
    done = subprocess.run(
        [*argv, *options], cwd=tree, env=inherited | chosen, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two processes"])
@pytest.mark.parametrize(("strict", "code"), [("0", 0), ("1", 1)], ids=["lenient", "strict"])
def test_what_needs_a_missing_program_is_skipped_and_named(
    tree: Path, processes: tuple[str, ...], strict: str, code: int
) -> None:
    (tree / "test_needy.py").write_text(NEEDY)
    found, output = run(tree, *processes, STRICT=strict, CHROMIUM="no-such-browser")
    assert found == code, output
    assert "1 passed, 4 skipped" in output
    assert "chromium is missing (the pages, in a browser), 4 tests:\n    test_needy.py: 4\n" in output
    assert "to test them: CHROMIUM=no-such-browser is no program" in output
    assert ("STRICT=1: this run has failed for want of chromium" in output) == bool(code)


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_where_nothing_is_missing_there_is_nothing_to_tell(tree: Path, processes: tuple[str, ...]) -> None:
    (tree / "test_needy.py").write_text(NEEDY)
    found, output = run(tree, *processes, STRICT="1")
    assert found == 0 and "5 passed" in output and "not tested here" not in output, output


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_what_the_machine_refuses_is_counted_and_fails_nothing(tree: Path, processes: tuple[str, ...]) -> None:
    (tree / "test_refused.py").write_text(REFUSED)
    (tree / "test_whole.py").write_text(WHOLE)
    found, output = run(tree, *processes, STRICT="1")
    assert found == 0, output
    assert "3 tests (test_refused.py): only root may do that\n" in output
    assert "1 test (test_whole.py): no such package\n" in output
    assert "known" not in output and "STRICT" not in output


def test_a_program_that_is_set_aside_counts_as_missing(tree: Path) -> None:
    (tree / "test_needy.py").write_text(NEEDY)
    found, output = run(tree, STRICT="1", WITHOUT="unshare chromium")
    assert found == 1 and "to test them: take it out of WITHOUT='unshare chromium'" in output, output


def test_a_second_run_that_passes_leaves_a_strict_run_failed(tree: Path) -> None:
    (tree / "test_needy.py").write_text(NEEDY)
    (tree / "tests" / "chain").mkdir(parents=True)
    (tree / "tests" / "chain" / "test_accident.py").write_text(ACCIDENT)
    again = ("-p", "tests.again", "--again")
    assert run(tree, *again, STRICT="1")[0] == 0
    (tree / "ran").unlink()
    found, output = run(tree, *again, STRICT="1", WITHOUT="chromium")
    assert found == 1 and "RAN AGAIN and passed" in output, output


def test_a_mark_with_a_name_that_is_not_in_the_table_is_an_error(tree: Path) -> None:
    (tree / "test_wrong.py").write_text(WRONG)
    found, output = run(tree)
    assert found == pytest.ExitCode.USAGE_ERROR
    assert "no program of tests/programs.py: test_wrong.py::test_it needs a miracle" in output
