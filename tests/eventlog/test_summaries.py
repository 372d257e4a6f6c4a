"""What is gathered with a summary of an earlier reading is what a reading of the whole log gathers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.cli.leaderboard import BOARDS, CHAIN, board_of_log, read_boards
from swarmd.errors import LogDamaged, NotFoundError
from swarmd.eventlog import summaries
from swarmd.eventlog.fold import peer_id_of_log
from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.segment import LogPosition, list_segments
from swarmd.eventlog.store import remove_old_segments
from swarmd.eventlog.summaries import read_bookmark, write_bookmark
from swarmd.results.history import KIND as HISTORY
from swarmd.results.history import read_history
from tests.eventlog.making import flip
from tests.eventlog.recut import recut

pytestmark = pytest.mark.usefixtures("without_sync")

GOLDEN = Path(__file__).parent.parent / "golden"
COORDINATOR = GOLDEN / "coordinator/events"
WITH_PROBLEMS = GOLDEN / "hostile/events"
CHAINED = GOLDEN / "chain/events"
READERS: list[tuple[str, Path, Callable[[Path], object]]] = [
    ("history", COORDINATOR, read_history),
    ("leaderboard", COORDINATOR, read_boards),
    ("leaderboard", WITH_PROBLEMS, read_boards),
    ("chain", CHAINED, lambda log: board_of_log(log, "reward", 2)),
]
each_reader = pytest.mark.parametrize(("kind", "source", "read"), READERS)


@pytest.fixture(autouse=True)
def short_logs_have_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "WORTH_BYTES", 1)


@each_reader
@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_grew_since_is_read_from_the_summary_on_and_gives_the_same(
    tmp_path: Path, kind: str, source: Path, read, seed: int
) -> None:
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    recut(source, whole, seed)
    shutil.copytree(source, tmp_path / "source", ignore=shutil.ignore_patterns("summaries"))
    expected = read(tmp_path / "source")
    grown.mkdir()
    path = grown / "summaries" / f"{kind}.sum"
    kept = []
    for segment in list_segments(whole)[:-1]:
        shutil.copy(segment, grown)
        with_summary = _told(read, grown)
        kept.append(path.read_bytes() if path.exists() else b"")
        shutil.rmtree(grown / "summaries", ignore_errors=True)
        assert _told(read, grown) == with_summary
        if kept[-1]:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(kept[-1])
    shutil.copy(list_segments(whole)[-1], grown)
    assert len(set(kept)) >= 3, "it goes on with the log"
    assert read(grown) == expected


def _told(read: Callable[[Path], object], log: Path) -> object:
    """What a reader says of a log that may be too short to say anything."""
    try:
        return read(log)
    except NotFoundError as error:
        return error.message


@each_reader
def test_what_a_summary_covers_is_not_read_again(tmp_path: Path, kind: str, source: Path, read) -> None:
    recut(source, tmp_path, seed=1)
    expected = read(tmp_path)
    for segment in list_segments(tmp_path)[1:-1]:
        segment.write_bytes(b"gone")
    assert read(tmp_path) == expected


@each_reader
def test_what_follows_on_another_log_does_not_follow_on_a_summary(
    tmp_path: Path, kind: str, source: Path, read
) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    recut(source, log, seed=1)
    recut(source, other, seed=1, later_s=1.0)
    *_, last = list_segments(log)
    last.unlink()
    read(log)
    shutil.copy(other / last.name, last)
    with pytest.raises(LogDamaged, match="not the one that it was written after"):
        read(log)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def of_another_log(path: Path) -> None:
    """Of a log of the same node with the same segments, but for one event's time."""
    other = path.parent.parent.parent / "other"
    recut(SOURCES[path.stem], other, seed=1, later_s=1.0)
    _READ[path.stem](other)
    shutil.copy(other / "summaries" / path.name, path)


def of_another_version(path: Path) -> None:
    log = path.parent.parent
    write_bookmark(log, path.stem, "of another, from event 0", place_of(log), [b""])


def of_nonsense(path: Path) -> None:
    """Of this very log and version, but not what is gathered."""
    log = path.parent.parent
    version = KINDS[path.stem].bookmark_version(0)
    assert read_bookmark(log, path.stem, version)
    write_bookmark(log, path.stem, version, place_of(log), [b"nonsense"])


def place_of(log: Path) -> LogPosition:
    with LogReader(log) as reader:
        for _ in reader.read():
            continue
        assert reader.position is not None
        return reader.position


KINDS = {"history": HISTORY, "leaderboard": BOARDS, "chain": CHAIN}
SOURCES = {"history": COORDINATOR, "leaderboard": COORDINATOR, "chain": CHAINED}
_READ = {kind: read for kind, _, read in READERS}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("spoil", [flip, cut, of_another_log, of_another_version, of_nonsense, Path.unlink])
def test_a_summary_that_does_not_fit_the_log_is_made_anew(tmp_path: Path, kind: str, spoil) -> None:
    log = tmp_path / "log"
    recut(SOURCES[kind], log, seed=1)
    expected = _READ[kind](log)
    path = log / "summaries" / f"{kind}.sum"
    sound = path.read_bytes()
    spoil(path)
    assert _READ[kind](log) == expected
    assert path.read_bytes() == sound


@each_reader
def test_a_shortened_log_says_what_it_would_say_without_a_summary(
    tmp_path: Path, kind: str, source: Path, read
) -> None:
    recut(source, tmp_path, seed=2)
    read(tmp_path)
    remove_old_segments(
        tmp_path, peer_id_of_log(tmp_path), bytes_max=sum(path.stat().st_size for path in list_segments(tmp_path))
    )
    with_summary = _told(read, tmp_path)
    shutil.rmtree(tmp_path / "summaries")
    assert _told(read, tmp_path) == with_summary
