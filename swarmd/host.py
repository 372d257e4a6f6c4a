"""Limits of a machine that a node needs, checked at the start so that workers do not fail over and over."""

import multiprocessing
import resource

from swarmd.errors import ConfigError

FILES_MIN = 256  # open files of a process: p2pd needs one for each connection


def check_host() -> None:
    """Raise ConfigError if a node cannot run: too few open files, or no shared memory for interprocess locks."""
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
            "Mount a writable tmpfs there: `mount -t tmpfs tmpfs /dev/shm` as root, --shm-size=64m of a container",
        ) from error
