"""The timeline over nodes: eight logs of 100,000 events each, with clocks up to five minutes wrong, as one.

A process of its own puts all events in causal order; another, as `swarmd timeline` without a round does, prints the
last round. Of a round the coordinator records fourteen events, among them seven reports. So does each of the others,
with a refused record, a change of its link and timers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.measure import sample
from bench.table import Row
from swarmd.core import events
from tests.observe.scripted import ScriptedSwarm, peer_of

EVENTS = 100_000
ROUND_EVENTS = 14  # that each node records of a round
SKEWS = (0.0, 300.0, -300.0, 250.0, -100.0, 20.0, 10.0, -5.0)
GOAL_S, GOAL_MIB = 10.0, 250.0
WRITE = """
import sys
from pathlib import Path
from bench.timeline import write_logs
write_logs(Path(sys.argv[1]))
"""
MERGE = """
import sys
from pathlib import Path
from swarmd.observe.node_log import NodeLog, RoundRange
from swarmd.observe.timeline import read_parts
places = sorted(Path(sys.argv[1]).glob("n*"))
logs = [NodeLog(number, place / "events", RoundRange(0)) for number, place in enumerate(places)]
print(sum(len(part.moments) for part in read_parts(logs, RoundRange(0))))
"""


def run(directory: Path) -> Iterable[Row]:
    # in a process of its own: the largest size of this one would count as that of each process that it starts
    subprocess.run([sys.executable, "-c", WRITE, str(directory)], check=True)
    whole = [sys.executable, "-c", MERGE, str(directory)]
    last = [sys.executable, "-m", "swarmd", "timeline", str(directory)]
    for what, command in (("all rounds in order", whole), ("the last round, printed", last)):
        wall_s, cpu_s, memory_mib = cost_of(command)
        yield Row(f"{what}: processor time", "s", sample(cpu_s), goal=f"<= {GOAL_S:g} s", met=cpu_s <= GOAL_S)
        yield Row(f"{what}: wall time", "s", sample(wall_s))
        met = memory_mib <= GOAL_MIB
        yield Row(f"{what}: memory", "MiB", sample(memory_mib), goal=f"<= {GOAL_MIB:g} MiB", met=met)


def write_logs(directory: Path) -> None:
    """The logs of eight nodes over the same rounds."""
    swarm = ScriptedSwarm(directory, SKEWS)
    for round_ in range(EVENTS // ROUND_EVENTS + 1):
        checkpoint, timer = events.CheckpointWritten(round_, 0, "d" * 64), events.TimerFired("retry/x", 1.0)
        swarm.log(0, checkpoint)
        for number in swarm.numbers[1:]:
            refused = events.RecordsRejected(peer_of((number + 3) % len(SKEWS)), "stale")
            swarm.log(number, checkpoint, events.LinkUp(6 + round_ % 2), refused, *(timer,) * 7)
        swarm.play(round_)
    swarm.write()


def cost_of(command: Sequence[str]) -> tuple[float, float, float]:
    """Wall and processor seconds of a process, and its largest resident memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
