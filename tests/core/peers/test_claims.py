"""What peers claim is held to what their rollouts give; a persistent gap is seen, and costs judged votes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.core.contract.submissions import find
from swarmd.core.events import ReportPublished, ReportSeen, StageLog
from swarmd.core.peers.claims import (
    BITS_KEPT,
    CLAIMANTS_KEPT,
    GAPS_MIN,
    RECIPES,
    TOLERANCE,
    backed_most,
    unbacked,
    words_of,
)
from swarmd.core.values import Backing, Claim, Judgement
from tests.core.story import Story, announced, chain_settings, chain_up, gathered, said, settings, trained

RECIPE = 64  # completions in a stage


def joined() -> Story:
    story = Story(settings())
    story.join()
    return story


def backing(peer: str = "liar", mean: float = 0.3, shared: int = RECIPE, total: float = 0.3 * RECIPE) -> Backing:
    return Backing(peer, mean * shared, shared, total, 1.0, RECIPE)


def compare(story: Story, round: int, claims: tuple[Claim, ...], *backings: Backing) -> None:
    """A stage is trained with what was gathered of the one before."""
    story.tell(announced(round))
    story.tell(replace(gathered(round), claims=claims), replace(trained(round), backed=backings))
    story.tell(ReportPublished(f"report/{round}/0", round, 0))


def liars(story: Story) -> list[str]:
    return [claimant.peer for claimant in unbacked(story.state)]


def test_a_peer_that_claims_three_times_what_its_rollouts_give_is_found_out() -> None:
    story = joined()
    claims = (Claim("honest", 0.3), Claim("liar", 0.9))
    for round in range(1, GAPS_MIN + 1):
        assert liars(story) == []
        compare(story, round, claims, backing("honest"), backing())
    assert liars(story) == ["liar"]
    assert "0.900 where at most 0.300" in words_of(unbacked(story.state)[0])


@pytest.mark.parametrize("total", [0.3 * RECIPE, 0.9 * RECIPE, 0.0, 1e12])
def test_whatever_sum_it_adds_to_its_rollouts(total: float) -> None:
    claim = Claim("liar", 0.9)
    assert claim.reward > backed_most(claim, backing(total=total)) + TOLERANCE


def test_one_that_tells_the_truth_again_is_forgotten() -> None:
    story = joined()
    for round in range(1, GAPS_MIN + BITS_KEPT + 1):
        compare(story, round, (Claim("liar", 0.9 if round <= GAPS_MIN else 0.3),), backing())
    assert story.state.claims is not None and story.state.claims.claimants == ()


def test_a_gap_once_in_a_while_is_none() -> None:
    story = joined()
    for round in range(1, 20):
        compare(story, round, (Claim("odd", 0.9 if round % 5 == 0 else 0.3),), backing("odd"))
    assert liars(story) == []


def test_rollouts_of_another_stage_than_was_claimed_say_nothing() -> None:
    story = joined()
    for round in range(1, 10):
        story.tell(announced(2 * round))
        story.tell(replace(gathered(2 * round), claims=(Claim("liar", 0.9),)))
        story.tell(announced(2 * round + 1), replace(trained(2 * round - 1), backed=(backing(),)))
    assert liars(story) == []


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=RECIPE),
    st.integers(0, RECIPE),
    st.floats(0.0, TOLERANCE),
)
def test_no_honest_peer_claims_too_much_whatever_it_shares(rewards: list[float], share: int, odd: float) -> None:
    shared, total = sorted(rewards)[:share], sum(rewards)  # the worst of them: what is shared is not chosen by chance
    honest = Claim("honest", total / len(rewards))
    here = Backing("honest", max(0.0, sum(shared) - odd * len(shared)), len(shared), total, 1.0, RECIPE)
    assert honest.reward <= backed_most(honest, here) + TOLERANCE + 1e-9


@given(st.lists(st.tuples(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12), st.integers(0, 2**53)), max_size=20))
def test_whatever_is_claimed_what_is_kept_has_a_bound(told: list[tuple[float, float, int]]) -> None:
    story = joined()
    for round, (reward, total, count) in enumerate(told, 1):
        names = [f"peer-{round}-{number}" for number in range(CLAIMANTS_KEPT // 4)]
        backings = [Backing(name, reward / 2, count, total, 1.0, RECIPE) for name in names]
        compare(story, round, tuple(Claim(name, reward) for name in names), *backings)
    kept = story.state.claims
    assert kept is None or len(kept.claimants) <= CLAIMANTS_KEPT


def test_more_completions_than_twice_the_recipe_are_not_believed() -> None:
    claim = Claim("liar", 0.9)
    most = backed_most(claim, backing(total=1e9))
    assert most == pytest.approx((0.3 + (RECIPES - 1) * 1.0) / RECIPES)


@pytest.mark.parametrize(("votes", "winner"), [("judged", "anna"), ("reported", "liar")])
def test_whose_claims_do_not_hold_gets_no_judged_vote(votes: str, winner: str) -> None:
    story = Story(chain_settings(votes=votes))
    story.join_chain(chain_up())
    for round in range(GAPS_MIN + 2):
        if round:
            story.tell(said(10 * (round + 1), StageLog(0, "0xt", round, 0)))
        if votes == "reported":
            story.tell(ReportSeen("liar", round, 0, 0.9), ReportSeen("anna", round, 0, 0.5))
        story.tell(replace(gathered(round), claims=(Claim("liar", 0.9), Claim("anna", 0.25))))
        judged = (Judgement("liar", 0.3), Judgement("anna", 0.25))
        story.tell(replace(trained(round, reward=0.1), judged=judged, backed=(backing(), backing("anna", 0.25))))
        story.tell(ReportPublished(f"report/{round}/0", round, 0))
    last = find(story.state, f"winners/{GAPS_MIN}")
    assert last is not None and last.winners == (winner,)
    if votes == "judged":
        first = find(story.state, "winners/0")
        assert first is not None and first.winners == ("liar",), "by what is judged, until its claims do not hold"
