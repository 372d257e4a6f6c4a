"""The DHT node: hivemind's P2P and DHTNode in this process, and p2pd as a child that is restarted whenever it dies.

hivemind does not notice when its p2pd dies: `is_alive` stays True, a store succeeds locally and is lost, a shutdown
hangs. So every run of p2pd is watched here, and every operation goes through `DhtNode.call`, which fails at once if
p2pd is down or dies meanwhile. Records that the node holds for others stay in memory across runs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from swarmd.bounds import Backoff
from swarmd.config import DhtConfig
from swarmd.dht.identity.identity import read_identity
from swarmd.dht.p2p.hivemind_api import DHTID, DHTNode, P2PDaemonError, P2PHandlerError, RecordValidatorBase
from swarmd.dht.p2p.limits import PeerLimits
from swarmd.dht.p2p.p2pd import LIMITS, START_S, P2pDaemon, SocketDirectory, wait_for_free_ports
from swarmd.dht.wire import names
from swarmd.dht.wire.addresses import can_listen_at, is_loopback, multiaddrs_to_text, tcp_endpoint
from swarmd.errors import IdentityDamaged, IdentityError, NetworkDown, NotFoundError
from swarmd.logger import get_logger

PORT_PATIENCE_S = 5.0  # time for the p2pd of an earlier process to end
RESTART = Backoff(0.2, 10.0)
STEADY_S = 30.0  # a run longer than this resets the back-off
OPEN_S = START_S + 10.0  # time for p2pd to start and to answer
RPC_S = 3.0  # one request to one peer
CLOSE_S = 2.0
LOST_S = 1.0  # time for p2pd to end after the connection to it has ended
ATTENDANT_RETRY_S = 1.0

CALL_ERRORS = (P2PDaemonError, P2PHandlerError, OSError, EOFError, TimeoutError)  # any of them may mean that p2pd died

T = TypeVar("T")

CALL_S = 10.0  # every DHT operation ends within this

log = get_logger(__name__)


class NodeSettings(msgspec.Struct, frozen=True):
    """How the node listens and calls."""

    identity: Path
    sockets: Path
    peer_id: str
    dht: DhtConfig
    call_s: float = CALL_S
    port: int = 0  # TCP port of the node's previous run, used again for addresses with port 0


class NodeRun:
    """One run of p2pd, with hivemind's node on it."""

    def __init__(self, p2p: P2pDaemon, dht: DHTNode) -> None:
        self.p2p = p2p
        self.dht = dht
        self.gone = asyncio.ensure_future(p2p.wait_until_ended())

    @property
    def routing_table(self) -> Any:
        return self.dht.protocol.routing_table

    @property
    def peer_count(self) -> int:
        """Peers in the routing table."""
        return len(self.routing_table.uid_to_peer_id)


Attendant = Callable[[NodeRun], Awaitable[None]]


