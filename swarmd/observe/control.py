"""The client of a daemon's control socket, `run/control.sock`: one JSON line as request, one JSON line as answer.

The server with the verbs is in `swarmd.daemon.control`. A socket path that is longer than the kernel allows is reached
through a descriptor of its directory.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import ControlError
from swarmd.observe.status import Status
from swarmd.observe.stopping import SafeToStop

ADDRESS_BYTES_MAX = 107  # sun_path without its terminating zero
REPLY_BYTES_MAX = 4 * 1024 * 1024
CALL_S = 5.0  # longest call, on either side


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request."""

    verb: str
    for_s: float = 0.0  # a "stop when it is safe" request lapses after this many seconds unless it is repeated


class StopReply(msgspec.Struct, frozen=True):
    """The answer to a "stop when it is safe" request."""

    stopping: bool = False
    safe_to_stop: SafeToStop | None = None
    error: str = ""  # why the request cannot be met


def send_request(path: Path, verb: str, within_s: float = CALL_S, for_s: float = 0.0) -> bytes:
    """Send one request to a running daemon and return its answer, one JSON document. Blocks at most about `within_s`.
    Raises DaemonNotRunning: nobody listens there; ControlError: the daemon does not answer, or answers with an
    error."""
    until = time.monotonic() + within_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as endpoint, short_socket_address(path) as address:
            endpoint.settimeout(within_s)
            endpoint.connect(address)
            endpoint.sendall(msgspec.json.encode(ControlRequest(verb, for_s)) + b"\n")
            return _receive_line(endpoint, until)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise DaemonNotRunning(f"no daemon listens at {path}", "Start the node: `swarmd run`") from error
    except OSError as error:
        raise ControlError(f"the daemon at {path} does not answer: {error.strerror or error}") from error


def _receive_line(endpoint: socket.socket, until: float) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        endpoint.settimeout(left_s)
        chunk = endpoint.recv(65536)
        if not chunk or len(line) > REPLY_BYTES_MAX:
            raise ControlError("the daemon broke off in the middle of its answer", "Try again")
        line += chunk
    return bytes(line[:-1])


class DaemonNotRunning(ControlError):
    """Nobody listens on the control socket."""


class DaemonReply(msgspec.Struct, frozen=True):
    """The answer to "status": `status`; or `mute`, why a running daemon does not answer; or neither if no daemon
    runs."""

    status: Status | None = None
    mute: str = ""

    @property
    def is_running(self) -> bool:
        """Whether a daemon runs, even one that does not answer."""
        return self.status is not None or bool(self.mute)


def ask_status(path: Path, within_s: float = CALL_S) -> DaemonReply:
    """Ask a daemon for its status. Blocks as `send_request`."""
    try:
        return DaemonReply(msgspec.json.decode(send_request(path, "status", within_s), type=Status))
    except DaemonNotRunning:
        return DaemonReply()
    except ControlError as failure:
        return DaemonReply(mute=failure.message)
    except DECODE_ERRORS as failure:
        return DaemonReply(mute=f"its answer is not understood, is it another version of swarmd? ({failure})")


@contextlib.contextmanager
def short_socket_address(path: Path) -> Iterator[str]:
    """An address for `path` that fits the kernel's limit; valid inside the `with` only."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
