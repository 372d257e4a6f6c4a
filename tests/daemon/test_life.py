"""A daemon's life with scripted workers: rounds, restarts of the daemon, stops, exit codes."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.core.events import (
    NodeStarted,
    NodeStopped,
    RoundsSkipped,
    SpaceFreed,
    SpaceLow,
    StageTrained,
    StopRequested,
    WorkerExited,
)
from swarmd.dht.p2p.sockets import socket_directory
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.replay import check_log, verify_log
from swarmd.eventlog.snapshot import list_snapshots, snapshot_directory
from tests.daemon.node import FakeNode, fake_node, is_alive
from tests.tmpfs import tmpfs

MIB = 1024 * 1024


def test_a_node_runs_its_rounds_and_stops_in_order(tmp_path: Path) -> None:
    with fake_node(tmp_path, rounds=3) as node:
        node.run_rounds()
        status = node.status()
        assert status["healthy"] and status["source"] == "daemon"
        assert [reward["round"] for reward in status["rewards"]] == [0, 1, 2]
        workers = [node.worker_pid("network"), node.worker_pid("training")]
        assert node.stop() == 0
        assert not any(is_alive(pid) for pid in workers)
        assert not node.paths.control.exists()
        assert node.events()[-1] == NodeStopped("signal SIGTERM")
        assert "heavy modules: []" in node.output.read_text()
        verify_log(node.paths.events)


def test_a_log_that_nobody_reads_stops_no_round(tmp_path: Path) -> None:
    """A pager that stands, or a terminal after Ctrl-S. What is lost of the log is told when it is read again."""
    with fake_node(tmp_path, rounds=20) as node:
        os.mkfifo(node.output)
        reading = os.open(node.output, os.O_RDWR)
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)
        node.run_rounds()
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 1 << 20)
        assert node.stop() == 0
        assert b'"lines_lost":' in os.read(reading, 1 << 20)
        os.close(reading)


def test_a_short_place_for_sockets_goes_with_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network worker makes it, and is confined to it: so it is the daemon that takes it away."""
    scratch = tmp_path / "scratch"
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with fake_node(tmp_path, data=tmp_path / ("x" * 100)) as node:
        place = socket_directory(node.paths.sockets)
        place.mkdir(parents=True)
        node.start(TMPDIR=str(scratch))
        node.worker_pid("network")
        assert place.exists()
        assert node.stop() == 0
        assert list(scratch.iterdir()) == []


def test_a_killed_daemon_goes_on_where_it_was(tmp_path: Path) -> None:
    with fake_node(tmp_path, rounds=40) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 3)
        node.signal(signal.SIGKILL)
        assert node.wait() == -signal.SIGKILL
        node.start()
        node.until(lambda: len(node.events_of(NodeStarted)) == 2 and len(node.events_of(StageTrained)) >= 8)
        assert node.stop() == 0
        rounds = [trained.round for trained in node.events_of(StageTrained)]
        assert rounds == sorted(set(rounds)), "a stage was trained twice or out of order"
        verify_log(node.paths.events)


def test_a_signal_during_the_start_has_it_stop_in_order(tmp_path: Path) -> None:
    """Between the control socket and the first event: dying there of SIGTERM would leave the socket behind."""
    program = (
        "import os, signal, sys\n"
        "from swarmd.daemon import service\n"
        "from tests.daemon.run_fake import main\n"
        "async def interrupted(tag):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return []\n"
        "service.kill_leftovers = interrupted\n"
        "sys.exit(main())"
    )
    with fake_node(tmp_path) as node:
        arguments = [str(node.config), str(node.paths.root), "ok", "ok"]
        ended = subprocess.run([sys.executable, "-c", program, *arguments], timeout=20, capture_output=True)
        assert ended.returncode == 0
        assert node.events()[-1] == NodeStopped("signal SIGTERM")
        assert not node.paths.control.exists()


