"""What a quiet swarm's network costs a node, in this checkout and in another one, in turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.hostile_rows import Figures
from bench.place import Unavailable, end
from bench.quiet_swarm import Quiet

SCRIPT = Path(__file__).with_name("quiet_swarm.py")
ROOT = SCRIPT.parent.parent
TURNS = 2
LONGEST_S = 600.0


def compare_cost(directory: Path, nodes: int, against: Path | None, seconds: float) -> Figures:
    """Percent of a core, KiB and rounds a minute, one value a node and turn, ours and where asked for the others'."""
    figures: Figures = {}
    for turn in range(TURNS):
        sides = [("", ROOT)] + ([(" against", against.resolve())] if against else [])
        for suffix, checkout in sides if turn % 2 == 0 else reversed(sides):
            for node in run_in(checkout, directory, nodes, seconds):
                for name, value in (("%", node.core_percent), ("KiB", node.round_kib), ("/min", node.rounds_minute)):
                    figures.setdefault(name + suffix, []).append(value)
    return figures


def run_in(checkout: Path, directory: Path, nodes: int, seconds: float) -> list[Quiet]:
    """A quiet swarm of the code that lies in a checkout. Raises Unavailable where it does not get on."""
    if not (checkout / "tests/daemon/run_fake.py").exists():
        raise Unavailable(f"{checkout} is no checkout whose nodes can be run without a model")
    shutil.rmtree(directory, ignore_errors=True)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(directory), str(nodes), str(seconds)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is this process's, which has it end its nodes
    )
    try:
        told, _ = process.communicate(timeout=LONGEST_S)
    except BaseException:
        end(process)
        raise
    shutil.rmtree(directory, ignore_errors=True)
    if process.returncode:
        raise Unavailable(f"the quiet swarm of {checkout} ended with {process.returncode}; it said why above")
    return msgspec.json.decode(told, type=list[Quiet])
