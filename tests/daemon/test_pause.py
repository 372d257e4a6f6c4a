"""A whole daemon on a disk of 100 MB that fills up: it pauses, keeps its log, says so, and goes on by itself."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.core.events import RoundsSkipped, SpaceFreed, SpaceLow, StageTrained
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.fold import load
from swarmd.eventlog.replay import check_log, verify
from tests.daemon.node import FakeNode, fake_node, is_alive
from tests.tmpfs import tmpfs

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", "size=100m") as place:
        yield place


def fill(disk: Path, left_bytes: int) -> None:
    """Take space away as another program would, until so much is left."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        for _ in range(98):
            free = int(subprocess.run(["stat", "-f", "-c", "%f", str(disk)], capture_output=True).stdout) * 4096
            if free - MIB < left_bytes:
                return
            filler.write(b"\\0" * MIB)


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
        verify(node.paths.events)
        state, _ = load(node.paths.events)
        assert {skip.cause for skip in node.events_of(RoundsSkipped)} <= {"fault"}
        assert state.low_space is None


def test_old_rollouts_go_before_a_node_pauses(tmp_path: Path, disk: Path) -> None:
    with fake_node(tmp_path, data=disk / "data", rounds=0, free_bytes_min=32 * MIB) as node:
        node.start()
        node.worker_pid("network")
        blobs = Blobs(node.paths.blobs)
        digest = blobs.put(b"x" * (30 * MIB))
        fill(disk, 20 * MIB)
        node.until(lambda: not blobs.has(digest))
        node.until(lambda: any(line["message"] == "old rollouts removed" for line in node.lines()))
        trained = len(node.events_of(StageTrained))
        node.until(lambda: len(node.events_of(StageTrained)) > trained)
        assert node.events_of(SpaceLow) == []
        assert node.stop() == 0
