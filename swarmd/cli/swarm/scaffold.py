"""`swarmd swarm scaffold`: the files of a swarm of one's own, ready to run and to be changed."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import itertools
import json
import keyword
import re
import site
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import typer

from swarmd.errors import ConfigError, PathUnusable
from swarmd.files import remedy
from swarmd.paths import quoted
from swarmd.swarms.plan import split_of
from swarmd.swarms.registry import BUILT_IN

TEMPLATES = Path(__file__).parent.parent / "scaffolds"
SUFFIX = ".txt"  # templates are no modules of swarmd
NAME, MODULE, CLASS = "my-swarm", "my_swarm", "MySwarm"  # as templates have them
QUESTIONS = "questions.jsonl"
EXAMPLES = 40  # of each of the two tasks
TAKEN = sys.stdlib_module_names | {"swarmd"}  # modules that come before, or instead of, one of the same name

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def scaffold(
    name: Annotated[str, typer.Argument(help="Of the swarm: a-z, 0-9 and -, such as my-swarm.")],
    kind: Annotated[
        Literal["file", "plan"],
        typer.Option(help="file: questions and named rewards, no code; plan: a Python package."),
    ] = "file",
    directory: Annotated[Path | None, typer.Option("--dir", help="To write to; ./NAME without it.")] = None,
) -> None:
    """Write the files of a swarm of one's own: it can be run as it is, and changed from there."""
    _check(name, kind)
    root = directory or Path(name)
    _make_directory(root)
    for template in sorted((TEMPLATES / kind).glob(f"*{SUFFIX}")):
        _write(root / _named(template.name.removesuffix(SUFFIX), name), _named(template.read_text("utf-8"), name))
    if kind == "file":
        _write(root / QUESTIONS, "".join(f"{json.dumps(row)}\n" for row in example_questions()))
    typer.echo(f"\nnext, as {root / 'README.md'} says:")
    if kind == "plan":
        typer.echo(f"    pip install -e {quoted(root)}")
    typer.echo(f"    swarmd local --kind {quoted(root / 'config.toml')} --rounds 4")


def _check(name: str, kind: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 40:
        raise ConfigError(f"{name!r} is no name of a swarm here", "Write up to 40 of a-z, 0-9 and -, such as my-swarm")
    if kind == "plan" and name in BUILT_IN:
        raise ConfigError(f"swarmd has a kind {name!r} itself", "Choose another name")
    if kind == "plan" and keyword.iskeyword(_module(name)):
        raise ConfigError(f"{name!r} is a word of Python", "Choose another name")
    if kind == "plan" and _module(name) in TAKEN:
        raise ConfigError(
            f"the package {_module(name)!r} would never be found: Python, or swarmd, has one of this name",
            "Choose another name",
        )
    if kind == "plan" and (brings := _installed_as(name)):
        raise ConfigError(
            f"{brings} is installed here already: pip would put a package of this name in its place, or beside it",
            "Choose another name, or `pip uninstall` an earlier one of your own",
        )


def _installed_as(name: str) -> str:
    """What is installed under the name, or brings a module of that name; empty where nothing is."""
    try:
        return f"the distribution {importlib.metadata.distribution(name).name!r}"
    except importlib.metadata.PackageNotFoundError:
        found = importlib.machinery.PathFinder.find_spec(_module(name), site.getsitepackages())
        return f"a module {_module(name)!r}" if found is not None else ""


def _make_directory(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        filled = any(root.iterdir())
    except OSError as error:
        fix = remedy(error, root) or "Choose another --dir"
        raise PathUnusable(f"the directory {root} cannot be made: {error.strerror}", fix) from error
    if filled:
        raise PathUnusable(f"{root} has files in it, which are never written over", "Choose another --dir")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    typer.echo(f"{path}: written")


def _named(text: str, name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("-"))
    return text.replace(NAME, name).replace(MODULE, _module(name)).replace(CLASS, title)


def _module(name: str) -> str:
    return name.replace("-", "_")


def example_questions(count: int = EXAMPLES) -> list[dict[str, str]]:
    """Two tasks that the embedded model learns in minutes, always the same; it was made without any of them."""
    random = Random(0)
    triples = ([random.randrange(10, 100) for _ in range(3)] for _ in itertools.count())
    digits = ("".join(random.choices("0123456789", k=4)) for _ in itertools.count())
    numbers = itertools.islice((three for three in triples if _is_new("digits_largest", sorted(three))), count)
    texts = itertools.islice((text for text in digits if _is_new("digits_reverse", [text])), count)
    largest = [
        {"prompt": f"Largest number: {', '.join(map(str, three))}", "answer": str(max(three)), "task": "largest"}
        for three in numbers
    ]
    reverse = [{"prompt": f"Reverse the digits: {text}", "answer": text[::-1], "task": "reverse"} for text in texts]
    return [row for pair in zip(largest, reverse, strict=True) for row in pair]


def _is_new(task: str, canonical: Sequence[object]) -> bool:
    """Whether the embedded model's recipe leaves a question of the digit tasks alone."""
    return split_of(task, ",".join(map(str, canonical))) != "train"
