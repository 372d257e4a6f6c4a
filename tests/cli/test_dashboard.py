"""`swarmd dashboard` and `swarmd replay --web`, as a person starts them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from swarmd.core.events import tag_of
from swarmd.errors import ExitCode
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.reader import read_commits
from swarmd.http_server import Address
from swarmd.uvicorn_server import bind
from tests.web.serving import COORDINATOR, FOLLOWER, copy_of, until

TOKEN = "0123456789abcdef0123456789abcdef"
CONFIG = """
role = "coordinator"
data = "."
[swarm]
id = "local"
kind = "digits"
[web]
listen = "127.0.0.1:0"
token = "web.token"
"""


@contextlib.contextmanager
def running(*args: str) -> Iterator[str]:
    """The command in a process of its own, and the URL that it prints; it ends with Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "swarmd", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("http://"), line + process.stdout.read()
        yield line.split()[0].rstrip("/")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, ExitCode.INTERRUPTED, -signal.SIGINT)
    finally:
        process.kill()
        process.wait()


def get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, timeout=20, trust_env=False)


def json_of(url: str) -> Any:
    return get(url).json()


def test_a_data_directory_is_shown(tmp_path: Path) -> None:
    with running(
        "dashboard", str(copy_of(FOLLOWER, tmp_path)), "--listen", "127.0.0.1:0", "--host", "x.example"
    ) as url:
        until(lambda: json_of(f"{url}/api/v1/here")["name"])
        here = json_of(f"{url}/api/v1/here")
        assert (here["name"], here["live"]) == (load_state(FOLLOWER / "events")[0].settings.name, True)
        assert get(f"{url}/").headers["content-type"].startswith("text/html")
        assert get(f"{url}/api/v1/here", Host="x.example").status_code == 200


def test_a_configuration_says_what_to_show_and_to_whom(tmp_path: Path) -> None:
    copy_of(COORDINATOR, tmp_path)
    (tmp_path / "node.toml").write_text(CONFIG)
    (tmp_path / "web.token").write_text(TOKEN)
    (tmp_path / "web.token").chmod(0o600)
    with running("dashboard", "--config", str(tmp_path / "node.toml")) as url:
        assert get(f"{url}/api/v1/swarm").status_code == 401
        answer = get(f"{url}/api/v1/swarm", Authorization=f"Bearer {TOKEN}")
        assert answer.json()["kind"] == "digits"


def test_an_archive_is_shown_on_any_port_that_is_free(tmp_path: Path) -> None:
    copy_of(COORDINATOR, tmp_path)
    *_, last = (tag_of(event) for commit in read_commits(tmp_path / "events") for event in commit.events)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Exception):
            stack.enter_context(bind(Address("127.0.0.1", 8800)))
        url = stack.enter_context(running("replay", "--web", str(tmp_path)))
        assert not url.endswith(":8800")
        assert json_of(f"{url}/api/v1/here")["live"] is False
        ended = f"{url}/api/v1/node/events?first=-1"
        assert until(lambda: [each["type"] for each in json_of(ended)["events"]] == [last])
