"""Who imports whom in swarmd, tests and bench, and how far a test file is from a module.

An import counts wherever it stands. Python that starts Python names a module in quotes (`"-m", "swarmd.dht.worker"`),
as the table of verbs does, and so do tests that replace a part of one: that counts as an import. A test imports every
conftest.py above it.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("swarmd", "tests", "bench")
QUOTED = re.compile(r"""["']((?:swarmd|tests|bench)(?:\.\w+)+)["']""")
STARTED = re.compile(r"""["']-m",\s*["'](swarmd|bench)["']""")
LOADING_TORCH = frozenset({"torch", "transformers", "trl", "accelerate", "deepspeed", "peft", "bitsandbytes"})

Edges = dict[str, set[str]]


@dataclass(frozen=True)
class Imports:
    """`importers` has every import turned round; `at_once` has those that run when a module is loaded."""

    importers: Edges
    at_once: Edges
    texts: dict[str, str]  # the source of every module of the tree

    @staticmethod
    @cache
    def of_the_tree() -> Imports:
        graph = grimp.build_graph(
            *PACKAGES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
        )
        files = {module_of(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
        texts = {module: path.read_text(encoding="utf-8") for module, path in files.items()}
        imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        at_once = {module: eager(graph, module, named) for module, named in imported.items()}
        for module, text in texts.items():
            above = conftests_above(module, texts)
            imported.setdefault(module, set()).update(named_in(text, texts.keys()) - {module}, above)
            at_once.setdefault(module, set()).update(above)
        return Imports(turned_round(imported), at_once, texts)

    @property
    def modules(self) -> Set[str]:
        return self.texts.keys()

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Every module that reaches a changed one, and over how many imports; 0 for the changed ones."""
        far = dict.fromkeys(changed, 0)
        queue = deque(far)
        while queue:
            module = queue.popleft()
            for importer in self.importers.get(module, ()):
                if importer not in far:
                    far[importer] = far[module] + 1
                    queue.append(importer)
        return far

    def loads_torch(self, file: str) -> bool:
        """Whether torch is there as soon as pytest has read this test file."""
        seen = {module_of(ROOT / file)}
        queue = deque(seen)
        while queue:
            for named in self.at_once.get(queue.popleft(), ()):
                if named in LOADING_TORCH:
                    return True
                if named not in seen:
                    seen.add(named)
                    queue.append(named)
        return False


def eager(graph: grimp.ImportGraph, importer: str, named: Iterable[str]) -> set[str]:
    """Those of its imports that stand outside of functions."""
    lines = ((each, graph.get_import_details(importer=importer, imported=each)) for each in named)
    return {each for each, found in lines if any(not line["is_lazy"] for line in found)}


def turned_round(imported: Edges) -> Edges:
    """Who imports a module imports the packages it lies in."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module, named in imported.items():
        for each in named:
            for part in (each, *packages_of(each)):
                importers[part].add(module)
    return dict(importers)


def packages_of(module: str) -> list[str]:
    """The nearest first."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def module_of(path: Path) -> str:
    """The dotted name of a Python file of this tree."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def file_of(module: str) -> str:
    """The path, from the root of the tree, of a test's module."""
    return module.replace(".", "/") + ".py"


def conftests_above(module: str, modules: Container[str]) -> list[str]:
    if not module.rpartition(".")[2].startswith("test_"):
        return []
    return [name for package in packages_of(module) if (name := f"{package}.conftest") in modules]


def named_in(text: str, modules: Set[str]) -> set[str]:
    """Modules that a source names in quotes, alone or before a part of theirs; `-m PACKAGE` starts its `__main__`."""
    quoted = QUOTED.findall(text) + STARTED.findall(text)
    named = {next((part for part in (word, *packages_of(word)) if part in modules), "") for word in quoted}
    named |= {main for word in quoted if (main := f"{word}.__main__") in modules}
    return named - {"", *PACKAGES}
