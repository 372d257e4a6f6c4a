"""The simulated world: one queue of things to happen, one seed, one clock."""

from __future__ import annotations

import gc
import hashlib
import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from swarmd.core.chart import GAPS
from swarmd.core.commands import Announce
from swarmd.core.events import Event, ReportPublished, RolloutsGathered, RoundAnnounced
from swarmd.core.values import ChainSettings, CoordinatorSettings, Drive, Settings
from swarmd.dht.wire.records import Payload, ReportRecord
from swarmd.eventlog.frame import Commit
from swarmd.sim.coroutines import loud_errors
from swarmd.sim.faults import Faults
from swarmd.sim.hostile import Hostile
from swarmd.sim.invariants.checks import Checks, InvariantBroken
from swarmd.sim.node import SimNode
from swarmd.sim.ports.chain import CALL_WEI, Rules, SimChain, SimContract
from swarmd.sim.ports.chain_worker import ChainWorker
from swarmd.sim.ports.dht import Place, SimDht
from swarmd.sim.profile import NONE, SimProfile, draw_profile

DELAYS_MAX = 200_000  # of each kind that are kept, the first ones


class Figures(msgspec.Struct, frozen=True):
    """Of a whole run; times in seconds, shares between 0 and 1.

    Attributes:
        announced_s: from the coordinator's decision to announce a stage to the new state of a node that was there for
            the stage before; p50, p99.
        closed_s: from the last report of a stage that was stored to the next announcement; p50, greatest.
        full: gatherings that brought as many peers' rollouts as are wanted, or as there were.
        reported: nodes with a report, of all nodes, in a stage.
        stayed: nodes with a report, of the followers that had heard of the stage before, in a stage.
        asked: in a round and for each node: look-ups by kind of key, `store` for records stored and `body` for bodies
            fetched.
    """

    stages: int = 0
    announced_s: tuple[float, float] = (0.0, 0.0)
    closed_s: tuple[float, float] = (0.0, 0.0)
    full: float = 0.0
    reported: float = 0.0
    stayed: float = 0.0
    asked: dict[str, float] = {}


class Counted:
    """Counts while a world goes on.

    Args:
        nodes: in the swarm.
        wanted: peers that a node gathers from, at most.
    """

    def __init__(self, nodes: int, wanted: int) -> None:
        self._nodes = nodes
        self._wanted = wanted
        self._opened: dict[Place, float] = {}  # first announcement of each stage
        self._place: Place = (-1, -1)  # that is open
        self._before: Place = (-1, -1)
        self._last_report: dict[Place, float] = {}
        self._reporters: defaultdict[Place, set[int]] = defaultdict(set)
        self._heard: dict[int, Place] = {}  # by node, the latest
        self._followed: dict[Place, set[int]] = {}  # nodes that had heard of the stage before, when a stage opened
        self._announced: list[float] = []
        self._closed: list[float] = []
        self._gathered = [0, 0]  # all, full ones
        self.asked: Counter[str] = Counter()

    def on_announce(self, command: Announce, now: float) -> None:
        """The coordinator is about to announce a stage, perhaps not for the first time."""
        place = (command.round, command.stage)
        if place in self._opened or command.final:
            return
        if self._place in self._last_report and len(self._closed) < DELAYS_MAX:
            self._closed.append(now - self._last_report[self._place])
        self._followed[place] = {node for node, heard in self._heard.items() if heard == self._place}
        self._opened[place], self._before, self._place = now, self._place, place

    def on_stored(self, content: Payload, now: float) -> None:
        """Those who keep it have a record; its owner may not know yet."""
        if isinstance(content, ReportRecord):
            self._last_report[content.round, content.stage] = now

    def take(self, node: int, event: Event, now: float) -> None:
        """A node has recorded an event."""
        if isinstance(event, RoundAnnounced):
            self._hear(node, (event.round, event.stage), now)
        elif isinstance(event, ReportPublished):
            self._reporters[event.round, event.stage].add(node)
        elif isinstance(event, RolloutsGathered) and event.round > 0:
            others = len(self._reporters.get((event.round - 1, event.stage), set()) - {node})
            self._gathered[0] += 1
            self._gathered[1] += len(event.rollouts) >= min(self._wanted, others)

    def _hear(self, node: int, place: Place, now: float) -> None:
        """Of nodes that have heard of the stage before: the others were not there when it was announced."""
        if not node or place != self._place or self._heard.get(node) == place:
            return
        if self._heard.get(node) == self._before and len(self._announced) < DELAYS_MAX:
            self._announced.append(now - self._opened[place])
        self._heard[node] = place

    def figures(self) -> Figures:
        """All of it, of the stages that have closed."""
        closed = [place for place in self._opened if place != self._place]
        reported = [len(self._reporters[place]) / self._nodes for place in closed]
        followed = [(self._followed[place], self._reporters[place]) for place in closed if self._followed[place]]
        stayed = [len(nodes & reporters) / len(nodes) for nodes, reporters in followed]
        rounds = max(1, len({round for round, _ in self._opened}))
        return Figures(
            stages=len(closed),
            announced_s=(quantile(self._announced, 0.5), quantile(self._announced, 0.99)),
            closed_s=(quantile(self._closed, 0.5), quantile(self._closed, 1.0)),
            full=self._gathered[1] / max(1, self._gathered[0]),
            reported=sum(reported) / max(1, len(reported)),
            stayed=sum(stayed) / max(1, len(stayed)),
            asked={what: count / rounds / self._nodes for what, count in sorted(self.asked.items())},
        )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so large a share of them lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


