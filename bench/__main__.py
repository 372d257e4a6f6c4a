"""`python -m bench`: run all benchmarks or the named ones, print tables, keep the figures on request."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench.machine import describe
from bench.options import RESUMED, chosen, parse
from bench.place import PLACE, Unavailable, hold, read_lines
from bench.table import Result, as_tables, print_result

BENCHMARKS = {
    "append": "durable appends to the event log",
    "replay": "folding a recorded log",
    "coordinator": "a member and a report with up to 16,000 members",
    "simulator": "events of simulated swarms",
    "stage": "a training stage against bare TRL",
    "generation": "tokens a second against transformers' generate",
    "flat-groups": "optimiser steps a second with half of the groups flat, against bare TRL",
    "announcement": "from the coordinator's announcement to a follower's new state",
    "restart": "from exec to caught up, with a log of 10,000 events",
    "backfill": "100,000 log entries of a contract read into facts",
    "chain-events": "from a transaction to the fact that it left",
    "footprint": "memory and processor time of a node",
    "dashboard": "the page of a node: updates, memory and processor time with 1,000 peers",
    "page": "the page in Chromium: first paint, an event's way to it, tasks that block",
}
LONG = {  # only by name
    "longlife": "what each verb costs on logs of 10,000 events to a million; half an hour",
    "gpu-check": "whether swarmd is right and fast on a GPU; eight minutes",
    "timeline": "eight nodes' logs of 100,000 events in causal order; a minute",
    "turns": "passes over conversations of five turns against one turn of the same tokens; a minute",
    "trainer-memory": "memory of the trainer over 200 stages",
    "trainer-kinds": "what a KL term and adapters cost the trainer",
    "learning": "held-out accuracy of the embedded model over eight rounds, one node and three; a quarter of an hour",
    "sharing": "specialists that exchange groups against loners; half an hour of processor time",
    "gain": "what sharing brings on natural tasks, by arm and regime; writes docs/GAIN.md; days, resumable",
    "crossover": "what a drawn group and a peer's group cost with SmolLM2, by length; twenty minutes",
    "padding": "a peer of four whose right answers are needlessly long; twenty minutes of processor time",
    "skills": "whether drawing more of what falls keeps a skill, over twenty seeds; a quarter of an hour",
    "staleness": "peers' groups that are eight rounds old, with and without correction; half an hour",
    "worked": "sharing, with answers that are worked out before they stand in their tags; as long",
    "newcomer": "rounds until a newcomer's first credit beside 10,000 free identities; a quarter of an hour",
    "newcomer-weights": "held-out accuracy of a node that joins at round 8, beside the others; a quarter of an hour",
    "poison": "a hostile peer's right answers with a payload, and what is made of them; an hour of processor time",
    "poison-weights": "one hostile of five whose weights answer right with a payload, averaged with; an hour a seed",
    "scale": "what a round costs a node as the swarm grows: real network workers, or a model; a quarter of an hour",
    "hostile": "rounds, credit and memory of whole nodes under attack; what defence costs; half an hour",
}
INTERRUPTED = 130  # exit code, as of a shell's
GAIN_REPORT = Path(__file__).resolve().parent.parent / "docs" / "GAIN.md"
KEPT = Path(__file__).with_name("results")  # what docs/BENCHMARKS.md quotes
GAIN_RESULTS = Path(__file__).with_name("gain.jsonl")  # in the repository: the report is made of it


def main() -> int:
    """Run what is asked for.

    Returns:
        Exit code: 0 when all benchmarks ran, met or missed; 1 when one could not; 2 for options or earlier outcomes
        that make no sense; 130 when it was interrupted, with what was measured until then told and kept.
    """
    options = parse(BENCHMARKS | LONG)
    names = options.names or list(BENCHMARKS)
    PLACE.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine = describe(PLACE)
    console.print("\n".join(f"{key}: {value}" for key, value in machine.items()), markup=False, highlight=False)
    try:
        settings = [settings_of(name, options, console) for name in names]
    except Unavailable as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    results: list[Result] = []
    interrupted = ""
    try:
        for name, given in zip(names, settings, strict=True):
            interrupted = name
            results.append(run(name, given))
            print_result(results[-1], console)
        interrupted = ""
    except KeyboardInterrupt:
        console.print(f"\n{interrupted} was interrupted", markup=False, highlight=False)
    console.print(closing_line(results), markup=False, highlight=False)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "results": results})))
    if options.keep:
        keep(results, machine)
    return INTERRUPTED if interrupted else int(any(result.trouble for result in results))


def keep(results: list[Result], machine: Mapping[str, str]) -> None:
    """Replace the tables in bench/results of benchmarks that ran; notes, which were of the earlier figures, go."""
    taken = ", ".join(f"{key}: {value}" for key, value in machine.items())
    for result in results:
        if result.rows:
            path = KEPT / f"{result.name}.json"
            settings = msgspec.json.decode(path.read_bytes())["settings"] if path.exists() else ""
            kept = as_tables(result, taken) | {"settings": settings, "notes": []}
            path.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def settings_of(name: str, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """What a benchmark is told beside its directory. Raises Unavailable: earlier outcomes cannot be read."""
    settings = chosen(name, options)
    if name not in RESUMED:
        return settings
    outcomes: Path | None = options.outcomes or (GAIN_RESULTS if name == "gain" else None)

    def tell(outcome: msgspec.Struct) -> None:
        line = msgspec.json.encode(outcome)
        console.print(line.decode(), markup=False, highlight=False)
        if outcomes:
            with outcomes.open("ab") as file:
                file.write(line + b"\n")

    if name == "gain":
        settings["report"] = GAIN_REPORT
    elif name in ("poison", "poison-weights"):
        settings["say"] = lambda line: print(line, file=sys.stderr, flush=True)
    return {"tell": tell, "known": known_outcomes(name, outcomes), **settings}


def known_outcomes(name: str, path: Path | None) -> list[msgspec.Struct]:
    """Those of an earlier run of a benchmark. Raises Unavailable: they cannot be read."""
    if path is None or not path.exists():
        return []
    kind = import_module(f"bench.{name.replace('-', '_')}").Outcome
    try:
        return [msgspec.json.decode(line, type=kind) for line in read_lines(path)]
    except msgspec.DecodeError as error:
        raise Unavailable(f"{path} has a line that is no outcome of {name}: {error}") from error


def run(name: str, settings: Mapping[str, Any]) -> Result:
    """One benchmark in a directory of its own."""
    directory = PLACE / name
    began = time.monotonic()
    try:
        with hold(directory):
            rows = tuple(import_module(f"bench.{name.replace('-', '_')}").run(directory, **settings))
        trouble = ""
    except Unavailable as error:
        rows, trouble = (), str(error)
    except Exception as error:
        traceback.print_exc()
        rows, trouble = (), f"{type(error).__name__}: {error}"
    return Result(name, (BENCHMARKS | LONG)[name], rows, round(time.monotonic() - began, 1), trouble)


def closing_line(results: list[Result]) -> str:
    """How many goals were met."""
    goals = [row for result in results for row in result.rows if row.met is not None]
    missed = [row.what for row in goals if not row.met]
    line = f"{len(goals) - len(missed)} of {len(goals)} goals met"
    return f"{line}; missed: {', '.join(missed)}" if missed else line


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):  # else real nodes, each a session of its own, would stay behind
        signal.signal(ending, signal.default_int_handler)
    sys.exit(main())
