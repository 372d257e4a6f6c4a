"""A daemon that runs is backed up, lost, and brought back: it signs nothing for a round that it may have signed."""

import shutil
from pathlib import Path

from swarmd.backup.backup import BackupPlan, check_backup, make_backup, restore_backup
from swarmd.core.events import NodeStarted, ReportPublished, RoundAnnounced, StageTrained
from swarmd.eventlog.replay import verify_log
from tests.backup.making import PASSPHRASE
from tests.daemon.node import fake_node


def test_a_node_that_comes_back_from_an_old_backup_reports_no_round_twice(tmp_path: Path) -> None:
    out = tmp_path / "node.tar.gz"
    with fake_node(tmp_path, rounds=0, start_s=1) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        made = make_backup(node.paths, out, BackupPlan(PASSPHRASE, config=node.config))
        assert check_backup(out, PASSPHRASE) == made
        opened_then = max(event.round for event in node.events_of(RoundAnnounced))
        node.until(lambda: node.events_of(RoundAnnounced)[-1].round > opened_then + 2)
        assert node.stop() == 0
        opened = max(event.round for event in node.events_of(RoundAnnounced))
        reported = {event.round for event in node.events_of(ReportPublished)}
        shutil.rmtree(node.paths.root)
        restore_backup(out, node.paths.root, PASSPHRASE, from_round=opened + 1)
        node.start()
        node.until(lambda: [event for event in node.events_of(StageTrained) if event.round > opened])
        assert node.stop() == 0
        verify_log(node.paths.events)
        started = node.events_of(NodeStarted)[-1]
        assert started.restored and started.from_round == opened + 1
        seq = node.events().index(started)
        since = {event.round for event in node.events()[seq:] if isinstance(event, StageTrained)}
        assert since and not since & reported
        assert not node.paths.restored.exists()


def test_a_node_that_moved_starts_only_where_it_went(tmp_path: Path) -> None:
    out = tmp_path / "node.tar.gz"
    with fake_node(tmp_path, rounds=0) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        assert node.stop() == 0
        trained = len(node.events_of(StageTrained))
        make_backup(node.paths, out, BackupPlan(PASSPHRASE, for_move=True))
        node.start()
        assert node.wait() == 79
        assert "was moved away" in node.lines()[-1]["message"]
    (tmp_path / "elsewhere").mkdir()
    with fake_node(tmp_path / "elsewhere", rounds=0) as moved:
        restore_backup(out, moved.paths.root, PASSPHRASE, moved=True)
        moved.start()
        moved.until(lambda: len(moved.events_of(StageTrained)) > trained)
        assert moved.stop() == 0
        verify_log(moved.paths.events)
        assert not moved.events_of(NodeStarted)[-1].restored
