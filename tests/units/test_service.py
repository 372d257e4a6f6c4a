"""`swarmd service` under a real systemd: installed, several at once, with secrets, with a sandbox, and away again."""

from __future__ import annotations

import stat

import pytest

from swarmd.core.events import NodeStarted, StageTrained
from tests.units.nodes import Node, node_on
from tests.units.private_systemd import VENV, PrivateSystemd

SWARMD = f"{VENV}/bin/swarmd"
EIGHT = [f"n{number}" for number in range(1, 9)]
CANARY = "canary-4f1d9c3ab27e60"
READS = (
    "import hashlib, os, pathlib;"
    "from swarmd.errors import ConfigError; from swarmd.secret_files import *;"
    "secret = locate_secret('credential:hub-token', pathlib.Path('.'), kind := SecretKind('token', ConfigError, 999));"
    "print('read', hashlib.sha256(read_secret(secret, kind)).hexdigest(), 'as', os.getuid() > 0)"
)
TRIES = (
    "from swarmd.sandbox import Sandbox;"
    "verdict = Sandbox(isolation='{way}').run('print(6 * 7)'); print(verdict.status, verdict.stdout)"
)


def test_a_node_is_installed_explained_and_removed(machine: PrivateSystemd) -> None:
    with node_on(machine, "") as node:
        machine.run("sh", "-c", "rm -rf /etc/systemd/system/swarmd*")
        planned = machine.run(SWARMD, "service", "install", "--dry-run")
        assert "would be written (missing)" in planned
        assert not machine.path("/etc/systemd/system/swarmd.service").exists()
        said = node.install("--cpu")
        assert "/etc/systemd/system/swarmd.service: the unit of swarmd.service; written" in said
        assert "10-cpu.conf" in said and "next: `systemctl enable --now swarmd.service`" in said
        assert node.show("LoadState") == "loaded" and node.show("NeedDaemonReload") == "no"
        assert stat.S_IMODE(machine.path("/etc/swarmd/credentials").stat().st_mode) == 0o700
        again = node.install("--cpu")
        assert "; written" not in again and "; as it should be" in again
        shown = machine.run(SWARMD, "service", "show")
        assert "ProtectSystem=strict  [swarmd.service]\n    Everything but the node's own" in shown
        assert "PrivateDevices=yes  [swarmd.service.d/10-cpu.conf]" in shown
        assert "no longer needed" not in shown
        assert "10-cpu.conf: not needed any more; removed" in node.install("--gpu")
        machine.run(SWARMD, "service", "uninstall")
        assert node.show("LoadState") == "not-found"
        left = machine.run("sh", "-c", "ls /etc/systemd/system/ /etc/swarmd").split()
        assert "node.toml" in left and not [name for name in left if name.startswith("swarmd")]


def test_a_changed_unit_is_never_overwritten_unasked(machine: PrivateSystemd) -> None:
    with node_on(machine, "") as node:
        node.install("--cpu")
        unit = machine.path("/etc/systemd/system/swarmd.service")
        unit.write_text(unit.read_text().replace("WatchdogSec=60", "WatchdogSec=90"))
        again = machine.call(SWARMD, "service", "install", "--cpu")
        assert again.returncode == 73 and "changed since swarmd wrote it" in again.stderr
        shown = machine.call(SWARMD, "service", "show")
        assert shown.returncode == 3 and "WatchdogSec is 90, swarmd writes 60" in shown.stderr
        assert "kept: it was changed" in machine.run(SWARMD, "service", "uninstall")
        assert "WatchdogSec=90" in unit.read_text()
        assert "yours is kept as swarmd.service." in machine.run(SWARMD, "service", "install", "--cpu", "--force")
        assert "WatchdogSec=60" in unit.read_text()
        kept = list(unit.parent.glob("swarmd.service.*.kept"))
        assert [("WatchdogSec=90" in path.read_text()) for path in kept] == [True]
        machine.run(SWARMD, "service", "uninstall")
        kept[0].unlink()


def test_two_nodes_side_by_side_do_not_touch_one_another(machine: PrivateSystemd) -> None:
    with node_on(machine, "one") as one, node_on(machine, "two") as two:
        for node in (one, two):
            node.lay(rounds=0)
            machine.put(f"/etc/swarmd/{node.name}.env", f"CUDA_VISIBLE_DEVICES={len(node.name) + ord(node.name[0])}\n")
            node.fake()
            node.systemctl("enable", "--now")
        for node in (one, two):
            node.until(lambda node=node: len(node.events_of(StageTrained)) >= 2)
        users = {machine.path(node.data).stat().st_uid for node in (one, two)}
        assert len(users) == 2 and 0 not in users
        pins = {machine.path(f"/proc/{node.show('MainPID')}/environ").read_bytes() for node in (one, two)}
        assert {b"CUDA_VISIBLE_DEVICES=114" in pin for pin in pins} == {True, False}
        pid = two.show("MainPID")
        one.systemctl("restart")
        one.until(lambda: len(one.events_of(NodeStarted)) == 2)
        assert (two.show("MainPID"), two.show("NRestarts")) == (pid, "0")
        machine.run("systemctl", "stop", "swarmd.target")
        for node in (one, two):
            node.until(lambda node=node: node.show("ActiveState") == "inactive")
        machine.run("systemctl", "start", "swarmd.target")
        assert [node.show("ActiveState") for node in (one, two)] == ["active", "active"]
        machine.run("systemctl", "stop", "swarmd.target")


