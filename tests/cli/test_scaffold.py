"""What `swarmd swarm scaffold` writes can be checked, trained and invited to as it is."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.cli.swarm import QUESTIONS
from swarmd.config import Config, load_config
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.errors import ExitCode
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import find_kind, make_plan
from swarmd.training.embedded import find_recipe
from tests.cli.owning import Shell

ROOT = Path(__file__).resolve().parents[2]
MADE = find_recipe("embedded")
SMALL: dict[str, Any] = {
    "steps": 2,
    "questions": 4,
    "generations": 4,
    "peer_questions": 1,
    "held_out_questions": 4,
    "device": "cpu",
    "threads": 1,
}


def train(config: Config, home: Path) -> StageTrained:
    """One small stage on the configuration as it was written."""
    from swarmd.training.cancellation import Cancellation
    from swarmd.training.engine import TrainingEngine

    small = msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **SMALL))
    engine = TrainingEngine(small, NodeDirectory(home), "a", make_plan(small.swarm, small.training, home))
    trained = engine.train(Train("train/0/0", 0, 0, ()), Cancellation())
    assert isinstance(trained, StageTrained)
    return trained


def install(source: Path, site: Path) -> None:
    """A distribution of its own: pip builds a wheel of the package and installs it, without the net."""
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", site, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_swarm_from_a_file_trains(shell: Shell) -> None:
    made = shell.root / "made"
    shown = shell.well("swarm", "scaffold", "sums-and-more", "--dir", made)
    assert f"swarmd local --kind {made / 'config.toml'}" in shown
    assert {path.name for path in made.iterdir()} == {"README.md", "config.toml", "questions.jsonl"}
    assert "kind file" in shell.well("config", "check", made / "config.toml")
    trained = train(load_config(made / "config.toml"), made)
    assert trained.steps == 2 and trained.reward > 0
    assert trained.held_out is not None


def test_the_embedded_model_was_made_without_the_example_questions() -> None:
    lines = (ROOT / "configs" / "file" / "data" / QUESTIONS).read_text(encoding="utf-8").splitlines()
    shown = {lesson.question.messages[-1].content for lesson in itertools.islice(MADE.teach(MADE.make_plan(), 0), 9000)}
    assert not shown & {json.loads(line)["prompt"] for line in lines}


def test_a_plan_is_installed_found_and_trained(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made, site = shell.root / "made", shell.root / "site"
    shell.well("swarm", "scaffold", "two-sums", "--kind", "plan", "--dir", made)
    names = {path.name for path in made.iterdir()}
    assert names == {"README.md", "config.toml", "pyproject.toml", "two_sums.py", "test_two_sums.py"}
    assert "is unknown" in shell.fails(ExitCode.BAD_CONFIG, "config", "check", made / "config.toml")
    install(made, site)
    monkeypatch.syspath_prepend(str(site))
    assert find_kind("two-sums").stages == 1
    assert "two-sums         1 stage   Sums of two numbers. (from two-sums 0.1.0)" in shell.well("swarm", "list")
    assert "kind two-sums" in shell.well("config", "check", made / "config.toml")
    assert train(load_config(made / "config.toml"), made).steps == 2
    del sys.modules["two_sums"]


def test_the_plan_keeps_to_its_own_test_and_to_the_house(shell: Shell) -> None:
    made = shell.root / "made"
    shell.well("swarm", "scaffold", "sums", "--kind", "plan", "--dir", made)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "no:cacheprovider"],
        cwd=made,
        env={"PYTHONPATH": f"{ROOT}:{made}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0 and "4 passed" in tested.stdout, tested.stdout
    for tool in (("ruff", "check", "--isolated"), ("ruff", "format", "--check", "--isolated")):
        command = [Path(sys.executable).parent / tool[0], *tool[1:], "--line-length", "120", made]
        checked = subprocess.run(command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("My Swarm",), ExitCode.BAD_CONFIG, "is no name of a swarm"),
        (("../up",), ExitCode.BAD_CONFIG, "is no name of a swarm"),
        (("gsm8k", "--kind", "plan"), ExitCode.BAD_CONFIG, "swarmd has a kind 'gsm8k' itself"),
        (("class", "--kind", "plan"), ExitCode.BAD_CONFIG, "'class' could not be imported"),
        (("random", "--kind", "plan"), ExitCode.BAD_CONFIG, "'random' could not be imported"),
        (("a", "--kind", "other"), ExitCode.USAGE, "other"),
    ],
)
def test_what_cannot_be_is_told(shell: Shell, arguments: tuple[str, ...], code: int, told: str) -> None:
    assert told in shell.fails(code, "swarm", "scaffold", *arguments, "--dir", shell.root / "made")
    assert not (shell.root / "made").exists()


def test_nothing_is_written_over(shell: Shell) -> None:
    (shell.root / "mine.txt").write_text("kept")
    told = shell.fails(ExitCode.CANNOT_CREATE, "swarm", "scaffold", "sums", "--dir", shell.root)
    assert "never written over" in told
    assert [path.name for path in shell.root.iterdir()] == ["mine.txt"]
