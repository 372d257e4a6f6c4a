"""A peer that tries to be the only one asked: it claims DHT ids beside keys, and hides the records it stores."""

import time

from swarmd.dht.p2p.hivemind_api import P2PContext, dht_pb2
from swarmd.dht.wire import names
from tests.dht.outsider import Outsider, dictionary_of


def beside(key: bytes, count: int = 20) -> list[bytes]:
    """DHT ids so near to a key that no honest one is nearer."""
    place = int.from_bytes(key, "big")
    return [(place ^ (number + 1)).to_bytes(20, "big") for number in range(count)]


class Eclipser(Outsider):
    """Shows a record to its writer only, and names itself, under many ids, as all that is near a key."""

    async def arm(self) -> None:
        """Answer as the only peer there is."""
        self.stored: dict[tuple[bytes, str], tuple[bytes, float]] = {}
        handlers = (
            ("rpc_ping", self._ping, dht_pb2.PingRequest),
            ("rpc_find", self._find, dht_pb2.FindRequest),
            ("rpc_store", self._store, dht_pb2.StoreRequest),
        )
        for name, handler, request in handlers:
            await self.p2p.add_protobuf_handler(f"DHTProtocol.{name}", handler, request)

    @property
    def _info(self) -> dht_pb2.NodeInfo:
        return dht_pb2.NodeInfo(node_id=names.key_id(self.peer_id))

    async def _ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        return dht_pb2.PingResponse(peer=self._info, dht_time=time.time(), available=True)

    async def _store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        writer = context.remote_id.to_base58()
        for key, value, expiration in zip(request.keys, request.values, request.expiration_time, strict=True):
            self.stored[key, writer] = (value, expiration)
        return dht_pb2.StoreResponse(store_ok=[True for _ in request.keys], peer=self._info)

    async def _find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        self.asked += 1
        results = [self._answer(key, context.remote_id.to_base58()) for key in request.keys]
        return dht_pb2.FindResponse(results=results, peer=self._info)

    def _answer(self, key: bytes, asker: str) -> dht_pb2.FindResult:
        shown = self.stored.get((key, asker))
        result = dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)
        if shown is not None:
            value = dictionary_of([(asker, *shown)])
            result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=value, expiration_time=shown[1])
        for node_id in beside(key):
            result.nearest_node_ids.append(node_id)
            result.nearest_peer_ids.append(self.p2p.peer_id.to_bytes())
        return result

    async def claim(self, key: str) -> None:
        """Ping all victims from the places nearest to a key."""
        for node_id in beside(names.key_id(key)):
            ping = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=node_id))
            for victim in self.victims:
                await self.p2p.call_protobuf_handler(victim, "DHTProtocol.rpc_ping", ping, dht_pb2.PingResponse)
