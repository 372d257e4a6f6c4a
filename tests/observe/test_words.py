"""What events say: blocks, evidence, weights, what was set aside, accuracy by task, whom a stage waits for."""

import string
import typing
from typing import get_args

import pytest
from hypothesis import given
from msgspec.structs import replace

from swarmd.bounds import WORD_MAX
from swarmd.cli.explain import render_story
from swarmd.core import events
from swarmd.core.applied import AppliedEvent, apply_event
from swarmd.core.evidence import BARRED_ROUNDS
from swarmd.core.rounds import count_set_aside
from swarmd.core.state import Clock, State, Submission
from swarmd.core.values import (
    AveragedOffer,
    BlockRef,
    CoordinatorSettings,
    Judgement,
    PeerWeights,
    RolloutsRef,
    SetAside,
    Settings,
    Skill,
    SubmissionAttempt,
)
from swarmd.observe.describe import WORDS, EventLine, describe, make_event_line
from swarmd.observe.layers import LiveDaemon
from swarmd.observe.metrics import EventCounts, read_status
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, Status, status_of
from swarmd.observe.story import StoryTeller, make_sentences
from swarmd.observe.words import AGAIN, NO_NEWCOMERS, SILENT, describe_skills
from swarmd.web.swarm import PeerLedger, ViewContext, swarm_view
from tests.core import story as core
from tests.core.story import Story, announced, settings
from tests.core.swarm import Swarm
from tests.eventlog.making import structs_of
from tests.observe.printing import words_in
from tests.observe.test_metrics import JOINED, count

SETTINGS = Settings("me", "test", "coordinator", "me", coordination=CoordinatorSettings())
REFERENCE = RolloutsRef("me", 1, 0, "d" * 64, 10, 1)
EMPTY = State(chart="starting")
STATE = State(settings=SETTINGS, clock=Clock(4, 1, 0.0, 10.0), chart="waiting")
EXAMPLES: tuple[events.Event, ...] = (
    events.NodeStarted(SETTINGS, "run"),
    events.RoundAnnounced(4, 1, 0.0, 10.0),
    events.StageTrained("c", 2, 1, 0.5, REFERENCE),
    events.ReportSeen("other", 3, 0, 0.5),
    events.WorkerExited("trainer", "why; last output:\nline\nline"),
    events.RecordsRejected("other", "stale", 3),
    events.ReportsSeen(3, 0, (events.ReportRow("other", 0.5), events.ReportRow("third", 0.25))),
    events.MembersSeen((events.MemberRow("other", "Otto"),)),
)


def test_every_event_has_words_that_fit_it() -> None:
    kinds = set(typing.get_args(events.Event))
    assert set(WORDS) == kinds
    for kind, how in WORDS.items():
        if isinstance(how.words, str):
            names = {part.split(".")[0] for _, part, _, _ in string.Formatter().parse(how.words) if part}
            assert all(hasattr(kind, name) for name in names), kind


def line(event: events.Event, before: State = STATE, after: State = STATE) -> EventLine:
    return make_event_line(AppliedEvent(events.Envelope(7, 1.0, event), before, after, ()))


@pytest.mark.parametrize("event", EXAMPLES, ids=events.tag_of)
def test_a_line_carries_seq_round_stage_peer_and_tag(event: events.Event) -> None:
    fields = line(event).fields
    assert fields["seq"] == 7 and fields["event"] == events.tag_of(event)
    assert fields["peer"] == getattr(event, "peer", "me")
    assert (fields["round"], fields["stage"]) == (getattr(event, "round", 4), getattr(event, "stage", 1))


def test_a_trained_stage_says_what_was_refused_and_how_peers_were_judged() -> None:
    event = replace(EXAMPLES[2], rejected=(("group-size", 3), ("{odd}", 1)), judged=(Judgement("b", 0.5),))
    said = line(event)
    assert said.message.endswith("reward 0.5000; refused of peers: group-size 3, {odd} 1")
    assert said.fields["judged"] == (("b", 0.5),)


def test_a_stage_that_was_drawn_ahead_says_with_which_weights() -> None:
    event = replace(EXAMPLES[2], staleness=1)
    told = describe(AppliedEvent(events.Envelope(7, 1.0, event), STATE, STATE, ()))
    assert told.details == "drawn ahead, with the weights of the step before"
    assert line(event).fields["staleness"] == 1


