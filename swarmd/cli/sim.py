"""`swarmd sim`: run simulated swarms with faults, and check invariants after every commit."""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import replace

from swarmd.config import NUMBER_MAX
from swarmd.errors import ConfigError, ExitCode
from swarmd.sim.profile import HOSTILE, LARGE, SimProfile, parse_hostile_kinds
from swarmd.sim.simulation import InvariantBroken
from swarmd.sim.world import ProgressListener, RunSummary, run_simulation

STEPS = 1000  # resolution of the progress bar
LEAST = {"nodes": 1, "stages": 1, "min_peers": 1, "hours": 0.01, "stage_s": 0.1, "block_s": 0.1}  # others: 0
FIELDS = ", ".join(SimProfile.__struct_fields__)


def sim(
    seed: Annotated[int, typer.Option(min=0, help="First seed; it decides everything.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, one after the other.")] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Nodes of the swarm, the coordinator among them.")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, help="Simulated hours.")] = None,
    hostile: Annotated[
        str | None,
        typer.Option(help=f"Attackers, separated by commas: {', '.join(HOSTILE)}; or all, none."),
    ] = None,
    large: Annotated[
        bool, typer.Option("--large", help="Play a large swarm in shards, without other faults than are asked for.")
    ] = False,
    churn: Annotated[
        float | None, typer.Option(min=0, max=5, help="Share of followers that leave for minutes in an hour.")
    ] = None,
    partition: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of nodes cut off once, for minutes.")
    ] = None,
    lossy: Annotated[float | None, typer.Option(min=0, max=1, help="Share of lost hints and failing requests.")] = None,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=f"Set a field of the profile: {FIELDS}.")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="End at the first violation instead of going on.")] = False,
) -> int:
    """Simulate a swarm with faults, and check every commit.

    What is not given is drawn from the seed; in a quarter of the seeds somebody is hostile, and in a quarter of
    those for which --hostile is not given newcomers take weights from peers. The same seed and options
    give the same trace on every machine.

    With --large nothing is drawn but by chance in the run itself: some 300 nodes (--nodes), in shards, as swarmd
    swarm new --large makes them, for 0.35 hours (--hours). A table says what a round cost and how long it took.
    """
    fields = parse_profile_fields(given or [], nodes, hours, hostile, churn=churn, partition=partition)
    if lossy is not None:
        fields |= {"loss": lossy, "failure": lossy}
    profile = replace(LARGE, **fields) if large else None
    broken = 0
    total = RunTotals()
    for number in range(seed, seed + seeds):
        try:
            with show_run_progress(number, large) as told:
                summary = run_simulation(number, profile, told, **fields)
        except InvariantBroken as violation:
            broken += 1
            typer.echo(f"VIOLATION {violation.message}\n  {violation.fix}")
            if stop:
                break
        else:
            total.add_run(summary)
            typer.echo(summary_line(summary))
            if large:
                typer.echo(round_cost_table(summary))
    typer.echo(total.make_table(), nl=False)
    typer.echo(
        f"{total.runs + broken} seeds, {broken} broken; {total.events} events, "
        f"{total.events_per_second:,.0f} per CPU second"
    )
    return ExitCode.FAILURE if broken else ExitCode.OK


class RunTotals:
    """Statistics over all runs without a violation."""

    def __init__(self) -> None:
        self.runs = 0
        self.events = 0
        self.cpu_s = 0.0
        # hostile kind → [seeds, rounds, events caused by untrusted peers, held stages]
        self._kinds: dict[str, list[int]] = {}

    def add_run(self, summary: RunSummary) -> None:
        self.runs += 1
        for kind in parse_hostile_kinds(summary.profile.hostile):
            row = self._kinds.setdefault(kind, [0, 0, 0, 0])
            for place, more in enumerate((1, summary.rounds, summary.strangers, summary.held)):
                row[place] += more
        self.events += summary.events
        self.cpu_s += summary.cpu_s

    def make_table(self) -> str:
        """A row for each kind of hostile peer; empty if there was none."""
        lines = [f"{'hostile':<12} {'seeds':>6} {'rounds':>7} {'events of theirs':>17} {'stages held':>12}"]
        for kind in HOSTILE:
            if kind in self._kinds:
                seeds, rounds, events, held = self._kinds[kind]
                lines.append(f"{kind:<12} {seeds:>6} {rounds:>7} {events:>17} {held:>12}")
        return "\n".join([*lines, ""]) if self._kinds else ""

    @property
    def events_per_second(self) -> float:
        """Events per second of CPU time."""
        return self.events / self.cpu_s if self.cpu_s else 0.0


