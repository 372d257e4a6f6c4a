"""A follower tells a coordinator that is slow from one that hurries, skips, or leaves reports out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.events import ClockSet, LeaderboardSeen, RoundAnnounced
from swarmd.core.peers.conduct import (
    FAULTS_MIN,
    LEFT_OUT_MIN,
    PEERS_KEPT,
    STAGES_KEPT,
    left_out,
    verdict_of,
    words_of,
)
from swarmd.core.peers.observed import StageAccount
from swarmd.core.values import Promised, Standing
from swarmd.dht.rounds import announced_waits
from swarmd.dht.rounds.announced_waits import AnnouncedWaits
from swarmd.dht.rounds.credit_check import CreditCheck
from swarmd.dht.wire.records import ClockRecord
from tests.core.story import Story, announced, settings

STAGE_S = 60.0
PROMISED = Promised(STAGE_S, 1.0, 15.0)
PEERS = ("anna", "me", "otto")


class Swarm:
    """A coordinator as one tells a follower of it; `round` is the next to open."""

    def __init__(self, promised: Promised | None = PROMISED, stages: int = 1, skew_s: float = 0.0) -> None:
        self.story = Story(settings(promised=promised, stages=stages))
        self.story.join()
        self.stages = stages
        self.skew_s = skew_s
        self.now = 1000.0
        self.round = 0
        self.since = -1

    def open(self, stage: int = 0, open_s: float = STAGE_S, heard_s: float = 0.1) -> None:
        """The open round's stage is announced, and heard of a moment later."""
        self.story.at = self.now + heard_s + self.skew_s
        self.story.tell(RoundAnnounced(self.round, stage, self.now, self.now + open_s))

    def hold(self, lasted_s: float = 30.0, seen_s: float = 5.0, open_s: float = STAGE_S, **account: object) -> None:
        """One whole round of one stage: who reported was read after `seen_s`, and it closed after `lasted_s`."""
        self.open(open_s=open_s)
        read_at, held = self.now + seen_s + self.skew_s, self.round
        self.now += lasted_s
        self.round += 1
        self.open(open_s=open_s)
        fields = {"reports": 3, "expected": 3, "read_at": read_at, "seen": PEERS} | account
        self.board(held, StageAccount(0, **fields))  # type: ignore[arg-type]

    def board(self, round: int, *accounts: StageAccount, idle: bool = False, whole: bool = True) -> None:
        self.story.tell(LeaderboardSeen(round, self.since, idle, whole, accounts))
        self.since = round

    @property
    def verdict(self) -> str:
        return verdict_of(self.story.state)


def test_one_that_keeps_its_word_is_blamed_for_nothing() -> None:
    swarm = Swarm()
    for lasted_s in (1.0, 60.0, 30.0, 59.5, 60.4) * 4:
        swarm.hold(lasted_s)
    assert swarm.verdict == "" and words_of(swarm.story.state) == ""


def test_one_whose_stages_stay_open_beyond_their_time_is_slow_and_nothing_worse() -> None:
    swarm = Swarm()
    for _ in range(FAULTS_MIN):
        assert swarm.verdict == ""
        swarm.hold(lasted_s=STAGE_S + 20.0, left_out=PEERS, reports=1)
    assert swarm.verdict == "slow"
    for _ in range(STAGES_KEPT):
        swarm.hold()
    assert swarm.verdict == "", "it is forgotten when it keeps its word again"


def test_one_whose_word_comes_when_the_stage_is_over_is_slow() -> None:
    swarm = Swarm()
    for _ in range(FAULTS_MIN):
        swarm.open(heard_s=STAGE_S + 1.0)
        swarm.now += 2 * STAGE_S
        swarm.round += 1
    assert swarm.verdict == "slow"


@pytest.mark.parametrize("open_s", [1.0, 29.0, 181.0, 1e9, -1e6])
def test_deadlines_far_from_what_was_promised_are_hasty(open_s: float) -> None:
    swarm = Swarm()
    for _ in range(FAULTS_MIN):
        swarm.hold(open_s=open_s)
    assert swarm.verdict == "hasty"


