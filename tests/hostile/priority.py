"""Who goes first on the processor, also where the kernel weighs whole sessions against each other.

With `sched_autogroup_enabled`, as most machines have it, nice values count within a session only, and every session
that wants the processor gets as much. Then the session itself has one.
"""

import os
from contextlib import suppress
from pathlib import Path


def set_session_priority(pid: int, nice: int) -> None:
    """Give the session of a process a nice value beside other sessions; no more than it may have."""
    with suppress(OSError):  # the kernel knows no such thing, or does not allow it
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


def begin_session(nice: int) -> None:
    """From here on this process, and what it starts, comes after the one that started it by so much."""
    os.setsid()
    set_session_priority(os.getpid(), os.nice(nice))
