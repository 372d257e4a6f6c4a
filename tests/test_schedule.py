"""How files are dealt out: the longest first, those of whole nodes in two units."""

import pytest

from tests import schedule


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
