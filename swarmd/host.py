"""What a machine has to allow before a node can run on it; found out at the start, not by workers that end again and
again."""

from __future__ import annotations

import multiprocessing
import resource

from swarmd.errors import ConfigError

FILES_MIN = 256  # that a process may have open: p2pd has one for each connection


def check_host() -> None:
    """Raise ConfigError where no node can run: too few open files, or no shared memory for locks among processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        raise ConfigError(
            f"a process may have {hard} files open here, a node needs {FILES_MIN}",
            "Raise the limit: `ulimit -Hn 4096` as root, nofile in /etc/security/limits.conf, LimitNOFILE= of a unit, "
            "--ulimit nofile=4096 of a container",
        )
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise ConfigError(
            f"processes cannot share locks here: {error.strerror or error}, of /dev/shm",
            "Have a tmpfs mounted there that may be written: `mount -t tmpfs tmpfs /dev/shm` as root, --shm-size=64m "
            "of a container",
        ) from error
