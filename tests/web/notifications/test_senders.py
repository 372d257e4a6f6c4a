"""Notes get out by real HTTP servers and a real program; what fails says why, in time, and without secrets."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarmd.config import NotifyConfig
from swarmd.errors import ConfigError, NotifyFailed
from swarmd.observe.metrics import Metrics
from swarmd.observe.redaction import service_secrets
from swarmd.observe.status import Status
from swarmd.web.notifications.health_changes import HealthChanges, HealthMessage
from swarmd.web.notifications.notifier import QUEUED_MAX, HealthNotifier, notifier_of
from swarmd.web.notifications.senders import ProgramSender, UrlSender, senders_of
from tests.observe.counting import read
from tests.web.notifications.test_health_changes import DEAD, ILL, STOPPED, WELL

SECRET = "T0K3N-9f8a7b6c5d4e3f2a1b0c"
NOTE = HealthMessage("alpha", "peer", "test", "network", False, "no peer", 60.0, 2, 1000.0, "alpha: network: no peer ✓")


class Receiver(ThreadingHTTPServer):
    """Keeps what was posted; answers with the statuses given, the last one again and again."""

    def __init__(self, statuses: list[int], silent_s: float = 0.0) -> None:
        self.statuses = statuses
        self.silent_s = silent_s
        self.posted: list[tuple[str, dict[str, object]]] = []
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server_port}"

    @property
    def texts(self) -> list[str]:
        return [str(body["message"]) for _, body in self.posted]


class _Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.ended.wait(self.server.silent_s)
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.server.posted.append((self.path, json.loads(body)))
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        if status != 204:  # which has no body
            self.wfile.write(f"no: {self.path} {'x' * 100_000 if status == 400 else ''}".encode())

    def log_message(self, *_: object) -> None:
        """Nothing on the test's own stderr."""


@contextmanager
def receiving(*statuses: int, silent_s: float = 0.0) -> Iterator[Receiver]:
    server = Receiver(list(statuses), silent_s)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_service_gets_the_message() -> None:
    with receiving(204) as server:
        asyncio.run(UrlSender(f"{server.url}/hook/{SECRET}", "key").send(NOTE))
    path, body = server.posted[0]
    assert path == f"/hook/{SECRET}"
    assert (body["message"], body["title"], body["type"]) == (NOTE.text, "swarmd: alpha", "warning")


def test_it_is_tried_again_and_a_failure_shows_no_secret() -> None:
    with receiving(500) as server, pytest.raises(NotifyFailed) as caught:
        asyncio.run(UrlSender(f"{server.url}/hook/{SECRET}?retry=1&wait=0", "notify.urls, entry 1").send(NOTE))
    assert len(server.posted) == 2
    assert SECRET not in str(caught.value), "though the server repeats it"
    assert "error=500" in str(caught.value) and "JSON (notify.urls, entry 1)" in str(caught.value)


def test_a_failure_is_told_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = UrlSender(f"tgram://734251987:{SECRET}/1", "key")
    monkeypatch.setattr(sender, "_notify", lambda note: f"no bot {SECRET}")
    with pytest.raises(NotifyFailed, match=r"Telegram \(key\) did not take the message: no bot \[redacted\]"):
        asyncio.run(sender.send(NOTE))


def test_a_server_that_does_not_answer_costs_a_bounded_time() -> None:
    began = time.monotonic()
    with receiving(200, silent_s=30) as server, pytest.raises(NotifyFailed, match=r"no answer within 0\.2 s"):
        asyncio.run(UrlSender(server.url, "key", send_s=0.2).send(NOTE))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (f"tgram://734251987:{SECRET}/12345/", {f"734251987:{SECRET}", SECRET}),
        (f"discord://{SECRET}/{SECRET[::-1]}", {SECRET, SECRET[::-1]}),
        (f"mailtos://me:{SECRET}@mail.example.org:587", {SECRET}),
        (f"jsons://hooks.example.org/x/{SECRET}", {SECRET}),
        ("ntfys://ntfy.sh/topic", set()),
        ("json://127.0.0.1:8000", set()),
    ],
)
def test_what_a_url_hides_is_known(url: str, secrets: set[str]) -> None:
    found = set(service_secrets(url))
    assert secrets <= found and not any("example" in text or "ntfy" in text for text in found)


def test_no_record_of_the_library_gets_out(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError):
        UrlSender(f"nonsense://{SECRET}", "key")
    with pytest.raises(NotifyFailed):
        asyncio.run(UrlSender(f"json://127.0.0.1:9/{SECRET}?retry=0", "key").send(NOTE))
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


# --- a program ---


def script(path: Path, *lines: str) -> tuple[str, ...]:
    path.write_text("\n".join(("import os, subprocess, sys", *lines)))
    return (sys.executable, str(path))


def test_a_program_gets_the_message_on_its_stdin_and_no_secret_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", SECRET)
    argv = script(
        tmp_path / "take.py",
        f"open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read() + repr(dict(os.environ)))",
    )
    asyncio.run(ProgramSender(argv).send(NOTE))
    got = (tmp_path / "got").read_text()
    assert got.startswith(NOTE.text + "\n")
    assert "'SWARMD_NOTE_LAYER': 'network'" in got and "'SWARMD_NOTE_STATE': 'unwell'" in got
    assert SECRET not in got


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    argv = script(tmp_path / "fail.py", "sys.stderr.write('a' * 9000 + ' the mail server is away'); sys.exit(3)")
    with pytest.raises(NotifyFailed, match=r"status 3: a+ the mail server is away") as caught:
        asyncio.run(ProgramSender(argv).send(NOTE))
    assert len(str(caught.value)) < 600


