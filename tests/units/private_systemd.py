"""A systemd of the tests' own: PID 1 of private namespaces, gone with the test, without a trace on the machine.

Its root is an overlay over the machine's, whose writes go to memory; temporary and run-time directories, devices, the
network and the process tree are its own, and of the machine's units it has targets, slices and the journal alone. The
interpreter and swarmd lie in it where a service may reach them: a virtual environment at /opt/swarmd, the working
tree at /opt/checkout. Needs root, a version 2 cgroup tree, and systemd and util-linux installed. It guards against
mishaps, not against a hostile root inside.

Run as a script, this file is what becomes PID 1.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSIDE = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "SYSTEMD_PAGER": "cat", "SYSTEMD_COLORS": "0"}
CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEMD = Path("/usr/lib/systemd")
VENV, PYTHON, PACKAGES, TREE = "/opt/swarmd", "/opt/python", "/opt/site-packages", "/opt/checkout"
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
NEW_CGROUP_NAMESPACE = 0x02000000
BOOT_S = 120.0
CALL_S = 120.0
DROPPED = "-sys_module,-sys_rawio,-sys_time,-syslog,-wake_alarm,-block_suspend,-mac_admin,-mac_override"
T = TypeVar("T")


class CannotBoot(Exception):
    """The machine refuses what a systemd of the tests' own is made of; the message has its words."""


class PrivateSystemd:
    """Boots on entering, and is killed with all its processes on leaving. `state` is an empty directory."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._cgroup = own_cgroup() / f"private-systemd-{os.getpid()}-{state.name}"
        self._log = state / "boot.log"
        self._unshare: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> PrivateSystemd:
        try:
            (self._cgroup / "system").mkdir(parents=True)
        except OSError as error:
            raise CannotBoot(str(error)) from error
        order = {"cgroup": str(self._cgroup / "system"), "state": str(self._state), "outside": mounts()}
        namespaces = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net")
        outer = ("setpriv", "--pdeathsig=KILL", f"--bounding-set={DROPPED}", "unshare", *namespaces)
        argv = (*outer, sys.executable, __file__, json.dumps(order))
        try:
            with self._log.open("wb") as log:
                self._unshare = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.until(self._is_up, BOOT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        (self._cgroup / "cgroup.kill").write_text("1")
        if self._unshare is not None:
            self._unshare.kill()
            self._unshare.wait()
        self.until(lambda: "populated 0" in (self._cgroup / "cgroup.events").read_text())
        for directory in sorted(self._cgroup.rglob("*/"), reverse=True):
            if directory.is_dir():
                directory.rmdir()
        self._cgroup.rmdir()

    def _is_up(self) -> bool:
        assert self._unshare is not None
        if self._unshare.poll() is not None:
            raise CannotBoot(self._log.read_text().strip().rpartition("\n")[2] or "it ended at once")
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        self._pid = int(children[0]) if children else 0
        if not self._pid or Path(f"/proc/{self._pid}/comm").read_text() != "systemd\n":
            return False
        return self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded")

    def run(self, *argv: str, check: bool = True, feed: str = "", timeout_s: float = CALL_S) -> str:
        """Run a command inside, as root. Returns what it printed; raises AssertionError where it fails."""
        ended = self.call(*argv, feed=feed, timeout_s=timeout_s)
        said = ended.stdout + ended.stderr
        assert ended.returncode == 0 or not check, f"{' '.join(argv)} ended with {ended.returncode}:\n{said}"
        return ended.stdout

    def call(self, *argv: str, feed: str = "", timeout_s: float = CALL_S) -> subprocess.CompletedProcess[str]:
        """As `run`, whatever its exit code."""
        enter = ("nsenter", f"--target={self._pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd")
        return subprocess.run(
            (*enter, "--", *argv), input=feed, env=INSIDE, capture_output=True, text=True, timeout=timeout_s
        )

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file inside."""
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def path(self, place: str) -> Path:
        """A file inside, as seen from outside."""
        return Path(f"/proc/{self._pid}/root") / place.lstrip("/")

    def until(self, condition: Callable[[], T], longest_s: float = 120.0) -> T:
        """Wait for a condition."""
        end = time.monotonic() + longest_s
        while time.monotonic() < end:
            if met := condition():
                return met
            time.sleep(0.1)
        raise AssertionError(f"not met within {longest_s:g} s")


def mounts() -> str:
    """Which mount namespace this process is in."""
    return str(Path("/proc/self/ns/mnt").readlink())


def own_cgroup() -> Path:
    """This process's directory in the version 2 tree."""
    mounted = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    top = next((Path(fields[1]) for fields in mounted if fields[2] == "cgroup2"), None)
    inner = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "")
    if top is None:
        raise CannotBoot("no version 2 cgroup tree is mounted")
    return top / inner.removeprefix("0::/")


# --- from here on inside, as PID 1 of the new namespaces ---


