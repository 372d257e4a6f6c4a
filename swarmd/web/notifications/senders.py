"""The ways out for a message: a URL of any service that Apprise knows, or a program's stdin.

- Each attempt ends within a named time and raises nothing but NotifyFailed, whose text holds no secret.
- Apprise sends synchronously, so it runs in a daemon thread, which cannot hold up the loop or this process's end.
- Apprise says only in its log why a service refused a message. Its records are taken from there and go nowhere else,
  because some hold a URL.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from swarmd.config import NotifyConfig, open_service
from swarmd.errors import ConfigError, NotifyFailed
from swarmd.observe.logging.redaction import redact_text, service_secrets
from swarmd.secret_files import CREDENTIAL, SecretKind, locate_secret, read_secret
from swarmd.web.notifications.health_changes import HealthMessage

SEND_S = 45.0  # longest wait for a service, with Apprise's own retries
COMMAND_S = 30.0  # longest run of a program; then its group is killed
ANSWER_BYTES_MAX = 4096  # of what a program says when it fails
REASON_CHARACTERS_MAX = 200
SECRET_BYTES_MAX = 4096
FILE = "file:"
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "XDG_RUNTIME_DIR")  # to a program

SECRET = SecretKind("notification secret", ConfigError, SECRET_BYTES_MAX, "Write it there, one URL a line, mode 0600")

T = TypeVar("T")


class NotificationSender(Protocol):
    """One way out; `name` is one of `swarmd.observe.telemetry.labels.SENDERS`, `shown` tells it from others."""

    name: str
    shown: str

    async def send(self, note: HealthMessage) -> None:
        """Send it. Raises NotifyFailed."""


def senders_of(config: NotifyConfig, root: Path) -> list[NotificationSender]:
    """The ways that are configured.

    Args:
        root: the data directory, which files are relative to.

    Raises:
        ConfigError: a secret cannot be read, or a URL is not one that Apprise knows.
    """
    senders: list[NotificationSender] = []
    for number, named in enumerate(config.urls, 1):
        senders += [UrlSender(url, f"notify.urls, entry {number}") for url in _urls_of(named, root)]
    if config.command:
        senders.append(ProgramSender(config.command))
    return senders


def _urls_of(named: str, root: Path) -> list[str]:
    if not named.startswith((FILE, CREDENTIAL)):
        return [named]
    secret = locate_secret(named.removeprefix(FILE), root, SECRET)
    lines = map(str.strip, read_secret(secret, SECRET).decode("utf-8", "replace").splitlines())
    urls = [line for line in lines if line and not line.startswith("#")]
    if not urls:
        raise ConfigError(f"there is no URL in {secret.path}", "It holds one a line")
    return urls


class UrlSender:
    """A service that Apprise knows by its URL.

    Args:
        url: secret.
        key: where the configuration has it, for errors.
    """

    name = "url"

    def __init__(self, url: str, key: str, send_s: float = SEND_S) -> None:
        self._service = open_service(url, key)
        self.shown = f"{self._service[0].service_name} ({key})"
        self._secrets = sorted(service_secrets(url), key=len, reverse=True)
        self._send_s = send_s

    async def send(self, note: HealthMessage) -> None:
        try:
            async with asyncio.timeout(self._send_s):
                reason = await _in_daemon_thread(lambda: self._notify(note))
        except TimeoutError:
            reason = f"no answer within {self._send_s:g} s"
        for secret in self._secrets:
            reason = reason.replace(secret, "[redacted]")
        if reason:
            words = " ".join(redact_text(reason).split())[:REASON_CHARACTERS_MAX]
            raise NotifyFailed(f"{self.shown} did not take the message: {words}")

    def _notify(self, note: HealthMessage) -> str:
        """Why the service did not take the message, empty if it did."""
        kind = "success" if note.well else "warning"
        with _records_of_apprise() as said:
            sent = self._service.notify(body=note.text, title=f"swarmd: {note.node}", notify_type=kind)
        return "" if sent else (said[-1] if said else "it does not say why")


@contextlib.contextmanager
def _records_of_apprise() -> Iterator[list[str]]:
    """What Apprise logs in this thread."""
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


def _in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # nobody waits any more
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)

    threading.Thread(target=run, name="notify", daemon=True).start()
    return asyncio.wrap_future(outcome)


class ProgramSender:
    """Runs a program with the message on its stdin; it may take `COMMAND_S`, and is not run again when it fails.

    Its environment holds nothing of ours but SWARMD_NOTE_LAYER and SWARMD_NOTE_STATE ("well" or "unwell").
    """

    name = "command"

    def __init__(self, argv: Sequence[str], run_s: float = COMMAND_S) -> None:
        self._argv = tuple(argv)
        self._run_s = run_s
        self.shown = f"the program {self._argv[0]}"

    async def send(self, note: HealthMessage) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"SWARMD_NOTE_LAYER": note.layer, "SWARMD_NOTE_STATE": "well" if note.well else "unwell"}
        # a file instead of a pipe: whatever the program started may hold it open
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
                raise NotifyFailed(f"{self.shown} cannot be run: {error}") from None
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
                words = " ".join(said.read().decode("utf-8", "replace").split())[-REASON_CHARACTERS_MAX:]
                raise NotifyFailed(f"{self.shown} ended with status {process.returncode}: {redact_text(words)}")
