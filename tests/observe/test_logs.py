"""Log lines that cannot be written end nothing, and are counted."""

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import TextIO

import pytest
import structlog

from swarmd.core.events import RoundsSkipped
from swarmd.observe.logs import (
    LINES_A_WINDOW_MAX,
    LINES_TRACKED_MAX,
    WINDOW_S,
    EventLogger,
    LineDeduplicator,
    set_up_logging,
)
from tests.core import story as core
from tests.log_capture import capture_logs


class Fragile(io.StringIO):
    """A stream that takes lines while it is well."""

    error: OSError | None = None

    def flush(self) -> None:
        if self.error is not None:
            self.truncate(0)
            self.seek(0)
            raise self.error


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    handlers = logging.getLogger().handlers[:]
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_lines_that_nobody_takes_are_counted_and_told_later(error: OSError) -> None:
    stream = Fragile()
    set_up_logging("info", "json", stream)
    log = structlog.get_logger("swarmd.test")
    stream.error = error
    log.info("lost")
    log.error("lost as well")
    stream.error = None
    log.info("well again")
    log.info("as ever")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["well again", "lines of the log could not be written", "as ever"]
    assert lines[1]["lines_lost"] == 2


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """Its end to read from, and the stream to write to."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        yield reading, stream
    os.close(reading)


@pytest.mark.parametrize("long", [40, 5000])
def test_a_reader_that_stands_still_stops_nobody(pipe: tuple[int, TextIO], long: int) -> None:
    """As a pager does, or a terminal after Ctrl-S. What was cut off in the middle of a line ends there."""
    reading, stream = pipe
    set_up_logging("info", "json", stream)
    log = structlog.get_logger("swarmd.test")
    for number in range(4000):
        log.info("x" * long, number=number)
    read = os.read(reading, 1 << 20)
    log.info("well again")
    read += os.read(reading, 1 << 20)
    *earlier, again, told = read.decode().splitlines()
    assert json.loads(again)["message"] == "well again"
    whole = [line for line in earlier if line.endswith("}")]
    assert 0 < len(whole) < 4000 and json.loads(told)["lines_lost"] == 4000 - len(whole)
    assert [json.loads(line)["number"] for line in whole] == list(range(len(whole)))


@pytest.mark.parametrize("format", ["json", "text"])
def test_no_line_raises_in_who_writes_it(format: str) -> None:
    stream = io.StringIO()
    set_up_logging("info", format, stream)
    name = os.fsdecode(b"/data/\xff")
    structlog.get_logger("swarmd").warning(f"{name} is no blob", path=name, within={name: [name]})
    logging.getLogger("a.library").warning("%d of %d", 1)
    told = stream.getvalue()
    assert "/data/" in told and "udcff" in told.encode("utf-8", "backslashreplace").decode()
    assert "%d of %d (1,)" in told


def test_repeats_are_counted_for_a_minute_and_told_once() -> None:
    folder = LineDeduplicator("network")
    with capture_logs() as told:
        for second in range(5):
            folder.log("warning", f"Nov 20 10:00:0{second}.123 broken pipe", 10.0 + second)
        folder.log("info", "another", 12.0)
        folder.end_windows(10.0 + WINDOW_S)
        folder.log("warning", "Nov 20 10:01:30.000 broken pipe", 10.0 + WINDOW_S + 20)
    texts = [(line["event"][-11:], line.get("repeated")) for line in told]
    assert texts == [("broken pipe", None), ("another", None), ("broken pipe", 4), ("broken pipe", None)]


def test_a_flood_in_which_each_line_comes_twice_is_bounded_as_well() -> None:
    folder, lines = LineDeduplicator("trainer"), 10 * LINES_A_WINDOW_MAX
    with capture_logs() as told:
        for number in range(lines):
            folder.log("info", f"line {number}", 100.0)
            folder.log("info", f"line {number}", 100.0)
        folder.flush()
    assert len(told) <= LINES_A_WINDOW_MAX + LINES_TRACKED_MAX + 1
    said = [line.get("repeated", 1) for line in told[:-1]]
    assert sum(said) + told[-1]["lines_dropped"] == 2 * lines, "none is neither told nor counted"


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
    assert set_up_logging("info", "auto", shown)
    return shown


def tell_rounds(count: int) -> None:
    """A node's life of so many rounds, as its log tells it."""
    node = core.Story(core.settings())
    node.at = 100.0
    node.join()
    node.heard.clear()
    for round in range(count):
        node.tell(core.announced(round, deadline_at=node.at + 60))
        node.tell(*([core.gathered(round)] if round else []))
        node.at += 15
        node.tell(core.trained(round))
    for applied in node.heard:
        EventLogger().apply(applied)


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
    node = core.Story.joined(core.settings())
    node.tell(RoundsSkipped(0, 3, "slow"))
    EventLogger().apply(node.heard[-1])
    assert terminal.lines[-1].startswith("warning: rounds 0 to 3 skipped, cause: slow")


def test_what_a_worker_prints_commands_no_terminal(terminal: Terminal) -> None:
    structlog.get_logger("swarmd.worker").warning("read \x1b]52;c;YQ==\x07\x9b2J\u202e\tof a peer", worker="trainer")
    assert terminal.lines == ["warning: trainer: read \\x1b]52;c;YQ==\\x07\\x9b2J\\u202e\tof a peer"]


@pytest.mark.parametrize(("level", "format"), [("debug", "auto"), ("info", "text"), ("info", "json")])
def test_all_fields_are_there_where_they_are_asked_for(level: str, format: str) -> None:
    shown = Terminal()
    assert not set_up_logging(level, format, shown)
    tell_rounds(2)
    assert "gathered for round 1" in shown.getvalue() and "deadline_at" in shown.getvalue()
