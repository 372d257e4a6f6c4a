"""A local swarm: where its nodes lie and their configurations, its daemons, and what becomes of all of them."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.bounds import Backoff
from swarmd.chain.operator import Journal
from swarmd.cli import run_command
from swarmd.cli.local import check_ends, line_printer, print_report
from swarmd.cli.local_swarm import (
    OUTPUT_BYTES_MAX,
    RESTARTS_MAX,
    DaemonProcess,
    LocalSwarm,
    lay_out,
    node_places,
    parse_setting,
    peer_of,
    restart_may_help,
    stop_all,
)
from swarmd.cli.new import swarm_id
from swarmd.config import load_config
from swarmd.dht.identity.identity import load_identity
from swarmd.errors import ConfigError, ExitCode, LocalSwarmFailed, ModelError, SwarmdError
from swarmd.files import held_alone
from swarmd.observe.panel import NodeRow
from swarmd.paths import configs_directory
from swarmd.training.models.source import EMBEDDED_DIR
from tests.anvil import running_anvil
from tests.cli.owning import STRANGER, OwnChain, Shell, files


def test_the_nodes_find_each_other(tmp_path: Path) -> None:
    places = node_places(tmp_path, 3)
    assert lay_out(places, rounds=8) == 8
    coordinator, *followers = (load_config(place.config) for place in places)
    assert (coordinator.role, coordinator.coordinator.min_peers, coordinator.coordinator.rounds_max) == (
        "coordinator",
        3,
        8,
    )
    for follower in followers:
        assert follower.role == "follower"
        assert follower.swarm.coordinator == peer_of(places[0])
        assert follower.dht.bootstrap == (f"{coordinator.dht.listen[0]}/p2p/{peer_of(places[0])}",)
    assert [config.name for config in (coordinator, *followers)] == ["node-1", "node-2", "node-3"]


def test_a_second_run_keeps_identities_and_port(tmp_path: Path) -> None:
    places = node_places(tmp_path, 2)
    lay_out(places, rounds=1)
    before = [load_config(places[0].config).dht.listen, *(peer_of(place) for place in places)]
    lay_out(places, rounds=1)
    assert [load_config(places[0].config).dht.listen, *(peer_of(place) for place in places)] == before


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    places = node_places(tmp_path, 1)
    lay_out(places, rounds=1)
    kept = load_config(places[0].config).dht.listen[0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(kept.rpartition("/")[2])))
        other.listen()
        lay_out(places, rounds=1)
        assert load_config(places[0].config).dht.listen[0] != kept


def test_a_relative_model_directory_is_the_same_from_wherever_a_node_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EMBEDDED_DIR, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    places = node_places(tmp_path / "swarm", 2)
    lay_out(places, rounds=1, settings={"training.model": "models/tiny"})
    assert [load_config(place.config).training.model for place in places] == [str(tmp_path / "models" / "tiny")] * 2


def test_a_model_that_is_not_there_is_found_before_any_node_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ships no model 'embedded-large'"):
        lay_out(node_places(tmp_path, 2), rounds=1, settings={"training.model": "embedded-large"})


def test_the_kind_file_brings_its_questions_along(tmp_path: Path) -> None:
    places = node_places(tmp_path, 2)
    lay_out(places, rounds=1, swarm="file")
    shipped = configs_directory() / "file" / "data" / "questions.jsonl"
    assert [(place.root / "questions.jsonl").read_bytes() for place in places] == [shipped.read_bytes()] * 2


def test_rounds_are_added_to_those_that_were_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = node_places(tmp_path, 1)
    monkeypatch.setattr("swarmd.cli.local_swarm.rounds_run", lambda place: 5)
    assert lay_out(places, rounds=8) == 13
    assert lay_out(places, rounds=0) == 0


def test_settings_reach_every_node_and_comments_stay(tmp_path: Path) -> None:
    places = node_places(tmp_path, 2)
    lay_out(places, 1, {"training.steps": 3, "swarm.tasks": [{"name": "chain_sum", "config": {"min_terms": 2}}]})
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
    places = node_places(tmp_path / "nodes", 2)
    lay_out(places, 1, swarm="reasoning-gym")
    first, second = (load_config(place.config) for place in places)
    assert first.swarm.kind == second.swarm.kind == "reasoning-gym"
    assert first.dht.listen[0].startswith("/ip4/127.0.0.1/") and second.dht.listen == ("/ip4/127.0.0.1/tcp/0",)
    assert second.swarm.coordinator == peer_of(places[0]) and first.data == second.data == "."
    assert first.logs.format == second.logs.format == "text", "for people who read daemon.log"
    monkeypatch.setattr("swarmd.cli.local_swarm.configs_directory", lambda: tmp_path)
    with pytest.raises(ConfigError, match="no configurations of the kind 'gsm8k'") as caught:
        lay_out(places, 1, swarm="gsm8k")
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
        lay_out(node_places(tmp_path, 1), 1, swarm=swarm)
    assert told in str(caught.value)
    assert not (tmp_path / "node-1").exists()


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


def test_a_node_that_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.cli.local_swarm.RESTART", Backoff(0.1, 0.1))
    swarm = LocalSwarm(tmp_path, nodes=1)
    swarm.lay_out(rounds=1)
    swarm.start()
    try:
        until(lambda: swarm.status(1) is not None)
        assert swarm.keep_up() == []
        swarm.daemons[0].send(signal.SIGKILL)
        swarm.daemons[0].wait(5.0)
        assert swarm.keep_up() == ["node-1 was killed by SIGKILL; it is started again in 0 s"]
        assert swarm.goes_on and swarm.rows()[0].state == "exited"
        until(lambda: swarm.keep_up() == [] and swarm.status(1) is not None)
    finally:
        assert swarm.stop() == {"node-1": 0}


def test_a_node_that_dies_again_and_again_stays_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.cli.local_swarm.RESTART", Backoff(0.0, 0.0))
    monkeypatch.setattr(DaemonProcess, "command", [sys.executable, "-Sc", "raise SystemExit(1)"])
    swarm = LocalSwarm(tmp_path, nodes=2)
    for place in swarm.places:
        place.create()
    follower, said = swarm.daemons[1], list[str]()
    follower.start()

    def is_down() -> bool:
        said.extend(swarm.keep_up())
        return follower.stays_down

    until(is_down)
    assert said == [
        *["node-2 ended with exit code 1; it is started again in 0 s"] * RESTARTS_MAX,
        f"node-2 ended with exit code 1, and stays down after {RESTARTS_MAX} restarts",
    ]
    assert swarm.goes_on, "the coordinator does not wait for it"
    assert swarm.keep_up() == []


@pytest.mark.parametrize(
    ("exit_code", "helps"),
    [(0, False), (1, True), (-9, True), (-signal.SIGTERM, False), (ExitCode.IN_USE, True), (78, False), (143, False)],
)
def test_a_node_is_started_again_as_its_unit_would(exit_code: int, helps: bool) -> None:
    assert restart_may_help(exit_code) is helps


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
    assert f"node-1 ended with exit code {ExitCode.CANNOT_CREATE}, and stays down" in shown.out
    assert f"node-1 ended with exit code {ExitCode.CANNOT_CREATE} and stayed down; it said last:" in shown.err
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
        doing = f"training {seconds} of 20: drawing 3 of 9 tokens"
        rows = NodeRow("node-1", "round.training", 0, done=seconds, total=20, at_work=doing), NodeRow("n2", "waiting")
        show(f"0:{seconds:02d}", rows)
    assert capsys.readouterr().out.splitlines() == [
        "node-1   round.training  round 0  peers 0",
        "n2       waiting  peers 0",
        "0:04: node-1 training 4 of 20: drawing 3 of 9 tokens, n2 waiting",
    ]


def test_the_report_quotes_what_a_shell_would_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    directory = tmp_path / "my [bold] swarm"
    print_report(LocalSwarm(directory, 1), directory, Console())
    assert f"replay '{directory}/node-1'\n" in capsys.readouterr().out


OPEN_STEPS, CLOSED_STEPS = 4, 7  # transactions


# --- without a chain ---


def test_a_swarm_without_a_chain(shell: Shell) -> None:
    directory = shell.root / "a"
    shown = shell.well("swarm", "new", "My Digits!", "--dir", directory, "--announce", "/ip4/192.0.2.7/tcp/38331")
    manifest, config = shell.manifest("a"), load_config(directory / "config.toml")
    peer = load_identity(directory / "identity.key").peer_id
    assert manifest.id == swarm_id("My Digits!", peer) == config.swarm.id
    assert manifest.id.startswith("my-digits-")
    assert manifest.bootnodes == (f"/ip4/192.0.2.7/tcp/38331/p2p/{peer}",)
    assert (config.role, config.dht.peer, config.dht.announce) == ("coordinator", peer, ("/ip4/192.0.2.7/tcp/38331",))
    assert manifest.rounds is not None and manifest.rounds.coordinator == peer == manifest.creator
    assert config.chain is None
    assert f"swarmd run --config {directory / 'config.toml'}" in shown
    assert "this machine only" not in shown
    assert stat.S_IMODE((directory / "config.toml").stat().st_mode) == 0o600
    assert shell("config", "check", directory / "config.toml").code == 0


def test_made_again_it_stays_as_it_is(shell: Shell) -> None:
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    before = files(shell.root / "a")
    assert "nothing was changed" in shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--closed")
    assert files(shell.root / "a") == before


def test_a_run_that_died_before_the_manifest_is_taken_up(shell: Shell) -> None:
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    first = shell.manifest("a")
    (shell.root / "a" / "swarm.toml").unlink()
    assert "kept as it is" in shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    assert shell.manifest("a").id == first.id


@pytest.mark.parametrize("name", ["config.toml", "swarm.toml"])
def test_a_full_disk_leaves_no_half_of_a_file(shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run would keep it as it is."""
    sync = os.fsync

    def full(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115 - of a descriptor
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    path = shell.root / "a" / name
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        told = shell.fails(ExitCode.CANNOT_CREATE, "swarm", "new", "a", "--dir", shell.root / "a")
    assert str(path) in told and "fix: " in told
    assert not [left for left in files(shell.root / "a") if name in left]
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    assert load_config(shell.root / "a" / "config.toml").swarm.id == shell.manifest("a").id


def test_the_recipe_comes_from_a_configuration(shell: Shell) -> None:
    recipe = shell.root / "recipe.toml"
    recipe.write_text(
        'role = "coordinator"\n[swarm]\nid = "x"\nkind = "reasoning-gym"\n'
        'tasks = [{name = "chain_sum", config = {min_terms = 2}}]\n'
        '[coordinator]\nquorum = 0.5\n[training]\nsteps = 3\ndevice = "cpu"\n'
    )
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--config", recipe, "--stage-seconds", 900)
    manifest, config = shell.manifest("a"), load_config(shell.root / "a" / "config.toml")
    assert (manifest.recipe.steps, manifest.recipe.tasks[0].config) == (3, {"min_terms": 2})
    assert manifest.rounds is not None
    assert (manifest.rounds.quorum, manifest.rounds.stage_s) == (0.5, 900.0)
    assert (config.training.device, config.training.steps, config.coordinator.quorum) == ("cpu", 3, 0.5)
    assert config.round.train_s == 1800.0
    recipe.write_text(recipe.read_text() + "[round]\ntrain_s = 3600\n")  # what a slow node needs is not dropped
    shell.well("swarm", "new", "b", "--dir", shell.root / "b", "--config", recipe)
    rounds, config = shell.manifest("b").rounds, load_config(shell.root / "b" / "config.toml")
    assert rounds is not None and (rounds.stage_s, config.round.train_s) == (1800.0, 3600.0)


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--listen", "/ip4/0.0.0.0/tcp/0"], ExitCode.BAD_CONFIG, "a fixed port"),
        (["--bootnode", "/ip4/192.0.2.1/tcp/1"], ExitCode.BAD_DATA, "is not the address of a node"),
        (["--member", "bob"], ExitCode.BAD_DATA, "'bob' is no peer id"),
        (["--min-submissions", "2"], ExitCode.BAD_CONFIG, "are for a swarm on a chain"),
        (["--stage-seconds", "0"], ExitCode.BAD_CONFIG, "a stage needs an end"),
        (["--stages", "3"], ExitCode.BAD_CONFIG, "a round of 'digits' has 1"),
        (["--rpc", "ftp://x"], ExitCode.BAD_CONFIG, "no URL of a node"),
        (["--rpc", "http://127.0.0.1:1"], ExitCode.FAILURE, "127.0.0.1:1"),
        (["--rpc", "file:none.txt"], ExitCode.BAD_CONFIG, "none.txt cannot be read"),
        (["--rpc", "http://127.0.0.1:1", "--max-gwei", "nan"], ExitCode.BAD_CONFIG, "--max-gwei nan is no price"),
        (["--min-submissions", str(2**32)], ExitCode.USAGE, "min-submissions"),
    ],
)
def test_what_cannot_be_is_told(shell: Shell, options: list[str], code: int, told: str) -> None:
    assert told in shell.fails(code, "swarm", "new", "a", "--dir", shell.root / "a", *options)
    assert not (shell.root / "a" / "swarm.toml").exists()