def test_workers_die_with_a_killed_daemon(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start(network="spawn", trainer="deaf")
        network = node.worker_pid("network")
        trainer = node.until(lambda: node.status()["training"]["worker"]["pid"])
        grandchild = int(node.until(lambda: _read(node.paths.root / "grandchild")))
        assert is_alive(grandchild)
        node.signal(signal.SIGKILL)
        node.wait()
        # The trainer's event loop hangs: only the watching thread can end it.
        node.until(lambda: not any(is_alive(pid) for pid in (network, trainer, grandchild)))


def test_the_next_life_ends_what_the_last_one_left(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start(network="spawn")
        network = node.worker_pid("network")
        grandchild = int(node.until(lambda: _read(node.paths.root / "grandchild")))
        os.kill(network, signal.SIGSTOP)  # cannot notice the end of its daemon
        node.signal(signal.SIGKILL)
        node.wait()
        assert is_alive(network) and is_alive(grandchild)
        node.start()
        node.until(lambda: not is_alive(network) and not is_alive(grandchild))
        node.worker_pid("network")
        assert node.stop() == 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_second_daemon_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start()
        node.worker_pid("network")
        second = FakeNode(tmp_path)
        second.output = tmp_path / "second.log"
        second.start()
        assert second.wait() == 75
        assert f"pid {node.pid}" in second.lines()[-1]["message"]
        assert node.status()["healthy"], "the first daemon's socket was taken away"


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with fake_node(tmp_path, stop_s=60) as node:
        node.start(trainer="hang")
        workers = [node.worker_pid("network"), node.worker_pid("training")]
        node.signal(signal.SIGTERM)
        node.until(lambda: node.events_of(StopRequested))
        node.signal(signal.SIGINT)
        assert node.wait(30) == 128 + signal.SIGINT, "half of what an orderly stop would have waited"
        node.until(lambda: not any(is_alive(pid) for pid in workers))
        verify_log(node.paths.events)


def test_a_hanging_worker_does_not_delay_the_stop_beyond_its_limit(tmp_path: Path) -> None:
    with fake_node(tmp_path, stop_s=2) as node:
        node.start(trainer="hang")
        trainer = node.worker_pid("training")
        begun = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - begun < 20, "the trainer hangs for ever"
        assert not is_alive(trainer)
        assert node.events_of(WorkerExited)[-1].reason.startswith("did not end in time, killed")


def test_too_little_room_at_start_is_refused(tmp_path: Path) -> None:
    with fake_node(tmp_path, free_bytes_min=2**62) as node:
        node.start()
        assert node.wait() == 73
        assert "are free for" in node.lines()[-1]["message"]
        assert not node.paths.events.exists()


def test_a_node_that_can_keep_no_snapshot_works_on_and_says_so(tmp_path: Path) -> None:
    with fake_node(tmp_path, rounds=0) as node:
        node.paths.events.mkdir(parents=True, mode=0o700)
        (in_the_way := snapshot_directory(node.paths.events)).write_text("a file where the directory should be")
        node.start(SEGMENT_BYTES="4000")
        notes = node.until(lambda: node.status().get("notes"))
        assert "no snapshot of the log could be kept" in notes[0] and str(in_the_way) in notes[0]
        assert any("no snapshot" in line["message"] for line in node.lines())
        in_the_way.unlink()
        node.until(lambda: not node.status().get("notes"))
        assert list_snapshots(node.paths.events) and node.stop() == 0
        verify_log(node.paths.events)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", "size=1m") as place:
        yield place


def test_a_full_disk_ends_the_node_with_its_log_whole(tmp_path: Path, small_disk: Path) -> None:
    with fake_node(tmp_path, data=small_disk / "data", rounds=0) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        workers = [node.worker_pid("network"), node.worker_pid("training")]
        fill(small_disk)
        assert node.wait() == 73
        assert node.lines()[-1]["error"] == "NoSpaceLeft"
        node.until(lambda: not any(is_alive(pid) for pid in workers))
        verify_log(node.paths.events)
        trained = len(node.events_of(StageTrained))
        (small_disk / "filler").unlink()
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) > trained)
        assert node.stop() == 0
        verify_log(node.paths.events)


def fill(disk: Path, left_bytes: int = 0) -> None:
    """Take space away as another program would, until so much is left."""
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while shutil.disk_usage(disk).free > left_bytes:
            filler.write(b"\0" * min(MIB, shutil.disk_usage(disk).free - left_bytes))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", "size=100m") as place:
        yield place


def paused(node: FakeNode) -> bool:
    return str(node.status().get("round", {}).get("reason", "")).startswith("paused: ")


def test_a_node_on_100_megabytes_pauses_and_goes_on(tmp_path: Path, disk: Path) -> None:
    with fake_node(tmp_path, data=disk / "data", rounds=0, free_bytes_min=32 * MIB) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        pid = node.worker_pid("training")
        fill(disk, 20 * MIB)
        node.until(lambda: paused(node))
        node.until(lambda: node.status()["round"]["state"] == "paused")
        assert not node.status()["healthy"]
        assert any(line["message"].startswith("paused: ") and line["level"] == "warning" for line in node.lines())
        trained = len(node.events_of(StageTrained))
        node.until(lambda: node.status()["log"]["next_seq"] > 0)
        assert is_alive(node.pid) and node.worker_pid("training") == pid, "nothing was restarted"
        (low,) = node.events_of(SpaceLow)
        assert low.free_bytes < 32 * MIB and low.wanted_bytes == 40 * MIB
        assert len(node.events_of(StageTrained)) == trained
        (disk / "filler").unlink()
        node.until(lambda: len(node.events_of(StageTrained)) >= trained + 2)
        assert len(node.events_of(SpaceFreed)) == 1 and not paused(node)
        assert node.stop() == 0
        check_log(node.paths.events)
        verify_log(node.paths.events)
        state, _ = load_state(node.paths.events)
        assert {skip.cause for skip in node.events_of(RoundsSkipped)} <= {"fault"}
        assert state.low_space is None
