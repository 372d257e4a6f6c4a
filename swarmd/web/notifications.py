"""Sends a node's operator a message about each change of its health.

- `HealthChanges` is pure. It reports a layer once it has been unwell for `after_s`, with the reason, and again when it
  has been well for as long. A flapping layer is reported once. There is at most one message about a layer in `quiet_s`;
  the next message sums up the changes meanwhile.
- The task runs in the web process, so it can report that the daemon died. Its failures are logged and counted, but end
  nothing. What was sent is kept in `run/notify.json`. Each run of a daemon has a web process of its own; the one that
  holds the lock sends, and the next one only watches until the lock is free.
- Each sender (a URL of any service that Apprise knows, or a program) has its own bounded queue. Each attempt ends in
  bounded time and raises only NotifyFailed, whose text holds no secret.
- Apprise sends synchronously, so it runs in a daemon thread, which cannot delay the event loop or the end of this
  process. It says only in its log why a service refused a message. These log records are collected and go nowhere else,
  because some contain the secret URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import NotifyConfig, open_service
from swarmd.errors import ConfigError, NotifyFailed, SwarmdError
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.observe.layers import Layer, LayerName, first_line
from swarmd.observe.metrics import Metrics
from swarmd.observe.onchain import account_layer
from swarmd.observe.redaction import find_service_secrets, redact_text
from swarmd.observe.status import STALE_S, ProcessStatus, Status
from swarmd.observe.words import format_duration
from swarmd.paths import NodeDirectory
from swarmd.secret_files import CREDENTIAL, SecretKind, locate_secret, read_secret
from swarmd.web.heartbeat import Heartbeat, in_daemon_thread
from swarmd.worker.runtime import TimeSource

SEND_S = 45.0  # longest wait for a service, with Apprise's own retries
COMMAND_S = 30.0  # longest run of a program; then its group is killed
ANSWER_BYTES_MAX = 4096  # read from a failed program's stderr
SAID_CHARACTERS_MAX = 200
SECRET_BYTES_MAX = 4096
FILE = "file:"
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "XDG_RUNTIME_DIR")  # variables for a program

SECRET = SecretKind("notification secret", ConfigError, SECRET_BYTES_MAX, "Write it there, one URL a line, mode 0600")


class NotificationSender(Protocol):
    """Sends messages; `name` is one of `swarmd.observe.labels.SENDERS`, `shown` names it in logs."""

    name: str
    shown: str

    async def send(self, note: HealthMessage) -> None:
        """Send a message. Raises NotifyFailed."""


def make_senders(config: NotifyConfig, root: Path) -> list[NotificationSender]:
    """Make the senders that a configuration names. `root`: the data directory, which files are relative to. Raises
    ConfigError: a secret cannot be read, or a URL is not one that Apprise knows."""
    senders: list[NotificationSender] = []
    for number, named in enumerate(config.urls, 1):
        senders += [UrlSender(url, f"notify.urls, entry {number}") for url in _read_sender_urls(named, root)]
    if config.command:
        senders.append(ProgramSender(config.command))
    return senders


def _read_sender_urls(named: str, root: Path) -> list[str]:
    if not named.startswith((FILE, CREDENTIAL)):
        return [named]
    secret = locate_secret(named.removeprefix(FILE), root, SECRET)
    lines = map(str.strip, read_secret(secret, SECRET).decode("utf-8-sig", "replace").splitlines())
    urls = [line for line in lines if line and not line.startswith("#")]
    if not urls:
        raise ConfigError(f"there is no URL in {secret.path}", "Write one on each line")
    return urls


def heartbeat_of(config: NotifyConfig, root: Path, metrics: Metrics) -> Heartbeat | None:
    """Make the heartbeat that a configuration names, None without one. Raises ConfigError: as `make_senders`."""
    return Heartbeat(_read_sender_urls(config.heartbeat_url, root)[0], metrics) if config.heartbeat_url else None


class UrlSender:
    """A service that Apprise knows by its URL. `url`: secret. `key`: its configuration key, for errors."""

    name = "url"

    def __init__(self, url: str, key: str, send_s: float = SEND_S) -> None:
        self._service = open_service(url, key)
        self.shown = f"{self._service[0].service_name} ({key})"
        self._secrets = sorted(find_service_secrets(url), key=len, reverse=True)
        self._send_s = send_s

    async def send(self, note: HealthMessage) -> None:
        try:
            async with asyncio.timeout(self._send_s):
                reason = await in_daemon_thread(lambda: self._notify_service(note))
        except TimeoutError:
            reason = f"no answer within {self._send_s:g} s"
        for secret in self._secrets:
            reason = reason.replace(secret, "[redacted]")
        if reason:
            words = " ".join(redact_text(reason).split())[:SAID_CHARACTERS_MAX]
            raise NotifyFailed(f"{self.shown} did not take the message: {words}")

    def _notify_service(self, note: HealthMessage) -> str:
        """Send a message; returns why the service refused it, empty if it did not."""
        kind = "success" if note.well else "warning"
        with _collect_apprise_logs() as said:
            sent = self._service.notify(body=note.text, title=f"swarmd: {note.node}", notify_type=kind)
        return "" if sent else (said[-1] if said else "it does not say why")


@contextlib.contextmanager
def _collect_apprise_logs() -> Iterator[list[str]]:
    """Collect what Apprise logs in this thread."""
    said: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == threading.get_ident():
                said.append(record.getMessage())

    log, collector = logging.getLogger("apprise"), Collector(logging.WARNING)
    log.addHandler(collector)
    try:
        yield said
    finally:
        log.removeHandler(collector)


class ProgramSender:
    """Runs a program with the message on its stdin, for `COMMAND_S` at most; a failed program is not run again.

    Its environment has SWARMD_NOTE_LAYER, SWARMD_NOTE_STATE ("well" or "unwell") and those in PASSED_ON, nothing else.
    """

    name = "command"

    def __init__(self, argv: Sequence[str], run_s: float = COMMAND_S) -> None:
        self._argv = tuple(argv)
        self._run_s = run_s
        self.shown = f"the program {self._argv[0]}"

    async def send(self, note: HealthMessage) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"SWARMD_NOTE_LAYER": note.layer, "SWARMD_NOTE_STATE": "well" if note.well else "unwell"}
        # a file, because a process that the program started may hold a pipe open
        with tempfile.TemporaryFile() as said:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=said,
                    env=environment,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise NotifyFailed(f"{self.shown} cannot be run: {error}", "Correct notify.command") from None
            try:
                async with asyncio.timeout(self._run_s):
                    await process.communicate(note.text.encode() + b"\n")
            except TimeoutError:
                raise NotifyFailed(f"{self.shown} took more than {self._run_s:g} s, killed") from None
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if process.returncode:
                said.seek(max(0, said.seek(0, os.SEEK_END) - ANSWER_BYTES_MAX))
                words = " ".join(said.read().decode("utf-8", "replace").split())[-SAID_CHARACTERS_MAX:]
                raise NotifyFailed(f"{self.shown} ended with status {process.returncode}: {redact_text(words)}")


START_S = 180.0  # after a daemon's start, in which its other layers are not judged: the model loads, peers are found
REASON_CHARACTERS_MAX = 400


class HealthMessage(msgspec.Struct, frozen=True):
    """One message about one layer of a node."""

    node: str  # its name, else the end of its peer id
    layer: str
    well: bool
    text: str  # the whole message in one line


class HealthChanges:
    """Turns one node's statuses over time into messages about changes.

    Args:
        after_s: how long a change must last before it is reported.
        quiet_s: the least time between two messages about one layer.

    Attributes:
        past: what earlier calls, and earlier processes, have recorded.
        unwell: layers that have been unwell for `after_s`, each with its reason on a line.
    """

    def __init__(self, after_s: float, quiet_s: float) -> None:
        self._after_s = after_s
        self._quiet_s = quiet_s
        self.past = NodeHealthState()
        self.unwell = ""

    def messages_due(self, status: Status, now: float) -> list[HealthMessage]:
        """The messages due now. Call it more often than every `after_s`. `now`: POSIX seconds."""
        notes: list[HealthMessage] = []
        run = self.past.run
        if run and status.process.run != run and status.source == "daemon":
            notes += self._update_layer(status, "process", False, "the daemon ended, and was started again", now)
        self.past.run = status.process.run or run
        unwell = []
        for name, layer in layers_to_judge(status, now):
            notes += self._update_layer(status, name, layer.healthy, unhealthy_reason(layer), now)
            track = self.past.tracks[name]
            if not track.well and now - track.since >= self._after_s:
                unwell.append(f"{name}: {track.reason}")
        self.unwell = "\n".join(unwell)
        return notes

    def stop_messages(self, status: Status, now: float) -> list[HealthMessage]:
        """The message to send before this process ends if its daemon has stopped, because no other process will send
        it."""
        process = status.process
        return (
            [] if process.healthy else self._update_layer(status, "process", False, unhealthy_reason(process), now, 0.0)
        )

    def _update_layer(
        self, status: Status, name: LayerName, well: bool, reason: str, now: float, after_s: float | None = None
    ) -> list[HealthMessage]:
        track = self.past.tracks.setdefault(name, LayerState(since=now))
        told = track.update(well, reason, now, self._after_s if after_s is None else after_s, self._quiet_s)
        if told is None:
            return []
        node = status.name or status.peer[-12:] or "node"
        return [HealthMessage(node, name, told.well, f"{node}: {_describe_change(name, told)}")]


def _describe_change(layer: LayerName, told: _LayerReport) -> str:
    what = "the node" if layer == "process" else layer
    flapped = f" (it came and went {told.changes} times meanwhile)" if told.changes else ""
    if told.well:
        return f"{what} is well again after {format_duration(told.lasted_s)}{flapped}; it was: {told.reason}"
    if layer == "process" and told.lasted_s < 1:
        return f"{what} ends{flapped}: {told.reason}"
    verb = "has not run well" if layer == "process" else "has not been well"
    return f"{what} {verb} for {format_duration(told.lasted_s)}{flapped}: {told.reason}"


def layers_to_judge(status: Status, now: float) -> list[tuple[LayerName, Layer]]:
    """The layers to judge now: only the process while a daemon is down or has just started; if the status is too old,
    as when a disk cannot be read, a process layer that says so."""
    if now - status.at > STALE_S:
        reason = f"neither its daemon nor its log says anything, for {format_duration(now - status.at)} so far"
        return [("process", Layer(state="mute", healthy=False, age_s=now - status.at, reason=reason))]
    starts = 0 <= status.process.age_s < START_S  # negative if the clock was set back since the start
    if status.source != "daemon" or not status.process.healthy or starts:
        return [("process", status.process)]
    layers = status.layers
    if account := account_layer(status.chain):
        layers["account"] = account
    return list(layers.items())


def unhealthy_reason(layer: Layer) -> str:
    """Why a layer is unwell, in one line without secrets; for a daemon that ended, with its exit code."""
    reason = redact_text(first_line(layer.reason) or layer.state)
    if isinstance(layer, ProcessStatus) and layer.exit_code is not None:
        reason = f"stopped in order, exit code {layer.exit_code}: {reason}"
    return reason if len(reason) <= REASON_CHARACTERS_MAX else reason[:REASON_CHARACTERS_MAX] + " ..."


class _LayerReport(msgspec.Struct, frozen=True):
    well: bool
    reason: str  # why it is, or was, unwell
    lasted_s: float  # since it became unwell
    changes: int  # unreported changes meanwhile


class LayerState(msgspec.Struct):
    """One layer: its health, and what was reported last. Times are POSIX seconds."""

    since: float  # when `well` last changed
    well: bool = True
    told_well: bool = True
    told_at: float | None = None
    ill_from: float | None = None  # when the present unwell period began
    due: bool = False  # that period has lasted long enough to be reported
    relapses: int = 0  # unwell periods since the last message
    missed_s: float = 0.0  # length of the last unreported unwell period
    reason: str = ""

    def update(self, well: bool, reason: str, now: float, after_s: float, quiet_s: float) -> _LayerReport | None:
        """Update the layer's state; return the message to send, if any."""
        self._clamp_future_times(now)
        if well != self.well:
            self.well, self.since = well, now
            self.relapses += not well
        if not well:
            self.reason = reason
            self.ill_from = now if self.ill_from is None else self.ill_from
        quiet = self.told_at is not None and now - self.told_at < quiet_s
        if self.told_well:
            self._update_due(now, after_s)
            return None if quiet else self._report_illness(now)
        patience_s = quiet_s if self.relapses else after_s
        over = self.well and now - self.since >= patience_s
        return self._make_report(True, now, self.ill_from, self.since) if over and not quiet else None

    def _update_due(self, now: float, after_s: float) -> None:
        """While last reported as well: end an unwell period that is over, or mark one as due that has lasted long
        enough."""
        if self.ill_from is None:
            return
        if self.well and now - self.since >= after_s:
            self.missed_s = self.since - self.ill_from if self.due else self.missed_s
            self.ill_from, self.due = None, False
        elif not self.well and now - self.ill_from >= after_s:
            self.due = True

    def _report_illness(self, now: float) -> _LayerReport | None:
        if self.due and not self.well:
            return self._make_report(False, now, self.ill_from, now)
        if self.missed_s and self.ill_from is None:
            return self._make_report(True, now, now - self.missed_s, now)
        return None

    def _make_report(self, well: bool, now: float, ill_from: float | None, until: float) -> _LayerReport:
        changes = max(0, self.relapses - (1 if self.told_well else 0))
        told = _LayerReport(well, self.reason, max(0.0, until - (now if ill_from is None else ill_from)), changes)
        self.told_well, self.told_at, self.relapses, self.missed_s, self.due = well, now, 0, 0.0, False
        if well:
            self.ill_from = None
        return told

    def _clamp_future_times(self, now: float) -> None:
        """Set times that lie in the future, because the clock was set back, to `now`."""
        self.since = min(self.since, now)
        self.told_at = None if self.told_at is None else min(self.told_at, now)
        self.ill_from = None if self.ill_from is None else min(self.ill_from, now)


