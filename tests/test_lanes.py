"""How tests are dealt out to workers: heavy ones apart, long ones first, each exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import lanes
from tests.durations import Duration
from tests.lanes import Lane, in_order, lane_of, lanes_of, unit_of

ROOT = Path(__file__).resolve().parent.parent
RECORDED = {
    "tests/core/test_a.py": Duration(wall_s=1.0),
    "tests/core/test_b.py": Duration(wall_s=9.0),
    "tests/training/test_c.py": Duration(wall_s=5.0, torch=True),
    "tests/e2e/test_d.py": Duration(wall_s=50.0, tests={"test_long": 40.0, "test_short": 10.0}),
}

LOCAL = """
from __future__ import annotations

from tests import lanes
from tests.lanes import *  # its hooks

lanes.recorded = lambda: {"test_torch.py": lanes.Duration(torch=True)}
lanes.WHOLE_NODES = ("test_nodes",)
lanes.TEST_BY_TEST = ("test_nodes",)
"""
CASES = """
import os, pytest

collected_elsewhere = {{"gw2": ["nodes"], "gw3": ["nodes", "torch"]}}
assert {kind!r} not in collected_elsewhere.get(os.environ.get("PYTEST_XDIST_WORKER"), [])

@pytest.mark.parametrize("case", range(4))
def test_it(case):
    with open({record!r}, "a") as record:
        record.write(os.environ["PYTEST_XDIST_WORKER"] + " " + {kind!r} + "\\n")
"""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "recorded", lambda: RECORDED)


@pytest.mark.usefixtures("recorded")
def test_heavy_lanes_come_first_and_in_each_the_longest_unit() -> None:
    tests = [f"{file}::test_short" for file in RECORDED] + ["tests/e2e/test_d.py::test_long", "tests/new.py::test_x"]
    assert in_order(tests) == [
        "tests/e2e/test_d.py::test_long",
        "tests/e2e/test_d.py::test_short",
        "tests/training/test_c.py::test_short",
        "tests/core/test_b.py::test_short",
        "tests/new.py::test_x",
        "tests/core/test_a.py::test_short",
    ]


def test_the_tests_of_a_file_keep_their_order_and_stay_together() -> None:
    tests = ["tests/z/test_x.py::test_2", "tests/z/test_x.py::test_1", "tests/y/test_x.py::test_3"]
    assert in_order(tests) == [tests[2], tests[0], tests[1]]


@pytest.mark.usefixtures("recorded")
def test_each_kind_of_test_has_its_lane() -> None:
    assert lane_of("tests/e2e/test_d.py::test_long") is Lane.WHOLE_NODES
    assert lane_of("tests/training/test_c.py") is Lane.TORCH
    assert lane_of("tests/core/test_a.py") is lane_of("tests/new.py") is Lane.ANY


@pytest.mark.parametrize(("workers", "torch"), [(1, 1), (2, 2), (4, 2), (5, 2), (6, 3), (24, 3)])
def test_with_few_workers_half_of_them_do_without_torch(workers: int, torch: int) -> None:
    taken = [lanes_of(f"gw{number}", workers) for number in range(workers)]
    assert [Lane.TORCH in lane for lane in taken] == [number < torch for number in range(workers)]


def test_two_workers_take_whole_nodes_three_take_torch_all_take_the_rest() -> None:
    taken = [lanes_of(f"gw{number}", 6) for number in range(6)]
    assert [lane for lane in taken if Lane.WHOLE_NODES in lane] == taken[:2]
    assert [lane for lane in taken if Lane.TORCH in lane] == taken[:3]
    assert all(Lane.ANY in lane for lane in taken)
    assert lanes_of("gw6", 6) == lanes_of("gw0", 6)  # it replaces one that crashed


def test_every_path_that_is_named_is_there() -> None:
    for path in (*lanes.WHOLE_NODES, *lanes.TEST_BY_TEST):
        assert (ROOT / path).exists() or list(ROOT.glob(f"{path}*.py")), path


def test_units_are_files_but_for_long_independent_tests() -> None:
    assert unit_of("tests/core/test_a.py::test_x[1::2]") == "tests/core/test_a.py"
    assert unit_of("tests/e2e/test_rounds.py::test_x") == "tests/e2e/test_rounds.py::test_x"


def test_workers_run_each_test_once_and_keep_to_their_lanes(tmp_path: Path) -> None:
    record = tmp_path / "record"
    kinds = ("nodes", "torch", "any", "other")
    (tmp_path / "local.py").write_text(LOCAL)
    for kind in kinds:
        (tmp_path / f"test_{kind}.py").write_text(CASES.format(record=str(record), kind=kind))
    order = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "local", "--lanes", "-n", "6", "."]
    paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")} | paths
    done = subprocess.run(order, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "16 passed" in done.stdout, done.stdout + done.stderr
    ran = [line.split() for line in record.read_text().splitlines()]
    assert {worker for worker, kind in ran if kind == "nodes"} <= {"gw0", "gw1"}
    assert {worker for worker, kind in ran if kind == "torch"} <= {"gw0", "gw1", "gw2"}
    assert sorted(kind for _, kind in ran) == sorted(kinds * 4)
