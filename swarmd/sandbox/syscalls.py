"""The seccomp filter: refuses, by number, system calls that sandboxed programs do not need.

Namespaces and limits would contain a program without it. The filter limits it to one process and one thread, closes
ways to memory that no limit counts (shared segments, memory files), and reduces the kernel's attack surface. The
numbers are those of x86-64 and of the kernel's generic table, which arm64 uses.
"""

import errno
import platform
import struct
from collections.abc import Mapping

# name: (x86-64, arm64)
REFUSED: dict[str, tuple[int, int]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # the network
    "socket": (41, 198),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # memory that no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    # kernel interfaces
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "personality": (135, 92),
}
STARTING: dict[str, tuple[int, int]] = {  # start processes and threads; refused with RLIMIT_NPROC's error
    "clone": (56, 220),
    "clone3": (435, 435),
    "fork": (57, 220),  # arm64 has only clone
    "vfork": (58, 220),
}
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH of linux/audit.h
X32_BIT = 0x40000000  # marks calls of the x32 ABI, which has other numbers

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000  # linux/seccomp.h
AT_NUMBER, AT_ARCHITECTURE, AT_FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
THREAD = 0x10000  # CLONE_THREAD of linux/sched.h


def has_filter_for(machine: str = "") -> bool:
    """Whether a filter exists for a machine type, named as by `uname -m`; by default for this machine."""
    return (machine or platform.machine()) in ARCHITECTURES


def build_syscall_filter(
    machine: str = "", calls: Mapping[str, tuple[int, int]] | None = None, has_threads: bool = False
) -> bytes:
    """The filter in the kernel's format, 8 bytes for each `struct sock_filter`. Raises KeyError if `has_filter_for` is
    False.

    By default it is for this machine, and refuses `REFUSED` and `STARTING`.

    Args:
        has_threads: allow threads, but no processes.
    """
    column, architecture = ARCHITECTURES[machine or platform.machine()]
    program = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, AT_NUMBER),
        (JUMP_GREATER_EQUAL, 0, 1, X32_BIT),
        (RETURN, 0, 0, KILL),
    ]
    if has_threads:
        program += [
            # The C library falls back to clone, whose flags a filter can inspect.
            (JUMP_EQUAL, 0, 1, STARTING["clone3"][column]),
            (RETURN, 0, 0, ERRNO | errno.ENOSYS),
            (JUMP_EQUAL, 0, 4, STARTING["clone"][column]),
            (LOAD, 0, 0, AT_FIRST_ARGUMENT),
            (JUMP_SET, 0, 1, THREAD),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, ERRNO | errno.EAGAIN),
        ]
    groups = ((REFUSED, errno.EPERM), (STARTING, errno.EAGAIN)) if calls is None else ((calls, errno.EPERM),)
    for refused, number in groups:
        for call in sorted({columns[column] for columns in refused.values()}):
            program += [(JUMP_EQUAL, 0, 1, call), (RETURN, 0, 0, ERRNO | number)]
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
