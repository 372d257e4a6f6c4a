"""A swarm whose rounds a contract keeps, seen by an observer: a real chain, the real contract, no account."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from swarmd.bounds import Backoff
from swarmd.cli import run_command
from swarmd.core.events import ChainBlock, ChainDegraded, ChainUp, ReportSeen, RoundAnnounced, StageLog
from swarmd.core.values import BlockRef
from swarmd.dht.identity.identity import generate_identity
from swarmd.errors import ExitCode
from swarmd.manifest import Manifest, write_manifest
from swarmd.web import observer
from swarmd.web.observer import DhtSwarmSource
from swarmd.web.shapes import SwarmView
from tests.anvil import running_anvil
from tests.chain.grounds import CHAIN_ID, Ground, middleman
from tests.contracts.chain import INT_REWARD
from tests.dht.driver import SWARM
from tests.test_manifest import a_chain, signed, unsigned
from tests.web.test_observer import LONG_S, made, observing, until

pytestmark = pytest.mark.anyio

NOWHERE = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGVLkJVYVE3tyMKXPmDCR3Ci3Ukyi63gYfymrEjVrWFMh"
ANN, BEN, OLD = (generate_identity().peer_id for _ in range(3))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits longer than it must."""
    monkeypatch.setattr(observer, "POLL_S", 0.05)
    monkeypatch.setattr(observer, "RETRY_S", 0.1)
    monkeypatch.setattr(observer, "RETRY", Backoff(0.05, 0.05))


@pytest.fixture
def ground() -> Iterator[Ground]:
    with running_anvil() as url:
        yield Ground(url)


def manifest_of(ground: Ground, *rpc: str, **changes: Any) -> Manifest:
    chain = a_chain(chain_id=CHAIN_ID, contract=ground.contract, rpc=rpc, from_block=1)
    return unsigned(**({"id": SWARM, "bootnodes": (NOWHERE,), "rounds": None, "chain": chain} | changes))


def reward(ground: Ground, peer: str, amount: int, round: int | None = None) -> None:
    """Alice's peers report."""
    swarm = ground.swarm
    swarm.send(swarm.alice, INT_REWARD, swarm.place()[0] if round is None else round, 0, amount, peer)


def vote(ground: Ground, voter: str, *winners: str) -> None:
    ground.swarm.send(ground.swarm.alice, "submitWinners", ground.swarm.place()[0], list(winners), voter)


def rewards(view: SwarmView) -> dict[str, float]:
    return {row.id: row.reward for row in view.peers if row.known}


def noted(*words: str) -> Callable[[SwarmView], bool]:
    """Whether a note has all these words."""
    return lambda view: any(all(word in note for word in words) for note in view.notes)


async def test_rounds_rewards_and_votes_are_those_of_the_contract(ground: Ground, tmp_path: Path) -> None:
    swarm = ground.swarm
    swarm.register(swarm.alice, ANN, BEN)
    reward(ground, ANN, 1500)
    reward(ground, BEN, 250)
    swarm.next_round()
    vote(ground, ANN, BEN)
    async with observing(manifest_of(ground, ground.url), tmp_path / "observer") as observed:
        seen = await until(observed, lambda view: view.round == 1 and view.total == 2)
        assert rewards(seen) == {ANN: 1.5, BEN: 0.25} and [row.rounds for row in seen.peers] == [1, 1]
        assert {row.id: row.votes for row in seen.peers} == {ANN: 0, BEN: 1}
        assert (seen.source, seen.coordinator, seen.reports, seen.stage, seen.stages) == ("dht", "", 0, 0, 1)
        assert seen.deadline_at is None and seen.opened_at is not None, "the policy sets no time"
        assert seen.chain is not None and seen.chain.votes == ((ANN, 1, (BEN,)),)
        assert (seen.chain.contract, seen.chain.round, seen.chain.account) == (ground.contract, 1, "")
        assert not noted("contract")(seen), "all of it was read"
        swarm.send(swarm.owner, "setRoundPolicy", 2, 60)
        reward(ground, BEN, 2000)
        seen = await until(observed, lambda view: view.reports == 1)
        assert rewards(seen) == {ANN: 1.5, BEN: 2.25} and seen.peers[0].last_round == 1
        assert seen.opened_at is not None and seen.deadline_at == seen.opened_at + 60
        curves = (await observed.curves((ANN, BEN))).curves
        assert {curve.id: len(curve.points) for curve in curves} == {ANN: 1, BEN: 2}
        swarm.next_round()
        seen = await until(observed, lambda view: view.round == 2)
        assert seen.reports == 0


