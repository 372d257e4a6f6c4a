"""Starts swarmd's processes without their imports: a process that has imported all forks itself for each.

What is forked is a process like any other: a pid of its own, signals, pipes, an exit status. Starting the interpreter
and importing takes most of the processor time of a test that starts a process, and is the same every time. That a
program starts by exec as well is for other tests.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER_BYTES_MAX = 1 << 16
NUMBER = struct.Struct("i")
STOP_DEADLINE_S = 10.0


class Forked:
    """A process that was forked, with what tests use of `asyncio.subprocess.Process`."""

    def __init__(
        self,
        pid: int,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        told: asyncio.StreamReader,
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._hear_of_end(told))

    async def _hear_of_end(self, told: asyncio.StreamReader) -> int:
        self.returncode = NUMBER.unpack(await told.readexactly(NUMBER.size))[0]
        return self.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _source(modules: tuple[str, ...]) -> socket.socket:
    """Where orders go: to a process of this session that has imported these modules."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.forked", *modules]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, cwd=ROOT)
    theirs.close()

    def end() -> None:
        ours.close()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()

    atexit.register(end)
    return ours


async def fork(imported: Sequence[str], module: str, *args: str, cwd: Path | None = None) -> Forked:
    """`python -m module args`, in a session of its own, with pipes; `imported` is what it imports that takes long."""
    status, stdin, stdout, stderr = (os.pipe() for _ in range(4))
    order = {"module": module, "args": args, "cwd": str(cwd or Path.cwd()), "environment": dict(os.environ)}
    given = [status[1], stdin[0], stdout[1], stderr[1]]
    socket.send_fds(_source(tuple(imported)), [json.dumps(order).encode()], given)
    for descriptor in given:
        os.close(descriptor)
    told = await _reader(status[0])
    pid = NUMBER.unpack(await told.readexactly(NUMBER.size))[0]
    return Forked(pid, await _writer(stdin[1]), await _reader(stdout[0]), await _reader(stderr[0]), told)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "wb", 0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


# --- the process that forks ---


def serve(modules: Sequence[str]) -> None:
    """Fork for each order until nobody is left to give one."""
    for name in modules:
        import_module(name)
    gc.freeze()
    orders = socket.socket(fileno=os.dup(0))
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, 4)
        if not order:
            return
        if os.fork() == 0:
            keep(json.loads(order), *descriptors)
            return  # the forked process is through
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def keep(order: dict, status: int, *pipes: int) -> None:
    """Fork the process itself, and tell its pid and how it ends; returns in that process only."""
    pid = os.fork()
    if pid == 0:
        run(order, pipes)
        return
    for descriptor in pipes:
        os.close(descriptor)
    with suppress(BrokenPipeError):  # the test is over
        os.write(status, NUMBER.pack(pid))
        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def run(order: dict, pipes: Sequence[int]) -> None:
    os.setsid()
    for descriptor, pipe in enumerate(pipes):
        os.dup2(pipe, descriptor)
    os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["module"], *order["args"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
