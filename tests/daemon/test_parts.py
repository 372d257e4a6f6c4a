"""The daemon's small parts: notification, control socket, output, free space, leftovers, processes."""

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from swarmd.config import StorageConfig
from swarmd.core.commands import PublishReport, Train
from swarmd.core.events import ClockSet, Event, SpaceFreed, SpaceLow, StopRequested
from swarmd.core.state import StageResult, StageWork, State
from swarmd.core.values import RolloutsRef
from swarmd.daemon import control
from swarmd.daemon.control import ControlServer, bind_control
from swarmd.daemon.directory import SpaceBounds, SpaceGuard, make_space_bounds
from swarmd.daemon.engine import watch_clock
from swarmd.daemon.notify import ServiceNotifier
from swarmd.daemon.process import (
    LINE_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    TAG_VARIABLE,
    Child,
    LineReader,
    find_leftovers,
    kill_leftovers,
    level_of,
    worker_environment,
)
from swarmd.daemon.service import Node, digests_in_use, make_worker_program
from swarmd.errors import NotFoundError
from swarmd.eventlog.blobs import BlobStore
from swarmd.observe.control import DaemonNotRunning, StopReply, send_request
from swarmd.observe.redaction import PUSH_HEADERS, REDACTED, Part, Redactor, variables_withheld_from
from swarmd.worker import runtime
from tests.log_capture import capture_logs

# --- the clock ---


@pytest.mark.anyio
@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_that_the_machines_clock_was_set_becomes_an_event_once(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    wrong = SimpleNamespace(time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(runtime, "time", wrong)
    told: list[Event] = []
    heard = anyio.Event()

    async def observe(event: Event) -> None:
        told.append(event)
        heard.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_clock, observe, 0.01)
        await anyio.sleep(0.03)
        wrong.time = lambda: time.time() + ahead_s
        with anyio.fail_after(30.0):
            await heard.wait()
        await anyio.sleep(0.03)
        tasks.cancel_scope.cancel()
    (event,) = told
    assert isinstance(event, ClockSet) and round(event.step_s) == ahead_s


# --- sd_notify ---


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_told(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@swarmd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1) if kind == "abstract" else address)
        manager.settimeout(2)
        notifier = ServiceNotifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "4000000"})
        notifier.notify_ready("fine")
        notifier.notify_status("fine")  # unchanged: not sent
        notifier.notify_status("better")
        notifier.notify_alive()
        notifier.notify_alive()  # too soon: not sent
        notifier.notify_stopping(10)
        got = [manager.recv(4096).decode() for _ in range(4)]
    assert got == ["READY=1\nSTATUS=fine", "STATUS=better", "WATCHDOG=1", "STOPPING=1\nEXTEND_TIMEOUT_USEC=10000000"]
    assert notifier.pulse_interval_s == 2.0


def test_what_a_busy_service_manager_had_no_room_for_is_told_again(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as crowd,
    ):
        manager.bind(address)
        manager.setblocking(False)
        crowd.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                crowd.sendto(b"another's", address)
        notifier = ServiceNotifier(address, watchdog_s=60.0)
        notifier.notify_ready("fine")
        notifier.notify_status("better")
        notifier.notify_alive()
        told = _drain(manager)
        assert set(told) == {"another's"}
        notifier.notify_alive()
        notifier.notify_status("better")
        notifier.notify_alive()  # nothing is owed any more
        assert _drain(manager) == ["READY=1\nSTATUS=fine", "WATCHDOG=1", "STATUS=better"]


def _drain(manager: socket.socket) -> list[str]:
    told = []
    with contextlib.suppress(BlockingIOError):
        while True:
            told.append(manager.recv(4096).decode())
    return told


def test_a_dead_service_manager_does_no_harm(tmp_path: Path) -> None:
    with capture_logs() as told:
        notifier = ServiceNotifier(str(tmp_path / "nobody"))
        notifier.notify_ready("fine")
        notifier.notify_status("better")
    assert [line["event"] for line in told] == ["the service manager cannot be reached"], "told once"


# --- control ---


def _well() -> bytes:
    return b'{"state":"well"}'


