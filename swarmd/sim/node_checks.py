"""Invariants of one node, commit by commit, from its events and commands alone.

- Its state only goes forward (`check_progress`). `tests/core/test_properties.py` checks that it keeps its bounds.
- It never waits for something that cannot happen: there is a deadline, or a process owes it an answer (`find_stall`).
- No command leaves without a durable cause, and none changes its content under its id (`CommandChecks`).
- Every past round was trained, or skipped with an event that says so, once (`RoundAccounts`).
- Weights from which a stage starts were requested and fetched before it, and were not averaged with before
  (`WeightsChecks`).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import assert_never

from swarmd.core import events, submissions, weights
from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import RoundState
from swarmd.core.commands import Announce, Command, Gather, KillWorker, PublishReport, Register, Train
from swarmd.core.ids import command_id, is_command_of_kind, submission_id, timer_name_of
from swarmd.core.rounds import may_have_signed
from swarmd.core.state import ChainState, Coordination, State
from swarmd.core.token_ledger import difference
from swarmd.core.values import PeerWeights, SkipCause, Worker
from swarmd.core.workers import LEAVING, worker_state_of, workers_of
from swarmd.sim.machine import SimMachine
from swarmd.sim.processes import PORTS, Port


def check_progress(node: SimMachine, applied: AppliedEvent) -> None:
    """Check that a node only moves forward, and that it remembers the chain's blocks in order."""
    before, after = applied.before, applied.after
    for what, mark in MARKS.items():
        earlier, later = mark(before), mark(after)
        if later < earlier:
            node.fail_run(f"{what} went back from {earlier} to {later}")
    if after.chain is not None and after.chain is not before.chain:
        numbers = [block.number for block in after.chain.recent]
        if any(high <= low for low, high in pairwise(numbers)):
            node.fail_run(f"blocks are remembered out of order: {numbers}")


def _clock_progress(state: State) -> tuple[float, ...]:
    """Return a sort key of the clock; a stage announced again has a later deadline."""
    clock = state.clock
    return () if clock is None else (clock.round, clock.stage, not clock.final, clock.deadline_at)


MARKS: dict[str, Callable[[State], tuple[float, ...]]] = {
    "work": lambda state: () if state.work is None else (state.work.round, state.work.stage),
    "the clock": _clock_progress,
    "done": lambda state: state.done,
    "skipped_to": lambda state: (state.skipped_to,),
}
HUNG = "nothing ends what the trainer is busy with"


def find_stall(state: State, killed: tuple[Worker, ...] = ()) -> str:
    """Return what can never end in this state; empty if there is nothing. `killed`: workers whose current process is
    being killed and therefore will exit."""
    chart = state.chart
    if chart in LEAVING:
        return ""
    armed = [deadline.name for deadline in state.deadlines]
    chained = state.chain is not None
    alive = state.network.pid and state.training.pid and (state.chaining.pid or not chained)
    if not alive and (stall := _find_worker_stall(state, armed, killed)):
        return stall
    if not _is_chart_state_ending(state, armed):
        return f"nothing ends {chart}: armed are {armed}"
    if state.trainer.chart == "busy" and "train" not in armed and "cancel" not in armed:
        return "" if "trainer" in killed else HUNG
    if state.chain is not None:
        return _find_chain_stall(state, state.chain, armed, killed)
    return "" if state.coordination is None else _find_coordinator_stall(state, state.coordination)


def _find_worker_stall(state: State, armed: list[str], killed: tuple[Worker, ...]) -> str:
    """Return a stall unless each worker runs, will be started, or will be reported dead."""
    for worker in workers_of(state):
        waits = timer_name_of("ready", worker) in armed or timer_name_of("restart", worker) in armed
        if not (worker_state_of(state, worker).pid or waits or worker in killed):
            return f"there is no {worker} worker and none will be started"
    return ""


