"""The programs that tests start and that are not Python packages: where they are, and how to get them.

`python tests/programs.py --install` gets what is missing with apt-get, for root and for anyone who needs no password
for sudo, and names what it could not get, with the command that would. Prometheus goes into `.tools`: Debian's package
would start a service. The script runs before any package is installed, so it needs the standard library only.

In the environment, `WITHOUT="chromium systemd"` names programs that count as missing and are not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import SkipTest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".tools"
DEBIAN = TOOLS / "debian"
SYSTEMD = Path("/usr/lib/systemd/systemd")

INSTALL_S = 900.0  # longest call of apt-get
APT = ("apt-get", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3")


class ProgramMissing(SkipTest):
    """A program that tests start is not here; the message has the command that would get it. The test is skipped."""


class ProgramRequired(Exception):
    """It is not here, and with STRICT=1 in the environment every program must be: the test fails."""


@dataclass(frozen=True)
class Program:
    """What tests start, by the name that `pytest.mark.needs` has for it."""

    name: str
    purpose: str
    commands: dict[str, str]  # each with the Debian packages that bring it
    variable: str = ""  # of the environment, naming one that lies elsewhere
    place: str = ""  # a pattern in the working tree
    otherwise: str = ""  # another command that gets it
    unpacked: bool = False  # into .tools: Debian's package would start a service

    def find(self) -> Path | None:
        """Where it is; of commands that belong together the first."""
        if self.name in os.environ.get("WITHOUT", "").split():
            return None
        if named := os.environ.get(self.variable):
            return which(named)
        if self.place:
            return next(iter(sorted(ROOT.glob(self.place))), None)
        found = [which(command) for command in self.commands]
        return found[0] if all(found) else None

    def packages(self) -> list[str]:
        """Debian packages for those of its commands that are missing."""
        return [package for command, names in self.commands.items() if not which(command) for package in names.split()]

    def fix(self) -> str:
        """The command that gets it, or what to do."""
        if self.name in os.environ.get("WITHOUT", "").split():
            return f"take it out of WITHOUT={os.environ['WITHOUT']!r}"
        if named := os.environ.get(self.variable):
            return f"{self.variable}={named} is not a program"
        packages = " ".join(dict.fromkeys(self.packages()))
        ways = [f"{'' if is_root() else 'sudo '}apt-get install {packages}"] if packages else []
        ways += [self.otherwise] if self.otherwise else []
        return ", or ".join(ways) + (f", or name one in {self.variable}" if self.variable else "")

    def reason(self) -> str:
        return f"{self.name} is missing: {self.fix()}"


PROGRAMS = {
    program.name: program
    for program in (
        Program("node", "the contract, and the syntax of the pages", {"node": "nodejs", "npm": "npm"}),
        Program(
            "anvil",
            "everything that is on a chain",
            {},
            variable="SWARMD_ANVIL",
            place="contracts/node_modules/@foundry-rs/anvil-*/bin/anvil",
            otherwise="make contracts-setup (Linux on x86-64)",
        ),
        Program("bubblewrap", "the sandbox's first way", {"bwrap": "bubblewrap"}),
        Program("unshare", "the sandbox's limits", {"unshare": "util-linux", "setpriv": "util-linux"}),
        Program(
            "chromium",
            "the pages, in a browser",
            {"chromium": "chromium fontconfig"},
            variable="CHROMIUM",
        ),
        Program(
            "prometheus",
            "metrics, alerts and the dashboard's queries",
            {"prometheus": "prometheus", "promtool": "prometheus"},
            unpacked=True,
        ),
        Program(
            "systemd",
            "the units",
            {
                "systemd-analyze": "systemd",
                str(SYSTEMD): "systemd",
                "dbus-daemon": "dbus",
                "unshare": "util-linux",
                "nsenter": "util-linux",
                "setpriv": "util-linux",
            },
        ),
    )
}


def path_of(name: str) -> Path:
    """Where a program of the table is. Raises ProgramMissing, or ProgramRequired."""
    found = PROGRAMS[name].find()
    if found is None:
        error = ProgramRequired if os.environ.get("STRICT") == "1" else ProgramMissing
        raise error(PROGRAMS[name].reason())
    return found


def which(command: str) -> Path | None:
    """A command of this machine's, or one of `.tools`."""
    places = (os.environ.get("PATH", os.defpath), str(DEBIAN / "usr" / "bin"))
    found = shutil.which(command, path=os.pathsep.join(places))
    return Path(found) if found else None


def is_root() -> bool:
    return os.geteuid() == 0


def missing() -> list[Program]:
    return [program for program in PROGRAMS.values() if program.find() is None]


# --- installing ---


def rights() -> list[str] | None:
    """What stands before apt-get so that it may install; None if it may not."""
    if shutil.which("apt-get") is None:
        return None
    if is_root():
        return []
    return ["sudo", "-n"] if shutil.which("sudo") and run(["sudo", "-n", "true"]) == "" else None


def run(argv: list[str]) -> str:
    """Run a command to its end. Returns the end of its output if it fails, else nothing."""
    TOOLS.mkdir(exist_ok=True)
    ended = subprocess.run(
        argv,
        cwd=TOOLS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_S,
    )
    return "" if ended.returncode == 0 else "\n".join(ended.stdout.splitlines()[-8:]) or "it says nothing"


def install(programs: list[Program], before: list[str]) -> None:
    """Install what is missing, a package at a time, so that an unknown one does not stop the others."""
    packages = {package: program for program in programs for package in program.packages()}
    print(f"installing what tests start, with apt-get: {' '.join(packages)}", flush=True)
    failed = run([*before, *APT, "-q", "update"])
    for package, program in packages.items():
        if not program.unpacked:
            quiet = ["env", "DEBIAN_FRONTEND=noninteractive", *APT, "-qy", "--no-install-recommends"]
            failed = run([*before, *quiet, "install", package])
        elif not (failed := run([*APT, "-q", "download", package])):
            for archive in TOOLS.glob(f"{package}_*.deb"):
                failed = run(["dpkg-deb", "-x", str(archive), str(DEBIAN)])
                archive.unlink()
        if failed:
            print(f"  {package} cannot be installed:\n{failed}", flush=True)


def main() -> None:
    set_apart = os.environ.get("WITHOUT", "").split()
    wanted = [
        each for each in missing() if each.commands and each.name not in set_apart and not os.environ.get(each.variable)
    ]
    before = rights() if wanted and "--install" in sys.argv[1:] else None
    if before is not None:
        install(wanted, before)
    # make gets anvil with the packages of the contract, if there is npm.
    left = [each for each in missing() if each.commands or which("npm") is None]
    if left:
        print("NOT HERE, so tests that need it will be skipped:")
    for each in left:
        print(f"  {each.name} ({each.purpose}): {each.fix()}")


if __name__ == "__main__":
    main()
