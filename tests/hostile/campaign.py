"""A grammar fuzz of whole nodes while they run rounds, and checks of what they have stored and logged."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from swarmd.core.events import (
    Event,
    MemberSeen,
    MembersSeen,
    RecordsRejected,
    ReportSeen,
    ReportsSeen,
    RoundAnnounced,
    RoundPublished,
    members_in,
    reports_in,
)
from swarmd.dht.identity.identity import RsaIdentity
from swarmd.dht.wire import names
from swarmd.dht.wire.records import decode_signed
from swarmd.eventlog.reader import read_commits
from tests.e2e.conftest import PATIENCE_S, Swarm
from tests.hostile.attack import memory_mib
from tests.hostile.fuzzer import Attacker, Fuzzer, Tally
from tests.hostile.grammar import Entry, Grammar
from tests.hostile.oracle import Forged, check_genuine
from tests.hostile.watch import ScriptedDaemon

ATTACKERS = 6  # at once
LOOK_S = 1.0
SAY_S = 15.0
AFTERWARDS = 2  # rounds that everybody is to complete once all was sent
KEYS_AT_ONCE = 16  # that are asked for, of those that no honest node writes
ASKED_S = 120.0  # longest wait for a node to show what it holds under a key
ROUNDS_S = 120.0  # longest wait for the rounds afterwards


class LeanSwarm(Swarm):
    """Nodes whose trainer has no model, and whose workers are executed: a forked one's memory is not its own."""

    def __init__(self, directory: Path, nodes: int) -> None:
        super().__init__(directory, nodes)
        self.daemons = tuple(ScriptedDaemon(place) for place in self.places)


