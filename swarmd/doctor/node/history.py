"""The event log: whole, readable by this version, within its budget, and young while the node runs."""

from __future__ import annotations

import time
from pathlib import Path

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import LogDamaged, LogForeign, NotFoundError, OtherVersion
from swarmd.eventlog.offline.check import LogCheck, check_log
from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.retention import log_bytes
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import list_snapshots

MIB = 2**20
WHOLE_BYTES_MAX = 256 * MIB  # of a larger log only the last segment is read here
BUDGET_SHARE = 1.25  # the log may be over its budget by what came since the newest snapshot
QUIET_S = 3600.0  # a running node writes sooner: stages end, peers report, deadlines pass
EVENTS_WITHOUT_SNAPSHOT = 100_000

LOG_DAMAGED = FindingKind(
    "log.damaged",
    "error",
    "The event log is damaged",
    "The node refuses to start with it (code 65): what it did is no longer certain.",
    "Restore the file from a copy, or begin with an empty data directory and the same identity",
)
LOG_OTHER = FindingKind(
    "log.version",
    "error",
    "The event log was written by a swarmd of another version",
    "This version cannot read it and ends with code 65. Nothing is changed in it.",
    "Use the swarmd that wrote it",
)
LOG_FOREIGN = FindingKind(
    "log.foreign",
    "error",
    "The event log, or a part of it, is another node's",
    "The node refuses to start with it (code 65).",
    "Name the right data directory, or take the foreign files out",
)
LOG_TORN = FindingKind(
    "log.torn",
    "note",
    "The log ends in an unfinished write",
    "The node was killed while it wrote, or writes at this moment. Nothing that it acted on is lost.",
    "Nothing: the next start cuts it off",
)
LOG_LARGE = FindingKind(
    "log.large",
    "warning",
    "The log is over its budget",
    "Old segments go only where a snapshot stands in for them, and there is none that does.",
    "Restart the node, which makes a snapshot; `swarmd log verify` names one that is bad",
)
LOG_QUIET = FindingKind(
    "log.quiet",
    "warning",
    "The node runs, and its log is silent",
    "Nothing has happened to it for long: no stage, no report, no deadline.",
    "`swarmd status` says what it waits for; look whether the coordinator still runs",
)
LOG_SLOW = FindingKind(
    "log.snapshots",
    "note",
    "A long log has no snapshot",
    "A start replays all of it, which takes longer.",
    "Nothing: one is made when a segment is sealed (storage.segment_bytes)",
)


async def check_log_health(subject: Subject) -> list[Finding]:
    """Read it, all of it where it is not too large."""
    if not await in_thread(lambda: subject.begun):
        return [well("log", "Event log", "there is none yet")]
    _, data = subject.whole
    size = await in_thread(log_bytes, data.events)
    try:
        sound = await in_thread(examine_log, data.events, size > WHOLE_BYTES_MAX)
    except OtherVersion as error:
        return [LOG_OTHER.found(error.message, error.fix)]
    except LogForeign as error:
        return [LOG_FOREIGN.found(error.message, error.fix)]
    except (LogDamaged, NotFoundError) as error:
        return [LOG_DAMAGED.found(error.message, error.fix)]
    found = [*_judge(subject, sound, size), *await _examine_age(subject, data.events)]
    if any(finding.severity != "note" for finding in found):
        return found
    extent = "the last segment of it was" if size > WHOLE_BYTES_MAX else "all of it was"
    return [
        well("log", "Event log", f"{sound.next_seq} events, {size / MIB:.1f} MiB, {extent} read and is sound"),
        *found,
    ]


def examine_log(events: Path, last_only: bool) -> LogCheck:
    """As `swarmd log verify`, or for a large log the same of the last segment. Raises LogDamaged."""
    if not last_only:
        return check_log(events)
    segments = list_segments(events)
    first, count, commits = first_seq_of(segments[-1]), 0, 0
    with LogReader(events, first) as reader:
        for commit in reader.read():
            count, commits = count + len(commit.events), commits + 1
        snapshots = len(list_snapshots(events))
        return LogCheck(
            reader.node, first, reader.next_seq, count, commits, reader.segments, snapshots, reader.torn_bytes
        )


def _judge(subject: Subject, sound: LogCheck, size: int) -> list[Finding]:
    storage, found = subject.whole[0].storage, []
    if sound.torn_bytes:
        found.append(LOG_TORN.found(f"its last {sound.torn_bytes} bytes"))
    if size > BUDGET_SHARE * storage.log_bytes_max:
        bound = f"storage.log_bytes_max is {storage.log_bytes_max / MIB:.1f} MiB"
        found.append(LOG_LARGE.found(f"it has {size / MIB:.1f} MiB, {bound}"))
    if sound.events > EVENTS_WITHOUT_SNAPSHOT and not sound.snapshots:
        found.append(LOG_SLOW.found(f"{sound.events} events, no snapshot"))
    return found


async def _examine_age(subject: Subject, events: Path) -> list[Finding]:
    if not (await subject.life()).runs:
        return []
    age_s = time.time() - await in_thread(lambda: max(path.stat().st_mtime for path in list_segments(events)))
    return [LOG_QUIET.found(f"the last event is {age_s / 60:.0f} minutes old")] if age_s > QUIET_S else []
