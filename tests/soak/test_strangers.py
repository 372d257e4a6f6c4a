"""The soak under all attacks says what did not hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from swarmd.core.events import WorkerExited
from tests.soak import strangers
from tests.soak.strangers import Spell, endure, share_of_quiet


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


def test_a_time_in_which_no_quiet_round_was_closed_is_told_and_divides_nothing() -> None:
    with pytest.raises(AssertionError, match="--seconds is too little"):
        share_of_quiet([], [(0.0, 10.0)], [(10.0, 40.0)])


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (AssertionError("exit codes {'node-1': 1}"), 1, "error: exit codes {'node-1': 1}"),
    ],
    ids=["ctrl-c", "finding"],
)
def test_whatever_ends_it_the_place_of_its_nodes_is_named(
    raised: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(directory: Path, *_: object, **__: object) -> None:
        directory.rmdir()
        raise raised

    monkeypatch.setattr(strangers, "endure", end)
    monkeypatch.setattr(sys, "argv", ["strangers", "--seconds", "60"])
    assert strangers.main() == code
    said = capsys.readouterr()
    assert "the nodes are in /tmp/strangers-" in said.out and told in said.err and "Traceback" not in said.err


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "inf"])
def test_a_time_that_is_none_starts_no_node(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["strangers", f"--seconds={seconds}"])
    with pytest.raises(SystemExit):
        strangers.main()


@pytest.mark.soak
def test_nodes_outlive_a_minute_of_all_attacks(tmp_path: Path) -> None:
    made = endure(tmp_path, 60.0, print, after_s=10.0)
    assert made.rounds > 0 and not [event for event in made.exits if not event.outside], str(made)
