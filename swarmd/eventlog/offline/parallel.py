"""`verify` on all cores: a log is folded in sections, each from one snapshot to the next.

A section's fold starts from a snapshot, which the section before compares with its own end. So all sections together
say what one fold from the log's beginning says.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from swarmd.errors import SwarmdError
from swarmd.eventlog.fold import base_upto, bases_of
from swarmd.eventlog.offline.replay import Verified, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.sharedctypes import Synchronized

    from swarmd.eventlog.commit import Commit

EVENTS_A_COUNT = 1000  # told at once by a process
TOLD_EVERY_S = 0.2

_done: Synchronized[int]  # in a worker: events of all of them so far


class Section(NamedTuple):
    """Events from `first` on, up to and without `end`; None for the log's end."""

    first: int
    end: int | None


class ProgressListener(Protocol):
    """Is told how far a verification is."""

    def __call__(self, events: int, /) -> None:
        """So many events were verified so far. Raises nothing."""


def verify_parallel(
    directory: Path, last: int | None = None, told: ProgressListener | None = None, processes: int | None = None
) -> Verified:
    """As `verify`, in several processes where there are snapshots to start from.

    Args:
        directory: of the segments.
        last: the last event whose commit is verified; None for all.
        told: called now and then.
        processes: how many at most; by default one for each core that this process may use.

    Raises:
        ReplayDifference, LogDamaged and its kin: as `verify` does, for the first that is wrong.
    """
    sections = sections_of(directory, last)
    processes = min(processes or len(os.sched_getaffinity(0)), len(sections))
    context = get_context("spawn")
    count: Synchronized[int] = context.Value("q", 0)
    with ProcessPoolExecutor(processes, context, _begin_worker, (count,)) as pool:
        try:
            futures = [pool.submit(_verify_section, directory, each) for each in sections]
            parts = [_result(directory, *each, told, count) for each in zip(sections, futures, strict=True)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _sum_up(parts)


def sections_of(directory: Path, last: int | None = None) -> list[Section]:
    """The sections of a log, in order; those that begin at or before event `last`."""
    begins = [seq for seq in bases_of(directory) if last is None or seq <= last] or bases_of(directory)[:1]
    inner = [Section(first, end) for first, end in pairwise(begins)]
    return [*inner, Section(begins[-1], None if last is None else last + 1)]


def _result(
    directory: Path,
    section: Section,
    future: Future[Verified | None],
    told: ProgressListener | None,
    count: Synchronized[int],
) -> Verified:
    """What a section came to. Where it is wrong, or its process ended, it is verified here, to say what is wrong."""
    while told is not None and not wait([future], TOLD_EVERY_S).done:
        told(count.value)
    try:
        found = future.result()
    except BrokenProcessPool:
        found = None
    return found or _verify(directory, section)


def _verify(directory: Path, section: Section) -> Verified:
    return verify(directory, begin=base_upto(directory, section.first), until=section.end)


def _sum_up(parts: list[Verified]) -> Verified:
    return Verified(
        sum(part.events for part in parts),
        sum(part.commits for part in parts),
        parts[0].from_seq,
        sum(part.snapshots for part in parts),
    )


# --- in a worker ---


def _begin_worker(count: Synchronized[int]) -> None:
    global _done
    _done = count
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent tells of Ctrl-C


def _verify_section(directory: Path, section: Section) -> Verified | None:
    """What a section came to; None where something is wrong with it, which the parent looks at itself."""
    try:
        return verify(directory, _counted, base_upto(directory, section.first), section.end)
    except SwarmdError:
        return None


def _counted(commits: Iterator[Commit]) -> Iterator[Commit]:
    seen = 0
    for commit in commits:
        seen += len(commit.events)
        if seen >= EVENTS_A_COUNT:
            with _done.get_lock():
                _done.value += seen
            seen = 0
        yield commit
