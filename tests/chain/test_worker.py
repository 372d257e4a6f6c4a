"""The chain worker as the daemon meets it: a real process, frames, exit codes."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import ChainConfig
from swarmd.core.commands import Broadcast, ReadClock, Submit, WatchChain
from swarmd.core.events import ChainBlock, ChainReorged, ChainUp, CommandFailed, SubmissionRefused
from swarmd.core.values import SubmissionAttempt
from tests.chain.driver import ChainDriver
from tests.chain.grounds import Ground

pytestmark = pytest.mark.anyio
Starter = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    """Starts workers and cleans up after them."""
    drivers: list[ChainDriver] = []

    async def started(chain: ChainConfig | None, watch: bool = True) -> ChainDriver:
        driver = ChainDriver(tmp_path / f"node-{len(drivers)}", chain)
        drivers.append(await driver.start())
        if watch:
            await driver.do(WatchChain("watch"))
        return driver

    yield started
    for driver in drivers:
        await driver.clean()


async def test_a_worker_follows_the_chain_and_stops_when_told(ground: Ground, start: Starter) -> None:
    ground.swarm.register(ground.swarm.alice, "me")
    worker = await start(ground.config(ground.ws))
    up = await worker.expect(ChainUp)
    assert (up.registered_to, up.account, up.contract) == (ground.swarm.alice, "", ground.contract)
    ground.swarm.move_on()
    await worker.expect(ChainBlock, since=worker.place_of(up))
    ground.say("anvil_reorg", 1, [])
    await worker.expect(ChainReorged, depth=1)
    await worker.ping()
    await worker.do(WatchChain("watch again"))
    await worker.expect(ChainUp, since=worker.place_of(worker.seen(ChainUp)[-1]) + 1)
    assert await worker.stop() == 0 and worker.pongs == 1
    assert worker.faults == [] and b"Traceback" not in worker.errors and b"Unclosed" not in worker.errors
    told = worker.progress[-1]
    assert told.note == ground.ws and told.figures.keys() == {"head", "tip", "lag_s", "rejected"}


async def test_a_worker_without_a_sender_refuses_submissions(ground: Ground, start: Starter) -> None:
    worker = await start(ground.config())
    await worker.do(Submit("submit/register", "register", "register"))
    refused = await worker.expect(SubmissionRefused, submission="register")
    assert refused.code == "follows-only" and not refused.permanent
    await worker.do(Broadcast("broadcast/register", "register", SubmissionAttempt()))
    await worker.expect(CommandFailed, command="broadcast/register")
    await worker.do(ReadClock("clock"))
    await worker.expect(CommandFailed, command="clock")
    assert await worker.stop() == 0


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({"chain_id": 1}, 80, "chain 31337"),
        ({"contract": "0x" + 40 * "1"}, 80, "no contract"),
        ({"rpc": ("file:missing",)}, 78, "missing"),
        ({"sender": "wallet", "passphrase": "missing.pass"}, 66, "missing.pass"),
    ],
)
async def test_what_no_retry_helps_ends_the_worker(
    ground: Ground, start: Starter, wrong: dict[str, Any], code: int, words: str
) -> None:
    worker = await start(ground.config(**wrong))
    assert await worker.wait() == code
    (fault,) = worker.faults
    assert fault.permanent and fault.exit_code == code and words in fault.reason
    assert worker.events == [] and b"Traceback" not in worker.errors


async def test_a_node_without_a_chain_needs_no_worker(start: Starter) -> None:
    worker = await start(None, watch=False)
    assert await worker.wait() == 78


async def test_a_worker_does_not_outlive_its_daemon(ground: Ground, start: Starter) -> None:
    worker = await start(ground.config(ground.ws))
    await worker.expect(ChainUp)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert await worker.wait() != 0
