"""What a node costs: memory of each of its processes while it trains, and processor time while it waits.

Two nodes, coordinator and follower, with the shipped local configuration and embedded model, as upstream was measured.
PSS counts a page that several processes share in parts, so the sum over a node's processes is what the node takes.
Bare TRL is a process that trains the same model with the same settings; a node and it are then measured one after the
other, each with nothing beside it that maps the same libraries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Sample, cpu_of, memory_of, process_tree, program_of, sample
from bench.nodes import READY_S, swarm_of
from bench.stage import bare_side
from bench.table import Row
from swarmd.cli.local_swarm import DaemonProcess, LocalSwarm
from swarmd.config import Config, load_config

ROUNDS = 2
EVERY_S = 1.0
IDLE_S = 30.0
DAEMON_GOAL_MIB = 80.0
NODE_GOAL_MIB = 650.0
BARE_GOAL = 1.15
BARE_STAGES = 4
BARE_EVERY_S = 0.25
IDLE_GOAL_PERCENT = 0.5
UPSTREAM_MIB = "rl-swarm 0.4.4, measured apart: about 815 MiB"
PARTS = {"swarmd": "daemon", "swarmd.dht.worker": "network worker", "swarmd.training.worker": "trainer"}

Memory = dict[str, dict[str, float]]  # part → RSS and PSS in MiB


def run(directory: Path) -> Iterable[Row]:
    with swarm_of(directory, 2, ROUNDS, {}) as swarm:
        training = watch_training(swarm)
        idle = watch_idle(swarm.daemons)
    yield from memory_rows(training)
    yield beside_bare_trl(directory)
    yield from idle_rows(idle)


def watch_training(swarm: LocalSwarm) -> list[Memory]:
    """Memory of each node from the first trained stage to the end of the rounds."""
    swarm.wait_until(lambda: all(row.rewards for row in swarm.rows()), READY_S, "the first stage to be trained")
    seen: list[Memory] = []

    def look_until_over() -> bool:
        seen.extend(memory_by_part(daemon) for daemon in swarm.daemons)
        return bool(swarm.rows()) and all(swarm.are_rounds_over)

    swarm.wait_until(look_until_over, READY_S, "the rounds to be over", every_s=EVERY_S)
    return seen


def memory_by_part(daemon: DaemonProcess) -> Memory:
    """A node's memory now."""
    parts: Memory = {}
    for pid in process_tree(daemon.pid):
        try:
            name, memory = part_of(pid), memory_of(pid)
        except OSError:
            continue  # gone meanwhile
        known = parts.setdefault(name, {"Rss": 0.0, "Pss": 0.0})
        for kind in known:
            known[kind] += memory[kind]
    return parts


def part_of(pid: int) -> str:
    """The process's part in a node."""
    program = program_of(pid)
    return PARTS.get(program, program)


def memory_rows(seen: list[Memory]) -> Iterable[Row]:
    rss = Sample(tuple(memory["daemon"]["Rss"] for memory in seen))
    goal = f"<= {DAEMON_GOAL_MIB:g} MiB"
    yield Row("daemon, RSS while training", "MiB", rss, "goal", goal=goal, met=rss.median <= DAEMON_GOAL_MIB)
    node = Sample(tuple(sum(part["Pss"] for part in memory.values()) for memory in seen))
    goal = f"<= {NODE_GOAL_MIB:g} MiB"
    yield Row("node, PSS while training", "MiB", node, UPSTREAM_MIB, goal=goal, met=node.median <= NODE_GOAL_MIB)
    for part in sorted({part for memory in seen for part in memory}):
        pss = [memory[part]["Pss"] for memory in seen if part in memory]
        yield Row(f"  {part}, PSS", "MiB", sample(*pss))


def beside_bare_trl(directory: Path) -> Row:
    """A node that trains alone against bare TRL that trains alone: the median of its PSS, all processes together."""
    with swarm_of(directory / "alone", 1, ROUNDS, {}) as swarm:
        alone = watch_training(swarm)
        config = load_config(swarm.places[0].config)
    node = Sample(tuple(sum(part["Pss"] for part in memory.values()) for memory in alone))
    bare = watch_bare_trl(config, directory)
    ratio = sample(node.median / bare.median)
    met = ratio.median <= BARE_GOAL
    return Row("node alone, PSS while training", "MiB", node, "bare TRL", bare, ratio, f"<= {BARE_GOAL:g}", met)


def watch_bare_trl(config: Config, directory: Path) -> Sample:
    """PSS of a bare TRL process in MiB while it trains, after its first stage."""
    seen: list[float] = []
    with bare_side(config, directory) as bare:
        bare.stage(0)
        over = threading.Event()
        watching = threading.Thread(target=_watch, args=(bare.process.pid, over, seen))
        watching.start()
        try:
            for round in range(1, BARE_STAGES):
                bare.stage(round)
        finally:
            over.set()
            watching.join()
    return Sample(tuple(seen))


def _watch(pid: int, over: threading.Event, seen: list[float]) -> None:
    while not over.wait(BARE_EVERY_S):
        seen.append(memory_of(pid)["Pss"])


def watch_idle(daemons: Iterable[DaemonProcess]) -> dict[str, list[float]]:
    """Percent of a core that each part takes over some time in which nothing is trained, one value a node."""
    pids = [(part_of(pid), pid) for daemon in daemons for pid in process_tree(daemon.pid)]
    before, began = {pid: cpu_of(pid) for _, pid in pids}, time.monotonic()
    threading.Event().wait(IDLE_S)
    took_s = time.monotonic() - began
    percent: dict[str, list[float]] = {}
    for part, pid in pids:
        percent.setdefault(part, []).append(100 * (cpu_of(pid) - before[pid]) / took_s)
    return percent


def idle_rows(percent: dict[str, list[float]]) -> Iterable[Row]:
    daemon = sample(*percent.pop("daemon"))
    goal = f"<= {IDLE_GOAL_PERCENT:g} %"
    yield Row("daemon, of a core while idle", "%", daemon, "goal", goal=goal, met=daemon.median <= IDLE_GOAL_PERCENT)
    for part, values in sorted(percent.items()):
        yield Row(f"  {part}, of a core while idle", "%", sample(*values))