class DhtNode:
    """Runs hivemind's node and restarts it.

    Attributes:
    - attendants: coroutines that run during each run of p2pd.
    - streams: protocol id → stream handler, as hivemind expects it.
    - port: the TCP port assigned for port 0; kept from run to run.
    - p2pd_run: the current run of p2pd; None while it is down.
    """

    def __init__(
        self,
        settings: NodeSettings,
        validator: RecordValidatorBase,
        down: Callable[[str], None],
        peer_limits: PeerLimits | None = None,
    ) -> None:
        self.settings = settings
        self.peer_limits = peer_limits or PeerLimits()
        self.attendants: list[Attendant] = []
        self.streams: dict[str, Any] = {}
        self.port = settings.port
        self._validator = validator
        self._down = down
        self._sockets = SocketDirectory(settings.sockets)
        self._storage: Any = None
        self.p2pd_run: NodeRun | None = None
        self._up = asyncio.Event()
        self._p2p: P2pDaemon | None = None

    @property
    def peer_count(self) -> int:
        """Peers in the routing table, 0 while p2pd is down."""
        return self.p2pd_run.peer_count if self.p2pd_run else 0

    async def wait_until_up(self) -> NodeRun:
        while self.p2pd_run is None:
            await self._up.wait()
        return self.p2pd_run

    async def run(self) -> None:
        """Keep the node alive until cancelled. Raises AddressInUse: a port of `listen` is taken."""
        ends = 0
        self._sockets.open()
        try:
            while True:
                lived_s = await self._run_once()
                ends = 1 if lived_s > STEADY_S else ends + 1
                await anyio.sleep(RESTART.after(ends))
        finally:
            self._sockets.close()

    async def _run_once(self) -> float:
        """Run p2pd once. Returns how long it lasted, in seconds."""
        try:
            run = await self._start_run()
        except (*CALL_ERRORS, IdentityError, NotFoundError) as error:
            self._down(f"p2pd does not start: {str(error) or f'no answer within {OPEN_S:g} s'}")
            return 0.0
        began = anyio.current_time()
        await self._run_until_lost(run)
        return anyio.current_time() - began

    async def _start_run(self) -> NodeRun:
        check_identity(self.settings)
        listen = [self._with_previous_port(address) for address in self.settings.dht.listen]
        await wait_for_free_ports(listen, PORT_PATIENCE_S)
        try:
            with anyio.fail_after(OPEN_S):
                p2p = await self._start_p2pd(listen)
                dht = await _await_while_running(p2p, self._start_dht(p2p))
        except BaseException:  # a cancelled or failed start must not leave a p2pd behind
            if self._p2p is not None and self._p2p._child is not None:
                with anyio.CancelScope(shield=True):
                    await self._stop_p2pd(self._p2p)
            raise
        self._remember_port(p2p)
        return NodeRun(p2p, dht)

    def _with_previous_port(self, address: str) -> str:
        """Replace port 0 in a listening address by the previous run's port if it is free."""
        if self.port and address.endswith("/tcp/0"):
            again = address.removesuffix("0") + str(self.port)
            return again if can_listen_at(again) else address
        return address

    def _remember_port(self, p2p: P2pDaemon) -> None:
        for address in multiaddrs_to_text(p2p._visible_maddrs):
            place = tcp_endpoint(address)
            if place is not None:
                self.port = place[1]
                return

    async def _start_p2pd(self, listen: list[str]) -> P2pDaemon:
        dht = self.settings.dht
        kind = self._sockets.daemon_class(self._remember_p2pd, **LIMITS)
        p2p: P2pDaemon = await kind.create(
            host_maddrs=listen,
            announce_maddrs=list(dht.announce) or None,
            identity_path=str(self.settings.identity),
            check_if_identity_free=False,
            dht_mode="client" if dht.client_mode else "server",
            no_listen=dht.client_mode,
            use_auto_relay=dht.auto_relay,
            trusted_relays=list(dht.bootstrap) if dht.auto_relay and dht.bootstrap else None,
            nat_port_map=not dht.announce and not all(is_loopback(address) for address in listen),
            startup_timeout=START_S,
        )
        p2p.control.peer_limits = self.peer_limits
        return p2p

    def _remember_p2pd(self, p2p: P2pDaemon) -> None:
        self._p2p = p2p

    async def _start_dht(self, p2p: P2pDaemon) -> DHTNode:
        self._sockets.write_pid_file(p2p.pid)
        dht = await DHTNode.create(
            p2p=p2p,
            node_id=DHTID.from_bytes(names.key_id(self.settings.peer_id)),  # the same after a restart
            wait_timeout=RPC_S,
            cache_locally=False,  # a cached value could be stale until it expires
            cache_on_store=False,
            cache_nearest=0,
            cache_refresh_before_expiry=0,
            reuse_get_requests=False,  # a get could be answered by one that began before the preceding write
            client_mode=self.settings.dht.client_mode,
            record_validator=self._validator,
            ensure_bootstrap_success=False,
            strict=False,
        )
        if self._storage is not None:
            dht.protocol.storage = self._storage
        self._storage = dht.protocol.storage
        for name, stream in self.streams.items():
            await p2p.add_binary_stream_handler(name, stream)
        return dht

    async def _run_until_lost(self, run: NodeRun) -> None:
        self.p2pd_run = run
        self._up.set()
        try:
            async with anyio.create_task_group() as tasks:
                for attendant in self.attendants:
                    tasks.start_soon(_keep_attendant_running, attendant, run)
                tasks.start_soon(_kill_p2pd_when_lost, run)
                await asyncio.wait({run.gone})
                self._mark_down()
                self._down(run.p2p.describe_end())
                tasks.cancel_scope.cancel()
        finally:
            self._mark_down()
            with anyio.CancelScope(shield=True):
                await self._close_run(run)

    def _mark_down(self) -> None:
        self.p2pd_run = None
        self._up.clear()

    async def _close_run(self, run: NodeRun) -> None:
        """Shut down hivemind's node, which would hang without p2pd, then p2pd."""
        run.dht.is_alive = False
        if run.p2p.returncode is None:
            with anyio.move_on_after(CLOSE_S):
                await run.dht.shutdown()
        await self._stop_p2pd(run.p2p)

    async def _stop_p2pd(self, p2p: P2pDaemon) -> None:
        with anyio.move_on_after(CLOSE_S):
            await p2p.shutdown()
        if p2p.returncode is None:
            p2p._child.kill()
            await p2p.wait_until_ended()
        self._sockets.clear()

    async def call(self, operation: Callable[[NodeRun], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run an operation on the current run of p2pd. Raises NetworkDown: p2pd is down, died during the operation
        (which may then have had no effect), or did not answer within `timeout_s` (default `call_s`)."""
        run = self.p2pd_run
        if run is None:
            raise NetworkDown("the network is down: p2pd is being started")
        task = asyncio.ensure_future(operation(run))
        try:
            await asyncio.wait(
                {task, run.gone}, timeout=timeout_s or self.settings.call_s, return_when=asyncio.FIRST_COMPLETED
            )
            if run.gone.done():
                raise NetworkDown(run.p2p.describe_end())
            if not task.done():
                raise NetworkDown(f"no answer from the network within {timeout_s or self.settings.call_s:g} s")
            return task.result()
        except CALL_ERRORS as error:
            raise NetworkDown(f"the network failed: {error!r:.300}") from error
        finally:
            task.cancel()

    async def addresses(self) -> tuple[str, ...]:
        """Return this node's reachable addresses, with its peer id; empty while p2pd is down."""
        try:
            found = await self.call(lambda run: run.p2p.get_visible_maddrs(latest=True))
        except (NetworkDown, ValueError):
            return ()
        return tuple(multiaddrs_to_text(found))


async def _await_while_running(p2p: P2pDaemon, starting: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that would hang if p2pd died. Raises P2PDaemonError if p2pd dies."""
    gone, started = asyncio.ensure_future(p2p.wait_until_ended()), asyncio.ensure_future(starting)
    try:
        await asyncio.wait({gone, started}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise P2PDaemonError(p2p.describe_end())
        return started.result()
    finally:
        gone.cancel()
        started.cancel()


def check_identity(settings: NodeSettings) -> None:
    """Check that the node's key exists: hivemind would create a new one. Raises NotFoundError, IdentityError."""
    path, peer = settings.identity, settings.peer_id
    found = read_identity(path).peer_id
    if found != peer:
        fix = f"Restore the key of {peer}; a key is not exchanged while its node runs"
        raise IdentityDamaged(f"the identity {path} is that of {found}, the node runs as {peer}", fix)


async def _kill_p2pd_when_lost(run: NodeRun) -> None:
    """Kill a p2pd that outlives its control connection: no call would end."""
    await run.p2p.control.over.wait()
    await asyncio.wait({run.gone}, timeout=LOST_S)
    if run.p2p.returncode is None:
        log.warning("the connection to p2pd, process %d, was lost; it is killed", run.p2p.pid)
        run.p2p._child.kill()


async def _keep_attendant_running(attendant: Attendant, run: NodeRun) -> None:
    """Run an attendant again whenever it fails or returns; p2pd's death causes all kinds of errors in it."""
    while True:
        try:
            await attendant(run)
        except Exception as error:
            if not run.gone.done():
                log.warning("%s failed and runs again: %r", getattr(attendant, "__qualname__", attendant), error)
        await anyio.sleep(ATTENDANT_RETRY_S)
