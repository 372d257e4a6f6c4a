"""Runs first in the sandbox, as `python -c`: reads the program from standard input, sets the limits, runs it.

It imports as little as possible, because every run pays for it. Arguments: the program's size in bytes; under
bubblewrap, the remaining set-up as FILES:FILTER, else ""; then limits for `resource.setrlimit`, as NAME=NUMBER.
"""

import os
import resource
import sys

SCRATCH = b"/tmp"
NO_SUID, NO_DEVICES, REMOUNT = 2, 4, 32  # sys/mount.h
SET_NO_NEW_PRIVILEGES, SET_SECCOMP, SECCOMP_FILTER = 38, 22, 2  # linux/prctl.h
CAPABILITIES_VERSION = 0x20080522  # linux/capability.h

READY = b"\x06"  # first byte of standard output: set-up is done, the program's output follows


def read_program(size_bytes: int) -> str:
    """Read the program, but not its standard input, which follows."""
    program = b""
    while len(program) < size_bytes:
        chunk = os.read(0, size_bytes - len(program))
        if not chunk:
            sys.exit("the program was cut off")
        program += chunk
    return program.decode()


def finish_isolation(files: int, instructions: bytes) -> None:
    """Complete bubblewrap's set-up: bound the number of files in the scratch directory, then drop the capability that
    this needs, and filter system calls. Raises OSError if the kernel refuses; nothing is run then."""
    import ctypes

    class FilterProgram(ctypes.Structure):  # struct sock_fprog
        _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    def check_result(result: int, what: str) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(REMOUNT | NO_SUID | NO_DEVICES)
    check_result(libc.mount(None, SCRATCH, None, flags, b"nr_inodes=%d" % files), "a bound on files")
    check_result(libc.capset((ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()), "capabilities")
    check_result(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    program = FilterProgram(len(instructions) // 8, instructions)
    check_result(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def set_resource_limits(named: list[str]) -> None:
    """Set hard limits, which cannot be raised again without privilege."""
    for limit in named:
        name, _, number = limit.partition("=")
        hard = int(number)
        extra = 1 if name == "RLIMIT_CPU" else 0  # SIGXCPU first; SIGKILL a second later if it is ignored
        resource.setrlimit(getattr(resource, name), (hard, hard + extra))


def run_program(program: str) -> None:
    """Run the program as `__main__`. Its traceback is printed without this file's frames."""
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    os.write(1, READY)
    try:
        exec(compile(program, "program.py", "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        sys.stdout.flush()
        sys.__excepthook__(type(error), error.with_traceback(trace.tb_next if trace else None), None)
        os._exit(1)


if __name__ == "__main__":
    source = read_program(int(sys.argv[1]))
    if sys.argv[2]:
        bound, _, calls = sys.argv[2].partition(":")
        finish_isolation(int(bound), bytes.fromhex(calls))
    set_resource_limits(sys.argv[3:])
    os.environ.clear()
    run_program(source)
