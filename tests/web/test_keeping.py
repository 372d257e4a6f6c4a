"""A page that goes on from what an earlier one has kept shows what a page shows that has read the whole log."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.core.applied import AppliedEvent
from swarmd.core.events import MemberSeen
from swarmd.errors import LogDamaged
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import FoldBase, oldest_base, peer_id_of_log
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.store import remove_old_segments
from swarmd.eventlog.summaries import bookmark_path, read_bookmark, write_bookmark
from swarmd.observe.metrics import Metrics
from swarmd.web import history as history_module
from swarmd.web.reading import LogReading
from swarmd.web.swarm import ViewContext, swarm_view
from tests.eventlog.making import flip
from tests.eventlog.recut import recut
from tests.web.page.played import PlayedNode
from tests.web.serving import CHAIN, COORDINATOR, FOLLOWER, served, until

pytestmark = pytest.mark.usefixtures("without_sync")

SOURCES = [COORDINATOR, FOLLOWER, CHAIN]
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")


@pytest.fixture(autouse=True)
def short_logs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "WORTH_EVENTS", 1)


class Noted:
    """A follower that notes what it was given."""

    def __init__(self) -> None:
        self.begun_at: int | None = None
        self.resumed = False
        self.events = 0

    def restart(self, base: FoldBase) -> None:
        self.begun_at = base.seq

    def apply(self, applied: AppliedEvent) -> None:
        self.events += 1

    def encode(self) -> bytes:
        return b"noted"

    def restore(self, kept: bytes | memoryview) -> None:
        self.resumed = bytes(kept) == b"noted"


class Page:
    """A reading of a log to its end, as a page makes it."""

    def __init__(self, log: Path) -> None:
        self.metrics = Metrics(clock=lambda: 0.0)
        self.noted = Noted()
        others = (self.metrics, self.noted)
        self.reading = LogReading(log, BlobStore(log.parent / "blobs"), lambda batch: None, others)

    def __enter__(self) -> Page:
        self.reading.tail.start()
        assert self.reading.tail.caught_up.wait(20.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.tail.stop()

    @property
    def resumed(self) -> bool:
        """Whether it went on from what was kept, and from nothing else."""
        return self.noted.resumed and self.noted.begun_at is None

    @property
    def anew(self) -> str:
        assert self.reading.keeping is not None
        return self.reading.keeping.anew

    def figures(self) -> dict[str, Any]:
        """All that it shows."""
        reading, history = self.reading, self.reading.history
        around = ViewContext("", history.at, history.first_seq, ())
        seqs = [*range(history.first_seq, history.next_seq, 41), history.next_seq - 1]
        return {
            "state": history.state,
            "place": (history.next_seq, history.at, history.first_seq),
            "swarm": swarm_view(history.state, reading.ledger, around, 1000),
            "curves": {peer: account.curve() for peer, account in reading.ledger.accounts.items()},
            "on chain": (list(reading.ledger._on_chain), list(reading.ledger.votes)),
            "stages": reading.stages.view(),
            "trained": reading.trained.view(),
            "overview": reading.timeline.overview(None, None, 64, history.first_seq),
            "openings": [reading.timeline.find_round_opening(round_) for round_ in range(40)],
            "gossip": reading.feed.latest(-1),
            "story": [reading.stories.story(round_, None) for round_ in range(0, 12, 3)],
            "moments": [history.fold_event(seq) for seq in seqs],
            "metrics": self.metrics.render(None),
        }


def figures_of(log: Path) -> dict[str, Any]:
    """What a page shows that reads all of a log."""
    bookmark_path(log, history_module.KIND).unlink(missing_ok=True)
    with Page(log) as page:
        assert not page.resumed
        return page.figures()


@each_source
@pytest.mark.parametrize("seed", range(2))
def test_a_log_that_grew_since_is_read_from_there_on_and_shows_the_same(
    tmp_path: Path, source: Path, seed: int
) -> None:
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    recut(source / "events", whole, seed)
    grown.mkdir()
    segments = list_segments(whole)
    for number, segment in enumerate(segments):
        shutil.copy(segment, grown)
        with Page(grown) as page:
            assert page.resumed == (number > 0)
            assert page.reading.history.next_seq > first_seq_of(segment)
            figures = page.figures()
    assert len(segments) >= 4
    assert figures == figures_of(whole)


@each_source
def test_it_is_kept_in_the_midst_of_a_segment_too(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(source / "events", tmp_path / "log")
    monkeypatch.setattr(history_module, "WORTH_EVENTS", 10**9)
    monkeypatch.setattr(history_module, "KEEP_EVENTS", 60)
    with Page(tmp_path / "log") as page:
        expected = page.figures()
    place = read_bookmark(tmp_path / "log", history_module.KIND, history_module.VERSION)
    assert place is not None and 60 <= place[0].seq < page.reading.history.next_seq
    assert place[0].seq not in {first_seq_of(path) for path in list_segments(tmp_path / "log")}
    with Page(tmp_path / "log") as page:
        assert page.resumed
        assert page.figures() == expected


def test_what_comes_later_is_followed(tmp_path: Path) -> None:
    node = PlayedNode(tmp_path, 1_800_000_000.0)
    node.play(2)
    with Page(tmp_path / "events"):
        pass
    with Page(tmp_path / "events") as page:
        assert page.resumed
        node.tell(MemberSeen("late", "a late one"))
        until(lambda: page.noted.events == 1)
        assert page.reading.ledger.accounts["late"].name == "a late one"
    node.close()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def of_another_log(path: Path) -> None:
    """Of a log of the same node with the same segments, but for one event's time."""
    other = path.parent.parent.parent / "other"
    recut(COORDINATOR / "events", other, seed=1, later_s=1.0)
    with Page(other):
        shutil.copy(bookmark_path(other, history_module.KIND), path)


