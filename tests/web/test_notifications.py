"""Notes get out by real HTTP servers and a real program; what fails says why, in time, and without secrets."""

import asyncio
import io
import json
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.cli import run_command
from swarmd.cli.notify import describe_unit_exit
from swarmd.config import NotifyConfig
from swarmd.errors import ConfigError, ExitCode, NotifyFailed
from swarmd.observe.metrics import Metrics
from swarmd.observe.redaction import find_service_secrets
from swarmd.observe.status import Status, status_of
from swarmd.web.notifications import (
    QUEUED_MAX,
    START_S,
    HealthChanges,
    HealthMessage,
    HealthNotifier,
    NotifierStateFile,
    ProgramSender,
    UrlSender,
    make_notifier,
    make_senders,
)
from tests.daemon.node import FakeNode, fake_node
from tests.observe.counting import read
from tests.observe.test_onchain import STATE as ON_CHAIN
from tests.observe.test_onchain import paying, told
from tests.observe.test_status import LIVE, LOG, NOW, STATE
from tests.receiver import Receiver, receiving

SECRET = "T0K3N-9f8a7b6c5d4e3f2a1b0c"
NOTE = HealthMessage("alpha", "network", False, "alpha: network: no peer ✓")


def url_of(server: Receiver) -> str:
    """As Apprise names it."""
    return f"json://127.0.0.1:{server.server_port}"


def posted(server: Receiver) -> list[dict[str, str]]:
    return [json.loads(post.body) for post in server.posted]


def texts(server: Receiver) -> list[str]:
    return [body["message"] for body in posted(server)]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_service_gets_the_message() -> None:
    with receiving(204) as server:
        asyncio.run(UrlSender(f"{url_of(server)}/hook/{SECRET}", "key").send(NOTE))
    (body,) = posted(server)
    assert server.posted[0].path == f"/hook/{SECRET}"
    assert (body["message"], body["title"], body["type"]) == (NOTE.text, "swarmd: alpha", "warning")


def test_it_is_tried_again_and_a_failure_shows_no_secret() -> None:
    with receiving(500) as server, pytest.raises(NotifyFailed) as caught:
        asyncio.run(UrlSender(f"{url_of(server)}/hook/{SECRET}?retry=1&wait=0", "notify.urls, entry 1").send(NOTE))
    assert len(server.posted) == 2
    assert SECRET not in str(caught.value), "though the server repeats it"
    assert "error=500" in str(caught.value) and "JSON (notify.urls, entry 1)" in str(caught.value)


def test_a_failure_is_told_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = UrlSender(f"tgram://734251987:{SECRET}/1", "key")
    monkeypatch.setattr(sender, "_notify_service", lambda note: f"no bot {SECRET}")
    with pytest.raises(NotifyFailed, match=r"Telegram \(key\) did not take the message: no bot \[redacted\]"):
        asyncio.run(sender.send(NOTE))


def test_a_server_that_does_not_answer_costs_a_bounded_time() -> None:
    began = time.monotonic()
    with receiving(200, silent_s=30) as server, pytest.raises(NotifyFailed, match=r"no answer within 0\.2 s"):
        asyncio.run(UrlSender(url_of(server), "key", send_s=0.2).send(NOTE))
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
    found = set(find_service_secrets(url))
    assert secrets <= found and not any("example" in text or "ntfy" in text for text in found)


