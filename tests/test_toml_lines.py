"""Errors of a configuration name the line."""

from __future__ import annotations

import pytest

from swarmd.config import parse_config
from swarmd.errors import ConfigError
from swarmd.toml_text import lines_of

TEXT = """role = "coordinator"
name = "a = b"

[swarm]
id = "s"
kind = "reasoning-gym"
[[swarm.tasks]]
name = "one"
[[swarm.tasks]]  # the second
name = "two"
weight = 2.0

[training]  # steps = 9
"steps" = 3
  questions=4
lora.rank = 2
"""


def test_every_key_has_its_line() -> None:
    lines = lines_of(TEXT)
    for key, line in {
        "role": 1,
        "name": 2,
        "swarm": 4,
        "swarm.kind": 6,
        "swarm.tasks[0].name": 8,
        "swarm.tasks[1]": 9,
        "swarm.tasks[1].weight": 11,
        "training.steps": 14,
        "training.questions": 15,
        "training.lora.rank": 16,
    }.items():
        assert lines[key] == line


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("  questions=4", "questionz = 4", 15, "unknown key 'training.questionz'"),
        ('"steps" = 3', 'steps = "many"', 14, "training.steps: Expected `int`"),
        ('"steps" = 3', 'weights_from = ["coordinatr"]', 14, "training.weights_from[0]"),
        ("weight = 2.0", "weight = -1.0", 11, "swarm.tasks[1].weight"),
        ("weight = 2.0", "heavy = 1.0", 11, "unknown key 'swarm.tasks[1].heavy'"),
        ("  questions=4", "questions = 4\npeer_questions = 4", 16, "training.peer_questions"),
        ('role = "coordinator"', 'role = "boss"', 1, "role"),
        ("[training]  # steps = 9", "[trainning]", 13, "unknown key 'trainning'"),
    ],
)
def test_an_error_names_the_line(before: str, after: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(TEXT.replace(before, after), "node.toml")
    assert error.value.message.startswith(f"node.toml, line {line}: ") and words in error.value.message


def test_a_file_that_is_no_toml_has_the_line_of_the_parser() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        parse_config('role = "coordinator"\n[swarm\n', "node.toml")
