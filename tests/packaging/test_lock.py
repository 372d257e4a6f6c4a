"""The lock: who writes it, who ships it, and that nobody is sent to an index that does not have swarmd."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.packaging.conftest import ROOT
from tests.test_tidy import TEXT, name_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Written so that this file passes its own test.
FROM_AN_INDEX = re.compile(r"(?:pip3?|pipx|uv tool) " r"install (?:-\S+ )*['\"]?swarmd(?![-\w])")


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "packaging" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(title: str) -> list[str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").partition(f"\n# {title}: ")[2].partition("\n# ")[0]
    return [line for line in text.splitlines()[1:] if line]


class Package:
    """Stands for an installed distribution."""

    files = None

    def __init__(self, name: str, version: str, *requires: str) -> None:
        self.metadata, self.version, self.requires = {"Name": name}, version, list(requires)


@pytest.fixture
def installed() -> dict[str, Any]:
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


def test_each_package_is_in_the_first_section_that_leads_to_it(lock: ModuleType, installed: dict[str, Any]) -> None:
    project = {
        "project": {"dependencies": ["node.needs>=1", "with-extra[more]"], "optional-dependencies": {"dev": ["tests"]}},
        "dependency-groups": {"bootstrap": ["builder"]},
    }
    parts = lock.sections(project, installed)
    assert parts == {
        "running": {"node-needs", "deep", "with-extra", "extra-s-own"},
        "bootstrap": {"builder"},
        "testing": {"tests"},
    }
    text = lock.write_constraints(parts, installed)
    assert "\n# running: 4 packages, 0 MB\ndeep==2.0\nextra-s-own==4.0\nNode.Needs==1.0\nwith-extra==3.0\n" in text
    assert "by-hand" not in text
    with pytest.raises(LookupError, match="absent is not installed here"):
        lock.follow(["absent"], installed)


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
