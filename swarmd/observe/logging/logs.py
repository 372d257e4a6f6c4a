"""The log that people and machines read: structlog on stderr, a few words on a terminal, JSON elsewhere.

Under systemd each line carries its priority, so that `journalctl -p warning` works.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, ClassVar, TextIO

import msgspec
import structlog

from swarmd.core.applied import Applied
from swarmd.errors import SwarmdError
from swarmd.observe.logging.dedupe import LEVELS
from swarmd.observe.logging.library_logger import get_logger
from swarmd.observe.logging.line_writer import LineWriter
from swarmd.observe.logging.redaction import redacting
from swarmd.observe.logging.terminal import TerminalLines
from swarmd.observe.narrative.describe import line_of

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
FIRST = ("timestamp", "level", "message", "logger", "seq", "event", "round", "stage", "peer")

events_log = get_logger("swarmd.events")


def configure(
    level: str = "info", format: str = "auto", stream: TextIO | None = None, secrets: Iterable[str] = ()
) -> bool:
    """Set up logging for this process.

    Args:
        level: least level that is written: debug, info, warning or error.
        format: "json", "text" with all fields, or "auto" for what matters on a terminal and JSON otherwise.
        stream: where lines go, by default stderr.
        secrets: texts to cover wherever they stand, beside what looks like a secret.

    Returns:
        Whether a person watches: on a terminal, at a level above debug.
    """
    stream = stream or sys.stderr
    on_terminal = format == "auto" and stream.isatty()
    is_watched = on_terminal and level != "debug"
    lines = LineWriter(stream)
    form = _text_form if format == "text" or on_terminal else _json_form
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            _add_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _message_first,
            redacting(secrets),
            *([TerminalLines(colours=not os.environ.get("NO_COLOR"))] if is_watched else form(stream)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *names: _NamedLogger(lines, names[0] if names else ""),
        cache_logger_on_first_use=False,
    )
    _take_over_stdlib()
    return is_watched


class EventLines:
    """A projection: one line about each event, with its sequence number, round, stage and peer."""

    def apply(self, applied: Applied) -> None:
        line = line_of(applied)
        fields = {("tag" if name == "event" else name): value for name, value in line.fields.items()}
        events_log.log(LEVELS[line.level], line.message, **fields)


def tell_fatal(error: SwarmdError) -> None:
    """The last line of a process that ends with a deliberate error."""
    structlog.get_logger("swarmd").critical(
        error.message, error=type(error).__name__, fix=error.fix, exit_code=error.exit_code
    )


class _NamedLogger:
    lost: ClassVar[int] = 0  # lines, since the last that could be written

    def __init__(self, lines: LineWriter, name: str) -> None:
        self._lines = lines
        self.name = name

    def msg(self, message: str) -> None:
        """Write a line. Where that fails, for nobody reads on or the disk is full, the node works on without.

        How many lines were lost is told once one can be written again.
        """
        try:
            self._lines.write(message)
        except OSError:
            _NamedLogger.lost += 1
            return
        if lost := _NamedLogger.lost:
            _NamedLogger.lost = 0
            structlog.get_logger("swarmd").warning("lines of the log could not be written", lines_lost=lost)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def _add_name(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    fields.setdefault("logger", getattr(logger, "name", ""))
    return fields


def _message_first(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog calls the text "event"; here that word is the event's tag."""
    fields["message"] = fields.pop("event", "")
    if "tag" in fields:
        fields["event"] = fields.pop("tag")
    return fields


def _order(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    front = {name: fields[name] for name in FIRST if name in fields}
    return front | {name: value for name, value in fields.items() if name not in front}


class _JsonRenderer:
    def __init__(self, journal: bool) -> None:
        self._journal = journal

    def __call__(self, logger: Any, method: str, fields: MutableMapping[str, Any]) -> str:
        text = msgspec.json.encode(_json_ready(fields)).decode()
        return f"<{PRIORITIES.get(str(fields.get('level')), 6)}>{text}" if self._journal else text


def _json_ready(value: Any) -> Any:
    """NaN and infinities as text, for which JSON has no numbers; of a file's name what is no UTF-8 as "\\udcff"."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {_json_ready(name): _json_ready(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(inner) for inner in value]
    return value


def _text_form(stream: TextIO) -> list[Any]:
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), event_key="message", pad_event_to=40)]


def _json_form(stream: TextIO) -> list[Any]:
    return [_order, _JsonRenderer(in_journal(stream, os.environ))]


def in_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream goes straight to systemd's journal."""
    wanted = environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return bool(wanted) and wanted == f"{status.st_dev}:{status.st_ino}"


def _take_over_stdlib() -> None:
    """What libraries say through `logging` goes the same way, from warnings on; below, some tell every step."""
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(logging.WARNING)


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level = min(LEVELS.values(), key=lambda known: abs(known - record.levelno))
        structlog.get_logger(record.name).log(level, _message_of(record), exc_info=record.exc_info)


def _message_of(record: logging.LogRecord) -> str:
    """What a library says; where its words do not fit what they are about, both."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args}"
