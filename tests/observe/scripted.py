"""Logs of several nodes of one swarm, written event by event, with clocks that are wrong."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from swarmd.core import events
from swarmd.core.events import Event
from swarmd.core.step import RULES
from swarmd.core.values import CoordinatorSettings, Judgement, RolloutsRef, Settings
from swarmd.eventlog.frame import NO_COMMANDS, Commit, encode_commit, encode_frame
from swarmd.eventlog.segment import PREFIX, SegmentHeader, encode_header, segment_name
from swarmd.observe.node_log import NodeLog, RoundRange
from swarmd.observe.timeline import Timeline

BEGAN_AT = 1_800_000_000.0
ROUND_S = 30.0
GROUPS = 12  # that each node shares
BODY_BYTES = 40_000


def peer_of(number: int) -> str:
    return f"12D3KooW{number:044}"


def ref_of(number: int, round: int) -> RolloutsRef:
    """The rollouts that a node makes in a round."""
    return RolloutsRef(peer_of(number), round, 0, f"{number:032x}{round:032x}", BODY_BYTES, GROUPS)


def write_segment(directory: Path, peer: str, commits: Iterable[Commit]) -> None:
    """Write a log of one segment, without syncs."""
    directory.mkdir(parents=True, exist_ok=True)
    header = encode_header(SegmentHeader(peer, "run", 0, b""))
    seed = PREFIX.unpack_from(header)[3]
    frames = [encode_frame(encode_commit(commit), seed) for commit in commits]
    (directory / segment_name(0)).write_bytes(header + b"".join(frames))


class ScriptedSwarm:
    """Nodes that do what a test says; the first one coordinates.

    Args:
        directory: of the nodes' directories.
        skews: by how much each node's clock is ahead, in seconds.
        shard_members: as in the coordinator's settings.

    Attributes:
        now: the true time, POSIX seconds.
    """

    def __init__(self, directory: Path, skews: Sequence[float], shard_members: int = 0) -> None:
        self.directory = directory
        self.skews = skews
        self.now = BEGAN_AT
        self.numbers = range(len(skews))
        self._rules = CoordinatorSettings(shard_members=shard_members)
        self._recorded: list[list[tuple[float, float, tuple[Event, ...]]]] = [[] for _ in skews]
        for number in self.numbers:
            self.start(number)

    def log(self, number: int, *recorded: Event, after_s: float = 0.0) -> None:
        """Have a node record events so long after now."""
        at = self.now + after_s
        self._recorded[number].append((at, at + self.skews[number], recorded))

    def length(self, number: int) -> int:
        """How many events a node has recorded."""
        return sum(len(recorded) for _, _, recorded in self._recorded[number])

    def commits(self, number: int) -> list[Commit]:
        """What a node has recorded, in the order of true time."""
        made: list[Commit] = []
        for _, at, recorded in sorted(self._recorded[number], key=lambda each: each[0]):
            made.append(Commit(made[-1].end_seq if made else 0, at, RULES, recorded, NO_COMMANDS))
        return made

    def start(self, number: int, after_s: float = 0.0) -> None:
        role, rules = ("follower", None) if number else ("coordinator", self._rules)
        settings = Settings(peer_of(number), "s", role, peer_of(0), f"node-{number}", coordination=rules)  # type: ignore[arg-type]
        self.log(number, events.NodeStarted(settings, "run"), events.LinkUp(len(self.skews) - 1), after_s=after_s)

    def play(
        self,
        round: int,
        without: Collection[int] = (),
        gathered: Mapping[int, Collection[int]] | None = None,
        missing: int = 0,
        trains: Collection[int] | None = None,
        publishes: Collection[int] | None = None,
        takes_s: Mapping[int, float] | None = None,
        used: int = 3,
    ) -> None:
        """Let a round pass.

        Args:
            without: nodes that take no part.
            gathered: whose rollouts of the round before each of these nodes has; the others have those of all.
            missing: that each node with an entry in `gathered` could not get.
            trains, publishes: nodes that train, and publish; by default all that take part.
            takes_s: seconds of training by node; 5 by default.
            used: groups of peers that each trains on.
        """
        here = [number for number in self.numbers if number not in without]
        trains = here if trains is None else trains
        publishes = trains if publishes is None else publishes
        opened_at = self.now + self.skews[0]
        clock = events.RoundAnnounced(round, 0, opened_at, opened_at + ROUND_S)
        if 0 in here:
            self.log(0, events.TimerFired("stage", opened_at))
            self.log(0, events.RoundPublished("announce/0", round, 0), clock, after_s=0.02)
        for number in here:
            if number:
                self.log(number, clock, after_s=0.03)
            chosen = (gathered or {}).get(number, [each for each in self.numbers if each != number])
            refs = tuple(ref_of(each, round - 1) for each in chosen) if round else ()
            lacks = missing if number in (gathered or {}) else 0
            self.log(number, events.RolloutsGathered(f"gather/{round}/0", round, 0, refs, lacks), after_s=1.0)
        reports = []
        for number in trains:
            ends_s = 1.0 + (takes_s or {}).get(number, 5.0 + 0.5 * number)
            self.log(number, self.trained(number, round, used), after_s=ends_s)
            if number in publishes:
                self.log(number, events.ReportPublished(f"report/{round}/0", round, 0), after_s=ends_s + 0.3)
                reports.append((ends_s + 0.1, number))
        for seen_s, number in sorted(reports):
            if number and 0 in here and seen_s < ROUND_S:
                seen = events.ReportSeen(peer_of(number), round, 0, 0.5, ref_of(number, round).digest, bytes(420))
                self.log(0, seen, after_s=seen_s)
        self.now += ROUND_S

    def trained(self, number: int, round: int, used: int) -> events.StageTrained:
        judged = tuple(Judgement(peer_of(each), 0.5) for each in self.numbers if each != number) if round else ()
        return events.StageTrained(
            f"train/{round}/0", round, 0, 0.5, ref_of(number, round), 4, 2048, 4.0, used if round else 0, judged=judged
        )

    def write(self) -> list[Path]:
        """Write the logs. Returns the nodes' directories."""
        places = []
        for number in self.numbers:
            places.append(self.directory / f"n{number}")
            write_segment(places[-1] / "events", peer_of(number), self.commits(number))
        return places

    def logs(self, wanted: RoundRange) -> list[NodeLog]:
        """The logs as far as they were written, not read yet."""
        return [NodeLog(number, place / "events", wanted) for number, place in enumerate(self.write())]

    def timeline(self) -> Timeline:
        """All that was written, together."""
        logs = self.logs(RoundRange(0))
        for log in logs:
            log.read()
            log.close()
        return Timeline(logs)
