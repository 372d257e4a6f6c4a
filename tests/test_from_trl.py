"""docs/FROM-TRL.md: its keys exist on both sides, none is missing, and its swarm trains as printed."""

import ast
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from swarmd.config import Config, find_struct_type, load_config
from swarmd.swarms.options import FileOptions

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/FROM-TRL.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:4] for line in PAGE.splitlines() if line.startswith("| `")][1:]
NAME = re.compile(r"`([a-z][\w.]*)`")


def keys_of(kind: type[msgspec.Struct], where: str = "") -> set[str]:
    """Dotted names of all keys of a configuration, those of tables too."""
    found: set[str] = set()
    for key, hint in get_type_hints(kind).items():
        inner = find_struct_type(hint)
        if inner is not None:
            found |= keys_of(inner, f"{where}{key}.")
        found.add(f"{where}{key}")
    return found


def told_by_swarmd() -> set[str]:
    """Names of the settings that the trainer gives to GRPOConfig."""
    tree = ast.parse((ROOT / "swarmd/training/trainer.py").read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "GRPOConfig")
    return {str(keyword.arg) for call in calls for keyword in call.keywords}


def test_every_setting_of_trl_in_the_table_exists_and_none_that_is_set_is_missing() -> None:
    from trl.trainer.grpo_config import GRPOConfig

    theirs = [name for row in ROWS for name in NAME.findall(row[0])]
    assert len(theirs) == len(set(theirs)) > 50
    assert set(theirs) <= {field.name for field in dataclasses.fields(GRPOConfig)}
    assert len(told_by_swarmd()) > 20 and told_by_swarmd() <= set(theirs)


def test_every_key_of_swarmd_in_the_table_exists() -> None:
    known = keys_of(Config) | {f"swarm.options.{name}" for name in get_type_hints(FileOptions)}
    ours = {name for row in ROWS for name in NAME.findall(row[1])}
    assert len(ours) > 30 and not ours - known
    prose = {name for name in NAME.findall(PAGE) if name.startswith(("training.", "results.", "swarm.options."))}
    assert not prose - known


def test_the_swarm_of_the_page_trains_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarmd.core.commands import Train
    from swarmd.paths import NodeDirectory
    from swarmd.swarms.registry import make_plan
    from swarmd.training.cancellation import Cancellation
    from swarmd.training.engine import TrainingEngine

    blocks = dict(
        zip(("rewards", "data", "config"), re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.S), strict=False)
    )
    assert len(blocks["config"].splitlines()) == 10
    home = tmp_path / "my-swarm"
    home.mkdir()
    (home / "my_rewards.py").write_text(blocks["rewards"])
    (home / "config.toml").write_text(blocks["config"] + "[training]\nsteps = 1\nquestions = 2\npeer_questions = 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    printed: dict[str, Any] = {}
    exec(blocks["data"], printed)  # what the page has its reader type
    config = load_config(home / "config.toml")
    plan = make_plan(config.swarm, config.training, home)
    (question, *_) = plan.hold_out("questions", 1)
    right, wrong = plan.score(question, [str(question.entry["answer"]), "x"])
    assert (right.reward, wrong.reward, dict(right.parts)) == (1.0, 0.0, {"correct": 1.0})
    engine = TrainingEngine(config, NodeDirectory(home), "a", plan)
    trained = engine.train(Train("train/0/0", 0, 0, ()), Cancellation())
    sys.modules.pop("my_rewards", None)
    assert trained.steps == 1 and 0 <= trained.reward <= 1