def _is_training_pending(state: State, armed: list[str]) -> bool:
    """Return whether the stage's `Train` is at the trainer, or waits for it, or for a retry."""
    if "train" not in armed:
        return False
    if state.trainer.chart == "busy":
        return True
    waiting = [command.id for command in state.pending if isinstance(command, Train)]
    return bool(waiting) and (state.trainer.chart != "idle" or timer_name_of("retry", waiting[0]) in armed)


def _is_settling_pending(state: State, armed: list[str]) -> bool:
    return "clock" in armed or (state.clock is not None and state.clock.final) or _is_following_chain(state)


def _is_following_chain(state: State) -> bool:
    """Return whether the chain worker owes news; `_find_chain_stall` checks that the contract is advanced."""
    return state.chain is not None and state.chain.chart == "up"


def _is_submission_pending(state: State, armed: list[str]) -> bool:
    """Return whether the stage's reward is on its way, or the clock will be read meanwhile."""
    work = state.work
    assert work is not None, "a stage is being submitted"
    under_way = submissions.is_reward_pending(state, work.round, work.stage)
    return under_way and ("clock" in armed or (_is_following_chain(state) and "submission" in armed))


def _is_waiting_for_weights(state: State, armed: list[str]) -> bool:
    """Return whether the stage waits only for weights, in the round that may wait for them."""
    work = state.work
    return work is not None and work.gathered and weights.is_awaiting_weights(state, work.round) and "weights" in armed


def _is_waiting_justified(state: State, armed: list[str]) -> bool:
    """Return whether a node in "waiting" has no open stage that it knows, has not trained and may train."""
    clock = state.clock
    idle = (
        clock is None or clock.final or (clock.round, clock.stage) <= state.done or may_have_signed(state, clock.round)
    )
    return idle and _is_settling_pending(state, armed)


def _is_chart_state_ending(state: State, armed: list[str]) -> bool:
    """Return whether something will end the round chart's current state."""
    match state.chart:
        case "registering":
            return any(isinstance(command, Register) for command in state.pending)
        case "syncing":
            return "clock" in armed
        case "waiting":
            return _is_waiting_justified(state, armed)
        case "round.gathering":
            return "gather" in armed or _is_waiting_for_weights(state, armed)
        case "round.training":
            return _is_training_pending(state, armed)
        case "round.publishing":
            return "publish" in armed and any(isinstance(command, PublishReport) for command in state.pending)
        case "round.submitting":
            return _is_submission_pending(state, armed)
        case "round.settling":
            return _is_settling_pending(state, armed)
        case "paused":
            # A SpaceFreed event or the trainer's answer must come; the clock is read meanwhile.
            return (state.low_space is not None or state.trainer.chart == "busy") and _is_settling_pending(state, armed)
        case "skipping":
            return state.trainer.chart == "busy"
        case "starting" | "joining" | "draining" | "stopped" | "failed":
            return True  # its workers end it, which the caller checks; a leaving node waits for nothing
        case _:
            assert_never(state.chart)


def _find_chain_stall(state: State, chain: ChainState, armed: list[str], killed: tuple[Worker, ...]) -> str:
    """Return a stall unless every submission reaches the chain, and the contract is advanced."""
    if chain.chart == "connecting" and timer_name_of("ready", "chain") not in armed and "chain" not in killed:
        return "nothing ends the connecting to the chain"
    if chain.chart != "up" or state.settings is None or state.settings.chain is None:
        return ""
    unsettled = {each.id for each in state.submissions if each.chart not in submissions.SETTLED}
    if unsettled and "submission" not in armed:
        return f"nothing looks after {sorted(unsettled)[0]}"
    if not chain.registered and "register" not in unsettled and "register" not in armed:
        return "nobody registers this peer"
    moves = state.settings.chain.drive == "manager" or (state.settings.chain.drive == "policy" and chain.max_stage_s)
    if moves and "drive" not in armed and submission_id("advance", f"{chain.round}/{chain.stage}") not in unsettled:
        return f"nothing moves the contract on from {(chain.round, chain.stage)}"
    return ""


