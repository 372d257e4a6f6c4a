"""The interface through which the swarm page reads a node's log or the DHT."""

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
    """A source of swarm views. Its methods answer in threads, and raise SwarmdError if there is no answer at present.
    `changes`: notified whenever a view, a curve or the gossip may have changed."""

    changes: ChangeSignal

    def __init__(self, threads: int) -> None:
        self._answers = WorkPool("answers", threads)

    @abstractmethod
    def describe_source(self) -> PageSource:
        """Version, name and kind of the source, for the page's first request."""

    @abstractmethod
    def _lock_state_and_ledger(self) -> AbstractContextManager[tuple[State, PeerLedger]]:
        """The newest state and ledger, which do not change inside the `with`."""

    @property
    @abstractmethod
    def _gossip_feed(self) -> GossipFeed:
        """The feed of messages that peers shared."""

    @abstractmethod
    def _view(self, peers_max: int) -> SwarmView:
        """As `view`, but synchronous: reads files and waits for locks."""

    async def view(self, peers_max: int = PEERS_ANSWERED_MAX) -> SwarmView:
        """Where the swarm is and who takes part, the first `peers_max` by rank."""
        return await self._answers.run_call(self._view, peers_max)

    async def peers(self, first: int, count: int, find: str = "") -> PeerPage:
        """`count` peers after the `first` by rank, of all or of those with `find` in name or id."""
        return await self._answers.run_call(self._peers, first, count, find)

    def _peers(self, first: int, count: int, find: str) -> PeerPage:
        with self._lock_state_and_ledger() as (state, ledger):
            return peer_page(state, ledger, first, count, find)

    async def curves(self, peers: Sequence[str]) -> Curves:
        """Rewards of these peers, or, if none are named, of the first ten by rank; unknown ones are left out."""
        return await self._answers.run_call(self._curves, tuple(peers))

    def _curves(self, peers: tuple[str, ...]) -> Curves:
        with self._lock_state_and_ledger() as (state, ledger):
            return peer_curves(state, ledger, peers)

    async def gossip(self, since_round: int = -1) -> Gossip:
        """Messages that peers shared in this round and later, newest first."""
        return Gossip(await self._answers.run_call(self._gossip_feed.latest, since_round))

    async def messages_since(self, count: int) -> tuple[list[Message], int]:
        """Messages beyond the first `count`, oldest first, and the number of all; nothing for -1."""
        feed = self._gossip_feed
        return await self._answers.run_call(feed.messages_since, count) if feed.has_newer_than(count) else ([], count)