def test_eight_nodes_one_command_each(machine: PrivateSystemd) -> None:
    nodes = [Node(machine, name) for name in EIGHT]
    nodes[0].lay()
    program = (
        f"{VENV}/bin/python /opt/checkout/tests/daemon/run_fake.py /etc/swarmd/%i.toml /var/lib/swarmd-%i deaf deaf"
    )
    faked = machine.path("/etc/systemd/system/swarmd@.service.d/90.conf")
    machine.put("/etc/systemd/system/swarmd@.service.d/90.conf", f"[Service]\nExecStart=\nExecStart={program}\n")
    for node in nodes:
        node.install("--cpu", "--now")
    assert {node.show("ActiveState") for node in nodes} == {"active"}
    assert {len(node.events_of(NodeStarted)) for node in nodes} == {1}
    assert len({machine.path(node.data).stat().st_ino for node in nodes}) == 8
    for node in nodes[1:-1]:
        node.end()
    machine.run("systemctl", "kill", "--signal=KILL", nodes[0].unit)
    machine.run(SWARMD, "service", "uninstall", "--instance", EIGHT[0])
    assert nodes[-1].show("ActiveState") == "active", "the template is there as long as one node needs it"
    machine.run("systemctl", "kill", "--signal=KILL", nodes[-1].unit)
    machine.run(SWARMD, "service", "uninstall", "--instance", EIGHT[-1])
    assert not machine.path("/etc/systemd/system/swarmd@.service").exists()
    faked.unlink()
    faked.parent.rmdir()
    nodes[0].end()
    nodes[-1].end()


def test_a_credential_reaches_the_node_and_nothing_else(machine: PrivateSystemd) -> None:
    config = 'role = "coordinator"\n[swarm]\nid = "test"\n[results.hub]\nrepo = "me/"\ntoken = "credential:hub-token"\n'
    with node_on(machine, "secret") as node:
        said = node.install("--cpu", config=config)
        assert "30-credentials.conf: passes hub-token to swarmd@secret.service" in said
        assert "next: `install -m 600 FILE /etc/swarmd/credentials/hub-token`" in said
        machine.put("/etc/swarmd/credentials/hub-token", CANARY, 0o600)
        node.execute(f'{VENV}/bin/python -c "{READS}"', "Type=oneshot", "Restart=no")
        node.systemctl("start")
        assert "read " in node.journal() and "as True" in node.journal()
        everything = node.journal() + machine.run("systemctl", "show", node.unit) + machine.run("ps", "axeww")
        assert CANARY not in everything
        assert not machine.path("/run/credentials/swarmd@secret.service").exists(), "it is gone with the process"
        machine.run("rm", "/etc/swarmd/credentials/hub-token")
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        assert "CREDENTIALS" in node.journal()


