"""What to type to have more beside swarmd depends on who installed it."""

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from swarmd import installed
from swarmd.installed import extra_command, install_command


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        ("", f"{sys.executable} -m pip install 'a>=1' 'b'"),
        ("pipx_metadata.json", "pipx inject swarmd 'a>=1' 'b'"),
        ("uv-receipt.toml", "uv tool install --compile-bytecode --with 'a>=1' --with 'b' ./swarmd-*.whl"),
    ],
)
def test_the_command_fits_the_environment(receipt: str, command: str, tmp_path: Path) -> None:
    if receipt:
        (tmp_path / receipt).touch()
    assert install_command("a>=1", "b", prefix=str(tmp_path)) == command


def test_an_extra_is_told_by_what_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["base>=1", "other>=3; extra == 'less'", "one>=1,<2; extra == 'more'", "two; extra == 'more'"]
    monkeypatch.setattr(installed, "requires", lambda name: needs)
    command = extra_command("more")
    assert command.startswith(f"{sys.executable} -m pip install '") and "'two'" in command
    (one,) = [Requirement(each) for each in command.split("'") if each.startswith("one")]
    assert one.specifier == Requirement("one>=1,<2").specifier and "other" not in command and "base" not in command
    monkeypatch.setattr(installed, "requires", lambda name: None)
    assert extra_command("wandb").endswith("pip install 'wandb'")