class Campaign:
    """The fuzz of a running swarm.

    Args:
        swarm: whose nodes have been started.
        seed: of all that is sent.
        say: takes lines about how far it has come.
    """

    def __init__(self, swarm: Swarm, seed: int, say: Callable[[str], None]) -> None:
        self._swarm = swarm
        self._say = say
        told = [swarm.told(place.number) for place in swarm.places]
        self._peers = [status.peer for status in told]
        self._workers = {status.peer: status.network.worker.pid for status in told}
        self._addresses = [next(each for each in status.network.addresses if "127.0.0.1" in each) for status in told]
        self._swarm_id = told[0].swarm
        self._restarts = [status.network.worker.restarts for status in told]
        self._seed = seed
        self.quiet_mib: dict[str, float] = {}
        self.highest_mib: dict[str, float] = {}
        self.rounds = (0, 0)  # that was worked on when it began and when all was sent
        self.held = 0  # records in the storages that were judged
        self.logged = 0  # events that were
        self.forged: list[str] = []
        self.fuzzer: Fuzzer | None = None

    @property
    def tally(self) -> Tally:
        """What was sent."""
        assert self.fuzzer is not None, "nothing was sent yet"
        return self.fuzzer.tally

    @property
    def growth_mib(self) -> float:
        """Of the worker that grew most, above its quiet size."""
        return max(self.highest_mib[peer] - quiet for peer, quiet in self.quiet_mib.items())

    async def run(self, frames: int, attackers: int = ATTACKERS) -> None:
        """Send so many records and frames; then judge what the nodes hold, and see them complete further rounds."""
        with tempfile.TemporaryDirectory(prefix="fuzz") as sockets:
            root = Path(sockets)
            identity = RsaIdentity(rsa.generate_private_key(65537, 2048))
            self.fuzzer = Fuzzer(root, self._swarm_id, self._peers, self._addresses, self._seed, identity)
            self.quiet_mib = self._memory()
            first = await self._round()
            watching = asyncio.ensure_future(self._watch(frames))
            try:
                await self.fuzzer.run(frames, attackers)
            finally:
                watching.cancel()
            self.rounds = (first, await self._round())
            await self._judge_held(root)
        await asyncio.to_thread(self._see_rounds)

    async def _round(self) -> int:
        return await asyncio.to_thread(self._swarm.working_round, len(self._peers))

    def _memory(self) -> dict[str, float]:
        return {peer: memory_mib(pid) for peer, pid in self._workers.items()}

    async def _watch(self, frames: int) -> None:
        """Note the memory, tell the grammars where the swarm is, say how far it has come."""
        assert self.fuzzer is not None
        said, self.highest_mib = 0.0, dict(self.quiet_mib)
        while True:
            with suppress(OSError):  # a worker that has gone shows by its restarts
                for peer, mib in self._memory().items():
                    self.highest_mib[peer] = max(self.highest_mib[peer], mib)
            round = await self._round()
            if round >= 0:
                self.fuzzer.reach(round)
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                self._say(
                    f"{self.tally.sent:,} of {frames:,}, round {round}, +{self.growth_mib:.0f} MiB, {self._fates()}"
                )
            await asyncio.sleep(LOOK_S)

    def _fates(self) -> str:
        return ", ".join(f"{fate} {count:,}" for fate, count in self.tally.fates.most_common())

    async def _judge_held(self, root: Path) -> None:
        """Judge every record that the nodes hold under any key that is known."""
        assert self.fuzzer is not None
        keys = self.fuzzer.keys | {names.key_id(name) for name in self._names()}
        grammar = Grammar("reader", self._swarm_id, self._peers, self.fuzzer.grammars[0].identities[-1])
        for number, address in enumerate(self._addresses):
            reader = Attacker(root / f"reader-{number}", grammar, Tally())
            await reader.open(address)
            try:
                written = sorted(names.key_id(name) for name in self._names())
                others = sorted(key for key in keys.difference(written) if len(key) == 20)
                for key in written:
                    await self._judge_keys(reader, key)
                for start in range(0, len(others), KEYS_AT_ONCE):
                    await self._judge_keys(reader, *others[start : start + KEYS_AT_ONCE])
            finally:
                await reader.close()

    def _names(self) -> Iterable[str]:
        """Keys that honest nodes write."""
        swarm = self._swarm_id
        yield from (names.members_key(swarm), names.clock_key(swarm))
        for round in range(self.rounds[0], self.rounds[1] + 1):
            yield from (
                names.reports_key(swarm, round, 0),
                names.rollouts_key(swarm, round, 0),
                names.leaderboard_key(swarm, round),
            )

    async def _judge_keys(self, reader: Attacker, *keys: bytes) -> None:
        for entry, owner in await asyncio.wait_for(_shown(reader, keys), ASKED_S):
            self.held += 1
            try:
                check_genuine(
                    self._swarm_id, self._peers[0], entry.key, owner, entry.value, entry.expiration, time.time()
                )
                self._check_owner(owner)
            except Exception as error:
                self.forged.append(f"held under {entry.key.hex()}, of {owner}: {error!r}")

    def _check_owner(self, owner: str) -> None:
        assert self.fuzzer is not None
        if owner not in self._peers and owner not in self.fuzzer.owners:
            raise Forged("nobody here has the key of this peer id")

    def _see_rounds(self) -> None:
        for place in self._swarm.places:
            self._swarm.wait_round(place.number, self.rounds[1] + AFTERWARDS, ROUNDS_S)

    # --- afterwards ---

    def restarts(self) -> int:
        """How often a network worker was started anew since the beginning; none may be."""
        told = [self._swarm.told(place.number) for place in self._swarm.places]
        return sum(status.network.worker.restarts for status in told) - sum(self._restarts)

    def judge_logs(self) -> Counter[str]:
        """Judge what of the records came into the logs of nodes that were stopped; refusals by reason."""
        logs = [list(events_of(place.events)) for place in self._swarm.places]
        clock = {(event.round, event.stage) for _, event in logs[0] if isinstance(event, RoundPublished)}
        refused: Counter[str] = Counter()
        for place, events in zip(self._swarm.places, logs, strict=True):
            for at, event in events:
                if isinstance(event, RecordsRejected):
                    refused[event.reason] += event.count
                try:
                    self.logged += self._judge_event(event, at, clock)
                except Exception as error:
                    self.forged.append(f"{place.name} logged {event!r:.300}: {error!r}")
        return refused

    def _judge_event(self, event: Event, at: float, clock: set[tuple[int, int]]) -> bool:
        """True for an event that a record led to. Raises Forged where it should not have."""
        if isinstance(event, MemberSeen | MembersSeen):
            for member in members_in(event):
                self._check_owner(member.peer)
        elif isinstance(event, RoundAnnounced):
            if (event.round, event.stage) not in clock:
                raise Forged("the coordinator announced no such stage")
        elif isinstance(event, ReportSeen | ReportsSeen):
            for report in reports_in(event):
                self._judge_report(report, at)
        else:
            return False
        return True

    def _judge_report(self, event: ReportSeen, at: float) -> None:
        signed = decode_signed(event.record)
        key = names.key_id(names.reports_key(self._swarm_id, event.round, event.stage))
        fields = check_genuine(self._swarm_id, self._peers[0], key, signed.owner, signed.value, signed.expiration, at)
        self._check_owner(event.peer)
        said = (signed.owner, fields["reward"], fields.get("digest", ""))
        if said != (event.peer, event.reward, event.digest):
            raise Forged(f"the record says {said}")

    def credited(self) -> tuple[int, int]:
        """(reports of honest nodes in the coordinator's log, how many there should be) for the rounds of the fuzz."""
        first, last = self.rounds
        events = [event for _, event in events_of(self._swarm.places[0].events)]
        reports = {(e.peer, e.round) for event in events for e in reports_in(event) if first <= e.round < last}
        return len([each for each in reports if each[0] in self._peers]), (last - first) * len(self._peers)


async def _shown(reader: Attacker, keys: tuple[bytes, ...]) -> list[tuple[Entry, str]]:
    while True:
        before = reader._refused
        entries = await reader.entries(*keys)
        if reader._refused == before:
            return entries


def events_of(events: Path) -> Iterable[tuple[float, Event]]:
    """(when, event) of a node's log."""
    for commit in read_commits(events):
        for event in commit.events:
            yield commit.at, event


async def started(swarm: Swarm, numbers: Iterable[int]) -> None:
    """Until these nodes have trained a round."""
    for number in numbers:
        await asyncio.to_thread(swarm.wait_round, number, 1, PATIENCE_S)
