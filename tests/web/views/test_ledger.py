"""Peers that the page keeps count of when there are more than it has places for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from swarmd.core.applied import Applied
from swarmd.core.events import Envelope, Event, MemberSeen, ReportSeen
from swarmd.core.state import Clock, State
from swarmd.core.values import Standing
from swarmd.web.views import ledger as ledger_module
from swarmd.web.views.ledger import PeerLedger
from tests.core.story import coordinator_settings

PLACES = 4


@pytest.fixture(autouse=True)
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PEERS_MAX", PLACES)


class Books:
    """A ledger, and the round that its node is in."""

    def __init__(self) -> None:
        self.ledger = PeerLedger()
        self.round = 0
        self.at = 0.0

    def tell(self, *events: Event) -> None:
        state = State(settings=coordinator_settings(), clock=Clock(self.round, 0, 0.0, 1.0))
        for event in events:
            self.at += 1.0
            self.ledger.apply(Applied(Envelope(int(self.at), self.at, event), state, state, ()))

    def see(self, *peers: str) -> None:
        self.tell(*[MemberSeen(peer, peer) for peer in peers])

    def credit(self, *peers: str) -> None:
        self.tell(*[ReportSeen(peer, self.round, 0, 1.0, "", b"") for peer in peers])

    @property
    def peers(self) -> set[str]:
        return set(self.ledger.accounts) - {coordinator_settings().peer}


def names(word: str, count: int) -> Sequence[str]:
    return [f"{word} {number}" for number in range(count)]


def test_a_newcomer_takes_the_place_of_the_stranger_that_was_longest_unseen() -> None:
    books = Books()
    books.see("anna", "bert", "carl")
    books.see("anna")  # again
    books.see("dora")
    assert books.peers == {"anna", "carl", "dora"}
    assert books.ledger.turned_away == 1


def test_strangers_push_out_nobody_whose_reward_is_known() -> None:
    books = Books()
    books.credit("anna")
    books.ledger.settle(0, [Standing("bert", "bert", 3.0, 1, 0)], 1.0)
    books.see(*names("stranger", 100))
    assert {"anna", "bert"} < books.peers and len(books.ledger.accounts) == PLACES
    assert books.ledger.accounts["bert"].reward == 3.0


def test_of_those_with_rewards_one_that_is_silent_for_longer_than_it_worked_makes_room() -> None:
    books = Books()
    for books.round in range(8):
        books.credit("anna")
    books.credit("once", "twice")
    books.round = 8
    books.see("early")
    assert "early" not in books.peers, "all others took part lately"
    books.credit("twice")
    books.round = 9
    books.see("dora")
    assert books.peers == {"anna", "twice", "dora"}
    books.round = 15
    books.credit("dora")
    books.see("emil")
    assert books.peers == {"anna", "dora", "emil"}


def test_the_node_itself_always_has_its_place() -> None:
    books = Books()
    books.see(*names("stranger", 100))
    assert coordinator_settings().peer in books.ledger.accounts


def test_books_that_were_kept_forget_the_same_peers() -> None:
    books, kept = Books(), Books()
    books.see("anna", "bert", "carl")
    books.see("anna")
    kept.ledger.resume(books.ledger.keep())
    kept.at = books.at
    for each in (books, kept):
        each.see("dora")
    assert kept.ledger.keep() == books.ledger.keep()
