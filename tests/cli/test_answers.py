"""What a newcomer types wrongly gets one clear answer, with the exit code of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator"


@pytest.mark.parametrize(
    ("words", "code", "said", "fix"),
    [
        (("run", "--config", "."), ExitCode.NO_INPUT, "is a directory", "config.toml"),
        (("run", "nowhere"), ExitCode.NO_INPUT, "no config.toml in nowhere", "--config"),
        (("replay", str(GOLDEN), "--round", "-1"), ExitCode.USAGE, "--round", "--help"),
        (("explain", str(GOLDEN), "abc"), ExitCode.BAD_CONFIG, "'abc' is no round", "swarmd explain"),
        (("backup", "make", "nowhere", "x.tar"), ExitCode.NO_INPUT, "no node in nowhere", "swarmd init"),
        (("restore", "nowhere", "new"), ExitCode.NO_INPUT, "no backup of a node nowhere", "backup make"),
        (("service", "install", "--config", "no.toml"), ExitCode.NO_INPUT, "no configuration file no.toml", "init"),
        (("identity", "show", "nowhere"), ExitCode.NO_INPUT, "no identity nowhere", "identity new"),
        (("status", "nowhere"), ExitCode.NO_INPUT, "no node in nowhere", "--config"),
        (("frobnicate",), ExitCode.USAGE, "No such command", "--help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_word_is_named_with_the_fix(
    words: tuple[str, ...],
    code: int,
    said: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(list(words)) == code
    error, advice = capsys.readouterr().err.strip().split("\nfix: ")
    assert error.startswith("error: ") and said in error
    assert fix in advice
    assert list(tmp_path.iterdir()) == []
