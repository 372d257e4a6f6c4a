"""The units as files: they agree with the exit codes, the defaults and the manual, and systemd takes them."""

from __future__ import annotations

import errno
import grp
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from swarmd.config import WorkersConfig, load_config, parse_config
from swarmd.daemon.service import STOP_SLACK_S
from swarmd.doctor.node.service import places_of
from swarmd.errors import ExitCode, UnitError
from swarmd.units import ServicePaths, drift, files, find_place
from swarmd.units import plan as planning
from swarmd.units.files import Planned, mark, put, refuse_changed, state_of, unmark
from swarmd.units.plan import credential_names, device_groups, needs_devices, place_with, plan, plan_config
from swarmd.units.program import find_command, why_hidden
from swarmd.units.settings import ABSENT, HARDENING
from swarmd.units.writing import Form, failure_unit, node_unit, render, shipped

ROOT = Path(__file__).parents[2]
UNITS = ("swarmd.service", "swarmd@.service")
CODES = {name: code for name, code in vars(ExitCode).items() if name.isupper()}
HIDDEN_PYTHON = "/home" + "/me/.venv/bin/python"
COMMAND = "/opt/swarmd/bin/swarmd"
MINIMAL = 'role = "coordinator"\n[swarm]\nid = "x"\n'


def value_of(text: str, key: str) -> str:
    return re.findall(rf"^{key}=(.*)$", text, re.M)[-1]


def test_the_shipped_files_are_what_the_table_says() -> None:
    fix = "run `swarmd service show --write .` in the repository's root"
    for name, text in shipped().items():
        assert (ROOT / name).read_text() == text, f"{name}: {fix}"


@pytest.mark.parametrize("unit", UNITS)
def test_permanent_codes_are_not_restarted(unit: str) -> None:
    text = (ROOT / unit).read_text()
    permanent = {code for code in CODES.values() if 64 <= code < 128} - {ExitCode.IN_USE}
    assert {int(code) for code in value_of(text, "RestartPreventExitStatus").split()} == permanent
    assert value_of(text, "Restart") == "on-failure"


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_waits_longer_than_the_daemon_takes_to_stop(unit: str) -> None:
    text = (ROOT / unit).read_text()
    assert float(value_of(text, "TimeoutStopSec")) > 2 * WorkersConfig().stop_s + STOP_SLACK_S
    assert value_of(text, "KillMode") == "mixed"
    assert planning.STOP_SLACK_S == STOP_SLACK_S


def test_the_manual_explains_every_code() -> None:
    manual = (ROOT / "docs" / "OPERATING.md").read_text()
    table = manual[manual.index("## Exit codes") : manual.index("## Is it well?")]
    explained = {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for code in cell.split(",")}
    assert explained >= set(CODES.values()) | {143}
    rows = re.findall(r"^\| (\d+) \|.*\| (yes|no) \|$", table, re.M)
    permanent = {int(code) for code in value_of((ROOT / UNITS[0]).read_text(), "RestartPreventExitStatus").split()}
    assert {int(code) for code, restarted in rows if restarted == "yes"} == {ExitCode.FAILURE, ExitCode.IN_USE}
    assert {int(code) for code, restarted in rows if restarted == "no"} == permanent | {ExitCode.OK}


def test_the_manual_has_every_setting_that_hardens() -> None:
    manual = (ROOT / "docs" / "SYSTEMD.md").read_text()
    keys = {setting.key for setting in HARDENING} | {key for key, _ in ABSENT}
    assert {key for key in keys if f"`{key}" not in manual} == set()


@pytest.mark.parametrize(("unit", "failure"), list(zip(UNITS, ("swarmd-failure", "swarmd-failure@"), strict=True)))
def test_a_failure_is_told_with_the_nodes_own_data_and_a_failed_message_shows(unit: str, failure: str) -> None:
    told = (ROOT / f"configs/systemd/{failure}.service").read_text()
    run = value_of((ROOT / unit).read_text(), "ExecStart").split()
    data = run[run.index("--data") :]
    assert (
        f"notify --config {run[run.index('--config') + 1]} {' '.join(data)} --unit {unit.replace('@', '@%i')}" in told
    )
    assert "SuccessExitStatus" not in told


