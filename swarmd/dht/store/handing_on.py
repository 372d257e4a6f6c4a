"""What a node hands on to a peer that it meets: the records that this one should keep, within bounds.

To find them takes a look at every key that is held, and whoever is met has them sent: one call of an identity that
nobody has seen before. Where there is no more of it left, a peer gets its records when their owners renew them.
"""

from __future__ import annotations

import time
from typing import Any

from swarmd.bounds import RateLimiter
from swarmd.dht.store.storage import sent_bytes
from swarmd.worker.runtime import TimeSource

MEETINGS_BURST, MEETINGS_PER_S = 16.0, 0.2  # of all peers; one takes 15 microseconds of processor time a key
HANDED_BYTES_MAX = 4 * 1024 * 1024  # to one peer at one meeting
KEY_BYTES_MAX = 7 * 512 * 1024  # of one key, as it is sent: a message has room for 4 MiB, and one that is too large
# looks like a peer that cannot be reached

Entry = tuple[Any, Any, float]  # key, value, expiration


class HandingOn:
    """Says what is to be handed on.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._meetings = RateLimiter(MEETINGS_BURST, MEETINGS_PER_S, now)

    def due(self, protocol: Any, node_id: Any) -> list[Entry]:
        """The records that a peer should keep which is not in the routing table yet.

        They are those of keys to which this node is the nearest that it knows, where the peer would be among those who
        keep them, as in hivemind.

        Args:
            protocol: has storage, routing table, own id and number of replicas.
            node_id: of the peer, in the DHT.
        """
        if not len(protocol.storage) or not self._meetings.try_charge():
            return []
        found: list[Entry] = []
        left_bytes = HANDED_BYTES_MAX
        for key, item in list(protocol.storage.items()):
            if _is_wanted(protocol, key, node_id):
                key_bytes = sent_bytes(item.value)
                if key_bytes > KEY_BYTES_MAX:
                    continue
                left_bytes -= key_bytes
                if left_bytes < 0:
                    break
                found.append((key, item.value, item.expiration_time))
        return found


def _is_wanted(protocol: Any, key: Any, node_id: Any) -> bool:
    """Whether a key is this node's to hand on, and the peer's to keep."""
    near = protocol.routing_table.get_nearest_neighbors(key, protocol.num_replicas, exclude=protocol.node_id)
    distances = [other.xor_distance(key) for other, _ in near]
    own, peers = protocol.node_id.xor_distance(key), node_id.xor_distance(key)
    return not distances or (own < distances[0] and peers < distances[-1])
