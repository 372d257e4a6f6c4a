"""What authors of swarms import is `swarmd.plugin` alone, is documented, and stays."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd import plugin

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs/SWARMS.md", ROOT / "docs/FROM-TRL.md", *(ROOT / "docs/swarms").glob("*.md")]
SCAFFOLDS = sorted((ROOT / "swarmd/cli/scaffolds").rglob("*.txt"))
GROUP = "swarmd.swarms"  # of entry points, which is no import


def imported_from(source: str) -> set[tuple[str, str]]:
    """(module, name) of each `from module import name`, and (module, "") of each `import module`."""
    nodes = list(ast.walk(ast.parse(source)))
    named = {
        (node.module or "", each.name) for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names
    }
    return named | {(each.name, "") for node in nodes if isinstance(node, ast.Import) for each in node.names}


def is_module(dotted: str) -> bool:
    place = ROOT / "swarmd" / dotted.split(".")[1]
    return place.is_dir() or place.with_suffix(".py").is_file()


def modules_named(text: str) -> set[str]:
    """Modules of swarmd, and what is in them, that a text names; but for the facade and the group of entry points."""
    dotted = {name for name in re.findall(r"\bswarmd(?:\.\w+)+", text) if is_module(name)}
    return {name for name in dotted if name != GROUP and name.split(".")[1] != "plugin"}


def test_the_names_are_the_documented_ones() -> None:
    page = (ROOT / "docs/swarms/writing.md").read_text(encoding="utf-8")
    table = page.partition("## What a kind imports")[2].partition("\n## ")[0]
    documented = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(plugin.__all__)
    public = {name for name in vars(plugin) if not name.startswith("_")} - {"annotations"}
    assert public == set(plugin.__all__)


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, swarmd.plugin\n"
    code += "print(sorted({'torch', 'hivemind', 'datasets', 'reasoning_gym'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("path", [*PAGES, *SCAFFOLDS], ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_scaffold_name_nothing_else_of_swarmd(path: Path) -> None:
    assert modules_named(path.read_text(encoding="utf-8")) == set()


def test_the_scaffold_imports_only_names_of_the_facade() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SCAFFOLDS if path.name.endswith(".py.txt")]
    taken = {pair for source in sources for pair in imported_from(source) if pair[0].startswith("swarmd")}
    assert len(taken) > 15 and taken <= {("swarmd.plugin", name) for name in plugin.__all__}
