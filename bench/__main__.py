"""`python -m bench`: run all benchmarks or the named ones, print tables, keep the figures on request."""

from __future__ import annotations

import argparse
import shutil
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
from bench.place import PLACE, Unavailable, hold, read_lines
from bench.table import Result, print_result, to_markdown

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
    "trainer-memory": "memory of the trainer over 200 stages",
    "trainer-kinds": "what a KL term and adapters cost the trainer",
    "learning": "held-out accuracy of the embedded model over eight rounds, one node and three; a quarter of an hour",
    "sharing": "specialists that exchange groups against loners; half an hour of processor time",
    "gain": "what sharing brings on natural tasks, by arm and regime; writes docs/GAIN.md; days, resumable",
    "skills": "whether drawing more of what falls keeps a skill, over twenty seeds; a quarter of an hour",
    "staleness": "peers' groups that are eight rounds old, with and without correction; half an hour",
    "worked": "sharing, with answers that are worked out before they stand in their tags; as long",
    "fuzz": "a million records and frames of a grammar against real nodes; half an hour",
    "newcomer": "rounds until a newcomer's first credit beside 10,000 free identities; a quarter of an hour",
    "newcomer-weights": "held-out accuracy of a node that joins at round 8, beside the others; a quarter of an hour",
    "poison": "a hostile peer's right answers with a payload, and what is made of them; an hour of processor time",
    "poison-weights": "a trusted peer's weights that answer right with a payload, averaged with; half an hour a seed",
    "gossip": "what a swarm of up to a thousand tells of a leaderboard, and of two; half a minute",
    "scale": "what a round costs a node as the swarm grows: real network workers, or a model; a quarter of an hour",
    "hostile": "rounds, credit and memory of whole nodes under attack; what defence costs; half an hour",
}
CHOSEN = {  # options that a benchmark has
    "dashboard": ("peers",),
    "page": ("peers",),
    "fuzz": ("frames", "seed"),
    "newcomer": ("crowd", "times"),
    "longlife": ("events", "logs", "verbs"),
    "scale": ("sizes", "rounds", "simulated", "churn", "whole"),
}
RESUMED = (
    "sharing",
    "worked",
    "poison",
    "poison-weights",
    "hostile",
    "skills",
    "staleness",
    "gain",
)  # their outcomes are kept, and they go on where they were cut off

GAIN_REPORT = Path(__file__).resolve().parent.parent / "docs" / "GAIN.md"
GAIN_RESULTS = Path(__file__).with_name("gain.jsonl")  # in the repository: the report is made of it


def main() -> int:
    """Exit code 0 when all benchmarks ran, met or missed; 1 when one could not; 2 for outcomes that cannot be read."""
    options = parse()
    names = options.names or list(BENCHMARKS)
    PLACE.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine = describe(PLACE)
    console.print("\n".join(f"{key}: {value}" for key, value in machine.items()), markup=False, highlight=False)
    results = []
    for name in names:
        try:
            settings = settings_of(name, options, console)
        except Unavailable as error:
            console.print(str(error), markup=False, highlight=False)
            return 2
        results.append(run(name, settings))
        print_result(results[-1], console)
    console.print(closing_line(results), markup=False, highlight=False)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "results": results})))
    if options.markdown:
        options.markdown.write_text(to_markdown(results), encoding="utf-8")
    return int(any(result.trouble for result in results))


