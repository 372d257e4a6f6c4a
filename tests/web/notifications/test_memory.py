"""A node's notes are told once, however many processes stand beside its lives."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from swarmd.observe.status import Status
from swarmd.observe.telemetry.metrics import Metrics
from swarmd.web.notifications.health_changes import HealthChanges, HealthMessage
from swarmd.web.notifications.notifier import HealthNotifier, NotifierState
from tests.web.notifications.test_health_changes import DEAD, ILL, WELL


class Beside:
    """The process beside one life of a daemon."""

    def __init__(self, directory: Path, clock: list[float]) -> None:
        self.clock = clock
        self.memory = NotifierState(directory)
        self.notifier = HealthNotifier(HealthChanges(60, 900), [], Metrics(), self.memory, lambda: clock[0])

    def live(self, status: Status, lasts_s: float) -> list[HealthMessage]:
        end = self.clock[0] + lasts_s
        notes: list[HealthMessage] = []
        while self.clock[0] < end:
            notes += self.notifier.look(status)
            self.clock[0] += 5
        return notes


def test_a_crash_loop_is_told_once_by_all_processes_together(tmp_path: Path) -> None:
    clock = [1000.0]
    notes: list[HealthMessage] = []
    for life in range(30):
        beside = Beside(tmp_path / "run", clock)
        running = replace(WELL, process=replace(WELL.process, run=f"r{life}"))
        notes += beside.live(running, 10) + beside.live(DEAD, 10)
        beside.memory.release()
    assert [(note.layer, note.well) for note in notes] == [("process", False)]


def test_the_next_process_tells_that_it_is_well_again(tmp_path: Path) -> None:
    clock = [1000.0]
    first = Beside(tmp_path, clock)
    assert len(first.live(ILL, 1200)) == 1
    first.memory.release()
    second = Beside(tmp_path, clock)
    notes = second.live(WELL, 300)
    assert [(note.layer, note.well, note.lasted_s) for note in notes] == [("network", True, 1200)]


def test_while_one_tells_the_next_looks_on(tmp_path: Path) -> None:
    clock = [1000.0]
    first, second = Beside(tmp_path, clock), Beside(tmp_path, clock)
    assert first.live(DEAD, 30) == []
    assert second.live(DEAD, 300) == [], "the first one holds the word"
    first.memory.release()
    assert len(second.live(DEAD, 300)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b'{"tracks": 7}', b'{"tracks": {"process": {}}}'])
def test_a_memory_that_makes_no_sense_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notify.json").write_bytes(content)
    assert len(Beside(tmp_path, [1000.0]).live(DEAD, 300)) == 1


def test_a_directory_that_cannot_be_written_to_forbids_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(Beside(tmp_path / "file" / "run", [1000.0]).live(DEAD, 300)) == 1
