"""What the nodes sign, compared as real nodes compare it: an honest one is never accused, whatever befalls it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from swarmd.core.commands import Announce, Command, PublishLeaderboard, PublishReport
from swarmd.dht.evidence import RecordComparison
from swarmd.dht.wire.bodies import LeaderboardBody, encode_board
from swarmd.dht.wire.evidence import Evidence
from swarmd.dht.wire.records import ClockRecord, LeaderboardRecord, Payload, ReportRecord, SignedRecord

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

STEP_S = 0.001  # a node's expirations grow with each record, as `swarmd.dht.rounds.publisher` has it


class SignedRecords:
    """Sees the record of each order that makes one, in the order in which a node gets them, over all of its lives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at = 0.0
        self._node: SimNode | None = None
        coordinator = next((node.peer for node in world.nodes if node.coordinates), "")
        self._compared = RecordComparison(coordinator, lambda peer: True, self._accuse)

    def on_dispatch(self, node: SimNode, command: Command) -> None:
        """An order goes to a node's network worker, which signs a record if it is one for that."""
        content = record_of(command)
        if content is not None:
            self._at, self._node = self._at + STEP_S, node
            self._compared.see(SignedRecord(node.peer, msgspec.msgpack.encode(content), self._at, b""))

    def _accuse(self, evidence: Evidence) -> None:
        assert self._node is not None
        one, other = evidence.first.content, evidence.second.content
        self._world.fail(self._node, f"two different records that others would take for a lie: {one} and {other}")


def record_of(command: Command) -> Payload | None:
    """The record that an order makes a node sign; None for another order."""
    if isinstance(command, PublishReport):
        body = command.rollouts
        place = (command.round, command.stage, command.reward)
        return ReportRecord("sim", *place, body.digest, body.size_bytes, body.groups)
    if isinstance(command, Announce):
        times = (command.opened_at, command.deadline_at, command.final, command.opening)
        return ClockRecord("sim", command.round, command.stage, *times)
    if isinstance(command, PublishLeaderboard):
        board = encode_board(LeaderboardBody(command.round, command.standings, command.reports))
        return LeaderboardRecord("sim", command.round, hashlib.sha256(board).hexdigest(), len(board))
    return None
