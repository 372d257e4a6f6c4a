"""Logging: structlog on stderr, short lines on a terminal, JSON elsewhere.

- Under systemd each line carries its priority, so that `journalctl -p warning` works.
- A terminal shows only lines that matter, with short ids and local times. The event log has everything, and
  `logs.level = "debug"` or `logs.format = "text"` shows every line with all its fields.
- A write never waits for a reader that has stopped (a pager, a terminal after Ctrl-S): lines are dropped and counted.
- Repeated lines of a worker are folded to a count a minute, and the number of its lines has a bound.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, ClassVar, TextIO

import msgspec
import structlog
from cachetools import TTLCache

from swarmd.core.applied import AppliedEvent
from swarmd.errors import SwarmdError
from swarmd.logger import get_logger
from swarmd.observe.describe import ROUTINE, make_event_line
from swarmd.observe.layers import escape_control_characters
from swarmd.observe.redaction import make_redacting_processor
from swarmd.observe.status import Status

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
FIRST = ("timestamp", "level", "message", "logger", "seq", "event", "round", "stage", "peer")


events_log = get_logger("swarmd.events")


def set_up_logging(
    level: str = "info", format: str = "auto", stream: TextIO | None = None, secrets: Iterable[str] = ()
) -> bool:
    """Set up logging for this process. Returns whether a person watches: on a terminal, at a level above debug.

    Args:
        level: the lowest level that is written: debug, info, warning or error.
        format: "json", "text" with all fields, or "auto": JSON, or on a terminal short lines.
        stream: where lines go, by default stderr.
        secrets: texts to redact wherever they occur, besides what looks like a secret.
    """
    stream = stream or sys.stderr
    on_terminal = format == "auto" and stream.isatty()
    is_watched = on_terminal and level != "debug"
    lines = LineWriter(stream)
    if is_watched:
        form: list[Any] = [TerminalRenderer(colours=not os.environ.get("NO_COLOR"))]
    elif format == "text" or on_terminal:
        form = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), event_key="message", pad_event_to=40)]
    else:
        form = _json_processors(stream)
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            # structlog calls the text "event"; here that word is the event's tag.
            structlog.processors.EventRenamer("message", "tag"),
            make_redacting_processor(secrets),
            *form,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *names: _NamedLogger(lines, names[0] if names else ""),
        cache_logger_on_first_use=False,
    )
    _redirect_stdlib_logging()
    return is_watched


class EventLogger:
    """A projection that logs one line for each event, with its sequence number, round, stage and peer."""

    def apply(self, applied: AppliedEvent) -> None:
        line = make_event_line(applied)
        fields = {("tag" if name == "event" else name): value for name, value in line.fields.items()}
        events_log.log(LEVELS[line.level], line.message, **fields)


def log_fatal(error: SwarmdError) -> None:
    """Log the error that ends this process, as its last line."""
    structlog.get_logger("swarmd").critical(
        error.message, error=type(error).__name__, fix=error.fix, exit_code=error.exit_code
    )


class _NamedLogger:
    lost: ClassVar[int] = 0  # lines since the last one that could be written

    def __init__(self, lines: LineWriter, name: str) -> None:
        self._lines = lines
        self.name = name

    def msg(self, message: str) -> None:
        """Write a line. If that fails, because nobody reads or the disk is full, the line is dropped.

        The number of lost lines is logged once a line can be written again.
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