def test_stages_are_those_of_the_kind(shell: Shell) -> None:
    recipe = shell.root / "recipe.toml"
    recipe.write_text('role = "coordinator"\n[swarm]\nid = "x"\nkind = "gsm8k"\n')
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--config", recipe)
    assert shell.manifest("a").recipe.stages == 3
    for content, told in (
        ('kind = "gsm8k"\nstages = 2\n', "a round of 'gsm8k' has 3"),
        ('kind = "gsm8c"\n', "Did you mean 'gsm8k'?"),
    ):
        recipe.write_text(f'role = "coordinator"\n[swarm]\nid = "x"\n{content}')
        for command in (
            ("swarm", "new", "b", "--dir", shell.root / "b", "--config"),
            ("config", "check"),
            ("run", "-c"),
        ):
            assert told in shell.fails(ExitCode.BAD_CONFIG, *command, recipe)


@pytest.mark.parametrize("name", ["", " ", "\u00a0 ", "x" * 65, "a\x1b[2Jb"])
def test_a_name_that_no_manifest_can_have_leaves_nothing(shell: Shell, name: str) -> None:
    for options in ((), ("--rpc", "http://127.0.0.1:1")):
        assert "name" in shell.fails(ExitCode.BAD_DATA, "swarm", "new", name, "--dir", shell.root / "a", *options)
    assert not (shell.root / "a").exists()


