"""`swarmd status` of a node in a swarm with a chain, from the log that a real core wrote."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.core.events import (
    ChainBlock,
    ChainUp,
    Event,
    NodeStarted,
    RegistrationLog,
    SubmissionIncluded,
    SubmissionPrepared,
    SubmissionSent,
    WorkerStarted,
)
from swarmd.core.state import State
from swarmd.core.values import BlockRef, ChainSettings, Prepared
from swarmd.errors import ExitCode
from swarmd.eventlog.store import EventLog
from tests.core.story import settings
from tests.eventlog.making import write_planned

HASH = "0x" + "ab" * 32
BLOCK = BlockRef(7, HASH)
ACCOUNT, CONTRACT = "0x" + "11" * 20, "0x" + "22" * 20
EVENTS: tuple[Event, ...] = (
    NodeStarted(settings(chain=ChainSettings(drive="never")), "run"),
    WorkerStarted("chain", 1, 1),
    ChainUp(31337, CONTRACT, HASH, BlockRef(6, HASH), 1, 3, 0, 0.0, account=ACCOUNT),
    SubmissionPrepared("register", Prepared(HASH, 0, b"raw")),
    SubmissionSent("register", HASH),
    ChainBlock(BLOCK, (RegistrationLog(0, HASH, ACCOUNT, "me"),)),
    SubmissionIncluded("register", BLOCK, HASH),
)


def write_log(directory: Path, events: tuple[Event, ...]) -> Path:
    with EventLog.open(directory / "events", "me", "run") as log:
        write_planned(log, events, State())
    return directory


def told(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert run_command(["status", str(directory), "--json"]) == ExitCode.FAILURE, "its daemon does not run"
    read: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return read


def test_the_layers_of_the_chain_come_from_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = told(write_log(tmp_path, EVENTS), capsys)
    chain, submissions = status["chain"], status["submissions"]
    assert (chain["state"], chain["reason"]) == ("down", "the daemon does not run")
    assert (chain["account"], chain["registered"], chain["block"]) == (ACCOUNT, True, 7)
    assert (submissions["included"], submissions["waiting"], submissions["confirmed"]) == (1, 0, 0)


@pytest.mark.parametrize("on_terminal", [False, True])
def test_it_is_watched_until_ctrl_c(on_terminal: bool, tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS[:2])
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
