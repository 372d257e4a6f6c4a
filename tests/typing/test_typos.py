"""Words that no state, trigger or field has do not pass `make types`, wherever they are compared."""

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.typing.literals import CHANGES

ROOT = Path(__file__).resolve().parents[2]


WORDS = """
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Word = Literal["idle", "busy"]
FREE = ("idle", "busy")
KNOWN: tuple[Word, ...] = ("idle", "busy")
COUNTS = {"idle": 1, "bsy": 2}


class Worker(Struct):
    chart: Word = "idle"


def look(one: Worker, all: list[Worker]) -> None:
    one.chart == "idel"  # wrong
    one.chart in ("idel", "busy")  # wrong
    one.chart in {"idel"}  # wrong
    one.chart in FREE  # wrong: any text may stand there
    COUNTS.get(one.chart)  # wrong
    COUNTS[one.chart]  # wrong
    "idel" in KNOWN  # wrong
    "idel" in [each.chart for each in all]  # wrong
    (one.chart, 1) == ("idel", 1)  # wrong
    [each.chart for each in all] == ["idel"]  # wrong
    {"a": one.chart} != {"a": "idel"}  # wrong
    replace(one, chart="idel")  # wrong
    replace(one, chrat="idle")  # wrong
    one.chart in KNOWN or one.chart in ("idle", "busy") or "idle" in KNOWN
    (one.chart, 1) == ("idle", 1) and [each.chart for each in all] == ["idle"]
    replace(one, chart="busy")
"""


@pytest.mark.parametrize("name", [*CHANGES, *CHANGES.values()])
def test_what_the_plugin_names_exists(name: str) -> None:
    assert resolve_name(name)


def test_words_are_checked_wherever_they_are_compared(tmp_path: Path) -> None:
    (file := tmp_path / "words.py").write_text(WORDS, encoding="utf-8")
    cache = tmp_path / "cache"
    if (known := ROOT / ".mypy_cache").is_dir():
        with suppress(shutil.Error):  # another mypy replaces a file; what is not there is looked at again
            shutil.copytree(known, cache)
    run = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache), str(file)]
    said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=500)
    found = {int(line) for line in re.findall(r"words\.py:(\d+): error:", said.stdout)}
    wrong = {number for number, line in enumerate(WORDS.splitlines(), 1) if "# wrong" in line}
    assert found == wrong, said.stdout + said.stderr