BEGIN = 1_800_000_000.0  # POSIX seconds; any will do
FAULTS_FULL = 30.0  # faults per node and hour from which on workers misbehave at the full chance below
MISBEHAVIOUR = {"slow_start": 0.03, "trainer_failure": 0.05, "trainer_hang": 0.02, "trainer_crash": 0.02}
TRACE_BYTES = 16
BUFFER_BYTES = 1 << 16
RESTART_S_MAX = 120.0
RESEND_S = 60.0
GATHER_S = 6.0
HOSTILE_GATHER_S = 12.0  # time for a stranger's body to be given up as too slow
NEWCOMER_S = 60.0  # after the faults, among strangers, one honest node more joins within this
COLLECTIONS = (200_000, 20, 20)  # thresholds of Python's collector while a world is played
JOIN_S = 5.0  # in which all nodes are started that come at once
FOUNDERS = 80  # nodes with which a swarm begins that grows slowly
PROGRESS_STEPS = 200

ProgressListener = Callable[[float], None]  # is told the share of the simulated time that is over

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated run came to.

    Attributes:
        events: committed by all nodes; `replayed` ones, read again at restarts, are not among them.
        trace: digest of every commit of every node in their order; the same seed and profile give the same one.
        cpu_s: processor time that the run took.
    """

    seed: int
    profile: SimProfile
    events: int = 0
    commits: int = 0
    replayed: int = 0
    crashes: int = 0
    worker_exits: int = 0
    partitions: int = 0
    freezes: int = 0
    full_disks: int = 0
    restores: int = 0
    jumps: int = 0
    rounds: int
    stages_trained: int
    reports: int = 0
    skips: int = 0
    confirmed: int = 0  # submissions, each time that a node took note of it
    refused: int = 0
    blocks: int  # of the chain at the end, 0 where there is none
    reorgs: int
    strangers: int  # events that hostile actors caused
    closed: int  # stages that a calm swarm among them closed,
    held: int  # and of these those that stayed open for long after the last honest report
    trace: str
    cpu_s: float
    figures: Figures = Figures()

    @property
    def events_per_s(self) -> float:
        """Committed events per second of processor time."""
        return self.events / self.cpu_s


def run(seed: int, profile: SimProfile | None = None, told: ProgressListener | None = None, **given: Any) -> Summary:
    """Play a swarm's life and check it.

    Args:
        seed: decides everything.
        profile: the swarm and its world; by default drawn from the seed.
        told: hears how far it is; what happens is the same.
        given: fields of the drawn profile to set, e.g. `nodes=5, hours=0.5`.

    Raises:
        InvariantBroken: with the seed, the time, the node and what is wrong.
    """
    began = time.process_time()
    world = World(seed, profile or draw_profile(seed, **given))
    if told is not None:
        world.tell(told)
    before, GAPS.raises = GAPS.raises, True
    try:
        with loud_errors(), rare_collections():
            world.play()
    finally:
        GAPS.raises = before
    return world.summarize(time.process_time() - began)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Python looks for cycles now and then only: there are few, and each look goes through all that a world holds."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class World:
    """Everything there is in one run."""

    def __init__(self, seed: int, profile: SimProfile) -> None:
        self.seed = seed
        self.profile = profile
        self.random = Random(seed)
        self.now = BEGIN
        self.ends_at = BEGIN + profile.hours * 3600.0
        self.calm_from = max(BEGIN, self.ends_at - profile.calm_s)
        self.counts: Counter[str] = Counter()  # of `Summary`
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._violation: InvariantBroken | None = None
        self._chances = self._misbehaviour()
        self._trace = hashlib.blake2b(digest_size=TRACE_BYTES)
        self._buffer = bytearray()
        self.coordinator = "" if profile.chain else "peer-000"
        self.dht = SimDht(self)
        self.chain = SimChain(self, self._make_contract()) if profile.chain else None
        self.nodes: list[SimNode] = []
        for index in range(profile.nodes):
            self.nodes.append(self._make_node(index))
        self.hostile = None if profile.hostile == NONE else Hostile(self)
        self.newcomer = self.nodes[-1] if self.hostile is not None and profile.nodes > 2 else None
        self.checks = Checks(self)
        self.faults = Faults(self)
        self.counted = Counted(profile.nodes, profile.gather_peers)

    def _misbehaviour(self) -> dict[str, float]:
        profile = self.profile
        share = min(1.0, profile.faults / FAULTS_FULL)
        network = {name: getattr(profile, name) for name in ("loss", "duplicate", "stale", "failure")}
        return network | {name: chance * share for name, chance in MISBEHAVIOUR.items()}

    def _make_contract(self) -> SimContract:
        profile = self.profile
        enough = max(1, math.ceil(profile.quorum * profile.nodes)) if profile.policy == "reports" else 0
        manager = "0xaccount0" if profile.policy == "manager" else ""
        rules = Rules(profile.stages, enough, 0 if manager else int(profile.stage_s), manager)
        return SimContract(rules, float(int(BEGIN)))

    def _make_node(self, index: int) -> SimNode:
        profile, random = self.profile, self.random
        mixed = random.choice(("finish-stage", "abandon"))
        settings = Settings(
            peer=f"peer-{index:03d}",
            swarm="sim",
            role="follower" if index else "coordinator",
            coordinator="peer-000",
            name=f"node {index}",
            stages=profile.stages,
            behind=mixed if profile.behind == "mixed" else profile.behind,  # type: ignore[arg-type]
            gather_s=GATHER_S if profile.hostile == NONE else HOSTILE_GATHER_S,
            train_s=profile.train_max_s,
            publish_s=10.0,
            clock_s=10.0,
            ready_s=20.0,
            coordination=None if index or profile.chain else self._coordinator_settings(),
            chain=self._chain_settings(index) if profile.chain else None,
        )
        if index and profile.catch_up_rounds:
            settings = replace(settings, catch_up_rounds=profile.catch_up_rounds, catch_up_s=profile.catch_up_s)
        if profile.average_rounds:
            settings = replace(settings, average_rounds=profile.average_rounds, catch_up_s=profile.catch_up_s)
        pace_s = profile.train_mean_s * random.uniform(0.6, 1.6)
        node = SimNode(self, index, settings, pace_s, random.uniform(-1.0, 1.0) * profile.skew_s)
        if profile.shared and index == 2:
            node.account = self.nodes[1].account
        return node

    def _chain_settings(self, index: int) -> ChainSettings:
        profile = self.profile
        drive: Drive = "policy" if profile.policy != "manager" else "never" if index else "manager"
        return ChainSettings(drive=drive, stage_s=profile.stage_s, winners=profile.winners, resend_s=RESEND_S)

    def _coordinator_settings(self) -> CoordinatorSettings:
        profile = self.profile
        return CoordinatorSettings(
            min_peers=profile.min_peers,
            start_s=30.0,
            stage_s=profile.stage_s,
            quorum=profile.quorum,
            rounds_max=profile.rounds_max,
            resume_s=10.0,
            when_alone=profile.when_alone,
            shard_members=profile.shard_members if profile.sharded else 0,
        )

    # --- time ---

    def call_at(self, at: float, act: Callable[..., None], *args: Any) -> None:
        """Have something done at a time."""
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, act, args))

    def call_in(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Have something done after a while."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._order, act, args))

    def play(self) -> None:
        """Let everything happen until the end, and check that the swarm is whole again."""
        for node in self.nodes:
            late = node.index > 0 and self.random.random() < self.profile.late_share
            if node is self.newcomer:
                self.call_at(self.calm_from + self.random.random() * NEWCOMER_S, node.start)
                continue
            span_s = (self.calm_from - BEGIN) / 2 if late else JOIN_S
            self.call_in(self._grown_s(node.index) + self.random.random() * span_s, node.start)
        self.faults.begin()
        if self.chain is not None:
            self.chain.begin()
        if self.hostile is not None:
            self.hostile.begin()
        self.call_at(self.calm_from, self._become_calm)
        queue, pop = self._queue, heapq.heappop
        while queue:
            self.now, _, act, args = pop(queue)
            if self.now > self.ends_at:
                break
            act(*args)
            if self._violation is not None:  # which shipped code has taken for an error of its own kind
                raise self._violation
        self.checks.at_end()

    def _grown_s(self, index: int) -> float:
        """When a swarm that grows slowly has so many nodes, in seconds from its beginning: shards follow its growth."""
        return self.profile.doubles_s * max(0.0, math.log2(max(index, 1) / FOUNDERS))

    def tell(self, told: ProgressListener) -> None:
        """Have somebody hear how far it is."""
        told(min(1.0, (self.now - BEGIN) / (self.ends_at - BEGIN)))
        self.call_in((self.ends_at - BEGIN) / PROGRESS_STEPS, self.tell, told)

    def _become_calm(self) -> None:
        self._chances = dict.fromkeys(self._chances, 0.0)
        self.faults.end()
        self.checks.expect_recovery()

    # --- what the parts ask ---

    def chance(self, name: str) -> float:
        """How likely a misbehaviour is now."""
        return self._chances[name]

    def restart_delay_s(self) -> float:
        """From a daemon's death to its next start."""
        return min(self.random.expovariate(1.0 / self.profile.restart_mean_s), RESTART_S_MAX)

    def note_commit(self, node: SimNode, commit: Commit) -> None:
        """A commit is durable: add it to the trace."""
        counts = self.counts
        counts["commits"] += 1
        counts["events"] += len(commit.events)
        for event in commit.events:
            self.counted.take(node.index, event, self.now)
        _encoder.encode_into((node.index, commit), self._buffer, -1)
        if len(self._buffer) > BUFFER_BYTES:
            self._trace.update(self._buffer)
            self._buffer.clear()

    def note_head(self) -> None:
        """There are new blocks."""
        for node in self.nodes:
            worker = node.supervisor.running["chain"]
            if isinstance(worker, ChainWorker) and worker.alive:
                worker.notice_head()

    def day_wei_max(self) -> int:
        """What an account may sign for in a day, 0 for any amount; in a calm world nothing bounds it."""
        return 0 if self.faults.over else self.profile.day_calls * CALL_WEI

    def fail(self, node: SimNode | None, what: str) -> NoReturn:
        """Something that must not happen has happened."""
        where = node.name if node else "swarm"
        self._violation = InvariantBroken(self.seed, self.profile, self.now - BEGIN, where, what)
        raise self._violation

    def summarize(self, cpu_s: float) -> Summary:
        """The figures of the run."""
        self._trace.update(self._buffer)
        self._buffer.clear()
        coordination = self.nodes[0].state.coordination
        return Summary(
            seed=self.seed,
            profile=self.profile,
            rounds=self.chain.contract.place[0] if self.chain else coordination.round if coordination else 0,
            blocks=self.chain.head.number if self.chain else 0,
            reorgs=self.chain.reorgs if self.chain else 0,
            stages_trained=sum(len(node.disk.trained) for node in self.nodes),
            strangers=sum(told.total() for told in self.checks.honest.told),
            closed=self.checks.honest.closed,
            held=self.checks.honest.held,
            trace=self._trace.hexdigest(),
            cpu_s=max(cpu_s, math.ulp(1.0)),
            figures=self.counted.figures(),
            **self.counts,
        )
