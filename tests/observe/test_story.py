"""The story of a round: outcome, cause, sentences, advice."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.core.events import (
    LinkDown,
    LinkUp,
    NodeStarted,
    NodeStopped,
    Registered,
    ReportPublished,
    RoundAnnounced,
    StopRequested,
    TrainerReady,
    WorkerExited,
)
from swarmd.eventlog.fold import commits_from, fold_commits, oldest_base
from swarmd.observe.describe import describe
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, status_of
from swarmd.observe.story import SENTENCES_MAX, Story, StoryTeller
from tests.core import story as core
from tests.observe.printing import printed

GOLDEN = sorted(Path(__file__).parent.parent.joinpath("golden").glob("*/events"))
OUTCOMES = {"trained", "skipped", "missed", "open", "ahead", "unknown"}


class Told(core.Story):
    """A node whose life is written down with its states."""

    def __init__(self, **fields: object) -> None:
        super().__init__(core.settings(**fields))

    def train(self, round: int, seconds: float = 3.0) -> None:
        """The node takes part in a round and trains it."""
        self.tell(core.announced(round, deadline_at=self.at + 60))
        if round:
            self.tell(core.gathered(round))
        self.at += seconds
        self.tell(core.trained(round))
        self.tell(ReportPublished(f"report/{round}/0", round, 0))

    def story(self, round: int, first: int = 0, now: float | None = None) -> Story:
        teller = StoryTeller(round)
        for one in self.heard[first:]:
            teller.apply(one)
        return teller.story(now)


def words(story: Story) -> str:
    return "\n".join(sentence.text for sentence in story.sentences)


@pytest.fixture
def node() -> Told:
    told = Told()
    told.at = 100.0
    told.join()
    return told


def test_a_trained_round_names_its_reward_and_says_how_it_went(node: Told) -> None:
    node.train(0)
    node.train(1)
    node.train(2)
    story = node.story(1)
    assert story.outcome == "trained" and "reward 0.500" in story.verdict
    assert "round 1 stage 0 opened" in words(story) and "report of round 1 stage 0 published" in words(story)
    assert "round 2" not in words(story).replace("round 2 stage 0 opened", "") and not story.advice


def test_a_round_before_the_first_was_late(node: Told) -> None:
    node.train(5)
    story = node.story(2)
    assert story.outcome == "skipped" and "cause late" in story.verdict and "Rounds 0 to 4 were" in story.verdict
    assert story.advice == ("Nothing is wrong: rounds before a node's first are recorded as late.",)


def test_a_slow_node_is_told_what_it_was_doing_and_how_long_a_stage_takes(node: Told) -> None:
    node.train(0)
    node.tell(core.announced(1, deadline_at=node.at + 60), core.gathered(1))
    node.at += 50
    node.tell(core.announced(2, deadline_at=node.at + 60))
    node.at += 50
    node.tell(core.announced(3, deadline_at=node.at + 60))
    node.tell(core.trained(1), ReportPublished("report/1/0", 1, 0))
    story = node.story(2)
    assert story.outcome == "skipped" and "cause slow" in story.verdict
    assert "training round 1 stage 0, for 50 s so far" in story.verdict
    assert "round 1 stage 0 trained in" in words(story)
    assert any("held up" in line for line in story.advice)  # 100 s for a stage that says it took none


def test_a_round_that_the_swarm_passed_over_is_not_put_down_to_training(node: Told) -> None:
    node.train(0)
    node.tell(core.announced(1, deadline_at=node.at + 60, opened_at=node.at), core.gathered(1))
    node.tell(core.announced(3, deadline_at=node.at + 60, opened_at=node.at))
    node.tell(core.trained(1), ReportPublished("report/1/0", 1, 0))
    story = node.story(2)
    assert story.outcome == "skipped" and len(story.advice) == 1
    assert story.advice[0].startswith("Training was not why: round 1 stage 0 took 0 s, and stages are open for up to")


def test_the_time_in_which_a_trainer_loads_is_told_as_that(node: Told) -> None:
    node.train(0)
    node.tell(core.announced(1, deadline_at=node.at + 60), core.gathered(1))
    node.start_workers()
    node.tell(LinkUp(3), Registered("register"), core.announced(1, deadline_at=node.at + 60))
    node.at += 30
    told = node.story(1, now=node.at + 5).verdict
    assert "this node is loading its trainer for round 1 stage 0, for 35 s so far" in told
    node.tell(TrainerReady("cpu", "tiny", 1))
    node.at += 2
    assert "this node is training round 1 stage 0, for" in node.story(1, now=node.at).verdict
    node.tell(core.announced(2, deadline_at=node.at + 60), core.announced(3, deadline_at=node.at + 60))
    late = core.trained(1)
    node.tell(type(late)(late.command, 1, 0, 0.5, late.rollouts, seconds=2.0), ReportPublished("report/1/0", 1, 0))
    advice = "\n".join(node.story(2).advice)
    assert "took 2 s of work, after 30 s in which its trainer was loaded" in advice and "held up" not in advice


def test_other_weights_than_the_swarms_are_told_in_the_log_status_and_story(node: Told) -> None:
    differ = "the weights of tiny have the digest aaaa, training.revision names bbbb"
    ready = TrainerReady("cpu", "tiny", 1, other_weights=differ)
    node.start_workers()
    node.tell(LinkUp(3), Registered("register"), ready)
    told = describe(next(one for one in node.heard if one.envelope.event is ready))
    assert told.level == "warning" and differ in told.text
    node.train(0)
    assert node.story(0).advice == (f"This node began from other weights than its swarm: {differ}.",)
    status = status_of(node.state, node.at, LogStatus("", 0, 0))
    assert status.training.other_weights == differ
    assert f"begun from other weights than the swarm: {differ}" in printed(panel_of(status), 200)


def test_a_fault_is_named_even_when_it_came_before_the_round(node: Told) -> None:
    node.train(0)
    node.tell(WorkerExited("trainer", "killed by signal 9 (out of memory?); last output:\nnoise", signal=9))
    node.tell(core.announced(1, deadline_at=node.at + 60))
    node.at += 60
    node.tell(core.announced(4, deadline_at=node.at + 60))
    story = node.story(2)
    assert story.outcome == "skipped" and "cause fault" in story.verdict
    assert "trainer worker exited: killed by signal 9 (out of memory?)" in story.verdict
    assert "noise" not in words(story)
    assert any(sentence.trouble for sentence in story.sentences)
    assert any("swarmd doctor" in line for line in story.advice)


def test_a_crash_is_told_from_an_orderly_stop(node: Told) -> None:
    node.train(0)
    node.at += 40
    node.start()
    assert "after a crash or a kill; up to 40 s were lost" in words(node.story(0))
    node.tell(NodeStarted(node.node, run="again", restored=True))
    assert "restored from a backup; up to 0 s were lost" in words(node.story(0))
    node.tell(StopRequested("signal SIGTERM"), NodeStopped("signal SIGTERM"))
    node.at += 7
    node.start()
    node.tell(core.announced(1, deadline_at=node.at + 60))
    assert "7 s after it had stopped" in words(node.story(0))


@pytest.mark.parametrize("restored, lost", [((1, 0), False), ((0, 0), True), (None, True)])
def test_what_a_kill_right_after_a_report_cost_is_told(
    node: Told, restored: tuple[int, int] | None, lost: bool
) -> None:
    node.train(0)
    node.train(1)
    node.start_workers()
    node.tell(LinkUp(3), Registered("register"), core.announced(2, deadline_at=node.at + 60))
    node.tell(TrainerReady("cpu", "tiny", 1, restored=restored))
    told = words(node.story(2))
    assert ("up to round 1 stage 0, is lost; what it reported counts" in told) == lost
    assert ("its weights are those after round 0 stage 0" in told) == (restored == (0, 0))


def test_a_round_in_hand_a_round_to_come_and_a_round_that_the_log_has_lost(node: Told) -> None:
    node.train(0)
    node.tell(core.announced(1, deadline_at=node.at + 60))
    assert node.story(1).outcome == "open" and "fetching peers' rollouts of round 1" in node.story(1).verdict
    assert node.story(9).outcome == "ahead" and "swarm at round 1 stage 0, as this log ends" in node.story(9).verdict
    node.train(2)
    seen = [one.before.work for one in node.heard]
    first = next(index for index, work in enumerate(seen) if work is not None and work.round == 2)
    assert node.story(0, first).outcome == "unknown" and "nothing is known" in node.story(0, first).verdict


def test_a_story_is_bounded(node: Told) -> None:
    node.tell(core.announced(0, deadline_at=node.at + 60))
    for number in range(SENTENCES_MAX):
        node.tell(LinkDown(f"p2pd died {number}"), LinkUp(3))
    story = node.story(0)
    assert len(story.sentences) == SENTENCES_MAX and story.cut >= SENTENCES_MAX


@pytest.mark.parametrize("log", GOLDEN, ids=lambda log: log.parent.name)
def test_every_round_of_a_real_log_has_a_story(log: Path) -> None:
    base = oldest_base(log)
    applied = list(fold_commits(commits_from(log, base), base.state))
    last = applied[-1].after
    rounds = range((last.clock.round if last.clock else 0) + 2)
    for round in rounds:
        teller = StoryTeller(round)
        for one in applied:
            teller.apply(one)
        story = teller.story()
        assert story.outcome in OUTCOMES and story.verdict.endswith(".")
        skipped = [skip for skip in last.skips if skip.first <= round <= skip.last]
        assert (story.outcome == "skipped") == bool(skipped)
        if skipped:
            assert f"cause {skipped[0].cause}" in story.verdict and story.advice


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 8))
def test_whatever_happens_there_is_a_story(choices: list[int], round: int) -> None:
    node = Told()
    node.join()
    place = 0
    for choice in choices:
        node.at += 10
        if choice == 0:
            place += 1
        happens = [
            RoundAnnounced(place, 0, node.at, node.at + 60),
            core.gathered(place),
            core.trained(place),
            WorkerExited("trainer", "killed"),
            LinkDown("gone"),
            LinkUp(2),
            RoundAnnounced(place + 2, 0, node.at, node.at + 60, final=True),
        ]
        node.tell(happens[choice])
    story = node.story(round)
    assert story.outcome in OUTCOMES and story.verdict
    assert all(sentence.text and not sentence.text.endswith(".") for sentence in story.sentences)