def test_a_closed_swarm_without_a_chain_keeps_its_list_in_the_manifest(shell: Shell) -> None:
    path = shell.root / "a" / "swarm.toml"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--closed")
    creator = shell.manifest("a").creator
    assert shell.manifest("a").members == (creator,)
    assert f'"{STRANGER}",' in shell.well("swarm", "allow", path, STRANGER)
    assert shell.manifest("a").members == (creator, STRANGER)
    assert "nothing to do" in shell.well("swarm", "allow", path, STRANGER)
    shell.well("swarm", "disallow", path, STRANGER, creator)
    assert shell.manifest("a").members == (creator,)
    shell.well("swarm", "open", path)
    assert (shell.manifest("a").membership, shell.manifest("a").members) == ("open", ())
    assert "no allow-list" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "allow", path, STRANGER)
    shell.well("swarm", "close", path)
    assert shell.manifest("a").membership == "allow-list"


def test_bootnodes_without_a_chain(shell: Shell) -> None:
    path, address = shell.root / "a" / "swarm.toml", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    first = shell.manifest("a").bootnodes
    shell.well("swarm", "add-bootnode", path, address)
    assert shell.manifest("a").bootnodes == (*first, address)
    shell.well("swarm", "remove-bootnode", path, *first)
    assert shell.manifest("a").bootnodes == (address,)
    assert "only bootnode" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "remove-bootnode", path, address)
    assert "is not the address" in shell.fails(ExitCode.BAD_DATA, "swarm", "add-bootnode", path, "/ip4/192.0.2.1")


