"""Peers as the doctor sees them: real nodes, one of them with a wrong clock; ports that are taken; NATs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.core.events import RoundAnnounced
from swarmd.daemon.process import TAG_VARIABLE
from swarmd.dht.identity.identity import generate_identity
from swarmd.doctor.catalogue import choose_checks
from swarmd.doctor.examination import examine
from swarmd.doctor.machine import clock
from swarmd.doctor.machine.clock import judge_peers
from swarmd.doctor.network import announce
from swarmd.doctor.subject import DaemonReply
from swarmd.doctor.waiting import Once
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


def test_clocks_of_peers_that_agree_with_ours(tmp_path: Path, addresses: list[str]) -> None:
    found = follower(tmp_path, addresses[:1]).find("clock", offline=False)
    assert set(found) <= {"clock", "clock.free"}, "whether anything keeps the clock is this machine's business"


def test_a_clock_that_differs_from_all_peers(tmp_path: Path, addresses: list[str]) -> None:
    found = follower(tmp_path, addresses[1:]).find("clock", offline=False)
    skewed = found["clock.skew"]
    assert skewed.severity == "error" and "timedatectl" in skewed.fix
    assert ("s behind the peers'" in skewed.evidence and "+10." in skewed.evidence) or "+9." in skewed.evidence
    assert "clock.peer" not in found


def test_of_two_that_differ_the_median_decides() -> None:
    found = judge_peers({"a": 0.1, "b": -0.2, "c": 12.0})
    assert [(each.id, "c differs by +12.00 s" in each.evidence) for each in found] == [("clock.peer", True)]
    assert [each.id for each in judge_peers({"a": -1.5, "b": -1.4})] == ["clock.drift"]
    assert judge_peers({"a": 0.4}) == judge_peers({}) == []


def test_of_two_peers_one_of_which_agrees_with_this_clock_the_other_is_wrong() -> None:
    found = judge_peers({"a": 0.1, "b": 12.0})
    assert [(each.id, "b differs by +12.00 s" in each.evidence) for each in found] == [("clock.peer", True)]
    found = judge_peers({"a": 0.1, "b": 12.0, "c": 12.1, "d": 0.2})
    assert [each.id for each in found] == ["clock.peer", "clock.peer"]
    assert [each.id for each in judge_peers({"a": 12.0, "b": 12.1})] == ["clock.skew"]


def test_records_of_the_coordinator_show_a_clock_that_is_behind(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(*(RoundAnnounced(round, 0, 1008.0, 1100.0) for round in range(3)), at=1000.0)
    found = made.find("clock")["clock.skew"]
    assert "8.00 s before they began" in found.evidence and found.fix


def test_records_in_time_are_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "is_kept", lambda: True)
    made = Made(tmp_path)
    made.log(RoundAnnounced(0, 0, 999.5, 1100.0), at=1000.0)
    assert set(made.find("clock")) == {"clock"}


def test_a_clock_that_nothing_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "is_kept", lambda: False)
    assert made_ids(Made(tmp_path), "clock") == {"clock.free": "note"}
    assert isinstance(clock.is_kept(), bool)


def made_ids(made: Made, name: str, offline: bool = True) -> dict[str, str]:
    return {key: finding.severity for key, finding in made.find(name, offline=offline).items()}


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
    assert made_ids(made, "bootstrap", offline=False) == {
        "bootstrap.identity": "warning",
        "bootstrap.unreachable": "warning",
    }


def test_a_node_that_is_its_own_bootstrap_node(tmp_path: Path) -> None:
    made = Made(tmp_path)
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{made.peer}"
    made.write(f'[dht]\npeer = "{made.peer}"\nbootstrap = ["{address}"]')
    assert made_ids(made, "bootstrap", offline=False) == {"bootstrap.self": "note"}


@pytest.mark.parametrize(
    ("table", "key"), [('[dht]\nlisten = ["/ip4/127.0.0.1/tcp/{}"]', "dht"), ('[web]\nlisten = "127.0.0.1:{}"', "web")]
)
def test_a_taken_port(tmp_path: Path, table: str, key: str) -> None:
    made = Made(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made.write(table.format(port))
        found = made.find("ports")["ports.taken"]
    assert found.severity == "error" and f"{key}.listen: port {port} is taken by process" in found.evidence
    assert f"ss -ltnp sport = :{port}" in found.fix
    assert "ports.taken" not in made.find("ports")


@pytest.mark.parametrize("address", ["/ip4/198.51.100.9/tcp/38331", "/ip6/2001:db8::9/tcp/38331"], ids=["ip4", "ip6"])
def test_an_address_of_another_machine(tmp_path: Path, address: str) -> None:
    made = Made(tmp_path)
    made.write(f'[dht]\nlisten = ["{address}"]')
    found = made.find("ports")["ports.address"]
    assert found.severity == "error" and address in found.evidence and "dht.announce" in found.fix


@pytest.mark.parametrize("name", ["a" * 64, "a..b"], ids=["long", "empty"])
def test_a_name_that_no_host_can_have(tmp_path: Path, name: str) -> None:
    bootstrap = f"/dns4/{name}/tcp/1/p2p/{ELSEWHERE}"
    made = follower(tmp_path, [bootstrap], f'announce = ["/dns4/{name}/tcp/1"]')
    assert made_ids(made, "announce", offline=False) == {"announce.name": "warning"}
    assert made_ids(made, "bootstrap", offline=False) == {"bootstrap.none": "error"}
    assert "announce" in made_ids(follower(tmp_path / "other", [bootstrap]), "announce")


def test_a_coordinator_without_a_fixed_port(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert made_ids(made, "ports") == {"ports.changing": "warning"}
    made.write('[dht]\nlisten = ["/ip4/127.0.0.1/tcp/39999"]')
    assert made_ids(made, "ports") == {"ports": "ok"}


def nat(monkeypatch: pytest.MonkeyPatch, *own: str) -> None:
    """Give this machine these addresses."""
    monkeypatch.setattr(announce, "own_addresses", lambda: [f"/ip4/{address}" for address in own])


PUBLIC = f"/ip4/8.8.4.4/tcp/38331/p2p/{ELSEWHERE}"


def test_behind_a_nat_the_advice_names_the_port_and_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nat(monkeypatch, "192.168.1.7")
    found = follower(tmp_path, [PUBLIC], 'listen = ["/ip4/0.0.0.0/tcp/40001"]').find("announce")["announce.nat"]
    assert found.severity == "warning"
    assert "forward TCP port 40001 to 192.168.1.7" in found.fix
    assert 'dht.announce = ["/ip4/PUBLIC-ADDRESS/tcp/40001"]' in found.fix and "dht.client_mode = true" in found.fix


@pytest.mark.parametrize("bootstrap", ["", f'bootstrap = ["{PUBLIC}"]'], ids=["first", "others"])
def test_a_coordinator_behind_a_nat_is_not_told_to_dial_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bootstrap: str
) -> None:
    """Nobody could join through it: another check calls that a fault."""
    nat(monkeypatch, "192.168.1.7")
    made = Made(tmp_path)
    made.write(f'[dht]\nlisten = ["/ip4/0.0.0.0/tcp/38331"]\n{bootstrap}')
    found = made.find("announce")["announce.inside"]
    assert "client_mode" not in found.fix and "on a machine that others reach" in found.fix


def test_without_a_fixed_port_the_advice_fixes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nat(monkeypatch, "10.0.0.2")
    found = follower(tmp_path, [PUBLIC]).find("announce")["announce.nat"]
    assert found.fix.startswith('Set dht.listen = ["/ip4/0.0.0.0/tcp/38331"]')


@pytest.mark.parametrize(
    ("own", "bootstrap", "more"),
    [
        ("8.8.8.8", PUBLIC, ""),
        ("192.168.1.7", PUBLIC, "client_mode = true"),
        ("192.168.1.7", PUBLIC.replace("8.8.4.4", "192.168.1.8"), ""),
        ("192.168.1.7", PUBLIC, 'announce = ["/ip4/8.8.8.8/tcp/1"]'),
    ],
    ids=["public", "client", "same network", "announced"],
)
def test_where_no_nat_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, bootstrap: str, more: str
) -> None:
    nat(monkeypatch, own)
    assert made_ids(follower(tmp_path, [bootstrap], more), "announce") == {"announce": "ok"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/0.0.0.0/tcp/1", {"announce.any": "error"}),
        ("/ip6/::/tcp/1", {"announce.any": "error"}),
        ("/ip4/127.0.0.1/tcp/1", {"announce.loopback": "warning"}),
        ("/ip4/192.168.1.7/tcp/1", {"announce.private": "note"}),
        ("/ip4/100.64.1.7/tcp/1", {"announce.private": "note"}),
        ("/ip4/8.8.8.8/tcp/1", {"announce": "ok"}),
    ],
)
def test_what_is_announced(tmp_path: Path, address: str, expected: dict[str, str]) -> None:
    assert made_ids(follower(tmp_path, [PUBLIC], f'announce = ["{address}"]'), "announce") == expected


def test_another_port_than_the_one_listened_on(tmp_path: Path) -> None:
    more = 'announce = ["/ip4/8.8.8.8/tcp/1"]\nlisten = ["/ip4/0.0.0.0/tcp/2"]'
    assert made_ids(follower(tmp_path, [PUBLIC], more), "announce") == {"announce.port": "note"}


def test_a_coordinator_that_only_dials(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.write("[dht]\nclient_mode = true")
    assert made_ids(made, "announce") == {"announce.client": "warning"}


def test_a_coordinator_in_a_private_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nat(monkeypatch, "192.168.1.7")
    assert made_ids(Made(tmp_path), "announce") == {"announce.inside": "note"}


def test_a_name_that_nobody_knows(tmp_path: Path) -> None:
    made = follower(tmp_path, [PUBLIC], 'announce = ["/dns4/nowhere.invalid/tcp/1"]')
    assert made_ids(made, "announce", offline=False) == {"announce.name": "warning"}


def test_the_running_nodes_own_port_is_its_own(tmp_path: Path) -> None:
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
        assert set(made.find("ports")) == {"ports.taken"}, "no daemon runs, so it is in the way"
        subject = made.subject()

        async def runs() -> DaemonReply:
            return DaemonReply(mute="it is busy")

        subject.life = Once(runs)
        report = asyncio.run(examine(subject, choose_checks(["ports"])))
        own.communicate("")
    assert [finding.id for finding in report.findings] == ["ports"]
