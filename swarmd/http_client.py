"""HTTP requests through aiohttp, with bounds on the answer's size and the total time.

`send_request` is for threads without an event loop. Coroutines keep their own session and read answers with
`read_body_start`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from aiohttp import StreamReader

CHECK_S = 0.1  # how often `check` is called

T = TypeVar("T")


class HttpFailed(Exception):
    """No complete answer: no connection, not in time, broken off, longer than allowed, or not HTTP."""


class HttpRequest(NamedTuple):
    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


async def read_body_start(stream: "StreamReader", bytes_max: int) -> bytes:
    """The whole body, or its first `bytes_max` bytes."""
    read = b""
    while len(read) < bytes_max and (piece := await stream.read(bytes_max - len(read))):
        read += piece
    return read


def send_request(
    request: HttpRequest, deadline: float, answer_bytes_max: int, check: Callable[[], None] = lambda: None
) -> tuple[int, bytes]:
    """Send a request. Returns the status and body of the answer. Blocks. Does not follow redirects.

    Args:
        check: called several times a second; what it raises closes the connection and ends the call.

    Raises HttpFailed if there is no whole answer of at most `answer_bytes_max` bytes by `deadline` (monotonic clock).
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise HttpFailed("no answer in time")
    return asyncio.run(_call_with_checks(_send_async(request, left_s, answer_bytes_max), check))


async def _call_with_checks(call: Coroutine[None, None, T], check: Callable[[], None]) -> T:
    task = asyncio.ensure_future(call)
    while not (await asyncio.wait({task}, timeout=CHECK_S))[0]:
        check()
    return task.result()


async def _send_async(request: HttpRequest, left_s: float, bytes_max: int) -> tuple[int, bytes]:
    import aiohttp  # imported here: most importers of this module send no request

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=left_s)) as session,
            session.request(
                request.method, request.url, data=request.body, headers=request.headers, allow_redirects=False
            ) as answer,
        ):
            body = await read_body_start(answer.content, bytes_max + 1)
    except TimeoutError:
        raise HttpFailed("no answer in time") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise HttpFailed(str(error) or type(error).__name__) from error
    if len(body) > bytes_max:
        raise HttpFailed(f"the answer is longer than {bytes_max} bytes")
    return answer.status, body
