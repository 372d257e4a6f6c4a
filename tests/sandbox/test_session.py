"""Programs that are talked to: answered line by line, within the limits of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swarmd.sandbox import Isolation, Sandbox
from swarmd.sandbox.session import SessionEnded
from tests.sandbox.conftest import LIMITS

ECHO = "import sys\ncount = 0\nfor line in sys.stdin:\n    count += 1\n    print(count, line.strip(), flush=True)\n"


def test_a_program_remembers_between_questions(sandbox: Sandbox) -> None:
    session = sandbox.open(ECHO)
    assert [session.ask(word, 10) for word in ("one", "zwölf")] == ["1 one", "2 zwölf"]
    session.close()
    session.close()
    with pytest.raises(SessionEnded, match="has ended"):
        session.ask("three", 10)


def test_a_program_outlives_the_thread_that_opened_it(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(1) as pool:
        session = pool.submit(sandbox.open, ECHO).result()
        assert pool.submit(session.ask, "one", 10).result() == "1 one"
    time.sleep(0.2)
    assert session.ask("two", 10) == "2 two"
    session.close()


def test_a_question_may_be_larger_than_a_pipe(sandbox: Sandbox) -> None:
    session = sandbox.open("import sys\nfor line in sys.stdin:\n    print(len(line), flush=True)\n")
    assert session.ask("x" * 1_000_000, 10) == "1000001"
    session.close()


@pytest.mark.parametrize(
    ("program", "wall_s", "told"),
    [
        ("import time\ntime.sleep(60)", 0.5, "longer than 0.5 s"),
        ("while True: pass", 30.0, "ended, or used more"),
        ("print('x' * 100_000, flush=True)\nimport time\ntime.sleep(60)", 30.0, "more than 10000 bytes"),
        ("bytearray(10**9)", 30.0, "ended, or used more"),
        ("import os\nos.fork()", 30.0, "ended, or used more"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", 30.0, "ended, or used more"),
        ("open('/etc/passwd')", 30.0, "ended, or used more"),
        ("import sys\nsys.stdin.close()", 30.0, "ended, or used more"),
    ],
    ids=["hangs", "spins", "prints", "memory", "fork", "network", "files", "deaf"],
)
def test_a_program_that_breaks_a_limit_has_ended(sandbox: Sandbox, program: str, wall_s: float, told: str) -> None:
    session = sandbox.open(program)
    with pytest.raises(SessionEnded, match=told):
        session.ask("?", wall_s)
    with pytest.raises(SessionEnded, match="has ended"):
        session.ask("?", wall_s)


def test_a_question_ends_with_the_stage(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    is_stopped: Callable[[], bool] = lambda: time.monotonic() > begun + 0.5  # noqa: E731
    own = Sandbox(LIMITS, sandbox.isolation)
    own.stop_when(is_stopped)
    session = own.open("import time\ntime.sleep(60)")
    with pytest.raises(SessionEnded, match="was cancelled"):
        session.ask("?", 30.0)


def test_without_isolation_the_scratch_directory_is_removed() -> None:
    way: Isolation = "none-i-accept-the-risk"
    session = Sandbox(LIMITS, way).open("import os\nfor _ in open(0):\n    print(os.getcwd(), flush=True)\n")
    scratch = Path(session.ask("where", 10))
    assert scratch.is_dir()
    session.close()
    assert not scratch.exists()
