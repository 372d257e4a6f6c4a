"""TOML of somebody else's making: what it may cost to read it, and that errors name the line."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarmd.config import parse_config
from swarmd.errors import ConfigError
from swarmd.toml_text import (
    DEPTH_MAX,
    PARTS_MAX,
    TEXT_BYTES_MAX,
    find_key_lines,
    find_line_of_message,
    parse_toml,
    read_toml,
)

ENDLESS = ".".join(["a"] * 20_000)
WAYS = {
    "a key": f"{ENDLESS} = 1",
    "a table": f"[{ENDLESS}]\nb = 1",
    "one of several tables": f"[[ {ENDLESS} ]]\nb = 1",
    "an inline table": f"b = {{c = 1, {ENDLESS} = 1}}",
    "blanks": f"{ENDLESS.replace('.', ' . ')} = 1",
    "quotes": f"{ENDLESS.replace('a', chr(34) + 'a.b' + chr(34))} = 1",
    "quotes in quotes": ".".join([r'"\""'] * 20_000) + " = 1",
    "other quotes": f"{ENDLESS.replace('a', chr(39) * 2)} = 1",
    "what commands a terminal": f"{ENDLESS.replace('a', chr(34) + chr(27) + '[2J' + chr(34))} = 1",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_of_thousands_of_parts_is_refused_before_it_is_read(way: str) -> None:
    with pytest.raises(ValueError, match="parts") as caught:
        parse_toml(WAYS[way])
    assert str(caught.value).isprintable()


def test_the_refusal_takes_no_memory() -> None:
    """It took 2 GB of address space; the limit leaves none of it to the interpreter."""
    script = "import sys; from swarmd.toml_text import parse_toml\nparse_toml(sys.stdin.read())"
    least = 512 * 1024 * 1024

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (least, least))

    ended = subprocess.run(
        [sys.executable, "-c", script], input=WAYS["a key"], text=True, capture_output=True, preexec_fn=limit
    )
    assert ended.stderr.splitlines()[-1].startswith("ValueError: a name has more than")


def test_names_of_many_parts_and_values_in_values_are_read_up_to_the_bounds() -> None:
    name = ".".join(["a"] * PARTS_MAX)
    assert parse_toml(f"{name} = 'b'")["a"]
    assert parse_toml("text = 'one.two.three. And so on, and on. And on.'\n# 1.2.3\nversion = '1.2.3.4'")
    deep = DEPTH_MAX - 2
    assert parse_toml(f"x = {'[' * deep}{']' * deep}")
    with pytest.raises(ValueError, match="deep"):
        parse_toml(f"x = {'[' * DEPTH_MAX}{']' * DEPTH_MAX}")
    with pytest.raises(ValueError, match=r"without an end|maximum"):
        parse_toml(f"x = {'[' * 50_000}{']' * 50_000}")


WORDS = ".".join(["word"] * 3 * PARTS_MAX)
TEXTS = {
    "a string": f'"{WORDS}"',
    "a string with quotes": rf'"he said \"{WORDS}\""',
    "a literal": f"'{WORDS}'",
    "a long string": f'"""\nfirst\n{WORDS} "" {WORDS}\n"""',
    "a long string with quotes": rf'"""\"""{WORDS}"""""',
    "a long literal": f"'''\n{WORDS}''{WORDS}'''",
    "strings in a list": f'["{WORDS}", "{WORDS}"]',
    "a comment": f'1  # "{WORDS}',
}


@pytest.mark.parametrize("way", TEXTS)
def test_words_with_dots_in_a_text_are_no_name(way: str) -> None:
    assert parse_toml(f"x = {TEXTS[way]}\n[y]\nz = 1")["y"] == {"z": 1}
    with pytest.raises(ValueError, match=f"more than {PARTS_MAX} parts"):
        parse_toml(f"x = {TEXTS[way]}\n{ENDLESS} = 1")


def test_short_names_in_each_other_are_no_way_around_the_bounds() -> None:
    name = ".".join(["a"] * PARTS_MAX)
    with pytest.raises(ValueError, match="deep"):
        parse_toml(f"{name} = {{{name} = {{{name} = 1}}}}")


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mark.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert parse_toml(read_toml(file)) == {"a": 1}


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it is a device"):
        read_toml(Path("/dev/zero"))
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=str(TEXT_BYTES_MAX)):
        read_toml(large)


def test_looking_for_names_and_lines_takes_no_longer_than_the_text() -> None:
    """A pattern that begins anew at each character takes minutes for each of these."""
    size = 50_000
    odd = ["a" * size, "a " * size, '"' * size, "'" * size, '"\\' * size, "a." * 31 + " " * size, "[" + " " * size]
    odd += ['"""' + '\\"""' * size, "'''" + "'" * size, '"a".' * 31 + '"\\' * size, "#" * size, '"a.' * size]
    odd = [f"= {text}" for text in odd]
    begun = time.process_time()
    for text in odd:
        with pytest.raises(ValueError):
            parse_toml(text)
        find_line_of_message(f"x = '''\n{text}\n'''\n", "unknown key 'y'")
    assert time.process_time() - begun < 30.0


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
    lines = find_key_lines(TEXT)
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
