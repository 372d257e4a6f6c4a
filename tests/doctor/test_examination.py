"""The examination as a whole: deadlines, crashes, secrets, the report's shape, the catalogue and its page."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import msgspec
import pytest

from swarmd.doctor import catalogue
from swarmd.doctor.catalogue import BEGIN, CHECKS, END, KINDS, choose_checks, render_tables
from swarmd.doctor.examination import Check, examine
from swarmd.doctor.finding import DoctorReport, Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import ConfigError, IdentityError
from tests.doctor.making import Made, ids

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "DOCTOR.md"


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "node")


async def _crash(subject: Subject) -> list[Finding]:
    raise ZeroDivisionError("seven")


async def _refuse(subject: Subject) -> list[Finding]:
    raise IdentityError("the key is wrong", "Take another")


async def _forbid(subject: Subject) -> list[Finding]:
    raise PermissionError(13, "Permission denied", "node/events")


async def _hang(subject: Subject) -> list[Finding]:
    await in_thread(threading.Event().wait, 30.0)
    return []


async def _find(subject: Subject) -> list[Finding]:
    return [well("well", "Well", "all is well")]


def run(made: Made, *checks: Check) -> DoctorReport:
    return asyncio.run(examine(made.subject(), checks))


def test_a_check_that_crashes_or_hangs_is_a_finding_and_the_others_go_on(made: Made) -> None:
    report = run(
        made,
        Check("crash", "Crash", _crash),
        Check("refuse", "Refuse", _refuse),
        Check("forbid", "Forbid", _forbid),
        Check("hang", "Hang", _hang, deadline_s=0.1),
        Check("well", "Well", _find),
    )
    found = {finding.check: finding for finding in report.findings}
    assert {name: finding.id for name, finding in found.items()} == {
        "crash": "doctor.crashed",
        "refuse": "doctor.crashed",
        "forbid": "doctor.crashed",
        "hang": "doctor.late",
        "well": "well",
    }
    assert "ZeroDivisionError: seven" in found["crash"].evidence and "test_examination.py:" in found["crash"].evidence
    assert found["refuse"].fix == "Take another"
    assert found["forbid"].evidence == "the check forbid failed: node/events: Permission denied"
    assert found["forbid"].fix.startswith("Run as the user whose it is")
    assert report.verdict == "warning" and report.exit_code == 1


def test_checks_run_side_by_side(made: Made) -> None:
    both = anyio.Event()
    begun: list[str] = []

    async def meet(subject: Subject) -> list[Finding]:
        begun.append("one")
        if len(begun) == 2:
            both.set()
        await both.wait()
        return []

    report = run(made, Check("a", "A", meet), Check("b", "B", meet))
    assert [(finding.id, finding.evidence) for finding in report.findings] == [
        ("a", "nothing to object to"),
        ("b", "nothing to object to"),
    ]


def test_progress_is_told(made: Made) -> None:
    told: list[tuple[str, bool]] = []
    checks = [Check("well", "Well", _find), Check("chain", "Chain", _find, "chain")]
    asyncio.run(examine(made.subject(), checks, lambda name, ended: told.append((name, ended))))
    assert told == [("well", False), ("well", True)], "what is left out is not begun"


def test_the_worst_comes_first_and_decides(made: Made) -> None:
    made.key.chmod(0o644)
    made.data.chmod(0o755)
    report = made.report("identity", "directory", "config")
    assert (report.verdict, report.exit_code) == ("error", 2)
    assert [finding.severity for finding in report.findings] == ["error", "warning", "note", "note", "ok"]


def test_secrets_that_are_known_never_show(made: Made) -> None:
    token = made.data / "hub.token"
    token.write_text("canarycanarycanary\n")
    token.chmod(0o600)
    made.write('[results.hub]\nrepo = "u/n"\ntoken = "hub.token"')

    async def blab(subject: Subject) -> list[Finding]:
        kind = FindingKind("blab.said", "note", "t", "m")
        return [kind.found(f"it said {token.read_text()}", "Use canarycanarycanary")]

    (finding,) = run(made, Check("blab", "Blab", blab)).findings
    assert "canary" not in repr(finding) and "[redacted]" in finding.evidence


def test_a_healthy_node_has_nothing_worse_than_notes(made: Made) -> None:
    """All checks that need no torch and no network, on a node that is well; the command line's test has the rest."""
    made.write(f'[dht]\npeer = "{made.peer}"\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n[storage]\nlog_bytes_max = 1000000')
    made.log()
    names = [check.name for check in CHECKS if check.name not in ("ports", "disk")]
    report = made.report(*names)
    assert ids(report, "warning", "error") == []
    assert {"identity", "config", "log", "device", "memory", "packages"} <= set(ids(report, "ok"))


