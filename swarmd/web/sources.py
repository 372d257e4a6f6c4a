"""Where the server's figures come from: anything that can say where a swarm is and tell when that changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from swarmd.errors import SwarmdError
from swarmd.web.shapes import Curves, Gossip, Message, PeerPage, SwarmView

PEERS_ANSWERED_MAX = 2000  # of one view or page; `total` says how many there are


class Unavailable(SwarmdError):
    """What was asked for cannot be told now; the message says why."""


class ChangeSignal:
    """Signals changes to all waiting coroutines of one event loop."""

    def __init__(self) -> None:
        self.version = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters: something changed. Call it in the loop's thread."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer_than(self, version: int) -> int:
        """Wait for a version other than `version` and return it."""
        while self.version == version:
            await self._changed.wait()
        return self.version


class SwarmSource(Protocol):
    """A swarm, seen from somewhere: a node's log, or the DHT.

    Attributes:
        changes: rung whenever a view, a curve or the gossip may have changed.
    """

    changes: ChangeSignal

    async def view(self, peers_max: int = PEERS_ANSWERED_MAX) -> SwarmView:
        """Where the swarm is and who takes part, the first `peers_max` by rank.

        Raises:
            SwarmdError: it cannot be told at present.
        """

    async def peers(self, first: int, count: int, find: str = "") -> PeerPage:
        """`count` peers behind the `first` by rank, of all or of those with a text in name or id.

        Raises:
            SwarmdError: it cannot be told at present.
        """

    async def curves(self, peers: Sequence[str]) -> Curves:
        """Rewards of these peers, by default (none named) of the first ten by rank; unknown ones are left out."""

    async def gossip(self, since_round: int = -1) -> Gossip:
        """What peers shared in this round and later, newest first."""

    async def messages_since(self, count: int) -> tuple[list[Message], int]:
        """What was shared beyond the first `count` messages, oldest first, and how many there are; nothing for -1.

        Raises:
            SwarmdError: it cannot be told at present.
        """