@pytest.mark.parametrize(
    ("event", "before", "level"),
    [
        (events.LinkUp(1), EMPTY, "info"),
        (events.LinkUp(1), STATE, "debug"),  # it changed nothing
        (events.MemberSeen("x"), STATE, "debug"),
        (events.CommandFailed("c", "why"), STATE, "warning"),
        (events.RoundsSkipped(0, 3, "slow"), EMPTY, "warning"),
        (events.WorkerExited("trainer", "x"), EMPTY, "warning"),
        (events.WorkerExited("trainer", "x", permanent=True, exit_code=66), EMPTY, "error"),
        (events.WorkerExited("trainer", "x", code=70), EMPTY, "warning"),  # a status of the worker is no verdict
        (events.WorkerExited("trainer", "stopped"), State(chart="draining"), "info"),
        (events.WorkerExited("trainer", "recycled", planned=True), EMPTY, "info"),
        (events.NodeStopped("x", 73), EMPTY, "error"),
        (events.NodeStopped("x", 0), EMPTY, "info"),
    ],
)
def test_levels(event: events.Event, before: State, level: str) -> None:
    assert line(event, before).level == level


HASH = "0x" + "ab" * 32
BLOCK = BlockRef(12, HASH, "0x" + "cd" * 32, 5.0)
FOLLOWER = Settings("me", "test", "follower", "")
BEFORE = State(settings=FOLLOWER, clock=Clock(4, 1, 0.0, 10.0), chart="waiting")
AFTER = State(
    settings=FOLLOWER,
    clock=BEFORE.clock,
    chart="waiting",
    submissions=(Submission("reward/3/2", "reward", round=3, stage=2),),
)
SAID: tuple[events.AnyChainLog, ...] = (
    events.RegistrationLog(0, HASH, "0xA", "me"),
    events.RegistrationLog(1, HASH, "0xB", "other"),
    events.RewardLog(2, HASH, "0xA", "me", 3, 2, "-412"),
    events.RewardLog(3, HASH, "0xB", "other", 3, 2, "7"),
    events.RewardLog(4, HASH, "0xC", "third", 3, 2, "8"),
    events.VoteLog(5, HASH, "0xA", "me", 2, ("other",)),
    events.PolicyLog(6, HASH, 3, 600),
    events.StageLog(7, HASH, 3, 2),
    events.StageLog(8, HASH, 4, 0),
    events.OtherLog(9, HASH, "BootnodesAdded"),
)


def test_a_block_names_what_is_ours_and_counts_the_rest() -> None:
    told = line(events.ChainBlock(BLOCK, SAID), BEFORE, AFTER)
    assert told.level == "info"
    assert told.message == (
        "block 12: round 4 stage 0 is open, own registration by 0xA, own reward of round 3 stage 2: -412, "
        "own vote of round 2, the policy is 3 submissions or 600 s, 1 registration, 2 rewards, 1 x BootnodesAdded"
    )
    assert (told.fields["block"], told.fields["block_hash"]) == (12, HASH)
    assert "logs" not in told.fields


