"""Simulated time: one event queue, one seed, one clock; and the hooks that a swarm's parts call.

- Randomness comes from the seed alone, so a seed and a profile give the same run everywhere.
- A part depends only on this module and on the parts that it contains. It reports to checks and metrics through the
  `on_...` methods, which `swarmd.sim.world` overrides.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

import msgspec

from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command
from swarmd.core.events import Event
from swarmd.dht.wire.records import Record
from swarmd.errors import SwarmdError
from swarmd.eventlog.frame import Commit
from swarmd.sim.profile import NONE, SimProfile, draw_profile

BEGIN = 1_800_000_000.0  # POSIX seconds; any will do
FAULTS_FULL = 30.0  # faults per node and hour from which on workers misbehave at the full chances below
MISBEHAVIOUR = {"slow_start": 0.03, "trainer_failure": 0.05, "trainer_hang": 0.02, "trainer_crash": 0.02}
RESTART_S_MAX = 120.0

Place = tuple[int, int]  # round, stage


class InvariantBroken(SwarmdError):
    """A simulated run has violated an invariant; the seed and profile reproduce it."""

    def __init__(self, seed: int, profile: SimProfile, time_s: float, where: str, what: str) -> None:
        super().__init__(
            f"seed {seed}, {where}, {time_s:.3f} s after the beginning: {what}",
            f"Repeat it with: {repeat_command_line(seed, profile)}",
        )
        self.seed = seed
        self.what = what


def repeat_command_line(seed: int, profile: SimProfile) -> str:
    given = {} if profile.hostile == draw_profile(seed).hostile else {"hostile": profile.hostile}
    drawn = draw_profile(seed, **given)
    fields = msgspec.structs.asdict(profile).items()
    differing = given | {key: value for key, value in fields if value != getattr(drawn, key)}
    return " ".join([f"swarmd sim --seed {seed}", *(f"--set {key}={value}" for key, value in differing.items())])


def peer_id_of(index: int) -> str:
    return f"peer-{index:03d}"


class Simulation:
    """Time and randomness, for all parts of a swarm.

    Attributes:
        now: the true time, POSIX seconds.
        calm_from: when the faults stop.
        counts: number of occurrences, by name.
        asked: look-ups by kind of key, `store` for records stored and `body` for bodies fetched.
        has_strangers: whether there are hostile peers.
        guarded_random: the random stream of honest nodes among hostile peers; the other streams stay as without them.
        coordinator: peer id of the node whose clock counts; empty if a contract keeps the rounds.
    """

    def __init__(self, seed: int, profile: SimProfile) -> None:
        self.seed = seed
        self.profile = profile
        self.random = Random(seed)
        self.now = BEGIN
        self.ends_at = BEGIN + profile.hours * 3600.0
        self.calm_from = max(BEGIN, self.ends_at - profile.calm_s)
        self.counts: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.has_strangers = profile.hostile != NONE
        self.guarded_random = Random(f"{seed}/strangers")
        self.coordinator = "" if profile.chain else peer_id_of(0)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._violation: InvariantBroken | None = None
        share = min(1.0, profile.faults / FAULTS_FULL)
        self._chances: dict[str, float] = {
            name: getattr(profile, name) for name in ("loss", "duplicate", "stale", "failure")
        }
        self._chances |= {name: chance * share for name, chance in MISBEHAVIOUR.items()}

    # --- time and chance ---

    def call_at(self, at: float, act: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, act, args))

    def call_in(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` after a delay."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._order, act, args))

    def run(self) -> None:
        """Process the queue until the end of the simulated time."""
        queue, pop = self._queue, heapq.heappop
        while queue:
            self.now, _, act, args = pop(queue)
            if self.now > self.ends_at:
                break
            try:
                act(*args)
            except InvariantBroken:
                raise
            except SwarmdError as error:  # no simulated worker may end with an error
                self.fail_run(f"a worker ends by {type(error).__name__}: {error.message}")
            if self._violation is not None:  # in case shipped code has caught it as an error of its own
                raise self._violation

    def fault_chance(self, name: str) -> float:
        """Return the present chance of a misbehaviour."""
        return self._chances[name]

    def draw_restart_delay_s(self) -> float:
        """Return a random time from a daemon's death to its next start."""
        return min(self.random.expovariate(1.0 / self.profile.restart_mean_s), RESTART_S_MAX)

    def stop_faults(self) -> None:
        """Set the chances of all misbehaviours to 0."""
        self._chances = dict.fromkeys(self._chances, 0.0)

    def fail_run(self, what: str, where: str = "swarm") -> NoReturn:
        """End the run with an InvariantBroken."""
        self._violation = InvariantBroken(self.seed, self.profile, self.now - BEGIN, where, what)
        raise self._violation

    # --- hooks for the parts; nodes by number ---

    def on_commit(self, node: int, commit: Commit) -> None:
        """A commit is durable."""

    def on_event(self, node: int, applied: AppliedEvent) -> None:
        """A durable event is applied, once, in the order of the node's log."""

    def on_dispatch(self, node: int, command: Command) -> None:
        """A command leaves a daemon."""

    def on_node_restored(self, node: int) -> None:
        """A machine was lost, and another one continues with a backup of its log."""

    def on_network_command(self, node: int, command: Command) -> None:
        """A network worker receives a command."""

    def on_network_fact(self, node: int, event: Event) -> None:
        """A network worker is about to report a fact."""

    def on_record_signed(self, node: int, record: Record) -> None:
        """A node has signed a record."""

    def on_head(self) -> None:
        """There are new blocks."""

    def on_record_stored(self, record: Record) -> None:
        """A record was stored at peers; its owner may not know that yet."""

    def on_store_attempt(self, node: int, record: Record, kept: bool, due: bool) -> None:
        """A record was sent to peers in a swarm with hostile ones. `kept`: they stored it; `due`: they must, as every
        node's."""
