"""Where the swarm page's figures come from: a node's log, or the DHT."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from swarmd.core.state import State
from swarmd.web.endpoints import WorkPool
from swarmd.web.gossip import GossipFeed
from swarmd.web.shapes import (
    PEERS_ANSWERED_MAX,
    ChangeSignal,
    Curves,
    Gossip,
    Message,
    PageSource,
    PeerPage,
    SwarmView,
)
from swarmd.web.swarm import PeerLedger, peer_curves, peer_page


class SwarmSource(ABC):
    """A swarm, seen from somewhere. What is asked is answered in threads, and raises SwarmdError if it cannot be told
    at present. `changes`: notified whenever a view, a curve or the gossip may have changed."""

    changes: ChangeSignal

    def __init__(self, threads: int) -> None:
        self._answers = WorkPool("answers", threads)

    @abstractmethod
    def describe_source(self) -> PageSource:
        """What a server that shows this says of itself."""

    @abstractmethod
    def _lock_state_and_ledger(self) -> AbstractContextManager[tuple[State, PeerLedger]]:
        """The newest state and ledger, which do not change inside the `with`."""

    @property
    @abstractmethod
    def _gossip_feed(self) -> GossipFeed:
        """The newest gossip."""

    @abstractmethod
    def _view(self, peers_max: int) -> SwarmView:
        """As `view`. Reads files and waits for locks."""

    async def view(self, peers_max: int = PEERS_ANSWERED_MAX) -> SwarmView:
        """Where the swarm is and who takes part, the first `peers_max` by rank."""
        return await self._answers.run_call(self._view, peers_max)

    async def peers(self, first: int, count: int, find: str = "") -> PeerPage:
        """`count` peers behind the `first` by rank, of all or of those with a text in name or id."""
        return await self._answers.run_call(self._peers, first, count, find)

    def _peers(self, first: int, count: int, find: str) -> PeerPage:
        with self._lock_state_and_ledger() as (state, ledger):
            return peer_page(state, ledger, first, count, find)

    async def curves(self, peers: Sequence[str]) -> Curves:
        """Rewards of these peers, by default (none named) of the first ten by rank; unknown ones are left out."""
        return await self._answers.run_call(self._curves, tuple(peers))

    def _curves(self, peers: tuple[str, ...]) -> Curves:
        with self._lock_state_and_ledger() as (state, ledger):
            return peer_curves(state, ledger, peers)

    async def gossip(self, since_round: int = -1) -> Gossip:
        """What peers shared in this round and later, newest first."""
        return Gossip(await self._answers.run_call(self._gossip_feed.latest, since_round))

    async def messages_since(self, count: int) -> tuple[list[Message], int]:
        """What was shared beyond the first `count` messages, oldest first, and how many there are; nothing for -1."""
        feed = self._gossip_feed
        return await self._answers.run_call(feed.messages_since, count) if feed.has_newer_than(count) else ([], count)
