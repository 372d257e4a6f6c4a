"""A node's data goes along when it becomes a service: whole, once, and closed behind it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmd.cli.node.service import app
from swarmd.config import load_config
from swarmd.daemon.notes import refuse_moved
from swarmd.errors import IdentityInUse, LogInUse, UnitError
from swarmd.eventlog.lock import take_lock
from swarmd.paths import DataPaths
from swarmd.units import ServicePaths
from swarmd.units.transfer import Transfer, find_transfer, take_along

CONFIG = 'role = "coordinator"\ndata = "."\n[swarm]\nid = "x"\n'


@pytest.fixture
def place(tmp_path: Path) -> ServicePaths:
    return ServicePaths(state=tmp_path / "lib")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A node as `join` and a first run by hand leave it; the path of its configuration."""
    mine = tmp_path / "mine"
    for directory in ("events", "run", "checkpoints/0"):
        (mine / directory).mkdir(parents=True)
    (mine / "config.toml").write_text(CONFIG)
    (mine / "identity.key").write_bytes(b"one")
    (mine / "identity.key").chmod(0o600)
    (mine / "events/0.seg").write_bytes(b"log")
    (mine / "checkpoints/0/weights").write_bytes(b"learnt")
    (mine / "checkpoints/newest").symlink_to("0")
    os.mkfifo(mine / "pipe")
    return mine / "config.toml"


def found(config: Path, place: ServicePaths) -> Transfer | None:
    return find_transfer(config, load_config(config), place)


def take(config: Path, place: ServicePaths) -> Path:
    transfer = found(config, place)
    assert transfer is not None and not transfer.there
    take_along(transfer)
    return transfer.target.root


def test_all_goes_along_but_sockets_and_the_configuration(made: Path, place: ServicePaths) -> None:
    target = take(made, place)
    assert target == place.state / "private/swarmd"
    assert {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()} == {
        "identity.key",
        "events/0.seg",
        "events/writer.lock",
        "checkpoints/0/weights",
    }
    assert (target / "checkpoints/newest").readlink() == Path("0")
    assert [path.name for path in target.parent.iterdir()] == ["swarmd"], "nothing unfinished is left"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (target.parent, target, target / "identity.key")]
    assert modes == [0o700, 0o700, 0o600]


def test_the_old_place_is_closed_and_the_new_one_open(made: Path, place: ServicePaths) -> None:
    target = take(made, place)
    with pytest.raises(IdentityInUse, match=f"was moved away on .* to {target}"):
        refuse_moved(DataPaths(made.parent))
    refuse_moved(DataPaths(target))


def test_again_it_is_there_and_nothing_is_copied(made: Path, place: ServicePaths) -> None:
    target = take(made, place)
    (target / "events/0.seg").write_bytes(b"longer log")
    again = found(made, place)
    assert again is not None and again.there
    (target / "identity.key").unlink()
    with pytest.raises(UnitError, match="is not empty"):
        found(made, place)


def test_a_closed_node_whose_data_are_gone_is_not_taken_twice(made: Path, place: ServicePaths) -> None:
    take(made, place).rename(place.state / "elsewhere")
    with pytest.raises(IdentityInUse):
        found(made, place)


def test_nothing_is_overwritten(made: Path, place: ServicePaths) -> None:
    other = place.state / "private/swarmd/identity.key"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another")
    with pytest.raises(UnitError, match="--instance NAME"):
        found(made, place)
    assert other.read_bytes() == b"another"
    refuse_moved(DataPaths(made.parent))


def test_what_comes_meanwhile_is_not_overwritten_and_nothing_is_closed(made: Path, place: ServicePaths) -> None:
    transfer = found(made, place)
    assert transfer is not None
    other = transfer.target.root / "identity.key"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another")
    with pytest.raises(UnitError, match="cannot be copied"):
        take_along(transfer)
    assert other.read_bytes() == b"another" and len(list(other.parent.parent.iterdir())) == 1
    refuse_moved(DataPaths(made.parent))


def test_a_file_that_cannot_be_copied_is_named(
    made: Path, place: ServicePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", source)

    transfer = found(made, place)
    assert transfer is not None
    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(UnitError, match=r": /\S+: .*Permission denied.*See that there is room"):
        take_along(transfer)


def test_a_running_node_is_left_alone(made: Path, place: ServicePaths) -> None:
    lock = take_lock(made.parent / "events")
    try:
        with pytest.raises(LogInUse):
            take(made, place)
    finally:
        os.close(lock)
    assert not place.state.exists()


def test_what_systemd_made_before_is_used(made: Path, place: ServicePaths) -> None:
    behind = place.state / "private/swarmd"
    behind.mkdir(parents=True)
    (place.state / "swarmd").symlink_to("private/swarmd")
    assert take(made, place) == behind
    assert (place.state / "swarmd/identity.key").read_bytes() == b"one"


def test_a_configuration_without_a_node_takes_nothing(tmp_path: Path, place: ServicePaths) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    assert found(tmp_path / "config.toml", place) is None


def test_the_template_stays_for_an_instance_that_is_installed_and_not_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    units = tmp_path / ".config/systemd/user"
    (units / "swarmd@.service.d").mkdir(parents=True)
    (units / "swarmd@.service.d/90-mine.conf").write_text("[Service]\nNice=5\n")  # of the template, no instance

    def service(verb: str, instance: str) -> None:
        done = CliRunner().invoke(app, [verb, "--user", "--no-reload", "--instance", instance])
        assert done.exit_code == 0, done.output

    for verb, instance in (("install", "a"), ("install", "b"), ("uninstall", "a")):
        service(verb, instance)
    assert {path.name for path in units.glob("swarmd*")} == {
        "swarmd.target",
        "swarmd@.service",
        "swarmd@.service.d",
        "swarmd@b.service.d",
        "swarmd-failure@.service",
    }
    service("uninstall", "b")
    assert [path.name for path in units.glob("swarmd*")] == ["swarmd@.service.d"]


def test_a_users_service_takes_it_too(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    call = ["install", "--user", "--no-reload", "--config", str(made)]
    planned = CliRunner().invoke(app, [*call, "--dry-run"])
    target = tmp_path / ".local/share/swarmd"
    assert f"{target}: the node's data; would be copied from {made.parent}" in planned.output
    assert not target.exists()
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert f"copied from {made.parent}, which is closed" in done.output
    assert (target / "identity.key").read_bytes() == b"one"
    again = CliRunner().invoke(app, call)
    assert f"{target}: the node's data is there; {made.parent} stays as it is" in again.output
