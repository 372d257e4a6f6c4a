"""Which isolation is taken, and what is said where there is none."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.errors import SandboxUnavailable
from swarmd.sandbox import Limits, Sandbox, syscalls
from swarmd.sandbox.sandbox import find_sandbox_layout

ROOT = Path(__file__).resolve().parent.parent.parent
TRY = """
import sys
from swarmd.sandbox import Sandbox
from swarmd.errors import SandboxUnavailable
try:
    box = Sandbox(isolation=sys.argv[1])
    print(box.isolation, box.run("print(6 * 7)").stdout.strip(), box.run("open('/etc/passwd')").exit_code)
except SandboxUnavailable as error:
    print(error)
"""


def try_under(isolation: str, *wrapper: str, path: str | None = None) -> str:
    """What a process under a wrapper gets of a sandbox."""
    command = [*wrapper, sys.executable, "-c", TRY, isolation]
    environment = {**os.environ, "PATH": os.environ["PATH"] if path is None else path}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    return ended.stdout.strip() or ended.stderr


@pytest.mark.needs("bubblewrap")
def test_bubblewrap_comes_first() -> None:
    assert try_under("auto") == "bubblewrap 42 1"


def test_namespaces_of_our_own_stand_in() -> None:
    assert try_under("auto", path="") == "namespaces 42 1"


@pytest.mark.needs("unshare")
@pytest.mark.parametrize("isolation", [pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap")), "namespaces"])
def test_no_privilege_is_needed(isolation: str) -> None:
    """As under `NoNewPrivileges=yes` and an empty `CapabilityBoundingSet=`, or as an ordinary user."""
    ordinary = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    assert try_under(isolation, *ordinary, "setpriv", "--no-new-privs") == f"{isolation} 42 1"


@pytest.mark.needs("unshare")
def test_a_kernel_that_refuses_namespaces_is_told_with_what_to_do() -> None:
    """As under `RestrictNamespaces=yes`: then nothing is run."""
    refuse = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" "$@"'
    told = try_under("auto", "unshare", "--user", "--map-root-user", "sh", "-c", refuse)
    assert told.startswith("programs cannot be confined on this machine (")
    assert "namespaces: " in told and "docs/OPERATING.md" in told
    assert "42" not in told


@pytest.mark.needs("bubblewrap")
def test_bubblewrap_that_leaves_files_without_a_bound_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where AppArmor gives namespaces to bubblewrap, and no capability to what runs in them."""
    monkeypatch.setattr("swarmd.sandbox.sandbox.MOUNTING", "CAP_CHOWN")
    with pytest.raises(SandboxUnavailable, match=r"bubblewrap: PermissionError: .* a bound on files"):
        Sandbox(isolation="bubblewrap")
    assert Sandbox().isolation == "namespaces"


@pytest.mark.needs("unshare")
def test_without_isolation_only_by_its_full_name() -> None:
    refuse = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" "$@"'
    wrapper = ("unshare", "--user", "--map-root-user", "sh", "-c", refuse)
    assert try_under("none-i-accept-the-risk", *wrapper) == "none-i-accept-the-risk 42 0"


def test_without_isolation_limits_and_the_call_filter_hold() -> None:
    box = Sandbox(Limits(wall_s=10, cpu_s=1, output_bytes=1000), "none-i-accept-the-risk")
    programs = ["while True: pass", "bytearray(10**10)", "import os\nos.fork()", "print('x' * 10**6)"]
    programs.append("import socket\nsocket.socket()")
    statuses = [verdict.status for verdict in box.run_all(programs)]
    assert statuses == ["timeout", "memory", "processes", "output-limit", "failed"]
    assert box.run("import os\nprint(dict(os.environ), os.listdir())").stdout == "{} []\n"


def test_without_isolation_the_scratch_directory_is_gone_whatever_was_made_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    box = Sandbox(Limits(wall_s=30, cpu_s=10), "none-i-accept-the-risk")
    deep = "import os\nfor _ in range(2000):\n    os.mkdir('deeper')\n    os.chdir('deeper')\nprint('deep')"
    shut = "import os\nos.mkdir('a')\nopen('a/b', 'w').close()\nos.symlink('/', 'a/all')\n"
    shut += "os.chmod('a', 0)\nos.chmod('.', 0)\nprint('shut')"
    assert [box.run(program).stdout for program in (deep, shut)] == ["deep\n", "shut\n"]
    assert list(tmp_path.iterdir()) == []


def test_a_sandbox_that_stops_working_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Sandbox()
    monkeypatch.setattr("swarmd.sandbox.sandbox.interpreter_command", lambda *_: ["/nowhere/python"])
    with pytest.raises(SandboxUnavailable, match="cannot be set up any more"):
        box.run("print(1)")


def test_the_layout_names_the_interpreter_its_library_and_what_they_load() -> None:
    layout = find_sandbox_layout()
    places = {there: here for here, there in layout.binds}
    assert all(Path(here).exists() and not Path(here).is_symlink() for here in places.values())
    assert places[layout.interpreter] == layout.host_interpreter
    assert any(name.startswith("/python/so/libc.") for name in places)
    assert all(re.match(r"/python/|/lib[^/]*/ld[^/]*$", name) for name in places)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_lists_and_lets_the_rest_through(machine: str) -> None:
    column, architecture = syscalls.ARCHITECTURES[machine]
    refused = {columns[column] for columns in syscalls.REFUSED.values()}
    starting = {columns[column] for columns in syscalls.STARTING.values()}
    code = syscalls.build_syscall_filter(machine)
    for number in range(1024):
        wanted = 0x50001 if number in refused else 0x5000B if number in starting else 0x7FFF0000
        assert evaluate(code, number, architecture) == wanted
    assert evaluate(code, 0x40000000, architecture) == 0x80000000
    assert evaluate(code, 1, architecture ^ 1) == 0x80000000
    assert refused & starting == set()


def evaluate(code: bytes, number: int, architecture: int) -> int:
    """What the kernel would return: a classic BPF machine with the four instructions that are used."""
    place, register = 0, 0
    while True:
        kind, true, false, constant = struct.unpack_from("=HBBI", code, place * 8)
        place += 1
        if kind == syscalls.RETURN:
            return int(constant)
        if kind == syscalls.LOAD:
            register = {0: number, 4: architecture}[constant]
        elif kind == syscalls.JUMP_EQUAL:
            place += true if register == constant else false
        else:
            place += true if register >= constant else false
