"""The soaks notice what a stopped node left behind, and what did not hold under attack."""

import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.config import Config, SwarmConfig, make_core_settings
from swarmd.core.events import (
    Event,
    MemberLeft,
    NodeStarted,
    NodeStopped,
    Registered,
    RoundsSkipped,
    StageTrained,
    StopRequested,
    WorkerExited,
)
from swarmd.core.state import State
from swarmd.core.values import RolloutsRef
from swarmd.daemon.process import TAG_VARIABLE, find_leftovers
from tests.soak import traces
from tests.soak.node import process_of
from tests.soak.stops import Rhythm, check_end, has_left, leg_of, moments, stayed
from tests.soak.strangers import Spell, endure, share_of_quiet
from tests.web.serving import until


def test_a_process_is_found_until_it_is_gone() -> None:
    tag = f"tag-{os.getpid()}"
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={TAG_VARIABLE: tag})
    try:
        (pid,) = until(lambda: find_leftovers(tag))  # it may be that its environment is not there yet
        process = process_of(pid)
        assert process is not None
        assert f"process {left.pid} is left" in traces.living([process], 0)[0]
    finally:
        left.kill()
        left.wait()
    assert traces.living([process]) == []


def test_a_listener_takes_a_port_and_a_closed_one_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        node = cast("Any", SimpleNamespace(ports={"p2pd": port}))
        assert traces.taken_ports(node) == [f"p2pd's port {port} is taken"]
    assert traces.taken_ports(node) == []


def test_a_socket_a_lock_and_temporary_files_are_found(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as endpoint:
        here = Path.cwd()
        os.chdir(tmp_path)  # for a short address
        endpoint.bind("left.sock")
        os.chdir(here)
    assert traces.sockets(tmp_path) == [f"the socket {tmp_path}/left.sock is left"]
    with (tmp_path / "writer.lock").open("w") as held:
        assert traces.held_locks(tmp_path / "writer.lock", tmp_path / "none") == []
        fcntl.flock(held, fcntl.LOCK_EX)
        assert traces.held_locks(tmp_path / "writer.lock") == [f"{tmp_path}/writer.lock is locked"]
    (tmp_path / "blobs").mkdir()
    begun = [tmp_path / "blobs" / "aa.12.34.tmp", tmp_path / "peers.new"]
    for path in begun:
        path.touch()
    assert traces.unfinished(tmp_path) == begun
    assert f"{tmp_path}/peers.new is left" in traces.temporary(tmp_path)


def trained(round: int) -> StageTrained:
    return StageTrained("train", round, 0, 0.5, RolloutsRef("peer", round, 0, "digest", 1, 1))


def test_a_round_without_an_outcome_is_found() -> None:
    whole: list[Event] = [trained(0), RoundsSkipped(1, 2, "stopped"), trained(3)]
    assert traces.lost_rounds(whole, State()) == []
    assert traces.lost_rounds([trained(0), trained(3)], State()) == ["rounds [1, 2] were neither trained nor skipped"]
    assert traces.lost_rounds([*whole, trained(3)], State())[0].startswith("assert_trained_once")


def test_an_end_out_of_order_is_found() -> None:
    began = NodeStarted(make_core_settings(Config(SwarmConfig("any")), "peer"), "run")
    stopped: list[Event] = [StopRequested("signal SIGTERM"), MemberLeft("peer"), NodeStopped("signal SIGTERM")]
    assert check_end([began, *stopped], signal.SIGTERM) == []
    assert has_left([began, *stopped], "peer") and not has_left([began, *stopped], "another")
    member: list[Event] = [began, Registered("register")]
    assert stayed([*member, *stopped], "peer") == stayed([began, *stopped], "another") == ""
    assert stayed([*member, *stopped], "another") == "the leaving was not announced"
    assert "does not end with a stop by signal SIGINT" in check_end([began, *stopped], signal.SIGINT)[0]
    assert "does not end" in check_end([began], signal.SIGTERM)[0]
    assert "does not end" in check_end([], signal.SIGTERM)[0]
    crashed = WorkerExited("trainer", "ended by SIGSEGV")
    assert check_end([began, crashed, *stopped], signal.SIGTERM) == ["a worker ended in another way: ended by SIGSEGV"]
    assert leg_of([began]) == "log just open" and leg_of([began, trained(0)]) == "after a stage or more"


def test_a_seed_gives_the_same_moments_and_each_signal_its_share() -> None:
    ends = moments(200, 7, Rhythm())
    assert ends == moments(200, 7, Rhythm()) != moments(200, 8, Rhythm())
    signals = [end.signal for end in ends[:-1]]
    assert (signals.count(signal.SIGKILL), signals.count(signal.SIGINT)) == (10, 20)
    assert all(after.settled for end, after in itertools.pairwise(ends) if end.signal == signal.SIGKILL)
    assert ends[-1].signal == signal.SIGTERM and ends[-1].settled


def spell(**changed: Any) -> Spell:
    made = Spell.__new__(Spell)
    made.__dict__.update({"share": 1.0, "rounds": 9, "uncredited": 0, "growth_mib": 9.0, "exits": []} | changed)
    return made


@pytest.mark.parametrize(
    "changed",
    [{"share": 0.94}, {"uncredited": 1}, {"growth_mib": 65.0}, {"exits": [WorkerExited("trainer", "killed")]}],
    ids=str,
)
def test_what_did_not_hold_is_found(changed: dict[str, Any]) -> None:
    assert len(spell(**changed).findings) == 1


def test_a_time_in_which_no_quiet_round_was_closed_is_told_and_divides_nothing() -> None:
    with pytest.raises(AssertionError, match="--seconds is too little"):
        share_of_quiet([], [(0.0, 10.0)], [(10.0, 40.0)])


@pytest.mark.soak
def test_nodes_outlive_a_minute_of_all_attacks(tmp_path: Path) -> None:
    made = endure(tmp_path, 60.0, print, after_s=10.0)
    assert made.rounds > 0 and not [event for event in made.exits if not event.outside], str(made)
