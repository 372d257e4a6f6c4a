"""swarmd's network worker and v0.4's nodes in one network, each reading what the other has written."""

from __future__ import annotations

import asyncio
import time

import pytest

from swarmd.core.commands import (
    Announce,
    CollectReports,
    Gather,
    PublishLeaderboard,
    PublishOutputs,
    PublishReport,
    ReadClock,
)
from swarmd.core.events import (
    CommandFailed,
    LeaderboardPublished,
    MemberSeen,
    NoRoundYet,
    RecordsRejected,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
)
from swarmd.dht.legacy.keys import question_key
from swarmd.swarms.rollouts import INDEX_MAX, Quoted
from tests.dht.legacy.network import LegacyDriver, Network, group_of

pytestmark = pytest.mark.anyio

QUESTION = "Natalia sold clips to 48 of her friends. How many?"
OTHER = "How much is 2 + 2?"


async def report(node: LegacyDriver, stage: int, total: float, groups: list[object], round: int = 0) -> None:
    ref = node.publishable(round, stage, total, groups)  # type: ignore[arg-type]
    await node.do(PublishReport(f"report/{round}/{stage}", round, stage, 0.5, ref))
    await node.expect(ReportPublished, round=round, stage=stage)


async def gather(node: LegacyDriver, stage: int, wait_s: float = 8.0, round: int = 0) -> RolloutsGathered:
    """What was published at `stage`, for the one after."""
    name = f"gather/{round}/{stage + 1}"
    await node.do(Gather(name, round, stage + 1, round, stage, time.time() + wait_s))
    return await node.expect(RolloutsGathered, command=name)


async def test_our_follower_takes_part_in_its_swarm(network: Network) -> None:
    theirs = await network.v04("theirs")
    ours = await network.ours("ours", theirs.peer_id, theirs.address)
    await ours.do(ReadClock("clock/1"))
    await ours.expect(NoRoundYet)
    before = time.time()
    assert await theirs.do("announce", round=0, stage=0) is True
    opened = await ours.expect(RoundAnnounced, round=0, stage=0)
    assert before <= opened.opened_at <= time.time()
    assert opened.deadline_at == pytest.approx(opened.opened_at + 300.0)
    await theirs.do("publish", round=0, stage=0, question=QUESTION, answer="72", text="<answer>72", reward=2.0)
    await theirs.do("publish", round=0, stage=0, question=OTHER, answer=None, text="four", reward=1.5)
    await report(ours, 0, 8.25, [group_of(3, QUESTION, ["no", "<answer>71"], 1, "72")])
    await theirs.do("announce", round=0, stage=1)
    await ours.expect(RoundAnnounced, round=0, stage=1)

    gathered = await gather(ours, 0)
    assert [(ref.peer, ref.round, ref.stage, ref.groups) for ref in gathered.rollouts] == [(theirs.peer_id, 0, 0, 2)]
    assert gathered.missing == 0
    await ours.expect(MemberSeen, peer=theirs.peer_id)
    body = ours.body_of(gathered.rollouts[0])
    assert (body.peer, body.total) == (theirs.peer_id, 3.5)
    by_question = {group.quoted.question: group for group in body.groups if group.quoted}
    assert by_question[QUESTION].quoted == Quoted(QUESTION, "72")
    assert by_question[OTHER].quoted == Quoted(OTHER, "")
    assert by_question[QUESTION].completions == ("<answer>72",)
    assert by_question[QUESTION].index == int(question_key(QUESTION)[:8], 16) & INDEX_MAX
    assert {group.task for group in body.groups} == {"legacy"} == {group.config_digest for group in body.groups}

    assert await theirs.do("rewards", round=0, stage=0) == {theirs.peer_id: 3.5, ours.peer_id: 8.25}
    rows = {row["question"]: row for row in await theirs.do("merge", round=0, stage=0)}
    assert rows[QUESTION]["agent_answers"] == {theirs.peer_id: "<answer>72", ours.peer_id: "<answer>71"}
    assert rows[OTHER]["agent_answers"] == {theirs.peer_id: "four", ours.peer_id: "No answer received..."}


