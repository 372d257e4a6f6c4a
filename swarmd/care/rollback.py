"""Going back to what a data directory was before the last upgrade."""

from __future__ import annotations

import os
import time

from swarmd.daemon.notes import Restored, write_note
from swarmd.daemon.upgrade import Copied, put_back
from swarmd.eventlog.lock import take_lock
from swarmd.paths import DataPaths


def roll_back(data: DataPaths) -> Copied:
    """Put back what an upgrade changed. What the newer version wrote since is moved to `after-upgrade/`.

    The log is an older one then, as after a restore, and the next start takes note of that.

    Raises:
        SwarmdError: nothing was kept from before an upgrade.
        LogInUse: a node runs on it.
    """
    lock = take_lock(data.events)
    try:
        copied = put_back(data)
        write_note(data.restored, Restored(time.time(), copied.made_at))
    finally:
        os.close(lock)
    return copied
