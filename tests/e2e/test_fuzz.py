"""A grammar fuzz of real nodes by every way in: nobody ends, nothing forged is held or logged, and rounds go on."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE_S, Swarm, audited
from tests.hostile.attack import GROWTH_MIB_MAX
from tests.hostile.campaign import Campaign, LeanSwarm, started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(7200)]

SLICE, ALL = 500, 1_000_000
REACHED = 0.2  # of what is sent, to the validator at least
SETTINGS: dict[str, object] = {  # memberships of nobody make the quorum unreachable: a stage ends by its deadline
    "coordinator__stage_s": 4.0,
    "coordinator__start_s": 4.0,
    "training__steps": 10,
}


async def sent(swarm: Swarm, frames: int) -> Campaign:
    """The fuzz, once it is over and the nodes have gone on for two rounds."""
    await started(swarm, (1, 2))
    campaign = Campaign(swarm, seed=frames, say=print)
    await campaign.run(frames)
    return campaign


def check(swarm: Swarm, frames: int) -> Campaign:
    """What holds after however many."""
    swarm.run(0, **SETTINGS)
    campaign = asyncio.run(sent(swarm, frames))
    assert campaign.restarts() == 0
    swarm.stop(PATIENCE_S)
    refused = campaign.judge_logs()
    tally = campaign.tally
    assert campaign.forged == []
    assert tally.sent >= frames and tally.fates["reached the validator"] >= REACHED * frames
    assert {"bad-signature", "malformed", "unowned", "far-expiration", "not-the-coordinator"} <= refused.keys()
    assert campaign.held > 0 and campaign.logged > 0
    assert campaign.growth_mib <= GROWTH_MIB_MAX
    return campaign


@pytest.mark.nodes(2)
def test_thousands_of_frames_of_a_grammar_forge_nothing_and_end_nobody(swarm: Swarm) -> None:
    check(swarm, SLICE)


@pytest.mark.soak
def test_a_million_frames_of_a_grammar_forge_nothing_and_end_nobody(tmp_path: Path) -> None:
    with audited(LeanSwarm(tmp_path / "swarm", 2)) as swarm:
        campaign = check(swarm, ALL)
        credited, due = campaign.credited()
        assert credited >= 0.95 * due
