"""What this machine lacks is skipped by the tests that need it, and named at the end: nothing is silently untested.

A test says what it needs with `pytest.mark.needs("chromium")`, or it asks `tests.programs.path_of` for it, somewhere in
a fixture; both skip it where the program is missing. Skips for any other reason are counted beside them. With
`STRICT=1` in the environment, a run that skipped tests for want of a program has failed: a program can be installed.
What the machine itself refuses (rights, namespaces, a device) fails no run.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.programs import PROGRAMS, ProgramMissing, path_of

FILES_MAX = 3  # named with a reason that has nothing to do with programs


@dataclass(eq=False)
class Missing:
    """What was skipped in this run, and why. Compared by identity: pytest keeps plugins in sets."""

    reasons: dict[str, str] = field(default_factory=dict)  # by test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self.reasons[report.nodeid] = told.removeprefix("Skipped: ").strip()

    def by_program(self) -> dict[str, list[str]]:
        """The tests of each program that is missing."""
        found: dict[str, list[str]] = defaultdict(list)
        for test, reason in self.reasons.items():
            if program := program_in(reason):
                found[program].append(test)
        return found

    def by_reason(self) -> dict[str, list[str]]:
        """The tests that were skipped for something else."""
        found: dict[str, list[str]] = defaultdict(list)
        for test, reason in self.reasons.items():
            if not program_in(reason):
                found[reason].append(test)
        return found

    def lines(self) -> Iterator[str]:
        for program, tests in sorted(self.by_program().items()):
            yield f"{program} is missing ({PROGRAMS[program].purpose}), {many(tests)}:"
            yield from (f"    {file}: {count}" for file, count in sorted(files(tests).items()))
            yield f"    to test them: {self.reasons[tests[0]].partition(': ')[2]}"
        for reason, tests in sorted(self.by_reason().items()):
            names = list(files(tests))
            more = f" and {len(names) - FILES_MAX} more" if len(names) > FILES_MAX else ""
            yield f"{many(tests)} ({', '.join(names[:FILES_MAX])}{more}): {reason}"
        if self.fails():
            yield f"STRICT=1: this run has failed for want of {', '.join(sorted(self.by_program()))}"

    def fails(self) -> bool:
        return os.environ.get("STRICT") == "1" and bool(self.by_program())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.reasons:
            terminalreporter.section("not tested here")
        for line in self.lines():
            terminalreporter.write_line(line)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """After a second run (tests/again.py), which may have turned a failure into a success."""
        yield
        if self.fails() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def program_in(reason: str) -> str:
    """The program that a reason for skipping says is missing, or nothing."""
    found = re.match(r"(\w+) is missing: ", reason)
    return found[1] if found and found[1] in PROGRAMS else ""


def files(tests: list[str]) -> Counter[str]:
    return Counter(test.partition("::")[0] for test in tests)


def many(tests: list[str]) -> str:
    return f"{len(tests)} test{'s' if len(tests) > 1 else ''}"


def needs(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("needs") for name in mark.args]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unknown = {f"{item.nodeid} needs {name}" for item in items for name in needs(item) if name not in PROGRAMS}
    if unknown:
        raise pytest.UsageError(f"no program of tests/programs.py: {', '.join(sorted(unknown))}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    try:
        for name in needs(item):
            path_of(name)
        return (yield)
    except ProgramMissing as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        return (yield)
    except ProgramMissing as error:
        pytest.skip(str(error))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Missing(), "missing")
