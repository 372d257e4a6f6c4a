"""A local swarm: where its nodes lie and their configurations, its daemons, and what becomes of all of them."""

import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from swarmd.bounds import Backoff
from swarmd.cli import run_command
from swarmd.cli.local import check_exits, make_line_printer, print_report
from swarmd.cli.local_swarm import (
    OUTPUT_BYTES_MAX,
    RESTARTS_MAX,
    DaemonProcess,
    LocalSwarm,
    get_or_make_peer_id,
    local_node_directories,
    parse_setting,
    prepare_nodes,
    restart_may_help,
    stop_daemons,
)
from swarmd.config import load_config
from swarmd.errors import ConfigError, ExitCode, LocalSwarmFailed, ModelError, SwarmdError
from swarmd.files import hold_directory_lock
from swarmd.observe.panel import NodeRow
from swarmd.paths import configs_directory
from swarmd.training.models.source import EMBEDDED_DIR
from tests.cli.owning import Shell
from tests.web.serving import until


def test_the_nodes_find_each_other(tmp_path: Path) -> None:
    places = local_node_directories(tmp_path, 3)
    assert prepare_nodes(places, rounds=8) == 8
    coordinator, *followers = (load_config(place.config) for place in places)
    assert (coordinator.role, coordinator.coordinator.min_peers, coordinator.coordinator.rounds_max) == (
        "coordinator",
        3,
        8,
    )
    for follower in followers:
        assert follower.role == "follower"
        assert follower.swarm.coordinator == get_or_make_peer_id(places[0])
        assert follower.dht.bootstrap == (f"{coordinator.dht.listen[0]}/p2p/{get_or_make_peer_id(places[0])}",)
    assert [config.name for config in (coordinator, *followers)] == ["node-1", "node-2", "node-3"]


def test_a_second_run_keeps_identities_and_port(tmp_path: Path) -> None:
    places = local_node_directories(tmp_path, 2)
    prepare_nodes(places, rounds=1)
    before = [load_config(places[0].config).dht.listen, *(get_or_make_peer_id(place) for place in places)]
    prepare_nodes(places, rounds=1)
    assert [load_config(places[0].config).dht.listen, *(get_or_make_peer_id(place) for place in places)] == before


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    places = local_node_directories(tmp_path, 1)
    prepare_nodes(places, rounds=1)
    kept = load_config(places[0].config).dht.listen[0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(kept.rpartition("/")[2])))
        other.listen()
        prepare_nodes(places, rounds=1)
        assert load_config(places[0].config).dht.listen[0] != kept


def test_a_relative_model_directory_is_the_same_from_wherever_a_node_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EMBEDDED_DIR, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    places = local_node_directories(tmp_path / "swarm", 2)
    prepare_nodes(places, rounds=1, settings={"training.model": "models/tiny"})
    assert [load_config(place.config).training.model for place in places] == [str(tmp_path / "models" / "tiny")] * 2


def test_a_model_that_is_not_there_is_found_before_any_node_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ships no model 'embedded-large'"):
        prepare_nodes(local_node_directories(tmp_path, 2), rounds=1, settings={"training.model": "embedded-large"})


def test_the_kind_file_brings_its_questions_along(tmp_path: Path) -> None:
    places = local_node_directories(tmp_path, 2)
    prepare_nodes(places, rounds=1, swarm="file")
    shipped = configs_directory() / "file" / "data" / "questions.jsonl"
    assert [(place.root / "questions.jsonl").read_bytes() for place in places] == [shipped.read_bytes()] * 2


def test_rounds_are_added_to_those_that_were_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = local_node_directories(tmp_path, 1)
    monkeypatch.setattr("swarmd.cli.local_swarm.count_closed_rounds", lambda place: 5)
    assert prepare_nodes(places, rounds=8) == 13
    assert prepare_nodes(places, rounds=0) == 0


def test_settings_reach_every_node_and_comments_stay(tmp_path: Path) -> None:
    places = local_node_directories(tmp_path, 2)
    prepare_nodes(places, 1, {"training.steps": 3, "swarm.tasks": [{"name": "chain_sum", "config": {"min_terms": 2}}]})
    for place in places:
        config = load_config(place.config)
        assert config.training.steps == 3
        assert config.swarm.tasks[0].config == {"min_terms": 2}
        assert "# optimiser steps in a round" in place.config.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("training.steps=5", "training.steps", 5),
        ("training.model=models/tiny", "training.model", "models/tiny"),
        ('logs.level="debug"', "logs.level", "debug"),
        ('swarm.tasks=[{name = "gcd"}]', "swarm.tasks", [{"name": "gcd"}]),
        ("name=a=b", "name", "a=b"),
    ],
)
def test_a_setting_is_a_key_and_a_toml_value(text: str, key: str, value: object) -> None:
    assert parse_setting(text) == (key, value)


