"""A contract's counts and votes on the page: how many have reported, where others' rewards are, invented names."""

from __future__ import annotations

import msgspec
import pytest

from swarmd.core.applied import Applied
from swarmd.core.events import Envelope, RewardLog, SubmissionsCounted, VoteLog
from swarmd.web.views import ledger as ledger_module
from swarmd.web.views.ledger import VOTES_KEPT, PeerLedger
from swarmd.web.views.swarm import ViewContext, swarm_view
from tests.core.story import Story, chain_settings, said


def test_the_contracts_count_is_shown_and_what_it_stands_for() -> None:
    story = Story(chain_settings())
    story.join_chain()
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
        ledger.apply(Applied(Envelope(number, float(number), said(number, log)), story.state, story.state, ()))
    return ledger


def test_votes_for_many_long_names_make_no_long_view() -> None:
    story = Story(chain_settings())
    story.join_chain()
    invented = tuple(f"{number:04d}" + "\U0001f600" * 252 for number in range(1000))
    ledger = blocks(story, *[VoteLog(0, "0x", "0xA", "v" * 256, round_, invented) for round_ in range(VOTES_KEPT)])
    view = swarm_view(story.state, ledger, ViewContext("digits", story.at, 0, ()), 10)
    assert view.chain is not None and len(view.chain.votes) == VOTES_KEPT
    assert len(msgspec.json.encode(view)) < 1_000_000
    assert view.chain.votes[0][2][-1] == "… 984 more" and view.chain.votes[0][2][0].startswith("0000")


def test_votes_for_invented_names_leave_room_for_peers_that_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PEERS_MAX", 8)
    monkeypatch.setattr(ledger_module, "VOTED_MAX", 4)
    story = Story(chain_settings())
    story.join_chain()
    invented = tuple(f"invented {number}" for number in range(100))
    earned = RewardLog(0, "0x", "0xB", "anna", 0, 0, "500")
    ledger = blocks(
        story, VoteLog(0, "0x", "0xA", "mallory", 0, invented), earned, VoteLog(1, "0x", "0xA", "b", 1, ("anna",))
    )
    assert len(ledger.accounts) == 5 and ledger.turned_away == 97
    assert (ledger.accounts["anna"].reward, ledger.accounts["anna"].votes) == (0.5, 1)
