"""The coordinator opens and closes stages."""

import math
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.core import coordination as rules
from swarmd.core.commands import Announce, Command, PublishLeaderboard
from swarmd.core.coordination import (
    REPORT_BYTES_MAX,
    ROUNDS_KEPT,
    SHARDS_MAX,
    decide_shards,
    reports_bytes_max,
    shard_count_for,
)
from swarmd.core.events import (
    CommandFailed,
    Event,
    LeaderboardPublished,
    LinkDown,
    LinkUp,
    MemberLeft,
    MemberSeen,
    Registered,
    ReportSeen,
    RoundPublished,
    SpaceLow,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
)
from swarmd.core.state import MEMBERS_MAX, Coordination, CoordinationBase, Member, Members
from swarmd.core.values import Settings, Standing
from swarmd.core.waiting import OWN_SILENT_STAGES, is_expected
from swarmd.worker.messages import FRAME_BYTES_MAX
from tests.core.story import Story, coordinator_settings, ids


def coordination(node: Story) -> Coordination:
    assert node.state.coordination is not None
    return node.state.coordination


def announcement(commands: tuple[Command, ...]) -> Announce:
    (announce,) = [command for command in commands if isinstance(command, Announce)]
    return announce


def announced_by(commands: tuple[Command, ...]) -> list[Command]:
    return [command for command in commands if isinstance(command, Announce)]


def publish(node: Story, announce: Announce) -> tuple[Command, ...]:
    return node.tell(RoundPublished(announce.id, announce.round, announce.stage))


def overdue(node: Story) -> tuple[Command, ...]:
    """Let time pass until the open stage is over; before, it may look for whom it waits."""
    deadline_at, commands = coordination(node).deadline_at, node.wait("stage")
    while not commands and node.at < deadline_at:
        commands = node.wait("stage")
    return commands


def expected(coordination: Coordination) -> set[str]:
    """Peers whose reports the open stage waits for; the count that is kept agrees."""
    peers = {member.peer for member in coordination.members if is_expected(coordination, member)}
    assert coordination.expected == len(peers)
    assert coordination.reported == len([each for each in coordination.reports if each.peer in peers])
    return peers


def report(peer: str, round: int, stage: int = 0, reward: float = 1.0) -> ReportSeen:
    return ReportSeen(peer, round, stage, reward, record=f"{peer}/{round}/{stage}".encode())


def test_a_leaving_member_is_not_waited_for(node: Story) -> None:
    open_first(node)
    node.tell(report("me", 0), report("a", 0))
    assert announcement(node.tell(MemberLeft("b"))).round == 1


@pytest.fixture
def node() -> Story:
    return Story(coordinator_settings(min_peers=3, start_s=30, stage_s=100, resume_s=15))


def open_first(node: Story) -> Announce:
    """Two more members come: the first round is announced and published."""
    node.join()
    node.tell(MemberSeen("a", "Ann"))
    announce = announcement(node.tell(MemberSeen("b", "Ben")))
    publish(node, announce)
    return announce


def test_the_first_round_waits_for_enough_members(node: Story) -> None:
    node.join()
    assert coordination(node).chart == "mustering"
    assert ids(node.tell(MemberSeen("a"))) == []
    announce = announcement(node.tell(MemberSeen("b")))
    assert (announce.round, announce.stage, announce.deadline_at) == (0, 0, node.at + 100)
    assert ids(publish(node, announce)) == ["collect/0/0"]
    assert coordination(node).chart == "open.collecting"


def test_the_muster_ends_at_its_deadline(node: Story) -> None:
    node.join()
    assert announcement(node.wait("muster")).round == 0


def test_all_expected_reports_close_the_stage(node: Story) -> None:
    open_first(node)
    assert node.tell(report("me", 0), report("a", 0)) == ()
    commands = node.tell(report("b", 0))
    assert announcement(commands).round == 1
    (board,) = [command for command in commands if isinstance(command, PublishLeaderboard)]
    assert [(row.peer, row.reward, row.rounds) for row in board.standings] == [("a", 1, 1), ("b", 1, 1), ("me", 1, 1)]
    assert board.reports == (b"me/0/0", b"a/0/0", b"b/0/0")