async def test_what_a_reorganisation_drops_is_taken_back(ground: Ground, tmp_path: Path) -> None:
    swarm = ground.swarm
    swarm.register(swarm.alice, ANN, BEN)
    reward(ground, ANN, 1000)
    async with observing(manifest_of(ground), tmp_path / "observer", ground.ws) as observed:
        await until(observed, lambda view: view.reports == 1)
        reward(ground, BEN, 3000)
        swarm.next_round()
        reward(ground, ANN, 500)
        vote(ground, ANN, BEN)
        seen = await until(observed, lambda view: view.chain and view.chain.votes)
        assert (seen.round, seen.reports, rewards(seen)) == (1, 1, {ANN: 1.5, BEN: 3.0})
        ground.say("anvil_rollback", 4)
        ground.mine()
        seen = await until(observed, lambda view: view.round == 0 and view.reports == 1)
        assert rewards(seen)[ANN] == 1.0 and rewards(seen).get(BEN, 0.0) == 0.0
        assert seen.chain is not None and (seen.chain.votes, seen.chain.round) == ((), 0)
        assert {row.id: row.votes for row in seen.peers}[BEN] == 0
        reward(ground, BEN, 700)
        seen = await until(observed, lambda view: view.reports == 2)
        assert rewards(seen) == {ANN: 1.0, BEN: 0.7}


async def test_an_endpoint_that_goes_away_is_told_and_taken_up_again(ground: Ground, tmp_path: Path) -> None:
    ground.swarm.register(ground.swarm.alice, ANN)
    reward(ground, ANN, 1000)
    manifest = manifest_of(ground)
    async with middleman(ground.url) as between, observing(manifest, tmp_path / "observer", between.url) as observed:
        await until(observed, lambda view: view.reports == 1)
        await between.stop()
        seen = await until(observed, noted("contract cannot be read", "127.0.0.1"))
        assert (seen.round, rewards(seen)) == (0, {ANN: 1.0}), "what is known is still shown"
        assert not noted("secret-key")(seen), "the endpoint's key"
        ground.swarm.next_round()
        reward(ground, ANN, 500)
        await between.start()
        seen = await until(observed, lambda view: view.round == 1)
        assert rewards(seen) == {ANN: 1.5} and not noted("cannot be read")(seen)


async def test_an_observer_that_is_run_again_counts_nothing_twice(ground: Ground, tmp_path: Path) -> None:
    ground.swarm.register(ground.swarm.alice, ANN, BEN)
    reward(ground, ANN, 1000)
    observed = DhtSwarmSource(manifest_of(ground, ground.url), made(tmp_path / "observer"))
    for amount in (0, 500):
        if amount:
            ground.say("anvil_rollback", 1)
            reward(ground, BEN, amount)
            reward(ground, ANN, 250)
        running = asyncio.ensure_future(observed.run())
        await until(observed, lambda view, amount=amount: rewards(view).get(BEN, 0.0) == amount / 1000 and view.reports)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    seen = await observed.view()
    assert rewards(seen) == {BEN: 0.5, ANN: 0.25} and seen.reports == 2


