"""Whom stages wait for and for how long: honest nodes whatever their pace, and what silent peers cost."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.core import waiting
from swarmd.core.events import Equivocated, MemberLeft, MemberSeen
from swarmd.core.state import next_deadline
from swarmd.core.waiting import VAIN_NEWCOMERS_FREE, VAIN_NEWCOMERS_SHARE, WIDE_EVERY
from tests.core.swarm import STAGE_S, Swarm, report
from tests.core.test_coordination import expected

T = 60.0
THREE = {"me": T, "slow": 2.0 * T, "slower": 1.7 * T}


@pytest.mark.parametrize("times", [1.0, 1.3, 2.0, 4.5])
def test_a_follower_that_is_slower_than_the_coordinator_is_credited_in_each_round(times: float) -> None:
    swarm = Swarm({"me": T, "slow": times * T})
    swarm.run(40)
    assert all(credited == {"me", "slow"} for credited in swarm.credited)
    assert max(swarm.lasted_s) <= times * T + 1


@pytest.mark.parametrize("stages", [1, 2, 5, 9, 30])
@pytest.mark.parametrize("times", [1.0, 1.9, 3.1])
def test_followers_whose_trainers_slept_are_credited_again_within_three_rounds(stages: int, times: float) -> None:
    swarm = Swarm({"me": T, "a": times * T, "b": 0.9 * times * T}, stage_s=2.2 * times * T)
    swarm.run(7)
    for _ in range(5):
        swarm.run(stages, silent=("a", "b"))
        calm = swarm.round
        swarm.run(8)
        assert {"a", "b"} <= set.union(*swarm.credited[calm : calm + WIDE_EVERY])
        assert all({"a", "b", "me"} == each for each in swarm.credited[calm + WIDE_EVERY :])


def test_after_a_storm_of_kills_and_partitions_all_are_back_within_three_rounds() -> None:
    swarm = Swarm(THREE | {"quick": 0.5 * T})
    swarm.run(5)
    for number in range(30):
        gone = [*THREE][1 + number % 2], "quick"
        swarm.tell(*(MemberLeft(peer) for peer in gone[: number % 3]))
        swarm.run(1 + number % 4, silent=gone)
        swarm.tell(*map(MemberSeen, gone))
    calm = swarm.round
    swarm.run(10)
    assert all(each == {*THREE, "quick"} for each in swarm.credited[calm + WIDE_EVERY :])


def test_nobody_waits_for_a_member_much_longer_than_it_takes() -> None:
    swarm = Swarm(THREE)
    swarm.run(5)
    swarm.run(1, silent=("slow",))
    assert swarm.lasted_s[-1] == pytest.approx(4 * T + waiting.SLACK_SHARE * STAGE_S)


def test_members_that_are_silent_for_long_are_waited_for_rarely() -> None:
    swarm = Swarm({"me": T, "dead": T})
    swarm.run(5)
    swarm.run(240, silent=("dead",))
    late = [lasted for lasted in swarm.lasted_s[-120:] if lasted > T]
    assert len(late) == 120 / waiting.LONG_SILENT_EVERY


def lost_share(swarm: Swarm, rounds: int) -> float:
    """The share of the time that stages waited for more than the slowest honest node."""
    usual = max(swarm.train_s.values())
    lasted = swarm.lasted_s[-rounds:]
    return sum(max(0.0, each - usual) for each in lasted) / sum(lasted)


def honest_are_credited(swarm: Swarm) -> bool:
    return all(set(THREE) <= each for each in swarm.credited)


@pytest.mark.parametrize("stage_s", [150.0, 300.0, 3600.0])
def test_identities_that_never_report_cost_a_sixteenth_of_the_time(stage_s: float) -> None:
    swarm = Swarm(THREE, stage_s=stage_s)
    swarm.run(3)
    swarm.tell(*(MemberSeen(f"idle {number}") for number in range(64)))
    swarm.run(300)
    assert honest_are_credited(swarm)
    assert lost_share(swarm, 250) <= VAIN_NEWCOMERS_SHARE


def test_a_new_identity_for_each_stage_costs_a_sixteenth_of_the_time() -> None:
    swarm = Swarm(THREE)
    swarm.run(3)
    for number in range(300):
        swarm.tell(MemberSeen(f"new {number}"))
        swarm.run(1)
    assert honest_are_credited(swarm)
    assert sum(each > 3 * T for each in swarm.lasted_s[:20]) > VAIN_NEWCOMERS_FREE
    assert lost_share(swarm, 250) <= VAIN_NEWCOMERS_SHARE


@pytest.mark.parametrize("every", [2, 5, 20])
def test_identities_that_report_at_once_and_now_and_then_cost_next_to_nothing(every: int) -> None:
    swarm = Swarm(THREE)
    swarm.run(2)
    for number in range(200):
        swarm.report(*(f"stroller {each}" for each in range(64) if (number + each) % every == 0))
        swarm.run(1)
    assert honest_are_credited(swarm) and lost_share(swarm, 200) <= 0.03


def test_identities_that_report_late_and_now_and_then_cost_no_more_than_twice_the_time() -> None:
    swarm = Swarm(THREE | {f"stroller {number}": 1.9 * T for number in range(24)})
    for number in range(200):
        swarm.run(1, silent=[f"stroller {each}" for each in range(24) if (number + each) % 2])
    assert honest_are_credited(swarm)
    assert lost_share(swarm, 200) <= 0.55


def test_a_newcomer_that_is_slower_than_all_gets_in_while_others_never_report() -> None:
    swarm = Swarm(THREE)
    swarm.run(3)
    for number in range(100):
        swarm.tell(MemberSeen(f"new {number}"))
        swarm.run(1)
    swarm.train_s["newcomer"] = 2.5 * T
    swarm.tell(MemberSeen("newcomer"))
    for number in range(60):
        swarm.tell(MemberSeen(f"newer {number}"))
        swarm.run(1)
    first = next(place for place, each in enumerate(swarm.credited) if "newcomer" in each)
    assert first < 103 + 48
    assert all("newcomer" in each for each in swarm.credited[first:])


def test_peers_that_report_at_once_do_not_close_a_stage_before_this_node_reports() -> None:
    swarm = Swarm(THREE, quorum=0.5)
    for _ in range(20):
        swarm.report(*(f"fast {number}" for number in range(64)))
        swarm.run(1)
    assert min(swarm.lasted_s) >= T


def test_a_report_of_a_member_that_did_not_take_part_in_one_stage_counts_in_the_next() -> None:
    swarm = Swarm(THREE)
    swarm.run(1)
    swarm.tell(Equivocated("report", "slow", swarm.round, 0, b"1", b"2"))
    assert "slow" not in expected(swarm.coordination)
    swarm.run(2)
    assert "slow" not in set.union(*swarm.credited[-2:])


class Model:
    """The page of rules, counted from nothing each time."""

    def __init__(self, stage_s: float) -> None:
        self.stage_s, self.number, self.at, self.vain = stage_s, 0, 0.0, 0.0
        self.heard: dict[str, int] = {"me": 0}
        self.took: dict[str, float] = {}  # of members with credit
        self.gone: set[str] = set()
        self.reports: dict[str, float] = {}

    def open(self, at: float) -> None:
        self.number, self.at, self.reports = self.number + 1, at, {}
        now = [took for peer, took in self.took.items() if peer not in self.gone and self.silent(peer) <= 48]
        self.pace = max(sorted(now)[len(now) // 2] if now else 0.0, self.took.get("me", 0.0))
        self.newcomers = self.vain <= 3

    def silent(self, peer: str) -> int:
        return self.number - self.heard[peer]

    def expected(self) -> set[str]:
        due = {p for p in self.heard if self.silent(p) <= 1 or self.number % (3 if self.silent(p) <= 48 else 24) == 0}
        return {peer for peer in due - self.gone if self.newcomers or peer in self.took}

    def newcomer_time(self) -> float:
        return min(self.stage_s, 4 * self.pace + self.stage_s / 50) if self.pace else self.stage_s

    def time(self, peer: str) -> float:
        return min(self.stage_s, 2 * self.took[peer] + self.stage_s / 50) if peer in self.took else self.newcomer_time()

    def see(self, peer: str) -> None:
        if peer not in self.heard or peer in self.gone:
            self.gone.discard(peer)
            self.heard[peer] = self.number

    def is_over(self, at: float) -> bool:
        missing = self.expected() - self.reports.keys()
        until = self.at + max(map(self.time, missing), default=0.0)
        own = self.silent("me") <= 3 or ("me" in missing and at < until)
        return bool(self.reports) and ("me" in self.reports or not own) and at >= until

    def close(self, at: float) -> None:
        missed = any(peer not in self.took and peer != "me" for peer in self.expected() - self.reports.keys())
        self.vain = max(0.0, self.vain - (at - self.at) / self.newcomer_time() / 16) + missed
        for peer, took in self.reports.items():
            self.took[peer] = max(took, 0.9 * self.took.get(peer, 0.0))
            self.heard[peer] = self.number
        self.open(at)


PEERS = st.sampled_from([f"peer {number}" for number in range(6)])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["seen", "left", "report", "report"]), PEERS),
    st.tuples(st.just("report"), st.just("me")),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 7.0, 40.0])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=100, max_size=250), st.sampled_from([30.0, 300.0]))
def test_stages_close_as_the_page_of_rules_says(steps: list[tuple[str, str | float]], stage_s: float) -> None:
    swarm, model = Swarm({"me": math.inf}, stage_s=stage_s), Model(stage_s)
    node, look_s = swarm.node, waiting.LOOK_SHARE * stage_s
    model.open(node.at)
    changed_at = 0.0

    def follow() -> None:
        if swarm.coordination.waiting.number > model.number:
            assert model.is_over(node.at) or node.at >= model.at + stage_s
            model.close(node.at)
        assert swarm.coordination.waiting.number == model.number
        assert expected(swarm.coordination) == model.expected()
        assert swarm.coordination.waiting.vain_newcomers == pytest.approx(model.vain)

    for kind, what in steps:
        if isinstance(what, float):
            until = node.at + what
            while (timer := next_deadline(node.state)) is not None and timer.due_at <= until:
                swarm.fire(timer.name)
                follow()
            node.at = until
            assert until < model.at + stage_s
            assert until - changed_at <= look_s or not model.is_over(until - look_s), "a stage stays open"
            continue
        changed_at = node.at
        if kind == "seen":
            swarm.tell(MemberSeen(what))
            model.see(what)
        elif kind == "left":
            swarm.tell(MemberLeft(what))
            model.gone |= {what} & model.heard.keys()
        else:
            if what not in model.heard:
                model.see(what)
            model.reports.setdefault(what, min(node.at - model.at, stage_s))
            swarm.tell(report(what, swarm.round))
        follow()