def test_a_program_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    child = "import os, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sl" + "eep(600)"
    argv = script(
        tmp_path / "hang.py",
        f"subprocess.Popen([sys.executable, '-c', 'import sys; ' + {child!r}, {str(tmp_path / 'pid')!r}]).wait()",
    )
    with pytest.raises(NotifyFailed, match="took more than 5 s, killed"):
        asyncio.run(ProgramSender(argv, run_s=5).send(NOTE))
    pid = int((tmp_path / "pid").read_text())
    assert not alive(pid), "within the wait for the program, its child is gone too"


def test_what_a_program_leaves_behind_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    argv = script(tmp_path / "leave.py", "subprocess.Popen(['sleep', '600'])")
    began = time.monotonic()
    asyncio.run(ProgramSender(argv).send(NOTE))
    assert time.monotonic() - began < 25, "it holds stderr open, and is no reason to wait"


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        threading.Event().wait(0.05)
    return True


# --- configuration ---


def test_ways_are_made_from_the_configuration_with_secrets_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(tmp_path / "hooks", f"# two\njsons://chat.example/{SECRET}\nntfys://{SECRET}\n")
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "bot").write_text(f"tgram://734251987:{SECRET}/1")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    config = NotifyConfig(urls=("file:hooks", "credential:bot"), command=("/bin/cat",))
    found = [(sender.name, sender.shown.split()[0]) for sender in senders_of(config, tmp_path)]
    assert found == [("url", "JSON"), ("url", "ntfy"), ("url", "Telegram"), ("command", "the")]
    assert notifier_of(NotifyConfig(), tmp_path, Metrics()) is None


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    private(tmp_path / "hook", f"jsons://chat.example/{SECRET}").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it") as caught:
        senders_of(NotifyConfig(urls=("file:hook",)), tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", [f"ftp://chat.example/{SECRET}", f"json://[{SECRET}", SECRET, "tgram://", "file:none", "file:empty"]
)
def test_a_wrong_configuration_is_named_without_the_secret(url: str, tmp_path: Path) -> None:
    private(tmp_path / "empty", "\n")
    with pytest.raises(ConfigError) as caught:
        senders_of(NotifyConfig(urls=(url,)), tmp_path)
    assert SECRET not in str(caught.value) and str(caught.value)


# --- the task ---


class Slow:
    """A sender that is stuck until told."""

    name = shown = "url"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.enough = asyncio.Event()
        self.sent: list[HealthMessage] = []

    async def send(self, note: HealthMessage) -> None:
        await self.go.wait()
        self.sent.append(note)
        if len(self.sent) >= QUEUED_MAX:
            self.enough.set()


class Broken:
    """A sender with a fault in it."""

    name = shown = "command"

    async def send(self, note: HealthMessage) -> None:
        raise ZeroDivisionError


def test_the_task_tells_of_a_dead_daemon_by_every_way_whatever_the_others_do(tmp_path: Path) -> None:
    metrics, now = Metrics(), [0.0]

    async def live(url: str) -> None:
        status = WELL
        notifier = HealthNotifier(
            HealthChanges(60, 900), [Slow(), Broken(), UrlSender(url, "key")], metrics, clock=lambda: now[0]
        )
        task = asyncio.create_task(notifier.run(lambda: status, 0.01))
        async with asyncio.timeout(60):
            while not count("url", "done"):
                status = DEAD
                now[0] += 10
                await asyncio.sleep(0.01)
        task.cancel()

    def count(sender: str, outcome: str) -> float:
        return read(metrics)["swarmd_notifications_total", outcome, sender]

    with receiving(200) as server:
        asyncio.run(live(server.url))
    assert len(server.posted) == 1 and "killed or crashed" in server.texts[0]
    assert count("command", "failed") == 1, "a fault of ours is counted, too"
    assert count("url", "done") == 1


def test_an_orderly_stop_is_told_before_this_process_ends(tmp_path: Path) -> None:
    async def live(url: str, last: Status) -> None:
        notifier = HealthNotifier(HealthChanges(60, 900), [UrlSender(url, "key")], Metrics())

        async def end() -> Status:
            return last

        task = asyncio.create_task(notifier.run(lambda: WELL, 0.01, end))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()

    with receiving(200) as server:
        asyncio.run(live(server.url, WELL))
        assert server.posted == [], "its own end is no news while the daemon runs"
        asyncio.run(live(server.url, STOPPED))
    assert server.texts == ["alpha: the node ends: stopped in order, exit code 0: the operator asked for it"]


def test_a_stuck_sender_keeps_a_bounded_number_of_notes() -> None:
    metrics, now = Metrics(), [0.0]

    async def live() -> Slow:
        slow = Slow()
        notifier = HealthNotifier(HealthChanges(1, 1), [slow], metrics, clock=lambda: now[0])
        task = asyncio.create_task(notifier.run(lambda: None, 0.01))
        for _ in range(2 * QUEUED_MAX):
            for status in (ILL, ILL, WELL, WELL):
                notifier.look(replace(status, at=now[0]))
                now[0] += 1.0
        slow.go.set()
        async with asyncio.timeout(60):
            await slow.enough.wait()
        task.cancel()
        return slow

    slow = asyncio.run(live())
    failed = read(metrics)["swarmd_notifications_total", "failed", "url"]
    assert failed > QUEUED_MAX
    assert [note.at for note in slow.sent] == sorted(note.at for note in slow.sent)
    assert slow.sent[-1].at > 6 * QUEUED_MAX, "the oldest were let go"
