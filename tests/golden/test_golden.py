"""Logs recorded by earlier versions fold to the states and commands of then."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swarmd.core.step import RULES
from swarmd.eventlog.fold import load
from swarmd.eventlog.replay import verify

HERE = Path(__file__).parent
LOGS = sorted(HERE.glob("rules-*/*/node-*"))


def test_there_are_golden_logs() -> None:
    assert len(LOGS) >= 6
    assert HERE.joinpath(f"rules-{RULES}").is_dir(), "each version of the rules has logs of its own"


@pytest.mark.parametrize("node", LOGS, ids=lambda node: "/".join(node.parts[-3:]))
def test_a_golden_log_replays(node: Path) -> None:
    verified = verify(node / "events")
    assert verified.events > 20
    state, _ = load(node / "events")
    assert msgspec.json.decode(msgspec.json.encode(state)) == msgspec.json.decode((node / "state.json").read_bytes())
