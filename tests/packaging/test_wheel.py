"""The wheel has everything that a node needs, and works where nothing else of the tree is."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.packaging.conftest import ROOT, Built, Installed

SIZE_MAX = 12_000_000  # bytes; the six bundled models are 5.3 MB of it, and what must not get in has hundreds
NEEDED = (
    "swarmd/statecharts/round.yaml",
    "swarmd/configs/reference.toml",
    "swarmd/constraints.txt",
    "swarmd/configs/local/coordinator.toml",
    "swarmd/contracts/SwarmCoordinator-3.json",
    "swarmd/models/embedded/model.safetensors",
    "swarmd/web/static/node.html",
    "swarmd/py.typed",
    "swarmd/configs/monitoring/prometheus.yml",
    "swarmd/configs/systemd/swarmd.service",
    "swarmd/configs/systemd/swarmd@.service",
)


def test_the_wheel_holds_what_a_node_needs_and_nothing_else(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert not [name for name in NEEDED if name not in names]
    for shared in ("doc/swarmd/docs/OPERATING.md", "doc/swarmd/README.md"):
        assert any(name.endswith(f"share/{shared}") for name in names), shared
    assert not [name for name in names if name.startswith(("tests/", "bench/")) or "node_modules" in name]
    assert built.wheel.stat().st_size < SIZE_MAX


def test_the_sdist_holds_the_sources_alone(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "Makefile", "constraints.txt", "contracts/build.mjs", "swarmd/__init__.py"} <= set(names)
    assert not [name for name in names if "node_modules" in name or name.startswith((".venv", ".swarmd", "build/"))]
    assert built.sdist.stat().st_size < SIZE_MAX


def test_it_runs_the_wheels_own_code(installed: Installed, tmp_path: Path) -> None:
    ask = "import swarmd; print(swarmd.__file__)"
    call = [str(installed.prefix / "bin" / "python"), "-c", ask]
    where = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(installed.prefix)) and str(ROOT) not in where


def test_a_swarm_is_made_joined_and_checked_out_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    listen = "/ip4/127.0.0.1/tcp/39331"
    made = installed.call("swarm", "new", "Wheel", "--dir", "first", "--listen", listen, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    joined = installed.call("join", "first/swarm.toml", "--dir", "second", "--name", "bob", cwd=tmp_path)
    assert joined.returncode == 0, joined.stderr
    for node in ("first", "second"):
        checked = installed.call("config", "check", f"{node}/config.toml", cwd=tmp_path)
        assert checked.returncode == 0 and "valid" in checked.stdout, checked.stderr