async def test_of_what_is_too_old_to_be_read_the_contract_has_the_sums(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = ground.swarm
    monkeypatch.setattr(observer, "HISTORY_BLOCKS", 20)
    swarm.register(swarm.alice, ANN, BEN, OLD)
    reward(ground, ANN, 1000)
    reward(ground, OLD, 9000)
    vote(ground, ANN, OLD)
    swarm.next_round()
    ground.mine(100)
    begin = ground.height() - 20
    reward(ground, ANN, 500)
    reward(ground, BEN, 300)
    async with middleman(ground.url) as between:
        async with observing(manifest_of(ground), tmp_path / "observer", between.url) as observed:
            seen = await until(observed, lambda view: OLD in rewards(view))
            assert rewards(seen) == {OLD: 9.0, ANN: 1.5, BEN: 0.3}
            assert [row.id for row in seen.peers] == [OLD, ANN, BEN]
            assert noted(f"read from {begin + 3} on", "the contract's own sums")(seen)
            assert {row.id: row.rounds for row in seen.peers} == {OLD: 0, ANN: 1, BEN: 1}
            reward(ground, OLD, 1000)
            seen = await until(observed, lambda view: rewards(view)[OLD] != 9.0)
            assert rewards(seen) == {OLD: 10.0, ANN: 1.5, BEN: 0.3}, "added once"
        assert between.calls["eth_getBlockByNumber"] < 60, "the old blocks are left alone"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contract": "0x" + "ab" * 20}, ("there is no contract at",)),
        ({"chain_id": 5}, ("is a node of chain 31337",)),
        ({"from_block": 10_000}, ("no block",)),
    ],
)
async def test_a_manifest_that_does_not_fit_is_a_note(
    ground: Ground, tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    manifest = manifest_of(ground, ground.url)
    assert manifest.chain is not None
    manifest = replace(manifest, chain=replace(manifest.chain, **changes))
    async with observing(manifest, tmp_path / "observer") as observed:
        seen = await until(observed, noted("The contract cannot be read at present", *words))
        assert seen.chain is not None and (seen.chain.round, seen.chain.head) == (-1, -1)


async def test_without_an_endpoint_the_page_says_what_to_do(ground: Ground, tmp_path: Path) -> None:
    observed = DhtSwarmSource(manifest_of(ground), made(tmp_path / "observer"))
    observed.observe(RoundAnnounced(3, 0, 1.0, 2.0))
    observed.observe(ReportSeen(ANN, 3, 0, 0.5, "digest"))
    seen = await observed.view()
    assert noted(ground.contract, "--rpc URL of chain 31337")(seen)
    assert (seen.round, rewards(seen), seen.chain, seen.coordinator) == (3, {ANN: 0.5}, None, "")


def up(round: int, number: int) -> ChainUp:
    return ChainUp(CHAIN_ID, "0x" + "ab" * 20, "0x1", BlockRef(number, f"0x{number}"), 1, round, 0, 100.0)


async def test_the_contract_counts_above_the_dht_while_it_can_be_read(tmp_path: Path) -> None:
    observed = DhtSwarmSource(unsigned(rounds=None, chain=a_chain()), made(tmp_path / "observer"))

    async def place(*events: Any) -> int:
        for event in events:
            observed.observe(event)
            observed._go_to_contract_stage()  # as at the head
        return (await observed.view()).round

    assert await place(RoundAnnounced(2, 0, 1.0, 2.0)) == 2, "the DHT's clock, until the contract has been read"
    assert await place(up(5, 10)) == 5
    assert await place(RoundAnnounced(7, 0, 1.0, 2.0)) == 5
    observed.observe(ReportSeen(ANN, 5, 0, 0.5, "digest"))
    seen = await observed.view()
    assert (seen.reports, rewards(seen), seen.peers[0].last_round) == (0, {}, 5), "a report is no reward"
    assert await place(ChainDegraded("away"), RoundAnnounced(4, 0, 1.0, 2.0)) == 5
    assert await place(RoundAnnounced(6, 0, 1.0, 2.0)) == 6
    assert await place(up(4, 11)) == 4
    passed = [ChainBlock(BlockRef(number, f"0x{number}"), (StageLog(0, "0x", number, 0),)) for number in (12, 13)]
    for block in passed:
        observed.observe(block)
    assert await place() == 4, "not before the head"
    observed._go_to_contract_stage()
    assert await place() == 13


async def test_the_verb_reads_the_contract(ground: Ground, tmp_path: Path) -> None:
    ground.swarm.register(ground.swarm.alice, ANN)
    ground.swarm.next_round()
    reward(ground, ANN, 1250)
    chain = manifest_of(ground, "http://127.0.0.1:1").chain
    write_manifest(tmp_path / "swarm.toml", signed(id=SWARM, bootnodes=(NOWHERE,), rounds=None, chain=chain))
    (tmp_path / "rpc").write_text(f"# mine\n{ground.url}\n")
    call = (
        "-m",
        "swarmd",
        "dashboard",
        "--manifest",
        str(tmp_path / "swarm.toml"),
        "--rpc",
        f"file:{tmp_path / 'rpc'}",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, *call, "--listen", "127.0.0.1:0", stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), LONG_S)).decode().split("/  (")[0]
        async with httpx.AsyncClient(base_url=url) as client:
            deadline = time.monotonic() + LONG_S
            while (view := (await client.get("/api/v1/swarm")).json())["round"] != 1:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert [(row["id"], row["reward"]) for row in view["peers"]] == [(ANN, 1.25)]
            assert view["chain"]["round"] == 1
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), LONG_S)
    assert process.returncode == 0


def test_endpoints_are_for_observers_of_swarms_with_a_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path / "swarm.toml", signed())
    given = ["--rpc", "http://127.0.0.1:1"]
    assert run_command(["dashboard", "--manifest", str(tmp_path / "swarm.toml"), *given]) == ExitCode.BAD_CONFIG
    assert "has no chain" in capsys.readouterr().err
    assert run_command(["dashboard", str(tmp_path), *given]) == ExitCode.BAD_CONFIG
    assert "--manifest MANIFEST" in capsys.readouterr().err
