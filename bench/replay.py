"""Replay: a recorded log folded in place, and the same triggers through the machines of `transitions`.

The log is that of a three-node swarm's coordinator and of one of its followers, half the events each. It is folded as a
start and `log verify` do; beside it through `step`, with a State of each event. `transitions` gets the triggers that
moved a chart, and nothing else to do: no deadlines, no commands, no results; so what it is compared with does more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Sample, ratios, take_turns
from bench.recording import record, write_log
from bench.table import Row
from swarmd.core.chart import NAMES, AnyChart, Charts, build_machine, default_charts
from swarmd.core.events import Envelope
from swarmd.core.state import State
from swarmd.core.step import StateFold, step
from swarmd.core.values import Role
from swarmd.eventlog.fold import apply_commit
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import verify_log

EVENTS = 100_000  # in all
ROUNDS = 5
MACHINE_EVENTS = 4_000  # of each log, for `transitions`
RATE_GOAL = 350_000.0
RATIO_GOAL = 28.0

Moves = list[tuple[str, str]]  # chart, trigger


def run(directory: Path) -> Iterable[Row]:
    roles: tuple[Role, ...] = ("coordinator", "follower")
    lives = {role: record(role, EVENTS // 2).commits for role in roles}
    logs = {role: write_log(directory / role, commits, group=8) for role, commits in lives.items()}
    envelopes = {role: [each for commit in commits for each in commit.envelopes()] for role, commits in lives.items()}
    count = sum(map(len, envelopes.values()))
    machines = {role: moves_of(each[:MACHINE_EVENTS]) for role, each in envelopes.items()}
    turns: dict[str, Callable[[], float]] = {
        role: partial(rate, len(each), fold, each) for role, each in envelopes.items()
    }
    rates = take_turns(
        {
            **turns,
            "both": partial(rate, count, fold_all, list(envelopes.values())),
            "step": partial(rate, count, step_all, list(envelopes.values())),
            "decode": partial(rate, count, decode_all, list(logs.values())),
            "log": partial(rate, count, replay_all, list(logs.values())),
            "verify": partial(rate, count, verify_all, list(logs.values())),
            "table": partial(rate, count_of(machines), drive_tables, list(machines.values())),
            "triggers": partial(rate, count_of(machines), drive_all, list(machines.values())),
            "transitions": partial(rate, MACHINE_EVENTS * len(machines), drive_all, list(machines.values())),
        },
        ROUNDS,
    )
    yield from rows(rates)


def rows(rates: dict[str, Sample]) -> Iterable[Row]:
    both, unit = rates["both"], "events/s"
    yield Row("fold in place", unit, both, "goal", None, None, f">= {RATE_GOAL:,.0f}", both.median >= RATE_GOAL)
    ratio = ratios(both, rates["transitions"])
    yield Row(
        "the same triggers",
        unit,
        both,
        "transitions",
        rates["transitions"],
        ratio,
        f">= {RATIO_GOAL:g}x",
        ratio.median >= RATIO_GOAL,
    )
    for role in ("coordinator", "follower"):
        yield Row(f"fold in place, the {role}'s log alone", unit, rates[role])
    ratio = ratios(both, rates["step"])
    yield Row("fold in place", unit, both, "a State of each event, through step", rates["step"], ratio)
    ratio = ratios(rates["table"], rates["triggers"])
    yield Row("the charts alone", "triggers/s", rates["table"], "transitions", rates["triggers"], ratio)
    yield Row("decode alone: read, CRC, msgpack", unit, rates["decode"])
    yield Row("decode and fold", unit, rates["log"])
    yield Row("replay --verify: with digests", unit, rates["verify"])


def rate(count: int, work: Callable[[Sequence[Any]], object], what: Sequence[Any]) -> float:
    """Events per second of this process's processor time."""
    began = time.process_time()
    work(what)
    return count / (time.process_time() - began)


def fold(envelopes: Sequence[Envelope]) -> State:
    """The state after all of them."""
    folded = StateFold()
    for envelope in envelopes:
        folded.apply(envelope)
    return folded.state


def fold_all(logs: Sequence[Sequence[Envelope]]) -> None:
    for envelopes in logs:
        fold(envelopes)


def step_all(logs: Sequence[Sequence[Envelope]]) -> None:
    for envelopes in logs:
        state = State()
        for envelope in envelopes:
            state, _ = step(state, envelope)


def decode_all(directories: Sequence[Path]) -> None:
    for directory in directories:
        for commit in read_commits(directory):
            commit.envelopes()


def replay_all(directories: Sequence[Path]) -> None:
    for directory in directories:
        folded = StateFold()
        for commit in read_commits(directory):
            apply_commit(folded, commit)


def verify_all(directories: Sequence[Path]) -> None:
    for directory in directories:
        verify_log(directory)


# --- transitions ---


class NotingTable(dict[tuple[str, str], str]):
    """A chart's table that notes which triggers led somewhere."""

    def __init__(self, chart: AnyChart, moves: Moves) -> None:
        super().__init__(chart.table)
        self._name = chart.name
        self._moves = moves

    def get(self, key: tuple[str, str], default: str | None = None) -> str | None:  # type: ignore[override]
        found = super().get(key, default)
        if found is not None:
            self._moves.append((self._name, key[1]))
        return found


def moves_of(envelopes: Sequence[Envelope]) -> Moves:
    """The triggers that moved a chart, in order."""
    moves: Moves = []
    noting = {}
    for name in NAMES:
        chart = getattr(default_charts(), name)
        noting[name] = msgspec.structs.replace(chart, table=NotingTable(chart, moves))
    charts = Charts(**noting)
    state = State()
    for envelope in envelopes:
        state, _ = step(state, envelope, charts)
    return moves


def count_of(machines: Mapping[Role, Moves]) -> int:
    """Triggers of all lists."""
    return sum(map(len, machines.values()))


def drive_tables(lists: Sequence[Moves]) -> None:
    """Play triggers on the compiled tables of all charts."""
    charts = default_charts()
    tables = {name: getattr(charts, name).table for name in NAMES}
    for moves in lists:
        states = {name: getattr(charts, name).initial for name in NAMES}
        for name, trigger in moves:
            states[name] = tables[name][states[name], trigger]


class Scratch:
    """What a machine moves."""

    state: str


def drive_all(lists: Sequence[Moves]) -> None:
    """Play triggers on fresh machines of all charts."""
    charts = default_charts()
    for moves in lists:
        machines = {}
        for name in NAMES:
            scratch = Scratch()
            machines[name] = (build_machine(getattr(charts, name).source, scratch), scratch)
        for name, trigger in moves:
            machine, scratch = machines[name]
            machine.trigger_event(scratch, trigger)