class NodeHealthState(msgspec.Struct):
    """What is remembered of a node, across processes."""

    run: str = ""  # id of the daemon's run
    tracks: dict[LayerName, LayerState] = {}


QUIET_S = 900.0  # least time between two messages about one layer; the next one sums up
POLL_S = 2.0  # between two polls of the status
STOP_POLL_S = 0.1
STOP_REPORT_S = 2.5  # longest time for reporting the daemon's stop; the daemon waits slightly longer for this process
QUEUED_MAX = 64  # messages waiting for one sender; beyond that the oldest is dropped
MEMORY_BYTES_MAX = 64 * 1024

log = get_logger("swarmd.notify")


class NotifierStateFile:
    """The file of what was reported, and the lock that a sending process holds. `directory`: made if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "notify.json"
        self._lock: int | None = None
        self._kept = b""

    def acquire_lock(self) -> bool:
        """Try to lock; returns whether this process may send, which it also may if locking is impossible (a directory
        without write permission, a file system without locks)."""
        if self._lock is None:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = os.open(self._directory / "notify.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                log.warning("messages may be sent twice, because no lock can be made: %s", error)
                self._lock = -1
                return True
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process sends
                os.close(lock)
                return False
            except OSError as error:
                log.warning("messages may be sent twice, because the lock cannot be taken: %s", error)
            self._lock = lock
        return True

    def load(self) -> NodeHealthState:
        """Load the saved state; an empty one if there is none or it cannot be decoded."""
        try:
            with self._file.open("rb") as file:
                return msgspec.json.decode(file.read(MEMORY_BYTES_MAX), type=NodeHealthState)
        except FileNotFoundError:
            return NodeHealthState()
        except (OSError, *DECODE_ERRORS) as error:
            log.warning("what was told earlier is not known: %s", error)
            return NodeHealthState()

    def save(self, past: NodeHealthState) -> None:
        """Write the state if it changed."""
        encoded = msgspec.json.encode(past)
        if encoded == self._kept:
            return
        try:
            replace_durably(self._file, encoded)
        except OSError as error:
            log.warning("what was told cannot be saved: %s", error)
        self._kept = encoded

    def release_lock(self) -> None:
        """Release the lock, so that another process may send notifications."""
        if self._lock is not None and self._lock >= 0:
            os.close(self._lock)
        self._lock = None


class HealthNotifier:
    """Sends changes of a node's health through every sender, each at its own pace.

    Args:
        changes: decides what is sent.
        senders: through which it is sent.
        metrics: counts messages sent and failed.
        memory: where earlier processes saved what was sent; None for no memory.
        clock: returns POSIX seconds.
        heartbeat: pinged in addition, if there is one.
    """

    def __init__(
        self,
        changes: HealthChanges,
        senders: Sequence[NotificationSender],
        metrics: Metrics,
        memory: NotifierStateFile | None = None,
        clock: TimeSource = time.time,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._changes = changes
        self._memory = memory
        self._leads = memory is None
        self._clock = clock
        self._outlets = [_SenderQueue(sender, metrics) for sender in senders]
        self._heartbeat = heartbeat

    async def run(
        self,
        latest: Callable[[], Status | None],
        every_s: float = POLL_S,
        last: Callable[[], Awaitable[Status]] | None = None,
    ) -> None:
        """Watch until cancelled.

        Args:
            latest: returns the newest known status, None while there is none; must not block.
            every_s: seconds between two polls.
            last: reads the status at the end; if given, the stop of the daemon is reported before this returns.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for outlet in self._outlets:
                    tasks.create_task(outlet.run())
                if self._heartbeat is not None:
                    tasks.create_task(self._heartbeat.run())
                while True:
                    self.handle_status(latest())
                    await asyncio.sleep(every_s)
        except asyncio.CancelledError:
            if last is not None and self._leads:
                await self._report_stop(last)
            raise
        finally:
            if self._memory is not None:
                self._memory.release_lock()
                self._leads = False

    async def _report_stop(self, last: Callable[[], Awaitable[Status]]) -> None:
        try:
            async with asyncio.timeout(STOP_REPORT_S):
                status = await last()
                while status.process.healthy:  # asked too early: the daemon is about to stop
                    await asyncio.sleep(STOP_POLL_S)
                    status = await last()
                self._queue_messages(self._changes.stop_messages(status, self._clock()))
                await asyncio.gather(*(outlet.drain() for outlet in self._outlets))
        except TimeoutError:
            log.warning("the end of the node may not have been told: no time left, it took %g s", STOP_REPORT_S)
        except SwarmdError as error:
            log.warning("the end of the node may not have been told: %s", error)

    def handle_status(self, status: Status | None) -> list[HealthMessage]:
        """Queue the messages that a status makes due, and return them."""
        if status is None or not self._acquire_notification_lock():
            return []
        notes = self._queue_messages(self._changes.messages_due(status, self._clock()))
        if self._heartbeat is not None:
            self._heartbeat.set_health(self._changes.unwell, self._clock())
        return notes

    def _queue_messages(self, notes: list[HealthMessage]) -> list[HealthMessage]:
        if self._memory is not None:
            self._memory.save(self._changes.past)
        for note in notes:
            log.info("told: %s", note.text)
            for outlet in self._outlets:
                outlet.put(note)
        return notes

    def _acquire_notification_lock(self) -> bool:
        """Try to acquire the lock on this node's notifications; on success, resume from the last process's state."""
        if not self._leads and self._memory is not None and self._memory.acquire_lock():
            self._changes.past = self._memory.load()
            self._leads = True
        return self._leads


