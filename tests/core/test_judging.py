"""Votes by what this node's own scoring gives peers' rollouts, whatever they report of themselves."""

import pytest
from msgspec.structs import replace

from swarmd.core.commands import CollectReports
from swarmd.core.events import Event, ReportPublished, ReportSeen, StageLog, StageTrained, TrainingCancelled
from swarmd.core.values import Judgement
from tests.core.story import Story, chain_settings, chain_up, gathered, said, trained
from tests.core.test_submissions import vote_of


def joined(stages: int = 1, **fields: object) -> Story:
    node = replace(chain_settings(votes="judged", **fields), stages=stages)  # type: ignore[arg-type]
    return Story.on_chain(node, chain_up(stages=stages))


def judged(round: int, stage: int = 0, reward: float = 0.0, **worths: float) -> StageTrained:
    """A trained stage whose peers' rollouts, of the stage before, were worth this."""
    judgements = tuple(Judgement(peer, worth) for peer, worth in worths.items())
    return replace(trained(round, stage, reward), judged=judgements)


def reach(story: Story, round: int, stage: int = 0) -> None:
    """The contract opens a stage, and the trainer is at it."""
    story.tell(said(10 * (round + 1) + stage, StageLog(0, "0xt", round, stage)), gathered(round, stage))


def give_up(story: Story, round: int, stage: int = 0) -> None:
    story.wait("train")
    story.tell(TrainingCancelled(f"train/{round}/{stage}", round, stage))


def finish(story: Story, event: StageTrained) -> None:
    story.tell(event, ReportPublished(f"report/{event.round}/{event.stage}", event.round, event.stage))


def test_what_peers_say_of_themselves_decides_nothing() -> None:
    story = joined()
    story.tell(ReportSeen("liar", 0, 0, 1e9))
    finish(story, trained(0, reward=0.2))
    reach(story, 1)
    assert vote_of(story, 0) is None, "the round's last stage is judged in the next one"
    finish(story, judged(1, anna=0.9, liar=0.1))
    assert vote_of(story, 0) == ("anna",)


def test_reports_are_not_asked_for() -> None:
    commands = joined().tell(said(20, StageLog(0, "0xt", 1, 0)))
    assert not [command for command in commands if isinstance(command, CollectReports)]


def test_stages_add_up_over_the_end_of_the_round() -> None:
    story = joined(stages=2, winners=3)
    finish(story, trained(0, 0, reward=0.1))
    reach(story, 0, 1)
    finish(story, judged(0, 1, reward=0.1, anna=0.5, otto=0.7))
    reach(story, 1)
    finish(story, judged(1, 0, anna=0.4, otto=0.1, me=9.0))
    assert vote_of(story, 0) == ("anna", "otto", "me"), "this node's own rewards are those of its own stages"


def test_a_judgement_of_another_stage_does_not_end_the_count() -> None:
    story = joined(stages=2)
    finish(story, trained(0, 0, reward=0.1))
    reach(story, 1)
    finish(story, judged(1, 0, anna=0.4))  # of stage 1 of round 0
    assert vote_of(story, 0) == ("anna",)
    reach(story, 1, 1)
    finish(story, judged(1, 1, otto=5.0))  # of stage 0 of round 1
    assert vote_of(story, 1) is None


def test_a_round_that_nobody_judged_is_voted_on_when_the_next_one_is_over() -> None:
    story = joined()
    finish(story, trained(0, reward=0.2))
    reach(story, 1)
    story.tell(said(25, StageLog(0, "0xt", 2, 0)))
    assert vote_of(story, 0) is None, "round 1 is still in training, and judges round 0"
    give_up(story, 1)
    assert vote_of(story, 0) == ("me",)


def test_what_a_trainer_makes_of_its_own_nodes_rollouts_counts_nothing() -> None:
    """Some may lie in the network that another life of this node made, or a twin: of stages not trained here."""
    story = joined(stages=2, winners=2)
    finish(story, trained(0, 0, reward=0.1))
    reach(story, 0, 1)
    give_up(story, 0, 1)
    reach(story, 1)
    finish(story, judged(1, 0, anna=0.4, me=9.0))  # of the stage that was given up here
    assert vote_of(story, 0) == ("anna", "me")


@pytest.mark.parametrize("worth", [float("nan"), float("inf")])
def test_what_is_no_number_counts_nothing(worth: float) -> None:
    story = joined()
    finish(story, trained(0, reward=0.2))
    reach(story, 1)
    events: list[Event] = [judged(1, liar=worth)]
    story.tell(*events)
    assert vote_of(story, 0) == ("me",)
