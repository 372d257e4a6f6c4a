"""The shipped unit agrees with the exit codes, the defaults and the manual, and systemd takes it."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from swarmd.config import WorkersConfig
from swarmd.daemon.service import STOP_SLACK_S
from swarmd.errors import ExitCode

ROOT = Path(__file__).parent.parent.parent
UNIT = ROOT / "swarmd.service"
CODES = {name: code for name, code in vars(ExitCode).items() if name.isupper()}


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(UNIT)
    return unit["Service"]


def test_permanent_codes_are_not_restarted(service: configparser.SectionProxy) -> None:
    listed = {int(code) for code in service["RestartPreventExitStatus"].split()}
    permanent = {code for code in CODES.values() if 64 <= code < 128} - {ExitCode.IN_USE}
    assert listed == permanent
    assert service["Restart"] == "on-failure"


def test_the_unit_waits_longer_than_the_daemon_takes_to_stop(service: configparser.SectionProxy) -> None:
    longest_s = 2 * WorkersConfig().stop_s + STOP_SLACK_S
    assert float(service["TimeoutStopSec"]) > longest_s
    assert service["KillMode"] == "mixed"


def test_the_manual_explains_every_code() -> None:
    manual = (ROOT / "docs" / "OPERATING.md").read_text()
    table = manual[manual.index("## Exit codes") : manual.index("## Is it well?")]
    explained = {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for code in cell.split(",")}
    assert explained == set(CODES.values()) | {143}
    restarted = {int(row[0]) for row in re.findall(r"^\| (\d+) \|.*\| (yes) \|$", table, re.M)}
    assert restarted == {ExitCode.FAILURE, ExitCode.IN_USE}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit_without_a_word(tmp_path: Path) -> None:
    copy = tmp_path / "swarmd.service"
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.M))
    verified = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, ""), "an unknown key is only a warning"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_hardened(tmp_path: Path) -> None:
    copy = tmp_path / "swarmd.service"
    copy.write_text(UNIT.read_text())
    argv = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(copy)]
    rated = subprocess.run(argv, capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr
