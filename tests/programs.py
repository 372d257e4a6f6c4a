"""The programs that tests start and that are no Python packages: where they are, and how they come.

`python tests/programs.py --install` brings what is missing, as far as it may without asking: with apt-get for root and
for who needs no password for sudo, Prometheus and Chromium also into `.tools`. It says first what it is going to
install, and last what it could not get, with the command that would. It runs before any package is installed, so it
needs the standard library only.

In the environment, `WITHOUT="chromium systemd"` names programs that count as missing and are not installed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from unittest import SkipTest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".tools"
CHROMIUM = TOOLS / "chromium"
DEBIAN = TOOLS / "debian"
SYSTEMD = Path("/usr/lib/systemd/systemd")

# A Chromium with its libraries and a font, packed with brotli, which node unpacks.
NPM_CHROMIUM = "@sparticuz/chromium@147.0.0"
NPM_SHA512 = "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
UNPACK = """
const { createReadStream, createWriteStream } = require("fs"), { pipeline } = require("stream/promises");
const { createBrotliDecompress } = require("zlib"), [source, target] = process.argv.slice(1);
pipeline(createReadStream(source), createBrotliDecompress(), createWriteStream(target));
"""
LAUNCHER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/binary" "$@"
"""
FONTS = f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{CHROMIUM}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{CHROMIUM}/cache</cachedir></fontconfig>
"""
PLAIN_FILES = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

LOOK_S = 4.0
LONGEST_S = 900.0
LINE_MAX = 90
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
    size_mb: int = 0  # on disk, roughly, with what it depends on
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
            return f"{self.variable}={named} is no program"
        packages = " ".join(dict.fromkeys(self.packages()))
        ways = [f"{'' if is_root() else 'sudo '}apt-get install {packages}"] if packages else []
        ways += [self.otherwise] if self.otherwise else []
        return ", or ".join(ways) + (f", or name one in {self.variable}" if self.variable else "")

    def reason(self) -> str:
        return f"{self.name} is missing: {self.fix()}"


PROGRAMS = {
    program.name: program
    for program in (
        Program("node", "the contract, and the syntax of the pages", {"node": "nodejs", "npm": "npm"}, 250),
        Program(
            "anvil",
            "everything that is on a chain",
            {},
            variable="SWARMD_ANVIL",
            place="contracts/node_modules/@foundry-rs/anvil-*/bin/anvil",
            otherwise="make contracts-setup (Linux on x86-64)",
        ),
        Program("bubblewrap", "the sandbox's first way", {"bwrap": "bubblewrap"}, 1),
        Program("unshare", "the sandbox's limits", {"unshare": "util-linux", "setpriv": "util-linux"}, 5),
        Program(
            "chromium",
            "the pages, in a browser",
            {"chromium": "chromium fontconfig"},
            560,
            variable="CHROMIUM",
            otherwise="python tests/programs.py --install with npm (Linux on x86-64)",
        ),
        Program(
            "verifiers",
            "tasksets of verifiers, in an environment of their own",
            {},
            variable="VERIFIERS_PYTHON",
            place=".tools/verifiers/bin/python",
            otherwise="make verifiers",
        ),
        Program(
            "prometheus",
            "metrics, alerts and the dashboard's queries",
            {"prometheus": "prometheus", "promtool": "prometheus"},
            115,
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
            40,
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
    places = (os.environ.get("PATH", os.defpath), str(CHROMIUM), str(DEBIAN / "usr" / "bin"))
    found = shutil.which(command, path=os.pathsep.join(places))
    return Path(found) if found else None


def is_root() -> bool:
    return os.geteuid() == 0


def missing() -> list[Program]:
    return [program for program in PROGRAMS.values() if program.find() is None]


def npm_may_bring() -> bool:
    """Whether npm has what it takes: Chromium and anvil come for Linux on x86-64."""
    here = (platform.system(), platform.machine())
    return here == ("Linux", "x86_64") and which("npm") is not None and which("node") is not None


# --- installing ---


def wanted() -> list[Program]:
    """What is missing and may be installed: not what the environment says where it is, or that it is not."""
    set_apart = os.environ.get("WITHOUT", "").split()
    return [each for each in missing() if each.name not in set_apart and not os.environ.get(each.variable)]


def rights() -> list[str] | None:
    """What stands before apt-get so that it may install, None where it may not."""
    if shutil.which("apt-get") is None:
        return None
    if is_root():
        return []
    asked = shutil.which("sudo") and subprocess.run(
        ["sudo", "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True
    )
    return ["sudo", "-n"] if asked and asked.returncode == 0 else None


def say(text: str) -> None:
    print(text, flush=True)


def run(what: str, argv: Iterable[str | Path]) -> bool:
    """Run a command, saying every few seconds how far it is. False, with the end of its output, where it fails."""
    TOOLS.mkdir(exist_ok=True)
    log, began = TOOLS / "install.log", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, argv)), cwd=TOOLS, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        while process.poll() is None and time.monotonic() < began + LONGEST_S:
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                say(f"  {what}, {time.monotonic() - began:.0f} s: {last_lines(log, 1)}".rstrip(": "))
        process.kill()
    if process.wait() != 0:
        say(f"  {what} failed:\n{last_lines(log, 8)}")
    return process.returncode == 0


def last_lines(log: Path, count: int) -> str:
    lines = [line.strip()[:LINE_MAX] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def apt_install(before: list[str], packages: list[str]) -> None:
    """All in one call; where that fails, each by itself, so that one unknown package does not stop the others."""
    run("apt-get update", [*before, *APT, "-q", "update"])
    install = [*before, "env", "DEBIAN_FRONTEND=noninteractive", *APT, "-qy", "--no-install-recommends", "install"]
    if not run("apt-get install", [*install, *packages]) and len(packages) > 1:
        for package in packages:
            run(f"apt-get install {package}", [*install, package])


def apt_unpack(package: str) -> None:
    """A package's files into .tools, without running what it would run; needs no rights, but lists of packages."""
    if run(f"apt-get download {package}", [*APT, "-q", "download", package]):
        for archive in TOOLS.glob(f"{package}_*.deb"):
            run(f"unpacking {package}", ["dpkg-deb", "-x", archive, DEBIAN])
            archive.unlink()


def npm_chromium() -> None:
    """npm's Chromium into .tools; what is not whole is not left there."""
    packed = TOOLS / "sparticuz-chromium-147.0.0.tgz"
    if not run("npm pack", ["npm", "pack", "--silent", NPM_CHROMIUM]):
        return
    digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if digest != NPM_SHA512:
        say(f"  {NPM_CHROMIUM} is not what it was: its SHA-512 is {digest}")
    elif not unpack_chromium(packed):
        shutil.rmtree(CHROMIUM, ignore_errors=True)
    packed.unlink()


def unpack_chromium(packed: Path) -> bool:
    """Its binary, libraries and font, and a script that starts it with them. False where a part of it fails."""
    shutil.rmtree(CHROMIUM, ignore_errors=True)
    with tarfile.open(packed) as archive:
        archive.extractall(CHROMIUM, **PLAIN_FILES)
    parts = CHROMIUM / "package" / "bin"
    for part in parts.glob("*.br"):
        if not run(f"unpacking {part.stem}", ["node", "-e", UNPACK, part, part.with_suffix("")]):
            return False
    for part in parts.glob("*.tar"):
        with tarfile.open(part) as archive:
            archive.extractall(CHROMIUM, **PLAIN_FILES)
    (parts / "chromium").replace(CHROMIUM / "binary")
    (CHROMIUM / "fonts.conf").write_text(FONTS)
    (CHROMIUM / "chromium").write_text(LAUNCHER)
    for program in ("binary", "chromium"):
        (CHROMIUM / program).chmod(0o755)
    shutil.rmtree(CHROMIUM / "package")
    return run("starting Chromium", [CHROMIUM / "chromium", "--version"])


def plan(absent: list[Program], before: list[str] | None) -> tuple[list[str], list[str], bool]:
    """What apt-get installs, what it unpacks, and whether npm brings Chromium."""
    installed = [] if before is None else [each for each in absent if each.commands and not each.unpacked]
    unpacked = [each for each in absent if each.unpacked and shutil.which("apt-get") and shutil.which("dpkg-deb")]
    npm = before is None and PROGRAMS["chromium"] in absent and npm_may_bring()
    size_mb = sum(each.size_mb for each in (*installed, *unpacked)) + (290 if npm else 0)
    packages, apart = packages_of(installed), packages_of(unpacked)
    parts = [f"with apt-get: {' '.join(packages)}"] if packages else []
    parts += [f"with apt-get, into {TOOLS.name}: {' '.join(apart)}"] if apart else []
    parts += [f"with npm, into {TOOLS.name}: {NPM_CHROMIUM}"] if npm else []
    if parts:
        say(f"installing what tests start, {'; '.join(parts)} (about {size_mb} MB)")
    return packages, apart, npm


def packages_of(programs: list[Program]) -> list[str]:
    return list(dict.fromkeys(package for program in programs for package in program.packages()))


def install() -> None:
    """Bring what is missing, by whatever way there is."""
    before = rights()
    packages, apart, _ = plan(wanted(), before)
    if packages:
        apt_install(before or [], packages)
    elif apart and before is not None:
        run("apt-get update", [*before, *APT, "-q", "update"])
    for package in apart:
        apt_unpack(package)
    if PROGRAMS["chromium"] in wanted() and npm_may_bring():
        npm_chromium()


def tell() -> None:
    """Name what is still missing; anvil comes with the contract's packages."""
    left = [each for each in missing() if each.name != "anvil" or not npm_may_bring()]
    if left:
        say("NOT HERE, so tests that need it will be skipped:")
    for each in left:
        say(f"  {each.name} ({each.purpose}): {each.fix()}")


def main() -> None:
    if [each for each in wanted() if each.name != "anvil"] and "--install" in sys.argv[1:]:
        install()
    tell()


if __name__ == "__main__":
    main()
