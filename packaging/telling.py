"""What setting .venv up says while it works, and when it fails. Standard library only, as environment.py."""

from __future__ import annotations

import re
import shutil
import sys
import time
from typing import IO, Callable  # noqa: UP035 - older Pythons come as far as being refused

LINE_S = 3.0  # a line of progress at least this often
REWRITE_S = 0.5  # the same on a terminal, where it is one line
TAIL_LINES = 20  # of what an installer said, when it failed
NOISE = re.compile(r"^WARNING: Location .* is ignored|^\[notice\]|^\s*$|━")
UNREACHED = "no package index was reached: check the network, HTTPS_PROXY and `.venv/bin/pip config list`"
CAUSES = {  # words of the installer: the fix
    "No space left on device": "make room on the disk, then call make again",
    "externally-managed": "remove .venv, then call make again",
    "gcc": "a package is compiled here: install a C compiler and Python's headers (apt install gcc python3-dev)",
    "Python.h": "a package is compiled here: install Python's headers (apt install python3-dev)",
    "onnection": UNREACHED,
    "timed out": UNREACHED,
    "No matching distribution": "a locked version is on none of the indexes asked: see `.venv/bin/pip config list`",
}


class Screen:
    """Progress, on one line of a terminal that is written again, or as lines."""

    def __init__(self, out: IO[str] = sys.stdout) -> None:
        self.out, self.rewrites = out, out.isatty()
        self.began = self.last = time.monotonic()
        self._width = 0

    def say(self, line: str) -> None:
        self._write(line + "\n")

    def tick(self, describe: Callable[[], str]) -> None:
        """Show where things stand, if it is time to."""
        if time.monotonic() - self.last < (REWRITE_S if self.rewrites else LINE_S):
            return
        line = f"  {describe()}, {time.monotonic() - self.began:.0f} s"
        self._write(line[: shutil.get_terminal_size().columns - 1] if self.rewrites else line + "\n")

    def _write(self, text: str) -> None:
        wipe = f"\r{' ' * self._width}\r" if self._width else ""
        self._width = 0 if text.endswith("\n") else len(text)
        self.out.write(wipe + text)
        self.out.flush()
        self.last = time.monotonic()


def describe(said: str, done: int, total: int, megabytes: float) -> str:
    """Where an installer is, from what it said and from what is in place."""
    if done:
        return f"installed {done} of {total} packages, .venv holds {megabytes:.0f} MB"
    if found := re.findall(r"^(?:Collecting|Processing) (\S+)", said, re.M):  # pip
        return f"found {len(found)} of {total} packages, now {found[-1].rpartition('/')[2]}"
    fetching = re.findall(r"^Downloading (\S+) \((.+?)\)", said, re.M)  # uv
    waiting = [f"{name} ({size})" for name, size in fetching if f" Downloaded {name}\n" not in said]
    if waiting:
        return f"fetched {len(fetching) - len(waiting)} of {len(fetching)} large packages, now {waiting[0]}"
    return f"{total} packages to go"


def last_lines(said: str) -> list[str]:
    """The end of what an installer said, without the lines that say nothing."""
    return [line for line in said.splitlines() if not NOISE.search(line)][-TAIL_LINES:]


def explain(said: str) -> str:
    """The end of what an installer said, and the one thing to do."""
    tail = "\n".join(last_lines(said))
    fix = next((fix for words, fix in CAUSES.items() if words in tail), "see these lines; .venv/install.log has all")
    return f"{tail}\n\nthe packages could not be installed: {fix}"
