"""Makes .venv from constraints.txt: `environment.py run` for a node, `environment.py test` for tests too.

make calls it, with any Python from 3.11 and before anything is installed, so it has the standard library alone. What is
locked needs no resolving, and bytecode is compiled when it is first wanted: those two take pip longest. uv, itself
locked, installs; where it cannot, pip does (`INSTALLER=pip` asks for that). Calling it again costs nothing while
pyproject.toml and constraints.txt stay, and installs the differences once they change.

torch comes in two builds: that for CUDA takes some 4 GB more. Without an accelerator the other one is taken, unless
`--torch` says otherwise (`make setup TORCH=cpu` or `TORCH=default`).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Iterator, NamedTuple  # noqa: UP035 - older Pythons come as far as being refused

from pip_config import uv_options, uv_settings
from telling import Screen, describe, explain, last_lines

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)
SECTIONS = {"run": ("running", "bootstrap"), "test": ("running", "bootstrap", "testing")}
CUDA_MORE_MB = 4000  # what torch's CUDA build takes beyond the other, with the libraries that it brings
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_INDEX_S = 10  # without an answer


class Failed(Exception):
    """What could not be done, and the fix."""


class Torch(NamedTuple):
    """The build of torch to install: `cpu` or `default`, and why."""

    build: str
    why: str


class Lock(NamedTuple):
    """What constraints.txt says: `{section: {name: version}}`, and what each section takes on the disk."""

    pins: dict[str, dict[str, str]]
    megabytes: dict[str, int]


def asked_installer() -> str:
    """`uv`, or what INSTALLER says. Raises Failed where that is neither uv nor pip."""
    asked = os.environ.get("INSTALLER") or "uv"
    if asked not in ("uv", "pip"):
        raise Failed(f"INSTALLER is {asked!r}: uv and pip are what installs; leave it out for uv")
    return asked


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> Lock:
    """Sections begin with `# TITLE: N packages, N MB`."""
    lock, title = Lock({}, {}), ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"# (\w+): \d+ packages, (\d+) MB", line):
            title = heading[1]
            lock.pins[title], lock.megabytes[title] = {}, int(heading[2])
        elif title and "==" in line:
            name, _, version = line.partition("==")
            lock.pins[title][canonical(name)] = version.strip()
    return lock


def find_accelerator(root: Path = Path("/")) -> str:
    """The kind of accelerator that the kernel knows of, empty without one."""
    if (root / "dev/nvidiactl").exists() or (root / "proc/driver/nvidia/version").exists():
        return "NVIDIA"
    if (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        return "NVIDIA"
    return "AMD" if (root / "dev/kfd").exists() else ""


def choose_torch(asked: str, platform: str, accelerator: str) -> Torch:
    if platform != "linux":
        return Torch("default", "the only one for this system")
    if asked:
        return Torch(asked, f"asked for by TORCH={asked}")
    if accelerator == "AMD":
        return Torch("default", "there is an AMD device; for ROCm set PIP_INDEX_URL to PyTorch's index for it")
    if accelerator:
        return Torch("default", f"there is an {accelerator} device; TORCH=cpu takes the small build")
    return Torch("cpu", "no accelerator was found; TORCH=default takes the build for CUDA")


class Environment:
    """A virtual environment, looked at from outside."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.python = place / "bin" / "python"
        self.uv = place / "bin" / "uv"
        self._sizes: dict[str, int] = {}

    def packages(self) -> Iterator[Path]:
        """What is installed whole: a package's RECORD is written last."""
        for record in self.place.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
            yield record.parent

    def versions(self) -> dict[str, str]:
        named = (package.name[: -len(".dist-info")].rpartition("-") for package in self.packages())
        return {canonical(name): version for name, _, version in named}

    def forget_halves(self) -> None:
        """A package whose installation was interrupted is none, so that it is installed again."""
        for package in self.place.glob("lib/python3*/site-packages/*.dist-info"):
            if not (package / "RECORD").exists():
                shutil.rmtree(package)

    def clear(self) -> None:
        """Remove what is left of an environment that was interrupted, or whose Python is gone."""
        for name in ("bin", "include", "lib"):
            shutil.rmtree(self.place / name, ignore_errors=True)

    def megabytes(self) -> float:
        for package in self.packages():
            if package.name not in self._sizes:
                sizes = re.findall(r",(\d+)\r?$", (package / "RECORD").read_text(encoding="utf-8"), re.M)
                self._sizes[package.name] = sum(map(int, sizes))
        return sum(self._sizes.values()) / 1e6

    def is_sound(self) -> bool:
        """Whether its Python is there and finds pip: one that the system has replaced by the next looks elsewhere."""
        name = self.python.resolve().name
        library = name if re.fullmatch(r"python3\.\d+t?", name) else "python3*"
        return self.python.exists() and any(self.place.glob(f"lib/{library}/site-packages/pip/__main__.py"))