def test_the_shape_of_the_report_stays() -> None:
    """Whoever reads the JSON relies on it; a field that goes or changes its meaning raises `format`."""
    report = DoctorReport(1.0, "0", "error", "c", "d", True, (Finding("a", "a.b", "error", "t", "e", "f"),))
    assert msgspec.to_builtins(report) == {
        "at": 1.0,
        "version": "0",
        "verdict": "error",
        "config": "c",
        "data": "d",
        "offline": True,
        "findings": ({"check": "a", "id": "a.b", "severity": "error", "title": "t", "evidence": "e", "fix": "f"},),
        "skipped": (),
        "format": 1,
    }
    schema = msgspec.json.schema(DoctorReport)["$defs"]
    assert schema["Finding"]["properties"]["severity"]["enum"] == ["error", "note", "ok", "warning"]
    assert set(schema["DoctorReport"]["required"]) >= {"at", "version", "verdict", "findings"}


# --- the catalogue ---


def test_a_wrong_name_of_a_check_names_the_nearest() -> None:
    assert [check.name for check in choose_checks(["clock", "rpc"])] == ["clock", "rpc"]
    with pytest.raises(ConfigError, match="Did you mean clock"):
        choose_checks(["clocks"])


def test_every_kind_belongs_to_a_check_and_has_a_name_of_its_own() -> None:
    names = {check.name for check in CHECKS} | {"doctor"}
    listed = [kind.id for kind in KINDS]
    assert len(listed) == len(set(listed)) > 70
    assert [name for name in listed if not re.fullmatch(r"[a-z]+\.[a-z0-9-]+", name)] == []
    assert {kind.check for kind in KINDS} <= names
    assert all(kind.title and kind.meaning.endswith(".") and not kind.fix.endswith(".") for kind in KINDS)


def test_every_kind_is_used_and_none_is_made_elsewhere() -> None:
    source = {path: path.read_text("utf-8") for path in (ROOT / "swarmd" / "doctor").rglob("*.py")}
    defined = {name for text in source.values() for name in re.findall(r"^([A-Z_]+) = FindingKind\(", text, re.M)}
    together = "\n".join(source.values())
    unused = {name for name in defined if len(re.findall(rf"\b{name}\b", together)) < 2}
    assert unused == set() and len(defined) == len(KINDS)


def test_the_page_has_every_finding_as_the_code_has_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert written == render_tables(), "run python -m swarmd.doctor.catalogue docs/DOCTOR.md"
    assert all(f"| `{check.name}` |" in text for check in CHECKS)


def test_the_page_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["catalogue", str(page)])
    assert catalogue.main() == 0
    assert page.read_text() == f"before\n{BEGIN}\n{render_tables()}\n{END}\nafter\n"


def test_the_examination_itself_loads_neither_torch_nor_hivemind() -> None:
    program = (
        "import sys, swarmd.doctor.catalogue\n"
        "print(*({name.split('.')[0] for name in sys.modules} & {'torch', 'hivemind', 'transformers', 'trl'}))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == ""
