"""The parts of hivemind that swarmd uses. Import them from here, so that `hivemind_import` comes first."""

from __future__ import annotations

import swarmd.dht.p2p.hivemind_import  # isort: skip  # before anything of hivemind

import hivemind.dht.node as node_module
import hivemind.dht.protocol as protocol_module
import hivemind.p2p.p2p_daemon_bindings.p2pclient as client_module
import hivemind.utils.timed_storage as time_module
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo, StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import (
    P2PDaemonError,
    P2PHandlerError,
    raise_if_failed,
    read_pbmsg_safe,
)
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr, protocols
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import TimedStorage, ValueWithExpiration

__all__ = [
    "DHTID",
    "P2P",
    "ControlClient",
    "DHTLocalStorage",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "MSGPackSerializer",
    "Multiaddr",
    "P2PContext",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "PeerInfo",
    "RecordValidatorBase",
    "RoutingTable",
    "StreamInfo",
    "TimedStorage",
    "ValueWithExpiration",
    "client_module",
    "dht_pb2",
    "node_module",
    "p2pd_pb2",
    "protocol_module",
    "protocols",
    "raise_if_failed",
    "read_pbmsg_safe",
    "swarmd",
    "time_module",
    "use_hivemind_log_handler",
]
