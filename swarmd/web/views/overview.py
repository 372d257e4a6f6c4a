"""How many events of which kind lie where in time: some bytes for each event, so that a strip of them can be drawn."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise

import msgspec

from swarmd.core import events
from swarmd.core.applied import Applied
from swarmd.eventlog.fold import Base
from swarmd.observe.describe import LANE_OF, WARNINGS, WORDS, Lane, describe
from swarmd.web.shapes import OVERVIEW_BUCKETS_MAX, OVERVIEW_ROUNDS_MAX, Overview, RoundMark
from swarmd.web.views.doubles import doubles_as_bytes, doubles_of

EVENTS_MAX = 1_000_000  # of a longer log the newest are shown; nine bytes each
ROUNDS_MAX = 65_536
DROP_SHARE = 8  # at the bound an eighth is dropped at once
LANES: tuple[Lane, ...] = ("rounds", "network", "training", "chain", "workers", "stops")
WARNS = 8  # bit of a code

# Never a warning, and frequent: spares asking for their line.
CALM = (
    events.MemberSeen,
    events.MembersSeen,
    events.ReportSeen,
    events.ReportsSeen,
    events.RoundAnnounced,
    events.RolloutsGathered,
)


TYPES: dict[str, str] = dict(LANE_OF)
_CODES = {kind: LANES.index(each.lane) for kind, each in WORDS.items()}


class _KeptTimeline(msgspec.Struct, array_like=True):
    """A `Timeline` as it is kept."""

    first: int
    times: bytes
    codes: bytes
    rounds: list[RoundMark]


class Timeline:
    """Follows the fold and counts events by kind and time."""

    def __init__(self) -> None:
        self.begin(Base())

    def begin(self, base: Base) -> None:
        self._first = base.seq
        self._times = array("d")  # never falling
        self._codes = bytearray()  # index of the lane, and WARNS
        self._rounds: list[RoundMark] = []

    def apply(self, applied: Applied) -> None:
        at = max(applied.at, self._times[-1]) if self._times else applied.at
        self._times.append(at)
        self._codes.append(_CODES[type(applied.event)] | (WARNS if _warns(applied) else 0))
        round_ = getattr(applied.event, "round", None)
        if applied.after.clock is not None and isinstance(round_, int):
            round_ = min(round_, applied.after.clock.round)
            if round_ > (self._rounds[-1].round if self._rounds else -1):
                self._rounds.append(RoundMark(round_, applied.seq, at))
        self._keep_in_bounds()

    def keep(self) -> bytes:
        return msgspec.msgpack.encode(
            _KeptTimeline(self._first, doubles_as_bytes(self._times), bytes(self._codes), self._rounds)
        )

    def resume(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=_KeptTimeline)
        self._first, self._rounds = read.first, read.rounds
        self._times, self._codes = doubles_of(read.times), bytearray(read.codes)

    def _keep_in_bounds(self) -> None:
        if len(self._times) > EVENTS_MAX:
            count = EVENTS_MAX // DROP_SHARE
            del self._times[:count], self._codes[:count]
            self._first += count
        if len(self._rounds) > ROUNDS_MAX:
            del self._rounds[: ROUNDS_MAX // DROP_SHARE]

    def opening_of(self, round_: int) -> int | None:
        """The event with which the swarm was first seen at a round or beyond it; None: it has not come so far."""
        index = bisect_left(self._rounds, round_, key=lambda mark: mark.round)
        return self._rounds[index].seq if index < len(self._rounds) else None

    def forgot(self, round_: int) -> bool:
        """Whether a round lies before all of which it is known where they were seen first."""
        return bool(self._rounds) and round_ < self._rounds[0].round

    def overview(self, since: float | None, until: float | None, buckets: int, begin: int) -> Overview:
        """The part between two times, in so many buckets.

        Args:
            since, until: POSIX seconds; None for where the log begins and ends.
            buckets: 1 to `OVERVIEW_BUCKETS_MAX`.
            begin: first event that the log still has.
        """
        times, codes = self._times, self._codes
        gone = min(max(0, begin - self._first), len(times))
        since = since if since is not None else (times[gone] if gone < len(times) else 0.0)
        until = until if until is not None else (times[-1] if len(times) else since)
        until = max(since, until)
        buckets = min(max(1, buckets), OVERVIEW_BUCKETS_MAX)
        width = (until - since) / buckets
        edges = [bisect_left(times, since + width * index, lo=gone) for index in range(buckets)]
        edges.append(bisect_right(times, until, lo=gone))
        spans = list(pairwise(edges))
        counts = tuple(
            tuple(codes.count(lane, a, b) + codes.count(lane | WARNS, a, b) for a, b in spans)
            for lane in range(len(LANES))
        )
        warnings = tuple(sum(codes.count(lane | WARNS, a, b) for lane in range(len(LANES))) for a, b in spans)
        firsts = tuple(self._first + edge for edge in edges)
        end = self._first + len(times)
        marks = self._marks(since, until, begin)
        return Overview(self._first + gone, end, since, until, LANES, TYPES, firsts, counts, warnings, marks)

    def _marks(self, since: float, until: float, begin: int) -> tuple[RoundMark, ...]:
        low = bisect_left(self._rounds, since, key=lambda mark: mark.at)
        high = bisect_right(self._rounds, until, key=lambda mark: mark.at)
        shown = [mark for mark in self._rounds[low:high] if mark.seq >= begin]
        every = -(-len(shown) // OVERVIEW_ROUNDS_MAX) or 1
        return tuple(shown[::every])


def _warns(applied: Applied) -> bool:
    if isinstance(applied.event, CALM):
        return False
    return describe(applied).level in WARNINGS
