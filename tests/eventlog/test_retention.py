"""Snapshots, and the segments they let go."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.long_log import write_long_log
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, LogForeign, LogInUse, OtherVersion, ReplayDifference
from swarmd.eventlog.fold import base_upto, fold_log, load_state, newest_base, oldest_base
from swarmd.eventlog.frame import RESERVE_BYTES
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import check_log, verify_log
from swarmd.eventlog.segment import SegmentWriter, first_seq_of, list_segments
from swarmd.eventlog.snapshot import Snapshot, encode_state, list_snapshots, read_snapshot, snapshot_seq, write_snapshot
from swarmd.eventlog.store import EventLog, compact_event_log, log_disk_bytes
from swarmd.results.history import read_history
from tests.eventlog.making import ANY_BYTES, NODE, flip, follower_story, open_log, write_story

pytestmark = pytest.mark.usefixtures("without_sync")

SEGMENT_BYTES = 4096


def write_lives(directory: Path, lives: int, bytes_max: int = ANY_BYTES, rounds: int = 20) -> State:
    """The same story told by several lives; the state it comes to."""
    state = State()
    for life in range(lives):
        with open_log(directory, f"run{life}", segment_bytes=SEGMENT_BYTES, bytes_max=bytes_max) as log:
            state = write_story(log, follower_story(rounds), state)
    return state


def test_snapshots_lie_where_segments_begin(tmp_path: Path) -> None:
    state = write_lives(tmp_path, 3)
    firsts = {first_seq_of(path) for path in list_segments(tmp_path)}
    snapshots = list_snapshots(tmp_path)
    assert len(snapshots) >= 3
    assert {snapshot_seq(path) for path in snapshots[:-1]} <= firsts
    loaded, _ = load_state(tmp_path)
    assert encode_state(loaded) == encode_state(state)
    assert newest_base(tmp_path).seq == snapshot_seq(snapshots[-1])
    assert oldest_base(tmp_path).seq == 0


def test_a_log_over_its_budget_sheds_its_oldest_segments_and_still_folds(tmp_path: Path) -> None:
    bounded, whole = tmp_path / "bounded", tmp_path / "whole"
    bytes_max = 20 * SEGMENT_BYTES
    state = write_lives(bounded, 14, bytes_max)
    write_lives(whole, 14)
    first = first_seq_of(list_segments(bounded)[0])
    assert first > 0
    assert log_disk_bytes(bounded) <= bytes_max + 3 * SEGMENT_BYTES < log_disk_bytes(whole)
    assert oldest_base(bounded).seq == first, "a fold starts at the first event that is left"
    assert snapshot_seq(list_snapshots(bounded)[0]) == first
    assert list(read_commits(bounded)) == list(read_commits(whole, first))
    loaded, next_seq = load_state(bounded)
    assert encode_state(loaded) == encode_state(state) == encode_state(load_state(whole)[0])
    assert next_seq == load_state(whole)[1]
    found = verify_log(bounded)
    assert found.from_seq == first and found.snapshots >= 1


def test_without_a_snapshot_nothing_is_shed(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=500, bytes_max=1000) as log:
        for index, event in enumerate(follower_story(20)):
            log.append(float(index), [event], b"")
    assert first_seq_of(list_segments(tmp_path)[0]) == 0
    assert log_disk_bytes(tmp_path) > 1000


def test_a_damaged_snapshot_lets_nothing_go(tmp_path: Path) -> None:
    write_lives(tmp_path, 3)
    for path in list_snapshots(tmp_path):
        flip(path, -1)
    before = list_segments(tmp_path)
    with open_log(tmp_path, "next", segment_bytes=SEGMENT_BYTES, bytes_max=1) as log:
        log.append(0.0, follower_story(1)[:1], b"")
    assert list_segments(tmp_path)[: len(before)] == before


def test_a_damaged_snapshot_is_passed_over_while_the_log_is_whole(tmp_path: Path) -> None:
    state = write_lives(tmp_path, 2)
    newest = list_snapshots(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    assert encode_state(load_state(tmp_path)[0]) == encode_state(state)
    with pytest.raises(LogDamaged, match=f"{newest.name} is damaged.*digest is wrong"):
        read_snapshot(newest, NODE)


def test_a_log_whose_oldest_snapshot_is_damaged_is_read_from_the_next_one(tmp_path: Path) -> None:
    """The node goes on from the newest; what shows its past shows what can be folded, and verifying names the file."""
    state = write_lives(tmp_path, 14, 20 * SEGMENT_BYTES)
    oldest, later = list_snapshots(tmp_path)[:2]
    oldest.write_bytes(oldest.read_bytes()[:-3])
    assert oldest_base(tmp_path).seq == base_upto(tmp_path, snapshot_seq(later) + 1).seq == snapshot_seq(later)
    *_, last = fold_log(tmp_path)
    assert encode_state(last.after) == encode_state(state)
    for attempt in (verify_log, check_log):
        with pytest.raises(LogDamaged, match=f"{oldest.name} is damaged.*Delete it"):
            attempt(tmp_path)


def test_a_log_whose_beginning_is_gone_is_refused(tmp_path: Path) -> None:
    write_lives(tmp_path, 2)
    for path in list_snapshots(tmp_path):
        path.unlink()
    list_segments(tmp_path)[0].unlink()
    for attempt in (load_state, verify_log):
        with pytest.raises(LogDamaged, match="no snapshot holds the state before it"):
            attempt(tmp_path)


def test_a_snapshot_that_the_fold_does_not_give_is_a_difference(tmp_path: Path) -> None:
    write_lives(tmp_path, 2)
    path = list_snapshots(tmp_path)[0]
    snapshot = read_snapshot(path, NODE)
    wrong = msgspec.structs.replace(snapshot, state=msgspec.structs.replace(snapshot.state, rounds_joined=999))
    write_snapshot(tmp_path, wrong)
    with pytest.raises(ReplayDifference, match=f"snapshot of seq {snapshot.seq}"):
        verify_log(tmp_path)


def test_a_log_that_ends_before_its_snapshot_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        state = write_story(log, follower_story(), State())
        path = log.write_snapshot(state)
    assert verify_log(tmp_path).snapshots == 1, "a snapshot at the very end is compared too"
    segment = list_segments(tmp_path)[-1]
    segment.write_bytes(content := segment.read_bytes()[:-1])
    for attempt in (load_state, check_log, lambda place: open_log(place, "next")):
        with pytest.raises(LogDamaged, match=f"before its snapshot {path.name}: events are missing"):
            attempt(tmp_path)
    assert segment.read_bytes() == content, "nothing is cut when the log is refused"


def test_a_snapshot_says_whose_it_is_and_under_which_rules(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, Snapshot(NODE, "run", 5, RULES, State(run="a")))
    assert read_snapshot(path, NODE).state == State(run="a")
    with pytest.raises(LogForeign, match="of node 12D3KooWAlice, not of bob"):
        read_snapshot(path, "bob")
    with pytest.raises(OtherVersion, match=f"rules {RULES + 1}"):
        write_snapshot(tmp_path, Snapshot(NODE, "run", 5, RULES + 1, State(run="a")))


def test_a_snapshot_with_a_chart_state_that_no_chart_has_is_refused_by_type(tmp_path: Path) -> None:
    unknown: Any = "hibernating"
    with pytest.raises(OtherVersion, match=r"hibernating.*Use the swarmd that wrote it"):
        write_snapshot(tmp_path, Snapshot(NODE, "run", 5, RULES, State(run="a", chart=unknown)))
    assert not list_snapshots(tmp_path), "what does not read back is no beginning for a fold"


def test_a_snapshot_under_another_ones_name_is_refused(tmp_path: Path) -> None:
    """A fold that begins there would take the events between the two for done."""
    path = write_snapshot(tmp_path, Snapshot(NODE, "run", 5, RULES, State(run="a")))
    path.rename(other := path.with_name(f"{7:020d}.snap"))
    with pytest.raises(LogDamaged, match="of seq 5"):
        read_snapshot(other, NODE)


def test_no_flipped_bit_in_a_snapshot_goes_unnoticed(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, Snapshot(NODE, "run", 5, RULES, State(run="a")))
    content = path.read_bytes()
    for bit in (8 * byte + byte % 8 for byte in range(len(content))):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(LogDamaged):
            read_snapshot(path, NODE)


@pytest.mark.parametrize(
    ("events", "segment_bytes", "bytes_max"),
    [pytest.param(12_000, 200_000, 800_000), pytest.param(1_500_000, 16 * 2**20, 64 * 2**20, marks=pytest.mark.soak)],
)
def test_a_long_life_stays_within_its_budget_and_goes_on_from_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int, segment_bytes: int, bytes_max: int
) -> None:
    largest, written = 0, 0

    def begin(log: EventLog) -> SegmentWriter:
        nonlocal largest
        segment = begin_segment(log)
        largest = max(largest, log_disk_bytes(tmp_path))
        return segment

    def append(segment: SegmentWriter, payload: bytes) -> None:
        nonlocal written
        written += len(payload)
        append_payload(segment, payload)

    begin_segment, append_payload = EventLog._begin_segment, SegmentWriter.append
    monkeypatch.setattr(EventLog, "_begin_segment", begin)
    monkeypatch.setattr(SegmentWriter, "append", append)
    last = write_long_log(tmp_path, events, segment_bytes=segment_bytes, bytes_max=bytes_max)
    assert written > 3 * bytes_max
    assert largest <= bytes_max + segment_bytes + RESERVE_BYTES
    assert oldest_base(tmp_path).seq > events // 3
    assert verify_log(tmp_path).from_seq == oldest_base(tmp_path).seq
    state, _ = load_state(tmp_path)
    assert state.clock is not None and state.clock.round == last
    history = read_history(tmp_path)
    assert history.from_seq == oldest_base(tmp_path).seq
    assert [stage.round for stage in history.stages] == list(range(history.stages[0].round, last))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with open_log(tmp_path / "events", segment_bytes=600) as log:
        write_story(log, follower_story(12), State())
    return tmp_path / "events"


def test_the_state_stays_and_the_log_goes_on(log: Path) -> None:
    before = load_state(log)
    count = len(list_segments(log))
    done = compact_event_log(log)
    assert load_state(log) == before
    assert done.segments == count - 1 and done.after_bytes < done.before_bytes
    check_log(log)
    verify_log(log)
    with open_log(log, "later") as later:
        write_story(later, follower_story(1)[:1], before[0])
    verify_log(log)


def test_no_more_goes_than_was_asked_for(log: Path) -> None:
    whole = compact_event_log(log, 1 << 30)
    assert whole.segments == 0
    some = compact_event_log(log, whole.after_bytes - 5000)
    assert 0 < some.segments < len(list_segments(log)) + some.segments - 1
    assert some.after_bytes <= whole.after_bytes - 5000


def test_a_running_node_is_left_alone(log: Path) -> None:
    with open_log(log, "running"), pytest.raises(LogInUse):
        compact_event_log(log)