@pytest.mark.parametrize(
    ("event", "level", "message"),
    [
        (events.ChainUp(31337, "0xC", HASH, BLOCK, 1, 4, 1, 0.0), "info", "the chain 31337 is read up to block 12"),
        (events.ChainDegraded("no endpoint answers"), "warning", "the chain cannot be read: no endpoint answers"),
        (events.SubmissionsCounted(4, 1, 512), "debug", "512 reports of round 4 stage 1 are on the chain"),
        (events.ChainReorged(BLOCK, 1), "info", "the chain was reorganised: blocks after 12 are dropped, 1 in all"),
        (events.ChainReorged(BLOCK, 2), "warning", "the chain was reorganised: blocks after 12 are dropped, 2 in all"),
        (events.MembershipRead(True), "info", "everybody may take part"),
        (events.MembershipRead(False, ("a", "b")), "info", "2 peers are on the allow-list"),
        (
            events.SubmissionPrepared("reward/3/2", SubmissionAttempt(HASH, 7, b"r")),
            "info",
            "reward/3/2: an attempt is ready",
        ),
        (events.SubmissionSent("reward/3/2", HASH), "info", "reward/3/2: sent"),
        (events.SubmissionIncluded("reward/3/2", BLOCK), "info", "reward/3/2: on the chain, in block 12"),
        (events.SubmissionConfirmed("reward/3/2", BLOCK), "info", "reward/3/2: confirmed, in block 12"),
        (events.SubmissionLost("reward/3/2", "nonce used"), "warning", "reward/3/2: its attempts are lost: nonce used"),
        (events.SubmissionRefused("reward/3/2", "below-mark", "w"), "warning", "reward/3/2: refused, below-mark: w"),
        (events.SubmissionRefused("register", "taken", "w", True), "error", "register: refused, taken: w"),
        (
            events.SubmissionRefused("advance/3/2", "AdvanceNotAllowed", "w"),
            "info",
            "advance/3/2: refused, AdvanceNotAllowed: w",
        ),
    ],
)
def test_levels_and_words(event: events.Event, level: str, message: str) -> None:
    told = line(event, BEFORE, AFTER)
    assert (told.level, told.message) == (level, message)


def test_an_attempt_tells_its_transaction_and_never_its_body() -> None:
    told = line(events.SubmissionPrepared("reward/3/2", SubmissionAttempt(HASH, 7, b"raw", "9")), BEFORE, AFTER)
    assert (told.fields["transaction"], told.fields["nonce"], told.fields["fee_wei"]) == (HASH, 7, "9")
    assert "prepared" not in told.fields and "raw" not in told.fields


CHAIN_EVENTS = [
    kind for kind in get_args(events.Event) if kind.__name__.startswith(("Chain", "Submission", "Membership"))
]


@pytest.mark.parametrize("kind", CHAIN_EVENTS, ids=lambda kind: kind.__name__)
def test_whatever_an_event_holds_gives_a_line(kind: type) -> None:
    @given(structs_of(kind))
    def check(event: events.Event) -> None:
        told = line(event, BEFORE, AFTER)
        assert told.message and {"seq", "event", "round", "stage", "peer"} <= set(told.fields)

    check()


CLOCK = events.Equivocated("clock", "boss", 3, 0, b"1", b"2")
REPORT = events.Equivocated("report", "anna", 3, 0, b"1", b"2")
OWN = events.Equivocated("report", "me", 3, 0, b"1", b"2")


def follower(*happened: events.Equivocated) -> Story:
    node = Story.joined(settings())
    node.tell(announced(3), *happened)
    return node


def status(node: Story) -> Status:
    return status_of(node.state, 10.0, LogStatus("", 0, 0), LiveDaemon(pid=1, rss_bytes=0))


def test_a_coordinator_that_contradicts_itself_is_told_with_what_the_node_does() -> None:
    told = status(follower(CLOCK))
    assert "the coordinator boss signed two different clock records of round 3 stage 0" in told.round.reason
    assert told.round.healthy, "it goes on"
    (note,) = told.notes
    assert "later place and deadline" in note and "swarmd explain --evidence" in note
    assert "two different clock records" in words_in(panel_of(told))


def test_a_member_is_told_with_the_round_in_which_it_is_back_and_then_forgotten() -> None:
    node = follower(REPORT, OWN)
    first, second = status(node).notes
    assert "anna signed two different reports of round 3 stage 0: nothing of it counts until round 67" in first
    assert second.startswith("this node's identity signed two different reports")
    assert "anna" not in status(node).round.reason
    node.tell(announced(3 + BARRED_ROUNDS))
    assert status(node).notes == ()


def test_each_is_counted_and_logged_once() -> None:
    node, outcomes, levels = follower(), EventCounts(), []
    for number, event in enumerate((CLOCK, REPORT, REPORT)):
        applied = apply_event(node.state, events.Envelope(node.seq + number, 10.0, event))
        node.state = applied.after
        outcomes.apply(applied)
        levels.append(make_event_line(applied).level)
    counted = {
        sample.labels["kind"]: sample.value
        for family in outcomes.collect()
        for sample in family.samples
        if sample.name == "swarmd_equivocations_total"
    }
    assert counted == {"report": 1, "clock": 1, "leaderboard": 0}
    assert levels == ["error", "warning", "debug"]