def lay(directory: Path, *drop_ins: str) -> list[Path]:
    """The shipped units as systemd would find them, with programs that exist on any machine."""
    places = []
    for name, text in shipped().items():
        if name.endswith(".conf"):
            continue
        unit = directory / Path(name).name.replace("@.", "@x.")
        unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M))
        places.append(unit)
    for name in drop_ins:
        for unit in UNITS:
            folder = directory / f"{unit.replace('@.', '@x.')}.d"
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / "configs/systemd" / name, folder)
    return places


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("drop_in", ["cpu.conf", "programs.conf"])
def test_systemd_takes_the_units_without_a_word(tmp_path: Path, drop_in: str) -> None:
    units = [str(path) for path in lay(tmp_path, drop_in)]
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, ""), "an unknown key is only a warning"


@pytest.mark.needs("systemd")
def test_systemd_takes_a_users_units_without_a_word(tmp_path: Path) -> None:
    for name, unit in (("swarmd", node_unit), ("swarmd-failure", failure_unit)):
        text = render(unit(Form("/bin/true", user=True)))
        (tmp_path / f"{name}.service").write_text(text)
        assert not re.search(r"^(DynamicUser|ProtectSystem|CapabilityBoundingSet)=", text, re.M)
        argv = ["systemd-analyze", "--user", "verify", str(tmp_path / f"{name}.service")]
        environ = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
        verified = subprocess.run(argv, capture_output=True, text=True, env=environ)
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.needs("systemd")
@pytest.mark.parametrize(
    ("drop_ins", "unit", "tenths"),
    [
        ((), "swarmd.service", 20),
        ((), "swarmd@x.service", 20),
        (("cpu.conf",), "swarmd.service", 13),
        (("cpu.conf",), "swarmd@x.service", 13),
        ((), "swarmd-failure.service", 13),
        (("cpu.conf", "programs.conf"), "swarmd.service", 25),
    ],
)
def test_the_units_are_hardened(tmp_path: Path, drop_ins: tuple[str, ...], unit: str, tenths: int) -> None:
    lay(tmp_path, *drop_ins)
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", str(tmp_path / unit)]
    rated = subprocess.run(argv, capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr


# --- what is written for whom ---


def names_of(files: list[Planned]) -> set[str]:
    return {planned.path.name for planned in files}


def test_drop_ins_follow_the_configuration(tmp_path: Path) -> None:
    plain = parse_config(MINIMAL, "x")
    place = ServicePaths(dev=tmp_path)
    units = {"swarmd.service", "swarmd-failure.service", "swarmd.target"}
    assert names_of(plan(place, COMMAND, plain)) == units | {"10-cpu.conf"}
    (tmp_path / "nvidiactl").touch()
    assert names_of(plan(place, COMMAND, plain)) >= units, "an accelerator keeps its devices"
    assert "10-cpu.conf" not in names_of(plan(place, COMMAND, plain))
    assert "10-cpu.conf" in names_of(plan(place, COMMAND, plain, gpu=False))
    slow = parse_config(MINIMAL + "[workers]\nstop_s = 60\n", "x")
    stop = next(planned for planned in plan(place, COMMAND, slow) if planned.path.name == "40-stop.conf")
    assert value_of(stop.text, "TimeoutStopSec") == "145"
    code = parse_config(MINIMAL + 'kind = "code"\n', "x")
    assert "20-programs.conf" in names_of(plan(place, COMMAND, code))


def test_devices_of_a_group_let_the_node_into_it(tmp_path: Path) -> None:
    render_node = tmp_path / "dri/renderD128"
    render_node.parent.mkdir()
    render_node.touch(mode=0o660)
    shutil.chown(render_node, group="tty")
    assert needs_devices(None, tmp_path) and device_groups(tmp_path) == ("tty",)
    render_node.chmod(0o666)
    assert device_groups(tmp_path) == ()


def test_a_group_that_has_no_name_here_is_named_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was given the host's devices."""
    device = tmp_path / "kfd"
    device.touch(mode=0o660)
    shutil.chown(device, group="tty")

    def nobody(number: int) -> None:
        raise KeyError(f"getgrgid(): gid not found: {number}")

    monkeypatch.setattr(grp, "getgrgid", nobody)
    assert device_groups(tmp_path) == (str(device.stat().st_gid),)


def test_every_secret_of_a_configuration_can_be_a_credential() -> None:
    reference = load_config(ROOT / "configs/reference.toml")
    text = (ROOT / "configs/reference.toml").read_text()
    slots = re.findall(r"^(keystore|passphrase|token) =", text, re.M)
    assert len(slots) == 6 and credential_names(reference) == ()
    named = re.sub(r'^(keystore|passphrase|token) = "[^"]*"', r'\1 = "credential:\1"', text, flags=re.M)
    config = parse_config(re.sub(r"^(rpc|urls) = \[[^]]*\]", r'\1 = ["credential:\1"]', named, flags=re.M), "x")
    expected = {"rpc", "keystore", "passphrase", "token", "urls"}
    assert set(credential_names(config)) == expected
    files = plan(ServicePaths("a"), COMMAND, config)
    passed = [planned for planned in files if planned.path.name == "30-credentials.conf"]
    assert len(passed) == 2, "the unit that tells of failures has them too"
    assert "LoadCredential=rpc:/etc/swarmd/credentials/rpc" in passed[0].text


def test_a_users_service_gets_no_credentials(tmp_path: Path) -> None:
    config = parse_config(MINIMAL + '[web]\ntoken = "credential:web"\n', "x")
    with pytest.raises(UnitError, match="a user's service is passed no credentials"):
        plan(find_place(user=True, home=tmp_path), COMMAND, config)


@pytest.mark.parametrize("name", ["UPPER", "a_b", "-a", "a-", "a" * 25, "a/b", "../x", "ä", "a b", "%i"])
def test_a_name_that_no_user_can_have_is_refused(name: str) -> None:
    with pytest.raises(UnitError, match="no name for an instance"):
        find_place(name)


def test_who_has_no_home_has_no_service_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UnitError, match="this user has none"):
        find_place(user=True)
    assert place_with(tmp_path / "swarmd") is None
    assert list(places_of(tmp_path / "node.toml")) == []


