"""Small parts: own records' file, rate limits, rejections, address book, sockets, ports, hivemind's import."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import msgpack
import msgspec
import pytest

from swarmd.bounds import KEYS_MAX, RateLimiter
from swarmd.config import parse_config
from swarmd.core.events import RecordsRejected
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.limits import (
    NAMED_BURST,
    NAMED_PER_S,
    REPEAT_S,
    Rejections,
)
from swarmd.dht.p2p.p2pd import SocketDirectory, await_ports
from swarmd.dht.p2p.peers import PEERS_KEPT, AddressBook
from swarmd.dht.p2p.sockets import (
    SOCKET_NAME_BYTES,
    SOCKET_PATH_BYTES_MAX,
    clearing_short_place,
    socket_place,
)
from swarmd.dht.publisher import OwnRecordFile
from swarmd.dht.session import _check
from swarmd.dht.wire.addresses import is_free, tcp_place
from swarmd.dht.wire.records import ReportRecord
from swarmd.errors import AddressInUse, ConfigError, PathUnusable
from tests.dht.making import ALICE, BOB, CLOCK, MEMBERSHIP, REPORT, SWARM
from tests.dht.network import VirtualTime

# --- the file of own records ---


def test_the_file_of_own_records_survives_and_keeps_the_latest_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "records.bin"
    kept = OwnRecordFile(path, SWARM)
    for round in range(6):
        kept.keep(msgspec.structs.replace(REPORT, round=round), 100.0 + round)
    kept.keep(CLOCK, 7.0)
    kept.keep(msgspec.structs.replace(CLOCK, round=9), 8.0)
    anyio.run(kept.save)
    again = OwnRecordFile(path, SWARM)
    rounds = [content.round for content, *_ in again.kept if isinstance(content, ReportRecord)]
    assert rounds == [3, 4, 5]
    assert (again.floors(CLOCK.key)[0], again.floors(MEMBERSHIP.key)[0]) == (8.0, 0.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert OwnRecordFile(path, "another").kept == []


@pytest.mark.parametrize("content", [b"", b"noise", msgpack.packb([[b"\x91" * 50, 1.0]]), msgpack.packb([["x", 1.0]])])
def test_a_damaged_file_of_own_records_is_put_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records.bin"
    path.write_bytes(content)
    assert OwnRecordFile(path, SWARM).kept == []
    assert path.with_suffix(".damaged").read_bytes() == content


# --- rate limits and rejections ---


def test_a_rate_limit_fills_up_again_and_forgets_the_silent() -> None:
    clock = VirtualTime()
    limit = RateLimiter(burst=3, per_s=1, now=clock)
    assert [limit.try_charge("a") for _ in range(4)] == [True, True, True, False]
    assert limit.try_charge("b")
    clock.now += 1.5
    assert [limit.try_charge("a") for _ in range(2)] == [True, False]
    for number in range(2 * KEYS_MAX):
        limit.try_charge(str(number))
    assert len(limit._buckets) == KEYS_MAX
    assert not limit.try_charge("c", 4)


def test_a_rate_limit_is_not_saved_up() -> None:
    clock = VirtualTime()
    limit = RateLimiter(burst=3, per_s=1, now=clock)
    assert limit.try_charge("a")
    clock.now += 1000
    assert [limit.try_charge("a") for _ in range(4)] == [True, True, True, False]


def test_rejections_are_told_at_once_and_then_once_a_minute() -> None:
    clock = VirtualTime()
    rejections = Rejections(clock)
    rejections.count("a", "stale")
    assert rejections.due() == [RecordsRejected("a", "stale", 1)]
    for _ in range(5):
        rejections.count("a", "stale")
    rejections.count("b", "stale")
    assert rejections.due() == [RecordsRejected("b", "stale", 1)]
    clock.now += REPEAT_S
    assert rejections.due() == [RecordsRejected("a", "stale", 5)]
    assert rejections.due() == []


# --- address book ---


@pytest.mark.parametrize(
    "dht",
    [
        'listen = ["/ip4/0.0.0.0/tcp/1/foo"]',
        'listen = ["/ip6/fe80::1%eth0/tcp/1"]',
        'announce = ["/ip4/192.0.2.1/udp/1/quic-v1/webtransport"]',
        f'bootstrap = ["/ip4/192.0.2.1/tcp/1/foo/p2p/{ALICE.peer_id}"]',
    ],
    ids=["odd end", "scope", "transport", "bootstrap"],
)
def test_an_address_that_hivemind_cannot_read_is_named(dht: str) -> None:
    config = parse_config(f'role = "coordinator"\n[swarm]\nid = "s"\n[dht]\n{dht}\n', "node.toml")
    with pytest.raises(ConfigError, match=f"^dht.{dht.split()[0]}: '/ip.*' is no address"):
        _check(config)


def test_the_book_is_kept_bounded_and_survives(tmp_path: Path) -> None:
    path, own = tmp_path / "peers.json", generate_identity().peer_id
    book = AddressBook(path, [f"/ip4/1.1.1.1/tcp/1/p2p/{ALICE.peer_id}", f"/ip4/1.1.1.1/tcp/2/p2p/{own}"], own)
    assert book.bootstrap == [("/ip4/1.1.1.1/tcp/1", ALICE.peer_id)]
    for number in range(PEERS_KEPT + 10):
        peer = generate_identity().peer_id
        book.meet(peer, [f"/ip4/10.0.0.{number}/tcp/1/p2p/{peer}"])
    book.meet(own, ["/ip4/9.9.9.9/tcp/1"])
    anyio.run(book.save, 4242)
    again = AddressBook(path, [], own)
    assert len(again.met()) == PEERS_KEPT and again.port == 4242
    assert again.met()[-1] == (f"/ip4/10.0.0.{PEERS_KEPT + 9}/tcp/1", peer)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"port": 1, "peers": ["x"]}', '{"port": "x", "peers": 3}'])
def test_a_damaged_cache_is_left_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(content)
    assert AddressBook(path, [], BOB.peer_id).met() == []


@pytest.mark.parametrize("port", ["98331", "-1", "1e999", "NaN", "null", 5_000 * "9", 100_000 * "["], ids=range(7))
def test_a_port_in_the_cache_that_is_none_is_left_aside(tmp_path: Path, port: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(f'{{"peers": [], "port": {port}}}')
    assert AddressBook(path, [], BOB.peer_id).port == 0


# --- sockets and ports ---


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
        assert not is_free(taken)
        assert not is_free(taken.replace("127.0.0.1", "0.0.0.0"))
        with pytest.raises(AddressInUse, match=taken):
            anyio.run(await_ports, [taken], 0.3)
    assert is_free(taken)
    assert is_free("/ip4/127.0.0.1/tcp/0") and is_free("/ip4/127.0.0.1/udp/1/quic")
    assert tcp_place("/dns4/example.org/tcp/80/p2p/x") == ("example.org", 80)
    assert tcp_place("/ip4/1.2.3.4/tcp/x") is None


def test_a_short_place_is_found_when_the_path_is_too_long(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    directory = SocketDirectory(deep)
    assert len(os.fsencode(directory.path)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX
    assert directory.path == SocketDirectory(deep).path != SocketDirectory(deep / "other").path
    directory.open()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    directory.close()
    assert not directory.path.exists()


def test_the_daemon_clears_a_short_place_that_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep, near = tmp_path / ("x" * 100), tmp_path / "run"
    with clearing_short_place(deep), clearing_short_place(near):
        near.mkdir()
        socket_place(deep).mkdir()
        (socket_place(deep) / "p2pd-1.sock").touch()
    assert near.exists() and not socket_place(deep).exists()
    socket_place(deep).symlink_to(near)
    with clearing_short_place(deep):
        (near / "p2pd-1.sock").touch()
    assert list(near.iterdir()), "a link that somebody laid there was followed"


def test_a_short_place_that_somebody_else_laid_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a directory of ours, looked at through the link, is ours; the sockets would lie where another chose."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep, near = tmp_path / ("x" * 100), tmp_path / "near"
    near.mkdir()
    socket_place(deep).symlink_to(near)
    with pytest.raises(PathUnusable, match="is not a directory"):
        SocketDirectory(deep).open()
    socket_place(deep).unlink()
    strange = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: strange)
    socket_place(deep).mkdir()
    with pytest.raises(PathUnusable, match="belongs to another user"):
        SocketDirectory(deep).open()


def test_a_short_place_that_others_could_enter_is_shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = tmp_path / ("x" * 100)
    socket_place(deep).mkdir()
    socket_place(deep).chmod(0o777)
    SocketDirectory(deep).open()
    assert stat.S_IMODE(socket_place(deep).stat().st_mode) == 0o700


def test_leftovers_of_a_killed_predecessor_are_cleared(tmp_path: Path) -> None:
    directory = SocketDirectory(tmp_path / "run")
    directory.open()
    (directory.path / "p2pd-old.sock").touch()
    (directory.path / "p2pclient-old.sock").touch()
    (directory.path / "control.sock").touch()
    marked = [sys.executable, "-c", "import sys; sys.stdin.read()", str(directory.path)]
    with (
        subprocess.Popen(marked, stdin=subprocess.PIPE) as leftover,
        subprocess.Popen([*marked[:3], "other"], stdin=subprocess.PIPE) as stranger,
    ):
        (directory.path / "p2pd.json").write_text(json.dumps({"pid": stranger.pid}))
        SocketDirectory(tmp_path / "run").open()
        assert stranger.poll() is None
        (directory.path / "p2pd.json").write_text(json.dumps({"pid": leftover.pid}))
        SocketDirectory(tmp_path / "run").open()
        assert leftover.wait(5) == -9
        stranger.kill()
    assert [path.name for path in directory.path.iterdir()] == ["control.sock"]


# --- hivemind ---


def test_the_lean_hivemind_has_no_torch() -> None:
    program = (
        "import sys\nfrom swarmd.dht.p2p import hivemind_api as hive\n"
        "print([name for name in ('torch', 'numpy', 'hivemind.moe') if name in sys.modules], "
        "hive.swarmd.dht.p2p.hivemind_import.LEAN)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


def test_refusals_of_ever_new_peers_fill_no_log() -> None:
    now = 0.0
    rejections = Rejections(lambda: now)
    told = []
    for step in range(600):
        now = step * 0.1
        rejections.count(f"peer-{step}", "calls")
        told += rejections.due()
    named = [event for event in told if event.peer]
    assert len(named) <= NAMED_BURST + NAMED_PER_S * 60 and len(told) - len(named) <= 2
    now = 200.0
    assert sum(event.count for event in told + rejections.due()) == 600
