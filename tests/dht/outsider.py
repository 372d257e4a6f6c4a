"""A hostile peer: a bare p2pd that speaks hivemind's protocol by hand, without DHTNode or validator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgpack

from swarmd.dht.p2p.hivemind_api import MSGPackSerializer, Multiaddr, P2PContext, PeerID, dht_pb2
from swarmd.dht.p2p.limits import UnreachablePeers
from swarmd.dht.p2p.p2pd import P2pDaemon, SocketDirectory
from swarmd.dht.wire import names
from swarmd.dht.wire.addresses import split_address
from swarmd.dht.wire.records import SignedRecord


class Tireless(UnreachablePeers):
    """Calls again at once, whoever does not answer."""

    def is_backing_off(self, peer: str) -> bool:
        return False


class Outsider:
    """Connects to a victim and sends it what it likes.

    Args:
        root: for its sockets.
        identity: its key file; it has a new one every time where none is given.
    """

    def __init__(self, root: Path, identity: Path | None = None) -> None:
        self._sockets = SocketDirectory(root)
        self._identity = identity
        self.answer: Any = None  # FindResult that it gives to whoever asks
        self.node_id: bytes | None = None  # DHT id that it gives as its own, where it is not to be the true one
        self.asked = 0
        self.answers_after_s = 0.0

    async def open(self, address: str) -> Outsider:
        """Start p2pd and connect."""
        self._sockets.open()
        place, victim = split_address(address)
        path = str(self._identity) if self._identity else None
        self.p2p: P2pDaemon = await self._sockets.daemon_class().create(
            nat_port_map=False, identity_path=path, check_if_identity_free=False
        )
        self.p2p.control.unreached = Tireless()
        self.victim = PeerID.from_base58(victim)
        await self.p2p._client.connect(self.victim, [Multiaddr(place)])
        self.victims = [self.victim]
        return self

    async def __aenter__(self) -> Outsider:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def come(self, addresses: Sequence[str]) -> None:
        """Connect to several victims."""
        await self.open(addresses[0])
        for address in addresses[1:]:
            await self.meet(address)

    async def meet(self, address: str) -> None:
        """Connect to a further victim."""
        place, peer = split_address(address)
        victim = PeerID.from_base58(peer)
        await self.p2p._client.connect(victim, [Multiaddr(place)])
        self.victims.append(victim)

    @property
    def peer_id(self) -> str:
        return str(self.p2p.peer_id.to_base58())

    async def close(self) -> None:
        await self.p2p.shutdown()
        self._sockets.close()

    async def store(self, key: str, tag: bytes, value: bytes, expiration: float) -> bool | None:
        """One store request. None when the victim answered with an error."""
        request = store_request([(names.key_id(key), tag, value, expiration)])
        try:
            response = await self.p2p.call_protobuf_handler(
                self.victim, "DHTProtocol.rpc_store", request, dht_pb2.StoreResponse
            )
        except Exception:
            return None
        return bool(response.store_ok[0])

    async def store_signed(self, key: str, signed: SignedRecord) -> bool | None:
        """Store a record as its owner would."""
        return await self.store(key, msgpack.packb(signed.owner), signed.value, signed.expiration)

    async def find(self, key: str) -> dict[Any, Any]:
        """What the victim holds under a key: subkey → (value, expiration)."""
        request = dht_pb2.FindRequest(keys=[names.key_id(key)])
        response = await self.p2p.call_protobuf_handler(
            self.victim, "DHTProtocol.rpc_find", request, dht_pb2.FindResponse
        )
        result = response.results[0]
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return {}
        return {subkey: tuple(entry) for subkey, entry in MSGPackSerializer.loads(result.value).items()}

    async def pose_as_node(self) -> None:
        """Become part of the victim's routing table, to be asked for keys."""
        info = dht_pb2.NodeInfo(node_id=names.key_id(self.peer_id))

        def claimed() -> dht_pb2.NodeInfo:
            return info if self.node_id is None else dht_pb2.NodeInfo(node_id=self.node_id)

        async def rpc_ping(request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
            return dht_pb2.PingResponse(peer=claimed(), dht_time=time.time(), available=True)

        async def rpc_find(request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
            self.asked += 1
            await asyncio.sleep(self.answers_after_s)
            results = [self.answer or dht_pb2.FindResult(type=dht_pb2.NOT_FOUND) for _ in request.keys]
            return dht_pb2.FindResponse(results=results, peer=claimed())

        async def rpc_store(request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
            return dht_pb2.StoreResponse(store_ok=[True for _ in request.keys], peer=claimed())

        await self.p2p.add_protobuf_handler("DHTProtocol.rpc_ping", rpc_ping, dht_pb2.PingRequest)
        await self.p2p.add_protobuf_handler("DHTProtocol.rpc_find", rpc_find, dht_pb2.FindRequest)
        await self.p2p.add_protobuf_handler("DHTProtocol.rpc_store", rpc_store, dht_pb2.StoreRequest)
        await self.p2p.call_protobuf_handler(
            self.victim, "DHTProtocol.rpc_ping", dht_pb2.PingRequest(peer=info), dht_pb2.PingResponse
        )


def store_request(rows: Iterable[tuple[bytes, bytes, bytes, float]]) -> Any:
    """A request to store records: (key id, encoded owner, value, expiration) of each."""
    keys, subkeys, values, expirations = zip(*rows, strict=True)
    return dht_pb2.StoreRequest(
        keys=keys, subkeys=subkeys, values=values, expiration_time=expirations, in_cache=[False] * len(keys)
    )


def dictionary_of(entries: list[tuple[Any, Any, Any]]) -> bytes:
    """The encoding of a dictionary of (subkey, value, expiration), however odd they are."""
    inner = msgpack.packb([0, 0.0, [list(entry) for entry in entries]])
    return bytes(msgpack.packb(msgpack.ExtType(0x50, inner)))


def bomb(levels: int) -> bytes:
    """Nested extension types: some hundred levels end an unguarded hivemind with SIGSEGV."""
    encoded = b"\xc0"
    for _ in range(levels):
        encoded = msgpack.packb(msgpack.ExtType(0x40, b"\x91" + encoded))
    return encoded
