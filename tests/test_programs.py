"""What tests start is brought where that needs no asking, and named with its command where it is not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.programs import PROGRAMS

ROOT = Path(__file__).parents[1]
APT = """#!/bin/sh
echo "$@" >> "{calls}"
for word in "$@"; do test "$word" = "{refused}" && {{ echo "E: Unable to locate package $word" >&2; exit 100; }}; done
while test $# -gt 0; do case "$1" in install) break;; esac; shift; done
for word in "$@"; do
  case "$word" in bubblewrap) word=bwrap;; util-linux) word="unshare setpriv";; install) continue;; esac
  for name in $word; do printf '#!/bin/sh\\n' > "{place}/$name"; chmod +x "{place}/$name"; done
done
"""
NPM = """#!/bin/sh
echo other > sparticuz-chromium-147.0.0.tgz
"""


class Clean:
    """A machine of which a test says what is installed; the working tree is a copy with nothing but the table."""

    def __init__(self, root: Path) -> None:
        self.path, self.calls = root / "bin", root / "calls"
        self.path.mkdir()
        (root / "tests").mkdir()
        self.script = Path(shutil.copy(ROOT / "tests" / "programs.py", root / "tests"))
        for name in ("sh", "chmod", "env"):
            (self.path / name).symlink_to(str(shutil.which(name)))
        self.put("sudo", '#!/bin/sh\nshift\nexec "$@"\n')

    def put(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def apt(self, refused: str = "") -> None:
        self.put("apt-get", APT.format(calls=self.calls, refused=refused, place=self.path))

    def install(self, *wanted: str, **environment: str) -> str:
        """What the script says on a machine where it may get no other programs."""
        others = " ".join(name for name in PROGRAMS if name not in wanted)
        chosen = {"PATH": str(self.path), "WITHOUT": others, **environment}
        argv = [sys.executable, str(self.script), "--install"]
        done = subprocess.run(
            argv, env=chosen, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
        )
        return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if "WITHOUT" not in line)


@pytest.fixture
def clean(tmp_path: Path) -> Clean:
    return Clean(tmp_path)


def test_what_is_missing_comes_in_one_call_and_is_told_before(clean: Clean) -> None:
    clean.apt()
    told = clean.install("bubblewrap", "unshare").splitlines()
    assert told[0] == "installing what tests start, with apt-get: bubblewrap util-linux (about 6 MB)"
    assert "bubblewrap" not in "\n".join(told[1:]) and "unshare" not in "\n".join(told[1:])
    update, install = clean.calls.read_text().splitlines()
    assert update.endswith("-q update") and install.endswith("install bubblewrap util-linux")


def test_a_package_that_is_unknown_does_not_stop_the_others(clean: Clean) -> None:
    clean.apt(refused="bubblewrap")
    told = clean.install("bubblewrap", "unshare")
    assert "apt-get install failed:\nE: Unable to locate package bubblewrap" in told
    assert re.search(r"bubblewrap \(the sandbox's first way\): (sudo )?apt-get install bubblewrap$", told, re.M)
    assert "unshare (the sandbox" not in told and (clean.path / "unshare").exists()


def test_a_chromium_of_npm_that_is_another_is_not_unpacked(clean: Clean, monkeypatch: pytest.MonkeyPatch) -> None:
    clean.put("npm", NPM)
    clean.put("node")
    if not programs.npm_may_bring():
        pytest.skip("npm has a Chromium for Linux on x86-64")
    told = clean.install("chromium")
    assert told.splitlines()[0].startswith("installing what tests start, with npm, into .tools: @sparticuz/chromium@")
    assert "is not what it was: its SHA-512 is " in told and "  chromium (the pages, in a browser): " in told
    assert {path.name for path in (clean.path.parent / ".tools").iterdir()} == {"install.log"}


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
