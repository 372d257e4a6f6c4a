"""hivemind's protocol on the wire of a legacy network: what peers send is bounded and typed before it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from swarmd.dht.legacy.guard import LegacyGuard
from swarmd.dht.legacy.storage import LegacyStorage, cost_of
from swarmd.dht.legacy.values import Entry, decode, decode_dictionary
from swarmd.dht.p2p.hivemind_api import DHTID, DictionaryDHTValue, PeerID, ValueWithExpiration, dht_pb2, node_module
from swarmd.dht.store.shown_records import YIELD_EVERY
from swarmd.dht.store.validator import GuardedProtocol, read_nearby
from swarmd.errors import RecordRejected

STALE = "stale"  # not worth counting: holders hand on what is just running out


class LegacyProtocol(GuardedProtocol):
    """As `GuardedProtocol`, for records that nobody signed."""

    record_validator: LegacyGuard
    storage: LegacyStorage
    ids_are_chosen = True  # at random, by v0.4
    _rpc_handlers = None
    _stub_type = None

    def _make_storage(self) -> LegacyStorage:
        return LegacyStorage()

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """As `GuardedProtocol`'s, with one place for each peer, the one that it named last, or a single one could have
        them all. A place that another peer has is nobody else's."""
        if node_id is not None and responded:
            table = self.routing_table
            if table.get(node_id=node_id, default=peer_id) != peer_id:
                self._refuse(peer_id.to_base58(), RecordRejected("wrong-id", f"the DHT id {node_id:040x} is another's"))
                return
            former = table.get(peer_id=peer_id, default=node_id)
            if former != node_id:
                del table[former]
        await super().update_routing_table(node_id, peer_id, responded)

    async def _store(self, sender: str, key: bytes, tag: bytes, value: bytes, expiration: float) -> bool:
        try:
            self._charge(sender, len(value))
            if tag == self.IS_DICTIONARY:
                return await self._keep_all(sender, key, decode_dictionary(value))
            return self._keep_one(sender, key, (decode(tag), value, expiration))
        except RecordRejected as error:
            self._refuse_unless_stale(sender, error)
            return False

    def _refuse_unless_stale(self, sender: str, error: RecordRejected) -> None:
        if error.reason != STALE:
            self._refuse(sender, error)

    async def _keep_all(self, sender: str, key: bytes, entries: Iterable[Entry]) -> bool:
        """Another holder hands on all records of a key, which a peer does when it meets a new one."""
        stored = True
        for number, entry in enumerate(entries):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            try:
                if entry[0] is None:
                    raise RecordRejected("malformed", "an entry without a subkey")
                self._charge(sender, 0)
                stored &= self._keep_one(sender, key, entry)
            except RecordRejected as error:
                stored = False
                self._refuse_unless_stale(sender, error)
        return stored

    def _keep_one(self, sender: str, key: bytes, entry: Entry) -> bool:
        guard = self.record_validator
        subkey, value, expiration = guard.check(key, *entry)
        key_id = DHTID.from_bytes(key)
        if not self.storage.would_change(key_id, subkey, expiration):
            return False
        guard.check_kept(key, subkey, value, expiration)
        if not guard.kept_quota.try_charge(sender, cost_of(subkey, value)):
            raise RecordRejected("quota", "one peer has filled its share of this node's memory")
        stored = self.storage.keep(key_id, subkey, value, expiration)
        if stored and guard.stored is not None:
            guard.stored(key)
        return stored

    async def _open_result(self, sender: str, key: DHTID, result: Any) -> tuple[Any, dict[DHTID, PeerID]]:
        nearest = read_nearby(result)
        try:
            return await self._open_value(sender, key.to_bytes(), result), nearest
        except RecordRejected as error:
            self._refuse_unless_stale(sender, error)
            return None, nearest

    async def _open_value(self, sender: str, key: bytes, result: Any) -> Any:
        if result.type == dht_pb2.FOUND_REGULAR:
            _, value, expiration = self.record_validator.check(key, None, result.value, result.expiration_time)
            return ValueWithExpiration(value, expiration)
        if result.type == dht_pb2.FOUND_DICTIONARY:
            return await self._open_dictionary(sender, key, decode_dictionary(result.value))
        return None

    async def _open_dictionary(self, sender: str, key: bytes, entries: Iterable[Entry]) -> Any:
        """The entries that have a v0.4 record's form."""
        kept = DictionaryDHTValue()
        for number, entry in enumerate(entries):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            try:
                subkey, value, expiration = self.record_validator.check(key, *entry)
                if subkey is None:
                    raise RecordRejected("malformed", "an entry without a subkey")
                kept.store(subkey, value, expiration)
            except RecordRejected as error:
                self._refuse_unless_stale(sender, error)
        return ValueWithExpiration(kept, kept.latest_expiration_time) if len(kept) else None


def install_legacy() -> None:
    """Make every `DHTNode` of this process one of a legacy network."""
    node_module.DHTProtocol = LegacyProtocol
