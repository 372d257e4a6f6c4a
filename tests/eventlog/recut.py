"""A log's events in a log of its own, in other segments and with snapshots at places that a seed chooses."""

from collections.abc import Collection
from pathlib import Path
from random import Random

from swarmd.core.step import StateFold
from swarmd.eventlog.fold import apply_commit, commits_from, oldest_base, peer_id_of_log
from swarmd.eventlog.store import EventLog

WRONG = b"\xaa" * 16
SNAPSHOTS = 6  # about so many are taken


def recut(source: Path, target: Path, seed: int, wrong: Collection[int] = (), later_s: float = 0.0) -> int:
    """Copy the commits of a log that begins at event 0. Returns how many snapshots were taken.

    Args:
        wrong: numbers of commits that get another commands digest.
        later_s: what is added to the time of the last commit of the first segment.
    """
    base = oldest_base(source)
    assert base.seq == 0
    commits = list(commits_from(source, base))
    random = Random(seed)
    places = set(random.sample(range(1, len(commits)), min(SNAPSHOTS, len(commits) - 1)))
    fold = StateFold(base.state)
    taken = 0
    with EventLog.open(target, peer_id_of_log(source), "recut") as log:
        for place, commit in enumerate(commits):
            apply_commit(fold, commit)
            at = commit.at + later_s * (place == min(places))
            log.append(at, commit.events, WRONG if place in wrong else commit.commands_digest)
            if place in places:
                log.write_snapshot(fold.state)
                taken += 1
    return taken
