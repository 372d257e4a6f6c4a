"""Lets a process drop rights: to files by Landlock, to system calls by seccomp. Its children inherit the rest.

- It is for workers: trusted programs that use the network. They keep what they need, so that an attacker who exploits
  one gets no more.
- It needs Linux 5.13, and no privilege. Rights that a kernel cannot take away are reported, and the process continues.
"""

import ctypes
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import swarmd
from swarmd.sandbox import syscalls
from swarmd.sandbox.launcher import apply_syscall_filter, check_libc_result, libc

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system call numbers, the same on all architectures
VERSION, PATH_BENEATH = 1, 1
NO_NEW_PRIVILEGES = 38

# linux/landlock.h
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY = 1, 2, 4, 8
REMOVE_DIRECTORY, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_DIRECTORY, MAKE_FILE, MAKE_SOCKET, MAKE_LINK = 1 << 7, 1 << 8, 1 << 9, 1 << 12
ALL_OF_FIRST = (1 << 13) - 1
REFER, TRUNCATE, DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
SINCE = {2: REFER, 3: TRUNCATE, 5: DEVICE_CONTROL}  # version of Landlock → right that it added
ABSTRACT_SOCKETS, SCOPES_SINCE = 1, 6
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_CONTROL  # rights that apply to files

READ = READ_FILE | READ_DIRECTORY
CHANGE = (
    READ | WRITE_FILE | TRUNCATE | REMOVE_FILE | REMOVE_DIRECTORY | MAKE_DIRECTORY | MAKE_FILE | MAKE_SOCKET | REFER
)

# What a Python program that uses the network reads outside its own files.
SYSTEM = ("/usr", "/lib", "/lib64", "/proc", "/sys", "/dev", "/run/systemd/resolve")
ETC = (
    *("ca-certificates", "crypto-policies", "pki", "ssl"),
    *("gai.conf", "host.conf", "hosts", "nsswitch.conf", "protocols", "resolv.conf", "services"),
    *("group", "ld.so.cache", "localtime", "mime.types", "passwd", "timezone"),
)
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # environment variables that name more certificate files of OpenSSL
CLOCK = "FAKETIME_TIMESTAMP_FILE"  # names the file with libfaketime's time, in tests of clock steps
DEVICES = ("/dev/null", "/dev/tty")  # may also be written to

# Calls that a worker needs, but a sandboxed program does not.
NEEDED = {"socket", "pidfd_open", "memfd_create", "shmget", "semget", "msgget", "mq_open", "personality"}


class AllowedAccess(NamedTuple):
    """Access that a process keeps."""

    reads: tuple[Path, ...] = ()  # files and directory trees to read, besides the interpreter's and the system's
    changes: tuple[Path, ...] = ()  # directory trees in which everything is allowed but execution
    runs: tuple[Path, ...] = ()  # programs to execute


def confine(bounds: AllowedAccess, away_from: Path) -> list[str]:
    """Drop every right of this thread, and of what it starts, that `bounds` does not list.

    Python's path grants no access inside `away_from`. Returns descriptions of what could not be dropped.
    """
    left = []
    try:
        _restrict_file_access(bounds, away_from)
    except OSError as error:
        left.append(f"files: this kernel has no Landlock ({error.strerror})")
    try:
        calls = {name: numbers for name, numbers in syscalls.REFUSED.items() if name not in NEEDED}
        apply_syscall_filter(syscalls.build_syscall_filter(calls=calls))
    except (OSError, KeyError) as error:
        left.append(f"system calls: {error}")
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        left.append("threads that ran before")
    return left


class _LandlockRuleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _LandlockPathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _restrict_file_access(bounds: AllowedAccess, away_from: Path) -> None:
    version = check_libc_result(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION), "landlock")
    handled = ALL_OF_FIRST
    for since, right in SINCE.items():
        handled |= right if version >= since else 0
    wanted = _LandlockRuleset(handled, 0, ABSTRACT_SOCKETS if version >= SCOPES_SINCE else 0)
    size = 8 if version < 4 else 16 if version < SCOPES_SINCE else 24  # size of the structure in this kernel
    rules = check_libc_result(libc.syscall(CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(size), 0), "landlock")
    try:
        for path, rights in _collect_path_rights(bounds, away_from).items():
            _add_path_rule(rules, path, rights & handled)
        check_libc_result(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
        check_libc_result(libc.syscall(RESTRICT_SELF, rules, 0), "landlock")
    finally:
        os.close(rules)


def _collect_path_rights(bounds: AllowedAccess, away_from: Path) -> dict[Path, int]:
    rights: dict[Path, int] = {}
    groups: Iterable[tuple[Iterable[Path], int]] = (
        (_module_paths(away_from), READ),
        (map(Path, SYSTEM), READ),
        ((Path("/etc") / name for name in ETC), READ),
        ((Path(os.environ[name]) for name in (*CERTIFICATES, CLOCK) if os.environ.get(name)), READ),
        (map(Path, DEVICES), READ | WRITE_FILE),
        (bounds.reads, READ),
        (bounds.changes, CHANGE),
        (bounds.runs, READ | EXECUTE),
    )
    for paths, allowed in groups:
        for path in paths:
            rights[path] = rights.get(path, 0) | allowed
    return rights


def _module_paths(away_from: Path) -> list[Path]:
    """Directories that modules are imported from, without those that contain `away_from`."""
    places = {Path(place).resolve() for place in (*sys.path, *sysconfig.get_paths().values(), sys.base_prefix) if place}
    places |= {Path(swarmd.__file__).resolve().parent, Path(sys.prefix).resolve()}
    return sorted(place for place in places if not away_from.resolve().is_relative_to(place))


def _add_path_rule(rules: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # rules apply to files, not names: a missing file stays inaccessible
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= OF_FILES
        beneath = _LandlockPathBeneath(rights, descriptor)
        check_libc_result(
            libc.syscall(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(beneath), 0), f"landlock rule for {path}"
        )
    finally:
        os.close(descriptor)
