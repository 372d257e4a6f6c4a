"""packaging/environment.py makes environments, tells of it, and does nothing twice."""

from __future__ import annotations

import ast
import importlib
import io
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.wheelhouse import only, write_wheel

SCRIPTS = ("environment.py", "telling.py", "pip_config.py")
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1.0"
"""
BACKEND = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.packaging.wheelhouse import write_wheel

def build_editable(directory, config_settings=None, metadata_directory=None):
    return write_wheel(Path(directory), "small", "1.0", {{"small.pth": str(Path.cwd())}}).name

build_wheel = build_editable
"""
LOCK = """# running: 2 packages, 3 MB
tiny==1.0
torch==2.0

# bootstrap: 1 packages, 1 MB
uv==1.0

# testing: 1 packages, 2 MB
Big.One==1.0
"""


@pytest.fixture(scope="module", autouse=True)
def beside() -> Any:
    """The scripts import each other as neighbours."""
    sys.path.insert(0, str(ROOT / "packaging"))
    yield
    sys.path.remove(str(ROOT / "packaging"))


@pytest.fixture
def environment() -> ModuleType:
    return importlib.import_module("environment")


@pytest.fixture
def telling() -> ModuleType:
    return importlib.import_module("telling")


class Checkout:
    """A small project with its lock, and wheels of what it needs."""

    def __init__(self, place: Path, environment: ModuleType) -> None:
        self.root, self.wheels, self.environment = place / "checkout", place / "wheels", environment
        self.root.mkdir()
        (self.root / "pyproject.toml").write_text(PROJECT)
        (self.root / "backend.py").write_text(BACKEND.format(tests=str(ROOT)))
        (self.root / "constraints.txt").write_text(LOCK)
        for name, version in (
            ("tiny", "1.0"),
            ("tiny", "2.0"),
            ("big_one", "1.0"),
            ("torch", "2.0"),
            ("torch", "2.0+cpu"),
        ):
            write_wheel(self.wheels, name, version, {f"{name}.py": "x = 1\n"})

    def offer_uv(self) -> None:
        """A wheel of uv that calls the one of this environment."""
        real = Path(sysconfig.get_path("scripts")) / "uv"
        assert real.exists(), "`make setup` installs it"
        script = f'#!/bin/sh\nexec {real} "$@"\n'
        write_wheel(self.wheels, "uv", "1.0", {"uv-1.0.data/scripts/uv": script})

    def prepare(self, purpose: str = "run", torch: str = "cpu") -> str:
        out = io.StringIO()
        self.environment.Setup(purpose, torch, self.root, out).prepare()
        return out.getvalue()

    def versions(self) -> dict[str, str]:
        found: dict[str, str] = self.environment.Environment(self.root / ".venv").versions()
        return {name: version for name, version in found.items() if name not in ("pip", "setuptools")}


