"""The soak under all attacks says what did not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmd.core.events import WorkerExited
from tests.soak.strangers import Spell, endure


def spell(**changed: Any) -> Spell:
    made = Spell.__new__(Spell)
    made.__dict__.update({"share": 1.0, "rounds": 9, "uncredited": 0, "growth_mib": 9.0, "exits": []} | changed)
    return made


def test_nothing_is_found_where_all_held() -> None:
    made = spell(exits=[WorkerExited("network", "makes room", outside=True)])
    assert made.findings == [] and "1.00 of the quiet rate" in str(made)


@pytest.mark.parametrize(
    "changed",
    [{"share": 0.94}, {"uncredited": 1}, {"growth_mib": 65.0}, {"exits": [WorkerExited("trainer", "killed")]}],
    ids=str,
)
def test_what_did_not_hold_is_found(changed: dict[str, Any]) -> None:
    assert len(spell(**changed).findings) == 1


@pytest.mark.soak
def test_nodes_outlive_a_minute_of_all_attacks(tmp_path: Path) -> None:
    made = endure(tmp_path, 60.0, print, after_s=10.0)
    assert made.rounds > 0 and not [event for event in made.exits if not event.outside], str(made)
