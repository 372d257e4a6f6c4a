"""Runs a program in its own namespaces, where bubblewrap is missing.

It runs as a script with one argument, the order, marshalled and in hexadecimal, and imports as little as it can,
because every run pays for it.

- The program gets new user, mount, process, network, IPC, host name and cgroup namespaces; an in-memory root file
  system with the layout's files, read-only, and a scratch directory; no capability, no new privilege, and the system
  call filter.
- The launcher waits outside. The first process inside reaps the others and ends with the program, and then the kernel
  kills everything in the namespace. Each process dies with its parent.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import sys

TYPE_CHECKING = False  # avoids importing typing, which is slow
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
KEPT = READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC | 1024 | 2048  # statvfs and mount use the same numbers (noatime too)
RELATIVE_TIME, RELATIVE_TIME_MOUNT = 4096, 1 << 21
DETACH = 2
SET_DEATH_SIGNAL, SET_NO_NEW_PRIVILEGES, SET_SECCOMP, SECCOMP_FILTER = 1, 38, 22, 2
CAPABILITIES_VERSION = 0x20080522
NOBODY, KILL = 65534, 9
SIGNALLED = 128  # 128 plus a signal's number is the exit code of a process that it killed

libc = ctypes.CDLL(None, use_errno=True)


def check_libc_result(result: int, what: str) -> int:
    """Return a libc call's result; raise OSError for -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = [text.encode() or None for text in (source, target, kind)]
    check_libc_result(
        libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {source} on {target}"
    )


def die_with_parent(parent_is_gone: Callable[[], bool]) -> None:
    """Make the kernel kill this process when its parent ends; exit now if that has already happened."""
    check_libc_result(libc.prctl(SET_DEATH_SIGNAL, KILL, 0, 0, 0), "prctl")
    if parent_is_gone():
        os._exit(1)


def enter_namespaces() -> None:
    """Enter new namespaces of every kind, as the user `nobody`."""
    user, group = os.geteuid(), os.getegid()
    check_libc_result(libc.unshare(NEW_NAMESPACES), "unshare")
    libc.sethostname(b"sandbox", 7)  # if not permitted, programs see the machine's name
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)


def build_root_filesystem(order: dict[str, Any]) -> None:
    """Build the root file system and switch to it; the old one becomes unreachable."""
    mount("", "/", flags=RECURSIVE | PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEVICES, "size=1m,nr_inodes=1024,mode=755")
    os.mkdir("/tmp/old")  # noqa: PTH102
    check_libc_result(libc.pivot_root(b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    for here, there in order["binds"]:
        bind_read_only(f"/old{here}", there)
    for path in order["masked"]:
        mount("tmpfs", path, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "size=4k,nr_inodes=2,mode=755")
    os.mkdir(order["scratch"])  # noqa: PTH102
    size = f"size={order['scratch_bytes']},nr_inodes={order['scratch_files']},mode=777"
    mount("tmpfs", order["scratch"], "tmpfs", NO_SUID | NO_DEVICES, size)
    check_libc_result(libc.umount2(b"/old", DETACH), "umount")
    os.rmdir("/old")  # noqa: PTH106
    mount("", "/", flags=REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir(order["scratch"])


def bind_read_only(source: str, target: str) -> None:
    """Bind-mount a file or directory read-only."""
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    if os.path.isdir(source):  # noqa: PTH112
        os.mkdir(target)  # noqa: PTH102
    else:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    mount(source, target, flags=BIND)
    had = os.statvfs(target).f_flag
    kept = had & KEPT | (RELATIVE_TIME_MOUNT if had & RELATIVE_TIME else 0)  # flags of the parent's mount are locked
    mount("", target, flags=REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | kept)


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    check_libc_result(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


class FilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def apply_syscall_filter(instructions: bytes) -> None:
    """Forbid new privileges, and all system calls that the filter does not allow, from now on."""
    check_libc_result(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    program = FilterProgram(len(instructions) // 8, instructions)
    check_libc_result(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def exec_interpreter(order: dict[str, Any]) -> None:
    """Filter system calls and exec the interpreter, with only standard input, output and error open."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    apply_syscall_filter(order["filter"])
    os.execve(order["command"][0], order["command"], order["environment"])


def exit_code_of(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code


def run_init_process(order: dict[str, Any], parent_end: int) -> None:
    """Act as process 1 of the namespace. Never returns."""
    waiter = select.poll()
    waiter.register(parent_end, 0)
    die_with_parent(lambda: bool(waiter.poll(0)))
    build_root_filesystem(order)
    drop_capabilities()
    child = os.fork()
    if child == 0:
        exec_interpreter(order)
    os.closerange(0, 3)
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    os._exit(exit_code_of(status))


def launch_program(order: dict[str, Any]) -> int:
    """Run the program. Returns the exit code; raises OSError if the kernel refuses what this needs."""
    die_with_parent(lambda: os.getppid() != order["parent"])
    if not order["namespaces"]:
        os.chdir(order["scratch"])
        exec_interpreter(order)
    enter_namespaces()
    inner_end, outer_end = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(outer_end)
        try:
            run_init_process(order, inner_end)
        except BaseException as error:
            os.write(2, f"{error}\n".encode())
            os._exit(1)
    os.closerange(0, 3)
    return exit_code_of(os.waitpid(first, 0)[1])


if __name__ == "__main__":
    try:
        code = launch_program(marshal.loads(bytes.fromhex(sys.argv[1])))
    except OSError as error:
        sys.exit(str(error))
    os._exit(code)
