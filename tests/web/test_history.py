"""The way back into a log: from anywhere, in bounded memory, while it grows, is pruned, or is damaged."""

import errno
import os
import shutil
import threading
from io import FileIO
from pathlib import Path

import msgspec
import pytest

from swarmd.cli.explain import story_of_round
from swarmd.core.events import MemberSeen
from swarmd.core.state import State
from swarmd.errors import ChartError
from swarmd.eventlog.fold import FoldBase, commits_from, fold_commits, oldest_base
from swarmd.eventlog.segment import first_seq_of, list_segments, read_header
from swarmd.web import history as history_module
from swarmd.web import reading as reading_module
from swarmd.web.history import LogHistory, find_first_seq, read_commits_from
from swarmd.web.reading import LogTail
from swarmd.web.shapes import EventPage, Moment
from tests.core.story import Story, coordinator_settings
from tests.eventlog.making import follower_story, open_log, write_story
from tests.web.serving import CHAIN, COORDINATOR, CRASH, FOLLOWER, Listener, copy_of, served, told, until


def filled(events: Path) -> LogHistory:
    """A history that has read a log."""
    history = LogHistory(events)
    history.restart(oldest_base(events))
    for commit, end in read_commits_from(events, None, history.next_seq):
        if commit.end_seq > history.next_seq:
            history.apply(commit, end)
    return history


def long_story(members: int = 900) -> Story:
    """A coordinator that meets many."""
    story = Story.joined(coordinator_settings(min_peers=members + 1))
    story.tell(*[MemberSeen(f"peer{number:04d}", f"name {number}") for number in range(members)])
    return story


@pytest.mark.parametrize("distance", [1, 7, 64, 10_000])
def test_any_event_is_folded_from_the_nearest_keyframe(distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "KEYFRAME_EVENTS", distance)
    events = CHAIN / "events"
    history = filled(events)
    wanted = list(fold_commits(commits_from(events, oldest_base(events))))
    for seq in (0, 1, 26, 100, len(wanted) - 2, len(wanted) - 1):
        assert history.fold_events(seq, 3) == wanted[seq : seq + 3]
        assert history.fold_event(seq) == wanted[seq]
    assert history.state == wanted[-1].after
    assert history.fold_events(len(wanted), 5) == []


def test_keyframes_stay_within_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "KEYFRAME_EVENTS", 8)
    monkeypatch.setattr(history_module, "KEYFRAME_BYTES_MAX", 40_000)
    story = long_story()
    with open_log(tmp_path / "events") as log:
        write_story(log, story.recorded, State(), group=8)
    history = filled(tmp_path / "events")
    assert sum(len(keyframe.packed) for keyframe in history._keyframes.kept) <= 40_000
    assert history._keyframes.distance > 8
    wanted = list(fold_commits(commits_from(tmp_path / "events", oldest_base(tmp_path / "events"))))
    for seq in range(0, len(wanted), 97):
        assert history.fold_event(seq) == wanted[seq]


# --- a log that changes under the server ---


def test_what_is_appended_is_shown_and_new_segments_are_followed(tmp_path: Path) -> None:
    events = follower_story(4)
    with open_log(tmp_path / "events") as log:
        state = write_story(log, events[:6], State(), group=1)
        with served(tmp_path) as server:
            assert server.json("/api/v1/node/events")["end"] == 6
            state = write_story(log, events[6:12], state, group=2)
            until(lambda: server.json("/api/v1/node/events")["end"] == 12)
            log.close()
            with open_log(tmp_path / "events", "another life") as later:
                write_story(later, events[12:], state, group=1)
                until(lambda: server.json("/api/v1/node/events")["end"] == len(events))
    assert len(list_segments(tmp_path / "events")) == 2


def test_a_segment_that_was_seen_before_its_first_commit_is_followed(tmp_path: Path) -> None:
    events = follower_story(2)
    with open_log(tmp_path / "events") as log:
        state = write_story(log, events[:6], State(), group=1)
    with open_log(tmp_path / "events", "another life") as later:
        write_story(later, events[6:], state, group=1)
    _, segment = list_segments(tmp_path / "events")
    whole = segment.read_bytes()
    with FileIO(segment, "r+") as file:
        begin = read_header(file, segment).size_bytes
        os.pwrite(file.fileno(), bytes(len(whole) - begin), begin)
        history = LogHistory(tmp_path / "events")
        history.restart(FoldBase())
        tail = LogTail(history, lambda batch: None)
        for written, end in ((begin, 6), (len(whole), len(events))):
            os.pwrite(file.fileno(), whole[begin:written], begin)
            assert tail._check_for_more()
            tail._read_new_commits()
            assert history.next_seq == end
        assert not tail._check_for_more()


def pruned_log(directory: Path) -> list[int]:
    """A log of several segments with snapshots; the first event of each segment."""
    story = follower_story(100)
    with open_log(directory / "events", segment_bytes=4096) as log:
        write_story(log, story, State(), group=4)
    return [first_seq_of(path) for path in list_segments(directory / "events")]


def test_a_log_that_begins_late_is_shown_from_there(tmp_path: Path) -> None:
    firsts = pruned_log(tmp_path)
    base = _prune(tmp_path / "events", keep=3)
    assert firsts[0] == 0 < base
    with served(tmp_path) as server:
        page = msgspec.json.decode(server.get("/api/v1/node/events?first=0&count=3").content, type=EventPage)
        assert page.begin == base and page.events[0].seq == base
        assert server.json(f"/api/v1/node/moments/{base - 1}", 404)["message"].startswith(
            f"the log begins at {'event'}"
        )
        assert f"begins at event {base}" in " ".join(server.json("/api/v1/swarm")["notes"])
        assert server.json("/api/v1/node/overview")["begin"] == base


