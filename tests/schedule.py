"""How `make tests` deals tests out to xdist's workers, by the seconds in tests/durations.json.

* A file is one unit of work, so what its tests share is made once. The longest comes first.
* Files that start whole nodes, several processes each that train, make two units: no more than two of them ever run at
  the same time.

`--record` writes what a run measured: seconds on the clock and of the processor, by file.
"""

import json
import resource
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

RECORDED = Path(__file__).with_name("durations.json")
UNKNOWN_S = 2.0  # what a file counts as that nobody has timed
WHOLE_NODES = (
    "tests/e2e/",
    "tests/soak/",
    "tests/cli/test_local.py",
    "tests/training/test_ranks.py",
    "tests/training/test_sharding.py",
    "tests/units/test_real.py",
)

Seconds = dict[str, dict[str, float]]  # by file: `wall_s`, `cpu_s`


@cache
def recorded() -> Seconds:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def wall_s(file: str) -> float:
    return recorded().get(file, {}).get("wall_s", UNKNOWN_S)


@cache
def halves() -> list[list[str]]:
    """The files of whole nodes in two units of about the same length."""
    found: list[list[str]] = [[], []]
    for file in sorted((each for each in recorded() if each.startswith(WHOLE_NODES)), key=wall_s, reverse=True):
        min(found, key=lambda unit: sum(map(wall_s, unit))).append(file)
    return found


def unit_of(test: str) -> tuple[float, str]:
    """Minus the seconds of a test's unit, so that the longest sorts first, and the unit's name."""
    file = test.partition("::")[0]
    if not file.startswith(WHOLE_NODES):
        return -wall_s(file), file
    number = int(file in halves()[1])
    return -sum(map(wall_s, halves()[number])), f"whole nodes {number}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: unit_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)[1]

    config.option.loadscopereorder = False  # or xdist sorts by the number of tests
    return Units(config, log)


class Recorder:
    """Adds up what each file took; in a worker, puts the seconds of processor into the last report of a test."""

    def __init__(self) -> None:
        self.measured: Seconds = defaultdict(lambda: {"wall_s": 0.0, "cpu_s": 0.0})
        self.began_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        self.began_s = processor_s()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append(("cpu_s", processor_s() - self.began_s))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self.measured[report.nodeid.partition("::")[0]]
        entry["wall_s"] += report.duration
        if report.when == "teardown":
            entry["cpu_s"] += dict(report.user_properties)["cpu_s"]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        merged = {file: each for file, each in (recorded() | self.measured).items() if Path(file).exists()}
        lines = [
            f'"{file}": {{"wall_s": {each["wall_s"]:.1f}, "cpu_s": {each["cpu_s"]:.1f}}}'
            for file, each in sorted(merged.items())
        ]
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def processor_s() -> float:
    """Of this process and of those of its children that it has waited for."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in spent)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write how long each file took into tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    once_more = config.getoption("lf", False)  # and then not all of a file runs
    if config.getoption("--record") and not once_more:
        config.pluginmanager.register(Recorder())
