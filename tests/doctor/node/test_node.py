"""A node's files, its log and its daemon: each is broken for real, and found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.core.events import LinkUp, NodeStopped
from swarmd.core.step import RULES
from swarmd.daemon.notes import Moved, write_note
from swarmd.daemon.process import TAG_VARIABLE
from swarmd.dht.identity.backup import note_backup
from swarmd.dht.identity.identity import create_identity, generate_identity
from swarmd.doctor.node import service
from swarmd.units import ServicePaths, find_command, plan, write_file
from tests.daemon.node import FakeNode
from tests.doctor.making import Made

OTHER = generate_identity().peer_id


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "node")


def severities(made: Made, name: str) -> dict[str, str]:
    return {key: finding.severity for key, finding in made.find(name).items()}


# --- the configuration ---


def test_a_valid_configuration(made: Made) -> None:
    assert severities(made, "config") == {"config": "ok"}


@pytest.mark.parametrize(
    ("text", "evidence", "fix"),
    [
        ("[training]\nstepz = 1", "training.stepz", "training.steps"),
        ("[training]\nsteps = 'many'", "training.steps", ""),
        ('kind = "digit"', "digit", "digits"),
        ('[dht]\nlisten = ["here"]', "dht.listen", "/ip4/"),
        ('[training]\nmodel = "./nowhere"', "nowhere", "training.model"),
        ('[training]\nmodel = "embeded"', "embeded", "embedded"),
        ('[training]\nmodel = "Qwen/Qwen3--0.6B"', "Qwen/Qwen3--0.6B", "user/model"),
        ("stages = 3", "swarm.stages is 3", "stages = 1"),
        ('kind = "file"\n[swarm.options]\ndata = "q.jsonl"', "the file of questions", "put the file there"),
    ],
)
def test_a_wrong_configuration(made: Made, text: str, evidence: str, fix: str) -> None:
    made.write(text)
    found = made.find("config")["config.wrong"]
    assert found.severity == "error" and evidence in found.evidence and fix in found.fix


def test_a_wrong_file_leaves_the_machine_to_be_examined(made: Made) -> None:
    made.config.write_text("nonsense")
    report = made.report("config", "identity", "python")
    assert {finding.id for finding in report.findings} == {"config.wrong", "python"}
    assert [(each.check, each.reason) for each in report.skipped] == [("identity", "the configuration cannot be used")]


def test_who_may_change_the_configuration(made: Made) -> None:
    made.config.chmod(0o666)
    assert severities(made, "config") == {"config.writable": "warning"}
    assert f"chmod go-w {made.config}" in made.find("config")["config.writable"].fix


def test_a_key_in_a_url(made: Made) -> None:
    made.write('[notify]\nurls = ["jsons://hooks.example.org/services/T0SECRETSECRET"]')
    assert severities(made, "config") == {"config.plain": "note", "config": "ok"}
    made.config.chmod(0o644)
    found = made.find("config")["config.secret"]
    assert (
        "notify.urls" in found.evidence
        and "jsons://" in found.evidence
        and "T0SECRETSECRET" not in repr(made.report("config"))
    )
    assert f"chmod 600 {made.config}" in found.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_services_configuration_is_not_to_be_closed(made: Made) -> None:
    """It is root's, and the node's user must read it."""
    made.write('[notify]\nurls = ["jsons://hooks.example.org/services/T0SECRETSECRET"]')
    made.config.chmod(0o644)
    os.chown(made.data, 65534, 65534)
    assert "chmod" not in made.find("config")["config.secret"].fix


def test_a_page_open_to_others(made: Made) -> None:
    made.write('[web]\nlisten = "0.0.0.0:8800"')
    found = made.find("config")["config.web"]
    assert found.severity == "error" and "ssh -L 8800" in found.fix
    made.write('[web]\nlisten = "0.0.0.0:8800"\ntoken = "web.token"')
    assert severities(made, "config") == {"config": "ok"}


def test_messages_that_nobody_would_get(made: Made) -> None:
    made.write('[notify]\nurls = ["hooks.example.org/canary"]')
    found = made.find("config")["config.wrong"]
    assert found.severity == "error" and "notify.urls" in found.evidence and "canary" not in repr(found)


# --- secrets and the data directory ---


def test_files_with_secrets(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write('[results.hub]\nrepo = "u/n"\ntoken = "hub.token"\n[web]\ntoken = "credential:page"')
    assert severities(made, "secrets") == {"secrets.credential": "note", "secrets.missing": "error"}
    token = made.data / "hub.token"
    token.write_text("hf_canarycanarycanary")
    token.chmod(0o644)
    found = made.find("secrets")["secrets.mode"]
    assert f"chmod 600 {token}" in found.fix and "canary" not in repr(found)
    token.chmod(0o600)
    assert severities(made, "secrets") == {"secrets.credential": "note"}


def test_a_secret_that_is_not_used_is_not_missed(made: Made) -> None:
    """Nor the identity, which the first start makes: an empty file in its place would end it."""
    made.key.unlink()
    assert severities(made, "secrets") == {"secrets": "ok"}
    chain = f'[chain]\nrpc = ["http://127.0.0.1:1"]\nchain_id = 1\ncontract = "0x{"a1" * 20}"\n'
    made.write(f'{chain}sender = "none"')
    assert severities(made, "secrets") == {"secrets": "ok"}
    made.write(f'{chain}sender = "proxy"\n[chain.proxy]\norg = "o"')
    assert severities(made, "secrets") == {"secrets": "ok"}
    made.write(chain)
    findings = made.report("secrets").findings
    assert [each.id for each in findings] == ["secrets.missing"] * 2
    assert {each.evidence.partition(" ")[0] for each in findings} == {"chain.passphrase", "chain.keystore"}


def test_a_data_directory_that_others_look_into(made: Made) -> None:
    assert severities(made, "directory") == {"directory": "ok"}
    made.data.chmod(0o755)
    assert severities(made, "directory") == {"directory.mode": "warning"}
    shutil.rmtree(made.data)
    assert severities(made, "directory") == {"directory.new": "note"}


# --- the identity ---


def cared_for(made: Made) -> None:
    """Pin it and back it up to another disk, so that nothing is left to advise."""
    made.write(f'[dht]\npeer = "{made.peer}"')


def test_an_identity_that_is_well(made: Made) -> None:
    assert severities(made, "identity") == {
        "identity": "ok",
        "identity.unpinned": "note",
        "identity.backup": "note",
    }
    assert made.peer in made.find("identity")["identity.unpinned"].fix


def test_a_backup_is_remembered(made: Made, tmp_path: Path) -> None:
    cared_for(made)
    words = tmp_path / "words"
    words.write_text("correct horse battery\n")
    words.chmod(0o600)
    out = tmp_path / "backup"
    assert run_command(["identity", "backup", str(made.key), str(out), "--passphrase-file", str(words)]) == 0
    assert severities(made, "identity") == {"identity": "ok", "identity.backup-same-disk": "note"}
    out.rename(tmp_path / "moved")  # as to another machine
    assert severities(made, "identity") == {"identity": "ok"}


def test_a_key_that_others_may_read(made: Made) -> None:
    made.key.chmod(0o644)
    found = made.find("identity")["identity.mode"]
    assert found.severity == "error" and "0644" in found.evidence and found.fix == f"Run `chmod 600 {made.key}`"


def test_a_key_that_others_may_replace(made: Made) -> None:
    made.data.chmod(0o777)
    assert made.find("identity")["identity.exposed"].fix == f"Run `chmod go-w {made.data}`"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user(made: Made) -> None:
    os.chown(made.key, 65534, 65534)
    found = made.find("identity")["identity.owner"]
    assert "belongs to user 65534" in found.evidence and f"chown {made.data.stat().st_uid}" in found.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_examines_another_users_node(made: Made) -> None:
    for path in (made.data, made.key):
        os.chown(path, 65534, 65534)
    assert severities(made, "identity")["identity"] == "ok"


@pytest.mark.parametrize(
    ("spoil", "evidence"),
    [
        (lambda made: made.key.write_bytes(b"\x08\x01\x12\x40short"), "is no identity"),
        (lambda made: made.key.write_bytes(made.key.read_bytes()[:-1] + b"\x00"), "is damaged"),
        (lambda made: (made.key.rename(made.data / "there"), made.key.symlink_to("there")), "not a regular file"),
    ],
    ids=["short", "halves that do not match", "link"],
)
def test_a_damaged_key(made: Made, spoil: Callable[[Made], object], evidence: str) -> None:
    spoil(made)
    assert evidence in made.find("identity")["identity.damaged"].evidence


def test_a_missing_key(made: Made) -> None:
    made.key.unlink()
    assert severities(made, "identity") == {"identity.new": "note"}
    made.log()
    found = made.find("identity")["identity.missing"]
    assert found.severity == "error" and f"swarmd identity restore BACKUP {made.key}" in found.fix
    shutil.rmtree(made.data / "events")
    cared_for(made)
    assert "dht.peer pins" in made.find("identity")["identity.missing"].evidence


def test_a_key_outside_the_data_directory(made: Made, tmp_path: Path) -> None:
    made.write(f'[dht]\nidentity = "{tmp_path}/elsewhere.key"')
    fix = made.find("identity")["identity.missing"].fix
    restored, made_new = (fix.index(f"swarmd identity {verb} ") for verb in ("restore", "new"))
    assert restored < made_new and fix.endswith(f"`swarmd identity new {tmp_path}/elsewhere.key`")


def test_a_key_that_was_lost_with_its_log(made: Made, tmp_path: Path) -> None:
    made.key.unlink()
    (made.data / "checkpoints").mkdir()
    found = made.find("identity")["identity.lost"]
    assert found.severity == "warning" and "checkpoints" in found.evidence
    assert found.fix == f"`swarmd identity restore BACKUP {made.key}`"
    note_backup(made.key, made.peer, 1.0, tmp_path / "kept")
    assert made.find("identity")["identity.lost"].fix == f"`swarmd identity restore {tmp_path / 'kept'} {made.key}`"


def test_the_key_of_another_peer(made: Made) -> None:
    made.write(f'[dht]\npeer = "{OTHER}"')
    assert OTHER in made.find("identity")["identity.other"].evidence
    made.write("")
    made.log(peer=OTHER)
    assert "is the log of" in made.find("identity")["identity.other"].evidence


def test_one_key_in_two_data_directories(made: Made, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    create_identity(second / "identity.key")
    assert "identity.reused" not in made.find("identity")
    shutil.copy(made.key, second / "swarm.pem")
    found = made.find("identity")["identity.reused"]
    assert f"{second}/swarm.pem is the same key" in found.evidence


def test_a_closed_copy_is_no_second_node(made: Made, tmp_path: Path) -> None:
    """What a move, or `service install`, leaves behind: no node starts there, and the key is the moved node's own."""
    left = tmp_path / "left"
    left.mkdir()
    shutil.copy(made.key, left / "identity.key")
    assert "identity.reused" in made.find("identity")
    write_note(left / "moved.json", Moved(1.0, to=str(made.data)))
    assert "identity.reused" not in made.find("identity")


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("layout.json", '{"layout": 99}', "has layout 99"),
        ("layout.json", '{"lay', "cannot be read"),
        (".restoring/part", "", "was cut off"),
    ],
    ids=["newer", "torn", "restore"],
)
def test_a_directory_in_which_no_start_succeeds(made: Made, file: str, text: str, told: str) -> None:
    made.log()
    assert severities(made, "directory") == {"directory": "ok"}
    (made.data / file).parent.mkdir(exist_ok=True)
    (made.data / file).write_text(text)
    found = made.find("directory")["directory.unfit"]
    assert found.severity == "error" and told in found.evidence and found.fix


