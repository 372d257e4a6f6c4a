"""`GuardedProtocol` without a network."""

import asyncio
import time
from typing import Any

from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.p2p.limits import RejectionCounter
from swarmd.dht.store.storage import BoundedStorage, RecordForwarding
from swarmd.dht.store.validator import GuardedProtocol, Validator
from tests.dht.making import POLICY


class Unconnected(GuardedProtocol):
    """A protocol that knows no peers, and counts what it refuses."""

    def __init__(self, **validator: Any) -> None:
        super().__init__(_initialized_with_create=True)
        self.record_validator = Validator(POLICY, RejectionCounter(time.monotonic), **validator)
        self.storage = BoundedStorage()
        self.node_info, self.rpc_semaphore, self.wait_timeout = dht_pb2.NodeInfo(), asyncio.Semaphore(), 1.0
        self.forwarding = RecordForwarding()

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.record_validator.rejections.total)
