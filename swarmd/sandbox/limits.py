"""What a program may use, and what came of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MIB = 1024 * 1024

# How programs are kept in. `auto` takes bubblewrap where it works, else namespaces made here, else refuses.
Isolation = Literal["auto", "bubblewrap", "namespaces", "none-i-accept-the-risk"]

Status = Literal[
    "ok",  # ended by itself with exit code 0
    "failed",  # an exception, another exit code, or a signal
    "timeout",  # past the wall deadline, or out of CPU seconds
    "memory",  # ended by a MemoryError
    "output-limit",  # killed: it printed more than allowed
    "processes",  # tried to start a process or a thread, and ended of it
    "stopped",  # ended, or never run, because this node wanted no more of it, or not begun in time: proves nothing
    "refused",  # never run: program or standard input too large, or no text
]

Seconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on one run. A program is one process with one thread; it cannot start another.

    Memory in all is at most `memory_bytes` and `scratch_bytes` together, and what the kernel keeps for it: buffers of
    pipes (1 MiB for two of `files_open`, at most 64 MiB), 1,024 files and directories, mappings and locks, 35 MiB at
    worst with the default of `files_open`. Not so without isolation: there the scratch directory is one of the
    machine's, and only `file_bytes` and CPU seconds bound what is written to it.
    """

    wall_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0  # then it is killed
    cpu_s: Seconds = 2
    memory_bytes: Annotated[int, msgspec.Meta(ge=64 * MIB, le=2**40)] = 512 * MIB  # of address space, Python included
    scratch_bytes: Bytes = 16 * MIB  # of the one writable directory, which is gone afterwards
    file_bytes: Bytes = 8 * MIB  # of one file
    files_open: Annotated[int, msgspec.Meta(ge=8, le=1024)] = 32
    program_bytes: Bytes = 64 * 1024
    input_bytes: Bytes = MIB
    output_bytes: Bytes = 64 * 1024  # of standard output, and of standard error


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run. Only `status`, the exit code and the times are not of the program's own making."""

    status: Status
    stdout: str = ""  # cut at `Limits.output_bytes`; what is no UTF-8 is replaced
    stderr: str = ""  # its end, at most `STDERR_BYTES_KEPT`
    exit_code: int = 0  # 128 and the signal's number where a signal ended it
    wall_s: float = 0.0  # start-up included
    cpu_s: float = 0.0  # likewise; under bubblewrap its own alone, as for a run that was killed


STDERR_BYTES_KEPT = 4096
