"""Nodes as services of a real systemd, with scripted workers: started, watched, restarted, confined, stopped."""

import pytest

from swarmd.core.events import NodeStarted, StageTrained
from swarmd.errors import ExitCode
from swarmd.eventlog.replay import verify_log
from tests.units.nodes import Node, node_on
from tests.units.private_systemd import VENV, PrivateSystemd

CANARY = "canary-4f1d9c3ab27e60"
SWARM = 'role = "coordinator"\n[swarm]\nid = "test"\n'
PERMANENT = {code for name, code in vars(ExitCode).items() if name.isupper() and 64 <= code < 128} - {ExitCode.IN_USE}
RESTARTED = {1, 3, 75, 130, 143}  # docs/OPERATING.md; 3 belongs to commands that are no service
ONCE = ("Type=oneshot", "Restart=no")
ENDS = f"""#!{VENV}/bin/python
import os, signal, socket, sys
endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
endpoint.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "kill" else sys.exit(int(sys.argv[1]))
"""
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
LOOKS = """
import os, pathlib, resource, socket
def tried(what, *args):
    try: what(*args)
    except OSError as error: return type(error).__name__
    return 'done'
home = [path for path in ('/root', '/home') if os.access(path, os.R_OK) and os.listdir(path)]
pathlib.Path('own').write_text('mine')
print('write etc', tried(pathlib.Path('/etc/swarmd/x').write_text, 'x'))
print('homes', home, 'devices', 'vda' in os.listdir('/dev'), 'core', resource.getrlimit(resource.RLIMIT_CORE)[0])
print('packet', tried(socket.socket, socket.AF_PACKET, socket.SOCK_RAW))
print('chown', tried(os.chown, 'own', 1, 1), 'mode', oct(os.stat('own').st_mode & 0o777))
"""


def test_a_node_is_started_watched_restarted_and_stopped(machine: PrivateSystemd) -> None:
    with node_on(machine, "") as node:
        node.install()
        node.fake("WatchdogSec=4", "TimeoutAbortSec=1")
        node.systemctl("enable", "--now")
        assert len(node.events_of(NodeStarted)) == 1, "start returns when the first event is on disk"
        node.until(lambda: ", network up" in node.show("StatusText"))
        for runs, interrupt in enumerate(("restart", "kill -KILL", "kill -STOP"), 2):
            trained = len(node.events_of(StageTrained))
            node.until(lambda trained=trained: len(node.events_of(StageTrained)) >= trained + 2)
            if interrupt == "restart":
                node.systemctl(interrupt)
            else:
                machine.run(*interrupt.split(), node.show("MainPID"))
            node.until(lambda runs=runs: len(node.events_of(NodeStarted)) == runs)
        assert "Watchdog timeout" in node.journal()
        trained = len(node.events_of(StageTrained))
        node.until(lambda: len(node.events_of(StageTrained)) > trained)
        node.systemctl("stop")
        rounds = [event.round for event in node.events_of(StageTrained)]
        assert rounds == list(range(len(rounds))), "a round was trained twice, or skipped"
        verify_log(node.paths.events)


def test_each_exit_code_is_restarted_or_left_alone_as_the_manual_says(machine: PrivateSystemd) -> None:
    machine.put("/opt/ends", ENDS, 0o755)
    ends = ["0", "kill", *(str(code) for code in sorted({*PERMANENT, *RESTARTED}))]
    nodes = {end: Node(machine, f"ends-{end}") for end in ends}
    nodes["0"].install()
    for end, node in nodes.items():
        machine.put(node.config, "")
        machine.put(f"/etc/systemd/system/{node.unit}.d/90.conf", f"[Service]\nExecStart=\nExecStart=/opt/ends {end}\n")
    machine.put("/etc/systemd/system/swarmd@.service.d/10.conf", "[Service]\nRestartSec=200ms\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "--no-block", *(node.unit for node in nodes.values()))
    restarted = {end for end in ends if end != "0" and end not in map(str, PERMANENT)}
    for end in restarted:
        nodes[end].until(lambda end=end: int(nodes[end].show("NRestarts")) >= 1)
    states = {end: (node.show("NRestarts"), node.show("ActiveState")) for end, node in nodes.items()}
    files = "/etc/systemd/system/swarmd@.service.d /etc/systemd/system/swarmd@ends-*"
    machine.run("sh", "-c", f"systemctl stop 'swarmd@ends-*'; rm -r {files}; systemctl reset-failed 'swarmd@ends-*'")
    assert {end for end, (restarts, _) in states.items() if restarts != "0"} == restarted
    assert all(states[str(code)] == ("0", "failed") for code in PERMANENT)
    assert states["0"] == ("0", "inactive")


@pytest.mark.soak
def test_a_crash_loop_ends_and_is_told_by_the_notify_verb(machine: PrivateSystemd) -> None:
    """The failure unit as shipped, with its hardening, runs the real verb; here it hands the message to a program."""
    told = '[notify]\ncommand = ["/usr/bin/logger", "--tag", "canary-told"]\n'
    with node_on(machine, "tells") as node:
        node.install(config=SWARM + told)
        node.execute("/bin/sh -c 'exit 1'", "RestartSec=20ms")
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        node.until(lambda: "Start request repeated too quickly" in node.journal())
        assert node.journal().count("Main process exited") == 10
        journal = ("journalctl", "--identifier=canary-told", "--output=cat", "--no-pager")
        node.until(lambda: "swarmd@tells.service ended: it ended by itself, exit code 1" in machine.run(*journal))
        assert machine.run("systemctl", "show", "swarmd-failure@tells.service", "-P", "Result").strip() == "success"


def test_a_credential_reaches_the_node_and_nothing_else(machine: PrivateSystemd) -> None:
    with node_on(machine, "secret") as node:
        said = node.install(config=SWARM + '[results.hub]\nrepo = "me/"\ntoken = "credential:hub-token"\n')
        assert "next: `install -m 600 FILE /etc/swarmd/credentials/hub-token`" in said
        machine.put("/etc/swarmd/credentials/hub-token", CANARY, 0o600)
        node.execute(f'{VENV}/bin/python -c "{READS}"', *ONCE)
        node.systemctl("start")
        assert "read " in node.journal() and "as True" in node.journal()
        everything = node.journal() + machine.run("systemctl", "show", node.unit) + machine.run("ps", "axeww")
        assert CANARY not in everything
        assert not machine.path("/run/credentials/swarmd@secret.service").exists(), "it is gone with the process"


@pytest.mark.parametrize("way", [pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap")), "namespaces"])
def test_the_sandbox_works_where_the_kind_runs_programs(machine: PrivateSystemd, way: str) -> None:
    kind = SWARM + 'kind = "code"\n'
    with node_on(machine, f"p-{way}") as node:
        node.install(config=kind)
        node.execute(f'{VENV}/bin/python -c "{TRIES.format(way=way)}"', *ONCE)
        node.systemctl("start")
        assert "ok 42" in node.journal()
        node.install("--no-programs", config=kind)
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        assert "programs cannot be confined on this machine" in node.journal()


def test_a_node_has_only_what_its_unit_leaves_it(machine: PrivateSystemd) -> None:
    """Looked at from inside the unit of a CPU node: what a program there can and cannot do."""
    with node_on(machine, "looks") as node:
        node.install()
        machine.put("/opt/looks.py", LOOKS)
        node.execute(f"{VENV}/bin/python /opt/looks.py", *ONCE)
        node.systemctl("start")
        said = node.journal()
        assert "write etc OSError" in said and "homes [] devices False core 0" in said
        assert "packet OSError" in said and "chown PermissionError mode 0o600" in said
