"""Faults that are planted in a node or its machine, and what the doctor finds."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from swarmd.config import StorageConfig, TrainingConfig
from swarmd.core.events import LinkUp
from swarmd.core.step import RULES
from swarmd.daemon.directory import MoveNote, write_note
from swarmd.daemon.process import TAG_VARIABLE
from swarmd.dht.identity.backup import write_backup_note
from swarmd.dht.identity.identity import generate_identity
from swarmd.doctor import machine, network, node
from swarmd.doctor.children import ChildFailed, ModelFit, ProbeAnswer, ProbeQuestion, ask_torch
from swarmd.paths import NodeDirectory
from swarmd.units import ServicePaths, find_command, plan_service_files, write_file
from tests.daemon.node import FakeNode
from tests.doctor.making import CPU, GIB, Made
from tests.eventlog.making import flip

OTHER = generate_identity().peer_id
PUBLIC = f"/ip4/8.8.4.4/tcp/38331/p2p/{OTHER}"
HOOK = '[notify]\nurls = ["jsons://hooks.example.org/services/T0SECRETSECRET"]'
TOKEN = '[results.hub]\nrepo = "u/n"\ntoken = "hub.token"'
CHAIN = f'[chain]\nrpc = ["http://127.0.0.1:1"]\nchain_id = 1\ncontract = "0x{"a1" * 20}"\n'
Patch = pytest.MonkeyPatch
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


class Fault(NamedTuple):
    """What is planted, which check looks, what it objects to ("id=severity ..."), and words of its evidence or fix."""

    check: str
    found: str
    plant: Callable[[Made, Patch], object]
    words: tuple[str, ...]


def fault(check: str, found: str, plant: Callable[[Made, Patch], object], *words: str) -> Fault:
    return Fault(check, found, plant, words)


def text(lines: str) -> Callable[[Made, Patch], object]:
    return lambda made, patch: made.write(lines)


def follower(lines: str, *own: str) -> Callable[[Made, Patch], object]:
    """A follower's configuration, on a machine with these addresses."""

    def plant(made: Made, patch: Patch) -> None:
        made.write(f'coordinator = "{OTHER}"\n[dht]\n{lines}', 'role = "follower"\nname = "f"')
        patch.setattr(network, "own_addresses", lambda: [f"/ip4/{each}" for each in own or ("8.8.8.8",)])

    return plant


def wrong(lines: str, *words: str) -> Fault:
    return fault("config", "config.wrong=error", text(lines), *words)