def test_nobody_waits_for_identities_that_cost_nothing_and_their_reports_count(node: Story) -> None:
    open_first(node)
    for number in range(50):
        node.tell(MemberSeen(f"idle {number}", worked=False))
    reported = report("idle 7", 0)
    node.tell(reported, replace(reported, peer="unseen", worked=False))
    node.tell(report("me", 0), report("a", 0))
    assert expected(coordination(node)) == {"me", "a", "b"}
    assert announcement(node.tell(report("b", 0))).round == 1, "the last that is waited for"
    credited = {member.peer for member in coordination(node).members if member.rounds}
    assert credited == {"me", "a", "b", "idle 7", "unseen"}
    node.tell(MemberSeen("idle 7"))
    assert "idle 7" in expected(coordination(node)), "it has worked since"


def open_without_trainer(node: Story) -> None:
    """The first round is open, and the coordinator's own trainer still loads."""
    node.start_workers()
    node.tell(LinkUp(1), Registered("register"), MemberSeen("a"))
    publish(node, announcement(node.tell(MemberSeen("b"))))


def test_the_first_stage_has_its_whole_time_when_the_coordinator_can_train(node: Story) -> None:
    open_without_trainer(node)
    node.at += 40.0
    again = announcement(node.tell(TrainerReady("cpu", "tiny", 1)))
    assert (again.round, again.stage, again.deadline_at) == (0, 0, node.at + 100)
    publish(node, again)
    node.tell(WorkerExited("trainer", "recycled", code=0, planned=True))
    node.wait("restart/trainer")
    assert not announced_by(node.tell(TrainerReady("cpu", "tiny", 1))), "only once in a life"
    overdue(node)
    assert node.at == again.deadline_at and coordination(node).round == 1


def test_no_round_ends_while_nobody_could_train(node: Story) -> None:
    open_without_trainer(node)
    for _ in range(3):
        assert overdue(node) == ()
    assert coordination(node).round == 0
    assert announcement(node.tell(TrainerReady("cpu", "tiny", 1))).deadline_at == node.at + 100


def test_a_resumed_stage_that_others_reported_in_gets_no_more_time(node: Story) -> None:
    open_first(node)
    node.tell(report("a", 0))
    node.at += 90.0
    node.start_workers()
    publish(node, announcement(node.tell(LinkUp(2))))
    assert not announced_by(node.tell(TrainerReady("cpu", "tiny", 1)))


def test_a_resumed_stage_that_nobody_reported_in_has_its_whole_time_again(node: Story) -> None:
    open_first(node)
    node.at += 90.0
    node.start_workers()
    assert announcement(node.tell(LinkUp(2))).deadline_at == node.at + 15
    node.at += 10.0
    assert announcement(node.tell(TrainerReady("cpu", "tiny", 1))).deadline_at == node.at + 100


def test_a_report_counts_once(node: Story) -> None:
    open_first(node)
    node.tell(report("a", 0), report("a", 0), report("a", 0))
    assert coordination(node).chart == "open.collecting"
    overdue(node)
    assert [(row.peer, row.reward, row.rounds) for row in coordination(node).standings] == [("a", 1.0, 1)]


def test_a_reward_above_what_the_recipe_can_give_does_not_count(node: Story) -> None:
    open_without_trainer(node)
    node.tell(TrainerReady("cpu", "tiny", 1, reward_max=1.2))
    node.tell(report("a", 0, reward=1e6), *[report(f"idle {number}", 0, reward=1.3) for number in range(6)])
    assert not coordination(node).reports and node.state.rejections == (("reward-too-high", 7),)
    node.tell(report("a", 0, reward=1.2))
    assert "a" in coordination(node).reports
    node.start()
    node.tell(report("b", 0, reward=1e6))
    assert "b" not in coordination(node).reports, "what a trainer said holds until the next is ready"


