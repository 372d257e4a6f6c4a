"""The page of a long log: its first answers, what it answers while it still reads, and all answers once it has read.

Figures are of the server alone: processor time, since the machine may have other work, and the largest resident memory.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from bench.dashboard import Page, server
from bench.measure import cpu_of, peak_memory_of, sample
from bench.table import Row
from swarmd.eventlog.reader import end_seq_of_log

FIRST_GOAL_S = 5.0  # of processor, until state, status and the last events can be seen
MEMORY_GOAL_MIB = 200.0
READY_S = 3600.0
PAUSE_S = 0.2
TIMES = 10  # that each answer is asked for
WHILE_READ_S = 10.0  # of processor, after which it is asked while it reads


class Answers:
    """What a reader of the page asks for, of one log.

    Args:
        end: of the log.
        rounds: in it.
    """

    def __init__(self, end: int, rounds: int) -> None:
        self.end, self.rounds = end, rounds

    def paths(self) -> dict[str, Callable[[int], str]]:
        """By name: the address to ask the n-th time."""
        end, rounds = self.end, self.rounds
        parts = [(2 * number + 1) / (2 * TIMES) for number in range(TIMES)]  # all over the log
        far, round_of = [int(end * part) for part in parts], [int(rounds * part) for part in parts]
        return {
            "page": lambda number: "/",
            "status": lambda number: "/api/v1/node/status",
            "swarm view": lambda number: "/api/v1/swarm",
            "the last 100 events": lambda number: "/api/v1/node/events?first=-100&count=100",
            "100 events, anywhere": lambda number: f"/api/v1/node/events?first={far[number]}&count=100",
            "moment, anywhere": lambda number: f"/api/v1/node/moments/{far[number] + 500}",
            "a round's story, anywhere": lambda number: f"/api/v1/node/rounds/{round_of[number]}",
            "overview of the log": lambda number: "/api/v1/node/overview",
            "stages": lambda number: "/api/v1/node/stages",
            "training": lambda number: "/api/v1/node/training",
            "curves": lambda number: "/api/v1/swarm/curves",
            "metrics": lambda number: "/metrics",
        }


def page_rows(place: Path, size: int, summaries: Path) -> Iterable[Row]:
    """The page of a data directory, first without what an earlier page has kept, and again with it."""
    shutil.rmtree(summaries, ignore_errors=True)
    end = end_seq_of_log(place / "events")
    yield from _rows(place, f"dashboard, {size:,}", end, again=False)
    yield from _rows(place, f"dashboard again, {size:,}", end, again=True)


def _rows(place: Path, what: str, end: int, again: bool) -> Iterable[Row]:
    with server(place) as (process, port):
        page, pid = Page(port), process.pid
        _wait(lambda: _knows(page, end))
        yield _goal_row(f"{what}: first answers", "s of processor", cpu_of(pid), FIRST_GOAL_S, "s")
        if not again:
            yield from _reading_rows(page, pid, what)
        _wait(lambda: b'"read":1.0' in page.get("/api/v1/here")[0])
        read_s = cpu_of(pid)
        yield _goal_row(f"{what}: all read", "s of processor", read_s, FIRST_GOAL_S if again else None, "s")
        yield _goal_row(f"{what}: all read", "MiB", peak_memory_of(pid), MEMORY_GOAL_MIB, "MiB")
        if again:
            rounds = msgspec.json.decode(page.get("/api/v1/node/status")[0])["round"]["round"]
            for name, path in Answers(end, rounds).paths().items():
                yield Row(f"{what}: {name}", "ms of processor", sample(_cpu_ms(page, pid, path)))
            yield _goal_row(f"{what}: all answered", "MiB", peak_memory_of(pid), MEMORY_GOAL_MIB, "MiB")


def _knows(page: Page, end: int) -> bool:
    """Whether the page shows the log's last event, status and swarm."""
    events = page.get("/api/v1/node/events?first=-100&count=100")[0]
    return f'"end":{end},'.encode() in events.replace(b" ", b"") and b'"clock"' in page.get("/api/v1/node/status")[0]


def _reading_rows(page: Page, pid: int, what: str) -> Iterable[Row]:
    """Wall time of answers while the log is being read, where that takes long."""
    _wait(lambda: cpu_of(pid) > WHILE_READ_S or b'"read":1.0' in page.get("/api/v1/here")[0])
    taken = [page.get(path)[1] for _ in range(TIMES) for path in ("/api/v1/node/status", "/api/v1/swarm")]
    if b'"read":1.0' not in page.get("/api/v1/here")[0]:
        yield Row(f"{what}: an answer while it reads", "ms, wall", sample(*taken))


def _cpu_ms(page: Page, pid: int, path: Callable[[int], str]) -> float:
    """Processor time of an answer, the mean."""
    before = cpu_of(pid)
    for number in range(TIMES):
        body = page.get(path(number))[0]
        if body.startswith(b'{"detail"'):
            raise RuntimeError(f"{path(number)} is refused: {body.decode()}")
    return (cpu_of(pid) - before) * 1000 / TIMES


def _goal_row(what: str, unit: str, value: float, limit: float | None, limit_unit: str) -> Row:
    if limit is None:
        return Row(what, unit, sample(value))
    return Row(what, unit, sample(value), goal=f"<= {limit:g} {limit_unit}", met=value <= limit)


def _wait(condition: Callable[[], bool]) -> None:
    """Until it holds. Raises RuntimeError: the page has not read its log."""
    end = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the page has not read its log")
        time.sleep(PAUSE_S)
