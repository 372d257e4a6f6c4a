"""Log lines that cannot be written end nothing, and are counted."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest
import structlog

from swarmd.observe.logging.logs import configure


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
    configure("info", "json", stream)
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
    configure("info", "json", stream)
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
    configure("info", format, stream)
    name = os.fsdecode(b"/data/\xff")
    structlog.get_logger("swarmd").warning(f"{name} is no blob", path=name, within={name: [name]})
    logging.getLogger("a.library").warning("%d of %d", 1)
    told = stream.getvalue()
    assert "/data/" in told and "udcff" in told.encode("utf-8", "backslashreplace").decode()
    assert "%d of %d (1,)" in told
