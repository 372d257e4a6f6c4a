"""One child process: fed, read up to a bound, and killed at its deadline."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from swarmd.sandbox.limits import STDERR_BYTES_KEPT

CHUNK_BYTES = 65536
LOOK_S = 0.2  # how often it is looked at whether to stop
DRAIN_S = 2.0  # for what a killed process leaves in its pipes

Cut = Literal["", "deadline", "output", "stopped"]


class Ended(msgspec.Struct, frozen=True):
    """How it ended."""

    cut: Cut  # why it was killed; empty where it ended by itself
    exit_code: int  # 128 and the signal's number where a signal ended it
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float  # of it and what it waited for


def converse(
    command: Sequence[str], feed: bytes, wall_s: float, output_bytes: int, is_stopped: Callable[[], bool]
) -> Ended:
    """Run a command with an empty environment and nothing else open. Raises OSError where it cannot start.

    Args:
        feed: for its standard input, which is closed behind it.
        wall_s: then it is killed.
        output_bytes: of standard output and of standard error each; where one has more, it is killed.
        is_stopped: asked every `LOOK_S`; where it says so, it is killed.
    """
    begun = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, start_new_session=True, cwd="/"
    ) as process:
        talk = _Conversation(process, feed, output_bytes)
        try:
            cut = talk.carry_on(begun + wall_s, is_stopped)
        finally:
            os.kill(process.pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            talk.drain(time.monotonic() + DRAIN_S)
            talk.close()
        if not cut and talk.is_full:  # it ended before all that it printed was read
            cut = "output"
        code = process.returncode
        return Ended(
            cut,
            code if code >= 0 else 128 - code,
            bytes(talk.stdout[:output_bytes]),
            bytes(talk.stderr[-STDERR_BYTES_KEPT:]),
            time.monotonic() - begun,
            usage.ru_utime + usage.ru_stime,
        )


class _Conversation:
    """Both directions at once, so that neither side waits for the other."""

    def __init__(self, process: subprocess.Popen[bytes], feed: bytes, output_bytes: int) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.stdout, self.stderr = bytearray(), bytearray()
        self._stdin, self._feed = process.stdin, memoryview(feed)
        self._output_bytes = output_bytes
        self._end = os.pidfd_open(process.pid)
        self._sinks = {process.stdout.fileno(): self.stdout, process.stderr.fileno(): self.stderr}
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._stdin.fileno(), *self._sinks):
            os.set_blocking(descriptor, False)
        for descriptor in (self._end, *self._sinks):
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(self._stdin.fileno(), selectors.EVENT_WRITE)

    def carry_on(self, deadline_s: float, is_stopped: Callable[[], bool]) -> Cut:
        """Feed and read until the process ends or is to be killed."""
        try:
            while True:
                ready = self._selector.select(min(LOOK_S, max(0.0, deadline_s - time.monotonic())))
                served = [self._serve(key.fd) for key, _ in ready]
                if any(served):
                    return "output" if self.is_full else ""
                if self.is_full:
                    return "output"
                if is_stopped():
                    return "stopped"
                if time.monotonic() >= deadline_s:
                    return "deadline"
        finally:
            self._stop_feeding()

    def drain(self, deadline_s: float) -> None:
        """Read what is left, until the last that holds a pipe's other end is gone."""
        while self._sinks and not self.is_full and time.monotonic() < deadline_s:
            for key, _ in self._selector.select(deadline_s - time.monotonic()):
                self._serve(key.fd)

    def close(self) -> None:
        self._selector.close()
        os.close(self._end)

    def _serve(self, descriptor: int) -> bool:
        """Move some bytes. Returns whether the process has ended."""
        if descriptor == self._end:
            self._selector.unregister(self._end)
            return True
        if descriptor in self._sinks:
            self._read(descriptor)
        elif not self._stdin.closed:
            self._write()
        return False

    def _read(self, descriptor: int) -> None:
        chunk = os.read(descriptor, CHUNK_BYTES)
        if chunk:
            self._sinks[descriptor] += chunk
        else:
            self._selector.unregister(descriptor)
            del self._sinks[descriptor]

    def _write(self) -> None:
        try:
            self._feed = self._feed[os.write(self._stdin.fileno(), self._feed[:CHUNK_BYTES]) :]
        except BrokenPipeError:  # it closed its standard input: the rest is not wanted
            self._feed = self._feed[:0]
        if not self._feed:
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        if not self._stdin.closed:
            self._selector.unregister(self._stdin.fileno())
            self._stdin.close()

    @property
    def is_full(self) -> bool:
        return max(len(self.stdout), len(self.stderr)) > self._output_bytes
