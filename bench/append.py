"""Durable appends: the event log against sqlite3 and the PyPI package eventsourcing, the same events, the same disk.

Every contestant gets event objects, encodes them with msgpack and returns from an append when the disk has them.
eventsourcing gets no encoding of its own to do (its JSON transcoder would take longer), only the work of its SQLite
recorder, which runs in WAL mode with synchronous=FULL. Each is measured on new files, and on files that have grown for
a while: SQLite then writes over the pages of its write-ahead log, which is quicker than to make the file longer.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec

from bench.measure import Sample, ratios, take_turns, timed
from bench.place import Unavailable, need_disk
from bench.recording import record
from bench.table import Row
from swarmd.core.events import Event, tag_of
from swarmd.core.values import Role
from swarmd.eventlog.store import EventLog

GROUP = 64
APPENDS = {1: 100, GROUP: 16}  # of a turn, by events in a sync
GOALS = {1: (1.3, 2.5), GROUP: (2.0, 4.0)}  # times sqlite3, times eventsourcing
ROUNDS = {"new": 32, "grown": 128}
GROWN = 1200  # appends before the measurement; SQLite's write-ahead log has then stopped growing
EVENTS = 4 * GROUP * APPENDS[GROUP]

_encode = msgspec.msgpack.Encoder().encode


class Happening(NamedTuple):
    """One event as it comes to a log: when, what, and the digest of the commands that it caused."""

    at: float
    event: Event
    commands_digest: bytes


Append = Callable[[Sequence[Happening]], object]
Opener = Callable[[Path], AbstractContextManager[Append]]


def run(directory: Path) -> Iterable[Row]:
    need_disk(directory)
    coming = itertools.cycle(happenings_of("coordinator") + happenings_of("follower"))
    openers: dict[str, Opener] = {"swarmd": open_log, "sqlite3": open_sqlite, "eventsourcing": open_eventsourcing}
    for size in GOALS:
        turns = {name: partial(append_to_new, opener, directory, coming, size) for name, opener in openers.items()}
        yield from rows(take_turns(turns, ROUNDS["new"]), size, "new")
        with contextlib.ExitStack() as stack:
            grown = {name: stack.enter_context(opener(place(directory))) for name, opener in openers.items()}
            for append in grown.values():
                for _ in range(GROWN // size):
                    append(list(itertools.islice(coming, size)))
            turns = {name: partial(rate, append, coming, size) for name, append in grown.items()}
            yield from rows(take_turns(turns, ROUNDS["grown"]), size, "grown")


def place(directory: Path) -> Path:
    """A directory that does not exist yet, made."""
    new = directory / uuid4().hex
    new.mkdir()
    return new


def append_to_new(opener: Opener, directory: Path, coming: Iterator[Happening], size: int) -> float:
    """Events per second of wall time into a log or database made for it."""
    with opener(place(directory)) as append:
        append([next(coming)])  # whatever is made with the first append
        return rate(append, coming, size)


def rate(append: Append, coming: Iterator[Happening], size: int) -> float:
    """Events per second of wall time."""
    groups = [list(itertools.islice(coming, size)) for _ in range(APPENDS[size])]
    with timed() as watch:
        for group in groups:
            append(group)
    return APPENDS[size] * size / watch.wall_s


def happenings_of(role: Role) -> list[Happening]:
    """From a recorded node's life, with each commit's last event."""
    life = record(role, EVENTS)
    return [Happening(each.at, each.events[-1], each.commands_digest) for each in life.commits][: EVENTS // 2]


def rows(rates: dict[str, Sample], size: int, age: str) -> Iterable[Row]:
    what = f"{'a sync each' if size == 1 else f'a sync for {size}'}, {age} file"
    for peer, goal in zip(("sqlite3", "eventsourcing"), GOALS[size], strict=True):
        ratio = ratios(rates["swarmd"], rates[peer])
        name = "sqlite3, WAL, FULL" if peer == "sqlite3" else "eventsourcing recorder"
        met = ratio.median >= goal
        yield Row(what, "events/s", rates["swarmd"], name, rates[peer], ratio, f">= {goal:g}x", met)


@contextmanager
def open_log(directory: Path) -> Iterator[Append]:
    """swarmd's own log."""
    with EventLog.open(directory / "events", "bench", "run") as log:

        def append(group: Sequence[Happening]) -> None:
            log.append(group[0].at, [each.event for each in group], group[0].commands_digest)

        yield append


@contextmanager
def open_sqlite(directory: Path) -> Iterator[Append]:
    """A table in SQLite, one transaction a group."""
    database = sqlite3.connect(directory / "sqlite.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, type TEXT, at REAL, event BLOB)")

    def append(group: Sequence[Happening]) -> None:
        rows = [(tag_of(each.event), each.at, _encode(each.event)) for each in group]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO log (type, at, event) VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")

    with contextlib.closing(database):
        yield append


@contextmanager
def open_eventsourcing(directory: Path) -> Iterator[Append]:
    """The application recorder of eventsourcing, one insert a group."""
    try:
        from eventsourcing.persistence import StoredEvent
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore
    except ImportError as error:
        raise Unavailable("eventsourcing is missing; `make setup` installs it") from error
    datastore = SQLiteDatastore(str(directory / "eventsourcing.db"))
    recorder = SQLiteApplicationRecorder(datastore)
    recorder.create_table()
    node, versions = uuid4(), itertools.count()

    def append(group: Sequence[Happening]) -> None:
        stored = [StoredEvent(node, next(versions), tag_of(each.event), _encode(each.event)) for each in group]
        recorder.insert_events(stored)

    with contextlib.closing(datastore):
        yield append
