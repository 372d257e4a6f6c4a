"""Peers as the doctor sees them: real nodes, one with a wrong clock; names that nobody knows; the node's own port."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.daemon.process import TAG_VARIABLE
from swarmd.dht.identity.identity import generate_identity
from swarmd.doctor.examination import DaemonReply, Subject
from swarmd.doctor.machine import judge_clock_skews
from tests.doctor.making import Made, nodes, quoted

ELSEWHERE = generate_identity().peer_id


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """A node whose clock is right, and two whose clocks are wrong by the same."""
    with nodes(0.0, 10.0, 10.0) as found:
        yield found


def follower(root: Path, addresses: list[str], more: str = "") -> Made:
    made = Made(root)
    made.write(
        f'coordinator = "{ELSEWHERE}"\n[dht]\nbootstrap = {quoted(addresses)}\n{more}', 'role = "follower"\nname = "f"'
    )
    return made


def test_a_node_that_answers(tmp_path: Path, addresses: list[str]) -> None:
    made = follower(tmp_path, addresses[:1])
    found = made.find("bootstrap", offline=False)
    assert set(found) == {"bootstrap"} and found["bootstrap"].severity == "ok"
    assert "all 1 answer as peers" in found["bootstrap"].evidence


def test_a_clock_that_differs_from_all_peers(tmp_path: Path, addresses: list[str]) -> None:
    found = follower(tmp_path, addresses[1:]).find("clock", offline=False)
    skewed = found["clock.skew"]
    assert skewed.severity == "error" and "timedatectl" in skewed.fix
    assert ("s behind the peers'" in skewed.evidence and "+10." in skewed.evidence) or "+9." in skewed.evidence
    assert "clock.peer" not in found


@pytest.mark.parametrize(
    ("skews", "found"),
    [
        ({}, []),
        ({"a": 0.4}, []),
        ({"a": -1.5, "b": -1.4}, ["clock.drift"]),
        ({"a": 12.0, "b": 12.1}, ["clock.skew"]),
        ({"a": 0.1, "b": -0.2, "c": 12.0}, ["clock.peer"]),
        ({"a": 0.1, "b": 12.0}, ["clock.peer"]),
        ({"a": 0.1, "b": 12.0, "c": 12.1, "d": 0.2}, ["clock.peer", "clock.peer"]),
    ],
)
def test_the_median_decides_whose_clock_is_wrong(skews: dict[str, float], found: list[str]) -> None:
    assert [each.id for each in judge_clock_skews(skews)] == found


def test_nobody_at_the_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = follower(tmp_path, [f"/ip4/127.0.0.1/tcp/{port}/p2p/{ELSEWHERE}"])
    found = made.find("bootstrap", offline=False)
    assert set(found) == {"bootstrap.none"}
    assert f"/tcp/{port}/" in found["bootstrap.none"].evidence and "firewall" in found["bootstrap.none"].fix


def test_somebody_else_at_one_address_and_nobody_at_another(tmp_path: Path, addresses: list[str]) -> None:
    foreign = addresses[0].rpartition("/p2p/")[0] + f"/p2p/{ELSEWHERE}"
    made = follower(tmp_path, [foreign, addresses[1], f"/ip4/127.0.0.1/tcp/1/p2p/{ELSEWHERE}"])
    assert made.severities("bootstrap", offline=False) == {
        "bootstrap.identity": "warning",
        "bootstrap.unreachable": "warning",
    }


@pytest.mark.parametrize("name", ["a" * 64, "a..b", "nowhere.invalid"], ids=["long", "empty", "unknown"])
def test_a_name_that_cannot_be_looked_up(tmp_path: Path, name: str) -> None:
    bootstrap = f"/dns4/{name}/tcp/1/p2p/{ELSEWHERE}"
    made = follower(tmp_path, [bootstrap], f'announce = ["/dns4/{name}/tcp/1"]')
    assert made.severities("ports", offline=False) == {"announce.name": "warning"}
    assert made.severities("bootstrap", offline=False) == {"bootstrap.none": "error"}
    assert set(follower(tmp_path / "other", [bootstrap]).severities("ports", offline=False)) <= {"announce.inside"}


def test_the_running_nodes_own_port_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path)
    program = "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); " + (
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    tag = os.environ | {TAG_VARIABLE: f"{made.peer}@{made.data.resolve()}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=tag
    ) as own:
        assert own.stdout is not None
        made.write(f'[dht]\nlisten = ["/ip4/127.0.0.1/tcp/{int(own.stdout.readline())}"]')
        assert made.severities("ports") == {"ports.taken": "error"}, "no daemon runs, so it is in the way"
        monkeypatch.setattr(Subject, "daemon", DaemonReply(mute="it is busy"))
        assert made.severities("ports") == {}
        own.communicate("")
