"""With `--lanes`, how pytest-xdist deals tests out to its workers, which are more than the machine has cores.

Most tests wait for processes, so two of them on two cores would leave the cores idle. Heavy tests must not all meet,
and importing torch costs each worker seconds. So there are three lanes:

* whole nodes (each such test starts several processes that train) run on the first two workers only;
* tests that import torch run on these and the next one;
* all others run anywhere.

A worker takes from the heaviest lane that it may take from, longest first, and does not even import the tests of
others. A file is one unit of work, so what its tests share is made once; files of long tests that share nothing are
dealt out test by test.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import durations
from tests.durations import UNKNOWN_S, Duration

WHOLE_NODES = (
    "tests/e2e/",
    "tests/soak/",
    "tests/cli/local_swarm/test_command.py",
    "tests/monitoring/test_node.py",
    "tests/training/distributed/test_ranks.py",
    "tests/training/distributed/test_sharded.py",
)
TEST_BY_TEST = ("tests/e2e/test_", "tests/cli/local_swarm/test_command.py")


class Lane(IntEnum):
    """The value is the number of workers that take tests of this lane, heaviest first; ANY has no bound.

    Of those with torch there are never more than half: the others do without its import, 6 s of processor each.
    """

    WHOLE_NODES = 2
    TORCH = 3
    ANY = 1 << 16


recorded = cache(durations.read)


def unit_of(test: str) -> str:
    """The unit of work that a test belongs to: its file, or itself."""
    return test if test.startswith(TEST_BY_TEST) else test.partition("::")[0]


def lane_of(unit: str) -> Lane:
    if unit.startswith(WHOLE_NODES):
        return Lane.WHOLE_NODES
    return Lane.TORCH if recorded().get(unit.partition("::")[0], Duration()).torch else Lane.ANY


def seconds_of(unit: str) -> float:
    """What is on record: of a file its sum, of a single test its own (short ones are not on record)."""
    file, _, test = unit.partition("::")
    known = recorded().get(file, Duration())
    return known.tests.get(test, UNKNOWN_S) if test else known.wall_s


def in_order(tests: Iterable[str]) -> list[str]:
    """Heaviest lane first, in it the longest unit first; the tests of a unit stay together in their own order."""
    return sorted(tests, key=lambda test: (lane_of(unit_of(test)), -seconds_of(unit_of(test)), unit_of(test)))


def lanes_of(worker: str, workers: int) -> list[Lane]:
    """What a worker (gw0, gw1, ...) takes. One that replaces a crashed worker has a number beyond and starts anew."""
    number = int(worker.removeprefix("gw")) % workers
    return [lane for lane in Lane if number < (min(lane, max(2, workers // 2)) if lane is Lane.TORCH else lane)]


def is_for_others(file: str) -> bool:
    """Whether this process is a worker that takes no tests of this file."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    return bool(worker and workers) and lane_of(file) not in lanes_of(str(worker), int(str(workers)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("lanes"):
        return None
    if collection_path.is_dir():
        return all_for_others(collection_path, config.rootpath) or None
    if not collection_path.name.startswith("test_"):
        return None
    return is_for_others(collection_path.relative_to(config.rootpath).as_posix()) or None


def all_for_others(directory: Path, root: Path) -> bool:
    """Whether this process takes none of a directory's tests, so that it need not read its conftest.py either."""
    files = [path.relative_to(root).as_posix() for path in directory.rglob("test_*.py")]
    return bool(files) and all(map(is_for_others, files))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("lanes"):
        place = {test: number for number, test in enumerate(in_order(item.nodeid for item in items))}
        items.sort(key=lambda item: place[item.nodeid])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lanes", action="store_true", help="keep heavy tests apart; for -n above the number of cores")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return make_scheduler(config, log) if config.getoption("lanes") else None


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """xdist is imported here, since pytest also runs without it."""
    from xdist.scheduler import LoadScopeScheduling

    class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Deals out units in the order of collection, each to a worker of its lane."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def _check_nodes_have_same_collection(self) -> bool:
            """They have not: each has what it may take. The first has all, and stands first, for xdist goes by it."""
            fullest = sorted(self.registered_collections.items(), key=lambda item: -len(item[1]))
            self.registered_collections = dict(fullest)
            self.config.pluginmanager.get_plugin("session").testscollected = len(fullest[0][1])
            return True

        def _assign_work_unit(self, node: Any) -> None:
            lanes = lanes_of(node.gateway.id, self.numnodes)
            unit = next((each for each in self.workqueue if lane_of(each) in lanes), None)
            if unit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            """One test waits behind the one that runs, which is the least that xdist's workers need."""
            if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    config.option.loadscopereorder = False
    return LaneScheduling(config, log)
