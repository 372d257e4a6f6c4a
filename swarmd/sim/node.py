"""A simulated machine: its disk stays, the daemon on it comes and goes, and keeps the order of the real one.

Facts are stepped in memory, appended, synced, and only then acted upon. A crash may fall between any two of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from swarmd.core import applied
from swarmd.core.applied import Applied
from swarmd.core.catchup import advance
from swarmd.core.commands import Command
from swarmd.core.events import ClockSet, Event, NodeStarted, NodeStopped, SpaceFreed, SpaceLow, TimerFired
from swarmd.core.state import Deadline, State
from swarmd.core.step import RULES
from swarmd.core.values import Settings
from swarmd.errors import ChartError
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.digest import digest_commands
from swarmd.sim.disk import WANTED_BYTES, Disk
from swarmd.sim.orders import PORTS
from swarmd.sim.supervisor import Supervisor
from swarmd.sim.worker import SimWorker

if TYPE_CHECKING:
    from swarmd.sim.world import World

CrashPoint = Literal["before-append", "before-sync", "before-dispatch", "in-dispatch"]
CRASH_POINTS: tuple[CrashPoint, ...] = ("before-append", "before-sync", "before-dispatch", "in-dispatch")
BATCH_FACTS_MAX = 64


class Node:
    """One machine of the swarm."""

    def __init__(self, world: World, index: int, settings: Settings, pace_s: float, skew_s: float) -> None:
        self.world = world
        self.index = index
        self.settings = settings
        self.peer = settings.peer
        self.name = settings.name
        self.coordinates = settings.role == "coordinator"
        self.pace_s = pace_s  # median time that a stage takes to train here
        self.skew_s = skew_s  # this machine's clock minus the true time
        self.jumped_s = 0.0  # of that, by what the clock was set wrong
        self.jumps = 0  # times that the clock was set, so far
        self.side = 0  # of a partition
        self.account = f"0xaccount{index}"  # that submissions to a contract come from
        self.rpc_out_until = 0.0  # no endpoint answers until then
        self.disk = Disk()
        self.life = 0  # lives begun; facts of an earlier one are lost
        self.running = False
        self.state = State()
        self.inbox: deque[Event] = deque()
        self.busy_until = 0.0  # a slow disk: facts gather into one commit
        self.frozen_until = 0.0
        self.crash_point: CrashPoint | None = None
        self.restored = False  # from a backup, which the log does not know yet
        self.checked_seq = 0  # events below it have been seen by the checks
        self.base = (0, State())  # so many commits were folded at an earlier restart, and what they came to
        self.supervisor = Supervisor(self)
        self._deadlines: tuple[Deadline, ...] = ()
        self._wake_at = 0.0  # true time of the next look at the deadlines, 0 for none

    def clock(self) -> float:
        """This machine's idea of the time."""
        return self.world.now + self.skew_s

    @property
    def workers(self) -> list[SimWorker]:
        """The worker processes that live, in a fixed order."""
        return [worker for worker in self.supervisor.running.values() if worker is not None and worker.alive]

    # --- life and death ---

    def start(self) -> None:
        """Execute the daemon: fold the log, then record that a life began."""
        if self.running:
            return
        self.life += 1
        self.running = True
        self.inbox.clear()
        self.busy_until = self.frozen_until = self._wake_at = 0.0
        self.crash_point = None
        self._deadlines = ()
        self.supervisor = Supervisor(self)
        self.state = self.fold(self.base)
        self.base = (len(self.disk.log.commits), self.state)
        self.receive(self.life, NodeStarted(self.settings, f"{self.peer}-{self.life}", restored=self.restored))
        self.look_at_space(self.life)

    def fold(self, base: tuple[int, State]) -> State:
        """The state that the log comes to; it must be the one the last life had, with the same commands.

        Args:
            base: the first commits and what they come to; (0, State()) folds the whole log.
        """
        known_seq, known = self.world.checks.last_of(self)
        index, state = base
        for commit in self.disk.log.commits[index:]:
            state = self._fold_commit(commit, state)
            if commit.seq + len(commit.events) == known_seq and state != known:
                self.world.fail(self, f"the fold of the log up to seq {known_seq} is not the state that lived")
        return state

    def _fold_commit(self, commit: Commit, state: State) -> State:
        """Apply one commit of an earlier life. What was durable but never adopted is new to the checks."""
        commands: list[Command] = []
        ledger = self.world.checks.ledgers[self.index]
        for each in applied.fold(commit.envelopes(), state):
            state = each.after
            commands += each.commands
            if each.seq >= self.checked_seq:
                ledger.apply(each)
                self.checked_seq = each.seq + 1
        if digest_commands(commands) != commit.commands_digest:
            self.world.fail(self, f"the replay of seq {commit.seq} gives other commands than it gave")
        self.world.counts["replayed"] += len(commit.events)
        return state

    def crash(self) -> None:
        """The daemon dies at once, its workers with it; it is started again after a while."""
        if self.running:
            self.world.counts["crashes"] += 1
            self._end()
            self.disk.log.crash(self.world.random)
            self.world.call_in(self.world.restart_delay_s(), self.start)

    def restore(self, commits: int) -> None:
        """The machine is lost; another one goes on with the backup that was made when the log had so many commits."""
        self._end()
        self.disk.restore(commits)
        self.base = (0, State())
        self.checked_seq = 0
        self.restored = True
        self.world.counts["restores"] += 1
        self.world.checks.forget(self)
        self.world.call_in(self.world.restart_delay_s(), self.start)

    def _end(self) -> None:
        self.running = False
        self.supervisor.abandon()

    def lose_worker(self, worker: SimWorker, reason: str) -> None:
        """A worker process dies by itself."""
        self.supervisor.lose(worker, reason)

    def set_clock(self, step_s: float) -> None:
        """Somebody sets this machine's clock; the daemon notices within a second."""
        self.skew_s += step_s
        self.jumped_s += step_s
        self.jumps += 1
        self.world.call_in(self.world.random.random(), self._notice_clock, self.life, step_s)

    def _notice_clock(self, life: int, step_s: float) -> None:
        if life == self.life and self.running:
            self.receive(life, ClockSet(step_s))
            self._wake_in(self.world.now)

    def freeze(self, until: float) -> None:
        """SIGSTOP for the daemon."""
        self.frozen_until = max(self.frozen_until, until)
        self._wake_in(until)

    def thaw(self, life: int) -> None:
        """SIGCONT."""
        if life == self.life and self.running:
            self._wake_at = 0.0
            self._wake_in(self.world.now)

    def look_at_space(self, life: int) -> None:
        """Pause when the disk is nearly full, go on when there is room again."""
        if life != self.life or not self.running:
            return
        free_bytes, paused = self.disk.free_bytes, self.state.low_space is not None
        if self.disk.is_low and not paused:
            self.receive(life, SpaceLow(free_bytes, WANTED_BYTES))
        elif paused and free_bytes >= WANTED_BYTES:
            self.receive(life, SpaceFreed(free_bytes))

    def extend(self, rounds: int) -> None:
        """Let the swarm run more rounds, from the next life on."""
        coordination = self.settings.coordination
        assert coordination is not None, "only the coordinator is told how many rounds there are"
        more = replace(coordination, rounds_max=coordination.rounds_max + rounds)
        self.settings = replace(self.settings, coordination=more)

    # --- facts ---

    def receive(self, life: int, event: Event) -> None:
        """A fact for this life's inbox; committed at once unless the daemon is frozen or its disk is slow."""
        if life != self.life or not self.running:
            return
        now = self.world.now
        if self.inbox or self.busy_until > now or self.frozen_until > now:
            self.inbox.append(event)
            self._wake_in(max(self.busy_until, self.frozen_until))
        else:
            self._commit((event,))

    def _wake_in(self, at: float) -> None:
        if not self._wake_at or at < self._wake_at or self._wake_at < self.world.now:
            self._wake_at = at
            self.world.call_at(at, self._wake, self.life)

    def _wake(self, life: int) -> None:
        """Look at the deadlines and the inbox, as the real engine does: timers first."""
        world = self.world
        if life != self.life or not self.running or not 0.0 < self._wake_at <= world.now:
            return
        held_until = max(self.busy_until, self.frozen_until)
        self._wake_at = 0.0
        if held_until > world.now:
            self._wake_in(held_until)
            return
        now = world.now + self.skew_s
        due = [each for each in self.state.deadlines if each.due_at <= now]
        if due:
            due.sort(key=lambda each: each.due_at)
            self._commit([TimerFired(each.name, each.due_at) for each in due[:BATCH_FACTS_MAX]])
        elif self.inbox:
            self._commit(self._next_facts())
        if self.running:
            self._set_timer()

    def _next_facts(self) -> list[Event]:
        """The facts that wait, up to the stop: with it a life ends, as in the real engine."""
        facts: list[Event] = []
        while self.inbox and len(facts) < BATCH_FACTS_MAX:
            facts.append(self.inbox.popleft())
            if isinstance(facts[-1], NodeStopped):
                break
        return facts

    def _set_timer(self) -> None:
        """See that the next deadline and a waiting inbox are looked at in time."""
        self._deadlines = deadlines = self.state.deadlines
        if self.inbox:
            self._wake_in(self.world.now)
        elif deadlines:
            due_at = min([deadline.due_at for deadline in deadlines]) - self.skew_s
            self._wake_in(max(due_at + 1e-6, self.world.now))

    # --- commits ---

    def _commit(self, facts: Sequence[Event]) -> None:
        log = self.disk.log
        at = self.clock()
        try:
            journal = advance(self.state, log.next_seq, at, facts)
        except ChartError as error:
            self.world.fail(self, f"{error.message}, on {', '.join(type(fact).__name__ for fact in facts)}")
        commands = journal[0].commands if len(journal) == 1 else [each for one in journal for each in one.commands]
        events = tuple([each.envelope.event for each in journal])
        commit = Commit(journal[0].seq, at, RULES, events, digest_commands(commands))
        if self.crash_point and self._crash_before(commit):
            return
        log.append(commit)
        log.sync()
        self._adopt(commit, journal, commands)

    def _crash_before(self, commit: Commit) -> bool:
        """Die before the commit is durable, if that is this life's fate."""
        if self.crash_point == "before-sync":
            self.disk.log.append(commit)
        if self.crash_point in ("before-append", "before-sync"):
            self.crash()
        return not self.running

    def _adopt(self, commit: Commit, journal: Sequence[Applied], commands: Sequence[Command]) -> None:
        """The commit is durable: take its state and act on its commands."""
        self.state = journal[-1].after
        self.checked_seq = commit.end_seq
        self.restored = self.restored and not isinstance(commit.events[0], NodeStarted)
        self.world.note_commit(self, commit, journal)
        if self.crash_point == "before-dispatch":
            self.crash()
            return
        for command in commands:
            self.dispatch(command)
            if self.crash_point == "in-dispatch" and self.world.random.random() < 0.5:
                self.crash()
                return
        if isinstance(commit.events[-1], NodeStopped):
            self._end()
            self.world.call_in(self.world.random.uniform(5.0, 60.0), self.start)
        elif self.state.deadlines is not self._deadlines or self.inbox:
            self._set_timer()

    def dispatch(self, command: Command) -> None:
        """Hand a command to its port; one for a worker that does not run is dropped."""
        self.world.checks.on_dispatch(self, command)
        port = PORTS[type(command)]
        if port == "supervisor":
            self.supervisor.perform(command)
            return
        worker = self.supervisor.running[port]
        if worker is not None and worker.alive:
            worker.take(command)
