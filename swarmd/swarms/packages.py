"""Python that a swarm runs on its nodes, such as reward functions: named by the manifest, installed by each operator.

- A package is one file beside the configuration, or an installed distribution. The manifest has its name, version and
  the digest of its files, and a node trains only with exactly these.
- Nothing is installed, copied or downloaded automatically: an operator who accepts the code installs it. The error of a
  node that lacks it shows the command.
- A manifest does not name what every node has anyway, the standard library and swarmd's own requirements, except TRL's
  reward functions. Otherwise a swarm's creator could have any of their functions called.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from typing import Annotated, Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from swarmd.config import Section
from swarmd.errors import EnvironmentMissing, SwarmError
from swarmd.files import advise_on_path_error
from swarmd.installed import DISTRIBUTION, install_command
from swarmd.paths import quote_for_shell

FUNCTION_KEYS = ("reward_funcs", "tools", "environment_factory")  # options with import paths
TRL, REWARDS = "trl", "trl.rewards"  # the only part of swarmd's requirements that a manifest may name
FILES_MAX, BYTES_MAX = 10_000, 64 * 1024 * 1024  # of one package
UNSHARED = (".pyc", ".so", ".pyd", ".dylib")  # suffixes of files that differ between machines

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Package(Section, frozen=True):
    """One entry of `swarm.options.packages`: the origin of an imported module."""

    module: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
    digest: Digest  # SHA-256 of a file; for a distribution, of `sha256sum`'s lines for the module's files
    name: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z")] = ""  # empty: MODULE.py
    version: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.+!_-]{0,64}\Z")] = ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}" if self.name else f"{self.module}.py"


def list_function_paths(options: Mapping[str, Any]) -> list[str]:
    named = [options.get(key) or () for key in FUNCTION_KEYS]
    return [path for each in named for path in ([each] if isinstance(each, str) else each)]


def describe_packages(paths: Iterable[str], home: Path) -> list[Package]:
    """The packages that these functions come from, in the manifest's form. Raises SwarmError."""
    names = list(paths)
    found = [_find_package(module, home) for module in list_modules(names)]
    if missing := [module for module, package in zip(list_modules(names), found, strict=True) if package is None]:
        raise SwarmError(
            f"swarm.options: there is no module {missing[0]}",
            f"Put {missing[0]}.py into {home}, or install its package beside swarmd",
        )
    packages = [package for package in found if package is not None]
    _refuse_own_requirements(names, packages)
    return packages


def list_module_files(paths: Iterable[str], home: Path) -> list[Path]:
    """Module files beside a configuration that these functions come from."""
    files = [home / f"{module}.py" for module in list_modules(paths)]
    return [file for file in files if file.is_file()]


def check_packages(packages: Sequence[Package], paths: Iterable[str], home: Path, beside: Path | None = None) -> None:
    """Check that this node has exactly the packages that a swarm names.

    Args:
        paths: the functions that will be imported.
        home: the node's data directory, where single-file packages lie.
        beside: a directory that may have a file to install, for the command in the error.

    Raises:
        EnvironmentMissing: one is missing or differs.
        SwarmError: a function is in none of these packages, or a manifest may not name it.
    """
    names = list(paths)
    _refuse_own_requirements(names, packages)
    if unnamed := set(list_modules(names)) - {package.module for package in packages}:
        raise SwarmError(
            f"swarm.options.packages does not name {min(unnamed)}, which functions come from",
            "Have `swarmd swarm new` make the manifest: it names them",
        )
    for package in packages:
        found = _find_package(package.module, home)
        if found != package:
            raise _missing_error(package, found, home, beside)


def _missing_error(package: Package, found: Package | None, home: Path, beside: Path | None) -> EnvironmentMissing:
    has = "it is not installed here"
    if found is not None:
        same = "with other content" if found.title == package.title else ""
        has = f"this node has {found.title} {same}".rstrip()
    told = f"the swarm runs code of {package.title} (SHA-256 {package.digest[:16]}…) on its nodes, and {has}"
    trust = "It runs with your rights, so look at it first. Then"
    if package.name:
        command = install_command(f"{package.name}=={package.version}")
        return EnvironmentMissing(told, f"{trust} install it: {command}")
    name = f"{package.module}.py"
    source = beside / name if beside is not None and (beside / name).is_file() else None
    directory = quote_for_shell(home)
    copy = f"mkdir -p {directory} && cp {quote_for_shell(source) if source else name} {directory}/"
    got = "" if source else f"Get {name} from whoever gave you the manifest. "
    return EnvironmentMissing(told, f"{got}{trust} install it: {copy}")


def list_modules(paths: Iterable[str]) -> list[str]:
    """The distinct top-level modules of import paths."""
    return list(dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in paths))


def _find_package(module: str, home: Path) -> Package | None:
    """The package that `import module` would find; None if there is none. Raises SwarmError for an unsupported
    module."""
    importlib.invalidate_caches()
    spec = PathFinder.find_spec(module, [*sys.path, str(home.resolve())])
    if spec is None:
        return None
    origin = Path(spec.origin or "")
    if origin == home.resolve() / f"{module}.py":
        return Package(module, _digest_file(origin))
    names = packages_distributions().get(module, [])
    if not names:
        raise SwarmError(
            f"the module {module} is found at {spec.origin or module}, where a manifest cannot name it",
            f"Let it be one file, {home}/{module}.py, and nowhere else on Python's path; or an installed package",
        )
    content = _digest_tree(origin.parent) if spec.submodule_search_locations else _digest_file(origin)
    return Package(module, content, names[0], version(names[0]))


def _digest_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise SwarmError(f"{path} cannot be read: {error.strerror}", advise_on_path_error(error, path)) from error


def _digest_tree(root: Path) -> str:
    """The digest of `sha256sum`'s lines for the files below `root`, sorted by path. Raises SwarmError."""
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix not in UNSHARED]
    if len(files) > FILES_MAX or sum(path.stat().st_size for path in files) > BYTES_MAX:
        raise SwarmError(f"the package in {root} is too large for a manifest", "Put the functions into a file")
    lines = sorted((path.relative_to(root).as_posix(), _digest_file(path)) for path in files)
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in lines).encode()).hexdigest()


def _refuse_own_requirements(paths: Sequence[str], packages: Sequence[Package]) -> None:
    """Raise SwarmError for functions of the standard library or of swarmd's own requirements."""
    refused = [package for package in packages if package.module in sys.stdlib_module_names]
    named = [package for package in packages if package.name]
    if named and not refused:
        required = _list_own_requirements()
        refused = [each for each in named if canonicalize_name(each.name) in required and each.module != TRL]
    others = [path for path in paths if path.partition(".")[0].partition(":")[0] == TRL]
    if refused or any(path.partition(":")[0] != REWARDS for path in others):
        what = refused[0].module if refused else TRL
        raise SwarmError(
            f"no manifest names functions of {what}, which every node has: it could have anything called",
            f"Write a function into a file of its own that calls it; {REWARDS} may be named",
        )


def _list_own_requirements() -> set[str]:
    """Names of swarmd's direct and indirect requirements, extras included."""
    found = {DISTRIBUTION, "pip", "setuptools"}
    waiting = [DISTRIBUTION]
    while waiting:
        name = waiting.pop()
        try:
            needs = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:  # required by an extra that is not installed
            continue
        for each in needs:
            wanted = name == DISTRIBUTION or each.marker is None or each.marker.evaluate({"extra": ""})
            if wanted and (need := canonicalize_name(each.name)) not in found:
                found.add(need)
                waiting.append(need)
    return found
