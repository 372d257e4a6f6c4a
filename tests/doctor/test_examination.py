"""The examination as a whole: deadlines, crashes, secrets, the report's shape, and the page about the checks."""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarmd.doctor.checks import CHECKS
from swarmd.doctor.examination import Check, DoctorReport, Finding, Subject, examine, note, ok_finding
from swarmd.errors import IdentityError
from tests.doctor.making import Made, ids

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "node")


def _crash(subject: Subject) -> Iterator[Finding]:
    yield note("crash.begun", "Begun", "it begins")
    raise ZeroDivisionError("seven")


async def _refuse(subject: Subject) -> list[Finding]:
    raise IdentityError("the key is wrong", "Take another")


async def _forbid(subject: Subject) -> list[Finding]:
    raise PermissionError(13, "Permission denied", "node/events")


def _hang(subject: Subject) -> Iterator[Finding]:
    threading.Event().wait(30.0)
    yield from ()


async def _find(subject: Subject) -> list[Finding]:
    return [ok_finding("all is well")]


def run(made: Made, *checks: Check) -> DoctorReport:
    return asyncio.run(examine(made.subject(), checks))


def test_a_check_that_crashes_or_hangs_is_a_finding_and_the_others_go_on(made: Made) -> None:
    report = run(
        made,
        Check("crash", "machine", _crash),
        Check("refuse", "machine", _refuse),
        Check("forbid", "machine", _forbid),
        Check("hang", "machine", _hang, deadline_s=0.1),
        Check("well", "machine", _find),
    )
    found = {finding.check: finding for finding in report.findings}
    assert {name: finding.id for name, finding in found.items()} == {
        "crash": "doctor.crashed",
        "refuse": "doctor.crashed",
        "forbid": "doctor.crashed",
        "hang": "doctor.late",
        "well": "well",
    }
    assert (
        "ZeroDivisionError: seven" in found["crash"].evidence
        and "doctor/test_examination.py:" in found["crash"].evidence
    )
    assert found["refuse"].fix == "Take another"
    assert found["forbid"].evidence == "the check forbid failed: node/events: Permission denied"
    assert found["forbid"].fix.startswith("Run as the user whose it is")
    assert report.verdict == "warning" and report.exit_code == 1


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

    def blab(subject: Subject) -> Iterator[Finding]:
        yield note("blab.said", "t", f"it said {token.read_text()}", "Use canarycanarycanary")

    (finding,) = run(made, Check("blab", "machine", blab)).findings
    assert "canary" not in repr(finding) and "[redacted]" in finding.evidence


def test_a_healthy_node_has_nothing_worse_than_notes(made: Made) -> None:
    """All checks that need no torch and no network, on a node that is well; the command line's test has the rest."""
    made.write(f'[dht]\npeer = "{made.peer}"\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n[storage]\nlog_bytes_max = 2000000')
    made.log()
    names = [check.name for check in CHECKS if check.name not in ("ports", "disk", "clock")]
    report = made.report(*names)
    assert ids(report, "warning", "error") == []
    assert {"identity", "config", "log", "device", "python"} <= set(ids(report, "ok"))


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


# --- the checks and their page ---


def test_the_page_has_every_check_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (ROOT / "docs/DOCTOR.md").read_text(encoding="utf-8"), re.M)
    assert rows == [(check.name, check.group) for check in CHECKS]


def test_an_id_has_one_severity_and_title() -> None:
    """Whoever reads the JSON goes by it; a family has several titles."""
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "swarmd/doctor").glob("*.py"))
    made = re.findall(r'\b(note|warning|error)\(\s*"([a-z]+\.[a-z0-9-]+)"', source)
    assert len({id for _, id in made}) == len(set(made)) > 60
