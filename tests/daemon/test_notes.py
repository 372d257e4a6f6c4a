"""Notes in a data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.daemon.notes import forget_restored
from swarmd.errors import LogWriteFailed
from swarmd.paths import NodeDirectory


def test_a_note_of_a_restore_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path)
    data.restored.mkdir()
    with pytest.raises(LogWriteFailed, match=r"removal of .*restored\.json failed"):
        forget_restored(data)
