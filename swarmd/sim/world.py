"""The simulated world: a swarm, its faults and attackers, and the checks; run from one seed."""

import gc
import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

import msgspec

from swarmd.core.applied import AppliedEvent
from swarmd.core.chart import GAPS
from swarmd.core.commands import Announce, Command
from swarmd.core.events import Event, ReportPublished, RolloutsGathered, RoundAnnounced
from swarmd.core.values import Worker
from swarmd.dht.wire.records import Payload, Record, ReportRecord
from swarmd.eventlog.frame import Commit
from swarmd.sim.chain import SimReceipt
from swarmd.sim.chain_worker import SimChainWorker
from swarmd.sim.checks import WorldChecks
from swarmd.sim.coroutines import raise_logged_errors
from swarmd.sim.faults import FaultInjector
from swarmd.sim.guarded import AttackedNetworkWorker
from swarmd.sim.hostile import start_actors
from swarmd.sim.network import SimNetworkWorker
from swarmd.sim.processes import SimSupervisor, SimWorker
from swarmd.sim.profile import SimProfile, draw_profile
from swarmd.sim.simulation import BEGIN, Place
from swarmd.sim.swarm import SimSwarm
from swarmd.sim.trainer import SimTrainerWorker

DELAYS_MAX = 200_000  # delays of each kind that are kept, the first ones


class RunMetrics(msgspec.Struct, frozen=True):
    """Metrics of a whole run; times in seconds, shares between 0 and 1.

    Attributes:
        announced_s: from the coordinator's decision to announce a stage to the new state of a node that was present in
            the stage before; p50, p99.
        closed_s: from the last stored report of a stage to the next announcement; p50, greatest.
        full: share of gatherings with as many peers' rollouts as wanted, or as available.
        reported: mean share of nodes with a report in a stage.
        stayed: mean share of followers with a report in a stage, among those that knew the stage before.
        asked: per round and node: look-ups by kind of key, `store` for records stored and `body` for bodies fetched.
    """

    stages: int = 0
    announced_s: tuple[float, float] = (0.0, 0.0)
    closed_s: tuple[float, float] = (0.0, 0.0)
    full: float = 0.0
    reported: float = 0.0
    stayed: float = 0.0
    asked: dict[str, float] = {}


class MetricsCollector:
    """Collects metrics while a world runs."""

    def __init__(self, nodes: int, wanted: int) -> None:
        self._nodes = nodes
        self._wanted = wanted
        self._opened: dict[Place, float] = {}  # time of each stage's first announcement
        self._place: Place = (-1, -1)  # the open stage
        self._before: Place = (-1, -1)
        self._last_report: dict[Place, float] = {}
        self._reporters: defaultdict[Place, set[int]] = defaultdict(set)
        self._heard: dict[int, Place] = {}  # node → the latest stage that it knows
        self._followed: dict[Place, set[int]] = {}  # stage → nodes that knew the stage before when it opened
        self._announced: list[float] = []
        self._closed: list[float] = []
        self._gathered = [0, 0]  # number of gatherings, and of full ones

    def on_announce(self, command: Announce, now: float) -> None:
        """Record an announcement of the coordinator, which may be a repeated one."""
        place = (command.round, command.stage)
        if place in self._opened or command.final:
            return
        if self._place in self._last_report and len(self._closed) < DELAYS_MAX:
            self._closed.append(now - self._last_report[self._place])
        self._followed[place] = {node for node, heard in self._heard.items() if heard == self._place}
        self._opened[place], self._before, self._place = now, self._place, place

    def on_record_stored(self, content: Payload, now: float) -> None:
        """Record that peers have stored a record; its owner may not know that yet."""
        if isinstance(content, ReportRecord):
            self._last_report[content.round, content.stage] = now

    def on_event(self, node: int, event: Event, now: float) -> None:
        if isinstance(event, RoundAnnounced):
            self._record_announcement_delay(node, (event.round, event.stage), now)
        elif isinstance(event, ReportPublished):
            self._reporters[event.round, event.stage].add(node)
        elif isinstance(event, RolloutsGathered) and event.round > 0:
            others = len(self._reporters.get((event.round - 1, event.stage), set()) - {node})
            self._gathered[0] += 1
            self._gathered[1] += len(event.rollouts) >= min(self._wanted, others)

    def _record_announcement_delay(self, node: int, place: Place, now: float) -> None:
        """Measure nodes that knew the stage before; the others were absent when this one was announced."""
        if not node or place != self._place or self._heard.get(node) == place:
            return
        if self._heard.get(node) == self._before and len(self._announced) < DELAYS_MAX:
            self._announced.append(now - self._opened[place])
        self._heard[node] = place

    def compute_metrics(self, asked: Counter[str]) -> RunMetrics:
        """Return the metrics of the stages that have closed; `asked`: as in `Simulation`."""
        closed = [place for place in self._opened if place != self._place]
        reported = [len(self._reporters[place]) / self._nodes for place in closed]
        followed = [(self._followed[place], self._reporters[place]) for place in closed if self._followed[place]]
        stayed = [len(nodes & reporters) / len(nodes) for nodes, reporters in followed]
        rounds = max(1, len({round for round, _ in self._opened}))
        return RunMetrics(
            stages=len(closed),
            announced_s=(quantile(self._announced, 0.5), quantile(self._announced, 0.99)),
            closed_s=(quantile(self._closed, 0.5), quantile(self._closed, 1.0)),
            full=self._gathered[1] / max(1, self._gathered[0]),
            reported=sum(reported) / max(1, len(reported)),
            stayed=sum(stayed) / max(1, len(stayed)),
            asked={what: count / rounds / self._nodes for what, count in sorted(asked.items())},
        )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


