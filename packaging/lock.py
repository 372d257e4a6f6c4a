"""Writes down what is installed: `python packaging/lock.py` in the environment to write down (`make lock`).

`constraints.txt` gets the exact version of all that swarmd's requirements lead to, in three sections: what running
needs, what installing it needs besides, what tests need besides. `pyproject.toml` gets the first of them as the extra
`locked`. Which package belongs where, the metadata of the installed packages say. A package that is installed and
that nothing leads to is left out.

What comes of it holds for the machine that it was made on: requirements of other systems are not in it.
"""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "# begin locked: `make lock` writes these lines\n", "# end locked\n"
HEADING = """\
# Exact versions of everything that swarmd installs; `make lock` writes this file.
# Made on {system} {machine} with Python {python}; what other systems need besides is not in it.
"""

Installed = Mapping[str, Distribution]


def read_installed() -> dict[str, Distribution]:
    """By canonical name."""
    return {canonicalize_name(each.metadata["Name"]): each for each in distributions()}


def follow(requirements: Iterable[str], installed: Installed) -> set[str]:
    """The canonical names of all packages that requirements lead to. Raises LookupError for one that is missing."""
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ends = [Requirement(each) for each in requirements]
    while open_ends:
        requirement = open_ends.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        if name not in installed:
            raise LookupError(
                f"{requirement} is not installed here: `.venv/bin/pip install -e '.[dev]'`, then `make lock`"
            )
        seen.add((name, extras))
        needs = map(Requirement, installed[name].requires or [])
        open_ends += [need for need in needs if _applies(need, extras)]
    return {name for name, _ in seen}


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def sections(project: Mapping[str, object], installed: Installed) -> dict[str, set[str]]:
    """Which packages running needs, installing from a checkout needs besides, and tests need besides."""
    running = follow(project["project"]["dependencies"], installed)
    bootstrap = follow(project["dependency-groups"]["bootstrap"], installed)
    testing = follow(project["project"]["optional-dependencies"]["dev"], installed)
    return {"running": running, "bootstrap": bootstrap - running, "testing": testing - bootstrap - running}


def pins(names: Iterable[str], installed: Installed) -> list[str]:
    """`NAME==VERSION`, without the local part that tells builds of one version apart."""
    found = [(installed[name].metadata["Name"], Version(installed[name].version).public) for name in names]
    return [f"{name}=={version}" for name, version in sorted(found, key=lambda each: each[0].lower())]


def megabytes(names: Iterable[str], installed: Installed) -> int:
    """What the packages take on the disk, without compiled bytecode."""
    files = (file for name in names for file in installed[name].files or [])
    return round(sum(file.size or 0 for file in files if file.suffix != ".pyc") / 1e6)


def write_constraints(parts: Mapping[str, set[str]], installed: Installed) -> str:
    """The text of `constraints.txt`."""
    made_on = {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}
    text = HEADING.format(**made_on)
    for title, names in parts.items():
        text += f"\n# {title}: {len(names)} packages, {megabytes(names, installed)} MB\n"
        text += "".join(f"{pin}\n" for pin in pins(names, installed))
    return text


def write_extra(pyproject: str, running: Iterable[str]) -> str:
    """The text of `pyproject.toml` with these pins as the extra `locked`."""
    lines = "".join(f'    "{pin}",\n' for pin in running)
    block = f"{BEGIN}locked = [\n{lines}]\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: block, pyproject, count=1, flags=re.DOTALL)


def check_torch(installed: Installed, system: str = platform.system()) -> None:
    """What only the build for CUDA needs must not get into the lock."""
    if system == "Linux" and Version(installed["torch"].version).local != "cpu":
        raise LookupError("the lock is made with torch's CPU build: run `make setup TORCH=cpu`, then `make lock`")


def main() -> None:
    pyproject = ROOT / "pyproject.toml"
    text, installed = pyproject.read_text(encoding="utf-8"), read_installed()
    check_torch(installed)
    parts = sections(tomllib.loads(text), installed)
    (ROOT / "constraints.txt").write_text(write_constraints(parts, installed), encoding="utf-8")
    pyproject.write_text(write_extra(text, pins(parts["running"], installed)), encoding="utf-8")
    print(", ".join(f"{title} {len(names)}" for title, names in parts.items()), "packages written down")


if __name__ == "__main__":
    try:
        main()
    except LookupError as error:
        sys.exit(str(error))
