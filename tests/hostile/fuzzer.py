"""Peers that send what a grammar makes, over their own p2pd and by every way into a node."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from swarmd.dht.identity.identity import Identity
from swarmd.dht.p2p.body_streams import PROTOCOL
from swarmd.dht.p2p.hivemind_api import PeerID, dht_pb2
from swarmd.dht.store.validator import load_dictionary
from swarmd.dht.wire import names
from tests.dht.outsider import Outsider
from tests.hostile.grammar import Entry, Grammar

RECORDS_MAX = 96  # of one call
CALL_S = 15.0
CALLS_MAX = 400  # of one identity
RECORDS_LIFE = 3600  # of one identity: more at once is refused for what it is, and not for what it holds
PAUSE_S = 0.5  # after a refusal at the limits
LEARN_EVERY = 20  # calls between two looks at what honest nodes wrote
REFUSED_MAX = 12  # then it comes under another identity


class Tally:
    """What was sent, and what became of it: records and frames by their fate."""

    def __init__(self) -> None:
        self.fates: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()  # calls and messages by kind
        self.identities = 0

    @property
    def sent(self) -> int:
        """Records and frames."""
        return self.fates.total()


class Attacker(Outsider):
    """One identity; it also answers whoever asks it.

    Args:
        root: for its sockets.
        grammar: makes what it sends.
        tally: what was sent.
    """

    def __init__(self, root: Path, grammar: Grammar, tally: Tally) -> None:
        super().__init__(root)
        self._grammar = grammar
        self._tally = tally
        self._refused = self._calls = self._records = 0

    @property
    def is_spent(self) -> bool:
        """Is it time for another identity?"""
        return self._refused >= REFUSED_MAX or self._calls >= CALLS_MAX or self._records >= RECORDS_LIFE

    async def pose(self) -> None:
        """Become part of the victim's routing table, and answer with what the grammar makes."""
        info = dht_pb2.NodeInfo(node_id=names.key_id(self.peer_id))
        pong = dht_pb2.PingResponse(peer=info, dht_time=time.time(), available=True).SerializeToString()

        async def ping(request: bytes, peer: PeerID) -> bytes:
            return bytes(pong)

        async def find(request: bytes, peer: PeerID) -> bytes:
            asked = len(dht_pb2.FindRequest.FromString(request).keys)
            records = self._grammar.random.randint(0, 8)
            self._tally.fates["in answers to the node"] += asked * records
            return self._grammar.frame(self._grammar.found(asked, records))

        async def store(request: bytes, peer: PeerID) -> bytes:
            asked = len(dht_pb2.StoreRequest.FromString(request).keys)
            answer = dht_pb2.StoreResponse(store_ok=[True] * asked, peer=info)
            return self._grammar.frame(answer)

        for name, handler in (("ping", ping), ("find", find), ("store", store)):
            await self.p2p._client.add_unary_handler(f"DHTProtocol.rpc_{name}", handler)
        await self._call("rpc_ping", dht_pb2.PingRequest(peer=info).SerializeToString(), 1)

    async def act(self) -> None:
        """Send something."""
        random, grammar = self._grammar.random, self._grammar
        way = random.choices(
            ("store", "hand on", "find", "ping", "frame", "stream", "hint", "clock"), (60, 8, 8, 4, 8, 4, 4, 4)
        )[0]
        self._calls += 1
        self._tally.kinds[way] += 1
        if way in ("store", "hand on"):
            count = random.randint(1, RECORDS_MAX)
            self._records += count
            request = grammar.store(count) if way == "store" else grammar.hand_on(count)
            await self._call("rpc_store", request.SerializeToString(), count)
        elif way == "find":
            await self._call("rpc_find", grammar.find().SerializeToString(), 1)
        elif way == "ping":
            await self._call("rpc_ping", grammar.ping().SerializeToString(), 1)
        elif way == "frame":
            await self._spoiled()
        elif way == "stream":
            await self._stream()
        else:
            topic = names.hints_topic(grammar.swarm) if way == "hint" else names.clock_topic(grammar.swarm)
            await self._gossip(topic, grammar.hint() if way == "hint" else grammar.clock())
        if self._calls % LEARN_EVERY == 0:
            await self._learn()

    async def _spoiled(self) -> None:
        grammar, random = self._grammar, self._grammar.random
        make: Callable[[], Any] = random.choice((grammar.find, grammar.ping, lambda: grammar.store(8)))
        rpc = random.choice(("rpc_find", "rpc_ping", "rpc_store", "rpc_none"))
        await self._call(rpc, grammar.spoil(make().SerializeToString()), 1)

    async def _call(self, rpc: str, encoded: bytes, count: int) -> bytes:
        """One call that carries so many records, or a frame alone."""
        try:
            answer = await asyncio.wait_for(
                self.p2p._client.call_unary_handler(self.victim, f"DHTProtocol.{rpc}", encoded), CALL_S
            )
        except Exception as error:
            fate = fate_of(error)
            self._tally.fates[fate] += count
            if fate != "malformed frame":
                self._refused += 1
                await asyncio.sleep(PAUSE_S)
            return b""
        if rpc == "rpc_store":
            with suppress(Exception):
                self._tally.kinds["taken"] += sum(dht_pb2.StoreResponse.FromString(answer).store_ok)
        self._tally.fates["reached the validator" if rpc == "rpc_store" else "answered"] += count
        return bytes(answer)

    async def _stream(self) -> None:
        fate = "stream answered"
        try:
            async with asyncio.timeout(CALL_S):
                _, reader, writer = await self.p2p.call_binary_stream_handler(self.victim, PROTOCOL)
                try:
                    writer.write(self._grammar.asking())
                    writer.write_eof()
                    await reader.read(64)
                finally:
                    writer.close()
        except Exception:
            fate = "stream refused"
        self._tally.fates[fate] += 1

    async def _gossip(self, topic: str, message: bytes) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self.p2p.publish(topic, message), CALL_S)
        self._tally.fates["gossiped"] += 1

    async def _learn(self) -> None:
        """Look at what lies under a key, to send it on changed."""
        grammar = self._grammar
        key = names.key_id(grammar.name_of(grammar._fields()))
        honest = await self.entries(key)
        grammar.learn([entry for entry, owner in honest if owner in grammar.honest])

    async def entries(self, *keys: bytes) -> list[tuple[Entry, str]]:
        """(record, owner) of all that the victim shows under keys; nothing where it does not answer."""
        request = dht_pb2.FindRequest(keys=keys)
        answer = await self._call("rpc_find", request.SerializeToString(), 1)
        shown = []
        for key, result in zip(keys, dht_pb2.FindResponse.FromString(answer).results, strict=False):
            if result.type == dht_pb2.FOUND_DICTIONARY:
                for owner, each in load_dictionary(result.value).items():
                    shown.append((Entry(key, msgpack.packb(owner), each.value, each.expiration_time), owner))
        return shown