def test_what_mends_it_can_be_pasted_though_a_path_has_blanks(tmp_path: Path) -> None:
    made = Made(tmp_path / "my node")
    made.key.chmod(0o644)
    made.config.chmod(0o666)
    assert made.find("identity")["identity.mode"].fix == f"Run `chmod 600 '{made.key}'`"
    assert made.find("config")["config.writable"].fix == f"Run `chmod go-w '{made.config}'`"
    made.key.unlink()
    assert f"`swarmd identity backup '{made.key}' OUT`" in made.find("identity")["identity.new"].fix


def test_a_directory_that_is_closed(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.data, tmp_path / "there")
    write_note(made.data / "moved.json", Moved(1.0, to=str(tmp_path / "there")))
    found = made.find("directory")["directory.closed"]
    assert found.severity == "error" and f"to {tmp_path / 'there'}" in found.evidence and "Run it there" in found.fix
    assert "identity.reused" not in made.find("identity"), "its fix, another identity, would harm the node"


def test_directories_of_others_are_passed_over(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/var/lib/private is root's alone, and most who examine a node are not."""
    closed, is_file = tmp_path / "closed", Path.is_file
    closed.mkdir()

    def refuse(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    assert severities(made, "identity")["identity"] == "ok"


def test_one_key_in_two_running_nodes(made: Made, tmp_path: Path) -> None:
    tag = f"{made.peer}@{tmp_path / 'other'}"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=os.environ | {TAG_VARIABLE: tag}) as other:
        assert f"runs with it in {tmp_path / 'other'}" in made.find("identity")["identity.reused"].evidence
        other.communicate()


# --- the log ---


def test_a_log_that_is_sound(made: Made) -> None:
    assert severities(made, "log") == {"log": "ok"}
    made.log(LinkUp(1, ("/ip4/127.0.0.1/tcp/1",)), NodeStopped("done", 0))
    found = made.find("log")
    assert set(found) == {"log"} and "3 events" in found["log"].evidence


def segment(made: Made) -> Path:
    return next((made.data / "events").glob("*.seg"))


def test_a_torn_tail_is_nothing_to_worry_about(made: Made) -> None:
    made.log()
    whole = segment(made).read_bytes()
    made.log(LinkUp(1, ()))
    last = sorted((made.data / "events").glob("*.seg"))[-1]
    last.write_bytes(last.read_bytes()[:-3])
    found = made.find("log")
    assert set(found) == {"log", "log.torn"} and found["log.torn"].severity == "note" and whole


def test_a_damaged_log(made: Made) -> None:
    made.log(*(LinkUp(number, ()) for number in range(1, 9)))
    path = segment(made)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    found = made.find("log")["log.damaged"]
    assert found.severity == "error" and path.name in found.evidence and "from a copy" in found.fix


def test_a_log_of_a_newer_version(made: Made) -> None:
    made.log(rules=RULES + 1)
    assert severities(made, "log") == {"log.newer": "error"}


def test_a_log_in_which_two_nodes_wrote(made: Made) -> None:
    made.log()
    other = Made(made.root.parent / "other")
    other.log(LinkUp(1, ()), LinkUp(2, ()))
    foreign = segment(other)
    shutil.copy(foreign, made.data / "events" / f"{1:020d}.seg")
    assert set(made.find("log")) & {"log.foreign", "log.damaged"}


def test_a_log_over_its_budget(made: Made) -> None:
    made.log(*(LinkUp(number, ()) for number in range(1, 9)))
    made.write("[storage]\nlog_bytes_max = 100")
    assert severities(made, "log") == {"log.large": "warning"}


# --- the daemon ---


def test_a_node_that_is_down_and_left_something_behind(made: Made) -> None:
    assert severities(made, "daemon") == {"daemon.down": "note"}
    assert severities(made, "leftovers") == {"leftovers": "ok"}
    environment = os.environ | {TAG_VARIABLE: f"{made.peer}@{made.data.resolve()}"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment) as left:
        found = made.find("leftovers")["leftovers.alive"]
        assert found.evidence == f"processes {left.pid}" and f"kill -9 {left.pid}" in found.fix
        left.communicate()


def test_a_running_node(tmp_path: Path) -> None:
    """Scripted workers; its layers become well, and one is broken."""
    (tmp_path / "node").mkdir()
    node = FakeNode(tmp_path / "node")
    made = Made.of(node.config, node.paths.root)
    node.start()
    try:
        node.until(lambda: node.status().get("network", {}).get("healthy"))
        node.until(lambda: set(made.find("daemon")) == {"daemon"})
        assert severities(made, "leftovers") == {"leftovers": "ok"}
        assert severities(made, "memory") == {"memory": "ok"}
        node.stop()
        assert severities(made, "daemon") == {"daemon.down": "note"}
        node.start(network="deaf")
        node.until(lambda: "daemon.unwell" in made.find("daemon"))
        assert any(each.evidence.startswith("network: ") for each in made.report("daemon").findings)
    finally:
        node.signal(9)
        node.wait()


def test_a_daemon_that_does_not_answer(made: Made) -> None:
    place = made.data / "run"
    place.mkdir()
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('up', flush=True)\n"
        "c, _ = s.accept(); c.recv(99); c.sendall(b'[]\\n'); c.close()"
    )
    argv = [sys.executable, "-c", program, str(place / "control.sock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as mute:
        assert mute.stdout is not None and mute.stdout.readline() == "up\n"
        found = made.find("daemon")["daemon.mute"]
    assert found.severity == "error" and "not understood" in found.evidence


# --- the service ---


def test_a_unit_that_was_changed(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert severities(made, "unit") == {"unit": "ok"}
    place = ServicePaths(units=tmp_path / "units", dev=tmp_path)
    monkeypatch.setattr(service, "places_of", lambda config: [place])
    for path, text in plan(place, find_command(user=True), made.subject().config).items():
        write_file(path, text)
    assert severities(made, "unit") == {"unit": "ok"}
    unit = place.units / "swarmd.service"
    unit.write_text(unit.read_text().replace("Restart=on-failure", "Restart=always"))
    found = made.find("unit")["unit.drift"]
    assert found.severity == "warning" and str(unit) in found.evidence and "swarmd service install" in found.fix
