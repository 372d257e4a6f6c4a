"""A worker process: started in its own session, connected by pipes, and killed with all its children.

- Its output is split into lines with a level, which go into the log; the last lines become part of the reason of an
  exit.
- A killed daemon cannot end its workers. They end by themselves when their stdin closes, unless they hang. So workers
  and their children carry the node's tag in their environment, by which the next daemon, once it holds the event log's
  lock, finds and kills leftovers.
"""

import codecs
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import psutil
from anyio import to_thread

from swarmd.observe.redaction import REDACTED, Redactor

LINE_CHARACTERS_MAX = 4096  # the rest of a longer line is dropped and counted
LINES_KEPT = 20  # last lines, kept for the reason of an exit
REASON_CHARACTERS_MAX = 2000
TRACEBACK_LINES_MAX = 100

_LEVELS = {"NOTICE": "info", "WARN": "warning", "FATAL": "error", "PANIC": "error", "CRITICAL": "error"}
# In capitals, or as the value of a "level" key (Go's JSON logs, structlog's).
_LEVEL = re.compile(r"(?:\b|\"level\": ?\")(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|PANIC|CRITICAL)\b")
# Harmless messages that libraries print at every start or end.
_NOISE = re.compile(
    r"^nanobind: |^ - (?:leaked|\.\.\. skipped) |gemm_4bit_forward|get_accelerator\] Setting accelerator to CPU"
)
# A worker's structlog lines; the daemon adds its own time and level.
_OWN = re.compile(r"^[\d-]{10}[ T][\d:.]+Z? \[(debug|info|warning|error|critical) *\] (?P<rest>.*)$", re.DOTALL)
_LEVEL_AMONG_CHARACTERS = 64  # a level later in the line is part of the text
_TRACEBACK_STARTS = ("Traceback (most recent call last):", "Fatal Python error", "  + Exception Group Traceback")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
KEY_LINES_MAX = 200  # lines of a PEM private key to redact before assuming that its end is missing
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class OutputLine(msgspec.Struct, frozen=True):
    level: str  # debug, info, warning or error
    text: str


class LineReader:
    """Splits stderr into bounded lines with secrets redacted, joins a traceback into one entry, and keeps the last
    lines."""

    def __init__(self, cover: Redactor | None = None) -> None:
        self._cover = cover or Redactor()
        self._key_lines = 0  # lines of a private key so far, 0 outside one
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._dropped = 0
        self._traceback: list[str] = []
        self.last: deque[str] = deque(maxlen=LINES_KEPT)

    def feed(self, chunk: bytes) -> Iterator[OutputLine]:
        """Yield the lines that `chunk` completes."""
        *whole, rest = (self._rest + self._decoder.decode(chunk)).replace("\r", "\n").split("\n")
        self._rest = rest[:LINE_CHARACTERS_MAX]
        for text in whole:
            yield from self._add_line(text)
        self._dropped += len(rest) - len(self._rest)

    def finish(self) -> Iterator[OutputLine]:
        """Yield what is left when the output ends."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        yield from self._add_line(rest)
        yield from self._end_traceback()

    def tail(self) -> str:
        """The last lines, up to the length of an exit's reason."""
        return "\n".join(self.last)[-REASON_CHARACTERS_MAX:]

    def _add_line(self, text: str) -> Iterator[OutputLine]:
        text = self._redact_line(self._cut_line(_COLOUR.sub("", text).rstrip()))
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

    def _redact_line(self, text: str) -> str:
        """Redact secrets in a line, and every line of a private key."""
        if self._key_lines:
            self._key_lines = 0 if _KEY_ENDS.search(text) or self._key_lines >= KEY_LINES_MAX else self._key_lines + 1
            return ""
        begins = _KEY_BEGINS.search(text)
        if begins is None:
            return self._cover(text)
        self._key_lines = 0 if _KEY_ENDS.search(text, begins.end()) else 1
        return self._cover(text[: begins.start()]) + REDACTED

    def _cut_line(self, text: str) -> str:
        dropped, self._dropped = self._dropped + max(0, len(text) - LINE_CHARACTERS_MAX), 0
        text = self._cover.cut(text, LINE_CHARACTERS_MAX) if dropped else text
        return f"{text} ... ({dropped} more characters)" if dropped else text

    def _end_traceback(self) -> Iterator[OutputLine]:
        if self._traceback:
            yield OutputLine("error", "\n".join(self._traceback))
        self._traceback = []


