"""`swarmd explain`: from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode

GOLDEN = Path(__file__).parent.parent / "golden"
LATE = str(GOLDEN / "rules-1" / "late-joiner" / "node-3")


def output_of(capsys: pytest.CaptureFixture[str], *args: str, code: int = ExitCode.OK) -> str:
    assert run_command(["explain", *args]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_without_a_round_the_last_gap_and_the_last_round_are_told(capsys) -> None:
    text = output_of(capsys, LATE)
    assert "Rounds 0 to 2 were skipped, cause late" in text and "Round 4 was trained by this node" in text


@pytest.mark.parametrize("args", [(LATE, "1"), ("1", LATE)])
def test_a_round_is_told_wherever_it_stands(args: tuple[str, str], capsys) -> None:
    assert "Rounds 0 to 2 were skipped" in output_of(capsys, *args)


def test_json_has_the_same(capsys) -> None:
    (story,) = json.loads(output_of(capsys, LATE, "3", "--json"))
    assert story["outcome"] == "trained" and story["round"] == 3
    assert [each["seq"] for each in story["sentences"]] == sorted(each["seq"] for each in story["sentences"])


def test_chain_submissions_belong_to_their_round(capsys) -> None:
    text = output_of(capsys, str(GOLDEN / "rules-2" / "chain-kills" / "node-1"), "4")
    assert "reward/4/0: confirmed" in text and "reward/5/0" not in text


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("1", "2"), ExitCode.BAD_CONFIG, "one round at most is explained, not 1 and 2"),
        (("nowhere",), ExitCode.NO_INPUT, "nowhere"),
        ((".", "abc"), ExitCode.BAD_CONFIG, "'abc' is no round"),
    ],
)
def test_bad_arguments_are_one_clear_error(args: tuple[str, ...], code: int, said: str, capsys) -> None:
    assert said in output_of(capsys, *args, code=code)
