"""A log verified in sections, in several processes, comes to what one fold of it comes to."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from swarmd.errors import LogDamaged, ReplayDifference
from swarmd.eventlog.fold import base_upto, bases_of, commits_from, fold_log, node_of, oldest_base
from swarmd.eventlog.offline.parallel import sections_of, verify_parallel
from swarmd.eventlog.offline.replay import CommitDiffers, verify
from swarmd.eventlog.segment import list_segments
from swarmd.eventlog.snapshot import encode_state, list_snapshots, read_snapshot, write_snapshot
from tests.eventlog.recut import recut

pytestmark = pytest.mark.usefixtures("without_sync")

LOG = Path(__file__).parents[2] / "golden" / "hostile" / "events"


@pytest.mark.parametrize("seed", range(3))
def test_sections_from_snapshot_to_snapshot_say_what_one_fold_says(tmp_path: Path, seed: int) -> None:
    assert recut(LOG, tmp_path, seed) >= 4
    sections = sections_of(tmp_path)
    assert [one.end for one in sections[:-1]] == [other.first for other in sections[1:]]
    assert sections[-1].end is None
    parts = [verify(tmp_path, begin=base_upto(tmp_path, each.first), until=each.end) for each in sections]
    whole = verify(tmp_path)
    assert sum(part.events for part in parts) == whole.events
    assert sum(part.commits for part in parts) == whole.commits
    assert sum(part.snapshots for part in parts) == whole.snapshots == len(sections) - 1


def test_processes_beside_each_other_say_what_one_fold_says_and_how_far_they_are(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=1)
    told: list[int] = []
    assert verify_parallel(tmp_path, told=told.append, processes=2) == verify(tmp_path)
    assert sorted(told) == told


def test_of_two_wrong_commits_the_first_is_named_by_whatever_process_found_it(tmp_path: Path) -> None:
    commits = list(commits_from(LOG, oldest_base(LOG)))
    wrong = (len(commits) // 3, len(commits) - 2)
    recut(LOG, tmp_path, seed=2, wrong=wrong)
    with pytest.raises(CommitDiffers) as caught:
        verify_parallel(tmp_path, processes=2)
    assert caught.value.difference.seq == commits[wrong[0]].seq


def test_a_snapshot_that_is_not_the_fold_is_named_though_a_section_begins_there(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=3)
    earlier, later = (read_snapshot(path, node_of(tmp_path)) for path in list_snapshots(tmp_path)[1:3])
    write_snapshot(tmp_path, msgspec.structs.replace(later, state=earlier.state))
    with pytest.raises(ReplayDifference, match=f"the snapshot of seq {later.seq} "):
        verify_parallel(tmp_path, processes=2)


def test_a_segment_that_does_not_follow_on_the_one_before_is_found_at_a_sections_border(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=4)
    before, after = list(pairwise(list_segments(tmp_path)))[1]
    raw = bytearray(before.read_bytes())
    before.write_bytes(bytes(raw[: len(raw) // 2]))
    with pytest.raises(LogDamaged, match=f"{before.name}|{after.name}"):
        verify_parallel(tmp_path, processes=2)


def test_the_base_of_an_event_is_the_latest_snapshot_at_or_before_it_and_its_fold_is_the_same(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=5)
    bases = bases_of(tmp_path)
    states = {applied.seq: applied.before for applied in fold_log(tmp_path)}
    for seq in (0, bases[1] - 1, bases[1], bases[1] + 1, bases[-1], bases[-1] + 1000):
        base = base_upto(tmp_path, seq)
        assert base.seq == max(each for each in bases if each <= seq)
        assert encode_state(base.state) == encode_state(states[base.seq])
