"""A node that comes late waits for a peer's weights in the round that it joins, and trains that round in any case."""

from typing import Any

import msgspec
import pytest

from swarmd.core.commands import FetchWeights, Gather, Train
from swarmd.core.events import (
    CommandFailed,
    Event,
    LinkDown,
    LinkUp,
    NodeStarted,
    Registered,
    SpaceFreed,
    SpaceLow,
    TrainerReady,
    WeightsAdopted,
    WeightsFetched,
    WeightsRefused,
    WorkerExited,
    WorkerStarted,
)
from swarmd.core.state import WeightsOutcome
from swarmd.core.values import AveragedOffer, PeerWeights, RolloutsRef
from swarmd.core.weights import AVERAGED_MAX, REASON_MAX
from tests.core.story import Story, announced, gathered, settings, trained

READY = TrainerReady("cpu", "tiny", 1000, architecture="a" * 64, tokenizer="b" * 64)
THEIRS = PeerWeights("them", 7, "c" * 64, 4096, 0.9)
FETCHED = WeightsFetched("weights/8", THEIRS)
REFUSED = WeightsRefused("weights/8", "none-offered")
ROLLOUTS = (RolloutsRef("them", 7, 0, "d" * 64, 100, 4),)


def newcomer(round: int = 8, ready: bool = True, **fields: object) -> Story:
    """A node that has just joined a round, its trainer loaded or not."""
    story = Story(settings(**({"catch_up_rounds": 3, "catch_up_s": 100.0} | fields)))
    story.start_workers()
    story.tell(LinkUp(1), Registered("register"), *([READY] if ready else []))
    story.told = story.tell(announced(round))  # type: ignore[attr-defined]
    return story


def asked(commands: tuple[object, ...]) -> list[FetchWeights]:
    return [command for command in commands if isinstance(command, FetchWeights)]


def trains(commands: tuple[object, ...]) -> list[Train]:
    return [command for command in commands if isinstance(command, Train)]


def test_it_asks_for_weights_that_fit_beside_peers_rollouts() -> None:
    story = newcomer()
    (command,) = asked(story.told)  # type: ignore[attr-defined]
    assert (command.id, command.architecture, command.tokenizer) == ("weights/8", "a" * 64, "b" * 64)
    assert command.until_at == 100.0 and command.size_bytes_max > 4000
    assert any(isinstance(each, Gather) for each in story.told)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("round", "fields"),
    [(0, {}), (2, {}), (8, {"catch_up_rounds": 0}), (8, {"catch_up_rounds": 0, "average_rounds": 2})],
    ids=["at the start", "little missed", "configured without", "nothing to average yet"],
)
def test_who_has_no_use_for_weights_asks_for_none(round: int, fields: dict[str, Any]) -> None:
    story = newcomer(round, **fields)
    assert not asked(story.told) and story.state.catch_up is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", ["weights", "rollouts"])
def test_the_stage_begins_when_both_are_here(first: str) -> None:
    story = newcomer()
    facts: list[Event] = [FETCHED, gathered(8, rollouts=ROLLOUTS)]
    early, late = facts if first == "weights" else facts[::-1]
    assert not trains(story.tell(early)) and story.chart() == "round.gathering"
    (train,) = trains(story.tell(late))
    assert (train.weights, train.rollouts) == (THEIRS, ROLLOUTS)
    assert "weights" not in story.waits
    story.tell(trained(8))
    assert story.state.catch_up is None
    assert not asked(story.tell(announced(9)))
    assert trains(story.tell(gathered(9)))[0].weights is None


@pytest.mark.parametrize("refused", [True, False])
def test_the_stage_begins_without_them_when_they_are_refused_or_late(refused: bool) -> None:
    story = newcomer()
    story.tell(gathered(8, rollouts=ROLLOUTS))
    (train,) = trains(story.tell(REFUSED) if refused else story.wait("weights"))
    assert train.weights is None and train.rollouts == ROLLOUTS
    assert not story.tell(FETCHED), "too late"
    story.tell(trained(8))
    assert story.state.catch_up is None


