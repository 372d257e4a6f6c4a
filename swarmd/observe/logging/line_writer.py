"""Lines to a stream that may stand still: a pager, a terminal after Ctrl-S, a pipe whose reader has stopped.

A write to it would wait for as long as it stands, and the node with it.
"""

from __future__ import annotations

import errno
import select
import threading
from typing import TextIO

PIECE_CHARS = 1024  # written at once: in UTF-8 at most PIPE_BUF bytes, for which a pipe has room where poll(2) says so
PATIENCE_S = 0.1  # that a reader may be behind


class LineWriter:
    """Writes whole lines, or says that it cannot. Any thread may call it.

    Args:
        stream: where they go. One without a descriptor is taken to have room always.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._poll = _poll_of(stream)
        self._stands = False  # there was no room at the last look
        self._is_cut = False  # the last line lacks its end

    def write(self, line: str) -> None:
        """Write a line. Waits `PATIENCE_S` for room, and not at all where the last look found none.

        Raises:
            OSError: the system refuses it.
            BlockingIOError: nobody reads on. Of a long line a part may be written.
        """
        with self._lock:
            text = f"\n{line}\n" if self._is_cut else f"{line}\n"
            for begin in range(0, len(text), PIECE_CHARS):
                self._await_room()
                end = begin + PIECE_CHARS
                self._stream.write(text[begin:end])
                self._stream.flush()
                self._is_cut = end < len(text)

    def _await_room(self) -> None:
        if self._poll is None:
            return
        waits_ms = 0 if self._stands else 1000 * PATIENCE_S
        self._stands = not self._poll.poll(waits_ms)
        if self._stands:
            raise BlockingIOError(errno.EAGAIN, "nobody reads the log")


def _poll_of(stream: TextIO) -> select.poll | None:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return poll