@contextmanager
def show_run_progress(seed: int, shown: bool) -> Iterator[ProgressListener | None]:
    """A progress bar on a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    with typer.progressbar(length=STEPS, label=f"seed {seed}", file=sys.stderr) as bar:
        yield lambda share: bar.update(int(share * STEPS) - bar.pos)


def parse_profile_fields(
    given: list[str], nodes: int | None, hours: float | None, hostile: str | None = None, **more: float | None
) -> dict[str, Any]:
    """Parse the profile's fields from the command line. Raises ConfigError for an unknown key or a wrong value."""
    fields: dict[str, Any] = {}
    for item in given:
        key, _, value = item.partition("=")
        if key not in SimProfile.__struct_fields__:
            near = difflib.get_close_matches(key, SimProfile.__struct_fields__, n=1)
            fix = f"Did you mean {near[0]}?" if near else f"Its fields are {FIELDS}"
            raise ConfigError(f"a simulated swarm has no {key!r}", fix)
        fields[key] = value
    named = {"nodes": nodes, "hours": hours, "hostile": hostile, **more}
    fields |= {key: value for key, value in named.items() if value is not None}
    try:
        checked = msgspec.convert(fields, SimProfile, strict=False)
    except msgspec.ValidationError as error:
        wrong, _, key = str(error).rstrip("`").partition(" - at `$.")
        fix = f"Write it as {key}={getattr(SimProfile(), key, 1)}, which is its default"
        raise ConfigError(f"the simulated swarm's {key}: {wrong}", fix) from error
    for key in fields:
        value, least = getattr(checked, key), LEAST.get(key, 0)
        if isinstance(value, int | float) and not least <= value <= NUMBER_MAX:  # such a swarm cannot be simulated
            raise ConfigError(f"{key} of the simulated swarm is {value:g}", f"Give a number from {least:g} on")
    parse_hostile_kinds(checked.hostile)
    return {key: getattr(checked, key) for key in fields}


def summary_line(summary: RunSummary) -> str:
    chain = f"{summary.blocks} blocks, {summary.reorgs} reorganisations, {summary.confirmed} submissions confirmed, "
    chain += f"{summary.refused} refused, "
    kinds, held = " ".join(parse_hostile_kinds(summary.profile.hostile)), ""
    if kinds:  # which peers were hostile, and the effect
        held = f"{summary.held} of {summary.closed} stages held, " if summary.closed else ""
        held = f"hostile {kinds} ({summary.strangers} events of theirs), {held}"
    return (
        f"seed {summary.seed}: {summary.profile.nodes} nodes, {summary.profile.hours:g} h, {summary.rounds} rounds, "
        f"{summary.events} events, {summary.crashes} crashes, {summary.worker_exits} worker exits, "
        f"{summary.partitions} partitions, {summary.skips} skips, {held}"
        f"{chain if summary.blocks else ''}0 violations; "
        f"{summary.events_per_s:,.0f} events/s; trace {summary.trace}"
    )


def round_cost_table(summary: RunSummary) -> str:
    """A large swarm's costs and time for a round, a line for each figure."""
    figures, nodes = summary.figures, summary.profile.nodes
    memory_mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    asked = figures.asked
    rows = [
        ("stages that closed", f"{figures.stages}"),
        ("announcement to the node's new state, p50 and p99", "{:.2f} and {:.2f} s".format(*figures.announced_s)),
        ("last report to the next announcement, p50 and most", "{:.2f} and {:.2f} s".format(*figures.closed_s)),
        ("gatherings with all that was wanted", f"{figures.full:.1%}"),
        ("nodes that reported in a stage", f"{figures.reported:.1%}"),
        ("  of followers that were there for the stage before", f"{figures.stayed:.1%}"),
        ("look-ups of a node in a round", f"{sum(asked.values()) - asked.get('store', 0) - asked.get('body', 0):.1f}"),
        *((f"  of them: {kind}", f"{count:.1f}") for kind, count in asked.items() if kind not in ("store", "body")),
        ("records that a node stores in a round", f"{asked.get('store', 0):.1f}"),
        ("bodies that it asks for", f"{asked.get('body', 0):.1f}"),
        ("processor time of a stage, for each node", f"{1e3 * summary.cpu_s / max(1, figures.stages) / nodes:.1f} ms"),
        ("memory of the simulator", f"{memory_mib:,.0f} MiB, {1024 * memory_mib / nodes:,.0f} KiB a node"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