@pytest.mark.parametrize(
    "change",
    [
        ("close",),
        ("allow", STRANGER),
        ("add-bootnode", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"),
        ("remove-bootnode", ""),
    ],
    ids=["close", "allow", "add-bootnode", "remove-bootnode"],
)
def test_a_manifest_is_changed_by_one_command_at_a_time(shell: Shell, change: tuple[str, ...]) -> None:
    path = shell.root / "a" / "swarm.toml"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    with held_alone(path.parent):
        told = shell.fails(ExitCode.IN_USE, "swarm", change[0], path, *change[1:])
    assert "another command is at work" in told


def test_only_the_creator_changes_a_manifest(shell: Shell) -> None:
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--closed")
    elsewhere = shell.root / "swarm.toml"
    elsewhere.write_bytes((shell.root / "a" / "swarm.toml").read_bytes())
    assert "only the creator" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "allow", elsewhere, STRANGER)


def test_check_needs_no_network_and_finds_a_change(shell: Shell) -> None:
    path = shell.root / "a" / "swarm.toml"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    assert "valid, signed by" in shell.well("swarm", "check", path)
    path.write_text(path.read_text().replace("steps = 40", "steps = 41"))
    assert "the recipe does not have its digest" in shell.fails(ExitCode.BAD_DATA, "swarm", "check", path)
    assert "there is no manifest" in shell.fails(ExitCode.NO_INPUT, "swarm", "check", shell.root / "none")


def test_two_runs_at_once_are_kept_apart(shell: Shell) -> None:
    from swarmd.cli.directory import NewNode

    with NewNode(shell.root / "a").held():
        told = shell.fails(ExitCode.IN_USE, "swarm", "new", "a", "--dir", shell.root / "a")
    assert "another command is at work" in told