def test_a_kind_has_its_own_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = local_node_directories(tmp_path / "nodes", 2)
    prepare_nodes(places, 1, swarm="reasoning-gym")
    first, second = (load_config(place.config) for place in places)
    assert first.swarm.kind == second.swarm.kind == "reasoning-gym"
    assert first.dht.listen[0].startswith("/ip4/127.0.0.1/") and second.dht.listen == ("/ip4/127.0.0.1/tcp/0",)
    assert second.swarm.coordinator == get_or_make_peer_id(places[0]) and first.data == second.data == "."
    assert first.logs.format == second.logs.format == "text", "for people who read daemon.log"
    monkeypatch.setattr("swarmd.cli.local_swarm.configs_directory", lambda: tmp_path)
    with pytest.raises(ConfigError, match="no configurations of the kind 'gsm8k'") as caught:
        prepare_nodes(places, 1, swarm="gsm8k")
    assert "swarmd swarm scaffold" in caught.value.fix


@pytest.mark.parametrize(
    ("swarm", "told"),
    [
        ("gsm8", "Did you mean 'gsm8k'?"),
        ("none.toml", "no configuration file"),
        ("configs/chain/coordinator.toml", "[chain]"),
    ],
)
def test_what_no_local_swarm_can_be_made_from(tmp_path: Path, swarm: str, told: str) -> None:
    with pytest.raises(SwarmdError) as caught:
        prepare_nodes(local_node_directories(tmp_path, 1), 1, swarm=swarm)
    assert told in str(caught.value)
    assert not (tmp_path / "node-1").exists()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """One node by itself, laid out and not started."""
    places = local_node_directories(tmp_path, 1)
    prepare_nodes(places, rounds=1)
    daemon = DaemonProcess(places[0])
    yield daemon
    stop_daemons([daemon], 5.0)


def test_a_daemon_that_hangs_is_killed(daemon: DaemonProcess) -> None:
    daemon.start()
    until(daemon.place.control.exists)
    daemon.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    stop_daemons([daemon], 0.5)
    assert daemon.exit_code == -signal.SIGKILL
    assert time.monotonic() - begun < 20.0, "it is stopped for ever"


def test_a_killed_daemon_leaves_no_worker(tmp_path: Path) -> None:
    swarm = LocalSwarm(tmp_path, nodes=1)
    swarm.prepare_nodes(rounds=1)
    swarm.start()
    until(lambda: bool(swarm.find_leftover_pids()))
    swarm.daemons[0].send_signal(signal.SIGKILL)
    assert swarm.stop() == {"node-1": -signal.SIGKILL}
    assert swarm.find_leftover_pids() == []


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LocalSwarm]:
    """A swarm of one node, which answers."""
    swarm = LocalSwarm(tmp_path, nodes=1)
    swarm.prepare_nodes(rounds=1)
    swarm.start()
    try:
        until(lambda: swarm.status(1) is not None)
        yield swarm
    finally:
        assert swarm.stop() == {"node-1": 0}