def test_a_log_that_is_pruned_under_the_server_is_shown_from_its_new_beginning(tmp_path: Path) -> None:
    pruned_log(tmp_path)
    with served(tmp_path) as server:
        assert server.json("/api/v1/node/events?first=0")["begin"] == 0
        end = server.json("/api/v1/node/events")["end"]
        base = _prune(tmp_path / "events", keep=3)
        assert until(lambda: server.get("/api/v1/node/events?first=0").json().get("begin") == base)
        for seq in (base, base + 1, end - 1):
            moment = msgspec.json.decode(server.get(f"/api/v1/node/moments/{seq}").content, type=Moment)
            assert moment.event.seq == seq
        assert server.get(f"/api/v1/node/moments/{base - 5}").status_code == 404
        assert server.json("/api/v1/node/overview")["begin"] == base
        assert 0 < find_first_seq(tmp_path / "events") <= base


def _prune(events: Path, keep: int) -> int:
    """Remove the oldest segments that a snapshot stands in for; the log's new beginning."""
    from swarmd.eventlog.store import remove_old_segments
    from tests.eventlog.making import NODE

    sizes = [path.stat().st_size for path in list_segments(events)[-keep:]]
    assert remove_old_segments(events, NODE, sum(sizes))
    return oldest_base(events).seq


# --- damage ---


def damaged(directory: Path, at_end: bool = False) -> Path:
    """A log with a broken byte in its middle."""
    copy_of(COORDINATOR, directory)
    segment = list_segments(directory / "events")[0]
    content = bytearray(segment.read_bytes())
    content[len(content.rstrip(b"\0")) // 2] ^= 0xFF
    segment.write_bytes(content)
    return directory


def test_a_damaged_log_is_shown_up_to_the_damage_and_the_damage_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "SUSPECT_POLLS", 2)
    with served(damaged(tmp_path)) as server:
        until(lambda: server.json("/api/v1/here")["trouble"])
        here = server.json("/api/v1/here")
        assert "damaged" in here["trouble"] and ".seg" in here["trouble"]
        view = server.json("/api/v1/swarm")
        assert any("cannot be read to its end" in note for note in view["notes"])
        end = server.json("/api/v1/node/events?first=0")["end"]
        assert 0 < end < 100
        assert server.get(f"/api/v1/node/moments/{end - 1}").status_code == 200
        assert server.get("/api/v1/node/status").status_code == 200


def test_a_segment_that_is_missing_in_the_middle_is_damage(tmp_path: Path) -> None:
    copy_of(CRASH, tmp_path)
    list_segments(tmp_path / "events")[1].unlink()
    with served(tmp_path) as server:
        assert "is expected" in until(lambda: server.json("/api/v1/here")["trouble"])


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "Input/output error"), ChartError("no such move"), KeyError("x")])
def test_whatever_keeps_the_log_from_being_read_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(reading_module, "AGAIN_S", 0.05)
    broken = threading.Event()
    broken.set()
    begin = reading_module.find_first_seq

    def faulty(directory: Path) -> int:
        if broken.is_set():
            raise fault
        return begin(directory)

    monkeypatch.setattr(reading_module, "find_first_seq", faulty)
    with served(copy_of(COORDINATOR, tmp_path)) as server:
        assert until(lambda: server.json("/api/v1/here")["trouble"])
        broken.clear()
        until(lambda: server.json("/api/v1/here")["trouble"] == "" and server.json("/api/v1/swarm")["round"] >= 0)


def test_a_directory_that_goes_away_is_told(tmp_path: Path) -> None:
    copy_of(COORDINATOR, tmp_path)
    with served(tmp_path) as server:
        shutil.rmtree(tmp_path / "events")
        assert until(lambda: server.json("/api/v1/here")["trouble"])
        assert server.json("/api/v1/node/status", 503)["detail"] == "unavailable"
        assert server.get("/api/v1/node/moments/3").status_code in (404, 503)


@pytest.mark.parametrize("other", [CHAIN, FOLLOWER, None], ids=["chain", "follower", "its own beginning"])
def test_another_log_in_the_place_of_the_one_that_was_read_is_shown_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Path | None
) -> None:
    monkeypatch.setattr(reading_module, "AGAIN_S", 0.02)
    restored = tmp_path / "restored"
    copy_of(other, restored) if other else told(restored, follower_story(2))
    end = filled(restored / "events").next_seq
    (story,) = story_of_round(restored, 4)
    with served(told(tmp_path / "node", follower_story(6))) as server:
        assert server.json("/api/v1/node/rounds/4")["verdict"] != story.verdict
        listener = Listener(server)
        (tmp_path / "node" / "events").rename(tmp_path / "before")
        (restored / "events").rename(tmp_path / "node" / "events")
        until(lambda: server.json("/api/v1/node/events")["end"] == end)
        until(lambda: server.json("/api/v1/here")["trouble"] == "")
        assert server.json("/api/v1/node/rounds/4")["verdict"] == story.verdict
        assert listener.ended.wait(20.0), "who listens has events of the other log, and is to come again"
