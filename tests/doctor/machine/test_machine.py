"""The machine: packages, limits, device, memory, disk, proxies, sandbox."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from swarmd.config import TrainingConfig
from swarmd.doctor.finding import Finding
from swarmd.doctor.machine import device, disk, system
from swarmd.doctor.machine.probe import ModelFit, ProbeAnswer, ProbeQuestion, ask_torch
from swarmd.doctor.waiting import ChildFailed, Once, ask_child
from tests.doctor.making import CPU, GIB, Made
from tests.programs import path_of


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "node")


def severities(made: Made, name: str, probe: ProbeAnswer = CPU) -> dict[str, str]:
    return {key: finding.severity for key, finding in made.find(name, probe=probe).items()}


# --- Python and packages ---


def installed(monkeypatch: pytest.MonkeyPatch, *requirements: str, python: str = ">=3.11") -> None:
    """Have the distribution ask for this."""
    monkeypatch.setattr(system, "requires", lambda name: list(requirements))
    monkeypatch.setattr(system, "metadata", lambda name: {"Requires-Python": python})


def test_this_environment_has_what_swarmd_asks_for(made: Made) -> None:
    assert severities(made, "python") == {"python": "ok"}
    assert severities(made, "packages") == {"packages": "ok"}


def test_another_python(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, python=">=3.99")
    found = made.find("python")["python.version"]
    assert found.severity == "error" and "asks for >=3.99" in found.evidence


def test_packages_that_are_missing_or_changed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "msgspec<0.1", "no-such-package>=2", "anyio", "other-system; sys_platform == 'plan9'")
    found = made.find("packages")
    assert set(found) == {"packages.version", "packages.missing"}
    here = metadata.version("msgspec")
    assert f"msgspec {here} is installed, swarmd asks for <0.1" in found["packages.version"].evidence
    assert f"{sys.executable} -m pip install 'no-such-package>=2'" in found["packages.missing"].fix


def test_sources_that_nobody_installed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(system, "requires", missing)
    assert severities(made, "packages") == {"packages.unknown": "note"}


def test_extras_that_the_configuration_needs(made: Made) -> None:
    assert severities(made, "extras") == {"extras": "ok"}
    made.write("[training.vllm]\nmode = 'colocate'")
    found = made.find("extras")["extras.missing"]
    assert found.severity == "error" and "pip install 'vllm" in found.fix


# --- limits ---


def test_few_open_files(made: Made) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        found = made.find("limits")["limits.files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found.severity == "warning" and found.evidence.startswith("256 files") and "LimitNOFILE=" in found.fix


def test_the_limits_here_are_no_more_than_worth_a_note(made: Made) -> None:
    assert set(severities(made, "limits").values()) <= {"ok", "note"}


# --- device and memory, by the real torch ---


QUESTIONS = {
    "missing": TrainingConfig(device="xpu"),
    "half": TrainingConfig(device="cpu", dtype="float16"),
    "large": TrainingConfig(device="cpu", model="Qwen/Qwen2.5-72B-Instruct"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, ProbeAnswer]:
    """Torch is loaded once, in a process of its own."""
    said = asyncio.run(ask_torch([ProbeQuestion(training) for training in QUESTIONS.values()]))
    return dict(zip(QUESTIONS, said, strict=True))


def test_torch_is_asked_about_a_device_that_is_not_there(made: Made, answers: dict[str, ProbeAnswer]) -> None:
    assert answers["missing"].fault and answers["missing"].torch
    found = made.find("device", probe=answers["missing"])["device.missing"]
    assert found.severity == "error" and "xpu" in found.evidence and '"auto"' in found.fix


def test_torch_is_asked_about_numbers_and_memory(made: Made, answers: dict[str, ProbeAnswer]) -> None:
    answer = answers["half"]
    made.write("[training]\ndevice = 'cpu'\ndtype = 'float16'")
    assert (answer.device, answer.weights, len(answer.weighed)) == ("cpu", "float16", 1)
    assert 0 < answer.weighed[0].need < answer.free
    found = made.find("device", probe=answer)
    assert found["device.half"].severity == "warning" and '"float32"' in found["device.half"].fix
    assert severities(made, "memory", answer) == {"memory": "ok"}


def test_a_model_of_the_hub_is_weighed_without_the_network(answers: dict[str, ProbeAnswer]) -> None:
    answer = answers["large"]
    assert answer.weighed[0].need > 100 * GIB and not answer.weighed[0].fits
    assert answer.absent == "Qwen/Qwen2.5-72B-Instruct"


def test_a_torch_that_crashes(made: Made) -> None:
    subject = made.subject()

    async def crash() -> ProbeAnswer:
        return msgspec.json.decode(await ask_child("swarmd.doctor.no_such_module", b""), type=ProbeAnswer)

    subject.probe = Once(crash)
    (found,) = asyncio.run(device.check_device(subject))
    assert found.id == "device.torch" and "no_such_module" in found.evidence


def large(need: int, fits: bool, **rest: object) -> ProbeAnswer:
    return msgspec.structs.replace(CPU, weighed=(ModelFit("user/large", need, need, fits, "too large"),), **rest)


def test_a_model_that_does_not_fit(made: Made) -> None:
    found = made.find("memory", probe=large(9 * GIB, False))["memory.short"]
    assert found.evidence.startswith("user/large takes about 9.0 GiB on cpu, 8.0 GiB are free")
    assert "swarmd model fit" in found.fix
    assert severities(made, "memory", large(int(7.9 * GIB), True)) == {"memory.tight": "warning"}


def test_a_model_that_is_not_here(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = large(GIB, True, absent="user/large")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert severities(made, "memory", absent) == {"memory.download": "note", "memory": "ok"}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert severities(made, "memory", absent)["memory.offline"] == "error"


def gpus(count: int, processes: int) -> tuple[ProbeAnswer, str]:
    names = tuple(f"GPU {index}" for index in range(count))
    return msgspec.structs.replace(CPU, device="cuda", names=names), f"[training]\nprocesses = {processes}"


@pytest.mark.parametrize(
    ("count", "processes", "expected"),
    [(4, 1, {"device.idle": "note"}), (1, 2, {"device.few": "error"}), (2, 2, {"device": "ok"})],
)
def test_several_gpus(made: Made, count: int, processes: int, expected: dict[str, str]) -> None:
    probe, text = gpus(count, processes)
    made.write(text)
    assert severities(made, "device", probe) == expected


def test_how_several_gpus_share_a_model(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerate's file says: it can be used, or the trainer would not start; DeepSpeed is an extra."""
    probe, text = gpus(2, 2)
    for name, expected in {"fsdp": {"device": "ok"}, "zero3": {"device": "ok"}}.items():
        made.write(f"{text}\naccelerate = '{name}'")
        assert severities(made, "device", probe) == expected
    monkeypatch.setattr(system, "version", raise_missing)
    assert "pip install 'deepspeed" in made.find("extras")["extras.missing"].fix
    made.write(f"{text}\naccelerate = '{tmp_path / 'none.yaml'}'")
    found = made.find("device", probe=probe)["device.accelerate"]
    assert found.severity == "error" and "none.yaml" in found.evidence and "fsdp" in found.fix
    assert severities(made, "extras") == {"extras": "ok"}