def test_members_without_an_admission_stand_behind_those_with_one(node: Story) -> None:
    open_first(node)
    idle = [replace(report(f"idle {number}", 0, reward=9.0), worked=False) for number in range(6)]
    node.tell(*idle, report("a", 0, reward=2.0), report("b", 0, reward=3.0), report("me", 0))
    standings = coordination(node).standings
    assert [row.peer for row in standings[:4]] == ["b", "a", "me", "idle 0"]
    assert [row.admitted for row in standings] == [True] * 3 + [False] * 6


def test_a_padded_report_does_not_count(node: Story) -> None:
    open_first(node)
    node.tell(ReportSeen("a", 0, 0, 1.0, record=b"x" * (REPORT_BYTES_MAX + 1)))
    assert not coordination(node).reports and node.state.rejections == (("oversized", 1),)


def test_a_leaderboard_fits_into_a_frame(monkeypatch: pytest.MonkeyPatch, node: Story) -> None:
    monkeypatch.setattr(rules, "REPORTS_BYTES_MAX", 2 * REPORT_BYTES_MAX)
    open_first(node)
    told = [ReportSeen(peer, 0, 0, 1.0, record=b"r" * REPORT_BYTES_MAX) for peer in ("me", "a", "b")]
    (board,) = [command for command in node.tell(*told) if isinstance(command, PublishLeaderboard)]
    assert len(board.reports) == 2 and len(board.standings) == 3
    assert node.state.rejections == (("leaderboard-full", 1),)