def test_no_record_of_the_library_gets_out(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()  # caplog is given what a logger keeps to itself, too
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(written)])
    word = "hunter2"  # Apprise itself covers what looks like a token
    with pytest.raises(ConfigError):
        UrlSender(f"nonsense://{word}", "key")
    with pytest.raises(NotifyFailed):
        asyncio.run(UrlSender(f"json://127.0.0.1:9/{word}?retry=0", "key").send(NOTE))
    assert word not in written.getvalue() + "".join(capfd.readouterr())


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
    found = [(sender.name, sender.shown.split()[0]) for sender in make_senders(config, tmp_path)]
    assert found == [("url", "JSON"), ("url", "ntfy"), ("url", "Telegram"), ("command", "the")]
    assert make_notifier(NotifyConfig(), tmp_path, Metrics()) is None


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    private(tmp_path / "hook", f"jsons://chat.example/{SECRET}").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it") as caught:
        make_senders(NotifyConfig(urls=("file:hook",)), tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", [f"ftp://chat.example/{SECRET}", f"json://[{SECRET}", SECRET, "tgram://", "file:none", "file:empty"]
)
def test_a_wrong_configuration_is_named_without_the_secret(url: str, tmp_path: Path) -> None:
    private(tmp_path / "empty", "\n")
    with pytest.raises(ConfigError) as caught:
        make_senders(NotifyConfig(urls=(url,)), tmp_path)
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
        asyncio.run(live(url_of(server)))
    assert len(server.posted) == 1 and "killed or crashed" in texts(server)[0]
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
        asyncio.run(live(url_of(server), WELL))
        assert server.posted == [], "its own end is no news while the daemon runs"
        asyncio.run(live(url_of(server), STOPPED))
    assert texts(server) == ["alpha: the node ends: stopped in order, exit code 0: the operator asked for it"]


def test_a_stuck_sender_keeps_a_bounded_number_of_notes() -> None:
    metrics, now = Metrics(), [0.0]
    queued: list[HealthMessage] = []

    async def live() -> Slow:
        slow = Slow()
        notifier = HealthNotifier(HealthChanges(1, 1), [slow], metrics, clock=lambda: now[0])
        task = asyncio.create_task(notifier.run(lambda: None, 0.01))
        for _ in range(2 * QUEUED_MAX):
            for status in (ILL, ILL, WELL, WELL):
                queued.extend(notifier.handle_status(replace(status, at=now[0])))
                now[0] += 1.0
        slow.go.set()
        async with asyncio.timeout(60):
            await slow.enough.wait()
        task.cancel()
        return slow

    slow = asyncio.run(live())
    failed = read(metrics)["swarmd_notifications_total", "failed", "url"]
    assert failed > QUEUED_MAX
    places = [next(place for place, each in enumerate(queued) if each is note) for note in slow.sent]
    assert places == sorted(places)
    assert places[-1] > 0.75 * len(queued), "the oldest were let go"


AFTER_S, QUIET_S, STEP_S = 60.0, 900.0, 5.0
WELL = status_of(STATE, NOW, LOG, LIVE, "1.0")
DEAD = status_of(STATE, NOW, LOG)
STOPPED = status_of(replace(STATE, chart="stopped", stop_reason="the operator asked for it"), NOW, LOG)
FAILED = status_of(replace(STATE, chart="failed", stop_reason="no space", exit_code=73), NOW, LOG)
MUTE = status_of(STATE, NOW, LOG, mute="the daemon does not answer")
ILL = replace(WELL, network=replace(WELL.network, healthy=False, reason="no peer\nand more"))
BOTH = replace(ILL, training=replace(WELL.training, healthy=False, reason="loading the model"))


def watch(
    history: Iterable[tuple[float, Status]], edges: HealthChanges | None = None
) -> list[tuple[float, HealthMessage]]:
    """Live through the history, (seconds, how it is meanwhile) after one another; what was told, and when."""
    edges, now, told = edges or HealthChanges(AFTER_S, QUIET_S), 0.0, []
    for lasts_s, status in history:
        end = now + lasts_s
        while now < end:
            told += [(now, note) for note in edges.messages_due(replace(status, at=now), now)]
            now += STEP_S
    return told


def said(told: list[tuple[float, HealthMessage]]) -> list[tuple[str, bool]]:
    return [(note.layer, note.well) for _, note in told]


def test_a_lasting_trouble_is_told_once_with_its_reason_and_its_end_once() -> None:
    told = watch([(300, WELL), (2000, ILL), (2000, WELL)])
    assert said(told) == [("network", False), ("network", True)]
    (at, ill), (well_at, well) = told
    assert at == 360 and well_at == 2360
    assert ill.text == "alpha: network has not been well for 1m 0s: no peer"
    assert well.text == "alpha: network is well again after 33m 20s; it was: no peer"
    assert ill.node == "alpha"


