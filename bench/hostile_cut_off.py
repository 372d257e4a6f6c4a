"""How long a node goes on as if nothing were amiss when it hears strangers only."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.hostile_rows import Figures
from swarmd.cli.local_swarm import LocalSwarm
from tests.hostile.eclipser import Eclipser
from tests.hostile.watch import ScriptedSwarm, p2pd_of

STAGE_S = 60.0
LONGEST_STAGES = 3.0
LOOK_S = 0.25
CUT_OFF = 2  # number of the node that is left with a stranger


def time_until_said(directory: Path) -> Figures:
    """Stages, and seconds, from the moment in which all others fell silent; the longest where it was not said."""
    swarm = ScriptedSwarm(directory)
    try:
        swarm.run(**{"coordinator.stage_s": STAGE_S})
        seconds = asyncio.run(_cut_off(swarm, directory / "stranger"))
    finally:
        swarm.stop()
    return {"seconds": [seconds], "stages": [seconds / STAGE_S]}


async def _cut_off(swarm: ScriptedSwarm, root: Path) -> float:
    stranger = Eclipser(root)
    await stranger.open(swarm.addresses()[CUT_OFF - 1])
    await stranger.arm()
    try:
        with silenced(swarm):
            return await _wait_until_said(swarm)
    finally:
        await stranger.close()


async def _wait_until_said(swarm: LocalSwarm) -> float:
    began, longest_s = time.monotonic(), LONGEST_STAGES * STAGE_S
    while (passed_s := time.monotonic() - began) < longest_s:
        status = await asyncio.to_thread(swarm.status, CUT_OFF)
        if status is not None and not status.network.healthy:
            return passed_s
        await asyncio.sleep(LOOK_S)
    return longest_s


@contextmanager
def silenced(swarm: LocalSwarm) -> Iterator[None]:
    """While the block runs, all other nodes stand still, daemons too, which would start others; connections stay."""
    pids = [pid for place in swarm.places if place.number != CUT_OFF for pid in _network_of(swarm, place.number)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _network_of(swarm: LocalSwarm, number: int) -> tuple[int, int, int]:
    status = swarm.status(number)
    assert status is not None and status.network.worker.pid is not None
    return status.process.pid, status.network.worker.pid, p2pd_of(swarm.places[number - 1])
