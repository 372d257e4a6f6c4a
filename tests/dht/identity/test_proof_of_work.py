"""The number that an identity has worked for: searched for as long as somebody waits for it."""

from __future__ import annotations

import threading

import anyio
import pytest
from anyio import to_thread

from swarmd.dht import session as sessions
from swarmd.dht.identity import proof_of_work
from swarmd.dht.identity.proof_of_work import find_work, work_bits
from swarmd.dht.session import Session

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
async def test_a_session_that_ends_searches_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_of_work, "LOOK_NUMBERS", 2**10)
    assert find_work("s", "p", 16) > 2**10, "there is a look before the number"
    searching = threading.Event()

    def search(*sought: object) -> int:
        searching.set()
        return find_work(*sought)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "find_work", search)
    session = Session.__new__(Session)
    session.swarm, session.peer_id, session._work, session._working = "s", "p", None, anyio.Lock()
    monkeypatch.setattr(Session, "_bits", lambda self: BITS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.work)
        await to_thread.run_sync(searching.wait)
        tasks.cancel_scope.cancel()
    assert session._work is None
