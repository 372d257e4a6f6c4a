"""The process beside a node: it comes with it, ends with it, comes again when it dies, and is never an event."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from swarmd.config import Config, NotifyConfig, SwarmConfig, WebConfig, encode
from swarmd.core.events import WorkerExited, WorkerStarted
from swarmd.daemon.companion import is_web_process_wanted
from swarmd.errors import ExitCode
from swarmd.http_server import Address
from swarmd.uvicorn_server import bind
from swarmd.web import companion
from tests.daemon.node import FakeNode, fake_node, is_alive
from tests.web.serving import FOLLOWER, copy_of, until


@contextlib.contextmanager
def paged_node(directory: Path, listen: str = "127.0.0.1:0", more: str = "") -> Iterator[FakeNode]:
    """A daemon with scripted workers and a page."""
    with fake_node(directory) as node:
        text = node.config.read_text()
        node.config.write_text(f'{text}\n[web]\nlisten = "{listen}"\n{more}')
        node.start()
        yield node


def url_of(node: FakeNode) -> str:
    """Where the newest page is served, as the daemon's log says."""

    def latest() -> str:
        urls = [line["url"] for line in node.lines() if line.get("message") == "the page is served"]
        return str(urls[-1]) if urls else ""

    return until(latest)


def get(url: str, path: str) -> Any:
    return httpx.get(url + path, timeout=10, trust_env=False).json()


def companion_pid(node: FakeNode) -> int:
    """The process that carries the node's tag and serves."""

    def find() -> int:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                tagged = str(node.paths.root).encode() in (entry / "environ").read_bytes()
                if b"swarmd.web" in words and tagged:
                    return int(entry.name)
        return 0

    return until(find)


def test_a_nodes_page_comes_with_it_comes_again_when_it_dies_and_goes_with_it(tmp_path: Path) -> None:
    with paged_node(tmp_path) as node:
        first = url_of(node)
        until(lambda: get(first, "/api/v1/node/status").get("source") == "daemon")
        assert get(first, "/livez") == {"ok": True, "reasons": []}
        assert until(lambda: get(first, "/api/v1/swarm")["swarm"]) == "test"
        assert "swarmd_daemon_up 1.0" in httpx.get(f"{first}/metrics", timeout=10, trust_env=False).text
        os.kill(companion_pid(node), signal.SIGKILL)
        assert until(lambda: node.status().get("notes"))
        assert until(lambda: url_of(node) != first and not node.status()["notes"])
        assert get(url_of(node), "/livez")["ok"] is True
        lines = [line["level"] for line in node.lines() if line.get("logger") == "swarmd.companion"]
        assert lines == ["info", "warning", "info"]
        workers = {event.worker for event in node.events() if isinstance(event, WorkerStarted | WorkerExited)}
        assert workers == {"network", "trainer"}
        pid = companion_pid(node)
        assert node.stop() == ExitCode.OK
        assert not is_alive(pid)


def test_a_taken_port_is_a_warning_and_a_note_in_the_status(tmp_path: Path) -> None:
    with bind(Address("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with paged_node(tmp_path, listen) as node:
            (note,) = until(lambda: node.status().get("notes"))
            assert listen in note and "cannot be listened on" in note
            assert node.status()["process"]["healthy"]
            assert node.stop() == ExitCode.OK


def test_a_killed_daemon_leaves_no_page_behind_not_even_one_that_hangs(tmp_path: Path) -> None:
    with paged_node(tmp_path) as node:
        url_of(node)
        pid = companion_pid(node)
        node.signal(signal.SIGKILL)
        node.wait()
        until(lambda: not is_alive(pid))
        node.start()
        hanging = companion_pid(node)
        os.kill(hanging, signal.SIGSTOP)
        node.signal(signal.SIGKILL)
        node.wait()
        assert is_alive(hanging)
        node.start()  # finds it by the node's tag
        until(lambda: not is_alive(hanging))
        assert node.stop() == ExitCode.OK


@pytest.mark.parametrize(
    ("config", "environment", "wanted"),
    [
        (Config(SwarmConfig("a")), {}, False),
        (Config(SwarmConfig("a"), web=WebConfig(listen="127.0.0.1:0")), {}, True),
        (Config(SwarmConfig("a"), notify=NotifyConfig(urls=("jsons://hook.example",))), {}, True),
        (Config(SwarmConfig("a"), notify=NotifyConfig(command=("true",))), {}, True),
        (Config(SwarmConfig("a")), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://receiver.example"}, True),
    ],
)
def test_it_is_there_for_a_page_for_notifications_or_to_push_metrics(
    config: Config, environment: dict[str, str], wanted: bool
) -> None:
    assert is_web_process_wanted(config, environment) is wanted


# --- the process alone ---


def started(config: Config, root: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "swarmd.web"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    process.stdin.write(msgspec.json.encode(companion.WebProcessSetup(encode(config), str(root))) + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("web", [WebConfig(listen="127.0.0.1:0"), WebConfig()], ids=["page", "messages"])
def test_it_ends_in_order_while_its_input_is_open(tmp_path: Path, web: WebConfig) -> None:
    notify = NotifyConfig(command=("true",))
    process = started(Config(SwarmConfig("a"), web=web, notify=notify), copy_of(FOLLOWER, tmp_path))
    assert process.stdout and process.stdout.readline()
    process.terminate()
    assert process.wait(20) == 0 and process.stderr and b"Fatal" not in process.stderr.read()


def test_it_watches_without_a_page_and_stays_to_tell_of_the_daemons_end(tmp_path: Path) -> None:
    out = tmp_path / "told"
    notify = NotifyConfig(command=("/bin/sh", "-c", f"cat >> {out}; echo >> {out}"), after_s=0.2)
    process = started(Config(SwarmConfig("a"), notify=notify), copy_of(FOLLOWER, tmp_path))
    assert process.stdin and process.stdout
    assert process.stdout.readline() == b"\n", "it runs, and has no page"
    process.stdin.close()
    try:
        assert "signal SIGTERM" in until(lambda: out.read_text() if out.exists() and out.stat().st_size else "")
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(20)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("web", "word", "code"),
    [
        (WebConfig(listen="0.0.0.0:0"), b"asks for no token", ExitCode.BAD_CONFIG),
        (WebConfig(listen="nonsense"), b"HOST:PORT", ExitCode.BAD_CONFIG),
        (WebConfig(listen="127.0.0.1:0", token="none"), b"none", ExitCode.NO_INPUT),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, web: WebConfig, word: bytes, code: int) -> None:
    process = started(Config(SwarmConfig("a"), web=web), copy_of(FOLLOWER, tmp_path))
    _, error = process.communicate(timeout=20)
    assert word in error and b"Traceback" not in error
    assert process.returncode == code


def test_neither_the_page_nor_its_process_loads_what_is_heavy(tmp_path: Path) -> None:
    heavy = ("torch", "hivemind", "transformers", "web3", "pydantic", "aiohttp", "numpy", "matplotlib", "eth_account")
    modules = "swarmd.web.companion, swarmd.cli.dashboard"
    program = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