def parse() -> argparse.Namespace:
    known = BENCHMARKS | LONG
    listing = "\n".join(f"  {name:17s}{summary}" for name, summary in known.items())
    parser = argparse.ArgumentParser(
        "python -m bench", epilog=f"benchmarks:\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default the first 14")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write machine and figures there")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write the tables there")
    sharing = parser.add_argument_group("sharing, worked, poison, poison-weights, hostile, skills, staleness, gain")
    sharing.add_argument("--arms", type=lambda text: text.split(","), metavar="A,B", help='such as "4/4,2/6"')
    sharing.add_argument("--regimes", type=lambda text: text.split(","), metavar="A,B", help="of gain")
    sharing.add_argument("--variant", metavar="NAME", help="of gain: one of the variants in bench/gain.toml")
    sharing.add_argument("--study", action="store_true", help="of gain: only say what of its families a base learns")
    sharing.add_argument("--payloads", type=lambda text: text.split(","), metavar="A,B", help="of both kinds of poison")
    sharing.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], metavar="0,1")
    sharing.add_argument("--rounds", type=int, metavar="N")
    sharing.add_argument(
        "--outcomes", type=Path, metavar="OUT", help="keep outcomes there; what is there is not run again"
    )
    hostile = parser.add_argument_group("hostile")
    hostile.add_argument("--attacks", type=lambda text: text.split(","), metavar="1,4,all", help="also cut-off, cost")
    hostile.add_argument("--seconds", type=float, metavar="N", help="of each attack")
    hostile.add_argument("--nodes", type=int, metavar="N")
    hostile.add_argument("--short", action="store_true", help="all attacks at once, in two minutes")
    hostile.add_argument("--against", type=Path, metavar="DIR", help="a checkout to compare the cost of defence with")
    fuzz = parser.add_argument_group("fuzz, newcomer")
    fuzz.add_argument("--frames", type=int, metavar="N", help="records and frames, a million by default")
    fuzz.add_argument("--seed", type=int, metavar="N", help="of all that is sent")
    fuzz.add_argument("--crowd", type=int, metavar="N", help="free identities, 10,000 by default")
    fuzz.add_argument("--times", type=int, metavar="N", help="newcomers, one after another")
    pages = parser.add_argument_group("dashboard, page")
    pages.add_argument("--peers", type=int, metavar="N", help="of the swarm that is shown, 1,000 by default")
    longlife = parser.add_argument_group("longlife")
    longlife.add_argument("--events", type=int, metavar="N", help="of the longest log, a million by default")
    longlife.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs there, and take those that are there")
    longlife.add_argument("--verbs", metavar="A,B", help="only verbs with one of these in their names")
    scale = parser.add_argument_group("scale, which also has --rounds")
    scale.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], metavar="16,32")
    scale.add_argument("--simulated", action="store_true", help="a model of 100, 1,000 and 10,000 nodes; no process")
    scale.add_argument("--churn", type=float, default=0.0, metavar="SHARE", help="of the simulated nodes, an hour")
    scale.add_argument("--whole", type=int, metavar="N", help="so many whole nodes beside the model, 2 to 9")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    return options


def settings_of(name: str, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """What a benchmark is told beside its directory. Raises Unavailable: earlier outcomes cannot be read."""
    if name == "gain" and options.outcomes is None:
        options.outcomes = GAIN_RESULTS
    if name in CHOSEN:
        return {key: value for key in CHOSEN[name] if (value := getattr(options, key)) is not None}
    if name not in RESUMED:
        return {}

    def tell(outcome: msgspec.Struct) -> None:
        line = msgspec.json.encode(outcome)
        console.print(line.decode(), markup=False, highlight=False)
        if options.outcomes:
            with options.outcomes.open("ab") as file:
                file.write(line + b"\n")

    known = []
    if options.outcomes and options.outcomes.exists():
        kind = import_module(f"bench.{name.replace('-', '_')}").Outcome
        try:
            known = [msgspec.json.decode(line, type=kind) for line in read_lines(options.outcomes)]
        except msgspec.DecodeError as error:
            raise Unavailable(f"{options.outcomes} has a line that is no outcome of {name}: {error}") from error
    if name == "hostile":
        chosen = {key: getattr(options, key) for key in ("attacks", "seconds", "nodes", "short", "against")}
    elif name == "gain":
        chosen = {key: getattr(options, key) for key in ("arms", "regimes", "seeds", "study", "variant")}
        chosen["report"] = GAIN_REPORT
    else:
        chosen = {"arms": options.arms, "seeds": options.seeds, "rounds": options.rounds}
    if name in ("poison", "poison-weights"):
        chosen |= {"payloads": options.payloads, "say": lambda line: print(line, file=sys.stderr, flush=True)}
    return {"tell": tell, "known": known, **{key: value for key, value in chosen.items() if value is not None}}


def run(name: str, settings: Mapping[str, Any]) -> Result:
    """One benchmark in a directory of its own."""
    directory = PLACE / name
    began = time.monotonic()
    try:
        with hold(directory):
            rows = tuple(import_module(f"bench.{name.replace('-', '_')}").run(directory, **settings))
            shutil.rmtree(directory, ignore_errors=True)  # after trouble the logs of its nodes are of use
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
    sys.exit(main())
