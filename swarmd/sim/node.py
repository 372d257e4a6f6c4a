"""A simulated node: a machine whose daemon starts and stops; the daemon is the shipped shell, with its loop and
supervision.

Facts are stepped in memory, appended, synced, and only then acted upon. A crash may occur between any two of these.
"""

from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from swarmd.core import applied, events
from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command
from swarmd.core.state import Deadline, State, next_deadline
from swarmd.core.step import RULES, StateFold
from swarmd.core.values import Settings
from swarmd.errors import ChartError, CommitTooLarge
from swarmd.eventlog.fold import apply_commit
from swarmd.eventlog.frame import Commit, digest_commands
from swarmd.shell.loop import INBOX_FACTS_MAX, NodeLoop
from swarmd.sim.machine import WANTED_BYTES, SimMachine
from swarmd.sim.processes import SimSupervisor, WorkerMaker
from swarmd.sim.simulation import Simulation

CrashPoint = Literal["before-append", "before-sync", "before-dispatch", "in-dispatch"]
CRASH_POINTS: tuple[CrashPoint, ...] = ("before-append", "before-sync", "before-dispatch", "in-dispatch")
SMALL_COMMIT_EVENTS = 4  # for every second node: events in a commit, and facts in the inbox
SMALL_INBOX_FACTS = 4
SNAPSHOT_COMMITS = 40  # between two snapshots


class DaemonCrashed(Exception):
    """Raised at the point where the daemon dies."""


