"""House rules that no linter knows: lengths, words that do not stay, paths of one machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
FILE_BYTES_MAX = 3 * 1024 * 1024

# Each is written in two pieces, so that this file passes its own test.
BANNED = {
    "an open end": re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"),
    "a stub": re.compile(r"NotImplemented" r"Error"),
    "a wait without a deadline": re.compile(r"\btime\.slee" r"p\("),
}
MACHINE_PATH = re.compile(r"(?<![\w.])/(wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers)/")
VAGUE_NAME = re.compile(r"(manager|handler|helper|utils|info)s?$", re.IGNORECASE)
ASSERTING = re.compile(r"assert|raises|check|expect|verify")
ASKING = re.compile(r"_?(is|has|may|can|are|was|must|should|needs)_")
ACTS = {"clear", "discard", "echo", "forget", "observe", "remove", "stop_node", "try_charge", "warning"}
MEMORISING = {"has_reward", "_is_complete"}  # each keeps an answer, and gives the same without it
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
    found += [
        f"the name {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and VAGUE_NAME.search(node.name)
    ]
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


def changes(asking: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """What a function that asks whether something is so does besides: assignments to attributes, and calls that act."""
    if any(ast.unparse(each).endswith(".setter") for each in asking.decorator_list) or asking.name in MEMORISING:
        return []
    nodes = list(ast.walk(asking))
    stored = [node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    acted = [each.attr for each in called if isinstance(each, ast.Attribute) and each.attr in ACTS]
    return stored + acted


def test_what_asks_whether_something_is_so_changes_nothing() -> None:
    asking = [(path, node) for path in PRODUCT for node in functions(tree_of(path)) if ASKING.match(node.name)]
    found = [f"{name_of(path)}: {node.name}: {changes(node)}" for path, node in asking if changes(node)]
    assert len(asking) > 150 and found == []


@pytest.mark.parametrize(
    "source",
    [
        "def is_due(self):\n    self.told = True\n    return True\n",
        "def _has_room(self):\n    return self.quota.try_charge('')\n",
        "async def may_go(self):\n    self.left -= 1\n",
    ],
)
def test_a_question_that_changes_something_is_found(source: str) -> None:
    assert [ASKING.match(node.name) and changes(node) for node in functions(parse(source))] != [[]]


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


def test_public_classes_of_the_inner_layers_say_what_they_are() -> None:
    inner = [path for path in PRODUCT if name_of(path).split("/")[1] in ("core", "eventlog", "shell", "daemon")]
    classes = [node for path in inner for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    public = [node for node in classes if not node.name.startswith("_")]
    assert len(public) > 150 and [node.name for node in public if not ast.get_docstring(node)] == []


def test_the_median_function_is_short() -> None:
    lengths = sorted(length(node) for path in PRODUCT for node in functions(tree_of(path)))
    assert lengths[len(lengths) // 2] < 10


def test_no_large_file_is_tracked() -> None:
    assert [name_of(path) for path in TRACKED if path.stat().st_size > FILE_BYTES_MAX] == []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX,
        "x = 1\n" * (MODULE_LINES_MAX + 1),
        "try:\n    x = 1\nexcept Exception:\n    pass\n",
        "try:\n    x = 1\nexcept:\n    pass\n",
        "x = 1  # TO" + "DO later\n",
        "time.slee" + "p(1)\n",
        "raise NotImplemented" + "Error\n",
        "class TaskManager:\n    x = 1\n",
    ],
)
def test_the_rules_catch_what_they_forbid(source: str) -> None:
    assert len(findings(source)) == 1
