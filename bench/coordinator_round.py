"""What a round of a large swarm costs its coordinator, a process a part.

`python -m bench.coordinator_round PART DIR SIZE` runs one of them.

`core` is what the daemon does: it takes the reports out of frames, many at once, folds and logs them, closes the stage,
makes the leaderboard a frame and writes a snapshot. `records` is what the network worker does with what it is given: it
judges each report by size, work, signature and key, and makes the leaderboard's body. What it reads for that, and how
often, `python -m bench scale` measures. Neither has hivemind's memory in it, which does not grow with the swarm.
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.measure import Sample
from bench.table import Row
from swarmd.core import events as happened
from swarmd.core.commands import Announce, Command, PublishLeaderboard
from swarmd.core.events import Event, MemberRow, ReportRow
from swarmd.core.state import State
from swarmd.core.values import CoordinatorSettings, Settings, Standing
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.wire import bodies, names
from swarmd.dht.wire.bodies import LeaderboardBody, decode_report, encode_leaderboard
from swarmd.dht.wire.records import RecordPolicy, ReportRecord, SignedRecord, check_record, decode_signed, sign
from swarmd.eventlog.frame import digest_commands
from swarmd.eventlog.store import EventLog
from swarmd.shell.loop import ROW_MAX, plan_commit
from swarmd.worker.messages import FrameReader, FromWorker, ObservedMessage, PerformMessage, encode_frame

ROUNDS = 3
MEMORY_GOAL_MIB = 500.0
CPU_GOAL_S = 60.0
PARTS = ("core", "records")
SWARM = "bench"


class Cost(msgspec.Struct, frozen=True):
    """What one part took."""

    rounds_s: tuple[float, ...]  # of the processor, round by round
    peak_mib: float  # of memory, all that Python and the libraries take included


def rows_of(directory: Path, size: int) -> Iterable[Row]:
    """Both parts beside their goals: together they are the coordinator's, without the trainer."""
    write_reports(directory / "reports", size)
    costs = [cost_of(part, directory, size) for part in PARTS]
    for part, cost in zip(PARTS, costs, strict=True):
        yield Row(f"a round, {part}, N = {size:,}", "s of processor", Sample(cost.rounds_s))
        yield Row(f"peak memory, {part}, N = {size:,}", "MiB", Sample((cost.peak_mib,)))
    spent = Sample(tuple(sum(each) for each in zip(*(cost.rounds_s for cost in costs), strict=True)))
    taken = Sample((sum(cost.peak_mib for cost in costs),))
    met = (spent.high <= CPU_GOAL_S, taken.high <= MEMORY_GOAL_MIB)
    yield Row(f"a round, both, N = {size:,}", "s of processor", spent, goal=f"<= {CPU_GOAL_S:g} s", met=met[0])
    yield Row(f"peak memory, both, N = {size:,}", "MiB", taken, goal=f"<= {MEMORY_GOAL_MIB:g} MiB", met=met[1])


def cost_of(part: str, directory: Path, size: int) -> Cost:
    """Run one part in a process of its own."""
    words = [sys.executable, "-m", "bench.coordinator_round", part, str(directory), str(size)]
    return msgspec.json.decode(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout, type=Cost)


def write_reports(place: Path, size: int) -> None:
    """A signed report of each member, for round 0."""
    until = time.time() + 600.0
    content = ReportRecord(SWARM, 0, 0, 0.5, "d" * 64, 10_000, 1)
    place.write_bytes(msgspec.msgpack.encode([sign(generate_identity(), content, until).encode() for _ in range(size)]))


def read_reports(directory: Path) -> list[bytes]:
    """What `write_reports` wrote."""
    return msgspec.msgpack.decode((directory / "reports").read_bytes(), type=list[bytes])


