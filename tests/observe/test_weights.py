"""The status says what weights a node offers, and what became of those that it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from swarmd.core.state import CatchUp, State, WeightsOutcome
from swarmd.observe.status import Status, status_of
from swarmd.observe.weights import with_offer
from swarmd.weights.offered import OFFER, OfferedWeights
from tests.observe.test_status import LIVE, LOG, NOW, STATE, printed
from tests.weights.making import bfloat16
from tests.weights.test_offered import offer

ADOPTED = WeightsOutcome(NOW - 90, "adopted", "12D3KooW-peer-anna", 7, "", "", 4 * 2**20, 0.25, 0.5)
WORDS = {
    "fetched": "fetched the weights of oW-peer-anna after round 7, 4.0 MiB, not measured yet",
    "adopted": "began from the weights of oW-peer-anna after round 7: held-out accuracy 0.50 here, its own had 0.25",
    "refused": "did not begin from the weights of oW-peer-anna after round 7 (no-better): as good as its own",
}


def said(**fields: Any) -> Status:
    """The status as a client of the daemon reads it."""
    status = status_of(replace(STATE, **fields), NOW, LOG, LIVE)
    return msgspec.json.decode(msgspec.json.encode(status), type=Status)


@pytest.mark.parametrize("outcome", WORDS)
def test_what_became_of_weights_is_told_with_its_cause(outcome: Any) -> None:
    fields: dict[str, Any] = {"cause": "no-better", "reason": "as good as its own"} if outcome == "refused" else {}
    status = said(weights=replace(ADOPTED, **fields, outcome=outcome))
    assert status.weights is not None and status.weights.taken is not None
    assert (status.weights.taken.words, status.weights.taken.age_s) == (WORDS[outcome], 90)
    assert f"weights  1m 30s ago: {WORDS[outcome]}" in printed(status)


def test_weights_that_did_not_come_and_those_that_are_waited_for_are_told() -> None:
    status = said(weights=WeightsOutcome(NOW - 5, "late"), catch_up=CatchUp(8, NOW + 20))
    assert status.weights is not None and status.weights.awaited_s == 20
    assert "weights  waits for a peer's, 20s more at most" in printed(status)
    assert "weights  5s ago: a peer's weights did not come in time" in printed(status)
    averaging = said(catch_up=CatchUp(8, NOW + 20, average=True))
    assert averaging.weights is None, "nothing waits for it"
    over = said(catch_up=CatchUp(8, NOW + 20, over=True))
    assert over.weights is None and "weights" not in printed(over)


def test_what_a_node_offers_is_told_with_what_it_takes_on_disk(tmp_path: Path) -> None:
    for state in (STATE, State()):  # running, or never started
        status = status_of(state, NOW, LOG)
        assert with_offer(status, tmp_path / "weights") is status
    offer(OfferedWeights(tmp_path / "weights"), bfloat16(2**20, 0), 9)
    told = with_offer(replace(status, at=(tmp_path / "weights" / OFFER).stat().st_mtime + 60), tmp_path / "weights")
    assert told.weights is not None and told.weights.offered is not None
    offered = told.weights.offered
    assert (offered.round, offered.accuracy, round(offered.age_s)) == (9, 0.5, 60)
    assert offered.size_bytes > 2**21
    assert "offers its own after round 9, held-out accuracy 0.50, 2.0 MiB on disk, 1m 0s ago" in printed(told)
