"""A peer that claims three times what its rollouts give, in a swarm of real network workers, scored by a real trainer's
parts."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec
import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.commands import Gather, PublishReport, Train
from swarmd.core.events import ReportPublished, RolloutsGathered, StageTrained
from swarmd.core.peers.claims import GAPS_MIN, unbacked
from swarmd.core.values import Backing
from swarmd.swarms.gym.reasoning_gym import DigitsPlan
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.rollouts import VERSION, Group, Rollouts
from swarmd.training.batches.groups import PeerGroups, PeerLimits, Scorer, back_peers
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy, load_policy
from tests.core.story import Story, announced, settings, trained
from tests.dht.driver import SWARM, Driver
from tests.hostile.swarm import small_swarm

PLAN = DigitsPlan(SwarmConfig(id=SWARM))
LIMITS = PeerLimits(SWARM, generations=2, groups_max=8, staleness_rounds=1, prompt_tokens=100, completion_tokens=12)
GROUPS = 2
TRUE = 0.7  # mean reward: of each two answers in their form one is right


@pytest.mark.anyio
async def test_a_peer_that_claims_three_times_what_its_rollouts_give_is_found_out(tmp_path: Path) -> None:
    policy = load_policy(TrainingConfig(device="cpu"))
    async with small_swarm(tmp_path) as swarm:
        node, (liar, honest) = swarm.coordinator, swarm.followers
        story = Story(settings(peer=node.peer_id))
        story.join()
        for round in range(GAPS_MIN):
            await publish(liar, round, 3 * TRUE)
            await publish(honest, round, TRUE)
            event = await gather(node, round)
            assert {claim.peer: claim.reward for claim in event.claims} == {
                liar.peer_id: 3 * TRUE,
                honest.peer_id: TRUE,
            }
            story.tell(announced(round + 1), event, judged(policy, node, event))
    assert [claimant.peer for claimant in unbacked(story.state)] == [liar.peer_id]


async def publish(driver: Driver, round: int, claim: float) -> None:
    """Publish all groups of a stage, half of whose answers are right, and a report."""
    place = StageId(driver.peer_id, round, 0)
    groups = []
    for question in itertools.islice(PLAN.draw(place, NO_MATERIAL), GROUPS):
        texts = tuple(f"<answer>{answer}</answer>" for answer in (question.entry["answer"], "?"))
        reference = question.reference
        groups.append(Group(reference.task, reference.config_digest, reference.seed, reference.index, texts))
    body = Rollouts(VERSION, SWARM, driver.peer_id, round, 0, tuple(groups), 2 * GROUPS * claim)
    rollouts = driver.put(body, GROUPS, (round, 0))
    await driver.do(PublishReport(f"report/{round}/0", round, 0, claim, rollouts))
    await driver.expect(ReportPublished, round=round)


async def gather(node: Driver, round: int) -> RolloutsGathered:
    """What the node's network worker finds of a stage."""
    name = f"gather/{round + 1}/0"
    await node.do(Gather(name, round + 1, 0, round, 0, time.time() + 30.0))
    event: RolloutsGathered = await node.expect(RolloutsGathered, command=name)
    assert len(event.rollouts) == 2
    return event


def judged(policy: Policy, node: Driver, event: RolloutsGathered) -> StageTrained:
    """What its trainer makes of that."""
    peers = PeerGroups(LIMITS, policy, PLAN, Scorer(PLAN), node.peer_id)
    train = Train(f"train/{event.round}/0", event.round, 0, event.rollouts)
    backed = back_peers(PLAN, peers.collect(train, node.blobs.get, 0, Cancellation()), 2 * GROUPS)
    assert all(isinstance(each, Backing) and each.completions == 2 * GROUPS for each in backed)
    return msgspec.structs.replace(trained(event.round), backed=backed)
