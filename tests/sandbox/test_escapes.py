"""Programs that mean harm: each is contained, and the sandbox works on."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.sandbox import Limits, Sandbox
from swarmd.sandbox.sandbox import SCRATCH_FILES, SIGNALS_PENDING

SECRET = "the node's private key"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "identity.key"
    path.write_text(SECRET)
    path.chmod(0o644)  # as readable as it can be
    return path


def running(marker: str) -> list[str]:
    """Processes of this machine whose command line has the marker."""
    listed = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if marker.encode() in line:
                listed.append(entry.name)
    return listed


def check_working(sandbox: Sandbox) -> None:
    assert sandbox.run("print('still here')").stdout == "still here\n"


@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True:\n    os.fork()",
        "import os\nos.posix_spawn('/python/bin/' + os.listdir('/python/bin')[0], ['python'], {})",
        "import threading\nwhile True:\n    threading.Thread(target=threading.Event().wait).start()",
        "import subprocess\nsubprocess.run(['/bin/sh'])",
    ],
    ids=["fork", "spawn", "threads", "subprocess"],
)
def test_a_fork_bomb_starts_nothing(sandbox: Sandbox, program: str) -> None:
    verdict = sandbox.run(program)
    assert verdict.status in ("processes", "failed") and verdict.exit_code == 1
    assert "[Errno 11]" in verdict.stderr or "can't start new thread" in verdict.stderr
    check_working(sandbox)


@pytest.mark.parametrize(
    "program",
    [
        "bytearray(10 * 1024**3)",
        "x = []\nwhile True:\n    x.append(bytearray(1024**2))",
        "import mmap\nprint(len(mmap.mmap(-1, 10 * 1024**3)))",
    ],
    ids=["at once", "bit by bit", "mapped"],
)
def test_ten_gigabytes_are_not_given(sandbox: Sandbox, program: str) -> None:
    verdict = sandbox.run(program)
    assert verdict.status == "memory" if "mmap" not in program else "[Errno 12]" in verdict.stderr
    check_working(sandbox)


@pytest.mark.parametrize(
    "program",
    ["while True: pass", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"],
    ids=["plain", "deaf"],
)
def test_a_loop_ends_with_its_cpu_seconds(sandbox: Sandbox, program: str) -> None:
    verdict = sandbox.run(program)
    assert verdict.status == "timeout" and verdict.exit_code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL)


def test_a_program_that_waits_ends_at_the_wall_deadline(sandbox: Sandbox) -> None:
    quick = Sandbox(Limits(wall_s=1.0), sandbox.isolation)
    begun = time.monotonic()
    verdict = quick.run("print('here', flush=True)\nimport threading\nthreading.Event().wait()")
    assert (verdict.status, verdict.stdout, verdict.exit_code) == ("timeout", "here\n", 128 + signal.SIGKILL)
    assert 1.0 <= time.monotonic() - begun < 30.0, "it waits for ever"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_without_end_is_cut(sandbox: Sandbox, stream: str) -> None:
    verdict = sandbox.run(f"import sys\nwhile True:\n    sys.{stream}.write('spam' * 1000)")
    assert verdict.status == "output-limit"
    assert set(verdict.stdout) <= set("spam") and len(verdict.stdout) == (10_000 if stream == "stdout" else 0)
    assert len(verdict.stderr) <= 4096


def test_a_byte_too_many_is_too_much_however_fast_the_program_ends(sandbox: Sandbox) -> None:
    statuses = [sandbox.run(f"print('x' * {size}, end='')").status for size in (10_000, 10_001)]
    assert statuses == ["ok", "output-limit"]


def test_a_key_file_cannot_be_read_by_any_path(sandbox: Sandbox, key: Path) -> None:
    program = (
        "import os\n"
        f"paths = [{str(key)!r}, '/proc/self/root{key}', '/proc/1/root{key}', '/proc/{os.getpid()}/root{key}',\n"
        f"  '/old{key}', '/oldroot{key}', '../' * 20 + {str(key)!r}, '/proc/self/environ', '/etc/passwd']\n"
        "for path in paths:\n"
        "    try:\n        print(open(path).read())\n    except OSError as error:\n        print(error.errno)\n"
        "for fd in range(3, 1024):\n"
        "    try:\n        os.fstat(fd)\n        print('open', fd)\n    except OSError:\n        pass\n"
        "for top in ('/proc', '/home', '/root', '/etc', '/sys', '/dev', '/usr', '/var'):\n"
        "    if os.path.exists(top):\n        print(top)\n"
    )
    verdict = sandbox.run(program)
    assert (verdict.status, verdict.stdout.split()) == ("ok", ["2"] * 9)


def test_only_python_and_an_empty_directory_are_there(sandbox: Sandbox) -> None:
    program = "import os\nprint(sorted(os.listdir('/')), dict(os.environ), os.getuid(), os.listdir('/python/so')[:0])"
    seen = sandbox.run(program).stdout
    assert seen.startswith("['lib") and "'python', 'tmp'] {} 65534 []" in seen


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"])
def test_a_socket_cannot_be_opened(sandbox: Sandbox, family: str) -> None:
    verdict = sandbox.run(f"import _socket as s\ns.socket(s.{family}, s.SOCK_STREAM)")
    assert verdict.status == "failed" and verdict.stderr.endswith(
        "PermissionError: [Errno 1] Operation not permitted\n"
    )


@pytest.mark.parametrize(
    "path", ["/escaped", "/python/bin/escaped", "/python/lib/escaped", "/lib64/escaped", "/dev/escaped"]
)
def test_nothing_is_written_outside_the_scratch_directory(sandbox: Sandbox, path: str) -> None:
    verdict = sandbox.run(f"open({path!r}, 'w')")
    assert verdict.status == "failed" and ("[Errno 30]" in verdict.stderr or "[Errno 2]" in verdict.stderr)


def test_a_huge_file_is_not_made(sandbox: Sandbox) -> None:
    one = sandbox.run("import signal\nsignal.signal(25, signal.SIG_IGN)\nopen('x', 'wb').write(bytes(20 * 2**20))")
    assert one.status == "failed" and "[Errno 27]" in one.stderr
    many = sandbox.run("for n in range(1000):\n    open(f'{n}', 'wb').write(bytes(2**20))")
    assert many.status == "failed" and "[Errno 28]" in many.stderr


@pytest.mark.parametrize("make", ["os.mknod(n)", "os.mkdir(n)", "os.symlink('x' * 200, n)", "open(n, 'w').close()"])
def test_files_without_number_are_not_made(sandbox: Sandbox, make: str) -> None:
    """Each takes a kibibyte of the kernel's memory: 400,000 were made in two CPU seconds, half a gigabyte."""
    program = (
        "import os\nmade = 0\ntry:\n    while made < 5000:\n"
        f"        n = 'x' * 200 + str(made)\n        {make}\n        made += 1\n"
        "except OSError as error:\n    print(error.errno)\nprint(made, len(os.listdir()))"
    )
    number, made, listed = map(int, sandbox.run(program).stdout.split())
    assert number == errno.ENOSPC and 1000 < made == listed < SCRATCH_FILES
    check_working(sandbox)


