"""`swarmd leaderboard` adds the standings up again and tells when they are not what the reports say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.core.events import Event, LinkUp, MemberSeen, NodeStarted, ReportSeen, RoundPublished, WorkerStarted
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.daemon.engine import plan
from swarmd.dht.identity import create_identity
from swarmd.dht.records import ReportRecord, sign
from swarmd.errors import ExitCode
from swarmd.eventlog.digest import digest_commands
from swarmd.eventlog.store import EventLog
from tests.core.story import coordinator_settings

DIGEST = "a" * 64


def write_log(directory: Path, claimed: tuple[float, ...]) -> Path:
    """A coordinator's log whose only member signed a reward of 0.5 in each round; the events claim these rewards."""
    identity = create_identity(directory / "member.key")
    member = identity.peer_id
    events: list[Event] = [
        NodeStarted(coordinator_settings(min_peers=1), "run"),
        WorkerStarted("network", 1, 1),
        LinkUp(1),
        MemberSeen(member, "Mel"),
    ]
    for round, reward in enumerate(claimed):
        signed = sign(identity, ReportRecord("test", round, 0, 0.5, DIGEST, 10, 1), 1e10).encode()
        events.append(RoundPublished(f"announce/{round}/0/{round + 1}", round, 0))
        events.append(ReportSeen(member, round, 0, reward, DIGEST, signed))
    state, data = State(), directory / "data"
    with EventLog.open(data / "events", "me", "run") as log:
        for at, event in enumerate(events):
            planned = plan(state, log.next_seq, float(at), [event])
            log.append(float(at), planned.events, digest_commands(planned.commands), RULES)
            state = planned.state
    return data


def test_standings_that_the_reports_add_up_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_log(tmp_path, (0.5, 0.5, 0.5))
    assert run_command(["leaderboard", str(data)]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "leaderboard after round 2" in shown
    assert "1.500" in shown
    assert "3 signed reports of 3 rounds add up to these standings" in shown


def test_standings_that_nobody_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_log(tmp_path, (0.5, 9.5))
    assert run_command(["leaderboard", str(data), "--json"]) == ExitCode.DIFFERENCE
    told = json.loads(capsys.readouterr().out)
    assert told["round"] == 1
    (problem,) = told["problems"]
    assert "is given 10 in 2 rounds, the reports add up to 1 in 2" in problem


def test_a_log_without_a_closed_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_log(tmp_path, ())
    assert run_command(["leaderboard", str(data)]) == ExitCode.NO_INPUT
    assert "closes no round" in capsys.readouterr().err
