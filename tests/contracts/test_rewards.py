"""Rewards: who may report one, for what, and what is remembered."""

import pytest

from tests.contracts.chain import INT_REWARD, SUBMITTED_BY_ACCOUNT, SUBMITTED_BY_PEER, UINT_REWARD, Said, Swarm


@pytest.mark.parametrize("overload", [INT_REWARD, UINT_REWARD])
def test_a_reward_is_recorded_and_said(joined: Swarm, overload: str) -> None:
    assert joined.send(joined.alice, overload, 0, 0, 42, "p") == [
        Said("RewardSubmitted", (joined.alice, 0, 0, 42, "p")),
        Said("CumulativeRewardsUpdated", (joined.alice, "p", 42)),
    ]
    assert joined.ask("getRoundStageReward", 0, 0, [joined.alice, joined.bob]) == [42, 0]
    assert joined.ask("getTotalRewards", ["p", "q", "unknown"]) == [42, 0, 0]


def test_a_reward_without_sign_wraps(joined: Swarm) -> None:
    said = joined.send(joined.alice, UINT_REWARD, 0, 0, 2**256 - 3, "p")
    assert said[0] == Said("RewardSubmitted", (joined.alice, 0, 0, -3, "p"))
    assert joined.ask("getTotalRewards", ["p"]) == [-3]


def test_rewards_that_no_longer_fit_are_refused(joined: Swarm) -> None:
    joined.send(joined.alice, INT_REWARD, 0, 0, 2**255 - 1, "p")
    joined.next_round()
    assert "overflow" in joined.refusal(joined.alice, INT_REWARD, 1, 0, 1, "p")


def test_the_rewards_of_an_accounts_peers_add_up(joined: Swarm) -> None:
    joined.send(joined.alice, INT_REWARD, 0, 0, 2, "p")
    joined.send(joined.alice, INT_REWARD, 0, 0, 3, "q")
    joined.send(joined.bob, INT_REWARD, 0, 0, 7, "r")
    assert joined.ask("getRoundStageReward", 0, 0, [joined.bob, joined.alice]) == [7, 5]
    assert joined.ask("getTotalRewards", ["r", "q", "p"]) == [7, 3, 2]
    assert (joined.ask("getRoundStageReward", 0, 0, []), joined.ask("getTotalRewards", [])) == ([], [])


def test_a_peer_reports_once_for_each_stage_in_any_order(three_stages: Swarm) -> None:
    three_stages.register(three_stages.alice, "p")
    three_stages.move_on(2)
    for stage in (2, 0, 1):
        three_stages.send(three_stages.alice, INT_REWARD, 0, stage, 1, "p")
    refused = [three_stages.refusal(three_stages.alice, INT_REWARD, 0, stage, 1, "p") for stage in range(3)]
    assert refused == ["RewardAlreadySubmitted"] * 3
    assert three_stages.ask("getTotalRewards", ["p"]) == [3]


def test_whether_a_peer_has_reported_can_be_asked_by_peer_and_by_account(joined: Swarm) -> None:
    joined.send(joined.alice, INT_REWARD, 0, 0, 0, "q")  # the second of alice's peers
    assert [joined.ask(SUBMITTED_BY_PEER, 0, 0, peer) for peer in ("p", "q", "r", "x")] == [False, True, False, False]
    accounts = (joined.alice, joined.bob, joined.carol)
    assert [joined.ask(SUBMITTED_BY_ACCOUNT, 0, 0, account) for account in accounts] == [True, False, False]
    for place in ((0, 1), (1, 0), (0, 2**256 - 1), (2**256 - 1, 0)):
        assert not joined.ask(SUBMITTED_BY_PEER, *place, "q")
        assert not joined.ask(SUBMITTED_BY_ACCOUNT, *place, joined.alice)


@pytest.mark.parametrize("overload", [INT_REWARD, UINT_REWARD])
@pytest.mark.parametrize("peer", ["r", "unknown"])
def test_nobody_reports_for_a_peer_of_somebody_else(joined: Swarm, overload: str, peer: str) -> None:
    assert joined.refusal(joined.alice, overload, 0, 0, 1, peer) == "InvalidVoterPeerId"


def test_a_round_that_has_not_begun_takes_no_reward(joined: Swarm) -> None:
    assert joined.refusal(joined.alice, INT_REWARD, 1, 0, 1, "p") == "InvalidRoundNumber"
    assert joined.refusal(joined.alice, UINT_REWARD, 2**256 - 1, 0, 1, "p") == "InvalidRoundNumber"


def test_a_stage_that_has_not_begun_takes_no_reward(three_stages: Swarm) -> None:
    three_stages.register(three_stages.alice, "p")
    assert three_stages.refusal(three_stages.alice, INT_REWARD, 0, 1, 1, "p") == "InvalidStageNumber"
    three_stages.move_on()
    three_stages.send(three_stages.alice, INT_REWARD, 0, 1, 1, "p")
    assert three_stages.refusal(three_stages.alice, INT_REWARD, 0, 2, 1, "p") == "InvalidStageNumber"


def test_a_past_round_takes_rewards_for_all_its_stages_and_one_more(joined: Swarm) -> None:
    joined.next_round()
    for stage in range(joined.stages + 1):
        joined.send(joined.alice, INT_REWARD, 0, stage, 1, "p")
    assert joined.refusal(joined.alice, INT_REWARD, 0, joined.stages + 1, 1, "p") == "InvalidStageNumber"
    assert joined.refusal(joined.alice, INT_REWARD, 0, 2**256 - 1, 1, "p") == "InvalidStageNumber"
    assert joined.ask("getTotalRewards", ["p"]) == [joined.stages + 1]


def test_the_current_round_does_not_take_the_stage_after_its_last(joined: Swarm) -> None:
    joined.next_round()
    joined.move_on(joined.stages - 1)
    assert joined.refusal(joined.alice, INT_REWARD, 1, joined.stages, 1, "p") == "InvalidStageNumber"


def test_checks_come_in_the_order_that_clients_rely_on(joined: Swarm) -> None:
    joined.send(joined.alice, INT_REWARD, 0, 0, 1, "p")
    assert joined.refusal(joined.bob, INT_REWARD, 1, 9, 1, "p") == "InvalidRoundNumber"
    assert joined.refusal(joined.bob, INT_REWARD, 0, 9, 1, "p") == "InvalidStageNumber"
    assert joined.refusal(joined.bob, INT_REWARD, 0, 0, 1, "p") == "RewardAlreadySubmitted"
    assert joined.refusal(joined.bob, INT_REWARD, 0, 0, 1, "q") == "InvalidVoterPeerId"
