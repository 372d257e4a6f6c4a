"""The fold gives back the state; a changed digest, a changed core and other charts are named where they first tell."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from swarmd.core.commands import Command
from swarmd.core.events import Envelope, tag_of
from swarmd.core.state import State
from swarmd.core.step import StateFold, step
from swarmd.errors import LogDamaged, ReplayDifference
from swarmd.eventlog.fold import (
    apply_commit,
    base_upto,
    commits_from,
    fold_commits,
    fold_log,
    load_state,
    oldest_base,
    peer_id_of_log,
)
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import CommitDiffers, verify_log
from swarmd.eventlog.segment import list_segments
from swarmd.eventlog.snapshot import encode_state, list_snapshots, read_snapshot, snapshot_seq, write_snapshot
from tests.core.story import gathered
from tests.eventlog.making import coordinator_story, follower_story, open_log, write_groups, write_story
from tests.eventlog.recut import recut

pytestmark = pytest.mark.usefixtures("without_sync")


@pytest.mark.parametrize("story", [follower_story, coordinator_story])
@pytest.mark.parametrize("group", [1, 3, 64])
def test_a_log_folds_to_the_state_the_node_had(tmp_path: Path, story, group: int) -> None:
    events = story()
    with open_log(tmp_path) as log:
        state = write_story(log, events, State(), group)
    loaded, next_seq = load_state(tmp_path)
    assert (encode_state(loaded), next_seq) == (encode_state(state), len(events))
    found = verify_log(tmp_path)
    assert (found.events, found.commits) == (len(events), -(-len(events) // group))


def test_the_fold_shows_each_event_between_its_states(tmp_path: Path) -> None:
    events = follower_story()
    with open_log(tmp_path) as log:
        write_story(log, events, State())
    state = State()
    for seq, applied in enumerate(fold_commits(read_commits(tmp_path))):
        assert (applied.seq, applied.event, applied.before) == (seq, events[seq], state)
        state, commands = step(state, Envelope(seq, applied.at, events[seq]))
        assert (applied.after, applied.commands) == (state, commands)
    assert state.done == (2, 0)


def test_a_log_goes_on_over_lives(tmp_path: Path) -> None:
    state = State()
    for life in range(3):
        with open_log(tmp_path, f"run{life}") as log:
            before, next_seq = load_state(tmp_path)
            assert (encode_state(before), next_seq) == (encode_state(state), log.next_seq)
            state = write_story(log, follower_story(), before)
    assert verify_log(tmp_path).events == 3 * len(follower_story())


def test_a_changed_core_is_found_at_its_first_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that forgets the first command of a gathering."""
    events = follower_story()
    with open_log(tmp_path) as log:
        write_story(log, events, State(), group=1)
    first = events.index(gathered(1))

    class Forgetful(StateFold):
        def apply(self, envelope: Envelope) -> tuple[Command, ...]:
            commands = super().apply(envelope)
            return commands[1:] if tag_of(envelope.event) == "rollouts_gathered" else commands

    monkeypatch.setattr("swarmd.eventlog.replay.StateFold", Forgetful)
    with pytest.raises(CommitDiffers) as caught:
        verify_log(tmp_path)
    assert caught.value.difference.seq == first


def test_a_group_causes_what_its_events_cause_one_by_one(tmp_path: Path) -> None:
    commits = write_groups(tmp_path, [follower_story()])
    together = StateFold()
    commands = apply_commit(together, commits[0])
    one_by_one = list(fold_commits(commits))
    assert together.state == one_by_one[-1].after
    assert commands == tuple(command for applied in one_by_one for command in applied.commands)


LOG = Path(__file__).parents[1] / "golden" / "hostile" / "events"


def test_of_two_wrong_commits_the_first_is_named(tmp_path: Path) -> None:
    commits = list(commits_from(LOG, oldest_base(LOG)))
    wrong = (len(commits) // 3, len(commits) - 2)
    recut(LOG, tmp_path, seed=2, wrong=wrong)
    with pytest.raises(CommitDiffers) as caught:
        verify_log(tmp_path)
    assert caught.value.difference.seq == commits[wrong[0]].seq


def test_a_snapshot_that_is_not_the_fold_is_named(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=3)
    earlier, later = (read_snapshot(path, peer_id_of_log(tmp_path)) for path in list_snapshots(tmp_path)[1:3])
    write_snapshot(tmp_path, msgspec.structs.replace(later, state=earlier.state))
    with pytest.raises(ReplayDifference, match=f"the snapshot of seq {later.seq} "):
        verify_log(tmp_path)


def test_a_segment_that_does_not_follow_on_the_one_before_is_found(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=4)
    before, after = list(pairwise(list_segments(tmp_path)))[1]
    raw = bytearray(before.read_bytes())
    before.write_bytes(bytes(raw[: len(raw) // 2]))
    with pytest.raises(LogDamaged, match=f"{before.name}|{after.name}"):
        verify_log(tmp_path)


def test_the_base_of_an_event_is_the_latest_snapshot_at_or_before_it_and_its_fold_is_the_same(tmp_path: Path) -> None:
    recut(LOG, tmp_path, seed=5)
    bases = [0, *map(snapshot_seq, list_snapshots(tmp_path))]
    states = {applied.seq: applied.before for applied in fold_log(tmp_path)}
    for seq in (0, bases[1] - 1, bases[1], bases[1] + 1, bases[-1], bases[-1] + 1000):
        base = base_upto(tmp_path, seq)
        assert base.seq == max(each for each in bases if each <= seq)
        assert encode_state(base.state) == encode_state(states[base.seq])