@pytest.mark.parametrize("way", [pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap")), "namespaces"])
def test_the_programs_drop_in_lets_the_sandbox_work(machine: PrivateSystemd, way: str) -> None:
    kind = 'role = "coordinator"\n[swarm]\nid = "test"\nkind = "code"\n'
    with node_on(machine, f"p-{way}") as node:
        assert "20-programs.conf" in node.install("--cpu", config=kind), "the kind of swarm asks for it"
        once = ("Type=oneshot", "Restart=no")
        node.execute(f'{VENV}/bin/python -c "{TRIES.format(way=way)}"', *once)
        node.systemctl("start")
        assert "ok 42" in node.journal()
        assert "20-programs.conf: not needed any more; removed" in node.install("--cpu", "--no-programs", config=kind)
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        assert "programs cannot be kept in on this machine" in node.journal()


def test_a_node_has_only_what_its_unit_leaves_it(machine: PrivateSystemd) -> None:
    """Looked at from inside the sandbox of a CPU node: what a program there can and cannot do."""
    looks = (
        "import os, pathlib, socket\n"
        "def tried(what, *args):\n"
        "    try: what(*args)\n"
        "    except OSError as error: return type(error).__name__\n"
        "    return 'done'\n"
        "home = [path for path in ('/root', '/home') if os.access(path, os.R_OK) and os.listdir(path)]\n"
        "pathlib.Path('own').write_text('mine')\n"
        "print('write etc', tried(pathlib.Path('/etc/swarmd/x').write_text, 'x'))\n"
        "print('homes', home, 'devices', 'vda' in os.listdir('/dev'), 'core', __import__('resource').getrlimit(4)[0])\n"
        "print('packet', tried(socket.socket, socket.AF_PACKET, socket.SOCK_RAW))\n"
        "print('chown', tried(os.chown, 'own', 1, 1), 'mode', oct(os.stat('own').st_mode & 0o777))\n"
    )
    with node_on(machine, "looks") as node:
        node.lay()
        machine.put("/opt/looks.py", looks)
        node.execute(f"{VENV}/bin/python /opt/looks.py", "Type=oneshot", "Restart=no")
        node.systemctl("start")
        said = node.journal()
        assert "write etc OSError" in said and "homes [] devices False core 0" in said
        assert "packet OSError" in said
        assert "chown PermissionError mode 0o600" in said


def test_the_template_stays_for_an_instance_that_runs(machine: PrivateSystemd) -> None:
    """One that an earlier version installed, which left no sign of it, and that is not enabled."""
    with node_on(machine, "old") as old, node_on(machine, "new") as new:
        for node in (old, new):
            node.install("--gpu", "--no-programs")
        machine.run("rm", "-r", f"/etc/systemd/system/{old.unit}.d")
        old.execute("/bin/sleep 600", "Type=exec")
        old.systemctl("start")
        machine.run(SWARMD, "service", "uninstall", "--instance", "new")
        assert old.show("ActiveState") == "active"
        assert machine.path("/etc/systemd/system/swarmd@.service").exists()
        old.systemctl("stop")
        machine.run(SWARMD, "service", "uninstall", "--instance", "new")
        assert not machine.path("/etc/systemd/system/swarmd@.service").exists()


def test_a_secret_in_the_configuration_is_not_published(machine: PrivateSystemd) -> None:
    held = f'role = "coordinator"\n[swarm]\nid = "test"\n[notify]\nurls = ["jsons://example.org/{CANARY}"]\n'
    machine.put("/run/held.toml", held, 0o600)
    refused = machine.call(SWARMD, "service", "install", "--instance", "held", "-c", "/run/held.toml", "--cpu")
    assert refused.returncode == 73 and "notify.urls has more than jsons://" in refused.stderr
    assert CANARY not in refused.stderr and not machine.path("/etc/swarmd/held.toml").exists()
    assert not machine.path("/etc/systemd/system/swarmd@held.service.d").exists(), "nothing is written"


HEARS = """
import http.server, pathlib
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        pathlib.Path("/run/heard").write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
pathlib.Path("/run/port").write_text(str(server.server_port))
server.serve_forever()
"""


def test_a_failure_is_told_to_an_address_in_a_file(machine: PrivateSystemd) -> None:
    """The file lies in the data directory, and the configuration, as `join` writes it, calls its own place that."""
    config = 'role = "coordinator"\ndata = "."\n[swarm]\nid = "test"\n[notify]\nurls = ["file:service.url"]\n'
    machine.put("/run/hears.py", HEARS)
    machine.run("systemd-run", "--unit=hears", f"{VENV}/bin/python", "/run/hears.py")
    with node_on(machine, "filed") as node:
        node.install("--cpu", config=config)
        node.execute("/bin/sh -c 'exit 69'")
        failure = ("systemctl", "show", "swarmd-failure@filed.service", "-P", "Result")
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        node.until(lambda: machine.run(*failure).strip() == "exit-code")  # there is no such file yet: that shows
        port = node.until(lambda: machine.run("cat", "/run/port", check=False).strip())
        file = f"{node.data}/service.url"
        machine.put(file, f"json://127.0.0.1:{port}/x\n", 0o600)
        machine.run("chown", f"--reference={node.data}/.", file)
        machine.call("systemctl", "start", node.unit)
        heard = node.until(lambda: machine.run("cat", "/run/heard", check=False))
        assert "swarmd@filed.service ended: it ended by itself, exit code 69" in heard
        node.until(lambda: machine.run(*failure).strip() == "success")
    machine.run("systemctl", "stop", "hears")


def test_a_failure_is_told_by_the_notify_verb(machine: PrivateSystemd) -> None:
    """The unit as shipped, with its hardening, runs the real verb; here it hands the message to a program."""
    told = '[notify]\ncommand = ["/usr/bin/logger", "--tag", "canary-told"]\n'
    with node_on(machine, "tells") as node:
        node.install("--cpu", config=f'role = "coordinator"\n[swarm]\nid = "test"\n{told}')
        node.execute("/bin/sh -c 'exit 69'")
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        journal = ("journalctl", "--identifier=canary-told", "--output=cat", "--no-pager")
        node.until(lambda: "swarmd@tells.service ended: it ended by itself, exit code 69" in machine.run(*journal))
        assert machine.run("systemctl", "show", "swarmd-failure@tells.service", "-P", "Result").strip() == "success"
