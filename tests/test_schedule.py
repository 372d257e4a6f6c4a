"""How files are dealt out: the longest first, those of whole nodes in two units; and what all may take together."""

import pytest

from tests import schedule

BUDGET_S = 1800  # of all files one after another, each with a core of its own
SLOWEST = 20


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"tests/core/test_a.py": 1.0, "tests/core/test_b.py": 50.0}
    seconds |= {f"tests/e2e/test_{name}.py": wall_s for name, wall_s in (("x", 60.0), ("y", 40.0), ("z", 30.0))}
    monkeypatch.setattr(schedule, "recorded", lambda: {file: {"wall_s": each} for file, each in seconds.items()})
    schedule.halves.cache_clear()


@pytest.mark.usefixtures("recorded")
def test_the_longest_unit_comes_first_and_whole_nodes_make_two() -> None:
    files = ("core/test_a", "core/test_b", "core/test_new", "e2e/test_x", "e2e/test_y", "e2e/test_z", "e2e/test_new")
    units = sorted({schedule.unit_of(f"tests/{file}.py::test_it") for file in files})
    assert units == [
        (-70.0, "whole nodes 1"),
        (-60.0, "whole nodes 0"),
        (-50.0, "tests/core/test_b.py"),
        (-schedule.UNKNOWN_S, "tests/core/test_new.py"),
        (-1.0, "tests/core/test_a.py"),
    ]
    schedule.halves.cache_clear()


def is_there(file: str) -> bool:
    return (schedule.RECORDED.parents[1] / file).exists()


def test_all_files_together_keep_to_the_budget() -> None:
    slowest = sorted(filter(is_there, schedule.recorded()), key=schedule.wall_s, reverse=True)
    whole_s = sum(map(schedule.wall_s, slowest))
    listed = "\n".join(f"{schedule.wall_s(file):8.1f} s  {file}" for file in slowest[:SLOWEST])
    assert whole_s <= BUDGET_S, (
        f"by tests/durations.json, tests take {whole_s:.0f} s, {whole_s - BUDGET_S:.0f} s more than they may; make the "
        f"slowest faster, and record the times with `make durations` on a machine with nothing else to do:\n{listed}"
    )