HONEST = SetAside("anna", 100, 25, "so 7 <answer>7</answer>", "so 7")
HOSTILE = SetAside("mallory", 200, 180, "!!<answer>7</answer>", "!!", "!!", 1.0, 0.0, 0.004)
TRAINED = core.trained(0)


def told(*asides: SetAside) -> tuple[str, bool]:
    event = replace(TRAINED, set_aside=asides)
    (sentence,) = make_sentences(AppliedEvent(events.Envelope(1, 1.0, event), State(), State(), ()), 0.0)
    return sentence.text, sentence.trouble


def test_a_peer_of_whom_something_was_set_aside_is_named_with_an_example() -> None:
    assert "set aside" not in told()[0]
    text, trouble = told(HONEST)
    assert text.endswith('of anna 25% was set aside, such as "so 7" in "so 7 <answer>7</answer>"') and not trouble


def test_a_mark_is_trouble_and_comes_with_its_evidence() -> None:
    text, trouble = told(HOSTILE, HONEST)
    assert trouble and "of mallory 90% was set aside" in text and "of anna 25%" in text
    assert (
        '"!!" stands in 100% of its right answers, 0% of its wrong ones and 0% of this node\'s own, as a payload would'
        in text
    )


def test_a_log_line_warns_of_a_mark_and_is_silent_otherwise() -> None:
    for asides, level in (((), "info"), ((HONEST,), "info"), ((HOSTILE,), "warning")):
        said = line(replace(TRAINED, set_aside=asides), State(), State(chart="waiting"))
        assert (said.level, "set aside" in said.message) == (level, level == "warning")


def test_the_state_keeps_of_each_stage_what_was_set_aside_by_reason() -> None:
    node = core.Story.joined(core.settings())
    node.tell(core.announced(0))
    node.tell(replace(TRAINED, set_aside=(HOSTILE, replace(HONEST, over_share=3, of_little=1, too_long=2))))
    assert node.state.rewards[-1].set_aside == tuple(
        {"unvouched": 205, "share": 3, "little": 1, "long": 2, "mark": 1}.items()
    )
    node.tell(core.announced(1))
    node.tell(core.trained(1))
    assert node.state.rewards[-1].set_aside == ()


def test_what_the_state_keeps_fits_into_a_log_whatever_the_trainer_says() -> None:
    huge = SetAside("mallory", 2**63, 2**63, over_share=-5)
    assert count_set_aside((huge, huge, huge)) == (("unvouched", WORD_MAX),)


def test_tokens_and_marks_are_counted() -> None:
    busy = replace(HOSTILE, over_share=2, of_little=5, too_long=4)
    found = count(*JOINED, core.announced(0), replace(TRAINED, set_aside=(busy, HONEST)))
    assert found["swarmd_tokens_set_aside_total",] == 205
    assert found["swarmd_payload_marks_total",] == 1
    assert found["swarmd_groups_passed_over_total", "share"] == 2
    assert found["swarmd_groups_passed_over_total", "little"] == 5
    assert found["swarmd_groups_passed_over_total", "long"] == 4


FALLEN = Skill("sort", 0.3, 64, 0.9, True, 2.5)
STEADY = Skill("reverse", 0.8, 64, 0.8)


def test_accuracies_are_told_and_what_is_done_about_a_fall() -> None:
    assert describe_skills((FALLEN, STEADY)) == (
        "by task sort 0.30, reverse 0.80; fallen: sort to 0.30, it was 0.90 (drawn 2.5 times as often)"
    )


THEIRS = PeerWeights("them", 7, "c" * 64, 4096, 0.9)
OTHERS = tuple(AveragedOffer(peer, 7, peer * 64) for peer in "ab")
MEANT = PeerWeights("them", 7, "c" * 64, 4096, 0.9, averaged=True, others=OTHERS)
STARTED = apply_event(State(), events.Envelope(0, 0.0, events.NodeStarted(settings(), "run"))).after