def test_the_wait_holds_up_no_later_round() -> None:
    """Round 9 opens while the weights are on their way: it is trained at once, and the round after begins with them."""
    story = newcomer()
    story.tell(gathered(8))
    story.tell(announced(9))
    assert not asked(story.told[-1:])  # type: ignore[attr-defined]
    (train,) = trains(story.tell(gathered(9)))
    assert train.weights is None
    story.tell(FETCHED, trained(9))
    story.tell(announced(10))
    assert trains(story.tell(gathered(10)))[0].weights == THEIRS


def test_a_trainer_that_loads_longer_is_awaited_and_then_asked_for() -> None:
    story = newcomer(ready=False)
    assert not asked(story.told)  # type: ignore[attr-defined]
    story.tell(gathered(8))
    assert len(asked(story.tell(READY))) == 1
    assert trains(story.tell(FETCHED))[0].weights == THEIRS


def test_a_trainer_that_takes_no_weights_ends_the_wait() -> None:
    story = newcomer(ready=False)
    story.tell(gathered(8))
    assert trains(story.tell(TrainerReady("cpu", "tiny", 1)))[0].weights is None


@pytest.mark.parametrize("crash", [True, False])
def test_a_stage_that_fails_is_given_the_same_again(crash: bool) -> None:
    """A command has one content: what is to become of weights that a trainer fails with, the trainer says."""
    story = newcomer()
    story.tell(gathered(8))
    (given,) = trains(story.tell(FETCHED))
    if crash:
        story.tell(WorkerExited("trainer", "killed"), WorkerStarted("trainer", 99, 2))
        (train,) = trains(story.tell(READY))
    else:
        story.tell(CommandFailed("train/8/0", "no"))
        (train,) = trains(story.wait("retry/train/8/0"))
    assert train == given and train.weights == THEIRS
    story.tell(trained(8))
    assert story.state.done == (8, 0) and story.state.catch_up is None


@pytest.mark.parametrize("done", [True, False])
def test_a_node_that_is_killed_meanwhile_goes_on_waiting_and_no_longer(done: bool) -> None:
    story = newcomer()
    story.tell(gathered(8, rollouts=ROLLOUTS))
    story.at = 40.0
    story.start_workers()
    again = story.tell(LinkUp(1), Registered("register"), READY, announced(8))
    assert len(asked(again)) == 1 and not trains(again) and story.chart() == "round.gathering"
    if done:
        (train,) = trains(story.tell(FETCHED))
    else:
        (train,) = trains(story.wait("weights"))
        assert story.at == 100.0
    assert train.weights == (THEIRS if done else None) and train.rollouts == ROLLOUTS


def test_a_node_that_is_killed_with_weights_in_the_trainer_gives_them_again() -> None:
    story = newcomer()
    story.tell(gathered(8), FETCHED)
    story.start_workers()
    assert trains(story.tell(LinkUp(1), Registered("register"), READY, announced(8)))[0].weights == THEIRS


def test_a_lost_link_asks_again_and_a_failure_is_tried_again() -> None:
    story = newcomer()
    story.tell(LinkDown("p2pd ended"))
    assert len(asked(story.tell(LinkUp(1)))) == 1
    story.tell(CommandFailed("weights/8", "no answer"))
    assert len(asked(story.wait("retry/weights/8"))) == 1


def test_a_node_from_a_backup_forgets_what_was_fetched() -> None:
    story = newcomer()
    story.tell(FETCHED)
    story.tell(NodeStarted(story.node, run="restored", restored=True))
    assert story.state.catch_up is None and not asked(story.state.pending)


def test_what_the_trainer_refuses_changes_nothing() -> None:
    story = newcomer()
    story.tell(gathered(8), FETCHED)
    before = story.state
    story.tell(WeightsRefused("train/8/0", "no-better", held_out_before=0.5, held_out=0.1))
    assert msgspec.structs.replace(story.state, weights=before.weights) == before


def test_weights_that_come_while_a_stage_is_trained_wait_for_the_next_also_after_a_pause() -> None:
    """The command to train has one content, however often it goes out."""
    story = newcomer()
    story.tell(gathered(8))
    story.tell(announced(9))
    (begun,) = trains(story.tell(gathered(9)))
    story.tell(FETCHED, SpaceLow(1, 2), WorkerExited("trainer", "killed"), WorkerStarted("trainer", 99, 2), READY)
    again = (*story.tell(SpaceFreed(3)), *story.tell(announced(9, deadline_at=2000.0)))
    assert trains(again) == [begun] and begun.weights is None
    story.tell(trained(9), announced(10))
    assert trains(story.tell(gathered(10)))[0].weights == THEIRS


