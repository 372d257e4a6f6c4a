"""What `--json` prints is one JSON document in UTF-8, whatever the terminal's encoding and however a path is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode


@pytest.mark.parametrize("verb", ["identity show", "identity check"])
def test_a_path_that_is_no_text_is_shown_as_far_as_it_is(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / os.fsdecode(b"node-\xff")
    home.mkdir()
    assert run_command(["identity", "new", str(home / "identity.key")]) == ExitCode.OK
    capsys.readouterr()
    assert run_command([*verb.split(), str(home / "identity.key"), "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["file"] == f"{tmp_path}/node-\N{REPLACEMENT CHARACTER}/identity.key"


def test_a_terminal_of_another_encoding_gets_utf8(tmp_path: Path) -> None:
    file = tmp_path / "Zoë.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n', encoding="utf-8")
    words = ["doctor", "--config", str(file), "--only", "python", "--offline", "--json"]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ended = subprocess.run([sys.executable, "-m", "swarmd", *words], env=env, capture_output=True)
    assert json.loads(ended.stdout.decode("utf-8"))["config"] == str(file)
