"""Leaderboards as simulated nodes read them: each is unpacked, checked and sorted once, for all who read it.

What a node makes of a leaderboard has a row for each member, so that N nodes would make N² rows of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from swarmd.core.values import Standing
from swarmd.dht.store.seniority import credited_rounds
from swarmd.dht.wire.bodies import LeaderboardBody, decode_board
from swarmd.sim.ports.once import Once

KEPT = 4  # leaderboards: all nodes read the same one at about the same time


class Boards:
    """What the nodes of a world make of leaderboards.

    Attributes:
        unpack: what came in a record → the body in it.
        digest: a body → its SHA-256 in hex.
        open: a body → the leaderboard.
        rounds: standings → rounds of the peers that they credit, see `Seniority`.
    """

    def __init__(self) -> None:
        self.unpack: Once[bytes, bytes] = Once(lambda packed: packed[1:], KEPT)
        self.digest: Once[bytes, str] = Once(lambda body: hashlib.sha256(body).hexdigest(), KEPT)
        self.open: Once[bytes, LeaderboardBody] = Once(decode_board, KEPT)
        self.rounds: Once[Iterable[Standing], dict[str, int]] = Once(credited_rounds, KEPT)