def fate_of(error: Exception) -> str:
    """What became of a call that was not answered."""
    said = str(error)
    if isinstance(error, TimeoutError):
        return "not answered in time"
    for reason in ("calls", "processor", "bytes-in", "bytes-out", "oversized", "doubled", "out"):
        if said.startswith(f"{reason}:"):
            return f"refused at the limits: {reason}"
    if "DecodeError" in said or "Error parsing" in said or "protocol not supported" in said or "ValueError" in said:
        return "malformed frame"
    return "connection refused or lost"


class Fuzzer:
    """Attackers side by side, each with a grammar of its own, that come under ever new identities.

    Args:
        root: for sockets.
        swarm: its id.
        honest: peer ids of its nodes, the coordinator first.
        addresses: of its nodes.
        seed: of all that is sent.
        rsa: an identity of the other kind.
    """

    def __init__(
        self, root: Path, swarm: str, honest: list[str], addresses: list[str], seed: int, rsa: Identity
    ) -> None:
        self._root = root
        self._swarm = swarm
        self._honest = honest
        self._addresses = addresses
        self._seed = seed
        self._rsa = rsa
        self._numbers = itertools.count()
        self.tally = Tally()
        self.grammars: list[Grammar] = []

    def reach(self, round: int) -> None:
        """The swarm is in this round."""
        for grammar in self.grammars:
            grammar.round = round

    @property
    def keys(self) -> set[bytes]:
        """Under which anything was sent."""
        return set().union(*(grammar.keys for grammar in self.grammars))

    @property
    def owners(self) -> set[str]:
        """Peer ids in whose name something may truly have been signed."""
        return {identity.peer_id for grammar in self.grammars for identity in grammar.identities}

    async def run(self, frames: int, at_once: int) -> None:
        """Send so many records and frames from so many attackers at once."""
        self.grammars = [
            Grammar(f"{self._seed}/{number}", self._swarm, self._honest, self._rsa) for number in range(at_once)
        ]
        await asyncio.gather(*(self._attack(number, frames) for number in range(at_once)))

    async def _attack(self, number: int, frames: int) -> None:
        grammar, address = self.grammars[number], self._addresses[number % len(self._addresses)]
        while self.tally.sent < frames:
            attacker = Attacker(self._root / f"a{next(self._numbers)}", grammar, self.tally)
            try:
                await asyncio.wait_for(attacker.open(address), CALL_S)
                self.tally.identities += 1
                if grammar.random.random() < 0.5:
                    await attacker.pose()
                while self.tally.sent < frames and not attacker.is_spent:
                    await attacker.act()
            except (OSError, TimeoutError) as error:
                self.tally.kinds[f"no connection: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
            finally:
                await _end(attacker.close)


async def _end(close: Callable[[], Awaitable[None]]) -> None:
    """End an attacker's p2pd, if it came so far."""
    with suppress(Exception):
        await asyncio.wait_for(close(), CALL_S)
