"""Every verb that starts, lays out or moves a node leaves a directory of another swarm alone."""

from pathlib import Path

import pytest

from swarmd.cli.local_swarm import local_node_directories, prepare_nodes
from swarmd.config import load_config, make_core_settings
from swarmd.core.events import NodeStarted
from swarmd.core.state import State
from swarmd.dht.identity.identity import load_identity
from swarmd.errors import ExitCode, SwarmMismatch
from swarmd.eventlog.store import EventLog
from swarmd.units import ServicePaths, refuse_other_log
from tests.cli.owning import Shell
from tests.daemon.test_directory import contents
from tests.eventlog.making import write_planned


def begin_log(config: Path) -> None:
    """What the first start of a node leaves in its log."""
    loaded = load_config(config)
    data = config.parent / loaded.data
    peer = load_identity(data / "identity.key").peer_id
    with EventLog.open(data / "events", peer, "run") as log:
        write_planned(log, [NodeStarted(make_core_settings(loaded, peer), "run")], State())


@pytest.fixture
def ran(shell: Shell) -> Path:
    """A node of a swarm of its own, with a log."""
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    begin_log(shell.root / "a" / "config.toml")
    return shell.root / "a"


@pytest.fixture
def other(shell: Shell) -> Path:
    """The manifest of another swarm."""
    shell.well("swarm", "new", "Other", "--dir", shell.root / "other")
    return shell.root / "other" / "swarm.toml"


def refused(shell: Shell, place: Path, *arguments: object) -> str:
    """What a verb says that must refuse, and change nothing in the place."""
    before = contents(place)
    said = shell.fails(ExitCode.BAD_CONFIG, *arguments)
    assert contents(place) == before
    return said


def test_local_does_not_mix_two_kinds(tmp_path: Path) -> None:
    places = local_node_directories(tmp_path / "here", 2)
    prepare_nodes(places, rounds=1)
    begin_log(places[1].config)
    before = contents(tmp_path / "here")
    with pytest.raises(SwarmMismatch, match=r"swarm local .*swarm school ") as caught:
        prepare_nodes(local_node_directories(tmp_path / "here", 3), rounds=1, swarm="gsm8k")
    assert f"--dir {tmp_path / 'here-school'}" in caught.value.fix
    assert contents(tmp_path / "here") == before and not (tmp_path / "here" / "node-3").exists()
    assert prepare_nodes(places, rounds=1) == 1, "the same swarm goes on"


def test_join_needs_a_directory_of_its_own(shell: Shell, ran: Path, other: Path) -> None:
    said = refused(shell, ran, "join", other, "--dir", ran)
    assert shell.manifest("a").id in said and "--identity" in said


def test_join_looks_at_the_log_where_the_configuration_is_gone(shell: Shell, ran: Path, other: Path) -> None:
    (ran / "config.toml").unlink()
    said = refused(shell, ran, "join", other, "--dir", ran)
    assert f"--identity {ran / 'identity.key'}" in said
    (shell.root / "home").mkdir()
    moved = ran.rename(shell.root / "home" / "data")
    refused(shell, shell.root / "home", "join", other, "--dir", shell.root / "home", "--data", "data")
    shell.well("join", other, "--dir", shell.root / "new", "--identity", moved / "identity.key")


def test_a_new_swarm_needs_a_directory_of_its_own(shell: Shell, ran: Path, other: Path) -> None:
    shell.well("swarm", "new", "Digits", "--dir", ran)
    assert "swarm.toml is of the swarm digits-" in refused(shell, ran, "swarm", "new", "Second", "--dir", ran)
    (ran / "swarm.toml").unlink()
    refused(shell, ran, "swarm", "new", "Second", "--dir", ran)
    (ran / "config.toml").unlink()
    refused(shell, ran, "swarm", "new", "Second", "--dir", ran)
    (ran / "identity.key").unlink()
    refused(shell, ran, "swarm", "new", "Digits", "--dir", ran)


def test_init_does_not_take_a_node_for_another(shell: Shell, ran: Path, other: Path) -> None:
    swarm = shell.manifest("a").id
    assert swarm in refused(shell, ran, "init", "--dir", ran, "--yes", "--no-examine", "--manifest", other)
    assert swarm in refused(shell, ran, "init", "--dir", ran, "--yes", "--no-examine", "--swarm", "Second")
    shell.well("init", "--dir", ran, "--yes", "--no-examine", "--swarm", "Digits")
    (ran / "config.toml").unlink()
    refused(shell, ran, "init", "--dir", ran, "--yes", "--no-examine", "--manifest", other)


def test_a_service_keeps_to_its_swarm(shell: Shell, ran: Path, other: Path) -> None:
    place = ServicePaths(state=shell.root / "lib")
    mine = ran / "config.toml"
    refuse_other_log(mine, load_config(mine), place)
    place.data.parent.mkdir(parents=True)
    ran.rename(place.data)
    theirs = other.with_name("config.toml")
    with pytest.raises(SwarmMismatch, match="swarm digits-"):
        refuse_other_log(theirs, load_config(theirs), place)


def test_the_doctor_compares_with_the_manifest(shell: Shell, ran: Path) -> None:
    command = ("doctor", ran, "--offline", "--only", "directory")
    shell.well(*command)
    config = ran / "config.toml"
    config.write_text(config.read_text().replace("\ngenerations = 8", "\ngenerations = 6"))
    said = shell(*command)
    assert said.code == ExitCode.FAILURE and "has other training.generations" in " ".join(said.out.split())
    (ran / "swarm.toml").write_text("nonsense")
    assert "cannot be compared" in shell(*command).out


def test_an_address_that_comes_later_is_brought_into_the_manifest(shell: Shell) -> None:
    """As the creator's who tries a swarm on one machine first."""
    node, place = shell.root / "mine", "/ip4/8.8.8.8/tcp/38331"
    shell.well("swarm", "new", "Digits", "--dir", node)
    said = shell.well("swarm", "new", "Digits", "--dir", node, "--announce", place)
    address = f"{place}/p2p/{shell.manifest('mine').creator}"
    command = ("swarm", "add-bootnode", str(node / "swarm.toml"), address)
    assert f"put it into dht.announce of {node / 'config.toml'}" in said and f"swarmd {' '.join(command)}" in said
    config, doctor = node / "config.toml", ("doctor", node, "--offline", "--only", "directory")
    config.write_text(config.read_text().replace("announce = []", f'announce = ["{place}"]'))
    shown = shell(*doctor)
    assert shown.code == ExitCode.FAILURE and "directory.bootnodes" in shown.out
    assert f"add-bootnode {node / 'swarm.toml'} {address}".replace(" ", "") in "".join(shown.out.split())
    shell.well(*command)
    assert "directory.bootnodes" not in shell.well(*doctor)
    assert "add-bootnode" not in shell.well("swarm", "new", "Digits", "--dir", node, "--announce", place)
