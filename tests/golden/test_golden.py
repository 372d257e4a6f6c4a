"""The golden logs fold to the states and commands that were recorded with them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from swarmd.core.events import Event, tag_of
from swarmd.core.state import state_enc_hook
from swarmd.eventlog.fold import fold_log, load_state
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import verify_log
from swarmd.eventlog.snapshot import decode_state, encode_state
from tests.golden.record import EVENTS_MAX, SCENES, state_json

HERE = Path(__file__).parent
MACHINE = re.compile(r"/(work|home|root|tmp|Users)/")  # where logs are recorded, and nodes do not run
LOGS = [HERE / name for name in SCENES]
# What no simulated swarm of so few nodes tells of: many at once, a contract that many report to, a push to the Hub, and
# a fork (`tests.backup.test_fork`).
ABSENT = {"members_seen", "reports_seen", "submissions_counted", "model_pushed", "node_forked"}
each_log = pytest.mark.parametrize("node", LOGS, ids=lambda node: node.name)


@each_log
def test_a_golden_log_replays(node: Path) -> None:
    assert 20 < verify_log(node / "events").events <= EVENTS_MAX + 2  # the stop at the end
    state, _ = load_state(node / "events")
    assert msgspec.json.decode(state_json(state)) == msgspec.json.decode((node / "state.json").read_bytes())


def test_every_kind_of_event_is_in_a_golden_log() -> None:
    found = {tag_of(event) for node in LOGS for commit in read_commits(node / "events") for event in commit.events}
    assert {kind.__struct_config__.tag for kind in get_args(Event)} - found == ABSENT


@each_log
def test_a_golden_log_holds_no_path_of_the_machine_that_recorded_it(node: Path) -> None:
    state = msgspec.json.decode((node / "state.json").read_bytes())
    commits = [msgspec.to_builtins(commit.events) for commit in read_commits(node / "events")]
    assert [text for text in texts_in([state, *commits]) if MACHINE.search(text)] == []


@each_log
def test_every_state_of_a_golden_log_reads_back_as_it_is_kept(node: Path) -> None:
    """A node takes a snapshot wherever a segment ends, and the fold of the log is compared with it later."""
    for applied in fold_log(node / "events"):
        again = decode_state(msgspec.msgpack.encode(applied.after, enc_hook=state_enc_hook))
        assert encode_state(again) == encode_state(applied.after), f"seq {applied.seq}"


def texts_in(value: object) -> Iterator[str]:
    """All text in events, or in a state, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)
