"""The log on a terminal: short, and still whole where something is wrong."""

from __future__ import annotations

import io
import re

import pytest
import structlog

from swarmd.core.events import RoundsSkipped
from swarmd.observe.logging.logs import EventLines, configure
from tests.core import story as core


class Terminal(io.StringIO):
    """Where a person watches."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """Without times and colours."""
        plain = re.sub(r"\x1b\[\d+m", "", self.getvalue())
        return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in plain.splitlines()]


@pytest.fixture
def terminal() -> Terminal:
    shown = Terminal()
    assert configure("info", "auto", shown)
    return shown


def tell_rounds(count: int) -> None:
    """A node's life of so many rounds, as its log tells it."""
    node = core.Story(core.settings())
    node.at = 100.0

    def tell(*events: object) -> None:
        for event in events:
            for applied in core.advance(node.state, node.seq, node.at, (event,)):
                EventLines().apply(applied)
                node.state, node.seq = applied.after, node.seq + 1

    node.join()
    for round in range(count):
        tell(core.announced(round, deadline_at=node.at + 60))
        tell(*([core.gathered(round)] if round else []))
        node.at += 15
        tell(core.trained(round))


def test_a_round_is_two_lines(terminal: Terminal) -> None:
    tell_rounds(4)
    assert terminal.lines == [
        line
        for round in range(4)
        for line in (
            f"round {round} stage 0 is open",
            f"round {round} stage 0 trained in 0.0 s: 0 steps, 0 tokens, 0 groups of peers, reward 0.5000",
        )
    ]


def test_what_is_wrong_is_told_with_its_level_and_fix(terminal: Terminal) -> None:
    log = structlog.get_logger("swarmd.daemon")
    log.warning("processes of an earlier life were ended", pids=[7])
    log.error("it failed", fix="Try again")
    structlog.get_logger("swarmd.worker").info("a line of a library", worker="trainer")
    assert terminal.lines == [
        "warning: processes of an earlier life were ended, pids [7]",
        "error: it failed",
        "         fix: Try again",
        "trainer: a line of a library",
    ]
    node = core.Story(core.settings())
    node.join()
    for applied in core.advance(node.state, node.seq, 9.0, (RoundsSkipped(0, 3, "slow"),)):
        EventLines().apply(applied)
    assert terminal.lines[-1].startswith("warning: rounds 0 to 3 skipped, cause: slow")


def test_what_a_worker_prints_commands_no_terminal(terminal: Terminal) -> None:
    structlog.get_logger("swarmd.worker").warning("read \x1b]52;c;YQ==\x07\x9b2J\u202e\tof a peer", worker="trainer")
    assert terminal.lines == ["warning: trainer: read \\x1b]52;c;YQ==\\x07\\x9b2J\\u202e\tof a peer"]


@pytest.mark.parametrize(("level", "format"), [("debug", "auto"), ("info", "text"), ("info", "json")])
def test_all_fields_are_there_where_they_are_asked_for(level: str, format: str) -> None:
    shown = Terminal()
    assert not configure(level, format, shown)
    tell_rounds(2)
    assert "gathered for round 1" in shown.getvalue() and "deadline_at" in shown.getvalue()