def test_a_configuration_that_holds_a_secret_is_not_shown_to_all(tmp_path: Path) -> None:
    source, home = tmp_path / "config.toml", tmp_path / "home"
    source.write_text(MINIMAL + '[notify]\nurls = ["jsons://me:hunter2@hooks.example.org:444/T0/B1/canary0Canary"]\n')
    held = load_config(source)
    with pytest.raises(UnitError) as caught:
        plan_config(ServicePaths(etc=tmp_path / "etc"), source, held)
    said = str(caught.value)
    assert "notify.urls has more than jsons://" in said and "file:NAME" in said
    assert not re.search("canary|hunter|me:", said)
    own = plan_config(find_place(user=True, home=home), source, held)
    put(own)
    assert own.path.stat().st_mode & 0o777 == 0o600
    own.path.chmod(0o644)
    assert put(own) == "as it should be" and own.path.stat().st_mode & 0o777 == 0o600
    source.write_text(MINIMAL + '[notify]\nurls = ["jsons://hooks.example.org/public"]\n')
    assert plan_config(ServicePaths(etc=tmp_path / "etc"), source, load_config(source)).mode == 0o644


def test_an_interpreter_that_a_service_cannot_see_is_refused(tmp_path: Path) -> None:
    assert "which is empty for the service" in why_hidden(Path(HIDDEN_PYTHON))
    assert "which is empty for the service" in why_hidden(tmp_path)
    assert why_hidden(Path("/usr/bin/env")) == ""
    with pytest.raises(UnitError, match=r"sudo sh install\.sh"):
        find_command(HIDDEN_PYTHON)
    with pytest.raises(UnitError, match="mean something in a unit"):
        find_command("/opt/my swarmd/bin/python")
    assert find_command(HIDDEN_PYTHON, user=True) == f"{HIDDEN_PYTHON} -m swarmd"