# --- on a chain ---


def test_a_swarm_on_a_chain_from_its_creation_to_the_next_round(shell: Shell, chain: OwnChain) -> None:
    a = chain.make(shell)
    path, manifest, config = a / "swarm.toml", shell.manifest("a"), load_config(a / "config.toml")
    assert manifest.chain is not None and config.chain is not None
    assert (manifest.chain.chain_id, manifest.chain.rpc, manifest.chain.max_stage_s) == (31337, (chain.url,), 300)
    assert (config.role, config.chain.contract) == ("coordinator", manifest.chain.contract)
    assert chain.sent_by(a) == OPEN_STEPS

    nodes = [shell.root / name for name in "bc"]
    for node in nodes:
        assert "send it some" in shell.well("join", path, "--dir", node)
        chain.fund(node)
        assert "registered: in block" in shell.well("join", path, "--dir", node)
    found = json.loads(shell.well("swarm", "status", path, "--json"))
    assert (found["round"], found["registered"], found["open"], found["submissions"]) == (0, 2, True, 0)
    assert found["bootnodes"] == list(manifest.bootnodes)
    assert "anybody may advance after 300 s" in shell.well("swarm", "status", path)

    told = shell.fails(ExitCode.FAILURE, "swarm", "advance", path)
    assert re.search(r"does not allow the next stage yet: in \d+ s", told)
    shell.well("swarm", "set-policy", path, "--stage-seconds", 3600, "--min-submissions", 5)
    told = shell.fails(ExitCode.FAILURE, "swarm", "advance", path)
    assert "at 5 reports, there are 0, or in" in told
    chain.say("evm_increaseTime", 3601)
    chain.say("evm_mine")
    open_for = re.search(r"open for (\d+) s at that block", shell.well("swarm", "status", path))
    assert open_for and int(open_for[1]) > 3600, "the chain's clock is an hour ahead of this machine's"
    assert "the swarm is at round 1, stage 0" in shell.well(
        "swarm", "advance", path, "--account", nodes[0] / "account.json"
    )
    assert "the swarm is at round 2, stage 0" in shell.well("swarm", "advance", path, "--as-manager")
    told = shell.fails(
        ExitCode.FAILURE, "swarm", "advance", path, "--as-manager", "--account", nodes[0] / "account.json"
    )
    assert "OnlyStageManager" in told and "STAGE_MANAGER_ROLE" in told
    assert chain.sent_by(nodes[0]) == 2


def test_members_and_bootnodes_on_a_chain(shell: Shell, chain: OwnChain) -> None:
    a = chain.make(shell)
    path, address = a / "swarm.toml", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"
    assert "open to all" in shell.well("swarm", "allow", path, STRANGER)
    shell.well("swarm", "close", path)
    assert "nothing to do" in shell.well("swarm", "allow", path, STRANGER)
    found = json.loads(shell.well("swarm", "status", path, "--json"))
    assert (found["open"], found["allowed"]) == (False, [STRANGER])
    shell.well("swarm", "disallow", path, STRANGER)
    shell.well("swarm", "add-bootnode", path, address)
    assert "nothing to do" in shell.well("swarm", "add-bootnode", path, address)
    shell.well("swarm", "open", path)
    found = json.loads(shell.well("swarm", "status", path, "--json"))
    assert (found["open"], found["allowed"], found["bootnodes"][-1]) == (True, [], address)
    shell.well("swarm", "remove-bootnode", path, address)
    assert address not in shell.well("swarm", "status", path)
    assert "'bob' is no peer id" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "allow", path, "bob")
    address = shell.manifest("a").chain.contract  # type: ignore[union-attr]
    assert "round 0, stage 0" in shell.well("swarm", "status", "--rpc", chain.url, "--contract", address)
    assert "which swarm?" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "status")
    told = shell.fails(ExitCode.BAD_CONFIG, "swarm", "status", "--rpc", chain.url, "--contract", "0x12")
    assert "'0x12' is no address" in told


def test_a_named_passphrase_is_the_one_that_counts(shell: Shell, chain: OwnChain) -> None:
    path, other = chain.make(shell) / "swarm.toml", shell.root / "other.pass"
    other.write_text("another passphrase\n")
    other.chmod(0o600)
    sent = chain.sent_by(path.parent)
    command = ("swarm", "set-policy", path, "--stage-seconds", 77, "--passphrase-file")
    assert "does not open" in shell.fails(ExitCode.NO_PERMISSION, *command, other)
    assert chain.sent_by(path.parent) == sent
    shell.well(*command, path.parent / "account.pass")


