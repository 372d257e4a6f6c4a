"""A crowd of free identities that keeps writing memberships, and reports of present and coming rounds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership, Payload, ReportRecord, SignedRecord, sign
from tests.dht.outsider import Outsider
from tests.hostile.fuzzer import fate_of

BATCH = 256  # records in one call
AHEAD = 3  # rounds whose keys are filled: this one and the next ones
LIFE_S = 900.0
REFUSED_MAX = 20  # then it comes under another identity
PAUSE_S = 0.3
CALL_S = 15.0
DIGEST = "0" * 64


class Pushing:
    """The crowd; its records are carried by one connection to each node, which is made anew when it is refused.

    Args:
        root: for sockets.
        swarm: its id.
        addresses: of the nodes.
        count: how many identities.
    """

    def __init__(self, root: Path, swarm: str, addresses: Sequence[str], count: int) -> None:
        self._root = root
        self._swarm = swarm
        self._addresses = addresses
        self.identities: list[Identity] = [generate_identity() for _ in range(count)]
        self.round = 0  # where the swarm is
        self.sent: Counter[str] = Counter()  # records by their fate
        self.sweeps = 0  # each of them a record of every identity at one node

    async def run(self) -> None:
        """Push until cancelled."""
        await asyncio.gather(*(self._push(number, address) for number, address in enumerate(self._addresses)))

    async def _push(self, number: int, address: str) -> None:
        opened = 0
        while True:
            opened += 1
            carrier = Outsider(self._root / f"c{number}-{opened}")
            try:
                await asyncio.wait_for(carrier.open(address), CALL_S)
                await self._carry(carrier)
            except (OSError, TimeoutError) as error:
                self.sent[f"no connection: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
            finally:
                with suppress(Exception):
                    await asyncio.wait_for(carrier.close(), CALL_S)

    async def _carry(self, carrier: Outsider) -> None:
        refused = 0
        while refused < REFUSED_MAX:
            for batch in self._records():
                refused += not await self._store(carrier, batch)
                if refused >= REFUSED_MAX:
                    return
            self.sweeps += 1

    def _records(self) -> Iterator[list[SignedRecord]]:
        contents: list[Payload] = [Membership(self._swarm, "crowd", "nonce", 1.7e9)]
        contents += [ReportRecord(self._swarm, self.round + ahead, 0, 1e6, DIGEST, 10, 1) for ahead in range(AHEAD)]
        for content in contents:
            for start in range(0, len(self.identities), BATCH):
                expiration = time.time() + LIFE_S
                yield [sign(each, content, expiration) for each in self.identities[start : start + BATCH]]

    async def _store(self, carrier: Outsider, batch: list[SignedRecord]) -> bool:
        key = names.key_id(batch[0].content.key)
        request = dht_pb2.StoreRequest(
            keys=[key] * len(batch),
            subkeys=[msgpack.packb(signed.owner) for signed in batch],
            values=[signed.value for signed in batch],
            expiration_time=[signed.expiration for signed in batch],
            in_cache=[False] * len(batch),
        )
        call = carrier.p2p.call_protobuf_handler(
            carrier.victim, "DHTProtocol.rpc_store", request, dht_pb2.StoreResponse
        )
        try:
            answer = await asyncio.wait_for(call, CALL_S)
        except Exception as error:
            self.sent[fate_of(error)] += len(batch)
            await asyncio.sleep(PAUSE_S)
            return False
        taken = sum(answer.store_ok)
        self.sent["taken"] += taken
        self.sent["judged and not taken"] += len(batch) - taken
        return True
