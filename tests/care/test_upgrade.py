"""Versions of log and data directory: newer ones are refused, older ones taken over, and every upgrade undone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.core.events import NodeStarted, RoundAnnounced, StageTrained
from swarmd.daemon import upgrade
from swarmd.daemon.notes import read_restored
from swarmd.daemon.upgrade import LAYOUT, Migration, keep_copy, put_back, read_copied, read_layout, settle_layout
from swarmd.errors import LogDamaged, LogInUse, LogNewer, SwarmdError
from swarmd.eventlog.fold import load
from swarmd.eventlog.lock import take_lock
from swarmd.eventlog.replay import verify
from swarmd.paths import DataPaths
from tests.care.making import make_node
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
        assert "under rules 5" in last["message"] and f"swarmd rollback {node.paths.root}" in last["fix"]
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
        assert run_command(["rollback", str(node.paths.root)]) == 1, "there is nothing left to undo"


def test_the_copy_of_a_log_takes_no_space(tmp_path: Path) -> None:
    data = make_node(tmp_path / "node")
    keep_copy(data, 3, 1, ("events",))
    for path in data.events.glob("*.seg"):
        assert (data.before_upgrade / "events" / path.name).stat().st_ino == path.stat().st_ino
    copied = read_copied(data)
    assert copied is not None and (copied.rules, copied.layout, copied.paths) == (3, 1, ("events",))


def test_the_copy_goes_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_node(tmp_path / "node")
    upgrade.prepare_log(data, 1)
    assert read_copied(data) is not None
    upgrade.prepare_log(data, upgrade.RULES)
    assert read_copied(data) is not None
    monkeypatch.setattr(upgrade, "COPY_KEPT_S", -1.0)
    upgrade.prepare_log(data, upgrade.RULES)
    assert read_copied(data) is None


def test_a_newer_layout_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    data = make_node(tmp_path / "node")
    data.layout.write_text(f'{{"layout": {LAYOUT + 1}}}')
    with pytest.raises(LogNewer, match=f"has layout {LAYOUT + 1}"):
        settle_layout(data)
    data.layout.write_text("{")
    with pytest.raises(LogDamaged, match="layout"):
        settle_layout(data)


def test_a_directory_without_the_file_is_of_the_first_layout(tmp_path: Path) -> None:
    data = make_node(tmp_path / "node")
    settle_layout(data)
    assert read_layout(data) == LAYOUT == 1
    empty = DataPaths(tmp_path / "empty")
    empty.root.mkdir()
    settle_layout(empty, layout=7)
    assert read_layout(empty) == 7, "a new directory begins with the newest"


def rename_peers(root: Path) -> None:
    (root / "peers.json").rename(root / "peers.txt")


def fail(root: Path) -> None:
    (root / "peers.txt").write_text("half written")
    raise SwarmdError("no space")


STEP = Migration(1, ("peers.json", "peers.txt"), rename_peers)


def old_node(tmp_path: Path) -> DataPaths:
    data = make_node(tmp_path / "node")
    (data.root / "peers.json").write_text("[]")
    settle_layout(data)
    return data


def test_a_step_is_taken_and_can_be_undone(tmp_path: Path) -> None:
    data = old_node(tmp_path)
    settle_layout(data, (STEP,), layout=2)
    assert (data.root / "peers.txt").read_text() == "[]" and read_layout(data) == 2
    with pytest.raises(LogNewer, match="swarmd rollback") as refused:
        settle_layout(data)
    assert "layouts up to 1" in refused.value.message or "rollback" in refused.value.fix
    put_back(data)
    assert (data.root / "peers.json").read_text() == "[]" and read_layout(data) == 1
    settle_layout(data)


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    data = old_node(tmp_path)
    steps = (STEP, Migration(2, ("peers.txt",), fail))
    with pytest.raises(SwarmdError, match="no space"):
        settle_layout(data, steps, layout=3)
    assert (data.root / "peers.json").read_text() == "[]"
    assert read_layout(data) == 1


def test_a_step_that_was_cut_off_begins_again(tmp_path: Path) -> None:
    data = old_node(tmp_path)
    keep_copy(data, 0, 1, STEP.touches, links=False)
    (data.before_upgrade / upgrade.UNFINISHED).touch()
    (data.root / "peers.json").write_text("half")
    settle_layout(data, (STEP,), layout=2)
    assert (data.root / "peers.txt").read_text() == "[]"
    assert not (data.before_upgrade / upgrade.UNFINISHED).exists()


def test_nothing_is_changed_under_a_running_node(tmp_path: Path) -> None:
    data = old_node(tmp_path)
    lock = take_lock(data.events)
    try:
        with pytest.raises(LogInUse):
            settle_layout(data, (STEP,), layout=2)
        keep_copy(data, 3, 1, ("events",))
        assert run_command(["rollback", str(data.root)]) == 75
    finally:
        os.close(lock)
    assert (data.root / "peers.json").exists()
