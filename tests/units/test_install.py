"""The manual's way onto a VPS, taken from the manual: from a wheel to a node under systemd that joined a swarm."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.core.events import NodeStarted, ReportPublished, ReportSeen, StageTrained
from swarmd.errors import ExitCode
from swarmd.eventlog.replay import verify_log
from tests.packaging import conftest as packaging
from tests.units.nodes import Node
from tests.units.private_systemd import INSIDE, PACKAGES, PYTHON, VENV, PrivateSystemd

ROOT = Path(__file__).parents[2]
COMMANDS_MAX = 10
HOME = "/root"  # of the user who types the commands; a service sees it empty
FIRST = "/opt/first"  # the environment that the swarm's creator has
ADDRESS = "/ip4/127.0.0.1/tcp/38331"
SMALL = """
role = "coordinator"
[swarm]
id = "digits"
[training]
device = "cpu"
steps = 6
questions = 8
held_out_questions = 4
threads = 1
"""
# pip downloads nothing, and asks no place that this machine may be set to
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_CONFIG_FILE": "/dev/null"}

built = packaging.built


@pytest.fixture
def vps(machine: PrivateSystemd) -> Iterator[PrivateSystemd]:
    """A machine on which nothing of swarmd is installed but, aside, what the swarm's creator has."""
    machine.run("mv", VENV, FIRST)
    yield machine
    Node(machine, "").end()
    machine.call("sh", "-c", f"systemctl stop first; rm -rf {VENV} /usr/local/bin/swarmd")
    machine.run("mv", FIRST, VENV)


def documented() -> list[str]:
    """The commands of the section's only block."""
    text = (ROOT / "docs/OPERATING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Install on a VPS\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)
    return [line for line in block.splitlines() if line.strip()]


def type_in(vps: PrivateSystemd, command: str) -> subprocess.CompletedProcess[str]:
    """A command as typed by root: `sudo` has nothing to do. The Python is the one that runs the tests."""
    python = "/usr" if sys.base_prefix == "/usr" else PYTHON
    environ = OFFLINE | {"PATH": f"{python}/bin:{INSIDE['PATH']}"}
    settings = [f"{name}={value}" for name, value in environ.items()]
    typed = re.sub(r"^sudo ", "", command)
    return vps.call("env", f"--chdir={HOME}", *settings, "sh", "-c", typed, timeout_s=180)


def create_swarm(vps: PrivateSystemd) -> Node:
    """Somebody else's node, which runs beside; its manifest is handed over."""
    swarmd = (f"{FIRST}/bin/python", "-m", "swarmd")
    vps.put("/srv/small.toml", SMALL)
    vps.run(
        *swarmd, "swarm", "new", "Digits", "--dir", "/srv/first", "--config", "/srv/small.toml", "--listen", ADDRESS
    )
    vps.run("systemd-run", "--unit=first", "--setenv=OMP_NUM_THREADS=1", *swarmd, "run", "-c", "/srv/first/config.toml")
    vps.run("cp", "/srv/first/swarm.toml", f"{HOME}/swarm.toml")
    first = Node(vps, "")
    first.unit, first.data = "first.service", "/srv/first"
    return first


def lay_needs(vps: PrivateSystemd) -> None:
    """What pip would have downloaded with swarmd. After it, so that pip sees no swarmd there."""
    (site,) = vps.path(f"{VENV}/lib").glob("python3.*/site-packages")
    assert (site / "swarmd").is_dir(), "from the wheel"
    (site / "needs.pth").write_text(f"{PACKAGES}\n")


def check_origin(vps: PrivateSystemd) -> None:
    """swarmd is the wheel's, and the tree that the tests run from is nowhere on the path."""
    asks = "import swarmd, sys; print(swarmd.__file__, *sys.path)"
    file, *path = vps.run(f"{VENV}/bin/python", "-c", asks).split()
    assert file.startswith(f"{VENV}/lib/") and not [place for place in path if "checkout" in place]


def run_documented(vps: PrivateSystemd, commands: list[str]) -> None:
    """Each as it stands there, in order."""
    for command in commands[:-1]:
        ended = type_in(vps, command)
        examines = command.startswith("swarmd doctor")  # 1: there are warnings, such as of a clock nobody sets
        said = f"{command} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        assert ended.returncode in ((0, 1) if examines else (0,)), said
        if "pip install" in command:
            lay_needs(vps)


def test_the_manual_needs_few_commands() -> None:
    commands = documented()
    assert 0 < len(commands) <= COMMANDS_MAX
    assert not [command for command in commands if re.search(r"[;&|]|\\$", command)], "one command a line"
    assert "swarmd status" in commands[-1]


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_the_manual_leads_from_a_wheel_to_a_reported_stage(built: packaging.Built, vps: PrivateSystemd) -> None:
    commands = documented()
    shutil.copy(built.wheel, vps.path(HOME))
    first, bob = create_swarm(vps), Node(vps, "")
    first.until(lambda: first.status().get("round", {}).get("state", "").startswith("round"), 180)
    run_documented(vps, commands)
    check_origin(vps)

    bob.until(lambda: bob.events_of(ReportPublished), 180)
    assert bob.events_of(StageTrained)
    peer = bob.events_of(NodeStarted)[0].settings.peer
    first.until(lambda: [seen for seen in first.events_of(ReportSeen) if seen.peer == peer], 60)
    bob.until(lambda: type_in(vps, commands[-1]).returncode == ExitCode.OK, 120)
    assert bob.show("UnitFileState") == "enabled" and bob.show("NRestarts") == "0"

    again = type_in(vps, "swarmd run --config mine/config.toml")
    assert again.returncode == ExitCode.IDENTITY_CONFLICT, "no second node of this identity"
    vps.run("systemctl", "stop", "swarmd")
    assert bob.show("Result") == "success" and "not confined" not in bob.journal()
    assert "commit" in type_in(vps, "swarmd replay --verify /var/lib/swarmd").stdout
    verify_log(bob.paths.events)