TRACE_BYTES = 16
BUFFER_BYTES = 1 << 16
NEWCOMER_S = 60.0  # time after the faults within which one more honest node joins a swarm with hostile peers
COLLECTIONS = (200_000, 20, 20)  # thresholds of Python's garbage collector while a world runs
JOIN_S = 5.0  # time within which all nodes that are not late start
FOUNDERS = 80  # initial number of nodes of a swarm that grows slowly
PROGRESS_STEPS = 200

ProgressListener = Callable[[float], None]  # called with the share of the simulated time that has passed

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulated run.

    Attributes:
        events: committed by all nodes, without `replayed` ones, which were read again at restarts.
        trace: digest of every node's commits in order; the same seed and profile give the same one.
        cpu_s: processor time of the run.
    """

    seed: int
    profile: SimProfile
    events: int = 0
    replayed: int = 0
    crashes: int = 0
    worker_exits: int = 0
    partitions: int = 0
    full_disks: int = 0
    restores: int = 0
    jumps: int = 0
    rounds: int
    stages_trained: int
    reports: int = 0
    skips: int = 0
    confirmed: int = 0  # confirmed submissions, once for each node's event
    refused: int = 0
    blocks: int  # of the chain at the end, 0 without one
    reorgs: int
    strangers: int  # events caused by hostile actors
    closed: int  # stages closed in the calm of a swarm with hostile actors,
    held: int  # and how many of these stayed open long after the last honest report
    trace: str
    cpu_s: float
    figures: RunMetrics = RunMetrics()

    @property
    def events_per_s(self) -> float:
        """Committed events per second of processor time."""
        return self.events / self.cpu_s


def run_simulation(
    seed: int, profile: SimProfile | None = None, told: ProgressListener | None = None, **given: Any
) -> RunSummary:
    """Run a simulated swarm and check it.

    Args:
        seed: determines the run.
        profile: the swarm and its world; by default drawn from the seed.
        told: called with the progress; does not affect the run.
        given: fields of the drawn profile to set, e.g. `nodes=5, hours=0.5`.

    Raises:
        InvariantBroken: with the seed, the time, the node and the violation.
    """
    began = time.process_time()
    world = World(seed, profile or draw_profile(seed, **given))
    if told is not None:
        world.report_progress(told)
    before, GAPS.raises = GAPS.raises, True
    try:
        with raise_logged_errors(), reduce_garbage_collection():
            world.run_and_check()
    finally:
        GAPS.raises = before
    return world.summarize(time.process_time() - began)


@contextmanager
def reduce_garbage_collection() -> Iterator[None]:
    """Make Python's garbage collector run seldom: there are few cycles, and each collection scans the whole world."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class World(SimSwarm):
    """A swarm that is run and checked."""

    def __init__(self, seed: int, profile: SimProfile) -> None:
        super().__init__(seed, profile)
        self._trace = hashlib.blake2b(digest_size=TRACE_BYTES)
        self._buffer = bytearray()
        self.checks = WorldChecks(self)
        self.faults = FaultInjector(self)
        self.counted = MetricsCollector(profile.nodes, profile.gather_peers)

    def run_and_check(self) -> None:
        """Run the simulation to its end, and check that the swarm has recovered."""
        for node in self.nodes:
            late = node.index > 0 and self.random.random() < self.profile.late_share
            if node is self.newcomer:
                self.call_at(self.calm_from + self.random.random() * NEWCOMER_S, node.start)
                continue
            span_s = (self.calm_from - BEGIN) / 2 if late else JOIN_S
            self.call_in(self._join_delay_s(node.index) + self.random.random() * span_s, node.start)
        self.faults.start()
        if self.chain is not None:
            self.chain.start_producing_blocks()
        start_actors(self)
        self.call_at(self.calm_from, self._begin_calm)
        self.run()
        self.checks.check_at_end()

    def _join_delay_s(self, index: int) -> float:
        """Return when node `index` joins a slowly growing swarm, seconds from the start."""
        return self.profile.doubles_s * max(0.0, math.log2(max(index, 1) / FOUNDERS))

    def report_progress(self, told: ProgressListener) -> None:
        """Call `told` with the progress, now and periodically."""
        told(min(1.0, (self.now - BEGIN) / (self.ends_at - BEGIN)))
        self.call_in((self.ends_at - BEGIN) / PROGRESS_STEPS, self.report_progress, told)

    def _begin_calm(self) -> None:
        self.stop_faults()
        self.faults.stop_faults()
        self.checks.recovery.expect_recovery()

    def make_worker(self, supervisor: SimSupervisor, worker: Worker, pid: int) -> SimWorker:
        match worker:
            case "network":
                return (AttackedNetworkWorker if self.has_strangers else SimNetworkWorker)(supervisor, pid, self.dht)
            case "trainer":
                return SimTrainerWorker(supervisor, pid)
            case "chain":
                assert self.chain is not None, "there is a chain wherever there is a chain worker"
                checks = self.checks.submissions[supervisor.node.index]
                return SimChainWorker(supervisor, pid, self.chain, checks)
            case _:
                assert_never(worker)

    # --- hooks, see `Simulation` ---

    def on_commit(self, node: int, commit: Commit) -> None:
        self.counts["events"] += len(commit.events)
        for event in commit.events:
            self.counted.on_event(node, event, self.now)
        _encoder.encode_into((node, commit), self._buffer, -1)
        if len(self._buffer) > BUFFER_BYTES:
            self._trace.update(self._buffer)
            self._buffer.clear()

    def on_event(self, node: int, applied: AppliedEvent) -> None:
        self.checks.nodes[node].check_event(applied)

    def on_dispatch(self, node: int, command: Command) -> None:
        self.checks.nodes[node].orders.on_dispatch(command)

    def on_node_restored(self, node: int) -> None:
        self.checks.reset_node(self.nodes[node])

    def on_network_command(self, node: int, command: Command) -> None:
        if isinstance(command, Announce):
            self.counted.on_announce(command, self.now)
        self.checks.on_network_command(self._network_worker(node), command)

    def on_network_fact(self, node: int, event: Event) -> None:
        self.checks.on_network_fact(self._network_worker(node), event)

    def on_record_signed(self, node: int, record: Record) -> None:
        self.checks.network.on_record_signed(self.nodes[node], record)

    def on_record_stored(self, record: Record) -> None:
        self.counted.on_record_stored(record.content, self.now)

    def on_store_attempt(self, node: int, record: Record, kept: bool, due: bool) -> None:
        self.checks.honest.on_store_attempt(self.nodes[node], record, kept, due)

    def on_receipt(self, receipt: SimReceipt) -> None:
        self.checks.on_receipt(receipt)

    def on_head(self) -> None:
        for node in self.nodes:
            worker = node.supervisor.running["chain"]
            if isinstance(worker, SimChainWorker) and worker.alive:
                worker.heads.announce_head(worker.endpoint.chain.head)

    def _network_worker(self, node: int) -> SimNetworkWorker:
        worker = self.nodes[node].supervisor.running["network"]
        assert isinstance(worker, SimNetworkWorker), "it is this worker that tells"
        return worker

    def summarize(self, cpu_s: float) -> RunSummary:
        self._trace.update(self._buffer)
        self._buffer.clear()
        coordination = self.nodes[0].state.coordination
        return RunSummary(
            seed=self.seed,
            profile=self.profile,
            rounds=self.chain.contract.round_and_stage[0] if self.chain else coordination.round if coordination else 0,
            blocks=self.chain.head.number if self.chain else 0,
            reorgs=self.chain.reorgs if self.chain else 0,
            stages_trained=sum(len(node.disk.trained) for node in self.nodes),
            strangers=sum(told.total() for told in self.checks.honest.told),
            closed=self.checks.honest.closed,
            held=self.checks.honest.held,
            trace=self._trace.hexdigest(),
            cpu_s=max(cpu_s, math.ulp(1.0)),
            figures=self.counted.compute_metrics(self.asked),
            **self.counts,
        )