def test_a_closed_swarm_admits_its_creator_and_whom_he_names(shell: Shell, chain: OwnChain) -> None:
    a = chain.make(shell, "--closed", "--member", STRANGER, "--min-submissions", 2)
    found = json.loads(shell.well("swarm", "status", a / "swarm.toml", "--json"))
    assert (found["open"], found["allowed"]) == (False, [shell.manifest("a").creator, STRANGER])
    assert (found["min_submissions"], shell.manifest("a").membership) == (2, "allow-list")
    assert chain.sent_by(a) == CLOSED_STEPS


def test_a_creation_that_dies_at_every_step_goes_on(
    shell: Shell, chain: OwnChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Journal.note

    def die_after(self: Journal, *given: object) -> None:
        note(self, *given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    a = shell.root / "a"
    command = chain.command(a)
    shell.fails(ExitCode.FAILURE, *command)
    chain.fund(a)
    for _ in range(OPEN_STEPS):
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "note", die_after)
            shell.fails(ExitCode.INTERRUPTED, *command)
    assert "going on with what" in shell.well(*command)
    assert chain.sent_by(a) == OPEN_STEPS
    assert "round 0" in shell.well("swarm", "status", a / "swarm.toml")


def test_killed_while_it_waits_for_a_block_it_sends_nothing_twice(shell: Shell, chain: OwnChain) -> None:
    """SIGKILL, as the kernel or a closed laptop would end it."""
    a = shell.root / "a"
    command = chain.command(a)
    shell.fails(ExitCode.FAILURE, *command)
    chain.fund(a)
    chain.say("evm_setAutomine", False)
    process = subprocess.Popen([sys.executable, "-m", "swarmd", *map(str, command)], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while chain.say("txpool_status")["pending"] == "0x0":
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    chain.say("evm_setAutomine", True)
    chain.say("evm_mine")
    shell.well(*command)
    assert chain.sent_by(a) == OPEN_STEPS


def test_a_chain_that_is_not_local_is_asked_about(shell: Shell) -> None:
    with running_anvil("--chain-id", "100", "--block-time", "1") as url:
        chain, a = OwnChain(url), shell.root / "a"
        command = OwnChain(url).command(a)
        told = shell.fails(ExitCode.BAD_CONFIG, *command)
        assert "costs real coins" in told and "--yes" in told
        chain.fund(a)
        shown = shell.well(*command, "--yes")
        found = shell.manifest("a").chain
        assert found is not None
        assert found.chain_id == 100
        last = max(int(block) for block in re.findall(r"block (\d+) +gas", shown))
        assert chain.w3.eth.block_number >= last + found.depth


def test_the_key_in_an_endpoints_url_stays_out_of_manifest_and_output(shell: Shell, chain: OwnChain) -> None:
    a, url = shell.root / "a", f"{chain.url}/?key=canary-secret"
    command = OwnChain(url).command(a)
    said = [shell(*command)]
    chain.fund(a)
    said += [shell(*command), shell("swarm", "status", a / "swarm.toml"), shell("swarm", "advance", a / "swarm.toml")]
    assert [each.code for each in said] == [1, 0, 0, 1]
    assert not any("canary-secret" in text for each in said for text in (each.out, each.err))
    kept = {name: content for name, content in files(a).items() if b"canary-secret" in content}
    assert list(kept) == ["rpc.urls"]
    assert stat.S_IMODE((a / "rpc.urls").stat().st_mode) == 0o600
    assert load_config(a / "config.toml").chain.rpc == ("file:rpc.urls",)  # type: ignore[union-attr]
    assert shell.manifest("a").chain.rpc == ()  # type: ignore[union-attr]


def test_a_chain_that_was_reset_is_refused(shell: Shell) -> None:
    with running_anvil("--timestamp", "1700000000") as url:
        a = OwnChain(url).make(shell)
        port = int(url.rpartition(":")[2])
        (a / "swarm.toml").rename(a / "kept.toml")
    with running_anvil("--timestamp", "1800000000", port=port) as url:
        command = OwnChain(url).command(a)
        assert "it was reset" in shell.fails(ExitCode.CHAIN_CONFLICT, *command)
        assert "no contract at" in shell.fails(ExitCode.CHAIN_CONFLICT, "swarm", "status", a / "kept.toml")
