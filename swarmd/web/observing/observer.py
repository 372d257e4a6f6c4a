"""A swarm read from the DHT by somebody who takes no part in it: it dials, reads and writes nothing.

The parts are those of a node's network worker, without a membership record: clock, members, reports, rollouts and the
leaderboard come as events, as a node's do, and go into the same books. What was before the observer came is known from
the leaderboard of the last round alone. Where a contract keeps the rounds, it is read as well
(`swarmd.web.observing.contract`) and counts above the DHT, which tells who is there and what they write.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from swarmd import __version__
from swarmd.config import Config, DhtConfig, LogsConfig, SwarmConfig
from swarmd.core.applied import Applied
from swarmd.core.commands import CollectReports, Gather
from swarmd.core.events import (
    Envelope,
    Equivocated,
    Event,
    LinkDegraded,
    LinkDown,
    LinkUp,
    MemberLeft,
    MemberSeen,
    MembersSeen,
    ReportSeen,
    ReportsSeen,
    RolloutsGathered,
    RoundAnnounced,
)
from swarmd.core.evidence import keep
from swarmd.core.ids import command_id
from swarmd.core.node.rounds import preceding
from swarmd.core.state import Clock, State
from swarmd.core.values import ChainSettings, Settings
from swarmd.dht.addresses import check_bootstrap
from swarmd.dht.identity.identity import create_identity
from swarmd.dht.members.membership import Members
from swarmd.dht.p2p.hivemind_api import use_hivemind_log_handler
from swarmd.dht.rounds.clock import SwarmClock
from swarmd.dht.rounds.gather import gather
from swarmd.dht.rounds.report_collector import ReportCollector
from swarmd.dht.rounds.standings import LeaderboardFollower
from swarmd.dht.session import Session
from swarmd.dht.wire.leaderboard import LeaderboardBody
from swarmd.errors import SwarmdError, single_error
from swarmd.eventlog.blobs import Blobs
from swarmd.logger import get_logger
from swarmd.manifest import Manifest
from swarmd.observe.narrative.words import equivocation_notes
from swarmd.paths import NodeDirectory
from swarmd.web.http.work import WorkPool
from swarmd.web.observing.contract import CONTRACT_EVENTS, ContractEvent, ContractFeed, deadline_of, heed, unread
from swarmd.web.shapes import CURVES_MAX, Curves, Gossip, Message, PageSource, PeerPage, SwarmView
from swarmd.web.sources import PEERS_ANSWERED_MAX, ChangeSignal
from swarmd.web.views.gossip import GossipFeed
from swarmd.web.views.ledger import PeerLedger
from swarmd.web.views.swarm import ViewContext, isolated_words, peer_page, peer_rows, swarm_view

CURVES_SHOWN = 10  # where none are asked for
THREADS = 1  # for answers: of a large swarm each takes a tenth of a second
GATHER_S = 20.0  # for the rollouts of a stage
AGAIN_S = 5.0  # before the DHT is tried again where that ended with an error
BLOB_BYTES_MAX = 64 * 1024 * 1024  # of rollouts on disk, before the oldest go
IN_BOOKS = (MemberSeen, MembersSeen, MemberLeft, ReportSeen, ReportsSeen, RolloutsGathered)
OF_A_STAGE = (ReportSeen, ReportsSeen, RolloutsGathered)  # they say how far a peer is

log = get_logger(__name__)


class DhtSwarm:
    """Follows a swarm; a `SwarmSource`.

    Args:
        manifest: of the swarm.
        place: a scratch directory: for a key of its own, sockets and rollouts.
        bootstrap: addresses beyond the manifest's.
        rpc: endpoints of the chain, best first and checked already, in place of the manifest's.
    """

    def __init__(self, manifest: Manifest, place: Path, bootstrap: Sequence[str] = (), rpc: Sequence[str] = ()) -> None:
        self.changes = ChangeSignal()
        self._manifest = manifest
        self._paths = NodeDirectory(place)
        self._paths.network.mkdir(exist_ok=True)
        self._identity = create_identity(NodeDirectory(place).identity)
        self._config = observer_config(manifest, bootstrap)
        self._blobs = Blobs(self._paths.blobs)
        self._ledger = PeerLedger()
        self._feed = GossipFeed(self._blobs, self._ledger)
        self._state = State(settings=_settings(manifest))
        self._link = "no node of the swarm has answered yet"
        self._isolated = ""  # why the coordinator is not heard although nodes answer
        self._seq = 0
        self._begun_at = time.time()
        self._answers = WorkPool("answers", THREADS)
        self._books = threading.RLock()  # held where the event loop writes what the answers' thread reads
        self._session: Session
        self._members: Members
        self._reports: ReportCollector
        self._standings: LeaderboardFollower
        self._dials = False  # the session runs
        self._contract: ContractFeed | None = None
        if manifest.chain is not None and (urls := tuple(rpc) or manifest.chain.rpc):
            books = (self._ledger, self.observe, self._follow_contract)
            self._contract = ContractFeed(manifest, urls, self._identity.peer_id, *books)
            self._state = msgspec.structs.replace(self._state, chain=unread(manifest))

    def here(self) -> PageSource:
        """What a server that shows this says of itself."""
        return PageSource(
            __version__,
            node=False,
            swarm=True,
            live=True,
            name=self._manifest.name,
            swarm_id=self._manifest.id,
        )

    async def run(self) -> None:
        """Follow the swarm until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._contract is not None:
                tasks.start_soon(self._contract.run)
            tasks.start_soon(self._dial)

    async def _dial(self) -> None:
        """Follow it in the DHT; where that cannot be, the contract is followed all the same."""
        use_hivemind_log_handler("nowhere")
        while True:
            try:
                parts = (self._config, self._paths, self._identity, self._blobs)
                self._session = Session(*parts, self, fills_process=False)
                self._members = Members(self._session)
                self._reports = ReportCollector(self._session, self._members.presences)
                self._standings = LeaderboardFollower(self._session, self._settle)
                await self._session.run(self._follow)
            except* SwarmdError as errors:
                self._link = str(single_error(errors))
            finally:
                self._dials = False
            self.changes.notify()
            await anyio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        SwarmClock(self._session).follow()
        self._members.follow()
        self._dials = True
        if self._state.clock is not None:  # the contract was read first
            self._read_stage(self._state.clock, fresh=True)
        await asyncio.Event().wait()

    # --- what happens ---

    def observe(self, event: Event) -> None:
        """Take an event of the session. In the event loop."""
        with self._books:
            noted = self._take(event)
        if noted:
            self.changes.notify()

    def _take(self, event: Event) -> bool:
        """Whether the event says anything that is shown."""
        if isinstance(event, RoundAnnounced):
            self._heed_clock(event)
        elif isinstance(event, CONTRACT_EVENTS):
            self._heed_contract(event)
        elif isinstance(event, LinkUp):
            self._link, self._isolated = "", event.isolated
        elif isinstance(event, LinkDegraded | LinkDown):
            self._link, self._isolated = event.reason, ""
        elif isinstance(event, Equivocated):
            known = keep(self._state.equivocations, event, time.time())
            self._state = msgspec.structs.replace(self._state, equivocations=known)
        elif isinstance(event, IN_BOOKS):
            self._book(event)
        else:
            return False
        return True

    def _book(self, event: Event) -> None:
        self._seq += 1
        applied = Applied(Envelope(self._seq, time.time(), event), self._state, self._state, ())
        chain = self._state.chain
        if chain is None or chain.chart == "up" or not isinstance(event, OF_A_STAGE):
            self._ledger.apply(applied)  # rounds of blocks that are still to be read would not count after a later one
        self._feed.apply(applied)

    def _heed_clock(self, event: RoundAnnounced) -> None:
        """The coordinator tells where the swarm is; a contract that can be read knows better."""
        chain, clock = self._state.chain, self._state.clock
        if chain is not None and clock is not None:
            older = (event.round, event.stage) < (clock.round, clock.stage)
            if older or chain.chart == "up":
                return
        self._go_to(event)

    def _heed_contract(self, event: ContractEvent) -> None:
        assert self._state.chain is not None, "a contract that nobody reads"
        self._book(event)
        chain = heed(self._state.chain, event, self._ledger)
        self._state = msgspec.structs.replace(self._state, chain=chain)

    def _follow_contract(self) -> None:
        """The chain has been read up to its head: be where the contract is. Stages passed on the way are left out."""
        chain = self._state.chain
        if chain is not None and chain.chart == "up":
            self._go_to(RoundAnnounced(chain.round, chain.stage, chain.opened_at, deadline_of(chain)))
            self.changes.notify()

    def _go_to(self, event: RoundAnnounced) -> None:
        """The swarm is at a stage."""
        before = self._state.clock
        clock = Clock(event.round, event.stage, event.opened_at, event.deadline_at, event.final)
        self._state = msgspec.structs.replace(self._state, clock=clock)
        if before is not None and (before.round, before.stage, before.final) == (clock.round, clock.stage, clock.final):
            return
        if self._dials:
            self._read_stage(clock, before is None or before.round != clock.round)

    def _read_stage(self, clock: Clock, fresh: bool) -> None:
        """A stage has opened, of a `fresh` round or not: collect its reports, look at what the one before left."""
        self._session.policy.round = clock.round
        if not clock.final:
            collect = CollectReports(command_id("collect", f"{clock.round}/{clock.stage}"), clock.round, clock.stage)
            self._session.start(self._attempt, self._reports.collect(collect))
        source = preceding(clock.round, clock.stage, self._manifest.recipe.stages)
        if source is not None:
            until_at = time.time() + GATHER_S
            command = Gather(
                command_id("gather", f"{clock.round}/{clock.stage}"), clock.round, clock.stage, *source, until_at
            )
            self._session.start(self._attempt, _gather(self._session, self._blobs, command))
        if self._manifest.chain is None and (fresh or clock.final):
            self._standings.reach(clock.round)

    async def _attempt(self, reading: object) -> None:
        """What cannot be read is left out; the next stage brings more."""
        try:
            await reading  # type: ignore[misc]
        except SwarmdError as error:
            log.info("%s", error.message)

    def _settle(self, board: LeaderboardBody) -> None:
        """Take over the coordinator's sums."""
        with self._books:
            self._ledger.settle(board.round, board.standings, time.time())
        self._session.compared.read_board(board.reports)
        self.changes.notify()

    # --- what is asked ---

    async def view(self, peers_max: int = PEERS_ANSWERED_MAX) -> SwarmView:
        """Where the swarm is and who takes part."""
        return await self._answers.do(self._view, peers_max)

    def _view(self, peers_max: int) -> SwarmView:
        around = ViewContext(self._manifest.recipe.kind, time.time(), 0, ())
        with self._books:
            seen = swarm_view(self._state, self._ledger, around, peers_max)
            return msgspec.structs.replace(seen, source="dht", notes=self._notes())

    async def peers(self, first: int, count: int, find: str = "") -> PeerPage:
        """Part of the leaderboard."""
        return await self._answers.do(self._peers, first, count, find)

    def _peers(self, first: int, count: int, find: str) -> PeerPage:
        with self._books:
            return peer_page(self._state, self._ledger, first, count, find)

    async def curves(self, peers: Sequence[str]) -> Curves:
        """Rewards since this observer came; where a contract is read, those in the blocks that were read."""
        return await self._answers.do(self._curves, tuple(peers))

    def _curves(self, peers: tuple[str, ...]) -> Curves:
        with self._books:
            wanted = peers[:CURVES_MAX] or [row.id for row in peer_rows(self._state, self._ledger, count=CURVES_SHOWN)]
            accounts = self._ledger.accounts
            return Curves(tuple(accounts[peer].curve() for peer in wanted if peer in accounts))

    async def gossip(self, since_round: int = -1) -> Gossip:
        """What peers shared."""
        return Gossip(await asyncio.to_thread(self._feed.latest, since_round))

    async def messages_since(self, count: int) -> tuple[list[Message], int]:
        """What was shared beyond the first `count` messages."""
        return await asyncio.to_thread(self._feed.since, count) if self._feed.has_beyond(count) else ([], count)

    def _notes(self) -> tuple[str, ...]:
        notes = [f"The swarm is not reached in the DHT: {self._link}."] if self._link else []
        if self._isolated:
            notes.append(isolated_words("This observer", self._isolated))
        if self._state.clock is None:
            notes.append("No round has been seen yet.")
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._begun_at))
        if self._contract is not None and self._state.chain is not None:
            notes += self._contract.notes(self._state.chain)
            notes.append(f"Who is there and what they write is read from the DHT since {since}.")
        else:
            notes.append(f"Read from the DHT since {since}: of what came before only the sums are known.")
            notes += _notes_unread(self._manifest)
        notes += equivocation_notes(self._state)
        if self._ledger.turned_away:
            notes.append("There are more peers than this server keeps count of.")
        return tuple(notes)


