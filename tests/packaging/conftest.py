"""A wheel built from the sdist built from this tree, and an environment that it alone is installed in."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    """A module of packaging/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Built(NamedTuple):
    wheel: Path
    sdist: Path


class Installed(NamedTuple):
    """An environment with swarmd out of the wheel; what swarmd needs comes from the environment of the tests."""

    prefix: Path

    def call(self, *args: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(cwd), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        call = [str(self.prefix / "bin" / "swarmd"), *args]
        return subprocess.run(
            call, cwd=cwd, env=environ | variables, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """From a copy of the tracked files, so that nothing else of the checkout gets in."""
    place = tmp_path_factory.mktemp("built")
    source = place / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    call = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(source)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(next(place.glob("*.whl")), next(place.glob("*.tar.gz")))


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    prefix = tmp_path_factory.mktemp("installed") / "env"
    venv.create(prefix, with_pip=False, symlinks=True)
    call = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install", "--no-deps", "--quiet"]
    done = subprocess.run([*call, str(built.wheel)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = next((prefix / "lib").glob("python3.*/site-packages"))
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(prefix)