class Setup:
    """One call: what is wanted, where, and how it is told."""

    def __init__(self, purpose: str, torch: str = "", root: Path = ROOT, out: IO[str] = sys.stdout) -> None:
        self.purpose, self.root = purpose, root
        self.constraints = root / "constraints.txt"
        text = self.constraints.read_text(encoding="utf-8")
        self.lock, self.digest = read_lock(text), self._digest(text, torch)
        self.wanted = {k: v for title in SECTIONS[purpose] for k, v in self.lock.pins[title].items()}
        self.environment = Environment(root / ".venv")
        self.torch_asked = torch
        self.screen = Screen(out)
        self.log = self.environment.place / "install.log"
        self.uses_uv = False
        self.uv_settings: dict[str, str] = {}
        self.uv_options: list[str] = []

    def _digest(self, lock: str, torch: str) -> str:
        parts = (lock, (self.root / "pyproject.toml").read_text(encoding="utf-8"), torch)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    # --- what was done before ---

    def marker(self, purpose: str) -> Path:
        return self.environment.place / f".ready-{purpose}"

    def is_done(self) -> bool:
        marker = self.marker(self.purpose)
        done = marker.exists() and marker.read_text(encoding="utf-8") == self.digest and self.environment.is_sound()
        if done:
            marker.touch()  # make compares times
        return done

    def missing(self) -> dict[str, str]:
        """What is locked and not installed in that version; torch in either build."""
        have = {name: version.partition("+")[0] for name, version in self.environment.versions().items()}
        return {name: version for name, version in self.wanted.items() if have.get(name) != version}

    # --- the way there ---

    def prepare(self) -> None:
        """Install what is missing, telling of it. Raises Failed."""
        if self.is_done():
            return
        self.environment.place.mkdir(exist_ok=True)
        with self._alone():
            if not self.is_done():
                self._prepare()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """`make run` and `make test` at once: one waits for the other."""
        with (self.environment.place / "setup.lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self.screen.tick(lambda: "waiting for another make that installs")
                    time.sleep(0.2)
            yield

    def _prepare(self) -> None:
        torch = choose_torch(self.torch_asked, sys.platform, find_accelerator())
        self.uses_uv = asked_installer() == "uv"
        self.environment.forget_halves()
        if not self.environment.is_sound():
            self.environment.clear()
        missing = self.missing()
        self.announce(missing, torch)
        if not self.environment.is_sound():
            self._make_venv()
        self._take_uv(missing)
        if "torch" in missing or self._is_other_build():
            self._take_torch(torch, missing.pop("torch", self.wanted.get("torch", "")))
        if missing:
            self._install("--no-deps", "-r", str(self._list(missing)), what="packages")
        self._install("--no-deps", "--no-build-isolation", "--editable", str(self.root), what="swarmd itself")
        self._fill_gaps()
        for purpose, sections in SECTIONS.items():
            if set(sections) <= set(SECTIONS[self.purpose]):
                self.marker(purpose).write_text(self.digest, encoding="utf-8")
        took = time.monotonic() - self.screen.began
        self.screen.say(f".venv is ready: {len(self.environment.versions())} packages, {took:.0f} s")

    def announce(self, missing: dict[str, str], torch: Torch) -> None:
        """Before anything is fetched: how much it is, and which torch."""
        what = {"run": "a node needs", "test": "a node and its tests need"}[self.purpose]
        size = sum(
            self.lock.megabytes[title] for title in SECTIONS[self.purpose] if set(self.lock.pins[title]) & set(missing)
        )
        size += CUDA_MORE_MB if "torch" in missing and torch.build == "default" and sys.platform == "linux" else 0
        many = len(missing) > len(self.wanted) // 20  # the size of a few changed ones is not known
        takes = f", about {size / 1000:.1f} GB on the disk" if many else ""
        self.screen.say(f"setting up .venv with what {what}: {len(missing)} packages to install{takes}")
        if "torch" in missing:
            name = {"cpu": "CPU build", "default": "default build"}[torch.build]
            self.screen.say(f"  torch's {name}: {torch.why}")
        free = shutil.disk_usage(self.root).free / 1e6
        if many and free < size:
            raise Failed(f"the disk has {free / 1000:.1f} GB left: make room, or have the checkout elsewhere")

    def _make_venv(self) -> None:
        if self._call([sys.executable, "-m", "venv", str(self.environment.place)], "making .venv"):
            fix = "install what `python3 -m venv` needs (Debian, Ubuntu: apt install python3-venv)"
            raise Failed("\n".join([*last_lines(self._said()), "", f".venv could not be made: {fix}"]))

    def _is_other_build(self) -> bool:
        """Whether the torch that is there is not the one that was asked for by name."""
        here = self.environment.versions().get("torch", "")
        is_cpu = here.endswith("+cpu")
        return bool(self.torch_asked and here) and sys.platform == "linux" and is_cpu != (self.torch_asked == "cpu")

    def _list(self, packages: dict[str, str]) -> Path:
        path = self.environment.place / "missing.txt"
        path.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8")
        return path

    # --- installers ---

    def _take_uv(self, missing: dict[str, str]) -> None:
        """uv, by pip, where it is asked for; without it pip does everything."""
        version = missing.pop("uv", "")
        if self.uses_uv and version:
            self._call([*self._pip(), "install", "--no-deps", f"uv=={version}"], "fetching uv")
        self.uses_uv = self.uses_uv and os.access(self.environment.uv, os.X_OK)
        if not self.uses_uv:
            self.screen.say("  installing without uv, by pip alone: that takes some minutes")
        elif not self._call([*self._pip(), "config", "list"], "asking pip where it looks"):
            self.uv_settings = uv_settings(self._said())
            self.uv_options = uv_options(self._said())

    def _take_torch(self, torch: Torch, version: str) -> None:
        """The CPU build from wherever pip is set to look, else from PyTorch's own index, else the default build."""
        pinned, what = f"torch=={version}", "fetching torch"
        resolved = ("-c", str(self.constraints), pinned)  # the CUDA build has needs that the lock does not know
        if torch.build == "default":
            self._call([*self._installer(), "uninstall", *self._yes(), "torch"], what)
            self._install(*resolved, what=what)
            return
        cpu = ("--no-deps", f"{pinned}+cpu")
        if not self._call([*self._put(), *cpu], what, counts=True):
            return
        self.screen.say(f"  torch's CPU build is not where pip is set to look: asking {CPU_INDEX}")
        if not self._call([*self._put(), "--index-url", CPU_INDEX, *cpu], what, timeout_s=CPU_INDEX_S):
            return
        self.screen.say(
            f"  {CPU_INDEX} does not answer: taking the build for CUDA, {CUDA_MORE_MB / 1000:.0f} GB more.\n"
            "  Rather the small one? Stop this, set PIP_FIND_LINKS to a directory with its wheel, and call make again"
        )
        self._install(*resolved, what=what)

    def _fill_gaps(self) -> None:
        """What packages need on this system and the lock, made on another, does not have: resolved, within the lock."""
        if self._call([*self._installer(), "check"], "checking") and "not installed" in self._said():
            self.screen.say("  the lock was made on another system: adding what is needed on this one")
            self._install("-c", str(self.constraints), "--editable", str(self.root), what="adding")

    def _installer(self) -> list[str]:
        return [str(self.environment.uv), "pip"] if self.uses_uv else self._pip()

    def _put(self) -> list[str]:
        return [*self._installer(), "install", *(self.uv_options if self.uses_uv else [])]

    def _pip(self) -> list[str]:
        return [str(self.environment.python), "-m", "pip"]

    def _yes(self) -> list[str]:
        return [] if self.uses_uv else ["--yes"]

    def _install(self, *args: str, what: str) -> None:
        """By uv, and where that fails, by pip. Raises Failed."""
        if not self._call([*self._put(), *args], what, counts=True):
            return
        if self.uses_uv:
            self.screen.say(f"  uv failed, pip tries the same: {(last_lines(self._said()) or ['no word'])[-1].strip()}")
            self.uses_uv = False
            if not self._call([*self._pip(), "install", *args], what, counts=True):
                return
        raise Failed(explain(self._said()))

    def _call(self, command: list[str], what: str, counts: bool = False, timeout_s: int = 0) -> int:
        """Run a program to its end, showing where it stands; what it says goes into a file. Returns its exit status."""
        total = len(self.missing()) if counts else 0
        with self.log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self._variables(timeout_s)
            )
        while True:
            try:
                return process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                self.screen.tick(lambda: self._where(what, total))
            except KeyboardInterrupt:
                process.wait()
                raise

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _where(self, what: str, total: int) -> str:
        if not total:
            return what
        return f"{what}: {describe(self._said(), total - len(self.missing()), total, self.environment.megabytes())}"

    def _variables(self, timeout_s: int = 0) -> dict[str, str]:
        """What both installers are told: neither asks nor compiles, nor waits long for an index that is away."""
        told = {"PIP_NO_INPUT": "1", "PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        told |= {"PIP_PROGRESS_BAR": "off", "VIRTUAL_ENV": str(self.environment.place)}
        told |= {name: value for name, value in self.uv_settings.items() if name not in os.environ}
        if timeout_s:
            told |= {"PIP_DEFAULT_TIMEOUT": str(timeout_s), "PIP_RETRIES": "0"}
            told |= {"UV_HTTP_TIMEOUT": str(timeout_s), "UV_HTTP_RETRIES": "0"}
        return os.environ | told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("purpose", choices=SECTIONS)
    parser.add_argument(
        "--torch", choices=("", "cpu", "default"), default="", help="the build of torch; else by device"
    )
    args = parser.parse_args()
    if sys.version_info < PYTHON_MIN:
        have = ".".join(map(str, sys.version_info[:2]))
        print(
            f"swarmd needs Python 3.11 or newer, {sys.executable} is {have}; try: make PYTHON=/path/to/python3.11",
            file=sys.stderr,
        )
        return 1
    try:
        Setup(args.purpose, args.torch).prepare()
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    except OSError as error:
        where = error.filename or Path(".venv").absolute()
        print(f"{where}: {error.strerror or error}: make room there, or make it writable", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; make goes on from here when it is called again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