async def _with_control(path: Path, body: object, facts: list[Event], status: Callable[[], bytes] = _well) -> None:
    async def observe(event: Event) -> None:
        facts.append(event)

    served = ControlServer(path, status, observe, lambda for_s: StopReply(error="nothing is known"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.serve, bind_control(path))
        await anyio.to_thread.run_sync(body)  # type: ignore[arg-type]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("depth", [0, 1])
def test_the_socket_answers_even_under_a_long_path(tmp_path: Path, depth: int) -> None:
    path = tmp_path.joinpath(*["d" * 120] * depth, "run", "control.sock")
    facts: list[Event] = []

    def body() -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert send_request(path, "status") == b'{"state":"well"}'
        assert send_request(path, "stop") == b'{"stopping":true}'
        assert b"nothing is known" in send_request(path, "stop_when_safe")
        assert b"unknown verb" in send_request(path, "dance")

    anyio.run(_with_control, path, body, facts)
    assert facts == [StopRequested("the operator asked for it")]
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    bind_control(path).close()
    with pytest.raises(DaemonNotRunning):
        send_request(path, "status")
    bind_control(path).close()


@pytest.mark.parametrize(
    "request_bytes", [b"nonsense\n", b'{"verb": 3}\n', b'{"verb": "status", "more": 1}\n', b'{"verb": "\xff"}\n']
)
def test_bad_requests_get_an_error(tmp_path: Path, request_bytes: bytes) -> None:
    path = tmp_path / "control.sock"
    answers: list[bytes] = []

    def body() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(request_bytes)
            answers.append(client.recv(4096))

    anyio.run(_with_control, path, body, [])
    assert answers[0].startswith(b'{"error":"not a request')


def test_an_endless_request_is_cut_off_and_a_mute_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CALL_S", 0.3)
    path = tmp_path / "control.sock"

    def body() -> None:
        with socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as mute:
            mute.settimeout(3)
            mute.connect(str(path))
            client.settimeout(3)
            client.connect(str(path))
            client.sendall(b"x" * 8192)
            assert client.recv(1) == b""
            assert mute.recv(1) == b""

    anyio.run(_with_control, path, body, [])


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), NotFoundError("there is no log")])
def test_a_status_that_cannot_be_told_ends_no_daemon(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "control.sock"

    def fail() -> bytes:
        raise error

    def body() -> None:
        for _ in range(2):
            assert send_request(path, "status").startswith(b'{"error":"the status cannot be told: ')

    anyio.run(_with_control, path, body, [], fail)


# --- output ---


def lines(*chunks: bytes) -> list[tuple[str, str]]:
    reader = LineReader()
    found = [line for chunk in chunks for line in reader.feed(chunk)]
    return [(line.level, line.text) for line in (*found, *reader.finish())]


def test_letters_come_whole_whatever_the_chunks() -> None:
    said = "Prüfung läuft\n".encode()
    assert lines(*[said[place : place + 1] for place in range(len(said))]) == [("info", "Prüfung läuft")]
    assert lines(b"cut \xc3") == [("info", "cut \N{REPLACEMENT CHARACTER}")]
    secret = "päßword-of-somebody"
    chunks = secret.encode()[:2], secret.encode()[2:] + b"\n"
    reader = LineReader(Redactor([secret]))
    assert [line.text for chunk in chunks for line in reader.feed(chunk)] == [REDACTED]


def test_a_traceback_is_one_line() -> None:
    text = b"Traceback (most recent call last):\n  File x\n    boom()\nValueError: no\nafter\n"
    assert lines(text) == [
        ("error", "Traceback (most recent call last):\n  File x\n    boom()\nValueError: no"),
        ("info", "after"),
    ]


def test_long_lines_are_cut_and_say_so() -> None:
    ((_, text),) = lines(b"y" * 3000, b"y" * 3000, b"\n")
    assert text == "y" * LINE_CHARACTERS_MAX + " ... (1904 more characters)"


def test_a_printed_private_key_goes_with_all_its_lines() -> None:
    text = (
        b"before\n the key: -----BEGIN RSA PRIVATE KEY-----\nMIIEcanary\nabcd==\n-----END RSA PRIVATE KEY-----\nafter\n"
    )
    assert lines(text) == [("info", "before"), ("info", f" the key: {REDACTED}"), ("info", "after")]


def test_neither_the_tail_nor_a_long_line_begins_or_ends_with_half_a_secret() -> None:
    secret = "correct-horse-battery-staple"
    reader = LineReader(Redactor([secret]))
    said = f"{'y' * (LINE_CHARACTERS_MAX - 12)}{secret}\n{secret}{'z' * (REASON_CHARACTERS_MAX - 12)}\n"
    shown = "".join(line.text for line in reader.feed(said.encode()))
    assert "correct" not in shown and "correct" not in reader.tail() and "staple" not in reader.tail()


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Nov 20 10:00:00.000 [WARN] [hivemind.p2p] hm", "warning"),
        ('{"level":"ERROR","msg":"x"}', "error"),
        ("2026/11/20 12:00:00 failed", "info"),
        ("DEBUG: x", "debug"),
        ("2026-11-20 18:09:00 [warning  ] a checkpoint is damaged        path=/x", "warning"),
        ("nanobind: leaked 3 instances!", "debug"),
        (' - leaked type "x.Grammar"', "debug"),
        ("a sentence with an " + "x" * 60 + " ERROR far back", "info"),
    ],
)
def test_levels(text: str, level: str) -> None:
    assert level_of(text) == level


