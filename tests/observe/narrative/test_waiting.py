"""Whom a coordinator's stage does not wait for is told wherever an operator looks."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from swarmd.cli.inspect.explain import picture_of
from swarmd.core.applied import Applied, advance
from swarmd.core.commands import Command
from swarmd.core.events import Event, MemberSeen
from swarmd.core.values import Settings
from swarmd.observe.narrative.describe import EventLine, line_of
from swarmd.observe.narrative.story import StoryTeller
from swarmd.observe.narrative.waiting import AGAIN, NO_NEWCOMERS, SILENT
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, Status, status_of
from swarmd.observe.telemetry.readings import read_status
from swarmd.web.views.ledger import PeerLedger
from swarmd.web.views.swarm import ViewContext, swarm_view
from tests.core.coordinator.swarm import Swarm
from tests.core.story import Story, announced

THREE = {"me": 60.0, "a": 90.0, "b": 90.0}
AROUND = ViewContext("math", 0.0, 0, ())


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

    @property
    def status(self) -> Status:
        return status_of(self.node.state, self.node.at, LogStatus("", 0, 0))

    @property
    def lines(self) -> list[EventLine]:
        return [line_of(applied) for applied in self.heard]

    def told_of(self, round: int) -> str:
        """What `swarmd explain` says."""
        teller = StoryTeller(round)
        for applied in self.heard:
            teller.apply(applied)
        return _printed(picture_of(teller.story()))


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
    assert note in _printed(panel_of(status))
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
        swarm.tell(MemberSeen(f"new {number}"))
        swarm.run(1)
    assert NO_NEWCOMERS in swarm.status.notes
    assert swarm.status.coordinator is not None and swarm.status.coordinator.not_waited_for["newcomers"] > 0
    while NO_NEWCOMERS in swarm.status.notes:
        swarm.run(1)
    told = [line for line in swarm.lines if "newcomers" in line.message or "never credited" in line.message]
    assert [line.level for line in told] == ["warning", "info"]
    assert NO_NEWCOMERS in told[0].message and AGAIN in told[1].message


def _printed(shown: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(shown)
    return " ".join(console.export_text().replace("│", " ").split())
