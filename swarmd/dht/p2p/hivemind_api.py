"""The parts of hivemind that swarmd uses. Import them from here, so that `hivemind_import` comes first."""

import swarmd.dht.p2p.hivemind_import  # noqa: F401  # isort: skip  # before anything of hivemind

import hivemind.dht.node
import hivemind.dht.protocol
import hivemind.p2p.p2p_daemon_bindings.p2pclient
from hivemind.dht.node import DHTNode as DHTNode
from hivemind.dht.routing import DHTID as DHTID
from hivemind.dht.routing import RoutingTable as RoutingTable
from hivemind.dht.storage import DHTLocalStorage as DHTLocalStorage
from hivemind.dht.storage import DictionaryDHTValue as DictionaryDHTValue
from hivemind.dht.validation import DHTRecord as DHTRecord
from hivemind.dht.validation import RecordValidatorBase as RecordValidatorBase
from hivemind.p2p import P2P as P2P
from hivemind.p2p import P2PContext as P2PContext
from hivemind.p2p import PeerID as PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient as ControlClient
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo as PeerInfo
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo as StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError as P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError as P2PHandlerError
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed as raise_if_failed
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe as read_pbmsg_safe
from hivemind.proto import dht_pb2 as dht_pb2
from hivemind.proto import p2pd_pb2 as p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler as use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr as Multiaddr
from hivemind.utils.multiaddr import protocols as protocols
from hivemind.utils.serializer import MSGPackSerializer as MSGPackSerializer
from hivemind.utils.timed_storage import TimedStorage as TimedStorage

node_module = hivemind.dht.node
protocol_module = hivemind.dht.protocol
client_module = hivemind.p2p.p2p_daemon_bindings.p2pclient
