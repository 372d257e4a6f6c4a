"""The daemons of a local swarm: real `swarmd run` processes, started, watched and ended with nothing left behind."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.cli.local import check_ends, line_printer, print_report
from swarmd.cli.local_swarm import OUTPUT_BYTES_MAX, DaemonProcess, LocalSwarm, lay_out, node_places, stop_all
from swarmd.errors import ExitCode, LocalSwarmFailed
from swarmd.files import held_alone
from swarmd.observe.panel import NodeRow


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """One node by itself, laid out and not started."""
    places = node_places(tmp_path, 1)
    lay_out(places, rounds=1)
    daemon = DaemonProcess(places[0])
    yield daemon
    stop_all([daemon], 5.0)


def until(condition: object, within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def listens(daemon: DaemonProcess) -> bool:
    return daemon.place.control.exists()


def test_a_daemon_ends_in_order_when_asked(daemon: DaemonProcess) -> None:
    assert (daemon.pid, daemon.exit_code, daemon.running) == (0, None, False)
    daemon.start()
    until(lambda: listens(daemon))
    assert daemon.running
    stop_all([daemon], 20.0)
    assert (daemon.exit_code, daemon.running) == (0, False)
    assert not listens(daemon)


def test_a_daemon_that_hangs_is_killed(daemon: DaemonProcess) -> None:
    daemon.start()
    until(lambda: listens(daemon))
    daemon.send(signal.SIGSTOP)
    begun = time.monotonic()
    stop_all([daemon], 0.5)
    assert daemon.exit_code == -signal.SIGKILL
    assert time.monotonic() - begun < 20.0, "it is stopped for ever"


def test_a_killed_daemon_leaves_no_worker(tmp_path: Path) -> None:
    swarm = LocalSwarm(tmp_path, nodes=1)
    swarm.lay_out(rounds=1)
    swarm.start()
    until(lambda: bool(swarm.leftovers()))
    swarm.daemons[0].send(signal.SIGKILL)
    assert swarm.stop() == {"node-1": -signal.SIGKILL}
    assert swarm.leftovers() == []


def test_a_node_that_runs_already_is_not_started_twice(tmp_path: Path) -> None:
    swarm = LocalSwarm(tmp_path, nodes=1)
    swarm.lay_out(rounds=1)
    swarm.start()
    try:
        until(lambda: swarm.status(1) is not None)
        written = swarm.places[0].config.read_bytes()
        assert run_command(["local", "--dir", str(tmp_path), "--nodes", "1", "--rounds", "7"]) == ExitCode.FAILURE
        assert swarm.places[0].config.read_bytes() == written
        with pytest.raises(LocalSwarmFailed, match=f"node-1 runs already, as process {swarm.daemons[0].pid}"):
            LocalSwarm(tmp_path, nodes=1).start()
    finally:
        assert swarm.stop() == {"node-1": 0}


def test_a_node_that_ends_by_itself_is_shown_with_what_it_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The disk can never have so much free: the node refuses to start.
    free = ["--set", f"storage.free_bytes_min={1 << 62}"]
    code = run_command(["local", "--nodes", "1", "--rounds", "1", "--dir", str(tmp_path), *free])
    assert code == ExitCode.FAILURE
    shown = capsys.readouterr()
    assert "node-1   exited" in shown.out
    assert f"node-1 ended by itself with exit code {ExitCode.CANNOT_CREATE}; it said last:" in shown.err
    assert "free" in shown.err.split("it said last:")[1]


def test_two_local_swarms_do_not_share_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one would write the configurations of nodes that start, and kill their workers at its end."""
    with held_alone(tmp_path):
        assert run_command(["local", "--nodes", "1", "--dir", str(tmp_path)]) == ExitCode.IN_USE
    assert f"another command is at work in {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_setting_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["local", "--dir", str(tmp_path), "--set", "training.stepz=1"])
    assert code == ExitCode.BAD_CONFIG
    assert "Did you mean training.steps?" in capsys.readouterr().err
    assert not (tmp_path / "node-1" / "daemon.log").exists()
    assert run_command(["local", "--dir", str(tmp_path / "new"), "--kind", "nope"]) == ExitCode.BAD_CONFIG
    assert not (tmp_path / "new").exists()


def test_long_output_is_set_aside(daemon: DaemonProcess) -> None:
    daemon.place.output.write_bytes(b"x\n" * OUTPUT_BYTES_MAX)
    daemon.start()
    until(lambda: listens(daemon))
    assert daemon.place.output.stat().st_size < OUTPUT_BYTES_MAX
    assert (daemon.place.root / "daemon.log.1").stat().st_size > OUTPUT_BYTES_MAX


def test_the_ends_of_nodes_are_judged() -> None:
    check_ends((), {"node-1": 0, "node-2": -signal.SIGTERM}, [])
    with pytest.raises(LocalSwarmFailed, match="exit codes node-2: -9"):
        check_ends((), {"node-1": 0, "node-2": -signal.SIGKILL}, [])
    with pytest.raises(LocalSwarmFailed, match="left behind: 7"):
        check_ends((), {"node-1": 0}, [7])


def test_a_line_is_printed_for_a_change_and_not_for_progress(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    show = line_printer(Console())
    show("", (NodeRow("node-1", "waiting", 0, done=1, total=20),))
    show("", (NodeRow("node-1", "waiting", 0, done=2, total=20),))
    show("", (NodeRow("node-1", "waiting", 1),))
    assert capsys.readouterr().out.splitlines() == [
        "node-1   waiting  round 0  peers 0",
        "node-1   waiting  round 1  peers 0",
    ]


def test_a_long_silence_is_ended_by_how_far_all_are(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    now = 0.0
    show = line_printer(Console(), lambda: now)
    for seconds in range(8):
        now = float(seconds)
        rows = NodeRow("node-1", "round.training", 0, done=seconds, total=20, what="training"), NodeRow("n2", "waiting")
        show(f"0:{seconds:02d}", rows)
    assert capsys.readouterr().out.splitlines() == [
        "node-1   round.training  round 0  peers 0",
        "n2       waiting  peers 0",
        "0:04: node-1 training 4/20, n2 waiting",
    ]


def test_the_report_quotes_what_a_shell_would_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    directory = tmp_path / "my [bold] swarm"
    print_report(LocalSwarm(directory, 1), directory, Console())
    assert f"replay '{directory}/node-1'\n" in capsys.readouterr().out