def test_the_greatest_leaderboard_is_no_larger_than_a_frame() -> None:
    longest = "\N{SNAKE}" * 64
    rows = [Standing("p" * 52, longest, 0.5, 2**31, 2**31)] * MEMBERS_MAX
    standings = tuple(rules._drop_excess_names(rows))
    reports = (b"r" * REPORT_BYTES_MAX,) * (reports_bytes_max(standings) // REPORT_BYTES_MAX)
    board = PublishLeaderboard("leaderboard/1", 1, standings, reports)
    assert len(msgspec.msgpack.encode(board)) < FRAME_BYTES_MAX - 4096
    assert len(reports) > 256 and [row.name for row in standings] == [longest] * 4096 + [""] * (MEMBERS_MAX - 4096)


def test_a_board_of_ten_thousand_has_nearly_all_reports_of_a_stage() -> None:
    standings = [Standing("p" * 52, "a name", 0.5, 2**31, 2**31)] * 10_000
    assert reports_bytes_max(standings) / 330 > 8_000


def test_reports_of_other_stages_do_not_count(node: Story) -> None:
    open_first(node)
    node.tell(report("a", 1), report("b", 0, stage=1))
    assert not coordination(node).reports


@pytest.fixture
def most() -> Story:
    """A node with an open stage that two of three members close."""
    node = Story(coordinator_settings(min_peers=3, quorum=0.6))
    open_first(node)
    return node


@pytest.mark.parametrize("others", [["a"], ["a", "b", *[f"fast {number}" for number in range(16)]]])
def test_a_quorum_closes_a_stage_once_this_node_has_reported(most: Story, others: list[str]) -> None:
    assert most.tell(*[report(peer, 0) for peer in others]) == ()
    assert announcement(most.tell(report("me", 0))).round == 1


@pytest.mark.parametrize("trouble", [WorkerExited("trainer", "killed", signal=9), SpaceLow(1, 2)])
def test_a_quorum_closes_a_stage_of_a_node_that_cannot_train(most: Story, trouble: Event) -> None:
    most.tell(trouble, report("a", 0))
    assert announcement(most.tell(report("b", 0))).round == 1


def test_a_quorum_closes_no_stage_while_this_nodes_model_loads(most: Story) -> None:
    """As after a restart of the whole swarm: the others' models were loaded sooner."""
    most.tell(WorkerExited("trainer", "killed", signal=9))
    most.wait("restart/trainer")
    most.tell(WorkerStarted("trainer", 2, 2))
    assert most.tell(report("a", 0), report("b", 0)) == ()
    most.tell(TrainerReady("cpu", "tiny", 1))
    assert announcement(most.tell(report("me", 0))).round == 1


def test_a_node_that_misses_its_own_deadlines_is_waited_for_like_any_other(most: Story) -> None:
    closed = []
    for round in range(9):
        commands = most.tell(report("a", round), report("b", round))
        closed.append("quorum" if commands else "deadline")
        publish(most, announcement(commands or overdue(most)))
    assert closed == ["deadline"] * OWN_SILENT_STAGES + ["quorum"] * 2 + ["deadline"] + ["quorum"] * 2 + ["deadline"]


def test_stages_follow_each_other_within_a_round() -> None:
    rules: Settings = coordinator_settings(min_peers=1)
    node = Story(Settings(**{field: getattr(rules, field) for field in rules.__struct_fields__} | {"stages": 3}))
    announce = announcement(node.join())
    for stage in range(3):
        assert (announce.round, announce.stage) == (0, stage)
        publish(node, announce)
        commands = node.tell(report("me", 0, stage, reward=0.5))
        announce = announcement(commands)
    assert (announce.round, announce.stage) == (1, 0)
    (row,) = coordination(node).standings
    assert (row.reward, row.rounds) == (1.5, 1)
    (board,) = [command for command in commands if isinstance(command, PublishLeaderboard)]
    assert len(board.reports) == 3


def test_the_swarm_ends_after_its_rounds_also_after_a_restart_and_goes_on_with_more() -> None:
    node = Story(coordinator_settings(min_peers=1, rounds_max=1))
    publish(node, announcement(node.join()))
    end = announcement(node.tell(report("me", 0)))
    assert (end.round, end.final) == (1, True)
    assert coordination(node).chart == "finished"
    assert announcement(node.join()).final
    node.node = coordinator_settings(min_peers=1, rounds_max=2)
    more = announcement(node.join())
    assert (more.round, more.final) == (1, False)


def test_a_restarted_coordinator_goes_on_with_the_open_stage(node: Story) -> None:
    first = open_first(node)
    node.tell(report("a", 0))
    node.at = first.deadline_at + 50
    again = announcement(node.join())
    assert (again.round, again.stage) == (0, 0)
    assert again.id != first.id
    assert again.deadline_at == node.at + 15
    assert ids(publish(node, again)) == ["collect/0/0"]
    assert [entry.peer for entry in coordination(node).reports] == ["a"]


def test_the_clock_is_published_again_when_the_network_comes_back(node: Story) -> None:
    first = open_first(node)
    node.tell(LinkDown("p2pd died"))
    again = announcement(node.tell(LinkUp(2)))
    assert (again.round, again.deadline_at) == (first.round, first.deadline_at)


def test_a_failed_announcement_is_tried_again(node: Story) -> None:
    node.join()
    node.tell(MemberSeen("a"))
    announce = announcement(node.tell(MemberSeen("b")))
    node.tell(CommandFailed(announce.id, "not read back"))
    assert node.wait(f"retry/{announce.id}") == (announce,)


def test_an_acknowledged_leaderboard_is_not_sent_again(node: Story) -> None:
    open_first(node)
    node.tell(report("me", 0), report("a", 0), report("b", 0), LeaderboardPublished("leaderboard/0", 0))
    assert not [command for command in node.state.pending if isinstance(command, PublishLeaderboard)]


def cut_off(policy: str, min_peers: int = 2) -> Story:
    """A coordinator that was alone when its stage's time was over; round 0 had both members' reports."""
    node = Story.joined(
        coordinator_settings(min_peers=min_peers, start_s=30, stage_s=100, resume_s=15, when_alone=policy)
    )
    node.tell(MemberSeen("a", "Ann"))
    if coordination(node).chart == "mustering":
        node.wait("muster")
    publish(node, Announce("announce/0/0/1", 0, 0, 0.0, 0.0))
    node.tell(report("me", 0))
    publish(node, announcement(node.tell(report("a", 0))))
    assert (coordination(node).round, coordination(node).chart) == (1, "open.collecting")
    node.tell(LinkUp(0))
    overdue(node)
    return node


def test_a_coordinator_that_is_cut_off_holds_the_stage_past_its_deadline() -> None:
    node = cut_off("hold")
    assert (coordination(node).round, coordination(node).held_since) == (1, node.at)
    assert node.tell(report("me", 1)) == ()
    overdue(node)
    assert coordination(node).round == 1 and "stage" in node.waits


def test_its_own_report_alone_is_no_quorum_while_it_is_cut_off() -> None:
    node = Story.joined(coordinator_settings(min_peers=2, quorum=0.5, stage_s=100, when_alone="hold"))
    publish(node, announcement(node.tell(MemberSeen("a"))))
    node.tell(LinkUp(0))
    assert node.tell(report("me", 0)) == ()
    assert coordination(node).held_since == node.at


def test_a_stage_that_was_held_is_announced_anew_with_its_whole_time_when_a_peer_is_back() -> None:
    node = cut_off("hold")
    node.tell(report("me", 1))
    node.at += 500
    again = announcement(node.tell(LinkUp(1)))
    assert (again.round, again.deadline_at) == (1, node.at + 100)
    assert publish(node, again) == () and node.tell(LinkUp(2)) == ()
    assert announcement(node.tell(report("a", 1))).round == 2
    assert coordination(node).held_since is None


def test_an_announcement_after_a_hold_is_taken_back_when_the_stage_closes_before_it_is_out() -> None:
    node = cut_off("hold")
    node.tell(report("me", 1))
    again = announcement(node.tell(LinkUp(1)))
    following = announcement(node.tell(report("a", 1)))
    assert [each.id for each in node.state.pending if isinstance(each, Announce)] == [following.id]
    assert node.tell(CommandFailed(again.id, "late")) == () and f"retry/{again.id}" not in node.waits


def test_a_stage_that_was_held_closes_at_its_new_deadline_though_nobody_else_reports() -> None:
    node = cut_off("hold")
    publish(node, announcement(node.tell(LinkUp(1))))
    assert node.tell(report("me", 1)) == ()
    assert announcement(overdue(node)).round == 2


def test_a_report_of_another_ends_the_hold_even_before_its_peer_is_counted() -> None:
    node = cut_off("hold")
    node.tell(report("me", 1))
    assert announcement(node.tell(report("a", 1))).round == 2


def test_a_held_stage_survives_a_restart() -> None:
    node = cut_off("hold")
    publish(node, announcement(node.join(peers=0)))
    node.tell(report("me", 1))
    overdue(node)
    assert coordination(node).round == 1
    assert announcement(node.tell(LinkUp(1))).deadline_at == node.at + 100


@pytest.mark.parametrize(("policy", "min_peers"), [("go-on", 2), ("hold", 1)])
def test_a_swarm_that_may_go_on_with_one_member_goes_on(policy: str, min_peers: int) -> None:
    assert coordination(cut_off(policy, min_peers)).round == 2


def test_a_swarm_that_never_had_another_member_goes_on_alone() -> None:
    node = Story.joined(coordinator_settings(min_peers=2, when_alone="hold"), peers=0)
    publish(node, announcement(node.wait("muster")))
    assert announcement(node.tell(report("me", 0))).round == 1


FEW = 40


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that keeps count of few members."""
    monkeypatch.setattr(rules, "MEMBERS_MAX", FEW)
    monkeypatch.setattr(rules, "GONE_KEPT", 4)


def test_members_that_never_reported_make_room_for_one_that_does(node: Story, few: None) -> None:
    open_first(node)
    publish(node, announcement(node.tell(report("me", 0), report("a", 0), report("b", 0))))
    node.tell(*(MemberSeen(f"crowd {number:04d}") for number in range(FEW + 5)))
    assert len(coordination(node).members) == FEW
    assert dict(node.state.rejections) == {"members-full": 8}, "a membership alone displaces nobody who just came"
    node.tell(report("late", 1))
    kept = {member.peer for member in coordination(node).members}
    assert len(kept) == FEW and {"late", "me", "a", "b"} <= kept
    assert "late" in coordination(node).reports


def test_free_identities_have_few_places_among_the_members(node: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "IDLE_MEMBERS_MAX", 6)
    open_first(node)
    for round in range(12):
        free = [replace(report(f"free {round}-{number}", round), worked=False) for number in range(2)]
        node.tell(*free, report("me", round), report("a", round))
        publish(node, announcement(node.tell(report("b", round))))
    free_now = [member for member in coordination(node).members if not member.worked]
    assert sorted({member.peer[:7] for member in free_now}) == ["free 10", "free 11", "free 9-"]
    assert len(free_now) == 6
    assert not node.state.rejections, "each made room for those that came after it"
    node.tell(MemberSeen("late"))
    assert "late" in expected(coordination(node))


def test_little_credit_keeps_no_place_for_long(node: Story, few: None) -> None:
    """A member that was credited for one round makes room after two in which it is silent."""
    open_first(node)
    crowd = [f"crowd {number:04d}" for number in range(FEW - 3)]
    for round in range(4):
        commands = node.tell(*[report(peer, round) for peer in (*(crowd if not round else ()), "me", "a", "b")])
        publish(node, announcement(commands or overdue(node)))
    node.tell(report("late", 4))
    assert {"late", "me", "a", "b"} <= {member.peer for member in coordination(node).members}


def test_members_that_left_without_credit_are_forgotten_where_they_are_many(node: Story, few: None) -> None:
    open_first(node)
    publish(node, announcement(node.tell(report("me", 0), report("a", 0), report("b", 0))))
    crowd = [f"crowd {number:04d}" for number in range(FEW)]
    node.tell(*map(MemberSeen, crowd))
    node.tell(MemberLeft("a"), *map(MemberLeft, crowd))
    kept = {member.peer: member for member in coordination(node).members}
    assert len(kept) == 4 and kept["a"].left and kept["a"].rounds == 1
    node.tell(MemberSeen("late"))
    assert "late" in {member.peer for member in coordination(node).members}


class Placement(NamedTuple):
    """Where the records of stages lie."""

    shards: int = 0
    since: int = 0
    before: int = 0


UNDIVIDED = Placement()


def placed(count: int, each: int, round: int, before: Placement = UNDIVIDED) -> Placement:
    """Where they lie from a round on, with so many members."""
    members = Members.from_values(Member(f"peer-{number}", "", 0) for number in range(count))
    coordination = CoordinationBase(round=round, members=members)
    coordination.shards, coordination.sharded_since, coordination.shards_before = before
    decide_shards(coordination, each)
    return Placement(coordination.shards, coordination.sharded_since, coordination.shards_before)


@given(st.integers(0, 200_000), st.integers(1, 4096))
def test_the_number_is_a_power_of_two_and_shards_hold_about_what_is_asked(members: int, each: int) -> None:
    shards = shard_count_for(members, each)
    if members <= each:
        assert shards == 0
    elif shards < SHARDS_MAX:
        assert shards >= 2 and shards & (shards - 1) == 0
        assert each / 2 <= members / shards <= each * math.sqrt(2.0001) or shards == 2
    assert shard_count_for(members, 0) == 0


def test_small_swarms_have_none_and_ten_thousand_have_128() -> None:
    assert [shard_count_for(members, 64) for members in (1, 64, 65, 100, 1000, 10_000)] == [0, 0, 2, 2, 16, 128]


def test_the_number_grows_at_once_and_shrinks_later() -> None:
    grown = placed(300, 64, 5)
    assert grown == Placement(4, 5, 0)
    again = placed(700, 64, 6, grown)
    assert again == Placement(8, 6, 4)
    assert placed(10, 64, 6 + ROUNDS_KEPT - 1, again) == again
    assert placed(10, 64, 6 + ROUNDS_KEPT, again) == Placement(0, 6 + ROUNDS_KEPT, 8)


def test_an_announcement_says_them_and_a_later_stage_of_the_round_keeps_them() -> None:
    node = Story.joined(coordinator_settings(min_peers=3, shard_members=1))
    commands = node.tell(MemberSeen("a"), MemberSeen("b"))
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    assert (opened.shards, opened.sharded_since, opened.shards_before) == (4, 0, 0)
    node.tell(RoundPublished(opened.id, 0, 0), *(MemberSeen(f"late-{number}") for number in range(9)))
    node.tell(*(ReportSeen(peer, 0, 0, 1.0) for peer in ("me", "a", "b")))
    commands = node.wait("stage") or node.wait("stage")
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    assert (opened.round, opened.shards, opened.sharded_since, opened.shards_before) == (1, 16, 1, 4)
