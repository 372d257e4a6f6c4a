"""The command line of `python -m bench`: what is asked for, refused before anything is measured where it cannot be."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESUMED = ("sharing", "worked", "poison", "poison-weights", "hostile", "skills", "staleness", "gain")
"""Their outcomes are kept (`--outcomes`), and they go on where they were cut off."""

CHOSEN: Mapping[str, tuple[str, ...]] = {  # options that a benchmark has
    "stage": ("model", "device"),
    "gpu-check": ("device",),
    "crossover": ("model",),
    "padding": ("seeds",),
    "dashboard": ("peers",),
    "page": ("peers",),
    "newcomer": ("crowd", "times"),
    "longlife": ("events", "logs", "verbs"),
    "scale": ("sizes", "rounds", "simulated", "churn", "whole"),
    "hostile": ("attacks", "seconds", "nodes", "short", "against"),
    "gain": ("arms", "regimes", "seeds", "study", "variant"),
    **dict.fromkeys(("sharing", "worked", "skills", "staleness"), ("arms", "seeds", "rounds")),
    **dict.fromkeys(("poison", "poison-weights"), ("arms", "seeds", "rounds", "payloads")),
}


def whole_number(text: str, least: int = 1) -> int:
    """A whole number of `least` or more."""
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)


def number_from_0(text: str) -> int:
    return whole_number(text, 0)


def real(text: str) -> float:
    """A finite number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


def words(text: str) -> list[str]:
    """Words with commas between them."""
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list with commas between its words")
    return found


def several(one: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Numbers with commas between them."""
    return lambda text: [one(word) for word in words(text)]


def new_file(text: str) -> Path:
    """Where a file can be written when all is over; what is measured until then would be lost."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is no directory; make it first")
    return path


def parse(known: Mapping[str, str]) -> argparse.Namespace:
    """What is asked for of these benchmarks, by their names; ends the process with code 2 where that cannot be."""
    listing = "\n".join(f"  {name:17s}{summary}" for name, summary in known.items())
    parser = argparse.ArgumentParser(
        "python -m bench", epilog=f"benchmarks:\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default the first 14")
    parser.add_argument("--json", type=new_file, metavar="OUT", help="write machine and figures there")
    parser.add_argument("--keep", action="store_true", help="replace the tables in bench/results")
    _add_resumed(parser)
    _add_others(parser)
    options = parser.parse_args()
    if options.json is not None and options.json.is_dir():
        parser.error(f"{options.json} is a directory; name a file")
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    if trouble := misplaced(options):
        parser.error(trouble)
    return options


def misplaced(options: argparse.Namespace) -> str:
    """An option that none of the benchmarks has, or that two would have in common; "" where there is none."""
    taken = {option for name in options.names for option in CHOSEN.get(name, ())}
    for option in sorted({option for chosen in CHOSEN.values() for option in chosen} - taken):
        if getattr(options, option) not in (None, False):
            having = [name for name, chosen in CHOSEN.items() if option in chosen]
            return f"--{option} is an option of {', '.join(having)} alone; name one of them"
    resumed = [name for name in dict.fromkeys(options.names) if name in RESUMED]
    if options.outcomes and len(resumed) != 1:
        return f"--outcomes keeps those of one benchmark; name one of {', '.join(RESUMED)}"
    return ""


def chosen(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What was given of a benchmark's own options."""
    given = {option: getattr(options, option) for option in CHOSEN.get(name, ())}
    return {option: value for option, value in given.items() if value is not None}


def _add_resumed(parser: argparse.ArgumentParser) -> None:
    sharing = parser.add_argument_group("sharing, worked, poison, poison-weights, hostile, skills, staleness, gain")
    sharing.add_argument("--arms", type=words, metavar="A,B", help='such as "4/4,2/6"')
    sharing.add_argument("--regimes", type=words, metavar="A,B", help="of gain")
    sharing.add_argument("--variant", metavar="NAME", help="of gain: one of the variants in bench/gain.toml")
    sharing.add_argument("--study", action="store_true", help="of gain: only say what of its families a base learns")
    sharing.add_argument("--payloads", type=words, metavar="A,B", help="of both kinds of poison")
    sharing.add_argument("--seeds", type=several(number_from_0), metavar="0,1")
    sharing.add_argument("--rounds", type=whole_number, metavar="N")
    sharing.add_argument(
        "--outcomes", type=new_file, metavar="OUT", help="keep outcomes there; what is there is not run again"
    )
    hostile = parser.add_argument_group("hostile")
    hostile.add_argument("--attacks", type=words, metavar="1,4,all", help="also cut-off, cost")
    hostile.add_argument("--seconds", type=real, metavar="N", help="of each attack")
    hostile.add_argument("--nodes", type=whole_number, metavar="N")
    hostile.add_argument("--short", action="store_true", help="all attacks at once, in two minutes")
    hostile.add_argument("--against", type=Path, metavar="DIR", help="a checkout to compare the cost of defence with")


def _add_others(parser: argparse.ArgumentParser) -> None:
    newcomer = parser.add_argument_group("newcomer")
    newcomer.add_argument("--crowd", type=whole_number, metavar="N", help="free identities, 10,000 by default")
    newcomer.add_argument("--times", type=whole_number, metavar="N", help="newcomers, one after another")
    stage = parser.add_argument_group("stage, gpu-check, crossover")
    stage.add_argument("--model", metavar="NAME", help="embedded, smollm2 or a model directory; not of gpu-check")
    stage.add_argument("--device", choices=("cpu", "cuda", "xpu", "mps"))
    pages = parser.add_argument_group("dashboard, page")
    pages.add_argument("--peers", type=whole_number, metavar="N", help="of the swarm that is shown, 1,000 by default")
    longlife = parser.add_argument_group("longlife")
    longlife.add_argument("--events", type=whole_number, metavar="N", help="of the longest log, a million by default")
    longlife.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs there, and take those that are there")
    longlife.add_argument("--verbs", metavar="A,B", help="only verbs with one of these in their names")
    scale = parser.add_argument_group("scale, which also has --rounds")
    scale.add_argument("--sizes", type=several(whole_number), metavar="16,32")
    scale.add_argument("--simulated", action="store_true", help="a model of 100, 1,000 and 10,000 nodes; no process")
    scale.add_argument("--churn", type=real, metavar="SHARE", help="of the simulated nodes, an hour")
    scale.add_argument("--whole", type=whole_number, metavar="N", help="so many whole nodes beside the model, 2 to 9")
