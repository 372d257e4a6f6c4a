"""A victim node, an attacker and an honest peer, and measurements of the victim."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from swarmd.core.commands import Announce, ReadClock
from swarmd.core.events import RecordsRejected, RoundAnnounced
from swarmd.dht.p2p.hivemind_api import P2PContext, dht_pb2
from swarmd.dht.wire import names
from swarmd.dht.wire.records import RolloutsRecord
from tests.dht.driver import SWARM, Driver
from tests.dht.making import DIGEST, signed_by
from tests.dht.outsider import Outsider
from tests.hostile.worked import with_work, worked

ANSWERED_WITHIN = 5  # calls of an honest peer, one a second
MIB = 1 << 20
GROWTH_MIB_MAX = 64  # of an attacked network worker, above its quiet size


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def files_of(pid: int) -> int:
    """Open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Siege:
    """A coordinator with an announced round, a stranger connected to it, and a second one that keeps to the rules."""

    def __init__(self, victim: Driver, stranger: Outsider, honest: Outsider) -> None:
        self.victim = victim
        self.stranger = stranger
        self.honest = honest
        self.quiet_mib = memory_mib(victim.process.pid)

    @property
    def growth_mib(self) -> float:
        """Memory of the victim above what it had before the attack."""
        return memory_mib(self.victim.process.pid) - self.quiet_mib

    async def fill_stages(self, stages: int, records: int, size_bytes: int = 40_000) -> list[str]:
        """Have the victim hold rollouts of identities that have worked for the first stages; the keys."""
        for stage in range(stages):
            record = RolloutsRecord(SWARM, 0, stage, DIGEST, 10, 1, b"x" * size_bytes)
            for owner in islice(worked(), records):
                assert await self.honest.store_signed(record.key, signed_by(owner, with_work(owner, record), 900.0))
        return [names.rollouts_key(SWARM, 0, stage) for stage in range(stages)]

    async def find(self, keys: list[str], by: Outsider | None = None) -> str:
        """Ask the victim for keys: "" for an answer, otherwise what came instead."""
        outsider = by or self.stranger
        request = dht_pb2.FindRequest(keys=[names.key_id(key) for key in keys])
        try:
            await asyncio.wait_for(
                outsider.p2p.call_protobuf_handler(
                    outsider.victim, "DHTProtocol.rpc_find", request, dht_pb2.FindResponse
                ),
                10.0,
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def be_silent(self) -> None:
        """Have the stranger take pings and never answer them."""

        async def rpc_ping(request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
            await asyncio.sleep(60.0)
            return dht_pb2.PingResponse()

        await self.stranger.p2p.add_protobuf_handler("DHTProtocol.rpc_ping", rpc_ping, dht_pb2.PingRequest)

    def refused(self, reason: str) -> int:
        """How many refusals with a reason the victim has told of."""
        return sum(event.count for event in self.victim.seen(RecordsRejected, reason=reason))

    async def is_unharmed(self) -> None:
        """The victim is the process that it was, answers a peer (it may be behind with calls) and takes commands."""
        for _ in range(ANSWERED_WITHIN):
            trouble = await self.find([names.clock_key(SWARM)], by=self.honest)
            if not trouble:
                break
            await asyncio.sleep(1.0)
        assert not trouble
        assert self.victim.process.returncode is None and not self.victim.faults
        since = len(self.victim.events)
        await self.victim.do(ReadClock("clock/again"))
        await self.victim.expect(RoundAnnounced, since=since)


@asynccontextmanager
async def besieged(root: Path, module: str = Driver.module, **dht: Any) -> AsyncIterator[Siege]:
    """Start victim, which runs `module`, and outsiders; end them."""
    driver = Driver(root / "victim", **dht)
    driver.module = module
    victim = await driver.start()
    stranger, honest = Outsider(root / "stranger"), Outsider(root / "honest")
    try:
        address = await victim.address()
        await victim.do(Announce("announce/0/0/1", 0, 0, time.time(), time.time() + 600))
        await victim.expect(RoundAnnounced)
        await stranger.open(address)
        await honest.open(address)
        yield Siege(victim, stranger, honest)
    finally:
        await victim.clean()
        for outsider in (stranger, honest):
            if hasattr(outsider, "p2p"):
                await outsider.close()
