"""Peers that the page keeps count of when there are more than it has places for."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.core.applied import AppliedEvent
from swarmd.core.events import Envelope, Event, MemberSeen, ReportSeen, RewardLog, SubmissionsCounted, VoteLog
from swarmd.core.state import Clock, State
from swarmd.core.values import Standing
from swarmd.dht.wire.bodies import LeaderboardBody, save_standings
from swarmd.eventlog.fold import load_state
from swarmd.paths import NodeDirectory
from swarmd.web import swarm as ledger_module
from swarmd.web.swarm import VOTES_KEPT, PeerLedger, ViewContext, swarm_view
from tests.core.story import Story, chain_settings, coordinator_settings, said
from tests.web.serving import FOLLOWER, Served, copy_of, served, until

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
            self.ledger.apply(AppliedEvent(Envelope(int(self.at), self.at, event), state, state, ()))

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
    books.ledger.adopt_coordinator_sums(0, [Standing("bert", "bert", 3.0, 1, 0)], 1.0)
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
    kept.ledger.restore(books.ledger.encode())
    kept.at = books.at
    for each in (books, kept):
        each.see("dora")
    assert kept.ledger.encode() == books.ledger.encode()


def test_the_contracts_count_is_shown_and_what_it_stands_for() -> None:
    story = Story.on_chain(chain_settings())
    around = ViewContext("digits", story.at, 0, ())
    before = swarm_view(story.state, PeerLedger(), around, 10)
    story.tell(SubmissionsCounted(0, 0, 512))
    after = swarm_view(story.state, PeerLedger(), around, 10)
    assert (before.reports, after.reports) == (0, 512)
    (note,) = set(after.notes) - set(before.notes)
    assert "own rewards and votes" in note and "swarmd dashboard" in note


def blocks(story: Story, *logs: RewardLog | VoteLog) -> PeerLedger:
    """What is known after a block for each entry."""
    ledger = PeerLedger()
    for number, log in enumerate(logs, 1):
        ledger.apply(AppliedEvent(Envelope(number, float(number), said(number, log)), story.state, story.state, ()))
    return ledger


def test_votes_for_many_long_names_make_no_long_view() -> None:
    story = Story.on_chain(chain_settings())
    invented = tuple(f"{number:04d}" + "\U0001f600" * 252 for number in range(1000))
    ledger = blocks(story, *[VoteLog(0, "0x", "0xA", "v" * 256, round_, invented) for round_ in range(VOTES_KEPT)])
    view = swarm_view(story.state, ledger, ViewContext("digits", story.at, 0, ()), 10)
    assert view.chain is not None and len(view.chain.votes) == VOTES_KEPT
    assert len(msgspec.json.encode(view)) < 1_000_000
    assert view.chain.votes[0][2][-1] == "… 984 more" and view.chain.votes[0][2][0].startswith("0000")


def test_votes_for_invented_names_leave_room_for_peers_that_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PEERS_MAX", 8)
    monkeypatch.setattr(ledger_module, "VOTED_MAX", 4)
    story = Story.on_chain(chain_settings())
    invented = tuple(f"invented {number}" for number in range(100))
    earned = RewardLog(0, "0x", "0xB", "anna", 0, 0, "500")
    ledger = blocks(
        story, VoteLog(0, "0x", "0xA", "mallory", 0, invented), earned, VoteLog(1, "0x", "0xA", "b", 1, ("anna",))
    )
    assert len(ledger.accounts) == 5 and ledger.turned_away == 97
    assert (ledger.accounts["anna"].reward, ledger.accounts["anna"].votes) == (0.5, 1)


OTHER = "12D3KooWother"
STATE, _ = load_state(FOLLOWER / "events")
assert STATE.settings is not None and STATE.clock is not None
ME, SWARM = STATE.settings.peer, STATE.settings.swarm


def board(round: int, *rewards: tuple[str, float]) -> LeaderboardBody:
    return LeaderboardBody(round, tuple(Standing(peer, "", reward, round + 1, round) for peer, reward in rewards))


def keep(directory: Path, swarm: str, kept: LeaderboardBody) -> None:
    path = NodeDirectory(directory).standings
    path.parent.mkdir(exist_ok=True)
    before = path.stat().st_mtime_ns if path.exists() else 0
    save_standings(path, swarm, kept)
    os.utime(path, ns=(before + 10**9, before + 10**9))  # a clock that is too coarse must not hide the change


def ranks(server: Served) -> dict[str, tuple[int, float]]:
    rows: list[dict[str, Any]] = server.json("/api/v1/swarm")["peers"]
    return {row["id"]: (row["rank"], row["reward"]) for row in rows if row["known"]}


def test_others_have_their_rewards_from_the_leaderboard(tmp_path: Path) -> None:
    directory = copy_of(FOLLOWER, tmp_path)
    last = STATE.clock.round + 1 if STATE.clock else 0
    keep(directory, SWARM, board(last, (OTHER, 9.0), (ME, 4.0)))
    with served(directory) as server:
        until(lambda: server.json("/api/v1/here")["read"] == 1.0)
        assert ranks(server) == {OTHER: (1, 9.0), ME: (2, 4.0)}
        assert f"leaderboard after round {last}" in server.json("/api/v1/swarm")["notes"][0]
        keep(directory, SWARM, board(last + 1, (OTHER, 9.5), (ME, 9.75)))
        assert ranks(server) == {ME: (1, 9.75), OTHER: (2, 9.5)}
        names = [curve["id"] for curve in server.json("/api/v1/swarm/curves")["curves"]]
        assert names == [ME], "of the other it has a sum, and no point to draw"


@pytest.mark.parametrize("swarm", ["another-swarm", ""])
def test_a_leaderboard_of_another_swarm_is_not_taken(tmp_path: Path, swarm: str) -> None:
    directory = copy_of(FOLLOWER, tmp_path)
    keep(directory, SWARM + swarm, board(3, (OTHER, 9.0)))
    if not swarm:
        NodeDirectory(directory).standings.write_bytes(b"\xc1 no leaderboard")
    with served(directory) as server:
        until(lambda: server.json("/api/v1/here")["read"] == 1.0)
        assert set(ranks(server)) == {ME}
        assert "not their rewards" in server.json("/api/v1/swarm")["notes"][0]


def test_own_stages_beyond_the_leaderboard_come_on_top(tmp_path: Path) -> None:
    directory = copy_of(FOLLOWER, tmp_path)
    with served(directory) as server:
        until(lambda: server.json("/api/v1/here")["read"] == 1.0)
        own = server.json(f"/api/v1/swarm/curves?peer={ME}")["curves"][0]["points"]
        later = sum(reward for round_, _, reward, _ in own if round_ > 0)
        assert later
        keep(directory, SWARM, board(0, (OTHER, 9.0), (ME, 100.0)))
        assert ranks(server)[ME] == (1, pytest.approx(100.0 + later))