def test_a_node_that_is_killed_is_started_again(alone: LocalSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.cli.local_swarm.RESTART", Backoff(0.1, 0.1))
    assert alone.restart_ended_nodes() == []
    alone.daemons[0].send_signal(signal.SIGKILL)
    alone.daemons[0].wait_for_exit(5.0)
    assert alone.restart_ended_nodes() == ["node-1 was killed by SIGKILL; it is started again in 0 s"]
    assert alone.can_continue and alone.rows()[0].state == "exited"
    until(lambda: alone.restart_ended_nodes() == [] and alone.status(1) is not None)


def test_a_node_that_dies_again_and_again_stays_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.cli.local_swarm.RESTART", Backoff(0.0, 0.0))
    monkeypatch.setattr(DaemonProcess, "command", [sys.executable, "-Sc", "raise SystemExit(1)"])
    swarm = LocalSwarm(tmp_path, nodes=2)
    for place in swarm.places:
        place.create()
    follower, said = swarm.daemons[1], list[str]()
    follower.start()

    def is_down() -> bool:
        said.extend(swarm.restart_ended_nodes())
        return follower.stays_down

    until(is_down)
    assert said == [
        *["node-2 ended with exit code 1; it is started again in 0 s"] * RESTARTS_MAX,
        f"node-2 ended with exit code 1, and stays down after {RESTARTS_MAX} restarts",
    ]
    assert swarm.can_continue, "the coordinator does not wait for it"
    assert swarm.restart_ended_nodes() == []


@pytest.mark.parametrize(
    ("exit_code", "helps"),
    [(0, False), (1, True), (-9, True), (-signal.SIGTERM, False), (ExitCode.IN_USE, True), (78, False), (143, False)],
)
def test_a_node_is_started_again_as_its_unit_would(exit_code: int, helps: bool) -> None:
    assert restart_may_help(exit_code) is helps


def test_a_node_that_runs_already_is_not_started_twice(alone: LocalSwarm, tmp_path: Path) -> None:
    written = alone.places[0].config.read_bytes()
    assert run_command(["local", "--dir", str(tmp_path), "--nodes", "1", "--rounds", "7"]) == ExitCode.FAILURE
    assert alone.places[0].config.read_bytes() == written
    with pytest.raises(LocalSwarmFailed, match=f"node-1 runs already, as process {alone.daemons[0].pid}"):
        LocalSwarm(tmp_path, nodes=1).start()


def test_a_node_that_ends_by_itself_is_shown_with_what_it_said(tmp_path: Path, shell: Shell) -> None:
    # The disk can never have so much free: the node refuses to start.
    free = ("--set", f"storage.free_bytes_min={1 << 62}")
    shown = shell("local", "--nodes", 1, "--rounds", 1, "--dir", tmp_path, *free)
    assert shown.code == ExitCode.FAILURE
    assert f"node-1 ended with exit code {ExitCode.CANNOT_CREATE}, and stays down" in shown.out
    assert f"node-1 ended with exit code {ExitCode.CANNOT_CREATE} and stayed down; it said last:" in shown.err
    assert "free" in shown.err.split("it said last:")[1]


def test_two_local_swarms_do_not_share_a_directory(tmp_path: Path, shell: Shell) -> None:
    """The second one would write the configurations of nodes that start, and kill their workers at its end."""
    with hold_directory_lock(tmp_path):
        told = shell.fails(ExitCode.IN_USE, "local", "--nodes", 1, "--dir", tmp_path)
    assert f"another command is at work in {tmp_path}" in told
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_setting_starts_nothing(tmp_path: Path, shell: Shell) -> None:
    told = shell.fails(ExitCode.BAD_CONFIG, "local", "--dir", tmp_path, "--set", "training.stepz=1")
    assert "Did you mean training.steps?" in told and not (tmp_path / "node-1" / "daemon.log").exists()
    shell.fails(ExitCode.BAD_CONFIG, "local", "--dir", tmp_path / "new", "--kind", "nope")
    assert not (tmp_path / "new").exists()


def test_long_output_is_set_aside(daemon: DaemonProcess) -> None:
    daemon.place.output.write_bytes(b"x\n" * OUTPUT_BYTES_MAX)
    daemon.start()
    until(daemon.place.control.exists)
    assert daemon.place.output.stat().st_size < OUTPUT_BYTES_MAX
    assert (daemon.place.root / "daemon.log.1").stat().st_size > OUTPUT_BYTES_MAX


def test_the_ends_of_nodes_are_judged() -> None:
    check_exits((), {"node-1": 0, "node-2": -signal.SIGTERM}, [])
    with pytest.raises(LocalSwarmFailed, match="exit codes node-2: -9"):
        check_exits((), {"node-1": 0, "node-2": -signal.SIGKILL}, [])
    with pytest.raises(LocalSwarmFailed, match="left behind: 7"):
        check_exits((), {"node-1": 0}, [7])


def test_a_line_is_printed_for_a_change_and_not_for_progress(capsys: pytest.CaptureFixture[str]) -> None:
    show = make_line_printer(Console())
    show("", (NodeRow("node-1", "waiting", 0, done=1, total=20),))
    show("", (NodeRow("node-1", "waiting", 0, done=2, total=20),))
    show("", (NodeRow("node-1", "waiting", 1),))
    assert capsys.readouterr().out.splitlines() == [
        "node-1   waiting  round 0  peers 0",
        "node-1   waiting  round 1  peers 0",
    ]


def test_a_long_silence_is_ended_by_how_far_all_are(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    show = make_line_printer(Console(), lambda: now)
    for seconds in range(8):
        now = float(seconds)
        doing = f"training {seconds} of 20: drawing 3 of 9 tokens"
        rows = NodeRow("node-1", "round.training", 0, done=seconds, total=20, at_work=doing), NodeRow("n2", "waiting")
        show(f"0:{seconds:02d}", rows)
    assert capsys.readouterr().out.splitlines() == [
        "node-1   round.training  round 0  peers 0",
        "n2       waiting  peers 0",
        "0:04: node-1 training 4 of 20: drawing 3 of 9 tokens, n2 waiting",
    ]


def test_the_report_quotes_what_a_shell_would_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "my [bold] swarm"
    print_report(LocalSwarm(directory, 1), directory, Console())
    assert f"replay '{directory}/node-1'\n" in capsys.readouterr().out
