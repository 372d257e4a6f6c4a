"""A real daemon with scripted workers tells of its own end: a stop once, a death once, to a real server."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.node import FakeNode, fake_node
from tests.web.test_notifications import Receiver, receiving

PATIENCE_S = 60.0


@contextmanager
def telling(directory: Path) -> Iterator[tuple[FakeNode, Receiver]]:
    """A node that runs, and who it tells of its health after a second."""
    with receiving(200) as server, fake_node(directory, rounds=2, silent_s=60.0) as node:
        with node.config.open("a") as file:
            file.write(f'[notify]\nurls = ["{server.url}"]\nafter_s = 1\n')
        node.run_rounds()
        node.until(lambda: (node.paths.sockets / "notify.json").exists(), PATIENCE_S)
        yield node, server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def texts(server: Receiver) -> list[str]:
    return [text.partition(": ")[2] for text in server.texts]


def test_a_stop_is_told_once_and_a_start_soon_after_not_at_all(tmp_path: Path) -> None:
    with telling(tmp_path) as (node, server):
        assert node.stop() == 0
        node.until(lambda: texts(server), PATIENCE_S)
        node.run_rounds()
        assert node.stop() == 0
    assert len(server.posted) == 1
    assert texts(server)[0].startswith("the node ends: ") and "SIGTERM" in texts(server)[0]


def test_a_daemon_that_is_killed_is_told_of_by_the_process_beside_it(tmp_path: Path) -> None:
    with telling(tmp_path) as (node, server):
        node.signal(signal.SIGKILL)
        node.until(lambda: texts(server), PATIENCE_S)
    assert len(server.posted) == 1
    assert "has not run well for" in texts(server)[0] and "it was killed or crashed" in texts(server)[0]
