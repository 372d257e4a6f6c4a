"""What p2pd needs before it starts: free ports, a directory for sockets, and hivemind without torch."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from swarmd.dht.p2p.p2pd import SocketDirectory, wait_for_free_ports
from swarmd.dht.p2p.sockets import (
    SOCKET_NAME_BYTES,
    SOCKET_PATH_BYTES_MAX,
    remove_short_directory,
    socket_directory,
)
from swarmd.dht.wire.addresses import can_listen_at, tcp_endpoint
from swarmd.errors import AddressInUse, PathUnusable


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
        assert not can_listen_at(taken)
        assert not can_listen_at(taken.replace("127.0.0.1", "0.0.0.0"))
        with pytest.raises(AddressInUse, match=taken):
            anyio.run(wait_for_free_ports, [taken], 0.3)
    assert can_listen_at(taken)
    assert can_listen_at("/ip4/127.0.0.1/tcp/0") and can_listen_at("/ip4/127.0.0.1/udp/1/quic")
    assert tcp_endpoint("/dns4/example.org/tcp/80/p2p/x") == ("example.org", 80)
    assert tcp_endpoint("/ip4/1.2.3.4/tcp/x") is None


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
    near.mkdir()
    socket_directory(deep).mkdir()
    (socket_directory(deep) / "p2pd-1.sock").touch()
    remove_short_directory(deep)
    remove_short_directory(near)
    assert near.exists() and not socket_directory(deep).exists()
    socket_directory(deep).symlink_to(near)
    (near / "p2pd-1.sock").touch()
    remove_short_directory(deep)
    assert list(near.iterdir()), "a link that somebody laid there was followed"


def test_a_short_place_that_somebody_else_laid_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a directory of ours, looked at through the link, is ours; the sockets would lie where another chose."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep, near = tmp_path / ("x" * 100), tmp_path / "near"
    near.mkdir()
    socket_directory(deep).symlink_to(near)
    with pytest.raises(PathUnusable, match="is not a directory"):
        SocketDirectory(deep).open()
    socket_directory(deep).unlink()
    strange = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: strange)
    socket_directory(deep).mkdir()
    with pytest.raises(PathUnusable, match="belongs to another user"):
        SocketDirectory(deep).open()


def test_a_short_place_that_others_could_enter_is_shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = tmp_path / ("x" * 100)
    socket_directory(deep).mkdir()
    socket_directory(deep).chmod(0o777)
    SocketDirectory(deep).open()
    assert stat.S_IMODE(socket_directory(deep).stat().st_mode) == 0o700


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


def test_the_lean_hivemind_has_no_torch() -> None:
    program = (
        "import sys\nfrom swarmd.dht.p2p import hivemind_api as hive\n"
        "print([name for name in ('torch', 'numpy', 'hivemind.moe') if name in sys.modules], "
        "hive.swarmd.dht.p2p.hivemind_import.LEAN)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"