@pytest.fixture
def fresh(tmp_path: Path, environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    made = Checkout(tmp_path, environment)
    for name, value in only(made.wheels).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("INSTALLER", raising=False)
    return made


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: it takes seconds, and a copy does as well."""
    place = tmp_path_factory.mktemp("empty") / ".venv"
    venv.create(place, with_pip=True, symlinks=True)
    return place


@pytest.fixture
def checkout(fresh: Checkout, empty_environment: Path) -> Checkout:
    """One whose environment is there, and empty."""
    shutil.copytree(empty_environment, fresh.root / ".venv", symlinks=True)
    fresh.offer_uv()
    return fresh


@pytest.mark.timeout(900)
def test_an_environment_grows_with_its_purpose_and_its_lock(fresh: Checkout) -> None:
    said = fresh.prepare().splitlines()
    assert said[0] == "setting up .venv with what a node needs: 3 packages to install, about 0.0 GB on the disk"
    assert said[1] == "  torch's CPU build: asked for by TORCH=cpu"
    assert "  installing without uv, by pip alone: that takes some minutes" in said, "there is no wheel of uv"
    assert said[-1].startswith(".venv is ready: ")
    assert fresh.versions() == {"tiny": "1.0", "torch": "2.0+cpu", "small": "1.0"}
    assert fresh.prepare() == "", "nothing to do, nothing to say"

    lock = fresh.root / "constraints.txt"
    lock.write_text(LOCK.replace("tiny==1.0", "tiny==2.0"))
    fresh.offer_uv()
    grown = fresh.prepare("test")
    assert "with what a node and its tests need" in grown and "without uv" not in grown
    assert fresh.versions() == {"tiny": "2.0", "torch": "2.0+cpu", "small": "1.0", "uv": "1.0", "big-one": "1.0"}
    assert (fresh.root / ".venv" / "missing.txt").read_text() == "tiny==2.0\nbig-one==1.0\n", "the differences alone"
    assert fresh.prepare("run") == "", "what tests need holds what a node needs"


def test_what_was_interrupted_is_installed_again(checkout: Checkout) -> None:
    checkout.prepare()
    (record,) = (checkout.root / ".venv").rglob("tiny-1.0.dist-info/RECORD")
    record.unlink()
    (checkout.root / ".venv" / ".ready-run").unlink()
    assert "tiny" not in checkout.versions()
    checkout.prepare()
    assert checkout.versions()["tiny"] == "1.0" and record.exists()


@pytest.mark.soak
def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    python = checkout.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(checkout.root / "gone")
    left = checkout.root / ".venv" / "lib" / "python3.9" / "site-packages" / "tiny-1.0.dist-info"
    left.mkdir(parents=True)
    (left / "RECORD").touch()
    checkout.prepare()
    assert checkout.versions()["tiny"] == "1.0" and not left.exists()


@pytest.mark.soak
def test_an_environment_of_a_python_that_was_replaced_by_the_next_is_made_anew(checkout: Checkout) -> None:
    """The link leads to the system's Python, whatever version that is by now; only the old one finds what is there."""
    checkout.prepare()
    (library,) = (checkout.root / ".venv" / "lib").glob("python3*")
    library.rename(library.with_name("python3.9"))
    checkout.prepare()
    assert (library / "site-packages" / "tiny.py").exists() and not library.with_name("python3.9").exists()


def test_a_full_disk_is_told_before_anything_is_fetched(checkout: Checkout, environment: ModuleType) -> None:
    lock = checkout.root / "constraints.txt"
    lock.write_text(LOCK.replace(", 3 MB", ", 900000000 MB"))
    with pytest.raises(environment.Failed, match=r"the disk has .* GB left: make room"):
        checkout.prepare()
    assert checkout.versions() == {}


def test_an_installer_that_there_is_not_is_named_before_anything_is_made(
    checkout: Checkout, environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTALLER", "poetry")
    with pytest.raises(environment.Failed, match="INSTALLER is 'poetry'"):
        checkout.prepare()
    assert checkout.versions() == {}


def test_a_package_that_cannot_be_had_ends_with_its_fix(checkout: Checkout, environment: ModuleType) -> None:
    next(checkout.wheels.glob("tiny-1.0*")).unlink()
    with pytest.raises(environment.Failed) as caught:
        checkout.prepare()
    *said, last = str(caught.value).splitlines()
    assert last.startswith("the packages could not be installed: a locked version is on none of the indexes asked")
    assert 1 < len(said) <= 21 and any("tiny==1.0" in line for line in said)
    assert not (checkout.root / ".venv" / ".ready-run").exists()


def test_torch_comes_in_the_other_build_where_there_is_none(checkout: Checkout, environment: ModuleType) -> None:
    next(checkout.wheels.glob("torch-2.0+cpu*")).unlink()
    said = checkout.prepare()
    assert f"is not where pip is set to look: asking {environment.CPU_INDEX}" in said
    assert "taking the build for CUDA, 4 GB more" in said and "set PIP_FIND_LINKS" in said
    assert checkout.versions()["torch"] == "2.0"


@pytest.mark.soak
def test_torch_is_changed_for_the_build_that_is_asked_for(checkout: Checkout) -> None:
    checkout.prepare(torch="cpu")
    checkout.prepare(torch="")
    assert checkout.versions()["torch"] == "2.0+cpu", "nobody asked for the other"
    next(checkout.wheels.glob("torch-2.0+cpu*")).unlink()
    checkout.prepare(torch="default")
    assert checkout.versions()["torch"] == "2.0"


# --- which torch ---


@pytest.mark.parametrize(
    ("device", "kind"),
    [("dev/nvidiactl", "NVIDIA"), ("proc/driver/nvidia/version", "NVIDIA"), ("dev/kfd", "AMD"), ("dev/null", "")],
)
def test_an_accelerator_is_one_that_the_kernel_knows(
    device: str, kind: str, tmp_path: Path, environment: ModuleType
) -> None:
    (tmp_path / device).parent.mkdir(parents=True)
    (tmp_path / device).touch()
    assert environment.find_accelerator(tmp_path) == kind


@pytest.mark.parametrize(
    ("asked", "platform", "accelerator", "build", "why"),
    [
        ("", "linux", "", "cpu", "no accelerator was found"),
        ("", "linux", "NVIDIA", "default", "there is an NVIDIA device"),
        ("", "linux", "AMD", "default", "ROCm"),
        ("cpu", "linux", "NVIDIA", "cpu", "TORCH=cpu"),
        ("default", "linux", "", "default", "TORCH=default"),
        ("cpu", "darwin", "", "default", "the only one"),
    ],
)
def test_torchs_build(
    asked: str, platform: str, accelerator: str, build: str, why: str, environment: ModuleType
) -> None:
    chosen = environment.choose_torch(asked, platform, accelerator)
    assert chosen.build == build and why in chosen.why


# --- what is told ---


def test_uv_looks_where_pip_is_set_to_look(environment: ModuleType) -> None:
    said = (
        ":env:.find-links='/wheels /more'\nglobal.find-links='/other'\nglobal.cert='/ca.pem'\n"
        "global.extra-index-url='https://one.example https://two.example'\nglobal.index-url='https://main.example'\n"
    )
    assert environment.uv_settings(said) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "https://main.example",
        "UV_INDEX": "https://one.example https://two.example",
        "SSL_CERT_FILE": "/ca.pem",
    }


def test_uv_asks_no_index_where_pip_is_set_so(environment: ModuleType) -> None:
    assert environment.uv_options("global.no-index='0'\n:env:.no-index='1'\n") == ["--no-index"]
    assert environment.uv_options("global.cert='/ca.pem'\n") == []


@pytest.mark.parametrize(
    ("said", "done", "told"),
    [
        ("Collecting a==1 (from x)\nProcessing /wheels/b-2.whl (from x)\n", 0, "found 2 of 9 packages, now b-2.whl"),
        (
            "Downloading a (2MiB)\nDownloading b (3MiB)\n Downloaded a\n",
            0,
            "fetched 1 of 2 large packages, now b (3MiB)",
        ),
        ("Resolved 9 packages\n", 0, "9 packages to go"),
        ("Installing collected packages: a\n", 4, "installed 4 of 9 packages, .venv holds 12 MB"),
    ],
)
def test_where_an_installer_is(said: str, done: int, told: str, telling: ModuleType) -> None:
    assert telling.describe(said, done, 9, 12.4) == told


class Clock:
    """Stands for the module time."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_comes_every_three_seconds(telling: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(telling, "time", clock)
    screen = telling.Screen(out := io.StringIO())
    for _ in range(100):
        clock.now += 0.1
        screen.tick(lambda: "at work")
    assert out.getvalue() == "  at work, 3 s\n  at work, 6 s\n  at work, 9 s\n"


def test_on_a_terminal_it_is_one_line(telling: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(telling, "time", clock)
    screen = telling.Screen(out := Terminal())
    for _ in range(2):
        clock.now += 1.0
        screen.tick(lambda: "at work")
    screen.say("done")
    line = "  at work, 1 s"
    assert out.getvalue() == f"{line}\r{' ' * len(line)}\r  at work, 2 s\r{' ' * len(line)}\rdone\n"


def test_of_a_failure_the_last_lines_are_told_without_noise(telling: ModuleType) -> None:
    noise = "WARNING: Location 'x' is ignored: it is neither a file nor a directory.\n"
    said = "".join(f"line {number}\n{noise}" for number in range(50)) + "OSError: No space left on device\n"
    told = telling.explain(said)
    assert "is ignored" not in told and "line 31\n" in told and "line 30\n" not in told
    assert told.endswith("make room on the disk, then call make again")


# --- the Python that calls it ---


def test_an_old_python_comes_as_far_as_being_refused(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for script in SCRIPTS:
        ast.parse((ROOT / "packaging" / script).read_text(encoding="utf-8"), feature_version=(3, 8))
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    monkeypatch.setattr(sys, "argv", ["environment.py", "run"])
    assert environment.main() == 1
    assert "swarmd needs Python 3.11 or newer" in capsys.readouterr().err


def test_a_checkout_that_cannot_be_written_is_one_line(
    fresh: Checkout, environment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fresh.root / ".venv").touch()
    setup = environment.Setup
    monkeypatch.setattr(environment, "Setup", lambda purpose, torch: setup(purpose, torch, fresh.root))
    monkeypatch.setattr(sys, "argv", ["environment.py", "run"])
    assert environment.main() == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{fresh.root / '.venv'}") and told.count("\n") == 1


def test_the_scripts_need_the_standard_library_alone() -> None:
    for script in SCRIPTS:
        tree = ast.parse((ROOT / "packaging" / script).read_text(encoding="utf-8"))
        froms = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
        assert {str(name) for name in [*froms, *names]} <= sys.stdlib_module_names | {"telling", "pip_config"}
