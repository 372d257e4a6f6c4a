"""The report of `bench gain`: figures and docs/GAIN.md, all from outcomes alone.

The same outcomes give the same bytes, in whatever order they stand in the results file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from bench.gain_bases import IDENTICAL, MIXTURES, SPECIALISTS, Recipe
from bench.gain_curves import (
    FILTERED,
    LONER,
    NOT_SHARING,
    Arms,
    Axis,
    Outcome,
    Runs,
    area,
    by_regime,
    compare,
    seconds_of,
    times,
    tokens_of,
)
from bench.gain_picture import draw
from bench.measure import sample
from bench.table import Row

COSTS = Path(__file__).with_name("results") / "crossover.json"
GOALS = {IDENTICAL: (1.15, 0.0), MIXTURES: (1.5, 0.0), SPECIALISTS: (2.0, 1.5)}  # × the filtered loner: mean, each seed


def make_rows(outcomes: Sequence[Outcome]) -> Iterable[Row]:
    """Each arm's area beside the loner's, by regime; what has no loner beside it has no row."""
    for regime, arms in by_regime(outcomes).items():
        for arm, found in arms.items():
            if pairs := compare(found, arms.get(LONER, {})):
                ours, theirs = zip(*pairs, strict=True)
                yield Row(f"{regime}: {arm}, learnt", "", sample(*ours), LONER, sample(*theirs))


def write_report(
    path: Path, outcomes: Sequence[Outcome], recipe: Recipe, variants: Mapping[str, Recipe], costs: Path = COSTS
) -> None:
    """The page, and a picture beside it, `images/gain.svg`, where something of the recipe itself was measured.

    Args:
        path: of the page.
        outcomes: of any recipe and seed; those of others than these recipes', and of their seeds, are left out.
        recipe: of the first part.
        variants: of further parts, by name.
        costs: the kept result of `bench crossover`, a part of its own.
    """
    parts = {"": recipe, **variants}
    found = {
        name: [each for each in outcomes if each.recipe == part.digest and each.seed in part.seeds]
        for name, part in parts.items()
    }
    if found[""]:
        picture = path.parent / "images" / "gain.svg"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(draw(found[""]), encoding="utf-8")
    text = INTRODUCTION.format(families=", ".join(f"`{family}`" for family in recipe.families))
    text += "".join(tell(name, found[name], part) for name, part in parts.items())
    text += tell_kept(costs)
    path.write_text(text, encoding="utf-8")


INTRODUCTION = """# What sharing brings

Written by `python -m bench gain` from [its results](../bench/gain.jsonl); do not edit. Nodes with small models train on
families of reasoning-gym, alone or learning from each other ([recipe](../bench/gain.toml)).

- *Learned*: the area under held-out accuracy against generated tokens, above the base's, divided by all tokens.
- *× loner*: how many times as much was learned as by a node that trains alone on all that it generates.
- *× filtered*: how many times as much was learned, at equal tokens, as by the filtered loner, which keeps only
  informative groups: the mean over seeds, its 95 % interval (bootstrap over pairs of seeds) and the lowest seed. Fewer
  than three seeds prove nothing. *In equal time*: the same at equal processor time, on a busy machine.
- *Unlearned, lost*: skills (families with an accuracy of at least .3 at first) that fell by more than half, and those
  below .05.

*Half generated* is swarmd as shipped: a step generates only what peers' groups leave open; with *sharing* it generates
a whole batch besides. *Weights averaged* averages all nodes' weights every two rounds, *bounded means* as swarmd does
([ADR 61](adr/0061-means-exact-and-bounded.md)), *averaged in pairs* those of two. A *faster loner* has the learning
rate of nodes that share; *pooled* is one node with everybody's data, an upper bound.

Families: {families}.

