"""Imports run downwards only, and the core is pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CORE_MAY_IMPORT = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "struct",
    "types",
    "typing",
    "zlib",
}
CHART_MAY_IMPORT = CORE_MAY_IMPORT | {"pathlib", "transitions", "warnings", "yaml"}  # loads YAML once, before any event
SHELL_MAY_IMPORT = CORE_MAY_IMPORT | {"contextlib", "signal"}  # of `signal` only the numbers
SHELL_MAY_USE = ("swarmd.shell", "swarmd.eventlog.frame", "swarmd.worker.messages", "swarmd.config")
HEAVY = ("torch", "hivemind", "transformers", "trl", "datasets", "reasoning_gym")


def imported_modules(path: Path) -> set[str]:
    """Dotted names of all imports in a file, wherever they stand."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names.add(node.module or "")
    return names


def foreign(path: Path, allowed: set[str]) -> set[str]:
    own = ("swarmd.core", "swarmd.errors", "swarmd.bounds")
    return {name for name in imported_modules(path) if name.split(".")[0] not in allowed and not name.startswith(own)}


def test_imports_run_downwards_only() -> None:
    checked = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "swarmd/core").rglob("*.py")), ids=lambda path: path.name)
def test_core_imports_nothing_impure(path: Path) -> None:
    assert not foreign(path, CHART_MAY_IMPORT if path.name == "chart.py" else CORE_MAY_IMPORT)


@pytest.mark.parametrize("path", sorted((ROOT / "swarmd/shell").glob("*.py")), ids=lambda path: path.name)
def test_the_shell_does_nothing_itself(path: Path) -> None:
    assert {name for name in foreign(path, SHELL_MAY_IMPORT) if not name.startswith(SHELL_MAY_USE)} == set()


def light_packages() -> list[str]:
    """The packages and modules that a node's daemon is made of."""
    places = ("core", "eventlog", "worker", "shell", "daemon", "observe", "cli")
    modules = [
        path for place in places for path in (ROOT / "swarmd" / place).rglob("*.py") if path.name != "__main__.py"
    ]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(modules)]


def test_the_daemon_loads_neither_torch_nor_hivemind() -> None:
    program = (
        "import importlib, sys\n"
        f"for name in {light_packages()!r}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
