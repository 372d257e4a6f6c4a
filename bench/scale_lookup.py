"""Look-ups in a simulated DHT of any size, one by one: hivemind's routing-table rules, swarmd's shipped traversal."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store.lookup import PATIENCE_S, REPLICAS, SILENCE_S, KeySearch
from swarmd.dht.wire import names

BUCKET = 20  # hivemind's: peers of a bucket, and peers that an answer names
DEPTH_MODULO = 5  # hivemind's: a full bucket at such a depth is not divided, unless the node itself lies in it
BITS = 64  # of an id, the highest; the others are 0
SHIFT = 160 - BITS


class Looked(NamedTuple):
    """What came of a look-up: who was asked, guides first, how long it took, and the keepers that it found."""

    asked: tuple[int, ...]
    dead: int  # of those asked
    seconds: float
    known: tuple[int, ...]  # the nearest that the node knew before
    nearest: tuple[int, ...]  # the nearest that it knew after it


class Network:
    """So many nodes with ids by chance; node 0 is the coordinator.

    Args:
        size: number of nodes.
        random: chance.
        link_s: shortest and longest time of a message from one node to another.
        dead: share of the peers in a routing table that are gone.
    """

    def __init__(self, size: int, random: np.random.Generator, link_s: tuple[float, float], dead: float) -> None:
        self.size = size
        self.random = random
        self.ids = np.sort(random.integers(0, 2**63, size, dtype=np.uint64) * np.uint64(2))
        self.link_s = link_s
        self.dead = dead
        self.table = lru_cache(maxsize=20_000)(self._table)
        self._dht_ids = [DHTID(int(each) << SHIFT) for each in self.ids]
        self._index = {each: index for index, each in enumerate(self._dht_ids)}

    def _table(self, node: int) -> np.ndarray[Any, Any]:
        """The peers in a node's routing table, once it has met enough of the others."""
        parts: list[np.ndarray[Any, Any]] = []
        open_ = [(0, self.size, 0)]
        while open_:
            low, high, depth = open_.pop()
            if high - low <= BUCKET:
                parts.append(np.arange(low, high))
            elif low <= node < high or depth % DEPTH_MODULO:
                bit = np.uint64(1) << np.uint64(BITS - 1 - depth)
                first = int(self.ids[low]) >> (BITS - depth) << (BITS - depth) if depth else 0
                middle = int(np.searchsorted(self.ids, np.uint64(first) + bit))
                open_ += [(low, middle, depth + 1), (middle, high, depth + 1)]
            else:
                parts.append(self.random.choice(np.arange(low, high), BUCKET, replace=False))
        found = np.concatenate(parts)
        return found[found != node]

    def nearest(self, node: int, key: int, many: int = BUCKET) -> np.ndarray[Any, Any]:
        """The peers in a node's table that are nearest to a key."""
        table = self.table(node)
        order = np.argsort(self.ids[table] ^ np.uint64(key))
        return table[order[:many]]

    def look_up(self, node: int, name: str, guides: Sequence[int]) -> Looked:
        """A node searches a key, as `swarmd.dht.store.look_up_key.look_up_key` does, for all of its records."""
        found = self._found(node, name)
        key = int(found.key) >> SHIFT
        found.add_peers(self._pairs(self.nearest(node, key)))
        known = self._nearest_of(found)
        asked = [guide for guide in guides if guide != node]
        found.asked.update(self._dht_ids[guide] for guide in asked)
        number, pending = count(), list[tuple[float, int, int]]()
        for guide in asked:
            heapq.heappush(pending, (self._answer_s(0.0), next(number), guide))
        now, deadline, dead = 0.0, SILENCE_S, 0
        while True:
            for _, peer in found.next_peers():
                asked.append(peer)
                heapq.heappush(pending, (self._answer_s(now), next(number), peer))
            if not pending:
                return Looked(tuple(asked), dead, now, known, self._nearest_of(found))
            at, _, peer = heapq.heappop(pending)
            if at > deadline:
                return Looked(tuple(asked), dead, deadline, known, self._nearest_of(found))
            now = at
            if self.random.random() < self.dead:
                dead += 1
                found.known.pop(self._dht_ids[peer], None)
                continue
            found.add_peers(self._pairs(self.nearest(peer, key)), self._dht_ids[peer])
            deadline = min(deadline, now + PATIENCE_S)

    def _answer_s(self, now: float) -> float:
        return now + float(self.random.uniform(*self.link_s, 2).sum())

    def _found(self, node: int, name: str) -> Any:
        protocol = SimpleNamespace(record_validator=None)
        life: Any = SimpleNamespace(dht=SimpleNamespace(node_id=self._dht_ids[node], protocol=protocol))
        found: Any = KeySearch(life, name)
        found.key = DHTID(int.from_bytes(names.key_id(name)[: BITS // 8], "big") << SHIFT)
        return found

    def _pairs(self, nodes: np.ndarray[Any, Any]) -> Any:
        return {self._dht_ids[node]: int(node) for node in nodes}

    def _nearest_of(self, found: Any) -> tuple[int, ...]:
        return tuple(self._index[node_id] for node_id, _ in found.nearest_peers(REPLICAS))