def test_what_the_kernel_keeps_for_a_process_is_not_without_number(sandbox: Sandbox) -> None:
    """Timers and waiting signals, 37 MiB of them before they were bounded, and Landlock's rules, of which 29 rulesets
    could have had 65,536 each."""
    program = (
        "import ctypes, signal, os, struct\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\nnumber, timers, waiting = ctypes.c_int(), 0, 0\n"
        "while timers < 5000 and not libc.timer_create(1, None, ctypes.byref(number)):\n    timers += 1\n"
        "told = struct.pack('iii', 40, 0, -1).ljust(128, b'0')\n"
        f"queue = {129 if os.uname().machine == 'x86_64' else 138}\n"
        "while waiting < 5000 and not libc.syscall(queue, os.getpid(), 40, told):\n    waiting += 1\n"
        "print(timers, waiting, libc.syscall(444, struct.pack('QQ', 0, 1), 16, 0), ctypes.get_errno())"
    )
    timers, waiting, *landlock = map(int, sandbox.run(program).stdout.split())
    assert timers + waiting <= SIGNALS_PENDING and landlock == [-1, errno.EPERM]


def test_the_program_begins_without_any_capability(sandbox: Sandbox) -> None:
    program = (
        "import ctypes\nlibc, held = ctypes.CDLL(None), (ctypes.c_uint32 * 6)()\n"
        "print(libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held), sum(held), libc.prctl(39, 0, 0, 0, 0),\n"
        "      sum(libc.prctl(47, 1, each, 0, 0) for each in range(40)))"
    )
    called, held, no_new, ambient = map(int, sandbox.run(program).stdout.split())
    assert (called, held, no_new, ambient) == (0, 0, 1, 0)


def test_no_other_process_can_be_signalled_or_seen(sandbox: Sandbox) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pids = [os.getpid(), os.getppid(), bystander.pid]
    program = (
        f"import os\nfor pid in {pids}:\n    for number in (0, 15, 9):\n"
        "        try:\n            os.kill(pid, number)\n            print('reached', pid)\n"
        "        except OSError:\n            pass\n"
        "try:\n    os.kill(-1, 9)\nexcept ProcessLookupError:\n    pass\nprint(os.getppid())"
    )
    try:
        verdict = sandbox.run(program)
        assert (verdict.status, verdict.stdout) == ("ok", "1\n")
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")


