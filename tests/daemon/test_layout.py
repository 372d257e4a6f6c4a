"""A data directory says how files lie in it, and one of another layout is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.daemon.directory import LAYOUT, claim_layout, read_layout
from swarmd.errors import LogDamaged, OtherVersion
from swarmd.paths import NodeDirectory


@pytest.mark.parametrize("layout", [LAYOUT - 1, LAYOUT + 1])
def test_another_layout_is_refused(tmp_path: Path, layout: int) -> None:
    data = NodeDirectory(tmp_path)
    data.layout.write_text(f'{{"layout": {layout}}}')
    with pytest.raises(OtherVersion, match=f"has layout {layout}, this swarmd has layout {LAYOUT}"):
        claim_layout(data)


def test_a_layout_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path)
    data.layout.write_text("{")
    with pytest.raises(LogDamaged, match="layout"):
        claim_layout(data)


def test_a_new_directory_is_given_the_present_layout(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path)
    claim_layout(data)
    assert data.layout.exists() and read_layout(data) == LAYOUT
