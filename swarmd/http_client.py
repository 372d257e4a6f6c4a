"""One request over HTTP that ends: its answer is bounded in bytes, and all of it in time.

`ask` is for threads and processes without an event loop. Whoever has one asks by aiohttp, and reads the answer by
`read_start`.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

CHUNK_BYTES = 1 << 20

Connect = Callable[[float], http.client.HTTPConnection]  # with a time limit in seconds


class HttpRequest(NamedTuple):
    """One HTTP request: method, URL, headers and body."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class ByteStream(Protocol):
    """The body of an answer that comes in pieces: aiohttp's `StreamReader`."""

    async def read(self, n: int, /) -> bytes:
        """Some bytes, as soon as there are any, at most so many; none at the end. Raises what breaks it off."""


async def read_start(stream: ByteStream, bytes_max: int) -> bytes:
    """The body up to its end, in however many pieces it comes, or its first `bytes_max` bytes."""
    read = b""
    while len(read) < bytes_max and (piece := await stream.read(bytes_max - len(read))):
        read += piece
    return read


def connect_to(scheme: str, host: str, port: int | None) -> Connect:
    """How to connect to a server; `scheme` is http or https."""
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    return lambda timeout_s: kind(host, port, timeout=timeout_s)


def ask(connect: Connect, request: HttpRequest, deadline: float, answer_bytes_max: int) -> tuple[int, bytes]:
    """The status and the body of the answer.

    Args:
        deadline: of it all, on the monotonic clock; a time limit of sockets is one on each byte.

    Raises:
        OSError: no connection, or no whole answer in time.
        HTTPException: no HTTP, an answer that breaks off, or one longer than `answer_bytes_max`.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    connection = connect(left_s)
    ending = threading.Timer(left_s, _hang_up, [connection])
    ending.daemon = True
    try:
        ending.start()
        connection.request(request.method, request.path, request.body or None, dict(request.headers))
        answer = connection.getresponse()
        return answer.status, _read(answer, deadline, answer_bytes_max)
    finally:
        ending.cancel()
        connection.close()


def _read(answer: http.client.HTTPResponse, deadline: float, bytes_max: int) -> bytes:
    """The whole body. A connection that is hung up on looks like the end of it."""
    chunks, size, promised = [], 0, answer.length
    while chunk := answer.read1(CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            raise http.client.HTTPException(f"the answer is longer than {bytes_max} bytes")
        if time.monotonic() >= deadline:
            break
    if time.monotonic() >= deadline:
        raise TimeoutError("no answer in time")
    if promised is not None and size < promised:
        raise http.client.HTTPException(f"the answer broke off after {size} of {promised} bytes")
    return b"".join(chunks)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError, AttributeError):  # closed already
        connection.sock.shutdown(socket.SHUT_RDWR)
