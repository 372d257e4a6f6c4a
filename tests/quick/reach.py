"""Which test files a change reaches, and how near each is: the rules for Python and for all other files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tests.quick.imports import ROOT, Imports, file_of, module_of

ITSELF, NAMESAKE, DIRECT, MIRRORED = 0, 1, 1, 2
HOUSE = ("tests/test_tidy.py", "tests/test_layers.py")  # read the sources of all Python
FOLDERS = {  # tests that read everything under a folder, and those that start what is in it
    "contracts/": ("tests/contracts/", "tests/chain/"),
    "statecharts/": ("tests/core/", "tests/cli/inspect/test_chart.py"),
    "swarmd/web/static/": ("tests/web/page/",),
    "swarmd/cli/scaffolds/": ("tests/cli/swarm/test_scaffold.py", "tests/test_plugin.py"),
    "configs/monitoring/": ("tests/monitoring/",),
    "packaging/": ("tests/packaging/",),
    "docs/": ("tests/test_docs.py", "tests/test_plugin.py"),
}
NAMES = {"Makefile": "tests/packaging/", "pyproject.toml": "tests/packaging/", "constraints.txt": "tests/packaging/"}
LOADERS = {"statecharts/": "swarmd.core.chart", "contracts/": "swarmd.chain.contract"}


@dataclass
class Reach:
    """Test files with their distance (0: changed itself), and the changed files that no rule knows."""

    tests: dict[str, int] = field(default_factory=dict)
    namesakes: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)

    def add(self, files: Iterable[str], distance: int) -> bool:
        """Keep the shorter distance. Whether there was any file."""
        files = list(files)
        for file in files:
            self.tests[file] = min(distance, self.tests.get(file, distance))
        return bool(files)


def reached(changed: Iterable[str], imports: Imports) -> Reach:
    """Every test that something of the changed files reaches."""
    reach, modules = Reach(), set()
    tests = sorted(file_of(module) for module in imports.modules if is_test(module))
    for path in changed:
        if path.endswith(".py") and path.startswith(("swarmd/", "tests/", "bench/")):
            modules.add(module_of(ROOT / path))
            reach.add((test for test in tests if test == path), ITSELF)
            reach.add(HOUSE, MIRRORED)
            reach.add(mirrors(path, tests), MIRRORED)
            own = namesakes(path, tests)
            reach.namesakes |= own
            reach.add(own, NAMESAKE)
        else:
            modules |= {loader for folder, loader in LOADERS.items() if path.startswith(folder)}
            if not reach.add(tests_beside(path, tests, imports), DIRECT):
                reach.unknown.append(path)
    for module, distance in imports.distances(modules).items():
        if is_test(module):
            reach.add([file_of(module)], distance)
    return reach


def is_test(module: str) -> bool:
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def mirrors(path: str, tests: Iterable[str]) -> list[str]:
    """Tests in the folder of the same name: they may start the package as a process, which no import shows."""
    package = PurePosixPath(path).parent.relative_to(PurePosixPath(path).parts[0])
    if not path.startswith("swarmd/") or package == PurePosixPath("."):
        return []
    return [test for test in tests if PurePosixPath(test).is_relative_to(PurePosixPath("tests") / package)]


def namesakes(path: str, tests: Iterable[str]) -> set[str]:
    """tests/web/http/test_stream.py for swarmd/web/http/stream.py, also test_streams.py and test_stream_limits.py."""
    source = PurePosixPath(path)
    stem = source.stem.rstrip("s")
    begins = (f"test_{stem}_", f"test_{stem}s_")
    folder = PurePosixPath("tests").joinpath(*source.parts[1:-1])
    beside = (PurePosixPath(test) for test in tests if PurePosixPath(test).parent == folder)
    return {str(test) for test in beside if f"{test.stem}_".startswith(begins)}


def tests_beside(path: str, tests: Iterable[str], imports: Imports) -> set[str]:
    """For a file that is no Python: tests that read its folder, that name it, or beside which it lies."""
    starts = [start for folder, all_of in FOLDERS.items() if path.startswith(folder) for start in all_of]
    starts += [NAMES[path]] if path in NAMES else []
    starts += ["tests/test_docs.py"] if path.endswith(".md") else []
    found = {test for test in tests if test.startswith(tuple(starts))} if starts else set()
    return found | naming(path, imports) | neighbours(path, tests)


def naming(path: str, imports: Imports) -> set[str]:
    """Tests in which the file's name stands, and those that import a module in which it stands."""
    name = PurePosixPath(path).name
    modules = {module for module, text in imports.texts.items() if name in text}
    near = imports.distances(modules)
    return {file_of(module) for module, distance in near.items() if is_test(module) and distance <= 1}


def neighbours(path: str, tests: Iterable[str]) -> set[str]:
    """For something that tests read, as a golden log: the tests in the nearest folder above that has any."""
    if not path.startswith("tests/"):
        return set()
    for folder in PurePosixPath(path).parents:
        if beside := {test for test in tests if PurePosixPath(test).is_relative_to(folder)}:
            return beside if folder != PurePosixPath("tests") else set()
    return set()
