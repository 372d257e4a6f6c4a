"""Going back to what a data directory was before the last upgrade."""

from __future__ import annotations

import time

from swarmd.daemon.notes import Restored, read_restored, write_note
from swarmd.daemon.upgrade import Copied, hold_log, put_back, read_copied
from swarmd.errors import NotFoundError
from swarmd.paths import NodeDirectory


def roll_back(data: NodeDirectory) -> Copied:
    """Put back what an upgrade changed. What the newer version wrote since is moved to `after-upgrade/`.

    The log is an older one then, as after a restore, and the next start takes note of that. The note comes first: at no
    instant does the older log lie there without it, and beside the newer one it costs a round at most.

    Raises:
        NotFoundError: there is no log.
        SwarmdError: nothing was kept from before an upgrade.
        LogInUse: a node runs on it.
    """
    copied = read_copied(data)
    if copied is None and not data.events.is_dir():
        raise NotFoundError(f"there is no event log in {data.root}", "Name a node's data directory")
    with hold_log(data):
        if copied is None:
            raise NotFoundError(f"there is no copy from before an upgrade in {data.before_upgrade}", "Restore a backup")
        before = read_restored(data)
        write_note(data.restored, Restored(time.time(), copied.made_at, before.from_round if before else 0))
        return put_back(data)
