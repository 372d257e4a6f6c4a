"""The soaks notice what a stopped node left behind, and what did not hold under attack."""

from pathlib import Path

import pytest

from tests.soak.strangers import endure


@pytest.mark.soak
def test_nodes_outlive_a_minute_of_all_attacks(tmp_path: Path) -> None:
    made = endure(tmp_path, 60.0, print, after_s=10.0)
    assert made.rounds > 0 and not [event for event in made.exits if not event.outside], str(made)
