"""Logs recorded by earlier versions fold to the states and commands of then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarmd.core.step import RULES
from swarmd.eventlog.fold import load
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import verify

HERE = Path(__file__).parent
MACHINE = re.compile(r"/(work|home|root|tmp|Users)/")  # where logs are recorded, and nodes do not run
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


@pytest.mark.parametrize("node", LOGS, ids=lambda node: "/".join(node.parts[-3:]))
def test_a_golden_log_holds_no_path_of_the_machine_that_recorded_it(node: Path) -> None:
    state = msgspec.json.decode((node / "state.json").read_bytes())
    commits = [msgspec.to_builtins(commit.events) for commit in read_commits(node / "events")]
    assert [text for text in texts_in([state, *commits]) if MACHINE.search(text)] == []


def texts_in(value: object) -> Iterator[str]:
    """All text in events, or in a state, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)