class _SenderQueue:
    def __init__(self, sender: NotificationSender, metrics: Metrics) -> None:
        self._sender = sender
        self._metrics = metrics
        self._waiting: deque[HealthMessage] = deque()
        self._more = asyncio.Event()

    def put(self, note: HealthMessage) -> None:
        if len(self._waiting) >= QUEUED_MAX:
            gone = self._waiting.popleft()
            self._record_failure(f"{QUEUED_MAX} messages wait for {self._sender.shown}; dropped: {gone.text}")
        self._waiting.append(note)
        self._more.set()

    async def run(self) -> None:
        while True:
            await self._more.wait()
            await self.drain()
            self._more.clear()

    async def drain(self) -> None:
        """Send what is queued. On cancellation, the message being sent stays in the queue."""
        while self._waiting:
            note = self._waiting[0]
            await self._send(note)
            if self._waiting and self._waiting[0] is note:  # else the full queue dropped it meanwhile
                self._waiting.popleft()

    async def _send(self, note: HealthMessage) -> None:
        try:
            await self._sender.send(note)
        except NotifyFailed as error:
            self._record_failure(str(error))
        except Exception as error:  # a bug here must not end the page or the other senders
            log.exception("a sender broke")
            self._record_failure(f"{self._sender.shown} broke: {type(error).__name__}")
        else:
            self._metrics.count_notification(self._sender.name, True)

    def _record_failure(self, reason: str) -> None:
        self._metrics.count_notification(self._sender.name, False)
        log.warning("a message did not get out: %s", reason)


def make_notifier(config: NotifyConfig, root: Path, metrics: Metrics) -> HealthNotifier | None:
    """Make the notifier that a node's configuration names, None if it names neither a sender nor a heartbeat. `root`:
    the data directory, which files are relative to. Raises ConfigError: as `make_senders`."""
    senders, heartbeat = make_senders(config, root), heartbeat_of(config, root, metrics)
    if not senders and heartbeat is None:
        return None
    changes, memory = HealthChanges(config.after_s, QUIET_S), NotifierStateFile(NodeDirectory(root).sockets)
    return HealthNotifier(changes, senders, metrics, memory, heartbeat=heartbeat)
