"""This machine's clock: whether anything keeps it right, and how far it is from those of others."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Iterator, Sequence
from itertools import islice

from swarmd.core.events import RoundAnnounced
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import LogDamaged
from swarmd.eventlog.reader import end_of, read_commits

SKEW_MAX_S = 3.0  # hivemind turns a node away that differs by more, and drops its records
SKEW_NOTED_S = 1.0
EVENTS_READ = 5000  # of the log's end
ANNOUNCEMENTS_MAX = 16  # latest ones that count
UNSYNCHRONISED = 5  # adjtimex(2): TIME_ERROR

CLOCK_SKEWED = FindingKind(
    "clock.skew",
    "error",
    "The clock is wrong",
    "Peers turn a node away whose clock differs from theirs by more than 3 s: they refuse its records, or take them "
    "for expired.",
    "Set it right and keep it so: `timedatectl set-ntp true`, or start chrony; in a virtual machine look at the host's",
)
CLOCK_DRIFTING = FindingKind(
    "clock.drift",
    "warning",
    "The clock is drifting away",
    "At 3 s peers begin to turn this node away.",
    "Keep it right: `timedatectl set-ntp true`, or start chrony",
)
CLOCK_FREE = FindingKind(
    "clock.free",
    "note",
    "Nothing keeps the clock right",
    "The kernel says that no time service sets this clock. It drifts, and at 3 s peers begin to turn the node away.",
    "`timedatectl set-ntp true`, or start chrony; inside a container this is the host's business",
)
CLOCK_OF_PEER = FindingKind(
    "clock.peer",
    "note",
    "A peer's clock is wrong",
    "It differs from the other peers' as well as from ours, so this machine's is right.",
    "Tell whoever runs that node",
)


async def check_clock(subject: Subject) -> list[Finding]:
    """Against peers where they can be asked, against the log, and what the kernel says."""
    found: list[Finding] = []
    dialled = [] if subject.offline or subject.config is None else await subject.dialled()
    skews = {each.address: each.skew_s for each in dialled if each.skew_s is not None}
    found += judge_peers(skews)
    found += await in_thread(lambda: list(_examine_log(subject)))
    found += [] if await in_thread(is_kept) else [CLOCK_FREE.found("adjtimex(2) says that the clock is unsynchronised")]
    if found:
        return found
    measured = f"{len(skews)} peers differ by {max(map(abs, skews.values())):.2f} s at most; " if skews else ""
    return [well("clock", "Clock", f"{measured}a time service keeps it")]


def judge_peers(skews: dict[str, float]) -> list[Finding]:
    """Findings from peers' clocks minus ours, in seconds, by address: the median says whose fault it is.

    Where their number is even ours is one among them, so that a clock is in the middle, and no mean of two that differ.
    """
    if not skews:
        return []
    middle = statistics.median([*skews.values(), *[0.0] * (len(skews) % 2 == 0)])
    shown = ", ".join(f"{address}: {skew_s:+.2f} s" for address, skew_s in list(skews.items())[:4])
    found = [
        CLOCK_OF_PEER.found(f"{address} differs by {skew_s:+.2f} s, the median is {middle:+.2f} s")
        for address, skew_s in skews.items()
        if abs(skew_s - middle) > SKEW_MAX_S
    ]
    if abs(middle) > SKEW_MAX_S:
        alone = " (only one peer could be asked, so it may be that one's)" if len(skews) == 1 else ""
        found.append(CLOCK_SKEWED.found(f"this clock is {_way(middle)} the peers'{alone}: {shown}"))
    elif abs(middle) > SKEW_NOTED_S:
        found.append(CLOCK_DRIFTING.found(f"this clock is {_way(middle)} the peers': {shown}"))
    return found


def _way(peers_ahead_s: float) -> str:
    return f"{abs(peers_ahead_s):.2f} s {'behind' if peers_ahead_s > 0 else 'ahead of'}"


def _examine_log(subject: Subject) -> Iterator[Finding]:
    """A stage that was announced before it began, by our clock, shows how far ours is behind the coordinator's."""
    try:
        leads = leads_in_log(subject)
    except LogDamaged:
        return  # the check of the log says so
    if not leads:
        return
    behind_s = statistics.median(leads)
    evidence = f"the last {len(leads)} stages were announced up to {max(leads):.2f} s before they began by this clock"
    if behind_s > SKEW_MAX_S:
        yield CLOCK_SKEWED.found(f"{evidence}: it is behind the coordinator's")
    elif behind_s > SKEW_NOTED_S:
        yield CLOCK_DRIFTING.found(f"{evidence}: it is behind the coordinator's")


def leads_in_log(subject: Subject) -> Sequence[float]:
    """Seconds by which the latest stages were opened, by the coordinator's clock, after this node heard of it."""
    if not subject.begun or subject.data is None:
        return []
    log = subject.data.events
    events = (
        (commit.at, event)
        for commit in read_commits(log, max(0, end_of(log) - EVENTS_READ))
        for event in commit.events
        if isinstance(event, RoundAnnounced)
    )
    leads = [event.opened_at - at for at, event in events]
    return list(islice(reversed(leads), ANNOUNCEMENTS_MAX))


def is_kept() -> bool:
    """Does a time service keep the clock? True where the kernel does not say."""
    buffer = ctypes.create_string_buffer(256)  # struct timex has 208 bytes; modes = 0 only reads
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    return adjtimex is None or int(adjtimex(buffer)) != UNSYNCHRONISED
