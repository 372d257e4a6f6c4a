"""Reports the node's state to the service manager: sd_notify(3), by datagram to $NOTIFY_SOCKET."""

import os
import socket
import time
from collections.abc import Mapping

from swarmd.logger import get_logger

log = get_logger("swarmd.notify")


class ServiceNotifier:
    """Sends to systemd's socket, a path or "@name" in the abstract namespace; without one it does nothing.
    `watchdog_s`: systemd's watchdog timeout, 0 for none."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        self._alive_at = 0.0
        self._failed = False
        self._ready_owed = False  # READY=1 could not be sent yet
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "ServiceNotifier":
        """Make a notifier from systemd's variables; a watchdog for another process is ignored."""
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environ.get("WATCHDOG_USEC", "")
        watchdog_s = int(microseconds) / 1e6 if mine and microseconds.isdigit() else 0.0
        return cls(environ.get("NOTIFY_SOCKET", ""), watchdog_s)

    @property
    def pulse_interval_s(self) -> float:
        """Longest interval between calls of `notify_alive`: half the watchdog's timeout; infinite without one."""
        return self.watchdog_s / 2 if self.watchdog_s else float("inf")

    def notify_ready(self, status: str) -> None:
        """Report that the log is open and the first commit is durable."""
        self._status = status
        self._ready_owed = not self._send(f"READY=1\nSTATUS={status}")

    def notify_status(self, status: str) -> None:
        """Send a line for `systemctl status` if it changed."""
        if status != self._status and self._send(f"STATUS={status}"):
            self._status = status

    def notify_alive(self) -> None:
        """Notify the watchdog, at most four times within its timeout. Only the engine's loop calls this. It also
        retries a failed READY=1, because systemd kills a service that never sends it."""
        if self._ready_owed:
            self.notify_ready(self._status)
        now = time.monotonic()
        if self.watchdog_s and now - self._alive_at >= self.watchdog_s / 4 and self._send("WATCHDOG=1"):
            self._alive_at = now

    def notify_stopping(self, longest_s: float) -> None:
        """Report that the orderly stop has begun and takes at most `longest_s`."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(longest_s * 1e6)}")

    def _send(self, text: str) -> bool:
        """Send a datagram. Returns True if it was sent, or there is no socket to send to."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as endpoint:
                endpoint.setblocking(False)
                endpoint.sendto(text.replace("\0", " ").encode(), self._address)
        except OSError as error:
            if not self._failed:  # log once: the node works without a service manager, too
                log.warning("the service manager cannot be reached", error=str(error))
            self._failed = True
            return False
        return True