@pytest.mark.parametrize(
    ("event", "level", "words"),
    [
        (events.WeightsFetched("weights/8", THEIRS, 3 * 2**20, 1.5), "info", "round 7 were fetched, 3.0 MiB in 1.5 s"),
        (
            events.WeightsFetched("weights/8", THEIRS, 3 * 2**20, 1.5, "base"),
            "warning",
            "in 1.5 s; all of them, for the earlier ones here were damaged",
        ),
        (events.WeightsAdopted("train/8/0", 8, 0, THEIRS, 0.2, 0.5), "info", "accuracy 0.50 here, its own had 0.20"),
        (
            events.WeightsAdopted("train/8/0", 8, 0, MEANT, 0.2, 0.5),
            "info",
            "the weights of them and 2 others",
        ),
        (events.WeightsRefused("train/8/0", "no-better", "why", "them"), "info", "of them (no-better): why"),
        (events.WeightsRefused("weights/8", "none-offered", "why"), "info", "a peer's weights (none-offered): why"),
        (events.WeightsRefused("weights/8", "no-room", "why"), "warning", "a peer's weights (no-room): why"),
    ],
)
def test_it_is_told_in_the_log_and_in_the_story_of_its_round(event: events.Event, level: str, words: str) -> None:
    applied = apply_event(STARTED, events.Envelope(1, 10.0, event))
    said = make_event_line(applied)
    assert said.level == level and words in said.message
    (sentence,) = make_sentences(applied, 0.0)
    assert (sentence.round, sentence.text, sentence.trouble) == (8, said.message, level == "warning")


THREE = {"me": 60.0, "a": 90.0, "b": 90.0}
AROUND = ViewContext("math", 0.0, 0, ())


class Told(Swarm):
    """A swarm whose coordinator is asked how it is."""

    @property
    def status(self) -> Status:
        return status_of(self.node.state, self.node.at, LogStatus("", 0, 0))

    @property
    def lines(self) -> list[EventLine]:
        return [make_event_line(applied) for applied in self.node.heard]

    def told_of(self, round: int) -> str:
        """What `swarmd explain` says."""
        teller = StoryTeller(round)
        for applied in self.node.heard:
            teller.apply(applied)
        return words_in(render_story(teller.story()))


def _gauge(status: Status) -> dict[str, float]:
    return {values[0]: value for name, values, value in read_status(status) if name == "members_not_waited_for"}


def test_a_silent_member_that_the_open_stage_does_not_wait_for_is_named() -> None:
    swarm = Told(THREE)
    swarm.run(3)
    calm = swarm.status
    assert calm.coordinator is not None and not calm.coordinator.not_waited_for and not calm.notes
    assert _gauge(calm) == {"newcomers": 0, "members": 0}
    swarm.run(1, silent=("b",))
    status = swarm.status
    assert status.coordinator is not None and status.healthy == calm.healthy
    assert status.coordinator.not_waited_for == {"members": 1} and status.coordinator.expected == 2
    (note,) = status.notes
    assert "does not wait for 1 member (b)" in note and note.endswith(SILENT)
    assert note in words_in(panel_of(status))
    assert any(note in each for each in swarm_view(swarm.node.state, PeerLedger(), AROUND, 10).notes)
    assert _gauge(status) == {"newcomers": 0, "members": 1}


def test_explain_says_without_whom_a_stage_closed() -> None:
    swarm = Told(THREE)
    for number in range(6):
        swarm.tell(announced(swarm.round))
        swarm.run(1, silent=("b",) if number > 2 else ())
    assert "closed without" not in swarm.told_of(2)
    assert "round 3 stage 0 closed without 1 member (b), after waiting 186 s for them" in swarm.told_of(3)
    assert "round 4 stage 0 closed without 1 member (b), for whom it did not wait" in swarm.told_of(4)


def test_it_is_told_when_no_stage_waits_for_newcomers_and_when_they_do_again() -> None:
    swarm = Told(THREE)
    swarm.run(3)
    for number in range(6):
        swarm.tell(events.MemberSeen(f"new {number}"))
        swarm.run(1)
    assert NO_NEWCOMERS in swarm.status.notes
    assert swarm.status.coordinator is not None and swarm.status.coordinator.not_waited_for["newcomers"] > 0
    while NO_NEWCOMERS in swarm.status.notes:
        swarm.run(1)
    told = [line for line in swarm.lines if "newcomers" in line.message or "never credited" in line.message]
    assert [line.level for line in told] == ["warning", "info"]
    assert NO_NEWCOMERS in told[0].message and AGAIN in told[1].message
