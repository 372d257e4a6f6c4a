"""The units as files, what is written for which node, and a node's data that go along."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmd.cli.run import app
from swarmd.config import WorkersConfig, load_config, parse_config
from swarmd.daemon.directory import refuse_moved
from swarmd.daemon.service import STOP_SLACK_S
from swarmd.errors import ExitCode, IdentityInUse, LogInUse, UnitError
from swarmd.eventlog.store import acquire_writer_lock
from swarmd.paths import NodeDirectory
from swarmd.units import (
    ServicePaths,
    Transfer,
    config_text,
    copy_data,
    credential_names,
    device_groups,
    explain_hidden,
    find_command,
    find_service_paths,
    find_transfer,
    outdated_files,
    plan_service_files,
    write_file,
)

ROOT = Path(__file__).parents[2]
UNITS = [ROOT / "swarmd.service", ROOT / "swarmd@.service"]
CODES = {name: code for name, code in vars(ExitCode).items() if name.isupper()}
COMMAND = "/opt/swarmd/bin/swarmd"
HIDDEN_PYTHON = "/home" + "/me/.venv/bin/python"
MINIMAL = 'role = "coordinator"\ndata = "."\n[swarm]\nid = "x"\n'


def value_of(text: str, key: str) -> str:
    return re.findall(rf"^{key}=(.*)$", text, re.M)[-1]


def test_the_unit_and_the_manual_agree_with_exit_codes_and_defaults() -> None:
    permanent = {code for code in CODES.values() if 64 <= code < 128} - {ExitCode.IN_USE}
    for unit in UNITS:
        text = unit.read_text()
        assert {int(code) for code in value_of(text, "RestartPreventExitStatus").split()} == permanent
        assert float(value_of(text, "TimeoutStopSec")) > 2 * WorkersConfig().stop_s + STOP_SLACK_S
    manual = (ROOT / "docs/OPERATING.md").read_text()
    table = manual[manual.index("## Exit codes") : manual.index("## Is it well?")]
    rows = re.findall(r"^\| (\d+) \|.*\| (yes|no) \|$", table, re.M)
    assert {int(code) for code, restarted in rows if restarted == "yes"} == {ExitCode.FAILURE, ExitCode.IN_USE}
    assert {int(code) for code, restarted in rows if restarted == "no"} == permanent | {ExitCode.OK}


def lay(directory: Path, config: str = MINIMAL, gpu: bool = False) -> list[Path]:
    """Units of one node and of an instance as systemd would find them, with a program that exists on any machine."""
    for instance in ("", "x"):
        place = ServicePaths(instance, units=directory)
        for path, text in plan_service_files(place, "/bin/true", parse_config(config, "x"), gpu=gpu).items():
            path = path.with_name(path.name.replace("@.", "@x."))
            path.parent.mkdir(exist_ok=True)
            path.write_text(re.sub(r"^(ExecStart=\S+).*", r"\1", text, flags=re.M))
    return [path for path in directory.iterdir() if path.is_file()]


def verify(*options: object, env: dict[str, str] | None = None) -> None:
    verified = subprocess.run(["systemd-analyze", *map(str, options)], capture_output=True, text=True, env=env)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, ""), "an unknown key is only a warning"


@pytest.mark.needs("systemd")
def test_systemd_takes_the_units_without_a_word(tmp_path: Path) -> None:
    verify("verify", *lay(tmp_path, MINIMAL + 'kind = "code"\n'))


@pytest.mark.needs("systemd")
def test_systemd_takes_a_users_units_without_a_word(tmp_path: Path) -> None:
    place = ServicePaths(user=True, units=tmp_path)
    files = plan_service_files(place, "/bin/true", parse_config(MINIMAL + 'kind = "code"\n', "x"))
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert not re.search(r"^(DynamicUser|ProtectSystem|CapabilityBoundingSet)=|/etc/|/var/", text, re.M)
    environ = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    verify("--user", "verify", *tmp_path.glob("*.service"), env=environ)


@pytest.mark.needs("systemd")
@pytest.mark.parametrize(
    ("kind", "gpu", "unit", "tenths"),
    [
        ("digits", True, "swarmd.service", 20),
        ("digits", True, "swarmd@x.service", 20),
        ("digits", False, "swarmd.service", 13),
        ("digits", False, "swarmd@x.service", 13),
        ("digits", True, "swarmd-failure.service", 13),
        ("code", False, "swarmd.service", 25),
    ],
)
def test_the_units_are_hardened(tmp_path: Path, kind: str, gpu: bool, unit: str, tenths: int) -> None:
    lay(tmp_path, MINIMAL + f'kind = "{kind}"\n', gpu)
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", str(tmp_path / unit)]
    rated = subprocess.run(argv, capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr


# --- what is written for which node ---


def test_the_drop_in_follows_the_configuration_and_the_machine(tmp_path: Path) -> None:
    place = ServicePaths(dev=tmp_path)

    def drop_in(config: str = MINIMAL, gpu: bool | None = None) -> str:
        return plan_service_files(place, COMMAND, parse_config(config, "x"), gpu)[place.drop_ins[0]]

    assert "PrivateDevices=yes" in drop_in() and "RestrictNamespaces=no" in drop_in(MINIMAL + 'kind = "code"\n')
    device = tmp_path / "kfd"
    device.touch(mode=0o660)
    shutil.chown(device, group="tty")
    assert "SupplementaryGroups=tty" in drop_in() and "PrivateDevices" not in drop_in()
    assert "PrivateDevices=yes" in drop_in(gpu=False)
    device.chmod(0o666)
    assert device_groups(tmp_path) == ()


def test_every_secret_of_a_configuration_can_be_a_credential(tmp_path: Path) -> None:
    text = (ROOT / "configs/reference.toml").read_text()
    keys = "keystore|passphrase|token"
    named = re.sub(rf'^({keys}) = "[^"]*"', r'\1 = "credential:\1"', text, flags=re.M)
    config = parse_config(re.sub(r"^(rpc|urls) = \[[^]]*\]", r'\1 = ["credential:\1"]', named, flags=re.M), "x")
    assert set(credential_names(config)) == {"rpc", "urls", *keys.split("|")}
    place = ServicePaths("a")
    files = plan_service_files(place, COMMAND, config)
    for path in place.drop_ins:
        assert "LoadCredential=rpc:/etc/swarmd/credentials/rpc" in files[path]
    with pytest.raises(UnitError, match="a user's service is passed no credentials"):
        plan_service_files(find_service_paths(user=True, home=tmp_path), COMMAND, config)


@pytest.mark.parametrize("name", ["UPPER", "a_b", "-a", "a" * 25, "../x", "ä", "a b", "%i"])
def test_a_name_that_no_user_can_have_is_refused(name: str) -> None:
    with pytest.raises(UnitError, match="cannot name an instance"):
        find_service_paths(name)


def test_a_configuration_that_holds_a_secret_is_not_shown_to_all(tmp_path: Path) -> None:
    source = tmp_path / "config.toml"
    source.write_text(MINIMAL + '[notify]\nurls = ["jsons://me:hunter2@hooks.example.org:444/T0/B1/canary0Canary"]\n')
    config = load_config(source)
    with pytest.raises(UnitError) as caught:
        config_text(ServicePaths(), source, config)
    assert "notify.urls has more than jsons://" in str(caught.value)
    assert not re.search("canary|hunter|me:", str(caught.value))
    assert config_text(find_service_paths(user=True, home=tmp_path), source, config) == source.read_text()


def test_an_interpreter_that_a_service_cannot_see_is_refused(tmp_path: Path) -> None:
    assert "which is empty for the service" in explain_hidden(tmp_path) and explain_hidden(Path("/usr/bin/env")) == ""
    with pytest.raises(UnitError, match=r"sudo sh install\.sh"):
        find_command(HIDDEN_PYTHON)
    with pytest.raises(UnitError, match="mean something in a unit"):
        find_command("/opt/my swarmd/bin/python")
    assert find_command(HIDDEN_PYTHON, user=True) == f"{HIDDEN_PYTHON} -m swarmd"
    (tmp_path / "pipx_metadata.json").touch()
    with pytest.raises(UnitError, match="pipx installs for you alone"):
        find_command(str(tmp_path / "bin/python"))


def test_what_is_replaced_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "etc/node.toml"
    assert write_file(file, "one", 0o600) == "written" and stat.S_IMODE(file.stat().st_mode) == 0o600
    umask = os.umask(0o077)
    write_file(tmp_path / "open/node.toml", "x")
    os.umask(umask)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "open/node.toml")] == [0o755, 0o644]
    assert write_file(file, "one", 0o600) == "as it should be"
    assert write_file(file, "two").startswith("replaced; the former one is kept as node.toml.")
    assert {path.read_text() for path in file.parent.iterdir()} == {"one", "two"}


def test_outdated_files_are_named(tmp_path: Path) -> None:
    place = ServicePaths("a", units=tmp_path / "system", etc=tmp_path / "etc", dev=tmp_path)
    for path, text in plan_service_files(place, COMMAND, None, gpu=False, programs=True).items():
        write_file(path, text)
    assert outdated_files(place, None, COMMAND) == [], "as chosen when it was installed"
    unit, failure = (place.units / name for name in place.templates)
    assert outdated_files(place, None, "/elsewhere/swarmd") == [unit, failure]
    unit.write_text(unit.read_text().replace("WatchdogSec=60\n", ""))
    (place.drop_ins[0].parent / "90-mine.conf").write_text("[Service]\nNice=5\n")
    assert outdated_files(place, None, COMMAND) == [unit], "drop-ins of others are their own affair"


def test_the_template_stays_for_another_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    units = tmp_path / ".config/systemd/user"

    def service(verb: str, instance: str) -> None:
        done = CliRunner().invoke(app, [verb, "--user", "--no-reload", "--instance", instance])
        assert done.exit_code == 0, done.output

    for verb, instance in (("install", "a"), ("install", "b"), ("uninstall", "a")):
        service(verb, instance)
    left = {path.name for path in units.iterdir()}
    assert {"swarmd@.service", "swarmd-failure@.service", "swarmd.target", "swarmd@b.service.d"} <= left
    assert "swarmd@a.service.d" not in left
    service("uninstall", "b")
    assert list(units.iterdir()) == []


# --- the data ---


@pytest.fixture
def place(tmp_path: Path) -> ServicePaths:
    return ServicePaths(state=tmp_path / "lib")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A node as `join` and a first run by hand leave it; the path of its configuration."""
    mine = tmp_path / "mine"
    for directory in ("events", "run", "checkpoints/0"):
        (mine / directory).mkdir(parents=True)
    (mine / "config.toml").write_text(MINIMAL)
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
    copy_data(transfer)
    return transfer.target.root


