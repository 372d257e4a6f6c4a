"""What tests start is brought where that needs no asking, and named with its command where it is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_tests_find_programs_through_the_table_alone() -> None:
    """So that none of them fails, or is silently not run, on a machine without the program."""
    modules = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("programs.py", Path(__file__).name)]
    assert [path.name for path in modules if "shutil.which(" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(("strict", "counted"), [("0", "1 passed, 2 skipped"), ("1", "1 failed, 1 passed, 1 error")])
def test_a_test_whose_program_is_missing_is_skipped_and_with_strict_fails(
    tmp_path: Path, strict: str, counted: str
) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_setup")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs(program): x\n")
    (tmp_path / "test_needy.py").write_text(
        "import pytest\nfrom tests.programs import path_of\n\n"
        "@pytest.mark.needs('chromium')\ndef test_marked(): ...\n"
        "def test_asking(): path_of('chromium')\ndef test_other(): ...\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STRICT": strict, "WITHOUT": "chromium"}
    argv = [sys.executable, "-m", "pytest", "-rs", "-p", "no:schemathesis", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert counted in done.stdout and "chromium is missing: take it out of WITHOUT" in done.stdout, done.stdout
