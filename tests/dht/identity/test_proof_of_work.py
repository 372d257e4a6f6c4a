"""The number that an identity has worked for: searched for as long as somebody waits for it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from swarmd.dht.identity import kept_work, proof_of_work
from swarmd.dht.identity.kept_work import take_work
from swarmd.dht.identity.proof_of_work import find_work, work_bits
from swarmd.dht.session import Session
from swarmd.paths import NodeDirectory

BITS = 22  # some seconds: a search that nobody can end is seen to have come to its end


class NotWaiting(Exception):
    pass


def test_the_least_number_that_is_worth_the_bits_is_found() -> None:
    number = find_work("s", "p", 10)
    assert work_bits("s", "p", number) >= 10
    assert all(work_bits("s", "p", less) < 10 for less in range(number))


def test_a_search_looks_now_and_then_whether_it_is_to_end() -> None:
    looks = iter([None, None, None])

    def look() -> None:
        if next(looks, NotWaiting) is NotWaiting:
            raise NotWaiting

    with pytest.raises(NotWaiting):
        find_work("s", "p", 64, look)


@pytest.mark.anyio
async def test_a_session_that_ends_searches_no_further(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proof_of_work, "LOOK_NUMBERS", 2**10)
    assert find_work("s", "p", 16) > 2**10, "there is a look before the number"
    searching = threading.Event()

    def search(*sought: object) -> int:
        searching.set()
        return find_work(*sought)  # type: ignore[arg-type]

    monkeypatch.setattr(kept_work, "find_work", search)
    session = Session.__new__(Session)
    session.swarm, session.peer_id, session._work, session._working = "s", "p", None, anyio.Lock()
    session.paths = NodeDirectory(tmp_path)
    monkeypatch.setattr(Session, "_bits", lambda self: BITS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.work)
        await to_thread.run_sync(searching.wait)
        tasks.cancel_scope.cancel()
    assert session._work is None
    assert not NodeDirectory(tmp_path).work.exists()


MORE = 17  # bits, than every node does


def give_up() -> None:
    raise NotWaiting


def test_work_is_found_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "work"
    number = take_work(path, "s", "p", MORE, lambda: None)
    assert work_bits("s", "p", number) >= MORE
    assert take_work(path, "s", "p", MORE, give_up) == number, "it is not searched for again"
    assert [each.name for each in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize(
    ("swarm", "peer", "bits"), [("t", "p", MORE), ("s", "q", MORE), ("s", "p", 30)], ids=["swarm", "key", "bits"]
)
def test_what_is_kept_counts_for_what_it_was_found_for_alone(tmp_path: Path, swarm: str, peer: str, bits: int) -> None:
    take_work(tmp_path / "work", "s", "p", MORE, lambda: None)
    with pytest.raises(NotWaiting):
        take_work(tmp_path / "work", swarm, peer, bits, give_up)


@pytest.mark.parametrize(
    "content", [b"", b"12", b"\xff\x00", b"-5\n", b"9" * 400], ids=["empty", "torn", "no", "neg", "long"]
)
def test_a_damaged_number_is_found_anew_and_put_right(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "work"
    path.write_bytes(content)
    number = take_work(path, "s", "p", MORE, lambda: None)
    assert int(path.read_bytes()) == number == find_work("s", "p", MORE)


def test_work_that_cannot_be_kept_is_told_and_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "work").mkdir()
    number = take_work(tmp_path / "work", "s", "p", MORE, lambda: None)
    assert work_bits("s", "p", number) >= MORE and "is not kept" in caplog.text


def test_the_little_work_that_every_node_does_leaves_no_file(tmp_path: Path) -> None:
    assert work_bits("s", "p", take_work(tmp_path / "work", "s", "p", 16, lambda: None)) >= 16
    assert not (tmp_path / "work").exists()


def test_how_far_a_search_is_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(kept_work, "TELL_S", 0.0)
    caplog.set_level(logging.INFO)
    look = kept_work.SearchNews(28, lambda: None)
    for _ in range(33):
        look()
    assert "once: about 268 million hashes" in caplog.text
    assert "work: 2 of about 268 million hashes" in caplog.messages[-1]
