"""Whatever becomes of a start, the core hears of an end after a kill, and hears of it once."""

import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import anyio
import pytest

from swarmd.config import WorkersConfig
from swarmd.core.commands import KillWorker, StartWorker
from swarmd.core.events import Event, WorkerExited, WorkerStarted, WorkerStartFailed
from swarmd.core.values import Worker
from swarmd.daemon import process
from swarmd.daemon import supervisor as supervisor_module
from swarmd.daemon.process import Child, worker_environment
from swarmd.daemon.supervisor import Program, Supervisor
from swarmd.errors import EXIT_FOR_ROOM
from swarmd.worker.messages import StartMessage

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")
END_S = 10.0


def start(attempt: int) -> StartWorker:
    return StartWorker(f"start/{attempt}", "trainer", attempt)


def kill(reason: str) -> KillWorker:
    return KillWorker("kill", "trainer", reason)


Body = Callable[[Supervisor, Callable[[], Awaitable[None]]], Awaitable[None]]


def supervise(argv: tuple[str, ...], body: Body) -> list[Event]:
    """Run `body` with a supervisor and a function that waits for its next fact. Returns all facts."""
    told: list[Event] = []

    async def run() -> None:
        send, receive = anyio.create_memory_object_stream[Event](16)

        async def observe(event: Event) -> None:
            told.append(event)
            await send.send(event)

        async def next_fact() -> None:
            with anyio.fail_after(END_S):
                await receive.receive()

        async with send, receive, anyio.create_task_group() as tasks:
            programs: dict[Worker, Program] = {"trainer": Program(argv, worker_environment({}, "test"))}
            await body(Supervisor(programs, StartMessage(b"", ""), WorkersConfig(), observe, tasks), next_fact)

    anyio.run(run)
    return told


def test_a_kill_where_nothing_was_ever_started_is_answered() -> None:
    async def body(supervisor: Supervisor, next_fact: Callable[[], Awaitable[None]]) -> None:
        supervisor.perform(kill("not ready within 5 s"))
        await next_fact()
        supervisor.perform(kill("not ready within 5 s"))

    assert supervise(SLEEPER, body) == [WorkerExited("trainer", "not ready within 5 s, and no process was there")]


@pytest.mark.parametrize(
    ("program", "outside"),
    [
        ("import os; os.kill(os.getpid(), 9)", True),
        ("import os; os.kill(os.getpid(), 15)", True),
        (f"import sys; sys.exit({EXIT_FOR_ROOM})", True),
        ("import os; os.abort()", False),
        ("import sys; sys.exit(1)", False),
    ],
)
def test_an_end_that_others_caused_is_told_from_its_own(program: str, outside: bool) -> None:
    async def body(supervisor: Supervisor, next_fact: Callable[[], Awaitable[None]]) -> None:
        supervisor.perform(start(1))
        await next_fact()
        await next_fact()

    exited = supervise((sys.executable, "-S", "-c", program), body)[-1]
    assert isinstance(exited, WorkerExited) and exited.outside is outside


def test_a_process_that_hangs_in_the_kernel_is_not_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(supervisor: Supervisor, next_fact: Callable[[], Awaitable[None]]) -> None:
        supervisor.perform(start(1))
        await next_fact()
        supervisor.perform(kill("answered no ping for 60 s"))
        await next_fact()
        supervisor.perform(start(2))
        await next_fact()
        supervisor.kill_all()

    monkeypatch.setattr(Child, "_signal", lambda child, number: None)
    monkeypatch.setattr(supervisor_module, "UNKILLABLE_S", 0.1)
    monkeypatch.setattr(process, "REAP_S", 0.1)
    told = supervise(SLEEPER, body)
    for event in told:
        if isinstance(event, WorkerStarted):
            os.kill(event.pid, signal.SIGKILL)
    assert [type(event) for event in told] == [WorkerStarted, WorkerExited, WorkerStarted, WorkerExited]
    assert told[1] == WorkerExited("trainer", "answered no ping for 60 s, does not go away though killed")


def test_a_process_that_cannot_be_watched_was_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no descriptor left for it; the core hears of a start that failed, and tries again later."""

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def body(supervisor: Supervisor, next_fact: Callable[[], Awaitable[None]]) -> None:
        supervisor.perform(start(1))
        await next_fact()

    monkeypatch.setattr(os, "pidfd_open", refuse)
    reason = f"{sys.executable}: Too many open files"
    assert supervise(SLEEPER, body) == [WorkerStartFailed("trainer", reason, 1, outside=True)]
