"""Versions of log and data directory: newer ones are refused, older ones taken over, and every upgrade undone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.core.events import NodeStarted, RoundAnnounced, StageTrained
from swarmd.daemon import upgrade
from swarmd.daemon.notes import read_restored
from swarmd.daemon.upgrade import LAYOUT, RULES, Migration, keep_copy, put_back, read_copied, read_layout, take_over
from swarmd.errors import LogDamaged, LogInUse, LogNewer, PathUnusable, SwarmdError
from swarmd.eventlog.fold import load
from swarmd.eventlog.lock import take_lock
from swarmd.eventlog.offline.replay import verify
from swarmd.paths import NodeDirectory
from tests.backup.making import make_node
from tests.daemon import node as fakes

NEWER = """
import runpy
import swarmd.core.step as core
core.RULES += 1
core.REPRODUCES = (*core.REPRODUCES, core.RULES)
runpy.run_path({runner!r}, run_name="__main__")
"""


def test_an_upgrade_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N, then N+1, then N again, each a whole daemon on the same directory."""
    newer = tmp_path / "newer.py"
    newer.write_text(NEWER.format(runner=str(fakes.RUNNER)))
    with fakes.fake_node(tmp_path, rounds=0, start_s=1) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        assert node.stop() == 0
        before = load(node.paths.events)
        opened = node.events_of(RoundAnnounced)[-1].round
        with monkeypatch.context() as patch:
            patch.setattr(fakes, "RUNNER", newer)
            node.start()
            node.until(lambda: node.status().get("rewards", [])[len(before[0].rewards) :])
            assert node.stop() == 0
        node.start()
        assert node.wait() == 65
        last = node.lines()[-1]
        assert f"under rules {RULES + 1}" in last["message"] and f"swarmd rollback {node.paths.root}" in last["fix"]
        assert run_command(["rollback", str(node.paths.root)]) == 0
        assert load(node.paths.events) == before
        assert list((node.paths.after_upgrade / "events").glob("*.seg")), "what came after is kept"
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) > len(before[0].rewards))
        assert node.stop() == 0
        verify(node.paths.events)
        assert [started.restored for started in node.events_of(NodeStarted)] == [False, True]
        again = [event.round for event in node.events_of(RoundAnnounced)]
        assert [round for round in again if round > opened], "it goes on"
        assert read_restored(node.paths) is None, "the log knows it now"
        assert run_command(["rollback", str(node.paths.root)]) == 66, "there is nothing left to undo"


def settled(root: Path) -> NodeDirectory:
    """A directory that this swarmd has taken over."""
    data = make_node(root)
    take_over(data)
    return data


def test_the_log_of_older_rules_is_kept_and_takes_no_space(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    assert upgrade.last_rules(data.events) == RULES
    shutil.rmtree(data.before_upgrade, ignore_errors=True)
    take_over(data)
    assert read_copied(data) is None, "nothing is older"
    take_over(data, rules=RULES + 1)
    copied = read_copied(data)
    assert copied is not None and (copied.rules, copied.layout, copied.paths) == (RULES, LAYOUT, ("events",))
    for path in data.events.glob("*.seg"):
        assert (data.before_upgrade / "events" / path.name).stat().st_ino == path.stat().st_ino


def test_a_segment_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    segment = max(data.events.glob("*.seg"))
    segment.unlink()
    segment.mkdir()
    with pytest.raises(LogDamaged, match=f"{segment} cannot be read: it is a directory"):
        take_over(data)


def test_a_log_that_cannot_be_copied_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of another user's take no hard link, nor can they be read."""
    data = settled(tmp_path / "node")

    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), source)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copy2", refuse)
    with pytest.raises(PathUnusable, match=r"cannot be copied to .*before-upgrade: .*\.seg.*Permission denied"):
        take_over(data, rules=RULES + 1)
    assert not data.before_upgrade.with_name("before-upgrade.tmp").exists()


def test_the_copy_goes_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = settled(tmp_path / "node")
    take_over(data, rules=RULES + 1)
    take_over(data)
    assert read_copied(data) is not None
    monkeypatch.setattr(upgrade, "COPY_KEPT_S", -1.0)
    take_over(data)
    assert read_copied(data) is None


def test_a_newer_layout_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    data.layout.write_text(f'{{"layout": {LAYOUT + 1}}}')
    with pytest.raises(LogNewer, match=f"has layout {LAYOUT + 1}"):
        take_over(data)
    data.layout.write_text("{")
    with pytest.raises(LogDamaged, match="layout"):
        take_over(data)