def raise_missing(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_a_driver_that_torch_does_not_use(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54\nGCC\n")
    monkeypatch.setattr(device, "NVIDIA_DRIVER", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = made.find("device")["device.driver"]
    assert "550.54; torch 2 is built without CUDA; CUDA_VISIBLE_DEVICES is ''" in found.evidence


# --- the disk, with real file systems in a namespace of their own ---

MOUNTS = {
    "small": "size=1m",
    "tight": "size=1g",
    "few inodes": "size=8g,nr_inodes=100",
    "read-only": "size=8g,ro",
}
EXAMINE_ALL = """
import asyncio, sys
from pathlib import Path
import msgspec
from swarmd.doctor.machine import disk
from tests.doctor.making import Made
places = [Made.of(Path(place) / "config.toml", Path(place) / "data") for place in sys.argv[1:]]
found = [asyncio.run(disk.check_disk(made.subject())) for made in places]
print(msgspec.json.encode(found).decode())
"""


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Finding]]:
    """What the doctor says about data directories that lie on file systems like these."""
    nodes = {name: Made(tmp_path_factory.mktemp("disk")) for name in MOUNTS}
    mounts = [f"mount -t tmpfs -o {options} none {nodes[name].data}" for name, options in MOUNTS.items()]
    inner = " && ".join([*mounts, 'exec "$@"'])
    unshare = str(path_of("unshare"))
    argv = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", inner, "sh", sys.executable, "-c"]
    places = [str(made.root) for made in nodes.values()]
    ended = subprocess.run([*argv, EXAMINE_ALL, *places], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, f"user namespaces are needed (kernel.unprivileged_userns_clone): {ended.stderr}"
    listed = msgspec.json.decode(ended.stdout, type=list[list[Finding]])
    return {name: {each.id: each for each in found} for name, found in zip(nodes, listed, strict=True)}


def test_a_disk_of_one_mebibyte(disks: dict[str, dict[str, Finding]]) -> None:
    found = disks["small"]["disk.full"]
    assert found.severity == "error" and found.evidence.startswith("1.0 MiB are free")
    assert disks["small"]["disk.volatile"].severity == "note"


def test_a_disk_that_the_budget_does_not_fit_into(disks: dict[str, dict[str, Finding]]) -> None:
    found = disks["tight"]["disk.budget"]
    assert found.severity == "warning"
    assert "2.00 GiB of log, 0.50 GiB of rollouts and 0.19 GiB of checkpoints" in found.evidence


def test_a_disk_without_inodes(disks: dict[str, dict[str, Finding]]) -> None:
    found = disks["few inodes"]["disk.inodes"]
    assert found.severity == "warning" and "df -i" in found.fix


def test_a_disk_that_is_read_only(disks: dict[str, dict[str, Finding]]) -> None:
    assert disks["read-only"]["disk.read-only"].severity == "error"


def test_the_disk_here(made: Made) -> None:
    made.write("[storage]\nlog_bytes_max = 1\nblob_bytes_max = 1\nfree_bytes_min = 0")
    assert "ok" in severities(made, "disk").values()
    assert "ok" in severities(made, "programs").values()


def test_what_is_on_disk_already_counts(made: Made) -> None:
    storage = made.subject().whole[0].storage
    blob = made.data / "blobs" / "x"
    blob.parent.mkdir()
    blob.write_bytes(b"x" * 4096)
    assert disk._used(made.subject().whole[1]) == 4096 < storage.blob_bytes_max


# --- proxies ---


def test_proxies(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert severities(made, "proxies") == {"proxies": "ok"}
    monkeypatch.setenv("HTTPS_PROXY", "http://user:canarypassword@proxy.example.org:3128")
    found = made.find("proxies")["proxies.set"]
    assert "https: proxy.example.org:3128" in found.evidence and "canarypassword" not in repr(found)
    made.write('[training.vllm]\nmode = "server"\nurl = "http://127.0.0.1:8000"')
    assert "NO_PROXY=localhost" in made.find("proxies")["proxies.loopback"].fix
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert "proxies.loopback" not in made.find("proxies")


# --- the sandbox ---


def test_a_kind_that_runs_programs(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    assert severities(made, "sandbox") == {"sandbox": "ok"}
    made.write('kind = "code"')
    assert severities(made, "sandbox") == {"sandbox": "ok"}
    made.write('kind = "code"\n[swarm.options]\nsandbox = "none-i-accept-the-risk"')
    assert severities(made, "sandbox") == {"sandbox.off": "warning"}
    monkeypatch.setenv("PATH", "")
    made.write('kind = "code"\n[swarm.options]\nsandbox = "bubblewrap"')
    found = made.find("sandbox")["sandbox.unavailable"]
    assert found.severity == "error" and "not installed" in found.evidence and "Install bubblewrap" in found.fix


def test_a_child_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(ChildFailed, match=r"swarmd\.doctor\.machine\.probe ended with 1: .*Decode"):
        asyncio.run(ask_child("swarmd.doctor.machine.probe", b""))
