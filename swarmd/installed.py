"""How swarmd was installed, and the command that adds packages to the same environment.

swarmd is on no package index: `make dist` builds a wheel (docs/OPERATING.md, Install). The packages of its extras are
on PyPI, so fixes name these instead of the extra.
"""

import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from swarmd.errors import ConfigError

DISTRIBUTION = "swarmd"
WHEEL = "swarmd-*.whl"  # in the user's current directory
TOOLS = {"pipx": "pipx_metadata.json", "uv": "uv-receipt.toml"}  # tool → a file that marks its environments


def detect_install_tool(prefix: Path) -> str:
    """`pipx` or `uv` if it made this environment, else empty."""
    return next((name for name, receipt in TOOLS.items() if (prefix / receipt).is_file()), "")


def install_command(*requirements: str, prefix: str = sys.prefix) -> str:
    """The command that installs packages into swarmd's environment."""
    wanted = [f"'{each}'" for each in requirements]
    tool = detect_install_tool(Path(prefix))
    if tool == "pipx":
        return f"pipx inject {DISTRIBUTION} {' '.join(wanted)}"
    if tool == "uv":
        return f"uv tool install --compile-bytecode {' '.join(f'--with {each}' for each in wanted)} ./{WHEEL}"
    return f"{sys.executable} -m pip install {' '.join(wanted)}"


def extra_command(extra: str) -> str:
    try:
        needs = [Requirement(each) for each in requires(DISTRIBUTION) or []]
    except PackageNotFoundError:  # a checkout that was never installed
        needs = []
    optional = [each for each in needs if each.marker and not each.marker.evaluate({"extra": ""})]
    brought = [each for each in optional if each.marker and each.marker.evaluate({"extra": extra})]
    return install_command(*([f"{each.name}{each.specifier}" for each in brought] or [extra]))


def import_optional(package: str, extra: str, key: str) -> Any:
    """Import an optional package. Raises ConfigError, which names the setting and the package, if it is missing."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{key} needs the package {package}, which is not installed", f"Install it: {extra_command(extra)}"
        )
    return importlib.import_module(package)
