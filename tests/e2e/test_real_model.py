"""A published model, fetched as a newcomer does: three nodes train adapters on it, and it answers better than before.

The model stays in `.tools`, where the programs are that tests bring.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.cli.local_swarm import read_history
from swarmd.errors import ExitCode
from swarmd.eventlog.replay import verify_log
from tests.programs import ROOT, TOOLS, ProgramMissing, ProgramRequired

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(3600)]

CONFIG = ROOT / "configs" / "file" / "smollm2.toml"


def swarmd(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XDG_CACHE_HOME": str(TOOLS / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "swarmd", *arguments], env=environment, capture_output=True, text=True, timeout=3600
    )


def test_a_published_model_learns_sums(tmp_path: Path) -> None:
    got = swarmd("model", "get", "smollm2")
    if got.returncode == ExitCode.NO_INPUT:
        error = ProgramRequired if os.environ.get("STRICT") == "1" else ProgramMissing
        raise error(got.stderr.strip())
    assert got.returncode == ExitCode.OK, got.stderr
    run = swarmd("local", "--kind", str(CONFIG), "--nodes", "3", "--rounds", "12", "--dir", str(tmp_path / "s"))
    assert run.returncode == ExitCode.OK, run.stdout + run.stderr
    assert "held-out accuracy" in run.stdout
    gains = []
    for place in sorted((tmp_path / "s").glob("node-*/events")):
        assert verify_log(place).events > 0
        rounds = read_history(place)
        first, last = rounds[0].held_out_before, rounds[-1].held_out
        assert first is not None and last is not None
        gains.append(last - first)
    assert len(gains) == 3 and sum(gains) / len(gains) >= 0.15, gains