def test_all_goes_along_and_the_old_place_is_closed(made: Path, place: ServicePaths) -> None:
    target = take(made, place)
    assert target == place.state / "private/swarmd"
    files = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    assert files == {"identity.key", "events/0.seg", "events/writer.lock", "checkpoints/0/weights"}
    assert (target / "checkpoints/newest").readlink() == Path("0")
    assert [path.name for path in target.parent.iterdir()] == ["swarmd"], "nothing unfinished is left"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (target.parent, target, target / "identity.key")]
    assert modes == [0o700, 0o700, 0o600]
    with pytest.raises(IdentityInUse, match=f"was moved away on .* to {target}"):
        refuse_moved(NodeDirectory(made.parent))
    refuse_moved(NodeDirectory(target))
    again = found(made, place)
    assert again is not None and again.there
    target.rename(place.state / "elsewhere")
    with pytest.raises(IdentityInUse):
        found(made, place)


def test_nothing_is_overwritten(made: Path, place: ServicePaths) -> None:
    other = place.state / "private/swarmd/identity.key"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another")
    with pytest.raises(UnitError, match="--instance NAME"):
        found(made, place)
    assert other.read_bytes() == b"another"
    refuse_moved(NodeDirectory(made.parent))


def test_what_comes_meanwhile_is_not_overwritten_and_nothing_is_closed(made: Path, place: ServicePaths) -> None:
    transfer = found(made, place)
    assert transfer is not None
    other = transfer.target.root / "identity.key"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another")
    with pytest.raises(UnitError, match="cannot be copied"):
        copy_data(transfer)
    assert other.read_bytes() == b"another" and len(list(other.parent.parent.iterdir())) == 1
    refuse_moved(NodeDirectory(made.parent))


def test_a_running_node_is_left_alone(made: Path, place: ServicePaths) -> None:
    lock = acquire_writer_lock(made.parent / "events")
    try:
        with pytest.raises(LogInUse):
            take(made, place)
    finally:
        os.close(lock)
    assert not place.state.exists()


def test_a_users_service_takes_it_too(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    call = ["install", "--user", "--no-reload", "--config", str(made)]
    target = tmp_path / ".local/share/swarmd"
    planned = CliRunner().invoke(app, [*call, "--dry-run"])
    assert f"{target}: would be copied from {made.parent}" in planned.output and "+ExecStart=" in planned.output
    assert not target.exists() and not (tmp_path / ".config").exists()
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0 and f"copied from {made.parent}, which is closed" in done.output, done.output
    assert (target / "identity.key").read_bytes() == b"one"
    again = CliRunner().invoke(app, call)
    assert f"{target}: the node's data is there; {made.parent} stays as it is" in again.output
