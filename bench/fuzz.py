"""Records and frames of a grammar, sent to real nodes over real p2pd by every way in, while they run rounds.

What the nodes hold and logged afterwards is judged by a check of its own. The trainers have no model: what is fuzzed is
the network.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Sample
from bench.table import Row
from tests.hostile.attack import GROWTH_MIB_MAX
from tests.hostile.campaign import Campaign, LeanSwarm, started

NODES = 2
FRAMES = 1_000_000
REACHED = 200_000  # of them that are to reach the validator
CREDITED = 0.95  # of the honest reports of the rounds meanwhile
SETTINGS = {  # memberships of nobody make the quorum unreachable: a stage ends by its deadline
    "training.steps": 20,
    "round.gather_s": 2.0,  # bodies that nobody has are waited for until then, in each stage
    "coordinator.stage_s": 8.0,
    "coordinator.start_s": 8.0,
    "logs.level": "info",
}


def run(directory: Path, frames: int = FRAMES, seed: int = 0) -> Iterable[Row]:
    os.environ["OMP_NUM_THREADS"] = "1"
    swarm = LeanSwarm(directory, NODES)
    swarm.run(0, "", **SETTINGS)
    try:
        campaign = asyncio.run(sent(swarm, frames, seed))
        restarts = campaign.restarts()
        codes = swarm.stop()
        campaign.verify_logs()
        refused = campaign.judge_logs()
    finally:
        swarm.stop()
    for line in campaign.forged[:20]:
        print(line, file=sys.stderr)
    yield from rows(campaign, restarts + sum(code != 0 for code in codes.values()))
    yield from (
        Row(f"refused, counted by the nodes: {reason}", "", one(count)) for reason, count in refused.most_common()
    )


async def sent(swarm: LeanSwarm, frames: int, seed: int) -> Campaign:
    """The fuzz, once it is over."""
    await started(swarm, range(1, NODES + 1))
    campaign = Campaign(swarm, seed, lambda line: print(line, file=sys.stderr, flush=True))
    await campaign.run(frames)
    return campaign


def rows(campaign: Campaign, ended: int) -> Iterable[Row]:
    """What came out."""
    tally = campaign.tally
    reached = tally.fates["reached the validator"]
    credited, due = campaign.credited()
    yield goal("records and frames sent", "", tally.sent, f">= {FRAMES:,}", tally.sent >= FRAMES)
    yield goal("records that reached the validator", "", reached, f">= {REACHED:,}", reached >= REACHED)
    yield goal("workers and nodes that ended", "", ended, "0", not ended)
    yield goal("accepted and not genuine", "", len(campaign.forged), "0", not campaign.forged)
    growth = f"<= {GROWTH_MIB_MAX} MiB"
    yield goal(
        "network worker above its quiet size", "MiB", campaign.growth_mib, growth, campaign.growth_mib <= GROWTH_MIB_MAX
    )
    yield Row("within a minute after", "MiB", one(campaign.left_mib))
    share = credited / due if due else 0.0
    yield goal("honest reports credited meanwhile", "of all", share, f">= {CREDITED:g}", share >= CREDITED)
    yield Row("rounds meanwhile", "", one(campaign.rounds[1] - campaign.rounds[0]))
    yield Row("seconds", "s", one(campaign.seconds))
    yield Row("identities that connected", "", one(tally.identities))
    yield Row("records taken, all of them signed by their owners", "", one(tally.kinds["taken"]))
    yield Row("records in the storages that were judged", "", one(campaign.held))
    yield Row("events in the logs that were judged", "", one(campaign.logged))
    yield from (Row(f"sent: {fate}", "", one(count)) for fate, count in tally.fates.most_common())


def goal(what: str, unit: str, value: float, words: str, met: bool) -> Row:
    return Row(what, unit, one(value), "goal", goal=words, met=met)


def one(value: float) -> Sample:
    return Sample((float(value),))