@pytest.mark.parametrize(("tool", "receipt"), [("pipx", "pipx_metadata.json"), ("uv", "uv-receipt.toml")])
def test_of_an_environment_of_pipx_or_uv_the_fix_names_them(tool: str, receipt: str, tmp_path: Path) -> None:
    (tmp_path / receipt).touch()
    with pytest.raises(UnitError) as caught:
        find_command(str(tmp_path / "bin" / "python"))
    assert caught.value.fix.startswith(f"{tool} installs for you alone. Install swarmd outside home directories")
    assert "`sudo /opt/swarmd/bin/swarmd service install`" in caught.value.fix
    assert "`swarmd service install --user`" in caught.value.fix


# --- files in places that others write to ---


def test_a_file_is_ours_until_somebody_changes_it(tmp_path: Path) -> None:
    planned = Planned(tmp_path / "a.d/unit", "one=1\n", "an example")
    assert state_of(planned) == "missing" and put(planned) == "written" and state_of(planned) == "same"
    newer = Planned(planned.path, "one=2\n", "an example")
    assert state_of(newer) == "ours" and put(newer) == "replaced"
    planned.path.write_text(planned.path.read_text() + "two=2\n")
    assert state_of(newer) == "changed"
    with pytest.raises(UnitError, match="--force"):
        refuse_changed([newer])
    assert unmark(mark("x")) == ("x", True) and unmark("x") == ("x", False)


def test_a_changed_file_stays_until_what_replaces_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned(tmp_path / "node.toml", "new\n", "an example", marked=False)
    planned.path.write_text("an operator's\n")

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UnitError, match="No space left"):
        patch.setattr(files, "sync_file", fail)
        put(planned)
    assert planned.path.read_text() == "an operator's\n"
    assert put(planned).startswith("replaced; yours is kept as node.toml.")
    assert planned.path.read_text() == "new\n"
    assert {path.read_text() for path in tmp_path.glob("*.kept")} == {"an operator's\n"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_drift_names_each_difference(tmp_path: Path) -> None:
    place = ServicePaths("a", units=tmp_path / "system", etc=tmp_path / "etc", dev=tmp_path)
    place.etc.mkdir()
    place.config.write_text(MINIMAL)
    assert drift(place, COMMAND) == [], "nothing is installed"
    for planned in plan(place, COMMAND, None, gpu=False):
        put(planned)
    assert drift(place, COMMAND) == []
    assert [found.setting for found in drift(place, "/elsewhere/swarmd")] == ["ExecStart", "ExecStart"]
    unit = place.units / "swarmd@.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=60\n", "").replace("RestartSec=5", "RestartSec=9"))
    place.config.write_text(MINIMAL + "[workers]\nstop_s = 60\n")
    found = {(difference.setting, difference.installed, difference.expected) for difference in drift(place, COMMAND)}
    assert {("WatchdogSec", "", "60"), ("RestartSec", "9", "5")} < found and len(found) == 3
    assert all("swarmd service install --instance a" in difference.fix for difference in drift(place, COMMAND))
    (place.drop_in("90-mine.conf")).parent.mkdir(exist_ok=True)
    place.drop_in("90-mine.conf").write_text("[Service]\nNice=5\n")
    assert len(drift(place, COMMAND)) == 3, "drop-ins of others are their own affair"
