"""Any number of identities behind one connection, which store as many records as there is room for."""

import asyncio
from collections.abc import Iterable

import msgpack

from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.p2p.hivemind_api import PeerID, dht_pb2
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Payload, SignedRecord
from tests.dht.making import signed_by
from tests.dht.outsider import Outsider, store_request
from tests.hostile.worked import with_work

BATCH_BYTES = 1024 * 1024
EVERYBODY = slice(None)


class Crowd(Outsider):
    """Stores a record of each identity at all victims."""

    def gather(self, count: int, others: Iterable[Identity] = ()) -> None:
        """Make identities, beside others, which come first."""
        self.identities: list[Identity] = [*others, *(generate_identity() for _ in range(count))]

    async def write(self, content: Payload, part: slice = EVERYBODY, ttl_s: float = 600.0) -> int:
        """Store a record of each identity, or of a part of them; how many the first victim took."""
        records = [signed_by(each, with_work(each, content), ttl_s) for each in self.identities[part]]
        taken = await asyncio.gather(*(self._write_at(victim, content.key, records) for victim in self.victims))
        return taken[0]

    async def _write_at(self, victim: PeerID, key: str, records: list[SignedRecord]) -> int:
        size = max(1, BATCH_BYTES // (len(records[0].value) + 200))
        taken = 0
        for start in range(0, len(records), size):
            batch = records[start : start + size]
            place = names.key_id(key)
            request = store_request((place, msgpack.packb(each.owner), each.value, each.expiration) for each in batch)
            answer = await self.p2p.call_protobuf_handler(
                victim, "DHTProtocol.rpc_store", request, dht_pb2.StoreResponse
            )
            taken += sum(answer.store_ok)
        return taken