async def _gather(session: Session, blobs: Blobs, command: Gather) -> None:
    """What peers shared, in bounded room."""
    await gather(session, command)
    await asyncio.to_thread(blobs.prune, frozenset(), BLOB_BYTES_MAX)


def observer_config(manifest: Manifest, bootstrap: Sequence[str] = ()) -> Config:
    """How an observer takes part in the DHT: it dials only, and registers nowhere.

    Raises:
        ConfigError: one of `bootstrap`, addresses beyond the manifest's, is none.
    """
    check_bootstrap(bootstrap, "further bootnodes")
    return Config(
        swarm=SwarmConfig(manifest.id, manifest.creator, manifest.recipe.kind, manifest.recipe.stages),
        name="observer",
        dht=DhtConfig(
            listen=(),
            bootstrap=tuple(dict.fromkeys((*bootstrap, *manifest.bootnodes))),
            client_mode=True,
            members=manifest.members,
        ),
        logs=LogsConfig(level="warning"),
    )


def _settings(manifest: Manifest) -> Settings:
    """Without a peer id: the observer is nobody in the books."""
    chain = manifest.chain
    settings = ChainSettings(sends=False, drive="never", reward_scale=chain.reward_scale) if chain else None
    return Settings("", manifest.id, "follower", manifest.creator, stages=manifest.recipe.stages, chain=settings)


def _notes_unread(manifest: Manifest) -> tuple[str, ...]:
    """What is missing where a contract keeps the rounds and no endpoint is known."""
    chain = manifest.chain
    if chain is None:
        return ()
    return (
        f"The contract that keeps the rounds, {chain.contract}, is not read: the manifest names no endpoint of its "
        f"chain. Give --rpc URL of chain {chain.chain_id} for votes and rewards as they are there; rewards shown are "
        "those that peers reported.",
    )