def of_another_version(path: Path) -> None:
    log = path.parent.parent
    found = read_bookmark(log, history_module.KIND, history_module.VERSION)
    assert found is not None
    write_bookmark(log, history_module.KIND, "0.1, rules 1, form 1", found[0], [bytes(part) for part in found[1]])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flip, "it is damaged"),
        (cut, "it is damaged"),
        (of_another_log, "it is of another log"),
        (of_another_version, "it is of swarmd 0.1, rules 1"),
    ],
)
def test_what_does_not_fit_is_said_and_made_anew(
    tmp_path: Path, spoil: Callable[[Path], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    recut(COORDINATOR / "events", log, seed=1)
    expected = figures_of(log)
    path = bookmark_path(log, history_module.KIND)
    sound = path.read_bytes()
    spoil(path)
    with caplog.at_level(logging.WARNING), Page(log) as page:
        assert page.noted.begun_at == 0
        assert page.anew.startswith(why) and why in caplog.text
        assert page.figures() == expected
    assert path.read_bytes() == sound
    with Page(log) as page:
        assert page.resumed and not page.anew


def test_what_a_node_did_is_not_known_before_its_log_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first part of a log it would be "nothing was trained since the daemon started"."""
    shutil.copytree(COORDINATOR / "events", tmp_path / "events")
    with served(tmp_path) as server:
        running = msgspec.structs.replace(server.node._fresh_status(), source="daemon", at=time.time())
        monkeypatch.setattr(server.node, "_fresh_status", lambda: running)
        monkeypatch.setattr(type(server.node._reading.tail), "share_read", 0.25)
        assert server.json("/livez")["ok"]
        assert server.json("/productivez", 503)["reasons"] == ["its log is being read: 25% so far"]


def test_a_log_that_lost_its_end_is_read_anew(tmp_path: Path) -> None:
    """As a power cut leaves one of which a page had read more than was durable."""
    shutil.copytree(COORDINATOR / "events", tmp_path / "log")
    with Page(tmp_path / "log"):
        pass
    last = list_segments(tmp_path / "log")[-1]
    last.write_bytes(last.read_bytes().rstrip(b"\0")[:-3])
    with Page(tmp_path / "log") as page:
        assert page.noted.begun_at == 0 and page.anew.startswith("it is of another log")
        assert page.reading.history.next_seq < page.noted.events + 2


def test_whoever_is_killed_while_it_reads_or_writes_loses_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recut(COORDINATOR / "events", tmp_path, seed=1)
    expected = figures_of(tmp_path)
    path = bookmark_path(tmp_path, history_module.KIND)
    path.unlink()
    monkeypatch.setattr(history_module, "KEEP_EVENTS", 9)
    stages = []
    for _ in range(12):  # each is stopped behind the first commit after it has kept something
        page = Page(tmp_path)
        kept_before = path.read_bytes() if path.exists() else b""
        keep, tail = page.reading.keeping, page.reading.tail
        assert keep is not None
        monkeypatch.setattr(keep, "save_at_first_end", lambda: None)
        monkeypatch.setattr(keep, "_save", lambda write=keep._save, tail=tail: (write(), tail.stopping.set()))
        tail.start()
        tail._thread.join(20.0)
        (path.parent / f"{path.name}.{os.getpid()}.1.tmp").write_bytes(b"half of it")
        stages.append(page.noted.events)
        if path.read_bytes() == kept_before:
            break
    assert len(stages) > 3 and sum(stages) <= expected["place"][0]
    monkeypatch.undo()
    with Page(tmp_path) as page:
        assert page.resumed and page.figures() == expected


def test_of_a_log_that_was_shortened_meanwhile_the_rest_is_shown(tmp_path: Path) -> None:
    recut(COORDINATOR / "events", tmp_path, seed=2)
    with Page(tmp_path) as page:
        expected = page.figures()
    remove_old_segments(
        tmp_path, peer_id_of_log(tmp_path), bytes_max=sum(path.stat().st_size for path in list_segments(tmp_path))
    )
    first = oldest_base(tmp_path).seq
    assert first > 0
    with Page(tmp_path) as page:
        assert page.resumed and page.reading.history.first_seq == first
        assert page.reading.stages.view() == expected["stages"]
        assert page.reading.history.fold_event(first).seq == first


def test_where_nothing_can_be_written_it_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recut(COORDINATOR / "events", tmp_path, seed=1)
    (tmp_path / "summaries").write_bytes(b"no directory")
    with caplog.at_level(logging.WARNING), Page(tmp_path) as page:
        keeping = page.reading.keeping
        assert keeping is not None
        keeping._save()
        assert page.reading.tail.trouble is None
    assert caplog.text.count("will take longer to read it") == 1


def test_a_log_of_which_nothing_can_be_kept_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noted, "encode", lambda self: msgspec.msgpack.encode(2**64))  # a sum that is too great
    log = Path(shutil.copytree(CHAIN / "events", tmp_path / "events"))
    with Page(log) as page:
        assert page.reading.tail.trouble is None
        assert page.reading.history.next_seq == page.noted.events > 150


def test_short_logs_and_archives_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recut(COORDINATOR / "events", tmp_path / "log", seed=1)
    archive = LogReading(tmp_path / "log", BlobStore(tmp_path), lambda batch: None, grows=False)
    archive.tail.start()
    assert archive.tail.caught_up.wait(20.0)
    monkeypatch.undo()
    with Page(tmp_path / "log"):
        pass
    assert not (tmp_path / "log" / "summaries").exists()


def test_a_state_that_was_kept_is_unpacked_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "KEYFRAME_EVENTS", 16)
    log = Path(shutil.copytree(FOLLOWER / "events", tmp_path / "log"))
    with Page(log):
        pass
    monkeypatch.setattr(history_module, "STATE_BYTES_MAX", 16)
    with Page(log) as page, pytest.raises(LogDamaged, match=r"page\.sum"):
        assert page.resumed
        page.reading.history.fold_event(page.reading.history.next_seq - 1)
