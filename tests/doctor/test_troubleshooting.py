"""What docs/TROUBLESHOOTING.md names is there: commands, findings, causes, states; and no known trouble is missing."""

import re
from pathlib import Path
from typing import get_args

import pytest
import typer

from swarmd.cli import load_command
from swarmd.core.values import SkipCause
from swarmd.doctor.checks import CHECKS
from swarmd.errors import ExitCode
from tests.test_docs import commands_in, words_of

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
TROUBLES = {  # what operators of RL Swarm asked most, and the section that answers it
    "skipped round": "A round was skipped",
    "not training, only slow": '"It is not training"',
    "identity lost, moved, reused, of another account": "The identity is lost, moved, reused, or of the wrong account",
    "stuck login": "The login is stuck",
    "many warnings": "Many warnings",
    "access from a VM or VPS": "The page cannot be opened from another machine",
    "broken pipe and out of memory": "Broken pipe or out of memory on a relaunch",
    "CPU RuntimeError, float32": "RuntimeError on a CPU, float16 and float32",
    "several GPUs": "Several GPUs",
    "behind the chain's round": "The node is behind the chain's round",
    "other models": "Other models",
    "tuning memory": "Tuning memory",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_known_trouble_has_a_section_with_something_to_do(trouble: str) -> None:
    section = SECTIONS[TROUBLES[trouble]]
    found = findings_in(section)
    assert commands_in(section) or re.search(r"`(training|dht|web|chain)\.", section)
    assert found or commands_in(section), "swarmd itself must say something about it"


SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / "swarmd/doctor").glob("*.py"))
IDS = set(re.findall(r'"([a-z]+\.[a-z0-9-]+)",\s+(?:"[A-Z0-9]|title)', SOURCE))
FAMILIES = "|".join({id.partition(".")[0] for id in IDS})


def findings_in(text: str) -> set[str]:
    """What looks like the id of a finding: a family, a dot, a word."""
    return set(re.findall(rf"`((?:{FAMILIES})\.[a-z0-9-]+)`", text))


def test_every_finding_that_is_named_is_there() -> None:
    named = findings_in(PAGE) - {"identity.key", "config.toml"}
    assert len(named) > 30
    assert named - IDS == set()


def refusal_of(line: str) -> str:
    """What the parser has against a command line, positional arguments and all; empty where it takes it."""
    verb, *words = words_of(line)
    try:
        load_command(verb).make_context(verb, words)
    except typer.TyperException as error:
        return str(error)
    return ""


def test_the_parser_takes_every_command_that_is_more_than_a_name() -> None:
    lines = [line for line in commands_in(PAGE) if len(words_of(line)) > 1]
    assert len(lines) > 15
    assert [(line, refusal) for line in lines if (refusal := refusal_of(line))] == []
    assert "unexpected extra argument" in refusal_of("swarmd bundle DIR OUT.tar.gz")


def test_checks_that_are_named_on_a_command_line_are_there() -> None:
    only = set(re.findall(r"--only ([a-z]+)", PAGE))
    assert only and only <= {check.name for check in CHECKS}


def test_every_cause_of_a_skipped_round_is_explained() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", SECTIONS["A round was skipped"], re.M))
    assert rows == set(get_args(SkipCause))


def test_exit_codes_are_those_of_swarmd() -> None:
    codes = {value for name, value in vars(ExitCode).items() if name.isupper()}
    assert {int(code) for code in re.findall(r"code (\d+)", PAGE)} <= codes
