"""A data directory on a network disk that died: whoever looks at it waits for ever, and the doctor does not."""

import asyncio
import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd.doctor import examination
from swarmd.doctor.checks import choose_checks
from swarmd.doctor.examination import examine
from tests.doctor.making import Made

LOOKS = ("stat", "lstat", "listdir", "scandir", "open", "statvfs", "access", "readlink")  # of os, at a path
HUNG = ("config", "directory", "disk", "identity", "log", "daemon")  # checks that look at the data directory


class DeadDisk:
    """Whatever looks at a directory hangs, until `mend`; in the main thread, where the event loop is, it is noted."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self._mended = threading.Event()
        self.seen_by_loop: list[str] = []
        for name in LOOKS:
            patch.setattr(os, name, self._hanging(getattr(os, name)))
        patch.setattr(io, "open", self._hanging(io.open))
        patch.setattr(builtins, "open", self._hanging(builtins.open))

    def mend(self) -> None:
        self._mended.set()

    def _hanging(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def hang(path: Any = ".", *rest: Any, **named: Any) -> Any:
            if isinstance(path, str | os.PathLike) and str(path).startswith(self._root) and not self._mended.is_set():
                if threading.current_thread() is threading.main_thread():
                    self.seen_by_loop.append(f"{look.__name__} {path}")
                else:
                    self._mended.wait(60.0)
            return look(path, *rest, **named)

        return hang


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = Made(tmp_path / "node")
    made.write('[training]\nmodel = "digits"\n[results.hub]\nrepo = "u/n"\ntoken = "hub.token"')
    made.log()
    return made


@pytest.fixture
def dead(made: Made) -> Iterator[DeadDisk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "SECRETS_S", 0.2)
        patch.setattr(examination, "ANSWER_S", 0.2)
        disk = DeadDisk(made.data, patch)
        yield disk
        disk.mend()


def test_a_data_directory_on_a_dead_disk_holds_no_check_and_is_named(made: Made, dead: DeadDisk) -> None:
    subject = made.subject()
    checks = [check._replace(deadline_s=0.3) for check in choose_checks([*HUNG, "ports", "clock"])]
    report = asyncio.run(examine(subject, checks))
    assert dead.seen_by_loop == [], "the event loop would have hung"
    late = {finding.check: finding for finding in report.findings if finding.id == "doctor.late"}
    assert set(late) == {*HUNG, "doctor"}
    assert all(f"{made.data} does not answer" in late[name].evidence for name in HUNG)
    assert f"{made.data / 'hub.token'}, which results.hub.token names" in late["doctor"].evidence