def put(path: Path, content: str = "", mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def all_of(*plants: Callable[[Made, Patch], object]) -> Callable[[Made, Patch], object]:
    return lambda made, patch: [plant(made, patch) for plant in plants]


def log(made: Made, patch: Patch) -> None:
    made.log(*(LinkUp(number, ()) for number in range(1, 9)))


def large_log(made: Made, patch: Patch) -> None:
    made.write(f"[storage]\nlog_bytes_max = {2**20}")
    made.log(*(LinkUp(number, ("x" * 2**18,)) for number in range(6)))


def other_swarm(made: Made, patch: Patch) -> None:
    made.config.write_text(made.config.read_text().replace('id = "test"', 'id = "other"'))


def lose_key(made: Made, patch: Patch) -> None:
    made.key.unlink()
    put(made.data / "checkpoints/0")
    write_backup_note(made.key, OTHER, 1.0, Path("/kept"))


def write_other_log(made: Made, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("swarmd.eventlog.store.RULES", RULES + 1)
    made.log()


def damage_log(made: Made, patch: Patch) -> None:
    log(made, patch)
    flip(next((made.data / "events").glob("*.seg")))


def tear_log(made: Made, patch: Patch) -> None:
    log(made, patch)
    last = sorted((made.data / "events").glob("*.seg"))[-1]
    last.write_bytes(last.read_bytes()[:-3])


def copy_key(made: Made, patch: Patch) -> None:
    put(made.root / "second/swarm.pem").write_bytes(made.key.read_bytes())


def with_driver(made: Made, patch: Patch) -> None:
    driver = put(made.root / "version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54\nGCC\n")
    patch.setattr(machine, "NVIDIA_DRIVER", driver)
    patch.setenv("CUDA_VISIBLE_DEVICES", "")


def without_package(made: Made, patch: Patch) -> None:
    patch.setattr(machine, "requires", lambda name: ["msgspec<0.1", "no-such-package>=2", "x; sys_platform == 'plan9'"])
    patch.setattr(machine, "metadata", lambda name: {"Requires-Python": ">=3.99"})


def move_away(made: Made, patch: Patch) -> None:
    write_note(made.data / "moved.json", MoveNote(1.0, to="/srv/there"))


def put_in(name: str, content: str = "", mode: int = 0o600) -> Callable[[Made, Patch], object]:
    return lambda made, patch: put(made.data / name, content, mode)


def no_key(made: Made, patch: Patch) -> None:
    made.key.unlink()


OPEN_KEY = "identity.mode=error identity.unpinned=note identity.backup=note"
USED_TWICE = "identity.reused=error identity.unpinned=note identity.backup=note"
FIXED = 'listen = ["/ip4/0.0.0.0/tcp/40001"]'
WITHOUT_BUBBLEWRAP = 'kind = "code"\n[swarm.options]\nsandbox = "bubblewrap"'
FAULTS = [
    fault(
        "python",
        "python.version=error python.missing=error python.package=warning",
        without_package,
        *("asks for >=3.99", f"msgspec {metadata.version('msgspec')} is installed"),
        "pip install 'no-such-package>=2'",
    ),
    fault("device", "device.driver=warning", with_driver, "550.54; torch 2 is built without CUDA"),
    fault("device", "device.half=warning", text("[training]\ndtype = 'float16'"), '"float32"'),
    fault(
        "device", "device.accelerate=error", text("[training]\nprocesses = 2\naccelerate = 'none.yaml'"), "none.yaml"
    ),
    fault("sandbox", "sandbox.off=warning", text('kind = "code"\n[swarm.options]\nsandbox = "none-i-accept-the-risk"')),
    fault(
        "sandbox",
        "sandbox.unavailable=error",
        all_of(text(WITHOUT_BUBBLEWRAP), lambda made, patch: patch.setenv("PATH", "")),
        *("not installed", "Install bubblewrap"),
    ),
    fault(
        "clock", "clock.free=note", lambda made, patch: patch.setattr(machine, "is_clock_synchronised", lambda: False)
    ),
    # The configuration.
    fault("config", "config.wrong=error", lambda made, patch: made.config.write_text("nonsense")),
    wrong("[training]\nstepz = 1", "training.stepz", "training.steps"),
    wrong('[training]\nmodel = "./nowhere"', "nowhere", "training.model"),
    wrong('[training]\nmodel = "Qwen/Qwen3--0.6B"', "Qwen/Qwen3--0.6B", "user/model"),
    wrong('kind = "file"\n[swarm.options]\ndata = "q.jsonl"', "the file of questions", "Put a JSONL file"),
    wrong('[web]\nlisten = "0.0.0.0:8800"', "the page of [web]", "token"),
    wrong('[notify]\nurls = ["hooks.example.org/canary"]', "notify.urls"),
    fault("config", "config.writable=warning", lambda made, patch: made.config.chmod(0o666), "chmod go-w"),
    fault(
        "config",
        "config.secret=warning",
        all_of(text(HOOK), lambda made, patch: made.config.chmod(0o644)),
        *("notify.urls", "more than jsons://", "chmod 600"),
    ),
    fault("config", "secrets.missing=error", text(TOKEN), "results.hub.token"),
    fault("config", "secrets.missing=error", text(CHAIN), "chain."),
    fault(
        "config",
        "secrets.mode=error",
        all_of(text(TOKEN), put_in("hub.token", "hf_canarycanarycanary", 0o644)),
        "chmod 600",
    ),
    # The data directory.
    fault("directory", "directory.mode=warning", lambda made, patch: made.data.chmod(0o755), "chmod 700"),
    fault("directory", "directory.new=note", lambda made, patch: shutil.rmtree(made.data)),
    fault("directory", "directory.closed=error", move_away, "to /srv/there", "Run it there"),
    fault("directory", "directory.unfit=error", all_of(log, put_in("layout.json", '{"layout": 99}')), "has layout 99"),
    fault("directory", "directory.unfit=error", put_in(".restoring/part"), "was cut off"),
    fault("directory", "directory.swarm=error", all_of(log, other_swarm)),
    # The identity.
    fault("identity", OPEN_KEY, lambda made, patch: made.key.chmod(0o644), "0644", "chmod 600"),
    fault("identity", "identity.damaged=error", lambda made, patch: flip(made.key)),
    fault("identity", "identity.damaged=error", put_in("identity.key", "\x08\x01short"), "is not an identity"),
    fault("identity", "identity.new=note", no_key, "identity backup"),
    fault("identity", "identity.missing=error", all_of(log, no_key), "swarmd identity restore BACKUP"),
    fault("identity", "identity.missing=error", all_of(text(f'[dht]\npeer = "{OTHER}"'), no_key), "dht.peer pins"),
    fault(
        "identity",
        "identity.missing=error",
        text('[dht]\nidentity = "/nowhere/elsewhere.key"'),
        "swarmd identity new /nowhere/elsewhere.key",
    ),
    fault("identity", "identity.lost=warning", lose_key, "checkpoints", "swarmd identity restore /kept"),
    fault("identity", "identity.other=error", text(f'[dht]\npeer = "{OTHER}"'), OTHER),
    fault("identity", "identity.other=error", lambda made, patch: made.log(peer=OTHER), "is the log of"),
    fault("identity", USED_TWICE, copy_key, "second/swarm.pem is the same key"),
    # The event log.
    fault("log", "log.torn=note", tear_log),
    fault(
        "log",
        "",
        all_of(log, lambda made, patch: patch.setattr(node, "WHOLE_BYTES_MAX", 0)),
        *("9 events", "the last segment of it was read"),
    ),
    fault("log", "log.damaged=error", damage_log, ".seg", "from a copy"),
    fault("log", "log.version=error", write_other_log),
    fault("log", "log.large=warning", large_log),
    fault("daemon", "daemon.down=note", lambda made, patch: None, "swarmd run"),
    # The way to others.
    fault("ports", "ports.changing=warning announce.inside=note", text("")),
    fault(
        "ports",
        "ports.address=error",
        text('[dht]\nlisten = ["/ip4/198.51.100.9/tcp/38331"]\nannounce = ["/ip4/8.8.8.8/tcp/1"]'),
        "dht.announce",
    ),
    fault(
        "ports",
        "announce.nat=warning",
        follower(f'bootstrap = ["{PUBLIC}"]\n{FIXED}', "192.168.1.7"),
        *("forward TCP port 40001 to 192.168.1.7", 'dht.announce = ["/ip4/PUBLIC-ADDRESS/tcp/40001"]'),
        "dht.client_mode",
    ),
    fault("ports", "announce.client=warning", text("[dht]\nclient_mode = true")),
    *(
        fault("ports", found, follower(f'bootstrap = ["{PUBLIC}"]\nannounce = ["{address}"]'))
        for address, found in (
            ("/ip4/127.0.0.1/tcp/1", "announce.loopback=warning"),
            ("/ip4/100.64.1.7/tcp/1", "announce.private=note"),
            ("/ip4/8.8.8.8/tcp/1", ""),
        )
    ),
    # Where no NAT matters: a public address of its own, a client, the same network.
    fault("ports", "", follower(f'bootstrap = ["{PUBLIC}"]', "8.8.8.8")),
    fault("ports", "", follower(f'bootstrap = ["{PUBLIC}"]\nclient_mode = true', "192.168.1.7")),
    fault("ports", "", follower(f'bootstrap = ["{PUBLIC.replace("8.8.4.4", "192.168.1.8")}"]', "192.168.1.7")),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check} {fault.found}")
def test_a_fault_is_found(fault: Fault, tmp_path: Path, monkeypatch: Patch) -> None:
    made = Made(tmp_path / "node")
    monkeypatch.setattr(machine, "is_clock_synchronised", lambda: True)
    monkeypatch.setattr(network, "own_addresses", lambda: ["/ip4/192.168.1.7"])
    fault.plant(made, monkeypatch)
    report = made.report(fault.check)
    found = {f"{each.id}={each.severity}" for each in report.findings if each.severity != "ok"}
    assert found == set(fault.found.split())
    shown = "\n".join(f"{each.evidence}\n{each.fix}" for each in report.findings)
    assert [word for word in fault.words if word not in shown] == []
    assert "canary" not in shown and "SECRETSECRET" not in shown
    assert all(each.fix for each in report.findings if each.severity in ("warning", "error"))


@as_root
def test_files_of_another_user(tmp_path: Path) -> None:
    made = Made(tmp_path / "node")
    os.chown(made.key, 65534, 65534)
    assert "identity.owner" in made.severities("identity")
    os.chown(made.data, 65534, 65534)
    assert "identity.owner" not in made.severities("identity"), "root examines another user's node"
    made.write(HOOK)
    made.config.chmod(0o644)
    assert "chmod" not in made.find("config")["config.secret"].fix, "a service's configuration is root's"


def test_a_closed_copy_is_no_second_node(tmp_path: Path) -> None:
    made = Made(tmp_path / "node")
    left = put(made.root / "left/identity.key")
    left.write_bytes(made.key.read_bytes())
    assert "identity.reused" in made.find("identity")
    write_note(left.parent / "moved.json", MoveNote(1.0, to=str(made.data)))
    assert "identity.reused" not in made.find("identity")


def test_processes_that_carry_the_nodes_mark(tmp_path: Path) -> None:
    made = Made(tmp_path / "node")
    elsewhere = os.environ | {TAG_VARIABLE: f"{made.peer}@/elsewhere"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=elsewhere) as other:
        assert "runs with it in /elsewhere" in made.find("identity")["identity.reused"].evidence
        other.communicate()
    here = os.environ | {TAG_VARIABLE: f"{made.peer}@{made.data.resolve()}"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=here) as left:
        found = made.find("daemon")["leftovers.alive"]
        assert found.evidence == f"processes {left.pid}" and f"kill -9 {left.pid}" in found.fix
        left.communicate()


def test_a_running_node(tmp_path: Path) -> None:
    """Scripted workers; its layers become well, and one is broken."""
    (tmp_path / "node").mkdir()
    fake = FakeNode(tmp_path / "node")
    made = Made.of(fake.config, fake.paths.root)
    fake.start()
    try:
        fake.until(lambda: fake.status().get("network", {}).get("healthy"))
        fake.until(lambda: set(made.find("daemon")) == {"daemon"})
        fake.stop()
        fake.start(network="deaf")
        fake.until(lambda: "daemon.unwell" in made.find("daemon"))
        assert any(each.evidence.startswith("network: ") for each in made.report("daemon").findings)
    finally:
        fake.signal(9)
        fake.wait()


def test_a_unit_that_was_changed(tmp_path: Path, monkeypatch: Patch) -> None:
    made, place = Made(tmp_path / "node"), ServicePaths(units=tmp_path / "units", dev=tmp_path)
    assert made.severities("unit") == {}
    monkeypatch.setattr(node, "list_services_running", lambda config: [place])
    for path, content in plan_service_files(place, find_command(user=True), made.subject().config).items():
        write_file(path, content)
    assert made.severities("unit") == {}
    unit = place.units / "swarmd.service"
    unit.write_text(unit.read_text().replace("Restart=on-failure", "Restart=always"))
    found = made.find("unit")["unit.drift"]
    assert found.severity == "warning" and str(unit) in found.evidence and "swarmd service install" in found.fix


def test_a_taken_port(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for table, key in (
            (f'[dht]\nlisten = ["/ip4/127.0.0.1/tcp/{port}"]', "dht"),
            (f'[web]\nlisten = "127.0.0.1:{port}"', "web"),
        ):
            made.write(table)
            found = made.find("ports")["ports.taken"]
            assert f"{key}.listen: port {port} is taken by process" in found.evidence
            assert f"ss -ltnp sport = :{port}" in found.fix
    assert "ports.taken" not in made.find("ports")


# --- device and memory ---


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    questions = [
        TrainingConfig(device="xpu"),
        TrainingConfig(device="cpu", dtype="float16"),
        TrainingConfig(device="cpu", model="Qwen/Qwen2.5-72B-Instruct"),
    ]
    missing, half, large = asyncio.run(ask_torch([ProbeQuestion(each) for each in questions]))
    assert "xpu" in missing.fault and missing.torch
    assert (half.device, len(half.weighed)) == ("cpu", 1) and "float16" in half.numbers
    assert 0 < half.weighed[0].need < half.free
    assert large.weighed[0].need > 100 * GIB and not large.weighed[0].fits
    with pytest.raises(ChildFailed, match=r"the process that asks torch ended with 1: .*Validation"):
        asyncio.run(ask_torch(["no question"]))  # type: ignore[list-item]


def gpus(count: int) -> ProbeAnswer:
    return msgspec.structs.replace(CPU, device="cuda", names=tuple(f"GPU {index}" for index in range(count)))


def weighing(need: int, fits: bool = True, **rest: Any) -> ProbeAnswer:
    return msgspec.structs.replace(CPU, weighed=(ModelFit("user/large", need, need, fits, "too large"),), **rest)


@pytest.mark.parametrize(
    ("probe", "processes", "found"),
    [
        (CPU, 1, {}),
        (msgspec.structs.replace(CPU, device="", fault="there is no xpu"), 1, {"device.missing": "error"}),
        (gpus(4), 1, {"device.idle": "note"}),
        (gpus(1), 2, {"device.few": "error"}),
        (gpus(2), 2, {}),
        (weighing(9 * GIB, False), 1, {"memory.short": "error"}),
        (weighing(int(7.9 * GIB)), 1, {"memory.tight": "warning"}),
        (msgspec.structs.replace(CPU, unknown="it is nothing that torch can load"), 1, {"memory.model": "error"}),
    ],
)
def test_devices_and_memory(probe: ProbeAnswer, processes: int, found: dict[str, str], tmp_path: Path) -> None:
    made = Made(tmp_path / "node")
    made.write(f"[training]\nprocesses = {processes}")
    assert made.severities("device", probe=probe) == found


# --- the disk ---

STORAGE = StorageConfig()
BOUNDS = STORAGE.log_bytes_max + STORAGE.blob_bytes_max
THERE = 3 * machine.MIB


@pytest.mark.parametrize(
    ("free", "found"),
    [
        (BOUNDS + STORAGE.free_bytes_min - THERE, []),
        (BOUNDS + STORAGE.free_bytes_min - THERE - 2**20, ["disk.budget"]),
        (STORAGE.free_bytes_min, ["disk.budget"]),
        (STORAGE.free_bytes_min - 1, ["disk.full"]),
    ],
)
def test_what_the_node_has_already_is_not_asked_for_again(
    free: int, found: list[str], tmp_path: Path, monkeypatch: Patch
) -> None:
    data = NodeDirectory(tmp_path)
    data.events.mkdir(parents=True)
    put(data.blobs / "there").write_bytes(bytes(THERE))
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free))
    monkeypatch.setattr(machine, "INODES_MIN", 0)
    assert [each.id for each in machine.examine_disk(data, STORAGE, 0) if each.severity != "ok"] == found


# --- the model ---


def test_a_model_that_has_to_come_from_the_hub(tmp_path: Path, monkeypatch: Patch) -> None:
    made = Made(tmp_path / "node")
    assert made.severities("model", offline=False) == {}, "the embedded one"
    made.write('[training]\nmodel = "someone/model-1B"')
    assert made.severities("model") == {"model.absent": "note"}, "offline nobody is asked"
    found = made.find("model", offline=False)["model.nowhere"]
    assert found.severity == "error" and "HF_HUB_OFFLINE" in found.evidence, "tests are offline"
    monkeypatch.setattr(machine, "require_model", lambda training: None)
    assert made.find("model", offline=False)["model"].evidence == "the Hub has someone/model-1B"
    made.write('[training]\nmodel = "auto"\npool = ["someone/model-1B", "coder"]')
    assert [each.evidence for each in made.report("model").findings] == ["someone/model-1B is not on this machine"]