class NodeLog:
    """The event log of one run, on the machine's disk."""

    def __init__(self, node: "SimNode") -> None:
        self._node = node
        self._log = node.disk.log

    @property
    def next_seq(self) -> int:
        """The next event's sequence number."""
        return self._log.next_seq

    def append(self, at: float, batch: Sequence[events.Event], commands_digest: bytes) -> None:
        """Write one commit durably, unless the daemon dies before. Raises CommitTooLarge, DaemonCrashed."""
        node = self._node
        commit = Commit(self._log.next_seq, at, RULES, tuple(batch), commands_digest)
        if self._log.events_max is not None and len(batch) > self._log.events_max:
            raise CommitTooLarge(f"{len(batch)} events", f"Commit at most {self._log.events_max} at once")
        if node.crash_point == "before-append":
            raise DaemonCrashed
        self._log.append(commit)
        if node.crash_point == "before-sync":
            raise DaemonCrashed
        self._log.sync()
        node.world.on_commit(node.index, commit)

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot should be taken now."""
        return len(self._log.commits) - self._node.disk.snapshot[0] >= SNAPSHOT_COMMITS

    def write_snapshot(self, state: State) -> None:
        """Save the state after all commits so far."""
        self._node.disk.snapshot = (len(self._log.commits), state)


class SimNode(SimMachine):
    """One machine of the swarm and its daemon.

    Attributes:
        crash_point: where in the next commit the daemon dies.
        restored: whether it was restored from a backup, and the log does not contain that yet.
        checked: the fold of the events before `checked_seq`, which were checked (`Simulation.on_event`).
        base: number of commits folded at an earlier restart, and the state after them.
    """

    def __init__(
        self, world: Simulation, index: int, settings: Settings, pace_s: float, skew_s: float, make_worker: WorkerMaker
    ) -> None:
        small = index % 2 == 1
        super().__init__(world, index, settings, pace_s, skew_s, SMALL_COMMIT_EVENTS if small else None)
        self._make_worker = make_worker
        self._inbox_max = SMALL_INBOX_FACTS if small else INBOX_FACTS_MAX
        self.loop = self._make_loop(State())
        self.crash_point: CrashPoint | None = None
        self.restored = False
        self.checked, self.checked_seq = State(), 0
        self.base = (0, State())
        self.supervisor = SimSupervisor(self, make_worker)
        self._brought: deque[events.Event] = deque()  # all facts that must still be recorded, in order
        self._turning = False  # whether a commit is in progress
        self._deadlines: tuple[Deadline, ...] = ()
        self._wake_at = 0.0  # true time of the next check of deadlines, 0 for none

    @property
    def state(self) -> State:
        return self.loop.state

    def _make_loop(self, state: State) -> NodeLoop:
        """Make the loop of a new run, with this node as a projection."""
        loop = NodeLoop(NodeLog(self), state, (self,), self._inbox_max)
        loop.set_command_handler(self.perform)
        return loop

    # --- life and death ---

    def start(self) -> None:
        """Start the daemon: fold the log, then record that a run began."""
        if self.running:
            return
        self.life += 1
        self.running = True
        self.piped.clear()
        self._brought.clear()
        self.busy_until = self.frozen_until = self._wake_at = 0.0
        self.crash_point = None
        self._deadlines = ()
        self.supervisor = SimSupervisor(self, self._make_worker)
        self.loop = self._make_loop(self.fold_log(self.base))
        self.base = (len(self.disk.log.commits), self.state)
        self.loop.start_run(events.NodeStarted(self.settings, f"{self.peer}-{self.life}", restored=self.restored))
        self._commit_next_batch()
        self.check_free_space()

    def fold_log(self, base: tuple[int, State]) -> State:
        """Return the state after the whole log; it must equal that of the last run, with the same commands. `base`: a
        number of first commits and the state after them; (0, State()) folds the whole log."""
        known_seq, known = self.checked_seq, self.checked
        index, fold = base[0], StateFold(base[1])
        for commit in self.disk.log.commits[index:]:
            if index == self.disk.snapshot[0] and fold.state != self.disk.snapshot[1]:
                self.fail_run(f"the snapshot before seq {commit.seq} is not what the events before it come to")
            if commit.end_seq > self.checked_seq:
                self._check_unadopted_commit(commit, fold.state)
            if digest_commands(apply_commit(fold, commit)) != commit.commands_digest:
                self.fail_run(f"the replay of seq {commit.seq} gives other commands than it gave")
            index += 1
            if commit.end_seq == known_seq and fold.state != known:
                self.fail_run(f"the fold of the log up to seq {known_seq} is not the state that lived")
            self.world.counts["replayed"] += len(commit.events)
        return fold.state

    def _check_unadopted_commit(self, commit: Commit, state: State) -> None:
        """Check a commit of an earlier run that was durable but never adopted: the checks have not seen it."""
        for each in applied.fold_envelopes(commit.envelopes(), state):
            if each.seq >= self.checked_seq:
                self._report_checked_event(each)

    def _report_checked_event(self, applied: AppliedEvent) -> None:
        self.checked, self.checked_seq = applied.after, applied.seq + 1
        self.world.on_event(self.index, applied)

    def crash(self, away_s: float | None = None) -> None:
        """Kill the daemon and its workers at once; start it again after `away_s`, or a random delay."""
        if self.running:
            self.world.counts["crashes"] += 1
            self._end_run()
            self.disk.log.lose_unsynced(self.world.random)
            self.world.call_in(self.world.draw_restart_delay_s() if away_s is None else away_s, self.start)

    def restore_backup(self, commits: int) -> None:
        """Lose the machine, and continue on another one with a backup made when the log had `commits` commits."""
        self._end_run()
        self.disk.restore_backup(commits)
        self.base = (0, State())
        self.checked, self.checked_seq = State(), 0
        self.restored = True
        self.world.counts["restores"] += 1
        self.world.on_node_restored(self.index)
        self.world.call_in(self.world.draw_restart_delay_s(), self.start)

    def _end_run(self) -> None:
        self.running = False
        self.supervisor.on_daemon_death()

    def step_clock(self, step_s: float) -> None:
        """Set this machine's clock; the daemon notices within a second."""
        self.skew_s += step_s
        self.jumped_s += step_s
        self.jumps += 1
        self.world.call_in(self.world.random.random(), self._report_clock_step, self.life, step_s)

    def _report_clock_step(self, life: int, step_s: float) -> None:
        if life == self.life and self.running:
            self.receive_fact(life, events.ClockSet(step_s))
            self._schedule_wake(self.world.now)

    def freeze(self, until: float) -> None:
        """Freeze the daemon until then, like SIGSTOP."""
        self.frozen_until = max(self.frozen_until, until)
        self._schedule_wake(until)

    def thaw(self, life: int) -> None:
        """Resume the daemon, like SIGCONT."""
        if life == self.life and self.running:
            self._wake_at = 0.0
            self._schedule_wake(self.world.now)

    def check_free_space(self) -> None:
        """Report the disk's state: pause if it is nearly full, resume if there is space again."""
        if not self.running:
            return
        free_bytes, paused = self.disk.free_bytes, self.state.low_space is not None
        if self.disk.is_nearly_full and not paused:
            self.receive_fact(self.life, events.SpaceLow(free_bytes, WANTED_BYTES))
        elif paused and free_bytes >= WANTED_BYTES:
            self.receive_fact(self.life, events.SpaceFreed(free_bytes))

    def add_rounds(self, rounds: int) -> None:
        """Raise the swarm's number of rounds, from the next run on."""
        coordination = self.settings.coordination
        assert coordination is not None, "only the coordinator is told how many rounds there are"
        more = replace(coordination, rounds_max=coordination.rounds_max + rounds)
        self.settings = replace(self.settings, coordination=more)

    # --- facts ---

    def receive_fact(self, life: int, event: events.Event) -> None:
        """Put a fact into this run's inbox; it is committed at once unless the daemon is frozen or its disk is slow."""
        if life != self.life or not self.running:
            return
        self._brought.append(event)
        waited = self.loop.has_facts
        if self.piped or not self.loop.offer_fact(event):
            self.piped.append(event)
        held_until = max(self.busy_until, self.frozen_until)
        if waited or self._turning or held_until > self.world.now:
            self._schedule_wake(max(held_until, self.world.now))
        else:
            self._commit_next_batch()

    def _schedule_wake(self, at: float) -> None:
        if not self._wake_at or at < self._wake_at or self._wake_at < self.world.now:
            self._wake_at = at
            self.world.call_at(at, self._wake, self.life)

    def _wake(self, life: int) -> None:
        """Check the deadlines and the inbox."""
        world = self.world
        if life != self.life or not self.running or not 0.0 < self._wake_at <= world.now:
            return
        held_until = max(self.busy_until, self.frozen_until)
        self._wake_at = 0.0
        if held_until > world.now:
            self._schedule_wake(held_until)
            return
        self._commit_next_batch()
        if self.running:
            self._schedule_next_wake()

    def _schedule_next_wake(self) -> None:
        """Schedule the next check of deadlines and inbox."""
        self._deadlines = self.state.deadlines
        if self._brought and not self.loop.has_facts and not self.piped:
            self.fail_run(f"{type(self._brought[0]).__name__} was brought, and is not recorded")
        idle_s, first = self.loop.idle_s(self.local_time()), next_deadline(self.state)
        if first is not None and idle_s > max(0.0, first.due_at - self.local_time()):
            self.fail_run(f"it sleeps for {idle_s:.3f} s, beyond the deadline {first.name}")
        self._schedule_wake(self.world.now + idle_s + 1e-6 if idle_s else self.world.now)

    # --- commits ---

    def _commit_next_batch(self) -> None:
        """Commit the next facts, and act on them; the daemon may die in between."""
        facts = self.loop.take_next_facts(self.local_time())
        self._fill_inbox()
        if not facts:
            return
        self._turning = True
        try:
            written = self.loop.write_commits(self.local_time(), facts)
            if self.crash_point == "before-dispatch":
                raise DaemonCrashed
            self.loop.adopt_commits(written)
        except DaemonCrashed:
            self.crash()
        except ChartError as error:
            self.fail_run(f"{error.message}, on {', '.join(type(fact).__name__ for fact in facts)}")
        finally:
            self._turning = False
        if self.running:
            self._continue_after_commit()

    def _continue_after_commit(self) -> None:
        """After a commit, end a stopped run and schedule the next one, or schedule the next check."""
        if self.loop.ended is not None:
            self._end_run()
            self.world.call_in(self.world.random.uniform(5.0, 60.0), self.start)
        elif self.state.deadlines is not self._deadlines or self.loop.has_facts:
            self._schedule_next_wake()

    def _fill_inbox(self) -> None:
        """Move piped facts into the inbox, in order, while there is room."""
        if not self.piped:
            return
        while self.piped and self.loop.offer_fact(self.piped[0]):
            self.piped.popleft()
        if not self.piped:
            self.supervisor.on_inbox_room()

    def apply(self, applied: AppliedEvent) -> None:
        """Check a durable event that the daemon adopts."""
        self._check_event_order(applied.event, applied.at)
        self.restored = self.restored and not isinstance(applied.event, events.NodeStarted)
        self._report_checked_event(applied)

    def _check_event_order(self, event: events.Event, at: float) -> None:
        """Check that facts are recorded in order of arrival, each once. Other events are the shell's own."""
        if isinstance(event, events.TimerFired):
            if at < event.due_at:
                self.fail_run(f"the deadline {event.name} of {event.due_at:.3f} is reported at {at:.3f}")
            return
        own = isinstance(event, events.RoundsSkipped | events.NodeStarted)
        if not own and not _pop_delivered(self._brought, event):
            self.fail_run(f"{type(event).__name__} is recorded before or without what was to be recorded")

    def perform(self, command: Command) -> None:
        """Dispatch a command. Raises DaemonCrashed if the daemon dies meanwhile."""
        self.world.on_dispatch(self.index, command)
        self.supervisor.dispatch(command)
        if self.crash_point == "in-dispatch" and self.world.random.random() < 0.5:
            raise DaemonCrashed


def _pop_delivered(brought: deque[events.Event], event: events.Event) -> bool:
    """Remove the facts in an event from the front of the expected ones. Returns False if they do not match."""
    told = (
        (*events.members_in(event), *events.reports_in(event))
        if isinstance(event, events.MembersSeen | events.ReportsSeen)
        else ()
    )
    if not told:
        return bool(brought) and brought.popleft() is event
    return len(brought) >= len(told) and all(brought.popleft() == each for each in told)