def _find_coordinator_stall(state: State, coordination: Coordination) -> str:
    if state.link.chart != "up":
        return ""
    chart = coordination.chart
    if chart == "announcing":
        place = (coordination.round, coordination.stage)
        announced = [(each.round, each.stage) for each in state.pending if isinstance(each, Announce)]
        return "" if place in announced else "the coordinator announces nothing"
    needed = "stage" if chart == "open.collecting" else "muster" if chart == "mustering" else ""
    stands = not needed or any(deadline.name == needed for deadline in state.deadlines)
    return "" if stands else f"nothing ends the coordinator's {chart}"


RENEWING = (events.LinkUp, events.TrainerReady, events.NodeStarted, events.CommandFailed, events.TrainingCancelled)


class CommandChecks:
    """Checks on the commands of one node. `content`: every command ever sent, by id. `sent`: when each id was last
    issued in the current run of its port: the network's since the link came up, the trainer's since it was ready, the
    chain's and the supervisor's since the daemon started."""

    def __init__(self, node: SimMachine) -> None:
        self.node = node
        self.content: dict[str, Command] = {}
        ports: tuple[Port, ...] = ("network", "trainer", "chain", "supervisor")
        self.sent: dict[Port, dict[str, tuple[float, int]]] = {port: {} for port in ports}  # id → (time, clock steps)
        self.clock_sets = 0  # number of `ClockSet` events
        self.killed: dict[Worker, str] = {}  # id of the last command to kill a worker
        self.allowed: dict[str, int] = {}  # number of durable but undispatched commands in this run, by id

    def check_event(self, applied: AppliedEvent) -> None:
        """Record an event's commands, and forget those that may be issued again."""
        envelope, before, commands = applied.envelope, applied.before, applied.commands
        if type(envelope.event) in RENEWING:
            self._forget_repeatable_commands(envelope.event, before)
        self.clock_sets += isinstance(envelope.event, events.ClockSet)
        for command in commands:
            if applied.after.low_space is not None and isinstance(command, Gather | Train):
                self.node.fail_run(f"{command.id} goes out although the disk is nearly full")
            self.allowed[command.id] = self.allowed.get(command.id, 0) + 1
            self._check_not_repeated(command, envelope.at)
            if isinstance(command, KillWorker):
                self.killed[command.worker] = command.id

    def _forget_repeatable_commands(self, event: events.Event, before: State) -> None:
        """Forget commands that may be issued again."""
        if isinstance(event, events.LinkUp):
            if before.link.chart != "up":
                self.sent["network"].clear()
        elif isinstance(event, events.TrainerReady):
            self.sent["trainer"].clear()
        elif isinstance(event, events.NodeStarted):
            self.allowed.clear()
            for sent in self.sent.values():
                sent.clear()
        elif isinstance(event, events.CommandFailed | events.TrainingCancelled):
            _, _, place = event.command.partition("/")
            for sent in self.sent.values():
                sent.pop(event.command, None)
            self.sent["trainer"].pop(command_id("cancel", place), None)  # the stage may be trained and cancelled again

    def killed_workers(self, state: State) -> tuple[Worker, ...]:
        """Return the workers whose current process is being killed."""
        orders = {
            worker: command_id("kill", f"{worker}/{state.run}/{worker_state_of(state, worker).attempt}")
            for worker in self.killed
        }
        return tuple([worker for worker, order in self.killed.items() if order == orders[worker]])

    def on_dispatch(self, command: Command) -> None:
        known = self.content.setdefault(command.id, command)
        if known is not command and known != command:
            self.node.fail_run(f"{command.id} goes out with another content: {command}, before: {known}")
        allowed = self.allowed.pop(command.id, 0)
        if allowed < 1:
            self.node.fail_run(f"{command.id} goes out without a durable commit that causes it")
        if allowed > 1:
            self.allowed[command.id] = allowed - 1

    def _check_not_repeated(self, command: Command, at: float) -> None:
        """Check that only a report that was not acknowledged in time is sent again."""
        sent = self.sent[PORTS[type(command)]]
        last, sets = sent.get(command.id, (None, 0))
        # How often the clock was set so far: in the world, and in the log, which may be read much later.
        times_set = self.node.jumps + self.clock_sets
        if last is not None:
            overdue = at - last >= self.node.settings.publish_s - 0.001 or sets != times_set
            if not (isinstance(command, PublishReport) and overdue):
                self.node.fail_run(f"{command.id} is ordered twice in one life of its port, after {at - last:.3f} s")
        sent[command.id] = (at, times_set)


