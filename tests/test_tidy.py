"""House rules that no linter knows: lengths, words that do not stay, paths of one machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 900
FILE_BYTES_MAX = 3 * 1024 * 1024

# Each is written in two pieces, so that this file passes its own test.
BANNED = {
    "an open end": re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"),
    "a stub": re.compile(r"NotImplemented" r"Error"),
    "a wait without a deadline": re.compile(r"\btime\.slee" r"p\("),
    "a path without quotes in a command": re.compile(
        r"`(swarmd|mkdir|install) [^`]*\{(?!quote_for_shell)[^}`]*(path|parent|root|credentials|identity\.key)[^}`]*\}"
    ),
    "a pattern that a line break may follow": re.compile(r"pattern=r?\"[^\"]*\$\""),
}
MACHINE_PATH = re.compile(r"(?<![\w.])/(wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers)/")
ASSERTING = re.compile(r"assert|raises|check|expect|verify")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".service", ".sol", ".json", ".sh", ""}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


TRACKED = tracked_files()
PRODUCT = [path for path in TRACKED if path.suffix == ".py" and path.is_relative_to(ROOT / "swarmd")]
TEXT = [path for path in TRACKED if path.suffix in TEXT_SUFFIXES]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


def tree_of(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def swallows(node: ast.AST) -> bool:
    """An except clause for everything, or nearly so, that does nothing."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"})
    return broad and all(isinstance(part, ast.Pass | ast.Continue) for part in node.body)


def findings(source: str) -> list[str]:
    """Everything in a product module that the house does not allow."""
    tree = parse(source)
    lines = source.splitlines()
    found = [f"{len(lines)} lines in one module"] if len(lines) > MODULE_LINES_MAX else []
    found += [f"{node.name} has {length(node)} lines" for node in functions(tree) if length(node) > FUNCTION_LINES_MAX]
    found += [f"line {node.lineno}: an exception is swallowed" for node in ast.walk(tree) if swallows(node)]
    for number, line in enumerate(lines, 1):
        found += [f"line {number}: {what}: {line.strip()}" for what, pattern in BANNED.items() if pattern.search(line)]
    return found


def asserts(test: ast.AST) -> bool:
    """An assert statement, or the name of something that asserts."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Name) and ASSERTING.search(node.id) is not None)
        or (isinstance(node, ast.Attribute) and ASSERTING.search(node.attr) is not None)
        for node in ast.walk(test)
    )


def test_modules_keep_the_house_rules() -> None:
    found = {name_of(path): findings(path.read_text(encoding="utf-8")) for path in PRODUCT}
    assert {name: each for name, each in found.items() if each} == {}


def test_no_file_names_a_path_of_one_machine() -> None:
    named = [
        f"{name_of(path)}: {line}"
        for path in TEXT
        if MACHINE_PATH.search(content := path.read_text(encoding="utf-8"))
        for line in content.splitlines()
        if MACHINE_PATH.search(line)
    ]
    assert named == []


def test_every_test_asserts_something() -> None:
    silent = [
        f"{name_of(path)}: {node.name}"
        for path in TRACKED
        if path.name.startswith("test_") and path.suffix == ".py"
        for node in functions(tree_of(path))
        if node.name.startswith("test_") and not asserts(node)
    ]
    assert silent == []


def test_no_large_file_is_tracked() -> None:
    assert [name_of(path) for path in TRACKED if path.stat().st_size > FILE_BYTES_MAX] == []
