"""Server-sent events: soon after the commit, once each, again for who comes back, and never more than a bound."""

import asyncio
import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.core.events import MemberSeen
from swarmd.core.state import State
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import load_state
from swarmd.observe.status import Status
from swarmd.web import shapes, stream
from swarmd.web.endpoints import ServerBusy
from swarmd.web.node import NodeLogSource
from swarmd.web.stream import CLIENTS_MAX, Client
from tests.core.story import Story, coordinator_settings
from tests.eventlog.making import follower_story, open_log, write_story
from tests.web.serving import FOLLOWER, LONG_S, Listener, Served, copy_of, served, until
from tests.web.test_hostile import gathering, shared


def test_nothing_is_lost_or_doubled_between_what_was_missed_and_what_comes(tmp_path: Path) -> None:
    events = follower_story(30)
    with open_log(tmp_path / "events") as log:
        state = write_story(log, events[:20], State(), group=1)
        with served(tmp_path) as server:
            listeners = []
            for event in events[20:]:
                if log.next_seq % 10 == 0:
                    listeners.append(Listener(server, after=9))
                state = write_story(log, [event], state, group=1)
            wanted = list(range(10, len(events)))
            for listener in listeners:
                assert until(lambda one=listener: [int(seq) for _, seq, _ in one.of("event")] == wanted)
                listener.close()
            assert len(listeners) > 3


def test_a_client_is_told_first_how_things_are(tmp_path: Path) -> None:
    with served(copy_of(FOLLOWER, tmp_path)) as server:
        listener, name = Listener(server), load_state(FOLLOWER / "events")[0].settings.name
        until(lambda: listener.of("swarm"))
        assert json.loads(listener.of("charts")[0][2])["round"] == "stopped"
        assert msgspec.json.decode(listener.of("status")[0][2], type=Status).name == name
        assert msgspec.json.decode(listener.of("swarm")[0][2], type=shapes.SwarmView).source == "log"
        listener.close()


