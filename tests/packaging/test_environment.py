"""packaging/environment.py makes environments, tells of it, and does nothing twice."""

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


def test_a_full_disk_is_told_before_anything_is_fetched(checkout: Checkout, environment: ModuleType) -> None:
    lock = checkout.root / "constraints.txt"
    lock.write_text(LOCK.replace(", 3 MB", ", 900000000 MB"))
    with pytest.raises(environment.Failed, match=r"the disk has .* GB left: make room"):
        checkout.prepare()
    assert checkout.versions() == {}


# --- which torch ---


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


def test_the_scripts_need_the_standard_library_alone() -> None:
    for script in SCRIPTS:
        tree = ast.parse((ROOT / "packaging" / script).read_text(encoding="utf-8"))
        froms = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
        assert {str(name) for name in [*froms, *names]} <= sys.stdlib_module_names | {"telling", "pip_config"}
