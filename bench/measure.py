"""Measuring on a machine that does other things too.

Contestants take turns in rounds, each round in another order, and are compared within a round: what slows the machine
down for a while slows all of them. A result is the median over the rounds with its smallest and largest value.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """Values of one thing, in the order in which they were measured."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def percentile(self, share: float) -> float:
        """The value that `share` (0 to 1) of the values do not exceed."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def sample(*values: float) -> Sample:
    """A sample of these values."""
    return Sample(values)


def ratios(ours: Sample, theirs: Sample) -> Sample:
    """Ours over theirs, round by round."""
    return Sample(tuple(a / b for a, b in zip(ours.values, theirs.values, strict=True)))


def take_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Sample]:
    """Let every contestant measure once a round, in each round in another order, so that none always follows another.

    Args:
        contestants: what to measure; a call returns one value.
        rounds: how often.
    """
    names = list(contestants)
    values: dict[str, list[float]] = {name: [] for name in names}
    random = Random(0)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            values[name].append(contestants[name]())
    return {name: Sample(tuple(taken)) for name, taken in values.items()}


class Stopwatch:
    """Seconds between begin and end; wall time, and processor time of this process."""

    wall_s = 0.0
    cpu_s = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Measure what happens inside the `with`."""
    watch = Stopwatch()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield watch
    finally:
        watch.cpu_s = time.process_time() - cpu
        watch.wall_s = time.perf_counter() - wall


# --- other processes, by /proc ---


def process_tree(pid: int) -> list[int]:
    """A process and everything it has started, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(_stat(int(entry.name))[1], []).append(int(entry.name))
        except OSError:
            continue  # gone meanwhile
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def cpu_of(pid: int) -> float:
    """Processor seconds that a process has used, in user and kernel mode. Raises OSError when it is gone."""
    fields = _stat(pid)
    return (fields[11] + fields[12]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """Fields of /proc/PID/stat from the process state on: [0] is 0, [1] the parent, [11] utime, [12] stime."""
    rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return [0, *map(int, rest[1:40])]


def memory_of(pid: int) -> dict[str, float]:
    """MiB by /proc/PID/smaps_rollup: Rss, Pss, and what else it lists. Raises OSError when the process is gone."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]]
    return {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines}


def peak_memory_of(pid: int) -> float:
    """MiB that a process had resident at most since it was executed. Raises OSError when it is gone."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def program_of(pid: int) -> str:
    """What a process runs, in a word: its module, or its executable's name. Raises OSError when it is gone."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return Path(words[0]).name