def test_a_crowd_that_asks_too_much_ends_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is told a moment later, though nothing further happens."""
    refused: list[str] = []

    def busy(name: str) -> None:
        answer = getattr(NodeLogSource, name)

        async def ask(self: NodeLogSource, *given: int) -> Any:
            if name not in refused:
                refused.append(name)
                raise ServerBusy("too much is asked of this server at once")
            return await answer(self, *given)

        monkeypatch.setattr(NodeLogSource, name, ask)

    monkeypatch.setattr(stream, "SWARM_LEAST_S", 0.05)
    blobs = BlobStore(tmp_path / "blobs")
    with open_log(tmp_path / "events") as log:
        state = write_story(log, follower_story(1), State(), group=1)
        with served(tmp_path) as server:
            listener = Listener(server)
            until(lambda: listener.of("swarm"))
            busy("view")
            busy("messages_since")
            write_story(log, [gathering(shared(blobs, "anna", "an answer"))], state, group=1)
            until(lambda: listener.of("gossip") and json.loads(listener.of("swarm")[-1][2])["total"] == 2)
            assert sorted(refused) == ["messages_since", "view"] and not listener.ended.is_set()
            listener.close()


def test_views_come_when_they_change_and_not_for_every_event(tmp_path: Path) -> None:
    story = Story.joined(coordinator_settings(min_peers=400))
    with open_log(tmp_path / "events") as log:
        state = write_story(log, story.recorded, State(), group=1)
        with served(tmp_path) as server:
            listener = Listener(server)
            until(lambda: listener.of("swarm"))
            before = len(listener.of("swarm"))
            began = time.monotonic()
            write_story(log, [MemberSeen(f"peer{number}") for number in range(300)], state, group=4)
            until(lambda: json.loads(listener.of("swarm")[-1][2])["total"] == 301)
            assert len(listener.of("swarm")) - before <= (time.monotonic() - began) / stream.SWARM_LEAST_S + 2
            until(lambda: len(listener.of("event")) == 300)
            listener.close()


def test_clients_have_a_bound_and_leaving_frees_a_place(tmp_path: Path) -> None:
    with served(copy_of(FOLLOWER, tmp_path)) as server:
        head = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connections = [server.socket() for _ in range(CLIENTS_MAX)]
        for connection in connections:
            connection.sendall(head)
            assert b"200" in connection.recv(12)
            until(lambda one=connection: one.recv(4096))
        with server.socket() as connection:
            connection.sendall(head)
            answer = connection.recv(4096).lower()
        assert answer.split()[1] == b"503" and b"retry-after" in answer
        connections[0].close()

        def comes_in() -> bool:
            with server.socket() as connection:
                connection.sendall(head)
                return b"200" in connection.recv(12)

        assert until(comes_in)
        for connection in connections[1:]:
            connection.close()


def test_one_address_keeps_nobody_else_out(tmp_path: Path) -> None:
    with served(copy_of(FOLLOWER, tmp_path)) as server, contextlib.ExitStack() as stack:

        def listen(address: str) -> tuple[socket.socket, bytes]:
            place = (server.host, server.port)
            connection = stack.enter_context(socket.create_connection(place, LONG_S, (address, 0)))
            connection.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection, connection.recv(12).split()[1]

        def hears(connection: socket.socket) -> bool:
            return bool(until(lambda: connection.recv(65536)))

        crowd = [listen("127.0.0.2") for _ in range(CLIENTS_MAX)]
        assert {status for _, status in crowd} == {b"200"} and all(hears(each) for each, _ in crowd)
        others = [listen("127.0.0.3") for _ in range(CLIENTS_MAX // 2)]
        assert {status for _, status in others} == {b"200"} and all(hears(each) for each, _ in others)
        assert listen("127.0.0.3")[1] == listen("127.0.0.2")[1] == b"503", "both have as many"
        assert listen("127.0.0.4")[1] == b"200"
        for connection, _ in crowd[CLIENTS_MAX // 2 :]:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(65536):  # those that came last gave way: a timeout would be an error
                    continue
        assert clients(server) == CLIENTS_MAX


def test_a_client_that_reads_nothing_is_noticed_though_little_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would take megabytes before anybody had to wait."""
    monkeypatch.setattr(stream, "SEND_S", 0.3)
    story = Story.joined(coordinator_settings(min_peers=2000))
    with open_log(tmp_path / "events") as log:
        state = write_story(log, story.recorded, State(), group=1)
        with served(tmp_path) as server:
            mute = server.socket()
            mute.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: clients(server) == 1)
            for _ in range(8):  # somewhat above a megabyte, most of which the client's own kernel takes
                state = write_story(log, [MemberSeen("p" * 200, "n" * 200)] * 250, state, group=250)
            until(lambda: clients(server) == 0)
            assert server.json("/api/v1/here")
            mute.close()


def clients(server: Served) -> int:
    told = server.node.told
    assert told is not None
    return int(told.__self__.client_count)  # type: ignore[attr-defined]


def test_what_waits_for_a_client_has_a_bound() -> None:
    async def check() -> None:
        client = Client()
        for seq in range(stream.EVENTS_WAITING_MAX):
            client.put_event(seq, b"x")
        assert not client.lost
        client.put_event(stream.EVENTS_WAITING_MAX, b"x")
        assert client.lost

    asyncio.run(check())


def test_views_that_wait_take_the_place_of_older_ones() -> None:
    async def check() -> None:
        client = Client()
        for number in range(1000):
            client.put_latest("swarm", b"view %d" % number)
            client.put_message(b"m")
        told, _ = await client.wait_for_events(-1)
        assert told.startswith(b"view 999") and told.count(b"m") == shapes.GOSSIP_KEPT

    asyncio.run(check())


def test_a_stream_ends_with_its_server(tmp_path: Path) -> None:
    with served(copy_of(FOLLOWER, tmp_path)) as server:
        listener = Listener(server)
    assert listener.ended.wait(5)
