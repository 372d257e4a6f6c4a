"""The coordinator's core with up to 16,000 members: what a member, a report and the close of a stage take.

Every time is of this process's processor, in place as a start folds a log and through `step` as a live node does. The
ratio is to the smallest swarm: what a member costs must not grow with their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from bench import coordinator_round
from bench.measure import Sample, ratios, sample
from bench.table import Row
from swarmd.core import events as happened
from swarmd.core.commands import Announce, Command
from swarmd.core.events import Envelope, Event, ReportRow
from swarmd.core.state import State
from swarmd.core.step import StateFold, step
from swarmd.core.values import CoordinatorSettings, Settings
from swarmd.eventlog.frame import NO_COMMANDS, Commit, encode_commit
from swarmd.eventlog.snapshot import encode_state
from swarmd.shell.loop import ROW_MAX

SIZES = (100, 1_000, 10_000, 16_000)
TIMES = 3
RATIO_GOAL = 3.0  # caches of the processor hold 100 members and not thousands
RECORD_BYTES = 350

Apply = Callable[[Envelope], tuple[Command, ...]]


def run(directory: Path) -> Iterable[Row]:
    for how, begin in (("in place", in_place), ("through step", through_step)):
        taken = lives(begin)
        for place, (what, unit) in enumerate(FIGURES):
            found = {size: Sample(tuple(each[place] for each in taken[size])) for size in SIZES}
            for size, ours in found.items():
                yield row(f"{what}, {how}, N = {size:,}", unit, ours, found[SIZES[0]])
    for size in SIZES:
        singly, together = log_bytes(size)
        yield Row(f"log of a round's reports, N = {size:,}", "B", sample(together), "one by one", sample(singly))
    yield from coordinator_round.rows_of(directory, 10_000)


def lives(begin: Callable[[], tuple[Apply, Callable[[], State]]]) -> dict[int, list[tuple[float, ...]]]:
    """The figures of swarms of all sizes, which take turns, in each round in another order."""
    taken: dict[int, list[tuple[float, ...]]] = {size: [] for size in SIZES}
    random, order = Random(0), list(SIZES)
    for _ in range(TIMES):
        random.shuffle(order)
        for size in order:
            taken[size].append(life(begin(), size))
    return taken


def row(what: str, unit: str, ours: Sample, least: Sample) -> Row:
    """A figure beside the same of the smallest swarm; the goal is of larger ones, for what is counted by member."""
    if unit != "us" or ours is least:
        return Row(what, unit, ours)
    ratio = ratios(ours, least)
    return Row(what, unit, ours, f"N = {SIZES[0]}", least, ratio, f"<= {RATIO_GOAL:g}x", ratio.median <= RATIO_GOAL)


FIGURES = (
    ("a member", "us"), ("a report", "us"), ("a report of many at once", "us"), ("closing a stage", "ms"),
    ("the state as bytes", "ms"), ("the state", "B"),
)  # fmt: skip


def in_place() -> tuple[Apply, Callable[[], State]]:
    fold = StateFold()
    return fold.apply, lambda: fold.state


def through_step() -> tuple[Apply, Callable[[], State]]:
    states = [State()]

    def apply(envelope: Envelope) -> tuple[Command, ...]:
        states[0], commands = step(states[0], envelope)
        return commands

    return apply, lambda: states[0]


def peers_of(size: int) -> list[str]:
    return [f"12D3KooW{number:044d}" for number in range(size)]


def report(peer: str, round: int) -> happened.ReportSeen:
    return happened.ReportSeen(peer, round, 0, 0.5, "d" * 64, bytes(RECORD_BYTES))


def life(how: tuple[Apply, Callable[[], State]], size: int) -> tuple[float, ...]:
    """The figures of two rounds with so many members, as `FIGURES` names them."""
    apply, state = how
    seq = 0

    def tell(facts: Sequence[Event]) -> tuple[float, list[Command]]:
        nonlocal seq
        caused: list[Command] = []
        envelopes = [Envelope(each, 1.0, fact) for each, fact in enumerate(facts, seq)]
        seq += len(facts)
        began = time.process_time()
        for envelope in envelopes:
            caused += apply(envelope)
        return time.process_time() - began, caused

    own = Settings("me", "swarm", "coordinator", "me", coordination=CoordinatorSettings(min_peers=size + 1))
    workers = [happened.WorkerStarted("network", 1, 1), happened.WorkerStarted("trainer", 2, 1)]
    tell([happened.NodeStarted(own, "run"), *workers, happened.TrainerReady("cpu", "tiny", 1), happened.LinkUp(3)])
    peers = peers_of(size)
    members_s, _ = tell([happened.MemberSeen(peer, "a name") for peer in peers])
    _, caused = tell([happened.Registered("register")])
    _open(tell, caused)
    reports_s, _ = tell([report(peer, 0) for peer in peers])
    began = time.process_time()
    encoded = encode_state(state())
    encoding_s = time.process_time() - began
    closing_s, caused = tell([report("me", 0)])
    _open(tell, caused)
    at_once_s, _ = tell(rows_of(peers, 1))
    coordination = state().coordination
    assert coordination is not None and coordination.round == 1 and len(coordination.reports) == size
    each_us = [seconds / size * 1e6 for seconds in (members_s, reports_s, at_once_s)]
    return (*each_us, closing_s * 1e3, encoding_s * 1e3, float(len(encoded)))


def _open(tell: Callable[[Sequence[Event]], object], caused: list[Command]) -> None:
    (opened,) = [command for command in caused if isinstance(command, Announce)]
    tell([happened.RoundPublished(opened.id, opened.round, opened.stage)])


def rows_of(peers: Sequence[str], round: int) -> list[Event]:
    """The reports of a round in as few events as may be."""
    rows = [ReportRow(peer, 0.5, "d" * 64, bytes(RECORD_BYTES)) for peer in peers]
    return [
        happened.ReportsSeen(round, 0, tuple(rows[first : first + ROW_MAX])) for first in range(0, len(rows), ROW_MAX)
    ]


def log_bytes(size: int) -> tuple[float, float]:
    """Bytes of a round's reports in the log: one by one in commits of 64, and many at once."""
    peers = peers_of(size)
    singly: list[Event] = [report(peer, 0) for peer in peers]
    groups = [singly[first : first + 64] for first in range(0, size, 64)]
    together = [[each] for each in rows_of(peers, 0)]
    return _bytes_of(groups), _bytes_of(together)


def _bytes_of(groups: Sequence[Sequence[Event]]) -> float:
    return float(sum(len(encode_commit(Commit(0, 1.0, 8, tuple(group), NO_COMMANDS))) for group in groups))
