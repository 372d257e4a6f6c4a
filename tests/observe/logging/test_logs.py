"""Log lines that cannot be written end nothing, and are counted."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

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