REACHES: dict[str, tuple[str, str]] = {  # what a program tries to get, and the words that it prints in vain
    "processes, with each failure caught": (
        "import os, ctypes\nlibc = ctypes.CDLL(None)\nmade = 0\n"
        "for _ in range(100):\n    made += libc.fork() >= 0\n    made += libc.syscall(56, 0x11, 0, 0, 0, 0) >= 0\n"
        "    made += libc.syscall(435, 0, 0) >= 0\nprint(made)",
        "0",
    ),
    "memory that no limit counts": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nprint(libc.shmget(0, 1024**3, 0o1600))\n"
        "try:\n    os.memfd_create('x')\nexcept OSError as error:\n    print(error.errno)",
        "-1 1",
    ),
    "third-party packages": (
        "import os\nfor name in ('site', 'dist'):\n    path = os.path.dirname(os.__file__) + f'/{name}-packages'\n"
        "    print(os.listdir(path) if os.path.isdir(path) else [])",
        "[] []",
    ),
    "the interpreter's files": (
        "import os, sys\n"
        "acts = [os.unlink, os.rmdir, lambda p: os.rename(p, p + 'x')]\n"
        "acts += [lambda p: open(p, 'ab'), lambda p: os.chmod(p, 0)]\n"
        "for path in ('/python/bin/' + os.listdir('/python/bin')[0], os.__file__, os.path.dirname(os.__file__)):\n"
        "    for act in acts:\n"
        "        try:\n            act(path)\n            print('done', path)\n"
        "        except OSError:\n            pass\n",
        "",
    ),
    "the process above": (
        "import os, ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nos.kill(1, 9)\n"
        "print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno(), libc.ptrace(0, 0, 0, 0), ctypes.get_errno())",
        "-1 1 -1 1",
    ),
    "higher limits": (
        "import resource\n"
        "for name in ('AS', 'CPU', 'FSIZE', 'NOFILE', 'NPROC', 'CORE'):\n"
        "    kind = getattr(resource, 'RLIMIT_' + name)\n    soft, hard = resource.getrlimit(kind)\n"
        "    for wanted in ((hard, hard + 1), (resource.RLIM_INFINITY,) * 2):\n"
        "        try:\n            resource.setrlimit(kind, wanted)\n            print('raised', name)\n"
        "        except (ValueError, OSError):\n            pass\n",
        "",
    ),
    "a namespace, a mount or a privilege": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print(libc.unshare(0x10000000), libc.mount(b'x', b'/tmp', b'tmpfs', 0, None), libc.umount2(b'/tmp', 2),\n"
        "      libc.chroot(b'/'), libc.pivot_root(b'/', b'/tmp'), libc.setns(0, 0), libc.prctl(39, 0, 0, 0, 0))\n"
        "for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.mknod('d', 0o20666, os.makedev(1, 3)),\n"
        "             lambda: os.chown('/tmp', 0, 0)):\n"
        "    try:\n        call()\n        print('done')\n    except OSError as error:\n        print(error.errno)\n",
        "-1 -1 -1 -1 -1 -1 1 22 22 1 22",  # user 0 does not exist there
    ),
}


@pytest.mark.parametrize("wanted", REACHES)
def test_what_a_program_reaches_for_is_not_given(sandbox: Sandbox, wanted: str) -> None:
    program, printed = REACHES[wanted]
    verdict = sandbox.run(program)
    assert (verdict.status, verdict.stdout.split()) == ("ok", printed.split())
    check_working(sandbox)


def test_calls_by_the_numbers_of_another_abi_are_fatal(sandbox: Sandbox) -> None:
    verdict = sandbox.run("import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 39)\nprint('went on')")
    assert (verdict.exit_code, verdict.stdout) == (128 + signal.SIGSYS, "")


def test_nothing_stays_behind_in_the_background(sandbox: Sandbox) -> None:
    files = 900_000_000 + os.getpid()
    marker = f"RLIMIT_FSIZE={files}"  # shows on the command line
    quick = Sandbox(Limits(wall_s=3.0, file_bytes=files), sandbox.isolation)  # a Python must start in it
    program = "import ctypes, os, signal\nfor n in range(1, 65):\n"
    program += "    try:\n        signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\n"
    program += (
        "libc = ctypes.CDLL(None)\nlibc.prctl(1, 0, 0, 0, 0)\nlibc.setsid()\nos.close(1)\nos.close(2)\nsignal.pause()"
    )
    assert quick.run(program).status == "timeout"
    assert wait_for(lambda: running(marker) == [])


def test_programs_die_with_the_process_that_runs_them(sandbox: Sandbox, tmp_path: Path) -> None:
    marker = str(1_000_000_007 + os.getpid())  # a limit that shows on the command line
    program = (
        "from swarmd.sandbox import Limits, Sandbox\n"
        f"box = Sandbox(Limits(wall_s=60, cpu_s=9, file_bytes={marker}), {sandbox.isolation!r})\n"
        "print('ready', flush=True)\nbox.run('import signal\\nsignal.pause()')"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout and owner.stdout.readline() == b"ready\n"
    wanted = f"RLIMIT_FSIZE={marker}"
    assert wait_for(lambda: len(running(wanted)) >= 1)
    owner.kill()
    owner.communicate()
    assert wait_for(lambda: running(wanted) == [])


def wait_for(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        threading.Event().wait(0.05)
    return bool(condition())