async def test_its_follower_takes_part_in_our_swarm(network: Network) -> None:
    ours = await network.ours("ours")
    theirs = await network.v04("theirs", await ours.address())
    with pytest.raises(ValueError, match="cannot find"):
        await theirs.do("clock")
    for stage in range(3):
        now = time.time()
        await ours.do(Announce(f"announce/0/{stage}/1", 0, stage, now, now + 60))
        await ours.expect(RoundPublished, round=0, stage=stage)
        assert (await ours.expect(RoundAnnounced, round=0, stage=stage)).deadline_at == now + 60
        await ours.do(CollectReports(f"collect/0/{stage}", 0, stage))
        assert await theirs.do("clock") == [0, stage]
        prompt = "" if stage == 0 else f"prompt of {stage}"
        await theirs.do(
            "publish", round=0, stage=stage, question=QUESTION, answer="4", text="theirs", reward=2.5, prompt=prompt
        )
        await ours.expect(MemberSeen, peer=theirs.peer_id)
        assert not ours.seen(ReportSeen, stage=stage)  # its reward grows on: this node has not finished the stage
        await report(ours, stage, 4.0, [group_of(1, QUESTION, ["ours", "not this"], 0, "4", prompt)])
        seen = await ours.expect(ReportSeen, peer=theirs.peer_id, stage=stage)
        assert (seen.reward, seen.record) == (2.5, b"")
        assert (await ours.expect(ReportSeen, peer=ours.peer_id, stage=stage)).reward == 4.0
        row = (await theirs.do("merge", round=0, stage=stage))[0]
        kind = ("agent_answers", "agent_opinion", "final_agent_decision")[stage]
        assert row[kind] == {theirs.peer_id: "theirs", ours.peer_id: "ours"}
        if stage:
            assert row[f"stage{stage + 1}_prompt"] == prompt
        assert (await gather(ours, stage)).rollouts[0].peer == theirs.peer_id
    await ours.do(PublishLeaderboard("leaderboard/0", 0, ()))
    await ours.expect(LeaderboardPublished, round=0)
    expected = [[ours.peer_id, 4.0], [theirs.peer_id, 2.5]]
    for stage in range(3):
        found = await theirs.do("leaderboard", round=0, stage=stage)
        assert found == {"types": ["list", "tuple"], "rows": expected}
    await asyncio.sleep(2.5)
    assert ours.seen(RecordsRejected) == [] and ours.seen(CommandFailed) == []


async def test_a_finished_stage_has_its_reports_at_once(network: Network) -> None:
    ours = await network.ours("ours", poll_s=60.0)
    now = time.time()
    await ours.do(Announce("announce/0/0/1", 0, 0, now, now + 60))
    await ours.expect(RoundPublished)
    await ours.do(CollectReports("collect/0/0", 0, 0))
    await asyncio.sleep(0.5)
    await report(ours, 0, 4.0, [])
    assert (await ours.expect(ReportSeen, timeout_s=10)).reward == 4.0


async def test_near_its_deadline_a_stage_counts_whoever_has_a_reward(network: Network) -> None:
    theirs = await network.v04("theirs")
    ours = await network.ours("ours", "", theirs.address)
    await theirs.do("publish", round=0, stage=0, question=OTHER, answer="4", text="four", reward=1.5)
    now = time.time()
    await ours.do(Announce("announce/0/0/1", 0, 0, now, now + 60))
    await ours.expect(RoundPublished)
    await ours.do(CollectReports("collect/0/0", 0, 0))
    await ours.expect(MemberSeen, peer=theirs.peer_id)
    assert not ours.seen(ReportSeen)
    await ours.do(Announce("announce/0/0/2", 0, 0, now, time.time() + 5))
    assert (await ours.expect(ReportSeen, peer=theirs.peer_id)).reward == 1.5


async def test_rewards_grow_within_a_stage_and_the_report_has_the_last_word(network: Network) -> None:
    theirs = await network.v04("theirs")
    ours = await network.ours("ours", theirs.peer_id, theirs.address)
    for number, total in enumerate((1.0, 2.0, 3.0)):
        ref = ours.publishable(0, 0, total, [group_of(number, f"question {number}", ["text"], 0)])
        await ours.do(PublishOutputs(f"outputs/0/0/{number}", 0, 0, ref))
    async with asyncio.timeout(10):
        while await theirs.do("rewards", round=0, stage=0) != {ours.peer_id: 3.0}:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
    await report(ours, 0, 4.0, [group_of(9, "question 9", ["text"], 0)])
    late = ours.publishable(0, 0, 3.5, [])
    await ours.do(PublishOutputs("outputs/0/0/9", 0, 0, late))
    await asyncio.sleep(1.0)
    assert await theirs.do("rewards", round=0, stage=0) == {ours.peer_id: 4.0}
    assert question_key("question 9") in await theirs.do("outputs", peer=ours.peer_id, round=0, stage=0)
