"""Repeated lines become counts; a flood is bounded."""

from __future__ import annotations

from swarmd.observe.logging.logs import LINES_A_WINDOW_MAX, LINES_TRACKED_MAX, WINDOW_S, LineFolder
from tests.log_capture import capture_logs


def test_repeats_are_counted_for_a_minute_and_told_once() -> None:
    folder = LineFolder("network")
    with capture_logs() as told:
        for second in range(5):
            folder.log("warning", f"Nov 20 10:00:0{second}.123 broken pipe", 10.0 + second)
        folder.log("info", "another", 12.0)
        folder.tick(10.0 + WINDOW_S)
        folder.log("warning", "Nov 20 10:01:30.000 broken pipe", 10.0 + WINDOW_S + 20)
    texts = [(line["event"][-11:], line.get("repeated")) for line in told]
    assert texts == [("broken pipe", None), ("another", None), ("broken pipe", 4), ("broken pipe", None)]


def test_a_flood_in_which_each_line_comes_twice_is_bounded_as_well() -> None:
    folder, lines = LineFolder("trainer"), 10 * LINES_A_WINDOW_MAX
    with capture_logs() as told:
        for number in range(lines):
            folder.log("info", f"line {number}", 100.0)
            folder.log("info", f"line {number}", 100.0)
        folder.flush()
    assert len(told) <= LINES_A_WINDOW_MAX + LINES_TRACKED_MAX + 1
    said = [line.get("repeated", 1) for line in told[:-1]]
    assert sum(said) + told[-1]["lines_dropped"] == 2 * lines, "none is neither told nor counted"
