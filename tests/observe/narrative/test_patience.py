"""For whom a coordinator does not wait, after stages that waited in vain, is told wherever an operator looks."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection

import pytest
from rich.console import Console, RenderableType

from swarmd.cli.inspect.explain import picture_of
from swarmd.core.applied import Applied
from swarmd.core.commands import Command
from swarmd.core.coordinator.coordination import is_expected
from swarmd.core.events import Event, MemberSeen
from swarmd.core.node.catchup import advance
from swarmd.core.values import Settings
from swarmd.observe.narrative.describe import EventLine, line_of
from swarmd.observe.narrative.story import StoryTeller
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, Status, status_of
from swarmd.observe.telemetry.readings import read_status
from swarmd.web.views.ledger import PeerLedger
from swarmd.web.views.swarm import ViewContext, swarm_view
from tests.core.coordinator.test_patience import Swarm
from tests.core.story import Story, announced

SURE = 40  # stages that waited in vain, after which nobody waits


class Heard(Story):
    """A coordinator whose life is kept with its states."""

    def __init__(self, node: Settings) -> None:
        super().__init__(node)
        self.heard: list[Applied] = []

    def tell(self, *events: Event) -> tuple[Command, ...]:
        commands: tuple[Command, ...] = ()
        for event in events:
            self.heard += advance(self.state, self.seq, self.at, (event,))
            commands += super().tell(event)
        return commands


class Told(Swarm):
    """A swarm whose coordinator is asked how it is."""

    kind = Heard

    @property
    def heard(self) -> list[Applied]:
        assert isinstance(self.node, Heard)
        return self.node.heard

    def hold(self, *others: str, late: Collection[str] = ()) -> None:
        self.node.tell(announced(self.announce.round, deadline_at=self.node.at + 100))
        super().hold(*others, late=late)

    @property
    def status(self) -> Status:
        return status_of(self.node.state, self.node.at, LogStatus("", 0, 0))

    @property
    def lines(self) -> list[EventLine]:
        return [line_of(applied) for applied in self.heard]

    def story(self, round: int) -> StoryTeller:
        teller = StoryTeller(round)
        for applied in self.heard:
            teller.apply(applied)
        return teller


def silent_newcomers(swarm: Swarm, number: int) -> None:
    swarm.node.tell(MemberSeen(f"new {number}"))
    swarm.hold()


def members_by_turns(swarm: Swarm, number: int) -> None:
    swarm.hold(*(f"member {each}" for each in range(24) if (number + each) % 2))


STALLS = [(silent_newcomers, "newcomers", "never credited"), (members_by_turns, "members", "credited in")]
Stall = Callable[[Swarm, int], None]


@pytest.mark.parametrize(("stall", "kind", "words"), STALLS)
def test_status_page_metrics_and_log_say_that_they_are_not_waited_for(stall: Stall, kind: str, words: str) -> None:
    swarm = Told()
    swarm.hold()
    calm = swarm.status
    assert calm.coordinator is not None and not calm.coordinator.not_waited_for and not calm.notes
    assert _gauge(calm) == {"newcomers": 0, "members": 0}
    number, status = 0, calm
    while not _gauge(status)[kind]:
        stall(swarm, number)
        swarm.node.tell(MemberSeen("honest newcomer"))
        number, status = number + 1, swarm.status
    assert status.coordinator is not None and status.healthy == calm.healthy
    assert status.coordinator.not_waited_for == {kind: _present(swarm, kind)}
    (note,) = status.notes
    assert words in note and "in vain" in note
    assert note in _printed(panel_of(status))
    assert any(words in each for each in swarm_view(swarm.node.state, PeerLedger(), AROUND, 10).notes)
    assert _gauge(status) == {"newcomers": 0, "members": 0} | status.coordinator.not_waited_for
    assert [line.level for line in swarm.lines if words in line.message][:1] == ["warning"]


AROUND = ViewContext("math", 0.0, 0, ())


def _present(swarm: Told, kind: str) -> int:
    """Who would be waited for otherwise."""
    coordination = swarm.node.state.coordination
    assert coordination is not None
    due = [member for member in coordination.members if is_expected(member, coordination.round)]
    if kind == "newcomers":
        return sum(not member.rounds for member in due)
    return sum(0 < member.rounds < member.missed_at + coordination.steady_min for member in due)


def _gauge(status: Status) -> dict[str, float]:
    return {values[0]: value for name, values, value in read_status(status) if name == "members_not_waited_for"}


def test_explain_says_of_a_stage_whom_it_did_not_wait_for_and_why() -> None:
    swarm = Told()
    for number in range(SURE):
        silent_newcomers(swarm, number)
    swarm.node.tell(*(MemberSeen(f"late {number}") for number in range(5)))
    missing = _present(swarm, "newcomers")
    swarm.hold()
    round = swarm.announce.round - 1
    told = _printed(picture_of(swarm.story(round).story()))
    assert f"round {round} stage 0 closed without {missing} newcomers (new " in told
    assert missing > 5 and f"and {missing - 3} more), for whom it did not wait" in told and "in vain" in told


def test_explain_says_nothing_of_a_stage_that_waited_for_all_or_to_its_deadline() -> None:
    swarm = Told()
    swarm.hold()
    silent_newcomers(swarm, 0)
    assert swarm.overdue == [1]
    for round in (0, 1):
        assert "did not wait" not in _printed(picture_of(swarm.story(round).story()))


def test_it_is_told_once_that_newcomers_are_waited_for_again() -> None:
    swarm = Told()
    for number in range(SURE):
        silent_newcomers(swarm, number)
    while swarm.status.notes:
        swarm.hold()
    told = [line for line in swarm.lines if "newcomers" in line.message]
    assert [line.level for line in told[-1:]] == ["info"] and "again" in told[-1].message


def _printed(shown: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(shown)
    return " ".join(console.export_text().replace("│", " ").split())