def level_of(text: str) -> str:
    """The level named at the start of a line; "info" if there is none, "debug" for known noise."""
    if _NOISE.search(text):
        return "debug"
    found = _OWN.match(text) or _LEVEL.search(text[:_LEVEL_AMONG_CHARACTERS])
    return _LEVELS.get(found[1].upper(), found[1].lower()) if found else "info"


GONE_S = 5.0  # longest wait for a killed process to disappear
PASSES_MAX = 5  # searches for leftovers: a process may start another just before it is killed


def node_tag(peer: str, data_dir: Path) -> str:
    """The environment value that marks the processes of one node."""
    return f"{peer}@{data_dir.resolve()}"


def read_process_tag(process: psutil.Process) -> str:
    """The tag of a process; empty if it has none, has ended, or belongs to another user."""
    try:
        return str(process.environ().get(TAG_VARIABLE, ""))
    except (psutil.Error, OSError):
        return ""


def find_leftovers(tag: str) -> list[int]:
    """Pids of other processes that carry the tag."""
    return [process.pid for process in _find_tagged_processes(tag)]


def _find_tagged_processes(tag: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if each.pid != os.getpid() and read_process_tag(each) == tag]


async def kill_leftovers(tag: str) -> list[int]:
    """Kill processes left by an earlier run, and wait until they are gone. Returns their pids."""
    killed: list[int] = []
    for _ in range(PASSES_MAX):
        found = _find_tagged_processes(tag)
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):  # already ended; psutil checks that the pid was not reused
                process.kill()
        await to_thread.run_sync(psutil.wait_procs, found, GONE_S)
        killed += [process.pid for process in found]
    return killed


CHUNK_BYTES = 65536
REAP_S = 2.0  # longest wait for a killed process to disappear

# Kept from workers, which must not talk to the service manager as the daemon.
PRIVATE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def worker_environment(
    environ: Mapping[str, str], tag: str, withheld: Collection[str] = (), repeats: bool = False
) -> dict[str, str]:
    """The environment of a worker, without the `withheld` variables. `tag`: marks it and its children. `repeats`: fix
    the hash seed, so that sets of texts have the same order in every process on every machine."""
    kept = {name: value for name, value in environ.items() if name not in PRIVATE_VARIABLES and name not in withheld}
    if repeats:
        kept["PYTHONHASHSEED"] = "0"
    return kept | {
        TAG_VARIABLE: tag,
        "PYTHONUNBUFFERED": "1",  # output reaches the log at once
        "PYTHONFAULTHANDLER": "1",  # a native crash leaves a traceback in the log
        "MALLOC_ARENA_MAX": kept.get("MALLOC_ARENA_MAX", "2"),  # makes glibc return memory
    }


TAG_VARIABLE = "SWARMD_NODE"


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its children, since their memory holds secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


class Child:
    """A running worker process that leads its own session and process group: a terminal's Ctrl-C reaches only the
    daemon, and killing the group also kills p2pd. Raises OSError if it cannot be started."""

    _end = -1  # pidfd on Linux: readable when the process ends

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        self._stderr = self._process.stderr.fileno()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        if sys.platform == "linux":
            self._open_exit_descriptor()

    def _open_exit_descriptor(self) -> None:
        """Open the pidfd now, while descriptors are available. Raises OSError."""
        try:
            self._end = os.pidfd_open(self.pid)
        except OSError:
            self.reap()
            raise

    @property
    def pid(self) -> int:
        """Process id, also the id of its group."""
        return self._process.pid

    def prefer_for_oom(self, score: int) -> None:
        """Make the OOM killer choose this process before the daemon (Linux)."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/oom_score_adj", "w") as adjust:  # noqa: PTH123
            adjust.write(str(score))

    async def read_stdout(self) -> bytes:
        """The next bytes; empty at the end."""
        return await _read_chunk(self._stdout)

    async def read_stderr(self) -> bytes:
        """The next bytes; empty at the end."""
        return await _read_chunk(self._stderr)

    async def write(self, frame: bytes) -> None:
        """Write the whole frame. Raises BrokenPipeError when the worker has closed its stdin."""
        rest = memoryview(frame)
        while rest:
            await anyio.wait_writable(self._stdin)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._stdin, rest) :]

    async def wait(self) -> None:
        """Wait until the process has ended. On Linux it is not reaped yet, so that its group id cannot be reused."""
        if self._end >= 0:
            await anyio.wait_readable(self._end)
        else:
            await to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its whole group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> int | None:
        """Kill the rest of the group, close the pipes, and collect the exit status: minus the signal's number if a
        signal ended it; None if the process cannot be killed."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        try:
            return self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return None


async def _read_chunk(descriptor: int) -> bytes:
    while True:
        await anyio.wait_readable(descriptor)
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            continue