def test_the_state_remembers_what_became_of_weights_last() -> None:
    story = newcomer()
    assert story.state.weights is None
    story.tell(msgspec.structs.replace(FETCHED, received_bytes=4000), gathered(8))
    assert story.state.weights == WeightsOutcome(story.at, "fetched", "them", 7, received_bytes=4000)
    story.tell(WeightsAdopted("train/8/0", 8, 0, THEIRS, 0.25, 0.5))
    assert story.state.weights == WeightsOutcome(story.at, "adopted", "them", 7, "", "", 4000, 0.25, 0.5)
    story.tell(WeightsRefused("train/8/0", "no-better", "x" * 1000, "them", 0.25, 0.125))
    assert story.state.weights == WeightsOutcome(
        story.at, "refused", "them", 7, "no-better", "x" * REASON_MAX, 4000, 0.25, 0.125
    )


@pytest.mark.parametrize(("refused", "outcome"), [(True, ("refused", "none-offered")), (False, ("late", ""))])
def test_the_state_remembers_that_none_came(refused: bool, outcome: tuple[str, str]) -> None:
    story = newcomer()
    story.tell(REFUSED) if refused else story.wait("weights")
    assert story.state.weights is not None
    assert (story.state.weights.outcome, story.state.weights.cause) == outcome
    story.tell(FETCHED)
    assert story.state.weights.outcome == outcome[0], "what comes later is not begun from"


AVERAGED = msgspec.structs.replace(THEIRS, averaged=True)


def averaging(**fields: object) -> Story:
    """A node that has trained round 7, and averages its weights in every second round."""
    story = newcomer(7, True, **({"catch_up_rounds": 0, "average_rounds": 2} | fields))
    story.tell(WeightsRefused("weights/7", "none-offered"), gathered(7), trained(7))
    return story


def test_what_is_averaged_with_is_asked_for_in_its_rounds_and_no_stage_waits_for_it() -> None:
    story = averaging()
    assert not asked(story.told)  # type: ignore[attr-defined]
    (command,) = asked(story.tell(announced(8)))
    assert (command.id, command.average) == ("weights/8", True)
    (train,) = trains(story.tell(gathered(8)))
    assert train.weights is None, "they are not here yet"
    story.tell(WeightsFetched("weights/8", AVERAGED), trained(8))
    assert not asked(story.tell(announced(9))), "no round of averaging"
    assert trains(story.tell(gathered(9)))[0].weights == AVERAGED
    story.tell(trained(9))
    assert story.state.catch_up is None and len(asked(story.tell(announced(10)))) == 1


def test_what_is_here_before_the_stage_is_averaged_with_in_it() -> None:
    story = averaging()
    story.tell(announced(8), WeightsFetched("weights/8", AVERAGED))
    assert trains(story.tell(gathered(8)))[0].weights == AVERAGED


@pytest.mark.parametrize("late", [True, False])
def test_without_any_to_average_with_nothing_is_held_up_and_the_next_turn_comes(late: bool) -> None:
    story = averaging()
    story.tell(announced(8))
    assert not (story.wait("weights") if late else story.tell(REFUSED))
    assert trains(story.tell(gathered(8)))[0].weights is None
    story.tell(trained(8), announced(9), gathered(9), trained(9))
    assert len(asked(story.tell(announced(10)))) == 1


def test_an_absence_comes_before_averaging() -> None:
    """What was asked for to average with is given up: the node begins from the peer's weights, and waits for them."""
    story = averaging(catch_up_rounds=3)
    story.tell(announced(8))
    (command,) = asked(story.tell(announced(12)))
    assert (command.id, command.average) == ("weights/12", False)
    story.tell(WeightsFetched("weights/8", AVERAGED))
    assert not trains(story.tell(gathered(12))), "it waits"
    assert trains(story.tell(WeightsFetched("weights/12", THEIRS)))[0].weights == THEIRS


