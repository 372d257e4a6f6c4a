"""Pings a URL while the node is well, so that an external service notices when the whole machine is gone.

healthchecks.io and similar services expect a ping at an interval, and raise an alarm when it is missing. A node that is
unwell pings `<url>/fail` with the reason as the body. A failed ping is logged and counted; the next one is sent on
time.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from swarmd.config import check_heartbeat_url
from swarmd.errors import NotifyFailed
from swarmd.http_client import HttpFailed, HttpRequest, send_request
from swarmd.logger import get_logger
from swarmd.observe.metrics import Metrics
from swarmd.observe.redaction import REDACTED, find_url_secrets, redact_text

PING_S = 60.0  # between pings; the service's grace time should be a few times longer
ANSWER_S = 15.0  # longest wait for an answer
ANSWER_BYTES_MAX = 64 * 1024
FAIL = "/fail"  # as healthchecks.io and Better Stack name it

log = get_logger("swarmd.notify")

T = TypeVar("T")


def in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run blocking work in a thread that delays neither the event loop nor the end of this process."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the caller has given up waiting
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)

    threading.Thread(target=run, name="notify", daemon=True).start()
    return asyncio.wrap_future(outcome)


class Heartbeat:
    """Pings one URL: every PING_S, and at once when the node's health changes. `url`: secret."""

    name = "heartbeat"
    shown = "notify.heartbeat_url"

    def __init__(self, url: str, metrics: Metrics) -> None:
        check_heartbeat_url(url)
        self._url = url
        self._metrics = metrics
        self._reason = ""  # why the node is unwell; empty while it is well
        self._due_at = float("-inf")  # POSIX seconds
        self._failing = False  # the last ping did not arrive
        self._due = asyncio.Event()

    def set_health(self, reason: str, now: float) -> None:
        """Record the node's health; makes a ping due if it is time, or if health changed. `reason`: why it is unwell;
        empty while it is well. `now`: POSIX seconds."""
        changed = bool(reason) != bool(self._reason)
        self._reason = reason
        if changed or not 0 < self._due_at - now <= PING_S:  # also after the clock was set back
            self._due_at = now + PING_S
            self._due.set()

    async def run(self) -> None:
        """Send pings that are due, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.ping(self._reason)
            except NotifyFailed as error:
                if not self._failing:  # only once: an outage of an hour should not log sixty warnings
                    log.warning("the heartbeat did not get out: %s", error)
                self._failing = True
            else:
                self._failing = False
            self._metrics.count_notification(self.name, not self._failing)

    async def ping(self, reason: str) -> None:
        """Ping once; if `reason` is not empty, report a failure. Raises NotifyFailed."""
        parts = urlsplit(self._url)
        url = parts._replace(path=parts.path.rstrip("/") + FAIL).geturl() if reason else self._url
        request = HttpRequest("POST", url, reason.encode())
        try:
            status, _ = await in_daemon_thread(
                lambda: send_request(request, time.monotonic() + ANSWER_S, ANSWER_BYTES_MAX)
            )
        except HttpFailed as error:
            words = str(error)
            for secret in sorted(find_url_secrets(self._url), key=len, reverse=True):
                words = words.replace(secret, REDACTED)
            raise NotifyFailed(f"{self.shown} cannot be pinged: {redact_text(words)}") from None
        if not 200 <= status < 300:
            raise NotifyFailed(f"{self.shown} answered with status {status}; is the check's URL whole?")