def test_a_new_directory_begins_with_the_newest_layout(tmp_path: Path) -> None:
    empty = NodeDirectory(tmp_path / "empty")
    empty.root.mkdir()
    take_over(empty)
    assert read_layout(empty) == LAYOUT


# --- from layout 1, the one before `layout.json` ---


def first_layout(root: Path) -> NodeDirectory:
    """Peers and records lay in the directory itself."""
    data = make_node(root)
    data.peers.rename(root / "peers.json")
    data.records.rename(root / "records.bin")
    data.invitations.unlink()  # there were none then
    data.network.rmdir()
    assert read_layout(data) == 1
    return data


def test_the_first_layout_is_taken_over_and_put_back(tmp_path: Path) -> None:
    data = first_layout(tmp_path / "node")
    before = load(data.events)
    take_over(data)
    assert (data.peers.read_text(), data.records.read_bytes()) == ("[]", b"old records")
    assert not (data.root / "peers.json").exists() and read_layout(data) == 2
    put_back(data)
    assert ((data.root / "peers.json").read_text(), (data.root / "records.bin").read_bytes()) == ("[]", b"old records")
    assert not data.network.exists() and read_layout(data) == 1
    assert load(data.events) == before
    take_over(data)
    assert read_layout(data) == 2, "and up again"


# --- steps to come ---


def rename_peers(root: Path) -> None:
    (root / "network" / "peers.json").rename(root / "network" / "peers.txt")


def fail(root: Path) -> None:
    (root / "network" / "peers.txt").write_text("half written")
    raise SwarmdError("no space")


STEP = Migration(LAYOUT, ("network",), rename_peers)
FAILING = Migration(LAYOUT + 1, ("network",), fail)


def peers_of(data: NodeDirectory) -> dict[str, str]:
    return {path.name: path.read_text() for path in data.network.glob("peers.*")}


def test_a_step_is_taken_and_can_be_undone(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    take_over(data, (STEP,), LAYOUT + 1, RULES + 1)
    assert peers_of(data) == {"peers.txt": "[]"} and read_layout(data) == LAYOUT + 1
    with pytest.raises(LogNewer) as refused:
        take_over(data)
    assert f"swarmd rollback {data.root}" in refused.value.fix
    put_back(data)
    assert peers_of(data) == {"peers.json": "[]"} and read_layout(data) == LAYOUT
    take_over(data)
    verify(data.events)


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    with pytest.raises(SwarmdError, match="no space"):
        take_over(data, (STEP, FAILING), LAYOUT + 2)
    assert peers_of(data) == {"peers.json": "[]"} and read_layout(data) == LAYOUT
    verify(data.events)


def test_what_is_in_the_way_of_a_step_is_named(tmp_path: Path) -> None:
    data = make_node(tmp_path / "node")
    shutil.rmtree(data.network)
    data.network.write_text("an operator's")
    with pytest.raises(PathUnusable, match=f"from layout 1 to 2: .*{data.network}"):
        take_over(data)
    assert data.network.read_text() == "an operator's" and read_layout(data) == 1


def test_what_is_in_the_way_of_a_copy_is_named(tmp_path: Path) -> None:
    data = make_node(tmp_path / "node")
    data.before_upgrade.write_text("an operator's")
    with pytest.raises(PathUnusable, match=f"{data.before_upgrade} is in the way") as told:
        take_over(data)
    assert "Remove it" in told.value.fix and read_layout(data) == 1


def test_a_step_that_was_cut_off_begins_again(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    keep_copy(data, RULES, LAYOUT, STEP.touches)
    (data.before_upgrade / upgrade.UNFINISHED).touch()
    data.peers.write_text("half")
    take_over(data, (STEP,), LAYOUT + 1)
    assert peers_of(data) == {"peers.txt": "[]"}
    assert not (data.before_upgrade / upgrade.UNFINISHED).exists()


def test_an_upgrade_that_was_cut_off_at_its_end_is_left_at_that(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    take_over(data, (STEP,), LAYOUT + 1)
    (data.before_upgrade / upgrade.UNFINISHED).touch()
    take_over(data, (STEP,), LAYOUT + 1)
    assert peers_of(data) == {"peers.txt": "[]"} and read_layout(data) == LAYOUT + 1
    assert not (data.before_upgrade / upgrade.UNFINISHED).exists()


def test_nothing_is_changed_under_a_running_node(tmp_path: Path) -> None:
    data = settled(tmp_path / "node")
    lock = take_lock(data.events)
    try:
        with pytest.raises(LogInUse):
            take_over(data, (STEP,), LAYOUT + 1)
        keep_copy(data, 3, 1)
        assert run_command(["rollback", str(data.root)]) == 75
    finally:
        os.close(lock)
    assert peers_of(data) == {"peers.json": "[]"}
