"""What workers print: cut into lines, given a level, kept for the reason of an exit, and put into the log."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator

import msgspec

from swarmd.observe.redaction import REDACTED, Redactor

LINE_CHARACTERS_MAX = 4096  # the rest of a longer line is dropped, and said so
LINES_KEPT = 20  # last lines, for the reason of an exit
REASON_CHARACTERS_MAX = 2000
TRACEBACK_LINES_MAX = 100

_LEVELS = {
    "DEBUG": "debug",
    "INFO": "info",
    "NOTICE": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "FATAL": "error",
    "PANIC": "error",
    "CRITICAL": "error",
}
# In capitals, or as the value of a "level" key (Go's JSON logs, structlog's).
_LEVEL = re.compile(r"(?:\b|\"level\": ?\")(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|PANIC|CRITICAL)\b")
# What libraries say at every start or end, and nobody can or need do anything about.
_NOISE = re.compile(
    r"^nanobind: |^ - (?:leaked|\.\.\. skipped) |gemm_4bit_forward|get_accelerator\] Setting accelerator to CPU"
)
# A worker's own lines, as structlog writes them: the daemon gives them a time and a level of its own.
_OWN = re.compile(r"^[\d-]{10}[ T][\d:.]+Z? \[(debug|info|warning|error|critical) *\] (?P<rest>.*)$", re.DOTALL)
_LEVEL_AMONG_CHARACTERS = 64  # a level stands near the front; further back it is part of the text
_TRACEBACK_STARTS = ("Traceback (most recent call last):", "Fatal Python error", "  + Exception Group Traceback")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
KEY_LINES_MAX = 200  # of a private key in PEM; what claims to be a longer one is shown again
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class OutputLine(msgspec.Struct, frozen=True):
    """One line of a worker's output."""

    level: str  # debug, info, warning or error
    text: str


class LineReader:
    """Turns stderr's bytes into lines of bounded length without secrets, and remembers the last of them.

    A traceback comes out as one line with line breaks in it.
    """

    def __init__(self, cover: Redactor | None = None) -> None:
        self._cover = cover or Redactor()
        self._key_lines = 0  # of a private key so far, 0 outside one
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._dropped = 0
        self._traceback: list[str] = []
        self.last: deque[str] = deque(maxlen=LINES_KEPT)

    def feed(self, chunk: bytes) -> Iterator[OutputLine]:
        """Whole lines that `chunk` completes."""
        *whole, rest = (self._rest + self._decoder.decode(chunk)).replace("\r", "\n").split("\n")
        self._rest = rest[:LINE_CHARACTERS_MAX]
        for text in whole:
            yield from self._add_line(text)
        self._dropped += len(rest) - len(self._rest)

    def end(self) -> Iterator[OutputLine]:
        """What is left when the output ends."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        yield from self._add_line(rest)
        yield from self._end_traceback()

    def tail(self) -> str:
        """The last lines, newest kept, within what a reason may take."""
        return "\n".join(self.last)[-REASON_CHARACTERS_MAX:]

    def _add_line(self, text: str) -> Iterator[OutputLine]:
        text = self._covered(self._bounded(_COLOUR.sub("", text).rstrip()))
        if not text:
            return
        self.last.append(text)
        if text.startswith(_TRACEBACK_STARTS):
            yield from self._end_traceback()
            self._traceback.append(text)
        elif self._traceback:
            self._traceback.append(text)
            if not text.startswith(" ") or len(self._traceback) >= TRACEBACK_LINES_MAX:
                yield from self._end_traceback()
        else:
            own = _OWN.match(text)
            yield OutputLine(level_of(text), re.sub(" {2,}", " ", own["rest"]) if own else text)

    def _covered(self, text: str) -> str:
        """A private key goes with all its lines."""
        if self._key_lines:
            self._key_lines = 0 if _KEY_ENDS.search(text) or self._key_lines >= KEY_LINES_MAX else self._key_lines + 1
            return ""
        begins = _KEY_BEGINS.search(text)
        if begins is None:
            return self._cover(text)
        self._key_lines = 0 if _KEY_ENDS.search(text, begins.end()) else 1
        return self._cover(text[: begins.start()]) + REDACTED

    def _bounded(self, text: str) -> str:
        dropped, self._dropped = self._dropped + max(0, len(text) - LINE_CHARACTERS_MAX), 0
        text = self._cover.cut(text, LINE_CHARACTERS_MAX) if dropped else text
        return f"{text} ... ({dropped} more characters)" if dropped else text

    def _end_traceback(self) -> Iterator[OutputLine]:
        if self._traceback:
            yield OutputLine("error", "\n".join(self._traceback))
        self._traceback = []


def level_of(text: str) -> str:
    """The level that a line names near its front; "info" without one, and "debug" for known noise."""
    if _NOISE.search(text):
        return "debug"
    found = _OWN.match(text) or _LEVEL.search(text[:_LEVEL_AMONG_CHARACTERS])
    return _LEVELS[found[1].upper()] if found else "info"