def test_later_stages_of_a_round_ask_for_none() -> None:
    story = averaging(stages=2)
    story.tell(announced(7, stage=1), gathered(7, 1), trained(7, 1))
    assert len(asked(story.tell(announced(8)))) == 1
    story.tell(gathered(8), REFUSED, trained(8))
    assert not asked(story.tell(announced(8, stage=1)))


def average(story: Story, round: int, weights: PeerWeights = AVERAGED) -> None:
    """A round in which weights come before its stage, which is trained."""
    story.tell(announced(round), WeightsFetched(f"weights/{round}", weights), gathered(round), trained(round))


def test_what_was_averaged_with_is_named_when_the_next_is_asked_for_and_not_taken_again() -> None:
    story = averaging()
    (first,) = asked(story.tell(announced(8)))
    assert (first.averaged, first.oldest_round) == ((), 0)
    story.tell(WeightsFetched("weights/8", AVERAGED), gathered(8), trained(8), announced(9), gathered(9), trained(9))
    (second,) = asked(story.tell(announced(10)))
    assert (second.averaged, second.oldest_round) == ((AveragedOffer("them", 7, "c" * 64),), 2)
    story.tell(WeightsFetched("weights/10", AVERAGED))
    assert trains(story.tell(gathered(10)))[0].weights is None
    assert story.state.weights is not None
    assert (story.state.weights.outcome, story.state.weights.cause) == ("refused", "none-offered")


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"digest": "e" * 64, "round": 8}, True),
        ({"peer": "another", "digest": "e" * 64}, True),
        ({"digest": "e" * 64}, False),  # other weights, of a round that was taken
        ({"peer": "another", "round": 8}, False),  # the same weights under another name
        ({"round": 8}, False),
        ({"peer": "another", "digest": "e" * 64, "round": 1}, False),
        ({"peer": "another", "digest": "e" * 64, "round": 2}, True),
    ],
)
def test_an_offer_is_taken_once_unless_it_changed_and_none_that_is_many_rounds_old(
    changes: dict[str, Any], taken: bool
) -> None:
    story = averaging()
    average(story, 8)
    story.tell(announced(9), gathered(9), trained(9), announced(10))
    story.tell(WeightsFetched("weights/10", msgspec.structs.replace(AVERAGED, **changes)))
    assert (trains(story.tell(gathered(10)))[0].weights is not None) == taken


def test_all_that_went_into_a_mean_is_named_and_none_of_it_is_taken_again() -> None:
    story = averaging()
    others = (AveragedOffer("a", 7, "e" * 64), AveragedOffer("b", 6, "f" * 64))
    average(story, 8, msgspec.structs.replace(AVERAGED, others=others))
    story.tell(announced(9), gathered(9), trained(9))
    (command,) = asked(story.tell(announced(10)))
    assert command.averaged == (AveragedOffer("them", 7, "c" * 64), *others)
    fresh = msgspec.structs.replace(AVERAGED, peer="c", round=9, digest="1" * 64, others=others[1:])
    story.tell(WeightsFetched("weights/10", fresh))
    assert trains(story.tell(gathered(10)))[0].weights is None


def test_a_stage_that_came_to_no_end_has_averaged_with_nothing() -> None:
    story = averaging()
    story.tell(announced(8), WeightsFetched("weights/8", AVERAGED), gathered(8))
    assert story.state.averaged == ()


def test_what_is_too_old_to_be_taken_is_forgotten_and_no_more_than_so_many_are_kept() -> None:
    story = averaging(average_rounds=1)
    for round in range(8, 8 + AVERAGED_MAX + 4):
        average(story, round, msgspec.structs.replace(AVERAGED, digest=f"{round:064x}", round=round - 1))
    last = 8 + AVERAGED_MAX + 3
    assert [each.round for each in story.state.averaged] == list(range(last - 8, last))
    for round in range(last + 1, last + AVERAGED_MAX + 5):  # a claim of a round far off
        average(story, round, msgspec.structs.replace(AVERAGED, digest=f"{round:064x}", round=10**6 + round))
    assert len(story.state.averaged) == AVERAGED_MAX