def _order_fields(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    front = {name: fields[name] for name in FIRST if name in fields}
    return front | {name: value for name, value in fields.items() if name not in front}


def _to_json_ready(value: Any) -> Any:
    """Make a value fit for JSON: NaN and infinities become text, and bytes of a file's name that are not UTF-8 become
    "\\udcff"."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {_to_json_ready(name): _to_json_ready(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_ready(inner) for inner in value]
    return value


def _json_processors(stream: TextIO) -> list[Any]:
    journal = is_journal_stream(stream, os.environ)

    def render(logger: Any, method: str, fields: MutableMapping[str, Any]) -> str:
        text = msgspec.json.encode(_to_json_ready(fields)).decode()
        return f"<{PRIORITIES.get(str(fields.get('level')), 6)}>{text}" if journal else text

    return [_order_fields, render]


def is_journal_stream(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream goes straight to systemd's journal."""
    wanted = environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return bool(wanted) and wanted == f"{status.st_dev}:{status.st_ino}"


def _redirect_stdlib_logging() -> None:
    """Route the standard library's logging here, from warnings on: below that, some libraries log every step."""
    root = logging.getLogger()
    root.handlers[:] = [_ForwardingHandler()]
    root.setLevel(logging.WARNING)


class _ForwardingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level = min(LEVELS.values(), key=lambda known: abs(known - record.levelno))
        structlog.get_logger(record.name).log(level, _format_message(record), exc_info=record.exc_info)


def _format_message(record: logging.LogRecord) -> str:
    """A library's message; if its arguments do not fit its format, both as they are."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args}"


# --- on a terminal ---

UNSAID = frozenset({"timestamp", "level", "message", "logger", "exception", "fix", "worker", "pid", "version", "data"})
PEER_ID = re.compile(r"\b(?:12D3KooW|16Uiu2HA|Qm)[1-9A-HJ-NP-Za-km-z]{30,}")
DIGEST = re.compile(r"\b(0x)?[0-9a-f]{40,}\b")
DIGEST_BEGIN = 8  # characters of a digest that are shown
ID_END = 6  # characters of a peer id that are shown
COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class TerminalRenderer:
    """The last structlog processor: renders the fields as a short line, or drops a routine line."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def __call__(self, logger: Any, method: str, fields: MutableMapping[str, Any]) -> str:
        level = str(fields.get("level", "info"))
        if level == "info" and is_routine(fields):
            raise structlog.DropEvent
        words = escape_control_characters(shorten_ids(describe_fields(fields)), "\n\t")
        marked = words if level == "info" else f"{level}: {words}"
        clock = time.strftime("%H:%M:%S")
        if not self._colours:
            return f"{clock} {marked}"
        return f"{DIM}{clock}{PLAIN} {COLOURS.get(level, '')}{marked}{PLAIN}"


def is_routine(fields: MutableMapping[str, Any]) -> bool:
    """Whether a line below warning is routine. An announcement is, unless the node's chart moved with it."""
    tag = fields.get("event")
    return tag in ROUTINE or (tag == "round_announced" and "entered" not in fields)


def describe_fields(fields: MutableMapping[str, Any]) -> str:
    """A line's message, with the fields that are not part of it."""
    words = str(fields.get("message", ""))
    if worker := fields.get("worker"):
        words = words if fields.get("event") else f"{worker}: {words}"
    if "event" not in fields:
        rest = {name: value for name, value in fields.items() if name not in UNSAID and value not in ("", None)}
        words += "".join(f", {name.replace('_', ' ')} {value}" for name, value in rest.items())
    words += f"\n         fix: {fields['fix']}" if fields.get("fix") else ""
    return words + (f"\n{fields['exception']}" if fields.get("exception") else "")


def shorten_ids(text: str) -> str:
    """Shorten every peer id to its end and every digest to its beginning."""
    text = PEER_ID.sub(lambda found: "…" + found[0][-ID_END:], text)
    return DIGEST.sub(lambda found: found[0][: DIGEST_BEGIN + len(found[1] or "")] + "…", text)


def describe_progress(status: Status) -> str:
    """The trainer's progress in words; empty if it is idle."""
    training = status.training
    if training.state not in ("loading", "busy"):
        return ""
    words = training.activity_text or training.state
    figures = training.figures
    words += f", {figures['tokens_per_s']:.0f} tokens/s" if figures.get("tokens_per_s") else ""
    return words + (f", {figures['eta_s']:.0f} s to go" if figures.get("eta_s") else "")


# --- streams whose reader may stop ---

PIECE_CHARS = 1024  # written at once: at most PIPE_BUF bytes in UTF-8, for which a pipe has room if poll(2) says so
PATIENCE_S = 0.1  # how long a write waits for the reader


class LineWriter:
    """Writes whole lines or raises. Thread-safe. A stream without a descriptor always has room."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._poll = _make_poll(stream)
        self._is_full = False  # there was no room at the last poll
        self._is_cut = False  # the last line was written only in part

    def write(self, line: str) -> None:
        """Write a line. Waits `PATIENCE_S` for room, or not at all if the last call found none. Raises OSError: the
        system refuses it; BlockingIOError: nobody reads. Part of a long line may have been written."""
        with self._lock:
            text = f"\n{line}\n" if self._is_cut else f"{line}\n"
            for begin in range(0, len(text), PIECE_CHARS):
                self._wait_until_writable()
                end = begin + PIECE_CHARS
                self._stream.write(text[begin:end])
                self._stream.flush()
                self._is_cut = end < len(text)

    def _wait_until_writable(self) -> None:
        if self._poll is None:
            return
        waits_ms = 0 if self._is_full else 1000 * PATIENCE_S
        self._is_full = not self._poll.poll(waits_ms)
        if self._is_full:
            raise BlockingIOError(errno.EAGAIN, "nobody reads the log")


def _make_poll(stream: TextIO) -> select.poll | None:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return poll


# --- what workers say ---

WINDOW_S = 60.0
LINES_TRACKED_MAX = 256  # distinct lines watched for repeats; at the bound the oldest is dropped
LINES_A_WINDOW_MAX = 1200  # lines of one worker logged in a minute; the rest is counted

# A timestamp at the beginning of a line, ignored when lines are compared.
_STAMP = re.compile(
    r"^\s*(?:[A-Z][a-z]{2} \d{1,2} |\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d[.,]?\d*(?:Z|[+-]\d\d:?\d\d)?\s*"
)

worker_log = get_logger("swarmd.worker")


class LineDeduplicator:
    """Logs a worker's lines; a line that is repeated within the window is counted instead of logged."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._now = 0.0
        self._seen: TTLCache[str, _SeenLine] = TTLCache(LINES_TRACKED_MAX, WINDOW_S, timer=lambda: self._now)
        self._window_from = 0.0
        self._logged = 0
        self._dropped = 0

    def log(self, level: str, text: str, now: float) -> None:
        """Log or count one line. `now` is monotonic, seconds."""
        self.end_windows(now)
        key = _STAMP.sub("", text)
        seen = self._seen.get(key)
        if seen is not None:
            seen.repeats += 1
            return
        if len(self._seen) == LINES_TRACKED_MAX:
            self._drop_line(self._seen.popitem()[1])
        self._seen[key] = _SeenLine(level, text)
        self._write_line(level, text)

    def end_windows(self, now: float) -> None:
        """Log the number of repeats of each line whose window has ended."""
        self._now = now
        for _, seen in self._seen.expire():
            self._log_repeats(seen)
        if now - self._window_from >= WINDOW_S:
            self._log_dropped()
            self._window_from = now

    def flush(self) -> None:
        """Log all counts so far, because the worker has ended."""
        for seen in self._seen.values():
            self._log_repeats(seen)
        self._seen.clear()
        self._log_dropped()

    def _write_line(self, level: str, text: str) -> None:
        if self._logged >= LINES_A_WINDOW_MAX:
            self._dropped += 1
            return
        self._logged += 1
        worker_log.log(LEVELS[level], text, worker=self._worker)

    def _drop_line(self, seen: _SeenLine) -> None:
        """Stop tracking a line before its window ends. The line about its repeats counts towards LINES_A_WINDOW_MAX."""
        if self._logged >= LINES_A_WINDOW_MAX:
            self._dropped += seen.repeats
        elif seen.repeats:
            self._logged += 1
            self._log_repeats(seen)

    def _log_repeats(self, seen: _SeenLine) -> None:
        if seen.repeats:
            worker_log.log(LEVELS[seen.level], seen.text, worker=self._worker, repeated=seen.repeats, window_s=WINDOW_S)

    def _log_dropped(self) -> None:
        if self._dropped:
            worker_log.warning("the worker says too much", worker=self._worker, lines_dropped=self._dropped)
        self._logged = self._dropped = 0


class _SeenLine(msgspec.Struct):
    level: str
    text: str
    repeats: int = 0
