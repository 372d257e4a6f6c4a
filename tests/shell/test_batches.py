"""Facts of one kind in a row become one event, which means what they mean one after the other."""

from random import Random

import pytest

from swarmd.core.commands import Announce, Command
from swarmd.core.events import (
    Envelope,
    Event,
    LinkUp,
    MemberSeen,
    MembersSeen,
    ReportSeen,
    ReportsSeen,
    RoundPublished,
    members_in,
    reports_in,
)
from swarmd.core.state import State
from swarmd.core.step import StateFold, step
from swarmd.eventlog.snapshot import encode_state
from swarmd.shell.loop import ROW_MAX, ROW_MIN, count_mergeable_facts, merge_facts
from tests.core.story import Story, coordinator_settings

PEERS = [f"peer {number}" for number in range(2 * ROW_MIN)]


def report(peer: str, round: int = 0) -> ReportSeen:
    return ReportSeen(peer, round, 0, 0.5, "d" * 64, peer.encode(), worked=peer != PEERS[3])


def test_few_facts_stay_as_they_are() -> None:
    facts: list[Event] = [report(peer) for peer in PEERS[: ROW_MIN - 1]]
    assert count_mergeable_facts(facts) == ROW_MIN - 1 and merge_facts(facts) == facts


def test_a_row_is_of_one_kind_and_of_one_stage() -> None:
    reports = [report(peer) for peer in PEERS]
    assert count_mergeable_facts([*reports, report("late", 1), *reports]) == len(reports)
    assert count_mergeable_facts([*map(MemberSeen, PEERS), *reports]) == len(PEERS)
    assert count_mergeable_facts([LinkUp(1), *reports]) == 1
    assert count_mergeable_facts([report(str(number)) for number in range(2 * ROW_MAX)]) == ROW_MAX


def test_an_event_for_many_names_each_with_all_that_was_told_of_it() -> None:
    reports = [report(peer) for peer in PEERS]
    (together,) = merge_facts([*reports])
    assert isinstance(together, ReportsSeen) and list(reports_in(together)) == reports
    members = [MemberSeen(peer, peer.upper(), peer != PEERS[3]) for peer in PEERS]
    (seen,) = merge_facts([*members])
    assert isinstance(seen, MembersSeen) and list(members_in(seen)) == members


@pytest.mark.parametrize("seed", range(12))
def test_what_comes_together_has_the_outcome_of_the_same_one_by_one(seed: int) -> None:
    """The quorum may be reached amidst them; some report twice, for another stage, or as nobody's member."""
    random = Random(seed)
    node = Story.joined(coordinator_settings(min_peers=2, quorum=random.choice([0.5, 1.0])))
    members = [MemberSeen(peer, "", random.random() < 0.8) for peer in random.choices(PEERS, k=ROW_MIN)]
    base, commands = assert_outcomes_agree(node.state, [*members])
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    base, _ = step(base, Envelope(900, 50.0, RoundPublished(opened.id, opened.round, opened.stage)))
    reports = [report(peer, random.choice([0, 0, 0, 1])) for peer in ["me", *random.choices(PEERS, k=3 * ROW_MIN)]]
    random.shuffle(reports)
    rows = [reports[: 2 * ROW_MIN], reports[2 * ROW_MIN :]]
    for row in rows:
        place = [each for each in row if each.round == row[0].round]
        base, _ = assert_outcomes_agree(base, [*place])


def assert_outcomes_agree(state: State, facts: list[Event]) -> tuple[State, tuple[Command, ...]]:
    """Tell facts one by one and together, through `step` and in place. Returns what all come to."""
    singly, commands = state, ()
    for fact in facts:
        singly, caused = step(singly, Envelope(1000, 60.0, fact))
        commands += caused
    fold = StateFold(state)
    (together,) = merge_facts(facts) if len(facts) >= ROW_MIN else [None]
    if together is not None:
        after, at_once = step(state, Envelope(1000, 60.0, together))
        assert at_once == commands == fold.apply(Envelope(1000, 60.0, together))
        assert encode_state(after) == encode_state(singly) == encode_state(fold.state)
    return singly, commands
