"""Each token that was drawn is in exactly one class, whatever becomes of its stage and its trainer."""

import pytest
from msgspec.structs import replace

from swarmd.core.events import CheckpointWritten, StageTrained, TrainerReady, TrainingCancelled, WorkerExited
from swarmd.core.token_ledger import TEACHERS_KEPT, add_teachers, difference
from swarmd.core.values import PeerTokens, StageTokens, TokenLedger
from swarmd.observe.tokens import tokens_status
from tests.core.story import Story, announced, gathered, settings, trained

FIRST = StageTokens(100, 100, trained=60, flat=30, shared=10)


def ready(drawn: int, restored: tuple[int, int] | None = None) -> TrainerReady:
    return TrainerReady("cpu", "embedded", 1, drawn=drawn, restored=restored)


def stage(round: int, tokens: StageTokens) -> StageTrained:
    return replace(trained(round), ledger=tokens)


def at_round_one(tokens: StageTokens | None = None) -> Story:
    """A node that trains round 1, or has trained it."""
    node = Story.joined(settings())
    node.tell(announced(1))
    node.tell(gathered(1))
    if tokens is not None:
        node.tell(stage(1, tokens))
    return node


def ledger_of(node: Story) -> TokenLedger:
    """The ledger, once it is seen that its classes add up."""
    ledger = node.state.tokens
    assert difference(ledger) == 0
    return ledger


def killed(node: Story) -> None:
    node.tell(WorkerExited("trainer", "killed", signal=9))


def test_a_stage_tells_its_classes() -> None:
    teachers = (PeerTokens("otto", 7),)
    ledger = ledger_of(at_round_one(replace(FIRST, teachers=teachers)))
    assert (ledger.generated, ledger.trained, ledger.flat, ledger.shared) == (100, 60, 30, 10)
    assert ledger.teachers == teachers


def test_a_stage_that_tells_other_classes_than_it_drew_is_noticed() -> None:
    assert difference(at_round_one(replace(FIRST, trained=59)).state.tokens) == 1


def test_what_a_killed_stage_drew_is_cancelled() -> None:
    node = at_round_one()
    killed(node)
    node.tell(ready(40))
    assert ledger_of(node).cancelled == 40
    node.tell(stage(1, replace(FIRST, drawn=140)))
    assert (ledger_of(node).generated, ledger_of(node).cancelled) == (140, 40)


def test_a_cancelled_stage_tells_what_it_drew() -> None:
    node = at_round_one()
    node.tell(TrainingCancelled("cancel/1/0", 1, 0, 3, 40))
    assert ledger_of(node).cancelled == 40


def test_a_stage_that_failed_and_was_trained_again_counts_twice() -> None:
    """The failure itself tells nothing: the count of the next stage does."""
    ledger = ledger_of(at_round_one(replace(FIRST, drawn=125)))
    assert (ledger.generated, ledger.cancelled) == (125, 25)


def test_a_stage_answered_from_its_checkpoint_was_not_cancelled() -> None:
    """Its trainer was killed between the checkpoint and the report, and the next one tells its count first."""
    node = at_round_one()
    killed(node)
    node.tell(ready(100, restored=(1, 0)))
    assert ledger_of(node).cancelled == 100
    node.tell(stage(1, FIRST))
    assert (ledger_of(node).generated, ledger_of(node).trained, ledger_of(node).cancelled) == (100, 60, 0)


@pytest.mark.parametrize(("restored", "stale"), [(None, 60), ((0, 0), 60), ((1, 0), 0)])
def test_what_was_trained_and_never_saved_is_stale(restored: tuple[int, int] | None, stale: int) -> None:
    node = at_round_one(FIRST)
    killed(node)
    node.tell(ready(100, restored))
    ledger = ledger_of(node)
    assert (ledger.stale, ledger.trained) == (stale, 60 - stale)
    node.tell(ready(100))
    assert ledger_of(node).stale == stale, "told once"


def test_a_checkpoint_keeps_what_was_trained() -> None:
    node = at_round_one(FIRST)
    node.tell(CheckpointWritten(1, 0, "d"))
    killed(node)
    node.tell(ready(100))
    assert ledger_of(node).stale == 0


def test_a_counter_that_begins_again_is_followed() -> None:
    node = at_round_one(FIRST)
    killed(node)
    node.tell(ready(0, restored=(1, 0)))
    assert ledger_of(node).generated == 100
    node.tell(announced(2))
    node.tell(gathered(2))
    node.tell(stage(2, StageTokens(30, 20, trained=20)))
    assert (ledger_of(node).generated, ledger_of(node).cancelled) == (130, 10)


def test_status_says_it_in_words() -> None:
    node = at_round_one(replace(FIRST, teachers=(PeerTokens("otto", 7), PeerTokens("", 2))))
    told = tokens_status(node.state)
    assert told is not None and (told.generated, told.difference, told.without_variance) == (100, 0, 30)
    assert told.words == (
        "of 100 tokens that it generated: 60 trained on, 30 without variance (all answers paid alike), "
        "10 only shared with peers (the batch was full); 9 of 1 peer taught it, too"
    )
    assert tokens_status(Story.joined(settings()).state) is None


def test_teachers_are_bounded_and_none_is_lost() -> None:
    many = tuple(PeerTokens(f"peer-{number}", number + 1) for number in range(TEACHERS_KEPT + 2))
    kept = add_teachers((), many)
    assert kept[0] == many[-1] and kept[-1] == PeerTokens("", 1 + 2) and len(kept) == TEACHERS_KEPT + 1
    again = add_teachers(kept, (PeerTokens("peer-0", 100),))
    assert again[0] == PeerTokens("peer-0", 100) and sum(each.tokens for each in again) == 100 + sum(
        each.tokens for each in many
    )
