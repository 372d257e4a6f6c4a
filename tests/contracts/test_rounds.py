"""Rounds and stages: who moves them, and what is said when they move."""

from tests.contracts.chain import INT_REWARD, Said, Swarm


def test_stages_follow_each_other_and_say_so(three_stages: Swarm) -> None:
    said = [three_stages.send(three_stages.owner, "updateStageAndRound") for _ in range(4)]
    assert said == [
        [Said("StageAdvanced", (0, 1))],
        [Said("StageAdvanced", (0, 2))],
        [Said("RoundAdvanced", (1,)), Said("StageAdvanced", (1, 0))],
        [Said("StageAdvanced", (1, 1))],
    ]
    assert three_stages.place() == (1, 1)


def test_with_one_stage_each_move_is_a_round(one_stage: Swarm) -> None:
    said = [one_stage.send(one_stage.owner, "updateStageAndRound") for _ in range(2)]
    assert said == [[Said("RoundAdvanced", (n,)), Said("StageAdvanced", (n, 0))] for n in (1, 2)]
    assert one_stage.place() == (2, 0)


def test_a_move_returns_where_the_swarm_then_is(swarm: Swarm) -> None:
    assert swarm.ask("updateStageAndRound", sender=swarm.owner) == ([0, 1] if swarm.stages == 3 else [1, 0])


def test_only_stage_managers_move_a_swarm_without_a_policy(swarm: Swarm) -> None:
    assert swarm.refusal(swarm.alice, "updateStageAndRound") == "OnlyStageManager"
    assert swarm.refusal(swarm.alice, "advance") == "AdvanceNotAllowed"
    assert swarm.refusal(swarm.owner, "advance") == "AdvanceNotAllowed"


# The round policy


def submit(swarm: Swarm, *peers: str, round_: int | None = None) -> None:
    at = swarm.place() if round_ is None else (round_, 0)
    for peer in peers:
        swarm.send(swarm.alice, INT_REWARD, *at, 1, peer)


def test_a_policy_is_set_by_an_owner_and_can_be_read(swarm: Swarm) -> None:
    assert swarm.ask("roundPolicy") == [0, 0]
    said = swarm.send(swarm.owner, "setRoundPolicy", 3, 600)
    assert said == [Said("RoundPolicyChanged", (swarm.owner, 3, 600))]
    assert swarm.ask("roundPolicy") == [3, 600]
    assert swarm.refusal(swarm.alice, "setRoundPolicy", 0, 1) == "OnlyOwner"


def test_anyone_advances_once_enough_peers_have_reported(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 2, 0)
    swarm.register(swarm.alice, "p", "q")
    submit(swarm, "p")
    assert not swarm.ask("canAdvance")
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"
    submit(swarm, "q")
    assert swarm.ask("canAdvance")
    expected = [Said("StageAdvanced", (0, 1))]
    if swarm.stages == 1:
        expected = [Said("RoundAdvanced", (1,)), Said("StageAdvanced", (1, 0))]
    assert swarm.ask("advance", sender=swarm.bob) == list(expected[-1].values)
    assert swarm.send(swarm.bob, "advance") == expected


def test_each_stage_needs_reports_of_its_own(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 1, 0)
    swarm.register(swarm.alice, "p")
    submit(swarm, "p")
    swarm.send(swarm.bob, "advance")
    assert swarm.ask("stageSubmissionCount") == 0
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"


def test_a_stage_manager_clears_the_count_as_well(swarm: Swarm) -> None:
    swarm.register(swarm.alice, "p")
    submit(swarm, "p")
    assert swarm.ask("stageSubmissionCount") == 1
    swarm.move_on()
    assert swarm.ask("stageSubmissionCount") == 0


def test_reports_for_what_is_over_do_not_count(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 1, 0)
    swarm.register(swarm.alice, "p")
    swarm.next_round()
    submit(swarm, "p", round_=0)
    assert swarm.ask("stageSubmissionCount") == 0
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"


def test_reports_for_an_earlier_stage_of_the_round_do_not_count(three_stages: Swarm) -> None:
    three_stages.register(three_stages.alice, "p", "q")
    three_stages.move_on()
    three_stages.send(three_stages.alice, INT_REWARD, 0, 0, 1, "p")
    assert three_stages.ask("stageSubmissionCount") == 0
    three_stages.send(three_stages.alice, INT_REWARD, 0, 1, 1, "p")
    assert three_stages.ask("stageSubmissionCount") == 1


def test_anyone_advances_once_the_stage_has_lasted_long_enough(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 0, 600)
    before = swarm.ask("stageStartedAt")
    swarm.wait(590)
    assert not swarm.ask("canAdvance")
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"
    swarm.wait(600)
    assert swarm.ask("canAdvance")
    swarm.send(swarm.bob, "advance")
    assert swarm.place() == ((0, 1) if swarm.stages == 3 else (1, 0))
    assert swarm.ask("stageStartedAt") >= before + 600
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"


def test_the_deadline_is_the_first_second_at_which_the_stage_is_over(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 0, 100_000)
    swarm.wait(99_999)
    assert not swarm.ask("canAdvance")
    swarm.wait(100_000)
    assert swarm.ask("canAdvance")


def test_the_clock_starts_anew_when_a_stage_manager_moves_the_swarm(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 0, 600)
    swarm.wait(700)
    swarm.move_on()
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"


def test_whichever_condition_holds_first_is_enough(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 1, 100_000)
    swarm.register(swarm.alice, "p")
    submit(swarm, "p")
    swarm.send(swarm.bob, "advance")  # enough reports, early
    swarm.wait(100_000)
    swarm.send(swarm.bob, "advance")  # no report, late
    assert swarm.place() == ((0, 2) if swarm.stages == 3 else (2, 0))


def test_a_policy_can_be_taken_back(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 0, 1)
    swarm.wait(100)
    assert swarm.ask("canAdvance")
    swarm.send(swarm.owner, "setRoundPolicy", 0, 0)
    assert swarm.refusal(swarm.bob, "advance") == "AdvanceNotAllowed"


def test_a_swarm_moves_on_without_its_manager_for_several_rounds(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "setRoundPolicy", 1, 0)
    for name in ("STAGE_MANAGER_ROLE", "OWNER_ROLE"):
        swarm.send(swarm.owner, "revokeRole", swarm.role(name), swarm.owner)
    swarm.register(swarm.alice, "p")
    for _ in range(2 * swarm.stages):
        submit(swarm, "p")
        swarm.send(swarm.bob, "advance")
    assert swarm.place() == (2, 0)
    assert swarm.refusal(swarm.owner, "updateStageAndRound") == "OnlyStageManager"