# --- space ---


def test_bounds_leave_room_for_the_next_checkpoint_and_to_end_in_order() -> None:
    assert make_space_bounds(StorageConfig(free_bytes_min=100), 20) == SpaceBounds(low=120, wanted=150, stop=12)
    assert make_space_bounds(StorageConfig(free_bytes_min=0), 20) == SpaceBounds(0, 0, 0)


class Disk:
    """A disk whose free space the test sets, and what a guard says of it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: int = 0) -> None:
        self.free = 1000
        self.gain = gain  # what making room brings
        self.facts: list[Event] = []
        self.rooms = 0
        storage = StorageConfig(free_bytes_min=100)
        self.guard = SpaceGuard(tmp_path, tmp_path / "checkpoints", storage, self._make_room, self.observe)
        monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=self.free))

    async def observe(self, event: Event) -> None:
        self.facts.append(event)

    async def _make_room(self) -> None:
        self.rooms += 1
        self.free += self.gain

    def look(self, free: int) -> list[Event]:
        self.free = free
        self.facts = []
        self.goes_on = anyio.run(self.guard._measure_and_report)
        return self.facts


def test_a_guard_tells_a_pause_and_its_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    assert disk.look(100) == []
    assert disk.look(99) == [SpaceLow(99, 125)]
    assert disk.look(90) == [] == disk.look(124)
    assert disk.look(125) == [SpaceFreed(125)]
    assert disk.look(30) == [SpaceLow(30, 125)]
    assert disk.goes_on


def test_what_may_go_goes_before_a_node_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch, gain=50)
    assert disk.look(80) == []
    assert disk.rooms == 1
    assert disk.look(40) == [SpaceLow(90, 125)]


def test_a_disk_that_is_as_good_as_full_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    (stop,) = disk.look(9)
    assert isinstance(stop, StopRequested) and stop.code == 73
    assert not disk.goes_on


# --- processes ---


def test_leftovers_are_found_by_their_tag_and_killed() -> None:
    tag = f"peer@/test/{os.getpid()}"
    ours = subprocess.Popen(["sleep", "600"], env={TAG_VARIABLE: tag})
    other = subprocess.Popen(["sleep", "600"], env={TAG_VARIABLE: tag + "0"})
    try:
        # Reaped in a thread as init would, since a killed child of this test stays a zombie otherwise.
        reaper = threading.Thread(target=ours.wait)
        reaper.start()
        assert find_leftovers(tag) == [ours.pid]
        assert anyio.run(kill_leftovers, tag) == [ours.pid]
        reaper.join(5)
        assert ours.returncode == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_workers_do_not_inherit_the_service_manager() -> None:
    environment = worker_environment({"NOTIFY_SOCKET": "x", "WATCHDOG_USEC": "1", "HOME": "/h"}, "tag")
    assert "NOTIFY_SOCKET" not in environment and "WATCHDOG_USEC" not in environment
    assert environment["HOME"] == "/h" and environment[TAG_VARIABLE] == "tag"


def test_in_every_trainer_sets_of_texts_have_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = (sys.executable, "-c", "print({f'word {number}' for number in range(64)})")
    orders = set()
    for seed in ("1", "2", "random"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        trainer = make_worker_program("trainer", argv, "tag")
        orders.add(subprocess.run(trainer.argv, env=dict(trainer.environment), capture_output=True, check=True).stdout)
        assert make_worker_program("network", argv, "tag").environment["PYTHONHASHSEED"] == seed, "peers could guess it"
    assert len(orders) == 1


def test_a_process_gets_no_secret_that_is_none_of_its_business() -> None:
    environ = {"HF_TOKEN": "a", "WANDB_API_KEY": "b", "HTTPS_PROXY": "c", PUSH_HEADERS[0]: "d", "HOME": "e"}
    environ |= {"TOKENIZERS_PARALLELISM": "false", "CREDENTIALS_DIRECTORY": "/run/f"}
    parts: tuple[Part, ...] = ("network", "trainer", "chain", "web")
    got = {
        part: set(worker_environment(environ, "tag", variables_withheld_from(part, environ))) & set(environ)
        for part in parts
    }
    harmless = {"HOME", "TOKENIZERS_PARALLELISM", "CREDENTIALS_DIRECTORY"}
    assert got["network"] == harmless
    assert got["chain"] == harmless | {"HTTPS_PROXY"}
    assert got["trainer"] == harmless | {"HF_TOKEN", "WANDB_API_KEY", "HTTPS_PROXY"}
    assert got["web"] == harmless | {"HTTPS_PROXY", PUSH_HEADERS[0]}


def test_a_child_leads_its_own_session_and_takes_its_group_with_it() -> None:
    async def run() -> tuple[int, int, int | None]:
        child = Child([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
        session = os.getsid(child.pid)
        child.kill()
        with anyio.fail_after(5):
            await child.wait()
        return child.pid, session, child.reap()

    pid, session, status = anyio.run(run)
    assert pid == session
    assert status == -signal.SIGKILL


def test_writing_to_a_child_that_reads_nothing_can_be_cancelled() -> None:
    async def run() -> bool:
        child = Child(["sleep", "60"], os.environ)
        try:
            with anyio.move_on_after(0.2) as scope:
                await child.write(b"x" * 10_000_000)
            return scope.cancelled_caught
        finally:
            child.reap()

    assert anyio.run(run)


# --- rollouts that are kept ---


def ref(name: str, stage: int) -> RolloutsRef:
    return RolloutsRef(name, 3, stage, f"{name}/{stage}", 10, 1)


def test_what_a_stage_and_later_ones_are_made_of_is_kept() -> None:
    """In rounds of several stages a question names answers of every earlier one."""
    work = StageWork(
        3,
        1,
        0.0,
        rollouts=(ref("peer", 0),),
        context=(ref("own", 0), ref("peer", 2)),
        result=StageResult(0.5, ref("own", 1)),
    )
    pending = (Train("t", 3, 1, (ref("other", 0),)), PublishReport("r", 3, 0, 0.5, ref("mine", 0)))
    kept = digests_in_use(State(work=work, pending=pending))
    assert kept == {"peer/0", "own/0", "peer/2", "own/1", "other/0", "mine/0"}
    assert digests_in_use(State()) == frozenset()


def test_rollouts_that_cannot_be_removed_end_no_node(tmp_path: Path) -> None:
    (tmp_path / "aa" / ("a" * 64)).mkdir(parents=True)
    node: Any = SimpleNamespace(_blobs=BlobStore(tmp_path), engine=SimpleNamespace(state=State()))
    with capture_logs() as lines:
        anyio.run(Node._prune_blobs, node, 0)
    assert [line["event"] for line in lines] == ["not all old rollouts can be removed"]
    assert str(tmp_path) in lines[0]["error"]
