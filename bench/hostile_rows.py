"""The table of `hostile`, from what was measured: now, or before and kept in a file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from bench.measure import Sample, ratios, sample
from bench.table import Row

CUT_OFF, COST = "cut-off", "cost"
ATTACKS: dict[str, tuple[str, ...]] = {  # which of `tests.hostile.actors.ACTORS` take part
    "1": ("1",),
    "1b": ("1",),
    "2": ("2",),
    "3": ("3",),
    "4": ("4",),
    "4w": ("4w",),
    "5": ("5",),
    "6": ("6",),
    "8": ("8",),
    "all": ("1", "2", "3", "4w", "5", "6", "7", "8", "9"),
}
NAMES = {
    "1": "look-ups and calls taken back",
    "1b": "the same, a node with a real trainer",
    "2": "numbers beyond measure, bodies that are none",
    "3": "places beside every key",
    "4": "keys filled beforehand",
    "4w": "the same, with identities that have worked",
    "5": "memberships by the thousand",
    "6": "idle streams, half-open connections",
    "8": "a report rewritten over six connections",
    "all": "all of these, poison, halves and other floods",
}
ROUNDS_SHARE_MIN = 0.95
WORKER_GROWTH_MIB_MAX = 64.0
WORKER_AFTER_MIB_MAX = 32.0
NODE_MIB_MAX = 1536.0
STAGES_MAX = 1.0
CORE_PERCENT_MAX = 2.0
BYTES_RATIO_MAX = 1.1
ELSEWHERE = {  # goals that other benchmarks measure
    "frames of a grammar fuzz through a real node": "make soak",
    "a newcomer's time to its first credit": "python -m bench newcomer",
    "payload rate, gain of sharing that remains": "python -m bench poison, worked, sharing",
}

Figures = dict[str, list[float]]


class Outcome(msgspec.Struct, frozen=True):
    """What one attack, or one measurement, came to; a line of the file of outcomes.

    Attributes:
        what: an attack, "cut-off" or "cost".
        seconds: of attack.
        figures: values by name; which there are depends on `what`.
        load: of the machine, as it began and ended.
    """

    what: str
    nodes: int
    seconds: float
    figures: Figures
    load: tuple[float, float] = (0.0, 0.0)


def make_rows(outcomes: Sequence[Outcome]) -> Iterable[Row]:
    """The table."""
    for outcome in outcomes:
        figures = {name: Sample(tuple(values)) for name, values in outcome.figures.items() if values}
        make = {CUT_OFF: cut_off_rows, COST: cost_rows}.get(outcome.what)
        yield from make(figures) if make else attack_rows(outcome.what, figures)
        yield Row("  load of the machine", "", sample(*outcome.load))
    for what, command in ELSEWHERE.items():
        yield Row(what, "", sample(), f"see {command}")


def attack_rows(what: str, figures: dict[str, Sample]) -> Iterable[Row]:
    """Rounds, credit, memory, and what should not have happened."""
    shares = ratios(figures["attacked"], figures["quiet"])
    yield _row(
        f"{what}: {NAMES[what]}: rounds",
        "/min",
        figures["attacked"],
        f">= {ROUNDS_SHARE_MIN:g}x",
        statistics.mean(shares.values) >= ROUNDS_SHARE_MIN,
        peer="quiet",
        theirs=figures["quiet"],
        ratio=shares,
    )
    if "attackers %" in figures:
        yield Row("  the attackers, of a core", "%", figures["attackers %"])
        yield Row("  a node's network under attack, of a core", "%", figures["network %"])
    credited, due = figures["credited"].values[0], figures["due"].values[0]
    percent = sample(100 * credited / due if due else 0.0)
    yield _row("  honest reports credited", "%", percent, "all", 0 < due == credited)
    for part, limit in (("peak", WORKER_GROWTH_MIB_MAX), ("after", WORKER_AFTER_MIB_MAX)):
        told = "" if part == "peak" else ", a minute after"
        grown = figures[f"worker {part}"]
        goal = f"<= {limit:g} MiB"
        yield _row(f"  network worker above its quiet size{told}", "MiB", grown, goal, grown.high <= limit)
        yield Row(f"  p2pd above its quiet size{told}", "MiB", figures[f"p2pd {part}"])
    if "node" in figures:
        peak = sample(figures["node"].high)
        yield _row("  all of the node", "MiB", peak, f"<= {NODE_MIB_MAX:g} MiB", peak.high <= NODE_MIB_MAX)
    amiss = [sum(figures[name].values) for name in ("exits", "exit codes", "skipped")]
    yield _row("  workers and nodes that ended, rounds skipped", "", sample(*amiss), "none", not any(amiss))


def cut_off_rows(figures: dict[str, Sample]) -> Iterable[Row]:
    """How long a node that hears strangers only says nothing."""
    stages = figures["stages"]
    goal = f"<= {STAGES_MAX:g} stage"
    yield _row("until a node that is cut off says so", "stages", stages, goal, stages.high <= STAGES_MAX)
    yield Row("  the same", "s", figures["seconds"])


def cost_rows(figures: dict[str, Sample]) -> Iterable[Row]:
    """What a node's network uses in a quiet swarm, beside that of another checkout where one was given."""
    units: tuple[tuple[str, str, str, Callable[[Sample, Sample], tuple[Sample, bool]]], ...] = (
        ("network worker and p2pd of a quiet node", "%", f"<= {CORE_PERCENT_MAX:g} % of a core more", _core),
        ("bytes through p2pd of a node in a round", "KiB", f"<= {BYTES_RATIO_MAX:g}x", _bytes),
    )
    for what, unit, goal, judge in units:
        ours, theirs = figures[unit], figures.get(f"{unit} against")
        if theirs is None:
            yield Row(what, unit, ours)
        else:
            ratio, met = judge(ours, theirs)
            yield _row(what, unit, ours, goal, met, peer="the other checkout", theirs=theirs, ratio=ratio)
    yield Row("  its rounds", "/min", figures["/min"], "", figures.get("/min against"))


def _core(ours: Sample, theirs: Sample) -> tuple[Sample, bool]:
    return ratios(ours, theirs), ours.median - theirs.median <= CORE_PERCENT_MAX


def _bytes(ours: Sample, theirs: Sample) -> tuple[Sample, bool]:
    ratio = ratios(ours, theirs)
    return ratio, ratio.median <= BYTES_RATIO_MAX


def _row(
    what: str,
    unit: str,
    ours: Sample,
    goal: str,
    met: bool,
    peer: str = "goal",
    theirs: Sample | None = None,
    ratio: Sample | None = None,
) -> Row:
    return Row(what, unit, ours, peer, theirs, ratio, goal, met)