@pytest.mark.parametrize(("ill_s", "well_s"), [(10, 10), (5, 50), (120, 120), (55, 200), (400, 400)])
def test_a_flapping_layer_causes_one_message(ill_s: float, well_s: float) -> None:
    flapping = [(ill_s, ILL), (well_s, WELL)] * 40
    told = watch(flapping)
    if ill_s < AFTER_S <= well_s:
        assert told == [], "each trouble is short, and is over before the next"
        return
    assert said(told) == [("network", False)]
    calm = watch([*flapping, (2000, WELL)])
    assert said(calm) == [("network", False), ("network", True)]
    summed_up = re.search(r"it came and went (\d+) times", calm[1][1].text)
    assert summed_up and int(summed_up[1]) >= 20


def test_what_came_and_went_in_the_quiet_time_is_summed_up() -> None:
    told = watch([(1200, ILL), (100, WELL), (200, ILL), (3000, WELL)])
    assert said(told) == [("network", False), ("network", True), ("network", True)]
    assert told[-1][1].text == "alpha: network is well again after 3m 20s; it was: no peer"


LIVES = [replace(WELL, process=replace(WELL.process, run=f"r{run}", age_s=5.0)) for run in range(40)]
UPGRADED = replace(WELL, process=replace(WELL.process, run="r2"))
YOUNG = replace(BOTH, process=replace(BOTH.process, age_s=START_S - 1))


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([(300, WELL), (3000, DEAD)], "it was killed or crashed"),  # its other layers are not well either, of course
        ([(300, WELL), (90_000, STOPPED)], "stopped in order, exit code 0: the operator asked for it"),
        ([(300, FAILED)], "exit code 73: no space"),
        ([(300, WELL), (100, MUTE)], "does not answer"),
        ([(300, WELL), (30, STOPPED), (3000, UPGRADED)], ""),
        ([(20, life) for life in LIVES], "started again"),  # though each look finds a daemon
        ([(500, YOUNG)], ""),  # a starting node is not judged by its layers
    ],
    ids=["died", "stopped", "failed", "hangs", "upgraded", "a crash loop", "starts"],
)
def test_what_becomes_of_a_daemon_is_told_once_and_nothing_else(
    history: list[tuple[float, Status]], words: str
) -> None:
    told = watch(history)
    assert said(told) == [("process", False)] * bool(words)
    assert all(words in note.text for _, note in told)


def test_a_node_of_which_nothing_is_heard_any_more_is_told() -> None:
    edges, told = HealthChanges(AFTER_S, QUIET_S), []
    for now in range(0, 200, 5):
        told += edges.messages_due(replace(WELL, at=min(float(now), 20.0)), float(now))
    (note,) = told
    assert note.layer == "process" and "neither its daemon nor its log says anything" in note.text
    assert watch([(3 * QUIET_S, WELL)], edges)[-1][1].well


def test_a_reason_is_short_and_without_secrets() -> None:
    secret = replace(ILL, network=replace(ILL.network, reason="token=hunter2hunter2 " + "x" * 5000))
    note = watch([(100, secret)])[0][1]
    assert "hunter2" not in note.text and len(note.text) < 500


spells = st.lists(st.tuples(st.sampled_from([5, 20, 55, 60, 100, 300, 850, 905, 1500]), st.booleans()), max_size=16)


@settings(max_examples=40, deadline=None)
@example([(1500, False), (60, True), (100, False), (1500, True)])
@example([(905, False), (60, True)] * 10)
@given(spells)
def test_no_sequence_gives_more_than_is_promised(told_spells: list[tuple[float, bool]]) -> None:
    history = [(lasts_s, WELL if well else ILL) for lasts_s, well in told_spells]
    told = watch(history)
    times = [at for at, _ in told]
    assert all(later - earlier >= QUIET_S for earlier, later in pairwise(times))
    for (_, earlier), (_, later) in pairwise(told):
        assert later.well or earlier.well, "of two notes in a row that it is ill, one would be too much"
    calm = watch([*history, (3 * QUIET_S, WELL)])
    assert not calm or calm[-1][1].well, "in the end everybody knows that it is well"
    ill = watch([*history, (3 * QUIET_S, ILL)])
    assert ill and not ill[-1][1].well, "or that it is not"


