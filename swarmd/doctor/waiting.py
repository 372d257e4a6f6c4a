"""Waiting with an end: for a thread that may hang in the kernel, for a child process, for what several checks share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from swarmd.errors import SwarmdError

ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of a child process
LAST_WORDS_BYTES = 2000  # kept of what it says on stderr

T = TypeVar("T")


class ChildFailed(SwarmdError):
    """A child process of the doctor ended without an answer; the message has its last words."""


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a daemon thread: one that hangs, as on a dead network disk, keeps nobody from ending."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = function(*arguments)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name=f"doctor-{getattr(function, '__name__', 'check')}", daemon=True).start()
    return await outcome


async def ask_child(module: str, request: bytes) -> bytes:
    """What `python -m module` prints on stdout, given `request` on stdin. It is killed when the wait is cancelled.

    Raises:
        ChildFailed: it ended with an error, or said too much.
    """
    process = await anyio.open_process([sys.executable, "-m", module], start_new_session=True)
    assert process.stdin and process.stdout and process.stderr
    answer, words = bytearray(), bytearray()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drain, process.stderr, words)
            with contextlib.suppress(anyio.BrokenResourceError):
                await process.stdin.send(request)
                await process.stdin.aclose()
            with contextlib.suppress(anyio.EndOfStream):
                while len(answer) <= ANSWER_BYTES_MAX:
                    answer += await process.stdout.receive()
            tasks.start_soon(process.wait)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if process.returncode != 0 or len(answer) > ANSWER_BYTES_MAX:
        said = words.decode("utf-8", "replace").strip().splitlines()
        raise ChildFailed(f"{module} ended with {process.returncode}: {said[-1] if said else 'it said nothing'}")
    return bytes(answer)


async def _drain(stream: Any, words: bytearray) -> None:
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            words += await stream.receive()
            del words[:-LAST_WORDS_BYTES]


class Once(Generic[T]):
    """Something that several checks want and that is made once; a failure is kept as well."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._result: T | None = None
        self._failure: Exception | None = None
        self._made = False

    async def __call__(self) -> T:
        async with self._lock:
            if not self._made:
                try:
                    self._result = await self._make()
                except Exception as error:
                    self._failure = error
                self._made = True
        if self._failure is not None:
            raise self._failure
        return self._result  # type: ignore[return-value]