"""
GONE = ("distilled", "importance-corrected")  # losses that swarmd no longer has: ADR 39


def tell(name: str, outcomes: Sequence[Outcome], recipe: Recipe) -> str:
    """A part of the page: the recipe itself, or one of its variants."""
    text = f"## {name or 'The recipe'}: {recipe.nodes} nodes, width {recipe.hidden}\n\n"
    if not outcomes:
        return (
            text + f"Nothing has been measured yet: 0 of {len(recipe.seeds)} seeds. The command goes on from here.\n\n"
        )
    seeds = sorted({outcome.seed for outcome in outcomes})
    text += f"{len(outcomes)} runs of {len(seeds)} of {len(recipe.seeds)} seeds, recipe `{recipe.digest}`.\n"
    if not name:
        text += "\n![Held-out accuracy against generated tokens](images/gain.svg)\n"
    for regime, arms in by_regime(outcomes).items():
        lines = (_line(arm, found, arms) for arm, found in arms.items() if arm not in GONE)
        text += f"\n### {regime}\n\n{HEAD}{''.join(lines)}"
        text += _tell_goal(regime, arms, len(recipe.seeds))
    return text + "\n"


def tell_kept(costs: Path) -> str:
    """What groups cost, as `bench crossover` measured it last."""
    kept = msgspec.json.decode(costs.read_bytes())
    text = f"## What a group costs\n\nMeasured by `python -m bench crossover`: {kept['settings']}.\n"
    for table in kept["tables"]:
        lines = (table["columns"], ["---"] * len(table["columns"]), *table["rows"])
        text += "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return text + "".join(f"\n{note}\n" for note in kept["notes"])


HEAD = "| Arm | seeds | learned | × loner | × filtered | in equal time | unlearned, lost |\n" + "|---" * 7 + "|\n"


def _line(arm: str, found: Runs, arms: Arms) -> str:
    def mean(read: Callable[[Outcome], float]) -> float:
        return fmean(map(read, found.values()))

    beside = times(compare(found, arms.get(LONER, {}), tokens_of))
    above = "" if arm == LONER or beside is None else f"{beside.mean:.2f}"
    than = "" if arm == FILTERED else _tell_times(found, arms.get(FILTERED, {}), tokens_of)
    in_time = "" if arm == FILTERED else _tell_times(found, arms.get(FILTERED, {}), seconds_of)
    unlearnt, lost = (sum(each) for each in zip(*(o.count_unlearnt() for o in found.values()), strict=True))
    seeds = len({start.seed for start in found})
    learned = mean(lambda o: area(o, o.tokens))
    return f"| {arm} | {seeds} | {learned:+.4f} | {above} | {than} | {in_time} | {unlearnt}, {lost} |\n"


def _tell_times(ours: Runs, theirs: Runs, axis: Axis) -> str:
    found = times(compare(ours, theirs, axis))
    if found is None:
        return ""
    between = f"{found.low:.2f} to {found.high:.2f}; " if found.low < found.high else ""
    return f"{found.mean:.2f} ({between}{found.least:.2f})"


def _tell_goal(regime: str, arms: Arms, planned: int) -> str:
    """What is best of the arms that share, against the goal, which only all planned seeds decide."""
    goal, each = GOALS[regime]
    pairs = {arm: compare(found, arms.get(FILTERED, {})) for arm, found in arms.items() if arm not in NOT_SHARING}
    known = {arm: found for arm, both in pairs.items() if (found := times(both))}
    if not known:
        return ""
    best = max(known, key=lambda arm: known[arm].mean)
    verdict = "**met**" if known[best].mean >= goal and known[best].least >= each else "**missed**"
    if len(pairs[best]) < planned:
        verdict = f"undecided, {len(pairs[best])} of {planned} seeds"
    wanted = f"{goal:g}" + (f", and {each:g} in each seed" if each else "")
    came = f"{known[best].mean:.2f} ({known[best].least:.2f}): {verdict}"
    return f"\nGoal: × filtered at least {wanted}. Best arm that shares: {best}, {came}.\n"
