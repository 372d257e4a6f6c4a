"""`swarmd status --watch`; what a status says is in tests/observe, how it is read in tests/daemon/test_verbs.py."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.core.events import NodeStarted
from swarmd.core.state import State
from swarmd.core.values import ChainSettings
from swarmd.errors import ExitCode
from swarmd.eventlog.store import EventLog
from tests.core.story import settings
from tests.eventlog.making import write_planned


@pytest.mark.parametrize("on_terminal", [False, True])
def test_it_is_watched_until_ctrl_c(on_terminal: bool, tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "events", "me", "run") as log:
        write_planned(log, [NodeStarted(settings(chain=ChainSettings(drive="never")), "run")], State())
    reader, writer = pty.openpty() if on_terminal else os.pipe()
    call = [sys.executable, "-m", "swarmd", "status", str(tmp_path), "--watch"]
    process = subprocess.Popen(call, stdout=writer, stderr=subprocess.PIPE, start_new_session=True)
    os.close(writer)
    said = b""
    while b"chain" not in said:
        said += os.read(reader, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == ExitCode.OK, process.stderr and process.stderr.read()
    os.close(reader)
    assert b"process" in said and b"Traceback" not in (process.stderr.read() if process.stderr else b"")
