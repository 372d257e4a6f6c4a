"""The libp2p daemon (p2pd) as swarmd runs it: with its sockets in the node's directory, gossip, and its last output."""

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from swarmd.dht.p2p.hivemind_api import P2P, PeerID, p2pd_pb2, raise_if_failed, read_pbmsg_safe
from swarmd.dht.p2p.limits import PeerLimits
from swarmd.dht.p2p.p2pd_control import BoundedControl, install_control, write_message
from swarmd.dht.p2p.sockets import make_socket_directory, remove_short_directory, socket_directory
from swarmd.dht.wire.addresses import can_listen_at
from swarmd.errors import AddressInUse
from swarmd.logger import get_logger

LINES_KEPT = 20
LINE_LENGTH_MAX = 400
START_S = 30.0
CONNECTIONS_MAX = 512  # open at once; half of them from one address
# p2pd's flags. Its resource manager has no limits, and no flags to set them; `swarmd.dht.p2p.limits` and
# `swarmd.dht.p2p.memory_watch` enforce limits instead.
LIMITS: dict[str, str | int] = {
    "connHi": CONNECTIONS_MAX,
    "connLo": CONNECTIONS_MAX * 3 // 4,
    "connGrace": "30s",  # before a new connection may be closed as useless
    # What this node relays between two others; by default p2pd would use 16 MiB of memory for it, and relay 4 GiB.
    "relayMaxCircuits": 8,
    "relayMaxReservations": 64,
    "relayBufferSize": 64 * 1024,
    "relayDataLimit": 256 * 1024 * 1024,
    "relayTimeLimit": "30m",
}

install_control()

log = get_logger(__name__)


def find_p2pd() -> Path:
    """Return the path of the p2pd program that comes with hivemind."""
    return Path(str(files("hivemind.hivemind_cli") / "p2pd"))


class P2pDaemon(P2P):  # type: ignore[misc]
    """hivemind's P2P, extended by gossipsub and by a record of p2pd's last output."""

    DHT_MODE_MAPPING = {  # noqa: RUF012 - as in hivemind
        mode: {**flags, "pubsub": 1, "gossipsubHeartbeatInterval": "500ms"}
        for mode, flags in P2P.DHT_MODE_MAPPING.items()
    }

    began: "Callable[[P2pDaemon], None]"

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.began(self)

    async def _read_outputs(self, ready: asyncio.Future[None]) -> None:
        """Read p2pd's output as hivemind does, but skip lines too long for asyncio: p2pd hangs otherwise."""
        while True:
            try:
                await super()._read_outputs(ready)
                return
            except ValueError:
                self._log_p2pd_message("(a line that is too long)")

    def _log_p2pd_message(self, line: str) -> None:
        line = line[:LINE_LENGTH_MAX]
        self.lines.append(line)
        log.debug("p2pd: %s", line)

    @property
    def control(self) -> BoundedControl:
        """The client that controls p2pd."""
        control: BoundedControl = self._client.control
        return control

    @property
    def peer_limits(self) -> PeerLimits:
        """The limits that every call and stream passes."""
        return self.control.peer_limits

    @property
    def pid(self) -> int:
        """Process id of p2pd."""
        return int(self._child.pid)

    async def wait_until_ended(self) -> int:
        """Wait until p2pd has ended. Returns its exit status, negative for a signal."""
        return int(await self._child.wait())

    @property
    def returncode(self) -> int | None:
        """p2pd's exit status, None while it runs."""
        status: int | None = self._child.returncode
        return status

    def describe_end(self) -> str:
        """Describe why p2pd ended, once it has, with its last line of output."""
        status = self.returncode or 0
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        spoken = [line for line in self.lines if "error" in line.lower() or "panic" in line.lower()]
        last_words = (spoken or list(self.lines) or ["(no output)"])[-1]
        return f"p2pd ended with {how}; it said last: {last_words}"

    async def _send_pubsub_request(self, request: Any) -> tuple[Any, Any, Any]:
        reader, writer = await self._client.control.daemon_connector.open_connection()
        try:
            await write_message(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=request))
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            raise_if_failed(response)
        except BaseException:
            writer.close()
            raise
        return response, reader, writer

    async def publish(self, topic: str, message: bytes) -> None:
        request = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.PUBLISH, topic=topic, data=message)
        _, _, writer = await self._send_pubsub_request(request)
        writer.close()

    async def subscribe(self, topic: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield (sender's peer id, message) for everything gossiped on a topic; ends when p2pd does."""
        _, reader, writer = await self._send_pubsub_request(
            p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.SUBSCRIBE, topic=topic)
        )
        try:
            while True:
                message = p2pd_pb2.PSMessage()
                await read_pbmsg_safe(reader, message)
                yield PeerID(getattr(message, "from")).to_base58(), message.data
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


class SocketDirectory:
    """The directory of p2pd's sockets: in the data directory, or a short private one if that path is too long."""

    def __init__(self, preferred: Path) -> None:
        self.preferred = preferred
        self.path = socket_directory(preferred)
        self._note = self.path / "p2pd.json"

    def open(self) -> None:
        """Create the directory, remove what a killed predecessor left, and kill its p2pd."""
        make_socket_directory(self.preferred)
        self._kill_leftover_p2pd()
        self.clear()

    def daemon_class(
        self, began: Callable[[P2pDaemon], None] = lambda p2p: None, **flags: str | int
    ) -> type[P2pDaemon]:
        """Return a `P2pDaemon` class with its sockets here and these flags. `began` gets each new instance."""
        modes = {mode: {**given, **flags} for mode, given in P2pDaemon.DHT_MODE_MAPPING.items()}
        settings = {
            "_UNIX_SOCKET_PREFIX": f"/unix{self.path}/",
            "DHT_MODE_MAPPING": modes,
            "began": staticmethod(began),
        }
        return type("Daemon", (P2pDaemon,), settings)

    def write_pid_file(self, pid: int) -> None:
        """Write p2pd's pid to a file; if that fails (a full disk), the network continues without."""
        try:
            self._note.write_text(json.dumps({"pid": pid}), encoding="ascii")
        except OSError as error:
            log.warning("the number of the process p2pd, %d, is not kept in %s: %s", pid, self._note, error)

    def clear(self) -> None:
        """Remove the sockets and the pid file."""
        for path in (*self.path.glob("p2pd-*.sock"), *self.path.glob("p2pclient-*.sock"), self._note):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the sockets, and the short directory if one is used (a confined process leaves it, empty)."""
        self.clear()
        remove_short_directory(self.preferred)

    def _kill_leftover_p2pd(self) -> None:
        """Kill the p2pd of a killed worker, which would end by itself only after some seconds."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(json.loads(self._note.read_text(encoding="ascii"))["pid"])
            if str(self.path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                log.info("ended the p2pd of a killed predecessor, process %d", pid)


async def wait_for_free_ports(listen: Sequence[str], patience_s: float) -> None:
    """Wait until the listening ports are free: p2pd itself would silently share a port with another p2pd. Raises
    AddressInUse: a port is still taken after `patience_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    for address in listen:
        while not can_listen_at(address):
            if loop.time() > deadline:
                fix = "Stop what listens there (`ss -ltnp` shows it) or choose another port in dht.listen"
                raise AddressInUse(f"the address {address} is taken", fix)
            await asyncio.sleep(0.2)
