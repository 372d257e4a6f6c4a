"""One page of several nodes: rows of nodes that run, are dead, are elsewhere or do not answer, and what it costs."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from swarmd.cli.dashboard import is_address
from swarmd.cli.status import read_status
from swarmd.core.values import PeerTokens
from swarmd.errors import ControlError
from swarmd.observe.status import Status
from swarmd.observe.tokens import TokensStatus
from swarmd.paths import NodeDirectory
from swarmd.web import nodes
from swarmd.web.nodes import LocalNode, NodesSource, RemoteNode, describe_row
from tests.web.serving import COORDINATOR, FOLLOWER, copy_of


def local(root: Path, log: Path) -> LocalNode:
    paths = NodeDirectory(copy_of(log, root))
    return LocalNode(paths, partial(read_status, paths, None))


class Silent:
    """A node that does not answer before the test lets it."""

    place = "silent:1"

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0

    def ask(self) -> tuple[Status, str]:
        self.asked += 1
        self.release.wait(30)
        raise ControlError("its page does not answer")


@pytest.mark.anyio
async def test_each_node_is_a_row_and_one_that_is_silent_holds_nobody_up(tmp_path: Path) -> None:
    silent = Silent()
    members: Any = [local(tmp_path / "a", COORDINATOR), local(tmp_path / "b", FOLLOWER), silent]
    source = NodesSource(members)
    started = time.monotonic()
    view = await source.view()
    while not all(row.at for row in view.nodes[:2]) and time.monotonic() < started + 20:
        await anyio.sleep(0.1)
        view = await source.view()
    assert silent.asked == 1, "one question to a node at a time"
    first, second, third = view.nodes
    assert first.role == "coordinator" and second.role == "follower" and first.points
    assert (third.state, third.at) == ("being asked", 0.0)
    silent.release.set()
    while view.nodes[2].state == "being asked":
        await anyio.sleep(0.05)
        view = await source.view()
    assert (view.nodes[2].state, view.nodes[2].healthy) == ("unreachable", False)
    assert "does not answer" in view.nodes[2].attention[0]


@pytest.mark.anyio
async def test_nodes_are_asked_no_more_often_than_every_few_seconds(tmp_path: Path) -> None:
    silent = Silent()
    silent.release.set()
    members: Any = [silent]
    source = NodesSource(members)
    for _ in range(20):
        await source.view()
    assert silent.asked == 1


def test_the_log_of_a_dead_node_is_read_again_only_when_it_grew(tmp_path: Path) -> None:
    node = local(tmp_path / "a", COORDINATOR)
    read: list[int] = []
    status = node.read()

    def count() -> Status:
        read.append(1)
        return status

    node.read = count
    for _ in range(3):
        node.ask()
    assert len(read) == 1
    segment = sorted(node.paths.events.glob("*.seg"))[-1]
    with segment.open("ab") as file:
        file.write(b"x")
    node.ask()
    assert len(read) == 2


def test_a_row_says_what_wants_attention_and_who_taught_it(tmp_path: Path) -> None:
    status = local(tmp_path / "a", COORDINATOR).read()
    row = describe_row("a", "", status)
    assert len(row.attention) == 1 and row.attention[0].startswith("process: "), "of a dead node only that"
    tokens = TokensStatus(10, 4, 6, 0, 0, 0, 0, 0, (PeerTokens("bob", 7), PeerTokens("", 2)), "")
    told = describe_row("a", "", msgspec.structs.replace(status, tokens=tokens))
    assert (told.taught_by, told.generated, told.trained) == ({"bob": 7}, 10, 4)


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [(401, b"{}", "wants a token"), (200, b"<html>", "without a status"), (503, b'{"detail": "x"}', "answers 503")],
)
def test_what_a_page_elsewhere_answers_wrongly_is_said(
    monkeypatch: pytest.MonkeyPatch, code: int, body: bytes, words: str
) -> None:
    monkeypatch.setattr(nodes, "send_request", lambda *args: (code, body))
    with pytest.raises(ControlError, match=words):
        RemoteNode("http://10.0.0.7:8800").ask()


def test_a_page_elsewhere_is_asked_with_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = local(tmp_path / "a", COORDINATOR).read()
    asked: list[Any] = []

    def answer(request: Any, *rest: object) -> tuple[int, bytes]:
        asked.append(request)
        return 200, msgspec.json.encode(status)

    monkeypatch.setattr(nodes, "send_request", answer)
    told, url = RemoteNode("http://10.0.0.7:8800", "secret").ask()
    assert (told.peer, url) == (status.peer, "http://10.0.0.7:8800")
    assert asked[0].headers == {"authorization": "Bearer secret"} and asked[0].url.endswith("/api/v1/node/status")


def test_addresses_are_told_from_directories(tmp_path: Path) -> None:
    assert all(map(is_address, ("10.0.0.7:8800", "localhost:8800", "https://node.example.org")))
    assert not any(map(is_address, (str(tmp_path), "alice", "./a:8800/b")))
