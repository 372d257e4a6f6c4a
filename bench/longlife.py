"""Long life: what each verb costs on logs of 10,000 events, of 100,000, of a million and, if asked, of five million.

A coordinator's logs, as `bench.long_log` makes them. Each verb is a process of its own, run twice: the first time finds
a log of which no summaries are kept (`swarmd.eventlog.summaries`), the second time the summaries that the first left.
Figures are processor seconds of the process and its children, and the largest resident memory of any one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.long_log import write_long_log
from bench.long_page import page_rows
from bench.measure import sample
from bench.place import Unavailable
from bench.table import Row
from swarmd.eventlog.reader import end_seq_of_log
from swarmd.eventlog.store import log_disk_bytes

SIZES = (10_000, 100_000, 1_000_000)
LONGEST = 5_000_000
SUMMARIES = "summaries"  # the directory in the log's
RESTART_GOAL_S = 2.0
READ_GOAL_S = 5.0  # of a verb that need not read a whole log, once its summaries are kept
MEMORY_GOAL_MIB = 200.0
PAGE = "dashboard"

RESTART = """
import sys
from pathlib import Path
from swarmd.eventlog.fold import load_state, peer_id_of_log
from swarmd.eventlog.store import EventLog
log = Path(sys.argv[1])
with EventLog.open(log, peer_id_of_log(log), "again"):
    load_state(log)
"""


class Cost(NamedTuple):
    """Processor seconds and MiB."""

    cpu_s: float
    memory_mib: float


class Verb(NamedTuple):
    """What is run on a log; `whole` where it has to read all of it each time, `again` where a second run is cheaper."""

    words: Sequence[str]
    whole: bool = False
    again: bool = False


def run(directory: Path, events: int = SIZES[-1], logs: Path | None = None, verbs: str = "") -> Iterable[Row]:
    """Measure at all sizes up to `events`.

    Args:
        directory: where logs are made.
        events: the largest log; five million take an hour and 2 GB.
        logs: where to keep them for the next time, or where they are from the last.
        verbs: only those with one of these words in their names.

    Raises:
        Unavailable: there is no verb or log like that.
    """
    if events < SIZES[0]:
        raise Unavailable(f"--events: the smallest log has {SIZES[0]:,}, not {events:,}")
    smallest: dict[str, Cost] = {}
    for size in (size for size in (*SIZES, LONGEST) if size <= events):
        place = (logs or directory) / f"{size}"
        make_log(place, size)
        yield from rows_of(place, size, smallest, verbs.split(","))
        if logs is None:
            shutil.rmtree(place)


def make_log(place: Path, size: int) -> None:
    """A log of so many events, if it is not there: one that was cut off while it was written is made anew."""
    if not (place / "events").exists():
        begun = place / "begun"
        shutil.rmtree(begun, ignore_errors=True)
        write_long_log(begun, size)
        begun.rename(place / "events")


def rows_of(place: Path, size: int, smallest: dict[str, Cost], words: Sequence[str]) -> Iterable[Row]:
    """All verbs on one log. `smallest` has each one's cost on the smallest log; what is missing there is added."""
    log = place / "events"
    names = (*verbs_of(place), PAGE)
    if not any(word in name for word in words for name in names):
        raise Unavailable(
            f"--verbs: none has {' or '.join(map(repr, words))} in its name; there are {', '.join(names)}"
        )
    yield Row(f"{size:,} events on disk", "MiB", sample(log_disk_bytes(log) / 2**20))
    yield Row(f"{size:,} events on disk", "bytes an event", sample(log_disk_bytes(log) / end_seq_of_log(log)))
    for name, verb in verbs_of(place).items():
        if not any(word in name for word in words):
            continue
        shutil.rmtree(log / SUMMARIES, ignore_errors=True)
        first = cost_of(verb.words, place)
        yield from _rows(f"{name}, {size:,}", first, smallest.setdefault(name, first), verb.whole or verb.again)
        if verb.again:
            name = f"{name} again"
            again = cost_of(verb.words, place)
            yield from _rows(f"{name}, {size:,}", again, smallest.setdefault(name, again), whole=False)
    if any(word in PAGE for word in words):
        yield from page_rows(place, size, log / SUMMARIES)


def _rows(what: str, cost: Cost, smallest: Cost, whole: bool) -> Iterable[Row]:
    goal_s = RESTART_GOAL_S if what.startswith("restart") else READ_GOAL_S
    ratio, least = sample(cost.cpu_s / smallest.cpu_s), sample(smallest.cpu_s)
    goal, met = ("", None) if whole else (f"<= {goal_s:g} s", cost.cpu_s <= goal_s)
    yield Row(what, "s of processor", sample(cost.cpu_s), f"at {SIZES[0]:,}", least, ratio, goal, met)
    yield Row(
        what,
        "MiB",
        sample(cost.memory_mib),
        f"at {SIZES[0]:,}",
        sample(smallest.memory_mib),
        sample(cost.memory_mib / smallest.memory_mib),
        f"<= {MEMORY_GOAL_MIB:g} MiB",
        cost.memory_mib <= MEMORY_GOAL_MIB,
    )


def verbs_of(place: Path) -> Mapping[str, Verb]:
    """By name; rounds and events are those that this log has."""
    end, root = end_seq_of_log(place / "events"), str(place)
    middle = str(end // 2)
    swarmd = ("-m", "swarmd")
    picture = str(place / "report.png")
    return {
        "restart": Verb(("-c", RESTART, str(place / "events"))),
        "status": Verb((*swarmd, "status", root)),
        "explain": Verb((*swarmd, "explain", root)),
        "explain of a round in the middle": Verb((*swarmd, "explain", root, str(end // 19))),
        "replay --from, at the end": Verb((*swarmd, "replay", root, "--from", str(end - 20))),
        "replay --from --to, in the middle": Verb((*swarmd, "replay", root, "--from", middle, "--to", middle)),
        "replay --round, in the middle": Verb((*swarmd, "replay", root, "--round", str(end // 19)), whole=True),
        "replay --state": Verb((*swarmd, "replay", root, "--state")),
        "replay --verify": Verb((*swarmd, "replay", root, "--verify"), whole=True),
        "log verify": Verb((*swarmd, "log", "verify", root), whole=True),
        "report": Verb((*swarmd, "report", root, "--out", picture), again=True),
        "report --json": Verb((*swarmd, "report", root, "--json"), again=True),
        "leaderboard": Verb((*swarmd, "leaderboard", root), again=True),
    }


def cost_of(words: Sequence[str], place: Path) -> Cost:
    """Run it to its end. Raises RuntimeError where a verb fails."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, cwd=place)
    try:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode not in ((0, 1) if "status" in words else (0,)):  # status says 1 of a node that is down
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