@pytest.mark.parametrize("open_s", [31.0, STAGE_S, 179.0])
def test_deadlines_near_what_was_promised_are_not(open_s: float) -> None:
    swarm = Swarm()
    for _ in range(10):
        swarm.hold(open_s=open_s)
    assert swarm.verdict == ""


def test_without_a_promise_no_deadline_is_wrong() -> None:
    swarm = Swarm(Promised())
    for open_s in (1.0, 1e6) * 5:
        swarm.hold(open_s=open_s)
    assert swarm.verdict == ""


def test_a_stage_that_a_restarted_coordinator_holds_longer_is_not_too_long() -> None:
    swarm = Swarm()
    for _ in range(6):
        swarm.open()
        for _ in range(10):  # it dies again and again, and announces the same stage anew
            swarm.now += STAGE_S
            swarm.story.at = swarm.now
            place = swarm.story.state.clock
            assert place is not None
            swarm.story.tell(RoundAnnounced(place.round, place.stage, place.opened_at, swarm.now + 15.0))
        swarm.round += 1
    assert swarm.verdict == ""


def test_one_that_closes_before_the_deadline_without_a_quorum_is_hasty() -> None:
    swarm = Swarm()
    for _ in range(FAULTS_MIN):
        assert swarm.verdict == ""
        swarm.hold(lasted_s=10.0, reports=2)
    assert swarm.verdict == "hasty"
    assert "the coordinator does not keep its deadlines" in words_of(swarm.story.state)


@pytest.mark.parametrize(
    ("lasted_s", "quorum", "reports"), [(10.0, 1.0, 3), (60.0, 1.0, 0), (10.0, 0.5, 2), (10.0, 0.0, 1)]
)
def test_one_that_closes_at_its_quorum_or_its_deadline_is_not(lasted_s: float, quorum: float, reports: int) -> None:
    swarm = Swarm(Promised(STAGE_S, quorum, 15.0))
    for _ in range(10):
        swarm.hold(lasted_s, reports=reports)
    assert swarm.verdict in ("", "slow")


def test_a_leaderboard_that_lacks_reports_shows_no_haste() -> None:
    swarm = Swarm()
    for _ in range(10):
        swarm.open()
        swarm.now += 10.0
        swarm.round += 1
        swarm.open()
        swarm.board(swarm.round - 1, StageAccount(0, 1, 3), whole=False)
    assert swarm.verdict == ""


def leave_out(swarm: Swarm, times: int, **fields: object) -> None:
    for _ in range(times):
        swarm.hold(**({"reports": 2, "expected": 0, "left_out": ("me",)} | fields))  # type: ignore[arg-type]


def test_one_that_leaves_out_what_could_be_read_in_time_is_found_out() -> None:
    swarm = Swarm()
    leave_out(swarm, LEFT_OUT_MIN - 1)
    assert swarm.verdict == ""
    leave_out(swarm, 1)
    assert swarm.verdict == "leaves-out" and left_out(swarm.story.state) == ("me",)
    assert "this node's own, 5 of the last 5" in words_of(swarm.story.state)


def test_it_is_found_out_over_others_reports_too_and_by_a_clock_that_is_wrong() -> None:
    swarm = Swarm(skew_s=-300.0)
    leave_out(swarm, LEFT_OUT_MIN, left_out=("otto",))
    assert left_out(swarm.story.state) == ("otto",)


@pytest.mark.parametrize("seen_s", [15.5, 25.0, 28.0, 40.0])
def test_reports_that_came_late_are_owed_nothing(seen_s: float) -> None:
    swarm = Swarm()
    leave_out(swarm, 20, seen_s=seen_s)
    assert swarm.verdict == ""


def test_at_a_deadline_a_report_that_came_shortly_before_is_owed_nothing() -> None:
    swarm = Swarm()
    leave_out(swarm, 20, seen_s=STAGE_S - 5.0, lasted_s=STAGE_S)
    assert swarm.verdict == ""


def test_one_that_hears_nobody_is_slow_and_leaves_nobody_out() -> None:
    swarm = Swarm()
    leave_out(swarm, 20, reports=0, left_out=PEERS, lasted_s=STAGE_S)
    assert swarm.verdict == "slow" and left_out(swarm.story.state) == ()