def test_an_account_that_will_soon_be_unable_to_pay_is_told_of() -> None:
    able, poor = (replace(WELL, chain=told(ON_CHAIN, paying(rounds)).chain) for rounds in (40.0, 3.0))
    notes = watch([(300, able), (600, poor), (2000, able)])
    assert said(notes) == [("account", False), ("account", True)]
    assert "the account pays for about 3 more rounds: send coins to" in notes[0][1].text


class Beside:
    """The process beside one life of a daemon."""

    def __init__(self, directory: Path, clock: list[float]) -> None:
        self.clock = clock
        self.memory = NotifierStateFile(directory)
        self.notifier = HealthNotifier(HealthChanges(60, 900), [], Metrics(), self.memory, lambda: clock[0])

    def live(self, status: Status, lasts_s: float) -> list[HealthMessage]:
        end = self.clock[0] + lasts_s
        notes: list[HealthMessage] = []
        while self.clock[0] < end:
            notes += self.notifier.handle_status(status)
            self.clock[0] += 5
        return notes


def test_a_crash_loop_is_told_once_by_all_processes_together(tmp_path: Path) -> None:
    clock = [1000.0]
    notes: list[HealthMessage] = []
    for life in range(30):
        beside = Beside(tmp_path / "run", clock)
        running = replace(WELL, process=replace(WELL.process, run=f"r{life}"))
        notes += beside.live(running, 10) + beside.live(DEAD, 10)
        beside.memory.release_lock()
    assert [(note.layer, note.well) for note in notes] == [("process", False)]


def test_the_next_process_tells_that_it_is_well_again(tmp_path: Path) -> None:
    clock = [1000.0]
    first = Beside(tmp_path, clock)
    assert len(first.live(ILL, 1200)) == 1
    first.memory.release_lock()
    second = Beside(tmp_path, clock)
    notes = second.live(WELL, 300)
    assert [note.text for note in notes] == ["alpha: network is well again after 20m 0s; it was: no peer"]


def test_while_one_tells_the_next_looks_on(tmp_path: Path) -> None:
    clock = [1000.0]
    first, second = Beside(tmp_path, clock), Beside(tmp_path, clock)
    assert first.live(DEAD, 30) == []
    assert second.live(DEAD, 300) == [], "the first one holds the word"
    first.memory.release_lock()
    assert len(second.live(DEAD, 300)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b'{"tracks": 7}', b'{"tracks": {"process": {}}}'])
def test_a_memory_that_makes_no_sense_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notify.json").write_bytes(content)
    assert len(Beside(tmp_path, [1000.0]).live(DEAD, 300)) == 1


def test_a_directory_that_cannot_be_written_to_forbids_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(Beside(tmp_path / "file" / "run", [1000.0]).live(DEAD, 300)) == 1


HEAD = 'name = "alpha"\nrole = "coordinator"\n[swarm]\nid = "test"\n[notify]\n'


def test_a_test_message_goes_out_by_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = script(tmp_path / "take.py", f"open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())")
    with receiving(200) as server:
        (tmp_path / "node.toml").write_text(f'{HEAD}urls = ["{url_of(server)}/x"]\ncommand = {list(argv)}\n')
        assert run_command(["notify", "--config", str(tmp_path / "node.toml")]) == ExitCode.OK
    assert texts(server)[0] == "alpha: this is a test"
    assert (tmp_path / "got").read_text() == "alpha: this is a test\n"
    assert capsys.readouterr().out.split("\n")[:2] == [
        "JSON (notify.urls, entry 1): sent",
        f"the program {sys.executable}: sent",
    ]


def test_without_any_way_it_says_which_keys_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text(HEAD)
    assert run_command(["notify", "-c", str(tmp_path / "node.toml")]) == ExitCode.BAD_CONFIG
    assert "Write below [notify] for example urls =" in capsys.readouterr().err


