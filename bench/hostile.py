"""Rounds, credit and memory of whole nodes under attack, against quiet times of the same run; and what defence costs.

Each attack has a swarm of its own. Quiet and attacked times take turns in it, so that what else the machine does slows
both; an attacked time is compared with the better of the quiet ones around it. The attackers keep to one core, which is
as busy in quiet times, with nothing: they would come from machines of their own. They share the honest nodes' address,
which is the worst case for bounds by address. Trainers have no model, for the network is what is looked at; under
attack 1b one is real.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from bench.footprint import memory_by_part
from bench.hostile_cost import compare_cost
from bench.hostile_cut_off import time_until_said
from bench.hostile_rows import ATTACKS, COST, CUT_OFF, Figures, Outcome, make_rows
from bench.measure import cpu_of, process_tree
from bench.place import Unavailable
from bench.table import Row
from swarmd.cli.local_swarm import get_or_make_peer_id
from tests.hostile.assail import Assault, assault
from tests.hostile.watch import ScriptedSwarm, Watch, closed_rounds, lives_of, rounds_in, watched

DEFAULT = (*ATTACKS, CUT_OFF, COST)
SHORT = ("all",)
SECONDS, SHORT_SECONDS = 40.0, 30.0  # of attack
QUIET_SHARE = 0.75  # of a half of the attack: the quiet time before it
AFTER_S = 60.0
TELL_S = 0.1
COST_S, SHORT_COST_S = 40.0, 15.0
NODES = 3

Span = tuple[float, float]  # POSIX seconds


def run(
    directory: Path,
    attacks: Sequence[str] = DEFAULT,
    seconds: float = SECONDS,
    nodes: int = NODES,
    short: bool = False,
    against: Path | None = None,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
) -> Iterable[Row]:
    if short:
        attacks, seconds = (SHORT if attacks == DEFAULT else attacks), min(seconds, SHORT_SECONDS)
    if unknown := [name for name in attacks if name not in (*ATTACKS, CUT_OFF, COST)]:
        raise Unavailable(f"there is no attack {unknown[0]!r}; there are {', '.join((*ATTACKS, CUT_OFF, COST))}")
    outcomes = [each for each in known if each.what in attacks and (each.nodes, each.seconds) == (nodes, seconds)]
    if against is not None:  # a cost without another checkout's beside it is none
        outcomes = [each for each in outcomes if each.what != COST or "% against" in each.figures]
    for what in attacks:
        if what not in {each.what for each in outcomes}:
            outcomes.append(measure(directory / what, what, seconds, nodes, short, against))
            tell(outcomes[-1])
    yield from make_rows(sorted(outcomes, key=lambda each: attacks.index(each.what)))


def measure(directory: Path, what: str, seconds: float, nodes: int, short: bool, against: Path | None) -> Outcome:
    """One attack or measurement."""
    before = os.getloadavg()[0]
    if what == CUT_OFF:
        figures = time_until_said(directory)
    elif what == COST:
        figures = compare_cost(directory, nodes, against, SHORT_COST_S if short else COST_S)
    else:
        figures = attack(directory, what, seconds, nodes, seconds if short else AFTER_S)
    shutil.rmtree(directory, ignore_errors=True)
    return Outcome(what, nodes, seconds, figures, (before, os.getloadavg()[0]))


def attack(directory: Path, what: str, seconds: float, nodes: int, after_s: float) -> Figures:
    """Half of the attack, and the other half, each after a quiet time; then the attackers go, and it is quiet again."""
    swarm = ScriptedSwarm(directory, nodes, trained=(1,) if what == "1b" else ())
    try:
        swarm.run(**{"training.steps": 2} if what == "1b" else {})
        with watched(swarm) as watch:
            siege = Siege(swarm, watch, whole=what == "1b")
            siege.take_turns(ATTACKS[what], seconds, after_s)
            figures = memory_figures(watch, siege.quiet, siege.attacked)
            figures["node"] = siege.node_mib
            figures["attackers %"], figures["network %"] = siege.attackers_percent, siege.network_percent
    finally:
        codes = swarm.stop()
    figures["exit codes"] = [float(code) for code in codes.values()]
    return figures | rounds_figures(swarm, siege.quiet, siege.attacked)


class Siege:
    """Quiet and attacked times of one swarm.

    Args:
        swarm: under attack.
        watch: over its nodes.
        whole: whether to look at the memory of all of the first node, its trainer included.
    """

    def __init__(self, swarm: ScriptedSwarm, watch: Watch, whole: bool) -> None:
        self._swarm = swarm
        self._watch = watch
        self._whole = whole
        self.quiet: list[Span] = []
        self.attacked: list[Span] = []
        self.attackers_percent: list[float] = []  # of a core, in each half of the attack
        self.network_percent: list[float] = []  # the same, of each node's network
        self.node_mib: list[float] = []  # proportional resident memory of all processes of the first node

    def take_turns(self, attacks: Sequence[str], seconds: float, after_s: float) -> None:
        """Quiet, half of the attack, quiet, the other half, quiet for `after_s`, without attackers."""
        with assault(attacks, self._swarm.addresses()) as attackers:
            for _ in range(2):
                self.quiet.append(self._pass(QUIET_SHARE * seconds / 2, attackers))
                attackers.act()
                began = self._used(attackers)
                self.attacked.append(self._pass(seconds / 2, attackers))
                used = zip(self._used(attackers), began, strict=True)
                attacking, *networks = (200 * max(0.0, now - then) / seconds for now, then in used)
                self.attackers_percent.append(attacking)
                self.network_percent += networks
                attackers.rest()
        self.quiet.append(self._pass(after_s))

    def _used(self, attackers: Assault) -> list[float]:
        """Processor seconds that the attackers have used, and the network of each node: its worker and p2pd."""
        networks = [pids for _, pids in sorted(self._watch.pids().items())]
        return [sum(map(cpu_or_none, pids)) for pids in (process_tree(attackers.pid), *networks)]

    def _pass(self, seconds: float, attackers: Assault | None = None) -> Span:
        began, never = time.time(), threading.Event()
        while time.time() < began + seconds:
            if attackers is not None:
                attackers.tell(self._watch.round)
            if self._whole:
                parts = memory_by_part(self._watch.swarm.daemons[0])
                self.node_mib.append(sum(part["Pss"] for part in parts.values()))
            never.wait(TELL_S)
        return began, time.time()


def cpu_or_none(pid: int) -> float:
    """Processor seconds of a process, 0 of one that is gone."""
    try:
        return cpu_of(pid)
    except OSError:
        return 0.0


def rounds_figures(swarm: ScriptedSwarm, quiet: Sequence[Span], attacked: Sequence[Span]) -> Figures:
    """Rounds a minute, each half of the attack beside the quiet times around it; who was credited; what went wrong."""
    closed = closed_rounds(swarm.places[0])
    honest = {get_or_make_peer_id(place) for place in swarm.places}
    under_attack = [each for each in closed if any(begin <= each.at < end for begin, end in attacked)]
    lives = [lives_of(place) for place in swarm.places]
    rates = [60 * rounds_in(closed, [span]) / (span[1] - span[0]) for span in quiet]
    return {
        "attacked": [60 * rounds_in(closed, [span]) / (span[1] - span[0]) for span in attacked],
        "quiet": [max(before, after) for before, after in pairwise(rates)],  # what an attack left slows the latter
        "credited": [float(sum(len(each.credited & honest) for each in under_attack))],
        "due": [float(len(under_attack) * len(honest))],
        "skipped": [float(each.skipped) for each in lives],
        "exits": [float(len(each.exits)) for each in lives],
    }


def memory_figures(watch: Watch, quiet: Sequence[Span], attacked: Sequence[Span]) -> Figures:
    """MiB above the quiet size at the peak and at the end, of each node's network worker and p2pd."""
    figures: Figures = {"worker peak": [], "worker after": [], "p2pd peak": [], "p2pd after": []}
    first, end = quiet[0], attacked[-1][1]
    for place in watch.swarm.places:
        seen = [each for each in watch.seen if each.node == place.number]
        for part in ("worker", "p2pd"):
            sizes = [(each.at, getattr(each, f"{part}_mib")) for each in seen]
            before = statistics.median(size for at, size in sizes if first[0] <= at < first[1])
            figures[f"{part} peak"].append(max(size for at, size in sizes if first[1] <= at) - before)
            figures[f"{part} after"].append(statistics.median(size for _, size in sizes[-5:]) - before)
        assert seen[-1].at > end, f"{place.name} was not seen after the attack"
    return figures
