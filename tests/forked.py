"""Starts swarmd's processes without their imports: a process that has imported all forks itself for each.

What is forked is a process like any other: a pid and a session of its own, signals, pipes, an environment, an exit
status. Starting the interpreter and importing takes most of the processor time of a test that starts a process, and is
the same every time. That a program starts by exec as well is for other tests.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import fcntl
import gc
import hashlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ORDER_BYTES_MAX = 1 << 17
NUMBER = struct.Struct("i")
DIRECTORY = "TESTS_FORKS"  # in the environment: where the sockets of a test run's servers are
_STARTED: list[subprocess.Popen[bytes]] = []  # by this process
OPEN = "open"  # a pipe there; servers end when the process that made it has
ROOM = {"ROOM": "x" * (1 << 15)}  # the environment of a forked process is shown where that of the server lies
ENVIRONMENT = os.environ | ROOM  # before any test has changed it

NETWORK = ("swarmd.dht.worker", "swarmd.dht.store.lookup")
CHAIN = ("swarmd.chain.worker",)
TRAINER = (
    "swarmd.training.library_logging",  # before what heeds the variables that it sets
    "swarmd.training.worker",
    "swarmd.training.engine",
    "datasets",
    "torch.distributed.fsdp",
)
ALL = (*NETWORK, *CHAIN, *TRAINER)  # one server for trainers and whole nodes: torch and TRL take 6 s of processor


def share_servers() -> None:
    """Have this process and those that it starts, such as pytest's workers, share their servers; they end with it."""
    if DIRECTORY in os.environ:
        return
    directory = tempfile.TemporaryDirectory(prefix="forks")
    os.environ[DIRECTORY] = directory.name
    os.mkfifo(f"{directory.name}/{OPEN}")
    os.open(f"{directory.name}/{OPEN}", os.O_RDWR)  # to the end of this process
    atexit.register(directory.cleanup)


@cache
def start_server(*modules: str) -> str:
    """Have a process import these modules and then fork, unless there is one; the path of its socket."""
    share_servers()
    directory = Path(os.environ[DIRECTORY])
    path = directory / hashlib.sha256(" ".join(modules).encode()).hexdigest()[:8]
    with (directory / "lock").open("w") as lock, (directory / OPEN).open("rb") as alive:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
                listening.bind(str(path))
                listening.listen(64)
                command = [sys.executable, "-m", "tests.forked", str(listening.fileno()), *modules]
                process = subprocess.Popen(
                    command, stdin=alive, stdout=2, cwd=ROOT, pass_fds=[listening.fileno()], env=ENVIRONMENT
                )
                _STARTED.append(process)
    return str(path)


def wait_for_server(server: str) -> None:
    """Return when it has imported all."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nothing:
        nothing.connect(server)
        nothing.shutdown(socket.SHUT_WR)
        nothing.recv(1)  # closed by the server when it hears of it


class Pipes(NamedTuple):
    """A forked process: its pid, our ends of its standard streams, and where its exit status will be told."""

    pid: int
    stdin: int
    stdout: int
    stderr: int
    told: int


def order_fork(
    server: str,
    module: str,
    args: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stderr: int | None = None,
) -> Pipes:
    """`python -m module args` in a session of its own; its standard error is a pipe, or goes to `stderr`."""
    status, inside, outside, errors = (os.pipe() for _ in range(4))
    order = {"module": module, "args": args, "cwd": str(cwd or Path.cwd()), "environment": dict(environment)}
    given = [status[1], inside[0], outside[1], errors[1] if stderr is None else stderr]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as orders:
        orders.connect(server)
        socket.send_fds(orders, [json.dumps(order).encode()], given)
    for descriptor in (status[1], inside[0], outside[1], errors[1]):
        os.close(descriptor)
    pid = os.read(status[0], NUMBER.size)
    assert pid, f"{module} was not forked: what {server} said is on standard error"
    return Pipes(NUMBER.unpack(pid)[0], inside[1], outside[0], errors[0], status[0])


class Forked:
    """A process that was forked, with what tests use of `subprocess.Popen`."""

    def __init__(self, pipes: Pipes) -> None:
        self.pid = pipes.pid
        self.stdin = os.fdopen(pipes.stdin, "wb", 0)
        self.stdout = os.fdopen(pipes.stdout, "rb", 0)
        self.stderr = os.fdopen(pipes.stderr, "rb", 0)
        self.returncode: int | None = None
        self.told = os.fdopen(pipes.told, "rb", 0)  # readable when it has ended

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = NUMBER.unpack(self.told.read(NUMBER.size))[0]
        return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedStreams:
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


async def fork(imported: Sequence[str], module: str, *args: str, cwd: Path | None = None) -> ForkedStreams:
    """`python -m module args`, in a session of its own, with pipes; `imported` is what it imports that takes long."""
    server = start_server(*imported)
    pipes = await asyncio.to_thread(order_fork, server, module, args, os.environ, cwd)
    streams = [await _reader(descriptor) for descriptor in (pipes.stdout, pipes.stderr, pipes.told)]
    return ForkedStreams(pipes.pid, await _writer(pipes.stdin), *streams)


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


def serve(listening: socket.socket, modules: Sequence[str]) -> None:
    """Fork for each order until standard input ends."""
    for name in modules:
        import_module(name)
    gc.freeze()
    while 0 not in select.select([0, listening], [], [])[0]:
        orders, _ = listening.accept()
        with orders:
            order, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, 4)
        if order and os.fork() == 0:
            listening.close()
            keep(json.loads(order), *descriptors)
            return  # the forked process is through
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def keep(order: dict, status: int, *pipes: int) -> None:
    """Fork the process itself, and tell its pid and how it ends; returns in that process only."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        run(order, pipes, begun)
        return
    os.close(begun)
    for descriptor in pipes:
        os.close(descriptor)
    os.read(ready, 1)  # it leads its session now: its group can be signalled
    with suppress(BrokenPipeError):  # the test is over
        os.write(status, NUMBER.pack(pid))
        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def run(order: dict, pipes: Sequence[int], begun: int) -> None:
    os.setsid()
    for descriptor, pipe in enumerate(pipes):
        os.dup2(pipe, descriptor)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    show_environment(order["environment"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if "PYTHONFAULTHANDLER" in order["environment"]:
        faulthandler.enable()
    os.write(begun, b"\0")
    os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    sys.argv = [order["module"], *order["args"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def show_environment(environment: Mapping[str, str]) -> None:
    """Have /proc/PID/environ show it: what exec laid there is the server's, and nothing refers to it any more."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(stat[47]), int(stat[48])  # env_start and env_end of proc(5)
    shown = b"".join(f"{name}={value}\0".encode() for name, value in environment.items() if name not in ROOM)
    assert len(shown) <= end - begin, f"the environment has {len(shown)} bytes, and {end - begin} fit in"
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
