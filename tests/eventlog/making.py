"""Events of all kinds for property tests, and logs that a real core has written."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from swarmd.core.events import Event, MemberSeen
from swarmd.core.state import State
from swarmd.core.step import RULES, StateFold
from swarmd.eventlog.fold import apply_commit
from swarmd.eventlog.frame import NO_COMMANDS, Commit, digest_commands
from swarmd.eventlog.store import LOG_BYTES_MAX, EventLog
from swarmd.shell.loop import plan_commit
from tests.core.story import Story, announced, coordinator_settings, gathered, settings, trained

NODE = "12D3KooWAlice"
ANY_BYTES = 1 << 30

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(),
    str: st.text(st.characters(codec="utf-8"), max_size=20),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
    NoneType: st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    return structs_of(kind)


def structs_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Structs of one class, all fields filled."""
    return st.builds(kind, **{field.name: values_of(field.type) for field in msgspec.structs.fields(kind)})


EVENTS = st.one_of(*map(structs_of, get_args(Event)))
COMMITS_EVENTS = st.lists(st.lists(EVENTS, min_size=1, max_size=4), min_size=1, max_size=8)


def packed(value: Any) -> bytes:
    """For comparing values that may hold NaN."""
    return msgspec.msgpack.encode(value)


def open_log(directory: Path, run: str = "run", **bounds: int) -> EventLog:
    """A log of NODE."""
    return EventLog.open(directory, NODE, run, **({"bytes_max": LOG_BYTES_MAX} | bounds))


def write_groups(directory: Path, groups: Sequence[Sequence[Event]], run: str = "run", **bounds: int) -> list[Commit]:
    """Append each group as a commit; the digests are those of no commands."""
    with open_log(directory, run, **bounds) as log:
        return [log.append(float(index), group, NO_COMMANDS) for index, group in enumerate(groups)]


def members(count: int, first: int = 0) -> list[list[Event]]:
    """Groups of one small event each, all different."""
    return [[MemberSeen(f"peer{number}", "x" * (number % 17))] for number in range(first, first + count)]


def follower_story(rounds: int = 3) -> list[Event]:
    """What a follower lives through in some rounds, as the core expands it."""
    story = Story.joined(settings(peer=NODE))
    for number in range(rounds):
        story.at += 10
        story.tell(announced(number, deadline_at=1e6))
        story.tell(gathered(number))
        story.tell(trained(number, reward=0.1 * number))
    return story.recorded


def coordinator_story() -> list[Event]:
    """A coordinator's first minutes."""
    story = Story.joined(coordinator_settings())
    story.tell(*[MemberSeen(f"peer{number}") for number in range(3)])
    return story.recorded


def write_story(log: EventLog, events: Sequence[Event], state: State, group: int = 2) -> State:
    """Commit events as the daemon does, with the digests of what they cause, and snapshots when they are due."""
    fold = StateFold(state)
    for index in range(0, len(events), group):
        planned = Commit(log.next_seq, 1000.0 + log.next_seq, RULES, tuple(events[index : index + group]), b"")
        log.append(planned.at, planned.events, digest_commands(apply_commit(fold, planned)))
        if log.is_snapshot_due:
            log.write_snapshot(fold.state)
    return fold.state


def write_planned(log: EventLog, events: Iterable[Event], state: State, at: float = 1.0) -> State:
    """Commit events one by one with all that the core makes of them, as the daemon does."""
    for event in events:
        planned = plan_commit(state, log.next_seq, at, [event])
        log.append(at, planned.events, digest_commands(planned.commands))
        state = planned.state
    return state


def flip(path: Path, at: int | None = None) -> None:
    """Change a bit of a file: of the byte at this place, or in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
