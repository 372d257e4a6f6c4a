"""The watcher: every log once, across reorganisations, and from endpoints that fail, lag or lie; own logs, members."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmd.chain import watcher
from swarmd.chain.blocks import facts_from_logs
from swarmd.chain.contract import encode_call
from swarmd.chain.endpoints import BEHIND_BLOCKS, url_without_secrets
from swarmd.chain.watcher import STILL_S, FinalityTracker
from swarmd.cli.swarm import _read_peers
from swarmd.config import ChainConfig
from swarmd.core.commands import WatchChain
from swarmd.core.events import (
    AnyChainLog,
    ChainBlock,
    ChainDegraded,
    ChainReorged,
    ChainUp,
    Event,
    MembershipRead,
    RegistrationLog,
    RewardLog,
    SubmissionsCounted,
    VoteLog,
)
from swarmd.core.values import BlockRef
from swarmd.errors import ChainMismatch, ConfigError
from tests.anvil import running_anvil
from tests.chain.grounds import (
    Act,
    Answer,
    Call,
    Ground,
    Middleman,
    Watch,
    acting,
    entry_of,
    error,
    middleman,
    refusing,
    result,
    watching,
    watching_through,
)
from tests.contracts.chain import deploy, deploy_swarm

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("way", ["http", "ws"])
async def test_it_reads_what_was_said_before_and_what_is_said_after(ground: Ground, way: str) -> None:
    ground.swarm.register(ground.swarm.alice, "me", "you")
    async with watching(ground.config(ground.ws if way == "ws" else ground.url)) as watch:
        up = await watch.expect(ChainUp)
        assert up.head.number == ground.height() and up.genesis == ground.hash_of(0)
        assert (up.round, up.stage, up.stages, up.extensions) == (0, 0, 1, 1)
        assert up.registered_to == ground.swarm.alice
        assert watch.fold() == ground.logs()
        ground.swarm.move_on()
        ground.swarm.send(ground.swarm.alice, "submitReward(uint256,uint256,int256,string)", 0, 0, -5, "me")
        ground.swarm.send(ground.swarm.alice, "submitWinners", 0, ["you", "me"], "me")
        await watch.settle(ground)
        assert len(watch.seen(ChainUp)) == 1


@pytest.mark.parametrize("depth", range(1, 9))
async def test_a_reorganisation_is_found_with_its_depth(ground: Ground, depth: int) -> None:
    ground.register(8)
    async with watching(ground.config(ground.ws)) as watch:
        await watch.settle(ground)
        ground.say("anvil_reorg", depth, [])
        reorged = await watch.expect(ChainReorged)
        assert (reorged.fork.number, reorged.depth) == (ground.height() - depth, depth)
        await watch.settle(ground)
        assert len(watch.fold()) < 11 and len(watch.seen(ChainUp)) == 2
        assert isinstance(watch.events[-1], ChainUp)
        ground.swarm.register(ground.swarm.alice, "after")
        await watch.settle(ground)
        assert watch.seen(ChainBlock)[-1].block.number == ground.height()


def frozen_at(ground: Ground, number: int) -> Act:
    """An endpoint that has no block after this one."""

    async def act(call: Call) -> Answer:
        if call["method"] == "eth_blockNumber":
            return result(call, hex(number))
        if call["method"] != "eth_getBlockByNumber":
            return None
        asked = call["params"][0]
        if asked == "latest":
            return result(call, ground.say("eth_getBlockByNumber", hex(number), False))
        return result(call, None) if int(asked, 16) > number else None

    return act


async def test_an_endpoint_that_lags_is_no_reorganisation(ground: Ground) -> None:
    ground.register(3)
    async with watching_through(ground, Middleman._pass_on, ground.url) as (between, watch):
        await watch.settle(ground)
        between.act = frozen_at(ground, ground.height() - 2)
        ground.register()
        await watch.settle(ground)
        assert watch.rpc.current == url_without_secrets(ground.url) and watch.seen(ChainReorged) == []
        ground.register()
        await watch.settle(ground)
        assert watch.seen(ChainReorged) == []


async def test_an_endpoint_that_stands_still_is_left_for_another(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "STALE_S", 0.3)
    ground.register(3)
    async with watching_through(ground, frozen_at(ground, ground.height()), ground.url) as (_, watch):
        await watch.expect(ChainUp)
        ground.mine(BEHIND_BLOCKS)
        ground.register()
        await watch.settle(ground)
        assert watch.seen(ChainReorged) == [] and watch.rpc.current == url_without_secrets(ground.url)


UNHELPFUL = {
    "no blocks": refusing(-32000, "not on this plan", "eth_getBlockByNumber"),
    "no logs": refusing(-32000, "not on this plan", "eth_getLogs"),
    "nothing there": acting(lambda call: result(call, None), "eth_getBlockByNumber"),
}


@pytest.mark.parametrize("act", UNHELPFUL.values(), ids=UNHELPFUL)
async def test_an_endpoint_that_answers_to_no_avail_is_left_for_another(ground: Ground, act: Act) -> None:
    ground.register(3)
    async with watching_through(ground, act, ground.url) as (_, watch):
        await watch.expect(ChainUp)
        await watch.settle(ground)
        assert watch.rpc.current == url_without_secrets(ground.url) and watch.fold() == ground.logs()


def spoil(ground: Ground, method: str, change: Callable[[Any], Any], tag: str = "") -> Act:
    """An endpoint that gives another result to one method, where it names `tag`, if given, among its parameters."""

    def answer(call: Call) -> Answer:
        if tag not in msgspec.json.encode(call["params"]).decode():
            return None
        answer = ground.w3.provider.make_request(method, call["params"])  # type: ignore[arg-type]
        return result(call, change(answer["result"])) if "result" in answer else None

    return acting(answer, method)


UNASKED: dict[str, Callable[[Any], Any]] = {
    "of another contract": lambda found: [each | {"address": "0x" + 40 * "1"} for each in found],
    "of a block after them": lambda found: [each | {"blockNumber": "0xffff", "blockHash": OTHER} for each in found],
}
OTHER = "0x" + 64 * "d"


@pytest.mark.parametrize("mined", [0, 200], ids=["near", "far"])
@pytest.mark.parametrize("odd", UNASKED)
async def test_an_endpoint_that_gives_entries_unasked_is_left_for_another(ground: Ground, odd: str, mined: int) -> None:
    ground.register(3)
    ground.mine(max(mined, 1))
    async with watching_through(ground, spoil(ground, "eth_getLogs", UNASKED[odd]), ground.url) as (_, watch):
        await watch.expect(ChainUp)
        await watch.settle(ground)
        assert watch.rpc.current == url_without_secrets(ground.url)


async def test_an_entry_that_is_given_twice_is_one(ground: Ground) -> None:
    ground.register(3)
    async with watching_through(ground, spoil(ground, "eth_getLogs", lambda found: [*found, *found])) as (_, watch):
        await watch.settle(ground)
        assert sum(len(block.logs) for block in watch.seen(ChainBlock)) == sum(map(len, ground.logs().values()))


LIES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "another first block": ("eth_getBlockByNumber", lambda block: block | {"hash": OTHER}, '"0x0"'),
    "no contract": ("eth_getCode", lambda code: "0x", ""),
    "another number of stages": ("eth_call", lambda value: "0x" + f"{7:064x}", encode_call("stageCount()").hex()),
    "no round": ("eth_call", lambda value: "0x", encode_call("currentRound()").hex()),
    "other blocks": ("eth_getBlockByNumber", lambda block: block and block | {"hash": OTHER, "parentHash": OTHER}, ""),
}


@pytest.mark.parametrize("lie", LIES)
async def test_one_endpoint_of_another_chain_or_contract_does_not_end_a_node(ground: Ground, lie: str) -> None:
    """Where another endpoint says otherwise it is left for a while, and the node goes on."""
    ground.register(3)
    async with middleman(ground.url) as between:
        async with watching(ground.config(between.url, ground.url)) as first:
            await first.settle(ground)
        between.act = spoil(ground, *LIES[lie])
        async with watching(ground.config(between.url, ground.url), first.order()) as watch:
            ground.register()
            await watch.expect(ChainUp)
            await watch.until(lambda: watch.watcher.branch.tip.hash == ground.hash_of(ground.height()))
            assert watch.rpc.current == url_without_secrets(ground.url) and watch.ended is None
            assert watch.seen(ChainReorged) == []


async def test_what_all_endpoints_say_ends_a_node(ground: Ground) -> None:
    ground.register(3)
    act = spoil(ground, "eth_getCode", lambda code: "0x")
    async with middleman(ground.url, act) as two, watching_through(ground, act, two.url) as (_, watch):
        failure = await watch.failure()
    assert isinstance(failure, ChainMismatch) and "no contract" in failure.message


# --- restarts ---


async def test_a_restart_goes_on_where_the_log_ends(ground: Ground) -> None:
    ground.swarm.register(ground.swarm.alice, "me")
    async with watching(ground.config()) as first:
        await first.settle(ground)
    ground.swarm.register(ground.swarm.alice, "you")
    ground.mine(200)
    ground.swarm.register(ground.swarm.alice, "they")
    async with watching(ground.config(), first.order()) as second:
        await second.expect(ChainUp)
        assert second.seen(ChainReorged) == []
        assert first.fold() | second.fold() == ground.logs()
        assert not set(first.fold()) & set(second.fold())


@pytest.mark.parametrize("blocks", [0, 5, 200])
async def test_a_reorganisation_during_a_stop_is_found(ground: Ground, blocks: int) -> None:
    ground.register(5)
    async with watching(ground.config()) as first:
        await first.settle(ground)
    ground.say("anvil_reorg", 3, [])
    ground.mine(blocks)
    ground.swarm.register(ground.swarm.alice, "new")
    async with watching(ground.config(), first.order()) as second:
        reorged = await second.expect(ChainReorged)
        assert reorged.fork.hash == ground.hash_of(reorged.fork.number)
        await second.expect(ChainUp)
        second.events[:0] = first.events
        assert second.fold() == ground.logs()


# --- chains that are not ours ---


async def test_a_chain_that_was_reset_is_refused() -> None:
    with running_anvil() as url:
        ground = Ground(url)
        ground.swarm.register(ground.swarm.alice, "me")
        config = ground.config()
        async with watching(config) as first:
            await first.settle(ground)
    with running_anvil("--timestamp", "1700000000", port=int(url.rsplit(":", 1)[1])):
        async with watching(config, first.order()) as second:
            failure = await second.failure()
        assert isinstance(failure, ChainMismatch) and failure.exit_code == 80
        assert "reset" in failure.message
    assert second.events == []


async def test_blocks_of_another_chain_are_refused(ground: Ground) -> None:
    recent = tuple(BlockRef(number, "0x" + f"{number:064x}") for number in range(2, 5))
    async with watching(ground.config(), WatchChain("watch", recent)) as watch:
        failure = await watch.failure()
    assert isinstance(failure, ChainMismatch) and "none of the last 3 blocks" in failure.message


async def test_a_contract_that_is_gone_is_refused(ground: Ground) -> None:
    before = ground.say("evm_snapshot")
    ground.swarm = deploy_swarm(ground.w3, 1, deploy(ground.w3, "LockedSwarmCoordinator-1"))
    async with watching(ground.config()) as watch:
        await watch.settle(ground)
        ground.say("evm_revert", before)
        failure = await watch.failure()
    assert isinstance(failure, ChainMismatch) and ground.contract in failure.message


@pytest.mark.parametrize("code", ["0x00", "0x600052", "0x5f195f5260205ff3", "0x5f5ffd", "0x621000005ffd"])
async def test_a_contract_of_another_kind_is_refused(ground: Ground, code: str) -> None:
    """Contracts that return nothing, fail, return a huge number, or refuse everything, one with a megabyte."""
    ground.say("anvil_setCode", "0x" + 40 * "1", code)
    async with watching(ground.config(contract="0x" + 40 * "1")) as watch:
        failure = await watch.failure()
    assert isinstance(failure, ChainMismatch) and "not a swarm coordinator" in failure.message
    assert len(str(failure)) < 500


async def test_another_number_of_stages_is_refused(ground: Ground) -> None:
    async with watching(ground.config(), stages=3) as watch:
        failure = await watch.failure()
    assert isinstance(failure, ConfigError)
    assert "swarm.stages is 3" in failure.message and "rounds of 1 stages" in failure.message


# --- endpoints that fail ---


async def test_an_outage_is_told_once_and_passes(ground: Ground) -> None:
    async with watching_through(ground, Middleman._pass_on) as (between, watch):
        await watch.settle(ground)
        await between.stop()
        await watch.expect(ChainDegraded)
        ground.swarm.register(ground.swarm.alice, "me")
        await between.start()
        up = await watch.expect(ChainUp, since=len(watch.events) - 1, timeout_s=20.0)
        assert up.registered_to == ground.swarm.alice
        await watch.settle(ground)
        assert len(watch.seen(ChainDegraded)) == 1
        assert "secret-key" not in str(watch.events)


async def test_a_subscription_that_dies_comes_back(ground: Ground) -> None:
    async with watching_through(ground, Middleman._pass_on, ground.url, way="ws") as (between, watch):
        await watch.until(lambda: bool(watch.watcher.heads.live))
        await between.stop()
        ground.swarm.register(ground.swarm.alice, "me")
        await watch.settle(ground)
        await between.start()
        await watch.until(lambda: bool(watch.watcher.heads.live))
        ground.swarm.register(ground.swarm.alice, "you")
        await watch.settle(ground)
        assert watch.seen(ChainDegraded) == []


async def test_a_subscription_that_keeps_silent_is_renewed(ground: Ground) -> None:
    async with watching_through(ground, Middleman._pass_on, way="ws") as (between, watch):
        between.mute = True
        await watch.until(lambda: bool(watch.watcher.heads.live))
        for number in range(5):
            ground.swarm.register(ground.swarm.alice, f"peer {number}")
            await watch.settle(ground)
        await watch.until(lambda: len(between.sockets) > 1)
        assert watch.seen(ChainReorged) == []


@pytest.mark.parametrize("most", [1, 7])
async def test_ranges_are_halved_until_the_endpoint_takes_them(ground: Ground, most: int) -> None:
    for number in range(4):
        ground.swarm.register(ground.swarm.alice, f"peer {number}")
        ground.mine(30)
    lengths: list[int] = []

    def refuse(call: Call) -> Answer:
        asked = call["params"][0]
        if "fromBlock" not in asked:
            return None
        lengths.append(int(asked["toBlock"], 16) - int(asked["fromBlock"], 16) + 1)
        return error(call, -32005, f"query exceeds max range of {most} blocks") if lengths[-1] > most else None

    async with watching_through(ground, acting(refuse, "eth_getLogs")) as (_, watch):
        await watch.settle(ground)
    assert max(lengths) == 50 and lengths.count(50) == 1
    assert any(later > earlier for earlier, later in pairwise(lengths)), "it never tried a longer range again"


# --- what the contract says ---


async def test_marks_are_set_where_nothing_is_said(ground: Ground) -> None:
    async with watching(ground.config(), range_blocks=2000) as watch:
        await watch.settle(ground)
        ground.mine(300)
        await watch.until(lambda: watch.watcher.branch.tip.number == ground.height())
        ground.mine(300)
        await watch.until(lambda: watch.watcher.branch.tip.number == ground.height())
        marks = [event.block.number for event in watch.seen(ChainBlock) if not event.logs]
        assert marks[0] == 0 and len(marks) >= 3 and marks[-1] > ground.height() - 300


async def test_the_allow_list_is_told_at_the_confirmed_depth(ground: Ground) -> None:
    swarm, config = ground.swarm, ground.config(depth=2)
    swarm.send(swarm.owner, "grantRole", swarm.role("MEMBERSHIP_MANAGER_ROLE"), swarm.owner)
    async with watching(config) as watch:
        ground.mine(2)
        await watch.expect(MembershipRead, open=True, peers=())
        swarm.send(swarm.owner, "allowPeers", ["b", "a", "c"])
        swarm.send(swarm.owner, "setMembershipOpen", False)
        swarm.send(swarm.owner, "disallowPeers", ["c"])
        await watch.settle(ground)
        assert not watch.seen(MembershipRead, open=False)
        ground.mine(1)
        await watch.expect(MembershipRead, open=False, peers=("a", "b", "c"))
        ground.mine(1)
        await watch.expect(MembershipRead, open=False, peers=("a", "b"))
        assert len(watch.seen(MembershipRead)) == 3
        swarm.send(swarm.owner, "allowPeers", ["d"])
        ground.mine(2)
        await watch.expect(MembershipRead, open=False, peers=("a", "b", "d"))
        ground.say("anvil_reorg", 4, [])
        ground.mine(3)
        await watch.until(lambda: watch.seen(MembershipRead)[-1].peers == ("a", "b"))


async def test_the_chains_own_tags_confirm_where_it_has_them() -> None:
    with running_anvil("--slots-in-an-epoch", "1") as url:
        ground = Ground(url)
        ground.mine(10)
        for finality, behind in (("safe", 1), ("finalized", 2), ("depth", 4)):
            async with watching(ground.config(finality=finality, depth=4)) as watch:
                await watch.settle(ground)
                assert await watch.watcher.confirmed_number() == ground.height() - behind


async def test_a_chain_without_tags_is_confirmed_by_depth(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    refuse = acting(lambda call: error(call, -32602, "unknown tag") if call["params"][:1] == ["safe"] else None)
    async with watching_through(ground, refuse, finality="safe", depth=1) as (_, watch):
        await watch.settle(ground)
        assert await watch.watcher.confirmed_number() == ground.height() - 1
    assert len([record for record in caplog.records if "no safe blocks" in record.message]) == 1


async def test_a_block_too_large_for_a_fact_loses_its_largest_entries_first() -> None:
    small = entry_of("a", index=0)
    large = entry_of("b" * 200, index=1, data_chars=2_000_000)
    rejected: Counter[str] = Counter()
    said = facts_from_logs([large, small, large, small], rejected)
    assert rejected["block too large"] == 1 and [log.peer for log in said].count("a") == 2


# --- whatever happens ---

HAPPENINGS = ("register", "move", "mine", "reorg", "rollback", "restart", "settle")
STEPS = st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(1, 8)), min_size=3, max_size=10)


def do(ground: Ground, what: str, number: int) -> None:
    """One thing that happens to the chain; what was deployed stays."""
    deep = min(number, ground.height() - ground.floor)
    if what == "register":
        ground.register(min(number, 3))
    elif what == "move":
        ground.swarm.move_on(min(number, 2))
    elif what == "mine":
        ground.mine(number)
    elif what == "reorg" and deep > 0:
        ground.say("anvil_reorg", deep, [])
    elif what == "rollback" and deep > 0:
        ground.say("anvil_rollback", deep)


async def check_that_facts_follow(ground: Ground, steps: list[tuple[str, int]], way: str) -> None:
    """A watcher, started again now and then, while these things happen to the chain."""
    ground.floor = ground.height()
    config = ground.config(ground.ws if way == "ws" else ground.url)
    events: list[Event] = []
    order = WatchChain("watch")
    remaining = list(steps)
    while remaining:
        async with watching(config, order) as watch:
            watch.events[:0] = events
            while remaining:
                what, number = remaining.pop(0)
                if what == "restart":
                    break
                if what == "settle":
                    await watch.settle(ground)
                else:
                    do(ground, what, number)
            if not remaining:
                await watch.settle(ground)
            events, order = list(watch.events), watch.order()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, way=st.sampled_from(["http", "ws"]))
def test_facts_come_to_what_the_chain_says(ground: Ground, steps: list[tuple[str, int]], way: str) -> None:
    anyio.run(check_that_facts_follow, ground, steps, way)


async def test_the_base_fee_is_told_and_a_known_one_counts_from_the_beginning(ground: Ground) -> None:
    async with watching(ground.config()) as watch:
        assert (await watch.expect(ChainUp)).base_fee
    async with watching(ground.config("http://127.0.0.1:1"), WatchChain("watch", base_fee=True)) as watch:
        await watch.expect(ChainDegraded)
        assert watch.rpc.has_base_fee


class Chain:
    """Its last final block, and the time."""

    final, time = 10, 0.0

    def finality(self) -> FinalityTracker:
        config = ChainConfig(rpc=("http://127.0.0.1:1",), chain_id=1, contract="0x" + "a1" * 20, finality="finalized")
        return FinalityTracker(config, cast(Any, self), cast(Any, self))

    async def get_block(self, block: str) -> Any:
        assert block == "finalized"
        return SimpleNamespace(number=self.final)

    def now(self) -> float:
        return self.time


async def test_final_blocks_that_stand_still_are_told_once_until_they_move(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    chain = Chain()
    finality = chain.finality()
    for minutes in range(0, 120, 5):
        chain.time = 60.0 * minutes
        assert await finality.find_confirmed_number(1000 + minutes) == 10
        assert len(caplog.messages) == (chain.time > STILL_S), caplog.messages
    assert "the last finalized block is 10 since 35 minutes" in caplog.messages[0]
    chain.final = 11
    assert await finality.find_confirmed_number(2000) == 11 and "block 11 is finalized" in caplog.messages[1]
    chain.time += STILL_S
    assert await finality.find_confirmed_number(2000) == 11 and len(caplog.messages) == 2, (
        "a new wait begins with each block"
    )


async def test_no_block_is_confirmed_that_was_not_read() -> None:
    assert await Chain().finality().find_confirmed_number(7) == 7, "no further than what was read"


COUNT = encode_call("stageSubmissionCount()").hex()
REWARD = "submitReward(uint256,uint256,int256,string)"


def members(ground: Ground) -> None:
    """Two that report the first stage and vote."""
    swarm = ground.swarm
    for account, peer in ((swarm.alice, "me"), (swarm.bob, "you")):
        swarm.register(account, peer)
        swarm.send(account, REWARD, 0, 0, 5, peer)
        swarm.send(account, "submitWinners", 0, ["you"], peer)


def said(watch: Watch, kind: type[AnyChainLog]) -> list[Any]:
    return [entry for entries in watch.fold().values() for entry in entries if isinstance(entry, kind)]


async def test_an_endpoint_that_heeds_no_topics_tells_a_node_no_more(ground: Ground) -> None:
    members(ground)

    def tell_all(call: Call) -> Answer:
        return result(call, ground.say("eth_getLogs", call["params"][0] | {"topics": []}))

    act = acting(tell_all, "eth_getLogs")
    async with watching_through(ground, act, shards=16, account=ground.swarm.alice) as (_, watch):
        await watch.reach(ground)
        assert await _read_peers(watch.coordinator.blocks, 0, ground.height()) == (2, ())
    assert [entry.peer for entry in said(watch, RegistrationLog)] == ["me", "you"]
    assert [entry.peer for kind in (RewardLog, VoteLog) for entry in said(watch, kind)] == ["me", "me"]


@pytest.mark.parametrize("blocks_since", [0, 200], ids=["near", "far"])
async def test_of_rewards_and_votes_a_node_reads_its_own_and_all_entries_in_the_chains_order(
    ground: Ground, blocks_since: int
) -> None:
    members(ground)
    ground.mine(max(blocks_since, 1))
    async with watching(ground.config(shards=16), account=ground.swarm.bob) as watch:
        await watch.expect(SubmissionsCounted, round=0, stage=0, count=2)
        await watch.reach(ground)
        ground.swarm.move_on()
        await watch.expect(SubmissionsCounted, round=1, stage=0, count=0)
        await watch.reach(ground)
        every = [entry for entries in ground.logs().values() for entry in entries]
    mine = [entry for entry in every if not isinstance(entry, RewardLog | VoteLog) or entry.peer == "you"]
    assert len(mine) == len(every) - 2
    assert [entry for entries in watch.fold().values() for entry in entries] == mine


async def test_those_of_all_are_read_while_nobody_knows_the_account(ground: Ground) -> None:
    members(ground)
    async with watching(ground.config(shards=16)) as watch:
        await watch.settle(ground)
    assert len(said(watch, RewardLog)) == 2


async def test_a_count_is_told_when_it_changes_and_again_after_blocks_were_replaced(ground: Ground) -> None:
    ground.swarm.register(ground.swarm.alice, "me")
    ground.swarm.register(ground.swarm.bob, "you")
    ground.swarm.send(ground.swarm.alice, REWARD, 0, 0, 5, "me")
    async with watching(ground.config(shards=16), account=ground.swarm.alice) as watch:
        await watch.expect(SubmissionsCounted, count=1)
        ground.mine(3)
        await watch.reach(ground)
        assert len(watch.seen(SubmissionsCounted)) == 1, "nothing has changed"
        ground.say("anvil_reorg", 2, [])
        reorged = await watch.expect(ChainReorged)
        await watch.expect(SubmissionsCounted, since=watch.events.index(reorged), count=1)


async def test_a_contract_that_counts_nothing_is_followed(ground: Ground) -> None:
    refused = []

    def refuse(call: Call) -> Answer:
        if COUNT not in str(call["params"]):
            return None
        refused.append(call)
        return error(call, 3, "execution reverted")

    ground.swarm.register(ground.swarm.alice, "me")
    act = acting(refuse, "eth_call")
    async with watching_through(ground, act, shards=16, account=ground.swarm.alice) as (_, watch):
        await watch.reach(ground)
    assert refused and not watch.seen(SubmissionsCounted)


def forgetting(function: str) -> Act:
    """An endpoint that says of the contract that it has no such function."""
    content = "0x" + encode_call(function).hex()
    return acting(lambda call: result(call, "0x") if call["params"][0]["data"] == content else None, "eth_call")


async def test_an_endpoint_that_knows_no_membership_opens_no_closed_swarm(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "RETRY_S", 0.05)
    ground.admit_only("me")
    async with watching_through(ground, forgetting("membershipOpen()"), depth=0) as (between, watch):
        await watch.settle(ground)
        await watch.until(lambda: between.calls["eth_call"] > 20 or bool(watch.seen(MembershipRead)))
        assert watch.seen(MembershipRead) == []
        between.act = between._pass_on
        assert await watch.expect(MembershipRead) == MembershipRead(False, ("me",))
