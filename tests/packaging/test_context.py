"""What an image is built from: .dockerignore lets the sources of the wheel through, and nothing of a node."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

from tests.packaging.conftest import ROOT, Built
from tests.test_tidy import TRACKED, name_of

CONTAINERFILE = (ROOT / "packaging" / "Containerfile").read_text(encoding="utf-8")
STAYS_OUT = (
    ".venv/bin/python",
    ".swarmd/node-1/identity.key",
    ".git/config",
    "first/identity.key",
    "packaging/first/identity.key",
    "configs/mine/identity.key",
    "configs/mine/account.json",
    "configs/mine/account.pass",
    "configs/mine/events/00000000000000000000.seg",
    "docs/swarm.pem",
    "swarmd/.swarmd/node-1/identity.key",
    "swarmd/__pycache__/config.cpython-311.pyc",
    "contracts/node_modules/solc/soljson.js",
    "dist/swarmd-0.1.0-py3-none-any.whl",
    ".mypy_cache/3.11/x.json",
)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What reaches the builder of a checkout in which nodes have run."""
    checkout, sent = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("sent")
    for path in TRACKED:
        (checkout / name_of(path)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, checkout / name_of(path))
    for name in STAYS_OUT:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("secret")
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for name in exclude_paths(str(checkout), patterns):
        if (checkout / name).is_file():
            (sent / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / name, sent / name)
    return sent


def test_nothing_of_a_node_or_an_environment_goes_along(context: Path) -> None:
    sent = {name_of_sent(path, context) for path in context.rglob("*") if path.is_file()}
    assert not sent & set(STAYS_OUT)
    assert sent <= {name_of(path) for path in TRACKED} | {".dockerignore"}
    assert not [name for name in sent if name.startswith(("tests/", "bench/", ".ci/"))]


def name_of_sent(path: Path, context: Path) -> str:
    return str(path.relative_to(context))


def test_the_container_file_copies_what_is_there(context: Path) -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", CONTAINERFILE, re.M)
    assert copied and all((context / name).exists() for name in copied)


def test_the_wheel_of_an_image_is_the_wheel(context: Path, built: Built, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(context)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(zipfile.ZipFile(built.wheel).namelist())
