"""What two different signed records of one place cost whoever signed them, and for how long."""

import pytest

from swarmd.core.commands import NoteEvidence, Train
from swarmd.core.events import Equivocated, Event, LinkDown, LinkUp, MemberSeen, ReportSeen, RoundPublished
from swarmd.core.evidence import APART_ROUNDS, BARRED_ROUNDS, EQUIVOCATIONS_KEPT, banned_peers_in, current_equivocations
from swarmd.core.values import KnownEvidence, RolloutsRef
from swarmd.core.waiting import is_expected
from swarmd.eventlog.snapshot import encode_state
from tests.core.story import Story, announced, chain_settings, coordinator_settings, gathered, ids, settings
from tests.core.test_coordination import coordination


def lied(peer: str, round: int = 0, kind: str = "report") -> Equivocated:
    return Equivocated(kind, peer, round, 0, b"one", b"other")  # type: ignore[arg-type]


def report(peer: str, round: int = 0) -> ReportSeen:
    return ReportSeen(peer, round, 0, 1.0, record=b"r")


def open_stage(node: Story) -> None:
    """Take it that the announcement of the open stage is out."""
    place = coordination(node)
    name = f"announce/{place.round}/{place.stage}/{place.openings}"
    node.tell(RoundPublished(name, place.round, place.stage))


@pytest.fixture
def boss() -> Story:
    """A coordinator with two members, whose first stage is open."""
    node = Story.joined(coordinator_settings(min_peers=3))
    node.tell(MemberSeen("anna"), MemberSeen("otto"))
    open_stage(node)
    return node


def test_a_report_of_the_open_stage_no_longer_counts_and_nobody_waits_for_its_owner(boss: Story) -> None:
    boss.tell(report("anna"), report("me"))
    assert {each.peer for each in coordination(boss).reports} == {"anna", "me"}
    boss.tell(lied("anna"))
    assert [each.peer for each in coordination(boss).reports] == ["me"]
    assert {each.peer for each in coordination(boss).members if is_expected(coordination(boss), each)} == {"me", "otto"}
    boss.tell(report("anna"))
    assert [each.peer for each in coordination(boss).reports] == ["me"]
    assert dict(boss.state.rejections)["equivocated"] == 2
    boss.tell(report("otto"))
    assert coordination(boss).round == 1, "the others close the stage"
    rewards = {member.peer: member.rounds for member in coordination(boss).members}
    assert rewards == {"anna": 0, "otto": 1, "me": 1}


def test_a_stage_that_waits_for_nobody_else_closes_when_it_is_found_out(boss: Story) -> None:
    boss.tell(report("otto"), report("me"))
    assert coordination(boss).round == 0
    boss.tell(lied("anna"))
    assert coordination(boss).round == 1


def test_it_comes_back_after_so_many_rounds_and_what_it_had_stays(boss: Story) -> None:
    boss.tell(report("anna"), report("otto"), report("me"), lied("anna", round=1))
    for round in range(1, BARRED_ROUNDS + 2):
        open_stage(boss)
        assert coordination(boss).round == round
        assert ("anna" in coordination(boss).barred) == (round < BARRED_ROUNDS + 1)
        boss.tell(report("anna", round), report("otto", round), report("me", round))
    rounds = {member.peer: (member.rounds, member.last_round) for member in coordination(boss).members}
    assert rounds["anna"] == (2, BARRED_ROUNDS + 1), "of the first round, and since it is back"
    assert rounds["otto"][0] == BARRED_ROUNDS + 2


def test_what_a_coordinator_signed_twice_bars_nobody_and_stops_nothing() -> None:
    node = Story.joined(settings())
    node.tell(announced(3), gathered(3), lied("boss", 3, "clock"), lied("boss", 2, "leaderboard"))
    assert [each.kind for each in current_equivocations(node.state)] == ["leaderboard", "clock"]
    assert banned_peers_in(node.state, 3) == ()
    assert node.state.chart == "round.training"


@pytest.mark.parametrize("barred", [True, False])
def test_rollouts_of_a_barred_peer_are_not_trained_on(barred: bool) -> None:
    node = Story.joined(settings())
    rollouts = tuple(RolloutsRef(peer, 2, 0, "d" * 64, 9, 1) for peer in ("anna", "otto"))
    node.tell(announced(3), lied("anna", 2 if barred else 2 - BARRED_ROUNDS))
    (train,) = [each for each in node.tell(gathered(3, rollouts=rollouts)) if isinstance(each, Train)]
    assert train.rollouts == (rollouts[1:] if barred else rollouts)


def test_a_trainer_is_told_whose_earlier_groups_count_no_more() -> None:
    node = Story.joined(settings())
    node.tell(announced(3), lied("anna", 2), lied("boss", 2, "clock"))
    (train,) = [each for each in node.tell(gathered(3)) if isinstance(each, Train)]
    assert train.barred == (KnownEvidence("report", "anna", 2),)


def test_a_stage_that_is_trained_again_is_trained_on_the_same() -> None:
    node = Story.joined(settings())
    (first,) = [each for each in node.tell(announced(3), gathered(3)) if isinstance(each, Train)]
    node.tell(lied("anna", 2))
    node.join()
    assert [each for each in node.tell(announced(3)) if isinstance(each, Train)] == [first]


def test_its_reports_decide_no_vote() -> None:
    node = Story.on_chain(chain_settings(votes="reported"))
    node.tell(gathered(0), lied("anna"), report("anna"), report("otto"))
    assert node.state.tally is not None
    assert [score.peer for score in node.state.tally.scores] == ["otto"]


def test_the_same_again_changes_nothing_and_later_evidence_counts_anew(boss: Story) -> None:
    boss.tell(lied("anna", 5))
    known = boss.state.equivocations
    boss.tell(lied("anna", 5), lied("anna", 2), lied("anna", 5 + APART_ROUNDS - 1))
    assert boss.state.equivocations is known
    boss.tell(lied("anna", 5 + APART_ROUNDS))
    assert "anna" in banned_peers_in(boss.state, 5 + APART_ROUNDS + BARRED_ROUNDS - 1)


def test_what_is_kept_is_bounded_and_the_earliest_goes() -> None:
    node = Story.joined(settings())
    crowd: list[Event] = [lied(f"peer-{number}", number) for number in range(EQUIVOCATIONS_KEPT + 40)]
    node.tell(*crowd)
    assert len(node.state.equivocations) == EQUIVOCATIONS_KEPT
    assert node.state.equivocations[0].round == 40
    assert len(encode_state(node.state)) < 64 * 1024, "the records themselves are in the log only"


def test_a_fresh_network_worker_is_told_what_the_log_holds() -> None:
    node = Story(settings())
    assert not [each for each in node.join() if isinstance(each, NoteEvidence)]
    node.tell(lied("anna", 5), LinkDown("p2pd ended"))
    commands = node.tell(LinkUp(1))
    assert NoteEvidence(ids(commands)[-1], (KnownEvidence("report", "anna", 5),)) in commands
