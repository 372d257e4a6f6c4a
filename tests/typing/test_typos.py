"""Misspelt states, triggers, fields and words do not pass `make check`: mypy names each line that has one."""

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Typo(NamedTuple):
    """`instead` of `text`, which stands in `file` exactly once; mypy complains in that line, or in that of `at`."""

    file: str
    text: str
    instead: str
    at: str = ""


TYPOS = (
    Typo("swarmd/core/rounds.py", "turn.state.work = work", "turn.state.wrok = work"),
    Typo("swarmd/core/rounds.py", 'turn.fire_round_trigger("gathered")', 'turn.fire_round_trigger("gatherd")'),
    Typo("swarmd/core/rounds.py", '("registering", "starting")', '("registring", "starting")'),
    Typo("swarmd/core/rounds.py", "replace(work, published=True)", "replace(work, publishd=True)"),
    Typo("swarmd/core/workers.py", 'turn.fire_trainer_trigger("started")', 'turn.fire_trainer_trigger("startd")'),
    Typo(
        "swarmd/core/workers.py", 'turn.fire_link_trigger("exited", reason=', 'turn.fire_link_trigger("exited", raeson='
    ),
    Typo("swarmd/core/coordination.py", '_close_stage(turn, "deadline")', '_close_stage(turn, "dead-line")'),
    Typo("swarmd/core/coordination.py", 'opened.chart == "open.collecting"', 'opened.chart == "open"'),
    Typo("swarmd/core/rounds.py", 'turn.set_deadline("train", ', 'turn.set_deadline("trian", '),
    Typo("swarmd/core/rounds.py", 'turn.clear_deadlines("cancel")', 'turn.clear_deadlines("cancle")'),
    Typo("swarmd/core/submissions.py", 'turn.set_deadline("register", ', 'turn.set_deadline("registr", '),
    Typo("swarmd/core/step.py", '"muster": _only_if', '"mustr": _only_if'),
    Typo("swarmd/core/step.py", '"publish": settings.publish_s', '"publsh": settings.publish_s'),
    Typo("swarmd/core/evidence.py", 'command_id("evidence", ', 'command_id("evidnce", '),
    Typo("swarmd/core/votes.py", 'submission_id("winners", ', 'submission_id("winner", '),
    Typo("swarmd/observe/describe.py", '"clock": ("no announcement', '"clok": ("no announcement'),
    Typo("swarmd/observe/labels.py", '"leaderboard", "admit"', '"leaderbord", "admit"', "COMMANDS: tuple"),
    Typo("swarmd/observe/status.py", 'state="mute"', 'state="silent"'),
    Typo("swarmd/sim/node_checks.py", 'state.trainer.chart != "idle"', 'state.trainer.chart != "idle "'),
    Typo("swarmd/sim/node_checks.py", 'case "round.settling":', 'case "round.setling":', "assert_never(state.chart)"),
    Typo("swarmd/web/stages.py", 'after.chart == "round.settling"', 'after.chart == "round.settled"'),
    Typo("swarmd/web/moments.py", 'not in ("confirmed", "refused")', 'not in ("confirmed", "refusd")'),
    Typo("swarmd/observe/story.py", 'if after.chart == "skipping":', 'if after.chart == "skiping":'),
)


def planted(file: str, root: Path) -> tuple[Path, set[int]]:
    """A copy of a file with its typos, and their lines."""
    content = (ROOT / file).read_text(encoding="utf-8")
    typos = [typo for typo in TYPOS if typo.file == file]
    for typo in typos:
        assert content.count(typo.text) == 1, f"{typo.text!r} stands {content.count(typo.text)} times in {file}"
        content = content.replace(typo.text, typo.instead)
    content += f"# {'longer ' * 100}\n"  # mypy takes a file of the same length for unchanged
    copy = root / file
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(content, encoding="utf-8")
    return copy, {content[: content.index(typo.at or typo.instead)].count("\n") + 1 for typo in typos}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy found out about the tree: a copy, so that the typos stay out of it."""
    place = tmp_path_factory.mktemp("mypy") / "cache"
    known = ROOT / ".mypy_cache"
    if known.is_dir():
        with suppress(shutil.Error):  # another mypy replaces a file; what is not there is looked at again
            shutil.copytree(known, place)
    return place


def test_mypy_names_every_line_with_a_typo(tmp_path: Path, cache: Path) -> None:
    files = sorted({typo.file for typo in TYPOS})
    expected: set[tuple[str, int]] = set()
    shadows: list[str] = []
    for file in files:
        copy, lines = planted(file, tmp_path)
        shadows += ["--shadow-file", file, str(copy)]
        expected |= {(file, line) for line in lines}
    assert len(expected) >= 20
    run = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache), *shadows]
    said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=500)
    found = {(name, int(line)) for name, line in re.findall(r"^(\S+?):(\d+): error:", said.stdout, re.MULTILINE)}
    assert not expected - found, said.stdout + said.stderr


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


def test_words_are_checked_wherever_they_are_compared(tmp_path: Path, cache: Path) -> None:
    (file := tmp_path / "words.py").write_text(WORDS, encoding="utf-8")
    run = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache), str(file)]
    said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=500)
    found = {int(line) for line in re.findall(r"words\.py:(\d+): error:", said.stdout)}
    wrong = {number for number, line in enumerate(WORDS.splitlines(), 1) if "# wrong" in line}
    assert found == wrong, said.stdout + said.stderr
