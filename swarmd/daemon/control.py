"""The server of the control socket, `run/control.sock`: one JSON line as request, one JSON line as answer.

`{"verb": "status"}` returns the status. `{"verb": "stop"}` requests an orderly stop; `{"verb": "stop_when_safe",
"for_s": 2}` requests one as soon as it costs no round, within the next 2 s. Only this node's user may connect (mode
0600). The client is `swarmd.observe.control`.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
from anyio.abc import SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.events import StopRequested
from swarmd.errors import ControlError, SwarmdError
from swarmd.files import advise_on_path_error, remove_leftover
from swarmd.logger import get_logger
from swarmd.observe.control import CALL_S, ControlRequest, StopReply, short_socket_address
from swarmd.shell.loop import ObserveEvent

REQUEST_BYTES_MAX = 4096
CONNECTIONS_MAX = 16  # concurrent connections; further ones are closed unanswered
ASKED = "the operator asked for it"
ACCEPT_AGAIN_S = 1.0  # delay after a failed accept

log = get_logger("swarmd.control")


class ControlRefusal(msgspec.Struct, frozen=True):
    """The answer to an invalid or failed request; `error` says what is wrong."""

    error: str


def bind_control(path: Path) -> socket.socket:
    """Bind a socket that only this user may connect to, replacing one left by a dead daemon. Raises ControlError. The
    caller holds the event log's lock, so an existing socket cannot belong to a running daemon."""
    endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with short_socket_address(path) as address:
            os.fchmod(endpoint.fileno(), 0o600)  # bind gives the file this mode, so it is never open to others
            endpoint.bind(address)
        path.chmod(0o600)
        endpoint.listen(CONNECTIONS_MAX)
    except OSError as error:
        endpoint.close()
        fix = advise_on_path_error(error, path) or "Make room for it, and start the node again"
        raise ControlError(f"the control socket {path} cannot be made: {error.strerror or error}", fix) from error
    return endpoint


class ControlServer:
    """Serves the control socket: one JSON request and answer per connection. `status` returns the status as JSON,
    without waiting; `stop_when_safe` records the request, and returns whether the node stops now."""

    def __init__(
        self,
        path: Path,
        status: Callable[[], bytes],
        observe: ObserveEvent,
        stop_when_safe: Callable[[float], StopReply],
    ) -> None:
        self._path = path
        self._status = status
        self._observe = observe
        self._stop_when_safe = stop_when_safe
        self._connections = 0

    async def serve(self, endpoint: socket.socket) -> None:
        """Serve until cancelled, then remove the socket."""
        try:
            listener = await SocketListener.from_socket(endpoint)
            async with listener, anyio.create_task_group() as answering:
                while True:
                    try:
                        await listener.serve(self._answer_connection, answering)
                    except anyio.BrokenResourceError as error:  # a shortage of descriptors or memory, which may pass
                        log.warning("a control connection cannot be taken", error=str(error.__cause__ or error))
                    await anyio.sleep(ACCEPT_AGAIN_S)
        finally:
            remove_leftover(self._path)

    async def _answer_connection(self, stream: SocketStream) -> None:
        async with stream:
            if self._connections >= CONNECTIONS_MAX:
                return
            self._connections += 1
            lines = BufferedByteReceiveStream(stream)
            try:
                with anyio.move_on_after(CALL_S):
                    await stream.send(
                        await self._make_reply(await lines.receive_until(b"\n", REQUEST_BYTES_MAX)) + b"\n"
                    )
            except (anyio.BrokenResourceError, anyio.IncompleteRead, anyio.DelimiterNotFound) as error:
                log.debug("a control connection ended early", error=str(error))
            finally:
                self._connections -= 1

    async def _make_reply(self, line: bytes) -> bytes:
        try:
            request = msgspec.json.decode(line, type=ControlRequest)
        except DECODE_ERRORS as error:
            return msgspec.json.encode(ControlRefusal(f"not a request: {error}"))
        if request.verb == "status":
            try:
                return self._status()
            except (OSError, SwarmdError) as error:  # a failed request must not end the node
                log.warning("the status cannot be told", error=str(error))
                return msgspec.json.encode(ControlRefusal(f"the status cannot be told: {error}"))
        if request.verb == "stop":
            await self._observe(StopRequested(ASKED))
            return b'{"stopping":true}'
        if request.verb == "stop_when_safe":
            return msgspec.json.encode(self._stop_when_safe(request.for_s))
        verbs = "status, stop and stop_when_safe"
        return msgspec.json.encode(ControlRefusal(f"unknown verb {request.verb!r}; there are {verbs}"))
