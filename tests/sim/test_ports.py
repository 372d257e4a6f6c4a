"""The parts of the simulated world on their own: disk, chain and contract, DHT, and what is made of a value once."""

from random import Random

from swarmd.core.events import StopRequested
from swarmd.eventlog.frame import Commit
from swarmd.sim.machine import CrashableLog


def commit(seq: int, events: int = 1) -> Commit:
    return Commit(seq, 1.0, 1, tuple(StopRequested(f"reason {seq}") for _ in range(events)), b"d" * 16)


def test_the_synced_part_always_survives_and_the_rest_only_whole() -> None:
    outcomes = set()
    for seed in range(200):
        log = CrashableLog()
        log.append(commit(0, 3))
        log.sync()
        log.append(commit(3))
        log.append(commit(4))
        log.lose_unsynced(Random(seed))
        assert log.commits[0] == commit(0, 3)
        assert log.commits == [commit(0, 3), commit(3), commit(4)][: len(log.commits)]
        assert log.synced == len(log.commits)
        outcomes.add(len(log.commits))
    assert outcomes >= {1, 2}