def is_fault(event: events.Event, chart: RoundState) -> bool:
    """Return whether an event can make a node in this state miss rounds; a stop is not a fault."""
    if isinstance(event, events.CommandFailed):
        return is_command_of_kind(event.command, "train")
    if isinstance(event, events.TimerFired):
        return event.name == "train"
    if isinstance(event, events.NodeStarted):
        return chart != "stopped" or event.restored
    if isinstance(event, events.SpaceLow):
        return True
    return chart != "draining" and isinstance(
        event, events.WorkerExited | events.WorkerStartFailed | events.LinkDown | events.ChainDegraded
    )


class RoundAccounts:
    """Counts the rounds of one node, from its events alone."""

    def __init__(self, node: SimMachine) -> None:
        self.node = node
        self.trained: dict[int, bool] = {}  # rounds with a trained stage, from `next_round` on
        self.skipped_to = -1
        self.skipped: set[int] = set()
        self.ever_trained = False
        self.broke = False  # whether a fault occurred since a stage was last trained
        self.paused = False  # whether it paused for lack of space since then
        self.stopped = False  # whether it was stopped in order since then
        self.next_round = 0  # the first round that is neither trained nor skipped yet

    def check_event(self, applied: AppliedEvent) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        event = envelope.event
        if isinstance(event, events.RoundsSkipped):
            self._record_skip(event)
        elif isinstance(event, events.StageTrained):
            self._record_result(event, counted=after.done > before.done)
        if isinstance(event, events.StageTrained) and after.done > before.done:
            self.ever_trained, self.broke, self.stopped, self.paused = True, False, False, False
        elif after.chart == "paused":
            self.broke = self.paused = True
        elif not self.broke and is_fault(event, before.chart):
            self.broke = True
        elif isinstance(event, events.NodeStarted):
            self.stopped = True
        moved = after.work is not before.work and _round_of_work(after) != _round_of_work(before)
        if moved or (after.chart == "waiting" and before.chart != "waiting"):
            self._check_all_rounds_accounted(after)

    def _record_skip(self, event: events.RoundsSkipped) -> None:
        """Check that a skip begins after all finished rounds and contains no trained round."""
        self.node.world.counts["skips"] += 1
        both = [round for round in self.trained if event.first <= round <= event.last]
        if event.first <= self.skipped_to or event.last < event.first or both or event.first < self.next_round:
            self.node.fail_run(
                f"rounds {event.first} to {event.last} are skipped, trained were {both or 'none'} of them"
            )
        first = not self.ever_trained and self.skipped_to < 0
        causes: dict[SkipCause, bool] = {
            "late": first,
            "fault": self.broke,
            "stopped": self.stopped,
            "slow": not self.paused,
        }
        if not causes[event.cause]:
            self.node.fail_run(f"rounds {event.first} to {event.last} are called skipped for {event.cause}")
        self.skipped_to = event.last
        self.skipped |= set(range(event.first, event.last + 1))

    def _record_result(self, event: events.StageTrained, counted: bool) -> None:
        """Check that a stage of a skipped round gives no result."""
        if event.round >= self.next_round:
            self.trained[event.round] = True
        if counted and event.round in self.skipped:
            self.node.fail_run(f"round {event.round}, stage {event.stage} is trained after it was recorded as skipped")

    def _check_all_rounds_accounted(self, after: State) -> None:
        """Check that no round before the current one is left open, and that the node's own count agrees."""
        at_end = after.clock is not None and after.clock.final and after.chart == "waiting"
        reached = after.clock.round if at_end and after.clock else after.work.round if after.work else 0
        for round in range(self.next_round, reached):
            if not self.trained.pop(round, False) and round > self.skipped_to:
                self.node.fail_run(f"round {round} is neither trained nor skipped, and the node is at {reached}")
        self.next_round = max(self.next_round, reached)
        counted = after.rounds_joined + after.rounds_skipped
        skipped = self.skipped_to + 1  # a waiting node may skip to the end of a swarm that then continues
        if counted != max(self.next_round, skipped, after.work.round + 1 if after.work else 0):
            self.node.fail_run(
                f"{after.rounds_joined} rounds joined and {after.rounds_skipped} skipped, but it is at {reached}"
            )