def test_of_a_unit_nobody_is_told_where_nobody_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text(HEAD)
    call = ["notify", "-c", str(tmp_path / "node.toml"), "--unit", "swarmd.service"]
    assert run_command(call) == ExitCode.OK
    assert "nobody is told of swarmd.service" in capsys.readouterr().out


def test_a_services_secrets_lie_in_its_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration lies elsewhere, and calls that place its data, as `join` writes it."""
    config, data = tmp_path / "etc" / "node.toml", tmp_path / "lib"
    config.parent.mkdir()
    data.mkdir()
    config.write_text(f'data = "."\n{HEAD}urls = ["file:service.url"]\n')
    call = ["notify", "-c", str(config), "--unit", "swarmd.service"]
    with receiving(200) as server:
        (data / "service.url").write_text(url_of(server))
        (data / "service.url").chmod(0o600)
        assert run_command([*call, "--data", str(data)]) == ExitCode.OK
    assert "swarmd.service ended" in texts(server)[0]
    assert run_command(call) == ExitCode.NO_INPUT, "which is a failure of the unit that calls it"
    assert "service.url" in capsys.readouterr().err


def test_the_end_of_a_unit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_SERVICE_RESULT", "exit-code")
    monkeypatch.setenv("MONITOR_EXIT_CODE", "exited")
    monkeypatch.setenv("MONITOR_EXIT_STATUS", "78")
    with receiving(200) as server:
        (tmp_path / "node.toml").write_text(f'{HEAD}urls = ["{url_of(server)}"]\n')
        assert run_command(["notify", "-c", str(tmp_path / "node.toml"), "--unit", "swarmd.service"]) == ExitCode.OK
    assert texts(server)[0] == (
        "alpha: swarmd.service ended: it ended by itself, exit code 78: the configuration is wrong, or asks for what "
        "this machine has not"
    )
    assert posted(server)[0]["type"] == "warning"


@pytest.mark.parametrize(
    ("result", "code", "status", "words"),
    [
        ("watchdog", "killed", "ABRT", "it gave no sign of life, by SIGABRT"),
        ("oom-kill", "killed", "KILL", "memory ran out, by SIGKILL"),
        ("exit-code", "exited", "1", "it ended by itself, exit code 1"),
        ("start-limit-hit", "", "", "it failed too often to be started again"),
        ("", "", "", "the service manager does not say how it ended"),
    ],
)
def test_systemds_words_are_put_into_ours(result: str, code: str, status: str, words: str) -> None:
    environ = {"MONITOR_SERVICE_RESULT": result, "MONITOR_EXIT_CODE": code, "MONITOR_EXIT_STATUS": status}
    assert describe_unit_exit(environ) == words


# --- a real daemon with scripted workers ---


@contextmanager
def telling(directory: Path) -> Iterator[tuple[FakeNode, Receiver]]:
    """A node that runs, and who it tells of its health after a second."""
    with receiving(200) as server, fake_node(directory, rounds=2, silent_s=60.0) as node:
        with node.config.open("a") as file:
            file.write(f'[notify]\nurls = ["{url_of(server)}"]\nafter_s = 1\n')
        node.run_rounds()
        node.until(lambda: (node.paths.sockets / "notify.json").exists())
        yield node, server


def test_a_stop_is_told_once_and_a_start_soon_after_not_at_all(tmp_path: Path) -> None:
    with telling(tmp_path) as (node, server):
        assert node.stop() == 0
        node.until(lambda: texts(server))
        node.run_rounds()
        assert node.stop() == 0
    assert len(server.posted) == 1
    assert ": the node ends: " in texts(server)[0] and "SIGTERM" in texts(server)[0]


def test_a_daemon_that_is_killed_is_told_of_by_the_process_beside_it(tmp_path: Path) -> None:
    with telling(tmp_path) as (node, server):
        node.signal(signal.SIGKILL)
        node.until(lambda: texts(server))
    assert len(server.posted) == 1
    assert "has not run well for" in texts(server)[0] and "it was killed or crashed" in texts(server)[0]
