"""The page of a node that reads its own rewards alone: how many have reported, and where others' rewards are shown."""

from __future__ import annotations

from swarmd.core.events import SubmissionsCounted
from swarmd.web.views.ledger import PeerLedger
from swarmd.web.views.swarm import ViewContext, swarm_view
from tests.core.story import Story, chain_settings


def test_the_contracts_count_is_shown_and_what_it_stands_for() -> None:
    story = Story(chain_settings())
    story.join_chain()
    around = ViewContext("digits", "", story.at, 0, ())
    before = swarm_view(story.state, PeerLedger(), around, 10)
    story.tell(SubmissionsCounted(0, 0, 512))
    after = swarm_view(story.state, PeerLedger(), around, 10)
    assert (before.reports, after.reports) == (0, 512)
    (note,) = set(after.notes) - set(before.notes)
    assert "own rewards and votes" in note and "swarmd dashboard" in note