def test_an_opening_heard_of_late_says_nothing_of_who_was_in_time() -> None:
    swarm = Swarm()
    swarm.open()  # heard promptly, so that the clocks are known
    for _ in range(STAGES_KEPT - 1):
        swarm.round += 1
        swarm.now += 30.0
        swarm.open(heard_s=10.0)
        swarm.board(swarm.round - 1, StageAccount(0, 2, 0, swarm.now - 29.0, PEERS, ("me",)))
    assert swarm.verdict == ""


def test_times_of_a_clock_that_was_set_are_not_compared() -> None:
    swarm = Swarm()
    for _ in range(20):
        swarm.open()
        swarm.story.tell(ClockSet(3600.0))
        swarm.skew_s += 3600.0
        swarm.now += 30.0
        swarm.round += 1
        swarm.open()
        swarm.board(swarm.round - 1, StageAccount(0, 2, 0, swarm.now - 3000.0, PEERS, ("me",)))
    assert swarm.verdict == ""


def skip(swarm: Swarm, rounds: int, passed_s: float, idle: bool = True) -> None:
    """A round is held, and some are passed over before the next."""
    swarm.hold()
    swarm.round += rounds - 1
    swarm.now += passed_s
    swarm.since = swarm.round - rounds
    swarm.open()
    swarm.now += 30.0
    swarm.round += 1
    swarm.open()
    swarm.board(swarm.round - 1, StageAccount(0, 3, 0), idle=idle)


def test_one_that_passes_over_rounds_in_which_nobody_was_credited_skips() -> None:
    swarm = Swarm()
    for _ in range(FAULTS_MIN):
        assert swarm.verdict == ""
        skip(swarm, 4, 5.0)
    assert swarm.verdict == "skips"


def test_rounds_that_this_node_only_did_not_hear_of_are_not_skipped() -> None:
    swarm = Swarm()
    for _ in range(6):
        skip(swarm, 4, 5.0, idle=False)
    assert swarm.verdict == ""


def test_rounds_of_which_nobody_could_report_took_their_time() -> None:
    swarm = Swarm()
    for _ in range(6):
        skip(swarm, 4, 3 * STAGE_S)
    assert swarm.verdict == ""


def test_a_restored_coordinator_jumps_once() -> None:
    swarm = Swarm()
    skip(swarm, 3, 5.0)
    for _ in range(10):
        swarm.hold()
    assert swarm.verdict == ""


def test_many_stages_in_no_time_are_no_proof_for_a_quorum_of_the_fast_may_have_closed_them() -> None:
    swarm = Swarm(stages=3)
    for _ in range(FAULTS_MIN + 1):
        swarm.open()
        swarm.now += 0.2
        swarm.round += 100
    assert swarm.verdict == ""


def test_stages_of_a_round_that_are_passed_over_are_found() -> None:
    swarm = Swarm(stages=3)
    for _ in range(FAULTS_MIN):
        held = swarm.round
        swarm.open()
        swarm.now += 5.0
        swarm.open(stage=2)
        swarm.now += 20.0
        swarm.round += 1
        swarm.open()
        swarm.board(held, StageAccount(0, 3, 0), StageAccount(1, 0, 0), StageAccount(2, 3, 0))
    assert swarm.verdict == "skips"


def test_where_nothing_was_promised_nothing_is_kept() -> None:
    story = Story(settings())
    story.join()
    story.tell(announced(0), LeaderboardSeen(0))
    assert story.state.conduct is None and verdict_of(story.state) == ""


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 3), st.floats(-1e12, 1e12), st.floats(-1e12, 1e12))))
def test_whatever_is_announced_what_is_kept_has_a_bound(clocks: list[tuple[int, int, float, float]]) -> None:
    swarm = Swarm(stages=3)
    for number, clock in enumerate(clocks):
        names = tuple(f"peer-{number}-{each}" for each in range(16))
        swarm.story.tell(RoundAnnounced(*clock))
        swarm.board(clock[0], StageAccount(clock[1], 1, 2**31, clock[2], names, names))
    kept = swarm.story.state.conduct
    assert kept is None or (len(kept.stages) <= STAGES_KEPT and len(kept.peers) <= PEERS_KEPT)