class Daemon:
    """The core and its log, driven as the shell drives them."""

    def __init__(self, directory: Path) -> None:
        self.state = State()
        self._log = EventLog.open(directory / "events", "me", "run")
        self._seq = 0
        self._at = 1.7e9

    def tell(self, *facts: Event) -> list[Command]:
        """Facts in one commit, and what they cause."""
        self._at += 0.01
        planned = plan_commit(self.state, self._seq, self._at, facts)
        self._log.append(self._at, planned.events, digest_commands(planned.commands))
        self.state = planned.state
        self._seq += len(planned.events)
        return list(planned.commands)

    def publish(self, caused: Sequence[Command]) -> None:
        """The network worker has announced the stage and, of the round before, published the leaderboard."""
        for command in caused:
            if isinstance(command, Announce):
                self.tell(happened.RoundPublished(command.id, command.round, command.stage))
            elif isinstance(command, PublishLeaderboard):
                encode_frame(PerformMessage(command))
                self.tell(happened.LeaderboardPublished(command.id, command.round))

    def snapshot(self) -> None:
        """Write the state as it is written when a segment is full."""
        self._log.write_snapshot(self.state)


def run_core(directory: Path, size: int) -> Iterable[float]:
    """Processor time of each round in the daemon."""
    daemon = Daemon(directory)
    owners = [(decode_signed(record).owner, record) for record in read_reports(directory)]
    rules = CoordinatorSettings(min_peers=size + 1, quorum=1.0, shard_members=64)
    daemon.tell(happened.NodeStarted(Settings("me", SWARM, "coordinator", "me", coordination=rules), "run"))
    daemon.tell(happened.WorkerStarted("network", 1, 1), happened.WorkerStarted("trainer", 2, 1))
    daemon.tell(happened.TrainerReady("cpu", "tiny", 1), happened.LinkUp(3))
    rows = [MemberRow(owner, "a name", True) for owner, _ in owners]
    for first in range(0, size, ROW_MAX):
        daemon.tell(happened.MembersSeen(tuple(rows[first : first + ROW_MAX])))
    daemon.publish(daemon.tell(happened.Registered("register")))
    for round in range(ROUNDS):
        began = time.process_time()
        _play(daemon, owners, round)
        yield time.process_time() - began
    coordination = daemon.state.coordination
    assert coordination is not None and coordination.round == ROUNDS and len(coordination.standings) == size + 1


def _play(daemon: Daemon, owners: Sequence[tuple[str, bytes]], round: int) -> None:
    reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
    told: list[ReportRow] = []
    for owner, record in owners:
        frame = encode_frame(ObservedMessage(happened.ReportSeen(owner, round, 0, 0.5, "d" * 64, record)))
        for message in reader.read_messages(frame):
            assert isinstance(message, ObservedMessage) and isinstance(message.event, happened.ReportSeen)
            seen = message.event
            told.append(ReportRow(seen.peer, seen.reward, seen.digest, seen.record, seen.worked))
    for first in range(0, len(told), ROW_MAX):
        daemon.tell(happened.ReportsSeen(round, 0, tuple(told[first : first + ROW_MAX])))
    daemon.publish(daemon.tell(happened.ReportSeen("me", round, 0, 0.5, "d" * 64, owners[0][1])))
    daemon.snapshot()


def run_records(directory: Path, size: int) -> Iterable[float]:
    """Processor time of each round for the records in the network worker."""
    records = [decode_signed(record) for record in read_reports(directory)]
    policy = RecordPolicy(SWARM, "me")
    for round in range(ROUNDS):
        began = time.process_time()
        reports = [_judge(policy, record) for record in records]
        standings = tuple(Standing(record.owner, "a name", 0.5, round + 1, round) for record in records)
        body = encode_leaderboard(LeaderboardBody(round, standings, tuple(reports)))
        bodies.check_body(body, hashlib.sha256(body).hexdigest(), len(body))
        bodies.deflate(body, 1)
        yield time.process_time() - began


def _judge(policy: RecordPolicy, record: SignedRecord) -> bytes:
    key = names.key_id(names.reports_key(SWARM, 0, 0))
    check_record(policy, key, record.owner, record.value, record.expiration)
    encoded = record.encode()
    decode_report(encoded, SWARM)
    return encoded


def main() -> None:
    """Run one part and print what it took."""
    part, directory, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    rounds_s = tuple({"core": run_core, "records": run_records}[part](directory, size))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.buffer.write(msgspec.json.encode(Cost(rounds_s, peak_mib)))


if __name__ == "__main__":
    main()