class TokenChecks:
    """Compares one node's token ledger with what its trainers really drew."""

    def __init__(self, node: SimMachine) -> None:
        self.node = node
        self.counted = 0  # tokens of trained stages that count
        self.is_whole = True  # whether the log has everything since the node was created

    def check_event(self, applied: AppliedEvent) -> None:
        """Check a durable event; called once each, in the order of the log."""
        event, ledger = applied.event, applied.after.tokens
        if isinstance(event, events.NodeStarted) and event.restored:
            self.is_whole = False
        elif isinstance(event, events.StageTrained) and applied.after.done > applied.before.done:
            self.counted += 0 if event.ledger is None else event.ledger.generated
        if ledger is applied.before.tokens:
            return
        classes = (ledger.trained, ledger.flat, ledger.stale, ledger.cancelled, ledger.set_aside, ledger.shared)
        if difference(ledger) or min(classes) < 0:
            self.node.fail_run(f"the token ledger does not add up: {ledger}")
        if not self.is_whole or not isinstance(event, events.TrainerReady):
            return
        # A trained stage that is not reported yet counts as cancelled so far.
        if (ledger.generated, ledger.cancelled) != (event.drawn, event.drawn - self.counted):
            self.node.fail_run(f"{event.drawn} tokens were drawn, {self.counted} in stages that count: {ledger}")


def _round_of_work(state: State) -> int:
    return -1 if state.work is None else state.work.round


class WeightsChecks:
    """Checks of the weights from which one node's stages start."""

    def __init__(self, node: SimMachine) -> None:
        self.node = node
        self.fetched: PeerWeights | None = None  # the last ones that were still requested when they arrived
        self.averaged: set[str] = set()  # digests of weights that stages were averaged with
        self.bare: tuple[int, int] = (-1, -1)  # last (round, stage) that started without any

    def check_event(self, applied: AppliedEvent) -> None:
        """Check a durable event; called once each, in the order of the log."""
        event = applied.event
        if isinstance(event, events.WeightsFetched) and any(
            each.id == event.command for each in applied.before.pending
        ):
            self.fetched = event.weights
        elif isinstance(event, events.NodeStarted) and event.restored:
            self.averaged.clear()  # the backup may be older
        elif isinstance(event, events.StageTrained):
            train = next((each for each in applied.before.pending if each.id == event.command), None)
            if isinstance(train, Train) and train.weights is not None and train.weights.averaged:
                self.averaged |= {offer.digest for offer in train.weights.offers}
        for command in applied.commands:
            if isinstance(command, Train):
                self._check_stage_weights(command)

    def _check_stage_weights(self, train: Train) -> None:
        """Check that a stage that has started without weights is not given any later."""
        place = (train.round, train.stage)
        if train.weights is None:
            self.bare = place
        elif place == self.bare:
            self.node.fail_run(f"{train.id} was begun without weights, and now with those of a peer")
        elif self.averaged & {offer.digest for offer in train.weights.offers}:
            self.node.fail_run(f"{train.id} is averaged with {train.weights}, as a stage before was")
        elif train.weights != self.fetched:
            self.node.fail_run(f"{train.id} begins from {train.weights}, fetched were {self.fetched}")