# --- what a follower's network worker makes of a leaderboard ---


def standing(peer: str, rounds: int, last_round: int) -> Standing:

    return Standing(peer, "", 1.0, rounds, last_round)


def test_a_leaderboard_is_compared_with_what_was_read() -> None:
    accounts = CreditCheck("me", 1, 0, [standing(peer, 1, 0) for peer in (*PEERS, "gone")])
    accounts.note(1, 0, 7.0, ["me", "anna", "stranger"])
    event = accounts.read(1, [standing("anna", 2, 1)], {0: {"anna", "boss"}}, True)
    assert event is not None
    assert event.stages == (StageAccount(0, 2, 2, 7.0, ("me", "anna"), ("me",)),), "gone may have left: not expected"
    assert accounts.read(1, [], {}, True) is None, "it is no news"


def expected_by(steady_min: int | None, *boards: Mapping[int, set[str]]) -> int:
    """Whom the last of these rounds' first stages was bound to wait for, of anna and otto, by what it announced.

    Args:
        boards: of rounds that follow each other, whose reports they have, by stage.
    """
    accounts = CreditCheck(
        "me", 2, 0, [standing(peer, 20, 0) for peer in ("anna", "otto")], steady_min=lambda round, stage: steady_min
    )
    for round, reporters in enumerate(boards, 1):
        rows = [standing(peer, 20 + round, round) for peer in {*reporters[0], *reporters[1]}]
        event = accounts.read(round, rows, reporters, True)
    assert event is not None
    return event.stages[0].expected


BOTH, ANNA = {0: {"anna", "otto"}, 1: {"anna", "otto"}}, {0: {"anna", "otto"}, 1: {"anna"}}


@pytest.mark.parametrize(
    ("steady_min", "boards", "expected"),
    [
        (0, [BOTH, ANNA, BOTH], 2),
        (1, [BOTH, ANNA, BOTH], 1),  # otto has missed a stage of the round before
        (2, [ANNA, BOTH, BOTH, BOTH], 2),
        (3, [ANNA, BOTH, BOTH, BOTH], 1),
        (10, [BOTH] * 4, 0),  # nobody is known to have been credited in so many
        (11, [BOTH] * 2, 2),  # more than half of anybody's rounds: no honest coordinator asks for that
        (None, [BOTH] * 4, 0),  # it was not heard what was announced
    ],
)
def test_a_stage_was_bound_to_wait_for_those_alone_who_are_as_steady_as_it_announced(
    steady_min: int | None, boards: list[dict[int, set[str]]], expected: int
) -> None:
    assert expected_by(steady_min, *boards) == expected


def test_of_announcements_the_latest_are_remembered() -> None:
    waits = AnnouncedWaits()
    for round in range(announced_waits.STAGES_KEPT + 1):
        waits.note(ClockRecord("test", round, 0, 0.0, 1.0, steady_min=round))
    kept = announced_waits.STAGES_KEPT
    assert [waits.steady_min(round, 0) for round in (0, 1, kept, kept + 1)] == [None, 1, kept, None]


def test_among_a_crowd_of_strangers_a_newcomer_claims_no_place() -> None:
    accounts = CreditCheck("me", 1, 0, [standing("anna", 1, 0)])
    accounts.note(1, 0, 7.0, ["me", "anna", *(f"stranger-{number}" for number in range(16))])
    event = accounts.read(1, [], {}, True)
    assert event is not None and event.stages[0].seen == ("anna",)


@pytest.mark.parametrize(("rounds", "idle"), [(2, True), (3, False)])
def test_rounds_between_were_idle_where_the_reports_explain_all_standings(rounds: int, idle: bool) -> None:
    accounts = CreditCheck("me", 1, 0, [standing("anna", 1, 0), standing("otto", 1, 0)])
    event = accounts.read(5, [standing("anna", rounds, 5), standing("otto", 1, 0)], {0: {"anna"}}, True)
    assert event is not None and (event.since, event.idle) == (0, idle)
