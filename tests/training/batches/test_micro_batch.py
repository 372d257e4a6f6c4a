"""Into how small parts a batch is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.training.batches.micro_batch import PARTS, keep_rows, load_rows


def test_the_next_process_begins_where_memory_sufficed(tmp_path: Path) -> None:
    assert load_rows(tmp_path, 16, 32) == 16
    keep_rows(tmp_path, 4, 16, 32)
    assert load_rows(tmp_path, 16, 32) == 4


@pytest.mark.parametrize(("first", "batch"), [(8, 32), (16, 64)])
def test_other_settings_begin_anew(tmp_path: Path, first: int, batch: int) -> None:
    keep_rows(tmp_path, 4, 16, 32)
    assert load_rows(tmp_path, first, batch) == first


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b'{"rows":5,"first":16,"batch":32}', b'{"rows":0,"first":16,"batch":32}']
)
def test_a_damaged_note_only_costs_the_lesson(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PARTS).write_bytes(damage)
    assert load_rows(tmp_path, 16, 32) == 16


def test_a_note_that_cannot_be_written_only_costs_the_lesson(tmp_path: Path) -> None:
    """Else an error of the disk would take the place of the want of memory, which smaller parts would have helped."""
    (tmp_path / PARTS).mkdir()
    keep_rows(tmp_path, 4, 16, 32)
    assert [each.name for each in tmp_path.iterdir()] == [PARTS] and load_rows(tmp_path, 16, 32) == 16
    keep_rows(tmp_path / "gone", 4, 16, 32)
