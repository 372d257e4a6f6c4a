"""How long each test file takes, kept in tests/durations.json: `--durations-out=FILE` writes what a run measured.

One entry a file: seconds of processor (its own and those of the processes it waited for), seconds on the clock, whether
running it loads torch, and each single test of more than LONG_S seconds by itself. A run replaces the entries of the
files it ran and leaves the others. `make quick` plans with them, `make test-slow` lists them.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.quick.imports import ROOT, Imports

RECORDED = ROOT / "tests" / "durations.json"
LONG_S = 5.0  # a single test that takes longer has its own line
UNKNOWN_S = 2.0  # what a file counts as that nobody has timed
PROCESSOR, TORCH = "processor_s", "loaded_torch"  # properties of a test's last report


@dataclass
class Duration:
    """What is known about one test file. `tests` has the seconds of its long tests, by what stands behind `::`."""

    cpu_s: float = UNKNOWN_S
    wall_s: float = UNKNOWN_S
    torch: bool = False
    tests: dict[str, float] = field(default_factory=dict)

    def without(self, tests: Iterable[str]) -> Duration:
        """The same file when these of its long tests do not run; processor seconds shrink as the clock's do."""
        left_s = max(0.0, self.wall_s - sum(self.tests[test] for test in tests))
        share = left_s / self.wall_s if self.wall_s else 1.0
        return Duration(self.cpu_s * share, left_s, self.torch)

    def entry(self) -> dict[str, Any]:
        long = {name: round(seconds, 1) for name, seconds in sorted(self.tests.items()) if seconds > LONG_S}
        plain = {"cpu_s": round(self.cpu_s, 1), "wall_s": round(self.wall_s, 1), "torch": self.torch}
        return plain | ({"tests": long} if long else {})


def read(path: Path = RECORDED) -> dict[str, Duration]:
    """By file, as `tests/core/node/test_rounds.py`. Nothing where nothing was recorded yet."""
    if not path.exists():
        return {}
    return {name: Duration(**entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def write(durations: dict[str, Duration], path: Path = RECORDED) -> None:
    """One line a file, so that a difference shows which file has changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(each.entry())}" for name, each in sorted(durations.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def merged(before: dict[str, Duration], measured: dict[str, Duration]) -> dict[str, Duration]:
    """What was known, but for the files that ran; files that are gone are forgotten."""
    return {name: each for name, each in (before | measured).items() if (ROOT / name).exists()}


def processor_s() -> float:
    """Seconds of processor that this process has used, and those of its children that it has waited for."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in spent)


class Stopwatch:
    """In every process that runs tests: puts processor seconds into the last report of each test."""

    def __init__(self) -> None:
        self.began_s = 0.0
        self.had_torch = False

    def pytest_runtest_logstart(self) -> None:
        self.began_s = processor_s()
        self.had_torch = "torch" in sys.modules

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append((PROCESSOR, processor_s() - self.began_s))
            item.user_properties.append((TORCH, not self.had_torch and "torch" in sys.modules))


class Ledger:
    """In the process that hears of all tests: adds up, and writes when the run ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measured: defaultdict[str, Duration] = defaultdict(lambda: Duration(0.0, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        entry = self.measured[file]
        entry.wall_s += report.duration
        entry.tests[test] = entry.tests.get(test, 0.0) + report.duration
        if report.when == "teardown":
            noted = dict(report.user_properties)
            entry.cpu_s += float(noted.get(PROCESSOR, 0.0))
            entry.torch = entry.torch or bool(noted.get(TORCH))

    def pytest_sessionfinish(self) -> None:
        before = read(self.path)
        imports = Imports.of_the_tree()
        for file, entry in self.measured.items():
            known = before.get(file, Duration()).torch  # a process that has torch already does not load it again
            entry.torch = entry.torch or known or imports.loads_torch(file)
        write(merged(before, self.measured), self.path)


def slowest(durations: dict[str, Duration]) -> Iterator[tuple[str, float]]:
    """Files by their seconds on the clock, the longest first."""
    walls = ((name, each.wall_s) for name, each in durations.items())
    yield from sorted(walls, key=lambda one: (-one[1], one[0]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-out", metavar="FILE", help="write how long each test file took into FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--durations-out")
    if not path:
        return
    if not config.getoption("numprocesses", None):
        config.pluginmanager.register(Stopwatch(), "stopwatch")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(Path(path)), "ledger")
