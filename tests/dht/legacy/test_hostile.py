"""A node of a legacy network among peers that write what they like: it goes on, and counts what it refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from swarmd.core.commands import AdmitPeers, Announce, Gather, PublishReport, ReadClock, Register
from swarmd.core.events import (
    CommandFailed,
    LinkDegraded,
    LinkDown,
    LinkUp,
    MemberSeen,
    RecordsRejected,
    ReportPublished,
    RolloutsGathered,
    RoundAnnounced,
)
from swarmd.dht.identity.identity import create_identity
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.session import NOTE_S
from swarmd.errors import ExitCode
from tests.dht.legacy.network import V04, LegacyDriver, Network, group_of

pytestmark = pytest.mark.anyio

NOBODY = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


async def junk_clocks(theirs: V04, ours: LegacyDriver) -> None:
    for number, value in enumerate(["soon", [1], {"round": 1}, [-1, 0], [0, 7]]):
        await theirs.do("raw", key=keys.CLOCK, value=value, ends_in_s=1000 + number)
    await ours.expect(RecordsRejected, reason="malformed")
    await theirs.do("raw", key=keys.CLOCK, value=[3, 1], ends_in_s=2000)
    await ours.expect(RoundAnnounced, round=3, stage=1)
    await theirs.do("raw", key=keys.CLOCK, value=[9000, 0], ends_in_s=3000)
    await ours.expect(RecordsRejected, reason="wrong-round")
    await theirs.do("announce", round=3, stage=2)
    await ours.expect(RoundAnnounced, round=3, stage=2)
    await theirs.do("raw", key=keys.CLOCK, value=[0, 0], ends_in_s=1e12)
    await ours.expect(RecordsRejected, reason="far-expiration")
    assert [(event.round, event.stage) for event in ours.seen(RoundAnnounced)] == [(3, 1), (3, 2)]


async def junk_outputs(theirs: V04) -> None:
    good = {"question": "q", "answer": "4", "agent_answers": {theirs.peer_id: "good"}}
    samples = {
        keys.question_key("1"): "junk",
        keys.question_key("2"): [1.0, "junk"],
        keys.question_key("3"): [1.0, {**good, "more": 1}],
        keys.question_key("4"): [1.0, {**good, "agent_answers": {NOBODY: "not mine"}}],
        keys.question_key("5"): [float("nan"), good],
        keys.question_key("6"): [1.0, {**good, "question": "another"}],
        keys.question_key("7"): [1.0, {**good, "question": "7", "agent_answers": {theirs.peer_id: "x" * 100_000}}],
        keys.question_key("q"): [1.0, good],
    }
    for subkey, sample in samples.items():
        await theirs.do("raw", key=keys.outputs(theirs.peer_id, 0, 0), value=sample, subkey=subkey)
    name = keys.rewards(0, 0)
    await theirs.do("raw", key=name, value=2.0, subkey=theirs.peer_id)
    for subkey, value in (("somebody", 1.0), (NOBODY, float("inf")), (None, "all of it")):
        await theirs.do("raw", key=name, value=value, subkey=subkey)


async def test_junk_is_counted_and_what_is_good_among_it_counts(network: Network) -> None:
    theirs = await network.v04("theirs")
    ours = await network.ours("ours", theirs.peer_id, theirs.address)
    await junk_clocks(theirs, ours)
    await junk_outputs(theirs)
    await ours.do(Gather("gather", 0, 1, 0, 0, time.time() + 6))
    gathered = await ours.expect(RolloutsGathered, command="gather")
    bodies = [ours.body_of(ref) for ref in gathered.rollouts]
    assert [group.completions for body in bodies for group in body.groups] == [("good",)]
    for reason in ("wrong-keys", "unowned", "non-finite", "wrong-key", "oversized", "malformed"):
        await ours.expect(RecordsRejected, reason=reason)
    assert {event.peer for event in ours.seen(MemberSeen)} == {theirs.peer_id}
    assert ours.process.returncode is None and not ours.faults


async def test_one_peer_fills_only_its_share_of_the_samples_and_members_alone_are_asked(network: Network) -> None:
    theirs = await network.v04("theirs")
    ours = await network.ours("ours", NOBODY, theirs.address)
    await theirs.do("flood", peer=theirs.peer_id, round=0, stage=0, count=70)
    await ours.do(Gather("gather/1", 0, 1, 0, 0, time.time() + 6))
    gathered = await ours.expect(RolloutsGathered, command="gather/1")
    assert [ref.groups for ref in gathered.rollouts] == [64]
    await ours.do(AdmitPeers("admit/1", open=False, peers=(NOBODY,)))
    await asyncio.sleep(0.3)
    await ours.do(Gather("gather/2", 0, 1, 0, 0, time.time() + 1))
    assert (await ours.expect(RolloutsGathered, command="gather/2")).rollouts == ()
    await ours.expect(RecordsRejected, reason="not-a-member")
    await ours.do(AdmitPeers("admit/2", open=True))
    await asyncio.sleep(0.3)
    await ours.do(Gather("gather/3", 0, 1, 0, 0, time.time() + 6))
    assert len((await ours.expect(RolloutsGathered, command="gather/3")).rollouts) == 1


async def test_records_go_out_again_unchanged_when_the_network_was_lost(network: Network) -> None:
    theirs = await network.v04("theirs")
    ours = await network.ours("ours", theirs.peer_id, theirs.address)
    ref = ours.publishable(0, 0, 4.5, [group_of(1, "question", ["text"], 0)])
    await ours.do(PublishReport("report/0/0", 0, 0, 0.5, ref))
    await ours.expect(ReportPublished)
    await theirs.clean()
    fresh = await network.v04("fresh", await ours.address())
    await asyncio.sleep(NOTE_S + 1)  # whoever is connected is remembered
    os.kill(ours.p2pd(), signal.SIGKILL)
    await ours.expect(LinkDown)
    since = len(ours.events)
    await ours.expect(LinkUp, since=since, timeout_s=25)
    await asyncio.sleep(2.0)
    await ours.kill()
    assert await fresh.do("rewards", round=0, stage=0) == {ours.peer_id: 4.5}
    assert list(await fresh.do("outputs", peer=ours.peer_id, round=0, stage=0)) == [keys.question_key("question")]


async def test_a_follower_alone_publishes_and_reads_nothing(network: Network) -> None:
    ours = LegacyDriver(network.root / "ours", NOBODY, (f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}",))
    network.nodes.append(ours)
    await ours.start()
    await ours.expect(LinkDegraded)
    ref = ours.publishable(0, 0, 4.5, [])
    commands = [
        ReadClock("clock"),
        PublishReport("report/0/0", 0, 0, 0.5, ref),
        Gather("gather", 0, 1, 0, 0, time.time() + 2),
    ]
    for command in commands:
        await ours.do(command)
    for command in commands:
        await ours.expect(CommandFailed, command=command.id)


async def test_a_coordinator_is_a_network_by_itself(network: Network) -> None:
    ours = await network.ours("ours")
    await ours.do(Announce("announce", 0, 0, 1.0, 2.0))
    await ours.expect(RoundAnnounced, round=0, opened_at=1.0, deadline_at=2.0)
    await ours.do(ReadClock("clock"))
    await asyncio.sleep(0.5)
    assert len(ours.seen(RoundAnnounced)) == 2
    await ours.do(Announce("announce/final", 1, 0, 3.0, 3.0, final=True))
    await ours.expect(RoundAnnounced, round=1, final=True)


async def test_an_identity_that_v04_does_not_have_is_a_permanent_fault(network: Network) -> None:
    root = network.root / "ours"
    root.mkdir()
    create_identity(root / "identity.key")
    ours = LegacyDriver(root)
    network.nodes.append(ours)
    await ours.start()
    await ours.do(Register("register"))
    assert await ours.wait() == ExitCode.NO_PERMISSION
    assert ours.faults[-1].permanent and "swarmd identity new --rsa" in ours.faults[-1].reason
