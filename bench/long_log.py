"""Long logs: a node's life of millions of events, written as it is made up, with the snapshots that a daemon takes.

Reports are signed, so that a leaderboard of such a log adds up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.recording import Recorder, digest_of, reward_of
from swarmd.core import events as happened
from swarmd.core.applied import apply_facts
from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event
from swarmd.core.step import StateFold
from swarmd.core.values import CoordinatorSettings, Role, Settings
from swarmd.dht.identity.identity import Ed25519Identity
from swarmd.dht.wire.records import ReportRecord, sign
from swarmd.eventlog.frame import digest_commands
from swarmd.eventlog.store import LOG_BYTES_MAX, SEGMENT_BYTES, EventLog

FACTS_A_COMMIT = 32  # one sync each: a daemon under load groups them so too
RUN_ROUNDS = 5000  # rounds between two starts of the node
SWARM = "bench"


def identity_of(number: int) -> Ed25519Identity:
    """The key of a made-up node."""
    seed = hashlib.sha256(b"node %d" % number).digest()
    return Ed25519Identity(seed, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


class LongLife(Recorder):
    """A `Recorder` that writes what it records and keeps none of it."""

    def __init__(self, node: Settings, identities: Sequence[Ed25519Identity], log: EventLog) -> None:
        super().__init__(node, [each.peer_id for each in identities if each.peer_id != node.peer])
        self._identities = {each.peer_id: each for each in identities}
        self._log = log
        self._fold = StateFold(self.state)
        self._batch: list[Event] = []
        self._batch_caused: list[Command] = []
        self._batch_facts = 0
        self._batch_at = self.at

    def _take(self, fact: Event) -> None:
        if not self._batch:
            self._batch_at = self.at
        at = self._batch_at
        caused: list[Command] = []
        for event in [applied.event for applied in apply_facts(self.state, self.events, at, (fact,))]:
            caused += self._fold.apply(Envelope(self.events, at, event))
            self._batch.append(event)
            self.events += 1
        self.state = self._fold.state
        self._batch_caused += caused
        self._batch_facts += 1
        self.at += 0.01
        for command in caused:
            self._facts.extend(self._answer(command))
        if self._batch_facts >= FACTS_A_COMMIT or self.at - self._batch_at > 1.0:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet; the next commit has a time of its own."""
        if not self._batch:
            return
        self._log.append(self._batch_at, self._batch, digest_commands(self._batch_caused))
        self._batch, self._batch_caused, self._batch_facts = [], [], 0
        if self._log.is_snapshot_due:
            self._log.write_snapshot(self.state)

    def _report_seen(self, peer: str, round: int, stage: int) -> Event:
        reward, digest = reward_of(peer, round), digest_of(peer, round)
        record = ReportRecord(SWARM, round, stage, reward, digest, 48_213, 16)
        signed = sign(self._identities[peer], record, self.at + 3600.0).encode()
        return happened.ReportSeen(peer, round, stage, reward, digest, signed)

    def start_again(self) -> None:
        """The node's next start."""
        self._facts.append(happened.NodeStarted(self.settings, f"run-{self.round}", "0"))


def write_long_log(
    directory: Path,
    events: int,
    role: Role = "coordinator",
    nodes: int = 3,
    segment_bytes: int = SEGMENT_BYTES,
    bytes_max: int = LOG_BYTES_MAX,
) -> int:
    """A log of at least so many events in `directory`, the same for the same arguments. Returns its last round."""
    identities = [identity_of(number) for number in range(nodes)]
    own = identities[0 if role == "coordinator" else 1].peer_id
    rules = CoordinatorSettings(min_peers=1, start_s=0.0) if role == "coordinator" else None
    node = Settings(own, SWARM, role, identities[0].peer_id, "long-lived", coordination=rules)
    with EventLog.open(directory, own, "run-1", segment_bytes, bytes_max) as log:
        life = LongLife(node, identities, log)
        started = 0
        while life.events < events:
            if life.round - started >= RUN_ROUNDS:
                started = life.round
                life.start_again()
            life.run(20)
        life.flush()
        return life.round