def boot(order: dict[str, str]) -> None:
    """Build the root file system, go there, and become systemd."""
    assert os.getpid() == 1 and mounts() != order["outside"], "not in namespaces of its own"
    Path(order["cgroup"], "cgroup.procs").write_text("0")
    assert ctypes.CDLL(None).unshare(NEW_CGROUP_NAMESPACE) == 0, "no cgroup namespace"
    root = make_root(Path(order["state"]))
    lay_python(root)
    os.chdir(root)
    (root / ".outside").mkdir()
    sh("pivot_root", ".", ".outside")
    os.chdir("/")
    sh("umount", "--lazy", "/.outside")
    sh("mount", "--make-rshared", "/")  # shared among the services in here; credentials need it
    mount_own()
    choose_units()
    sh("ldconfig")
    os.execve(
        SYSTEMD / "systemd", ["systemd", "--system", "--unit=multi-user.target"], {"PATH": PATH, "container": "x"}
    )


def sh(*argv: str) -> None:
    subprocess.run(argv, check=True)


def memory(place: str, mode: str = "755") -> None:
    sh("mount", "-t", "tmpfs", "-o", f"mode={mode},size=512m", "private", place)


def make_root(state: Path) -> Path:
    memory(str(state))
    upper, work, root = (state / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
    sh("mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", "private", str(root))
    for name in ("tmp", "run", "dev", "proc", "sys", "var/tmp"):
        assert stat.S_ISDIR((root / name).lstat().st_mode), f"/{name} is no plain directory"
    sh("mount", "-t", "proc", "-o", "nosuid,nodev,noexec", "proc", str(root / "proc"))
    return root


def show(source: str | Path, root: Path, place: str) -> None:
    """Bind a directory of the machine, read-only."""
    target = root / place.lstrip("/")
    target.mkdir(parents=True)
    sh("mount", "--bind", str(source), str(target))
    sh("mount", "-o", "remount,bind,ro", str(target))


def lay_python(root: Path) -> None:
    """A virtual environment out of the one that runs this, all of it outside home directories."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = "/usr" if sys.base_prefix == "/usr" else PYTHON
    if base == PYTHON:
        show(sys.base_prefix, root, PYTHON)
        (root / "etc/ld.so.conf.d/00-python.conf").write_text(f"{PYTHON}/lib\n")
    show(CHECKOUT, root, TREE)
    show(Path(sys.prefix) / "lib" / version / "site-packages", root, PACKAGES)
    venv = root / VENV.lstrip("/")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(f"{base}/bin/{version}")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
    site = venv / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (site / "private.pth").write_text(f"{TREE}\n{PACKAGES}\n")
    script = venv / "bin/swarmd"
    script.write_text(f"#!{VENV}/bin/python\nfrom swarmd.cli import main\nmain()\n")
    script.chmod(0o755)


def mount_own() -> None:
    for name in ("sys", "sysrq-trigger", "irq", "bus"):
        if Path("/proc", name).exists():
            sh("mount", "--bind", f"/proc/{name}", f"/proc/{name}")
            sh("mount", "-o", "remount,bind,ro", f"/proc/{name}")
    sh("mount", "-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", "/sys")
    sh("mount", "-t", "cgroup2", "-o", "nosuid,nodev,noexec", "cgroup2", "/sys/fs/cgroup")
    for place, mode in (("/tmp", "1777"), ("/var/tmp", "1777"), ("/run", "755")):
        memory(place, mode)
    memory("/dev")
    for name, number in DEVICES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR, os.makedev(*number))
        Path("/dev", name).chmod(0o666)
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir()
    sh("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", "/dev/pts")
    memory("/dev/shm", "1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        Path("/dev", name).symlink_to(target)


def choose_units() -> None:
    """Of the machine's units only targets, slices, the journal and the message bus: no service of it starts in here."""
    wanted = ("*.target", "*.slice", "systemd-journald*", "dbus.s*")
    kept = Path("/run/units")
    kept.mkdir()
    for pattern in wanted:
        for unit in (SYSTEMD / "system").glob(pattern):
            if not unit.is_dir():
                shutil.copy(unit, kept / unit.name, follow_symlinks=False)
    for place in ("/etc/systemd", str(SYSTEMD / "system"), str(SYSTEMD / "system-generators")):
        memory(place)
    shutil.copytree(kept, SYSTEMD / "system", symlinks=True, dirs_exist_ok=True)
    journal = ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
    for target, units in (("sysinit", journal), ("sockets", ("dbus.socket",))):
        wants = SYSTEMD / f"system/{target}.target.wants"
        wants.mkdir()
        for unit in units:
            (wants / unit).symlink_to(f"../{unit}")
    Path("/etc/systemd/system").mkdir()
    Path("/etc/systemd/journald.conf").write_text("[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n")
    Path("/etc/systemd/system.conf").write_text("[Manager]\nLogTarget=journal\nShowStatus=no\n")
    identity = Path("/etc/machine-id")
    identity.unlink(missing_ok=True)
    identity.write_text(os.urandom(16).hex() + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    boot(json.loads(sys.argv[1]))
