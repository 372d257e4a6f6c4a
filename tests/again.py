"""With `--again`, a test that starts processes and failed is run once more, by itself, when all others are done.

Such a test has deadlines, and on a busy machine a process that should answer in seconds may not run for longer. A test
of pure code has no such excuse and is never run again. The first failure is shown in full, the last lines of the output
name every test that needed a second run, and one that fails again fails the whole. A run may need six: where more
tests fail, none is run again, and the run has failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

STARTING_PROCESSES = (
    *(
        f"tests/{name}/"
        for name in ("backup", "chain", "cli", "contracts", "daemon", "dht", "doctor", "e2e", "sandbox")
    ),
    *(f"tests/{name}/" for name in ("monitoring", "packaging", "soak", "training/reference", "units", "web", "worker")),
    *(f"tests/training/{name}.py" for name in ("distributed/test_ranks", "distributed/test_sharded", "test_worker")),
    "tests/training/sampling/test_vllm.py",
    *(f"tests/test_{name}.py" for name in ("api", "bench", "from_trl", "installed")),
    "tests/hostile/",
    "tests/observe/telemetry/test_otlp.py",
)
MOST = 6  # of thousands; more failures than these are no accident
LONGEST_S = 900.0
TAIL_LINES = 60


@dataclass(eq=False)
class Again:
    """What failed in this run, and how it went by itself. Compared by identity: pytest keeps plugins in sets."""

    config: pytest.Config
    failed: dict[str, None] = field(default_factory=dict)  # in order
    verdicts: dict[str, str] = field(default_factory=dict)  # test -> "" or the end of what it printed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[ungrouped(report.nodeid)] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self.may_be_accidents() or self.are_too_many():
            return
        for test in self.failed:
            self.verdicts[test] = run_alone(test, self.config)
        if not any(self.verdicts.values()):
            session.exitstatus = pytest.ExitCode.OK

    def may_be_accidents(self) -> bool:
        """Whether each of the failed tests starts processes."""
        return bool(self.failed) and all(test.startswith(STARTING_PROCESSES) for test in self.failed)

    def are_too_many(self) -> bool:
        return len(self.failed) > MOST

    def lines(self) -> Iterator[str]:
        for test, output in self.verdicts.items():
            if output:
                yield output
            yield f"RAN AGAIN {'and failed again' if output else 'and passed'}: {test}"
        if self.may_be_accidents() and self.are_too_many():
            yield f"NOT RUN AGAIN: {len(self.failed)} tests failed, and a run may have {MOST} accidents:"
            yield from (f"  {test}" for test in self.failed)

    def pytest_unconfigure(self) -> None:
        for line in self.lines():
            print(line, flush=True)


def ungrouped(test: str) -> str:
    """The name without the group that `--dist loadgroup` puts behind it."""
    name, at, group = test.rpartition("@")
    return name if at and "]" not in group else test


def run_alone(test: str, config: pytest.Config) -> str:
    """Run one test in a process of its own. The end of its output, or nothing when it passed."""
    long_forms = ["--soak"] if config.getoption("soak", False) else []  # else one of them would be left out
    order = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *long_forms, test]
    try:
        done = subprocess.run(order, cwd=config.rootpath, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"{test} took more than {LONGEST_S:.0f} s"
    if done.returncode == 0 and " passed" in done.stdout:
        return ""
    return "\n".join((done.stdout + done.stderr).splitlines()[-TAIL_LINES:])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", action="store_true", help="run failed tests that start processes once more, alone")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--again") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Again(config), "again")
