"""`swarmd swarm list`: every kind with a line, plug-ins and broken ones too."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.swarms.registry import BUILT_IN
from tests.cli.owning import Shell

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def install(name: str, point: str) -> None:
        metadata = tmp_path / "site" / f"{name}-3.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3\n")
        (metadata / "entry_points.txt").write_text(f"[swarmd.swarms]\n{point}\n")

    return install


def test_every_kind_has_a_line(shell: Shell) -> None:
    lines = shell.well("swarm", "list").splitlines()
    assert [line.split()[0] for line in lines] == list(BUILT_IN)
    assert lines[2].split(maxsplit=3) == ["gsm8k", "3", "stages", BUILT_IN["gsm8k"].summary]


def test_plug_ins_are_named_with_what_brings_them(shell: Shell, install: Install) -> None:
    install("taking", "mine = swarmd.swarms.reasoning_gym:DigitsPlan")
    install("broken", "other = no_such_module:Plan")
    shown = shell.well("swarm", "list")
    assert "Four tasks on digits that the embedded model learns in minutes. (from taking 3)" in shown
    assert "other            cannot be used: ModuleNotFoundError" in shown and "(from broken 3)" in shown
    found = {kind["name"]: kind for kind in json.loads(shell.well("swarm", "list", "--json"))}
    assert found["mine"] | {"summary": ""} == {
        "name": "mine",
        "stages": 1,
        "summary": "",
        "from": "taking 3",
        "usable": True,
        "fault": "",
    }
    assert found["gsm8k"]["from"] == "swarmd" and not found["other"]["usable"]
