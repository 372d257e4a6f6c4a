"""Checks of a swarm as a whole: fair stages, recovery after the faults, and progress among hostile peers.

The core decides which reports a stage waits for, and how long. Whatever it decides (`CoordinatorModel`),

- each report in time counts once, and the totals add up;
- no stage closes before its deadline without this node's own report, while it trains and has reported lately;
- none closes sooner, without a member that was credited in the stage before, than that member took then;
- none stays open when all who could have reported.

After the faults have ended, every node recovers, and its reports count again (`RecoveryChecks`). Hostile peers cost an
honest swarm no more than the shipped limits allow (`HonestNodesChecks`).
"""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from swarmd.bounds import add_bounded
from swarmd.core import events
from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import CoordinatorState
from swarmd.core.commands import CollectReports, Command, PublishLeaderboard
from swarmd.core.evidence import APART_ROUNDS, BARRED_ROUNDS
from swarmd.core.state import Coordination, State
from swarmd.core.waiting import is_expected
from swarmd.core.workers import LEAVING
from swarmd.dht.membership import IDLE_BURST, IDLE_PER_S, RETURNS_BURST, RETURNS_PER_S
from swarmd.dht.p2p.limits import NAMED_BURST, NAMED_PER_S
from swarmd.dht.report_collector import CHANGES_MAX, IDLE_MAX
from swarmd.dht.wire.records import Membership, Record, ReportRecord
from swarmd.sim.hostile import is_hostile
from swarmd.sim.network import POLL_S
from swarmd.sim.node import SimNode
from swarmd.sim.simulation import Place
from swarmd.sim.swarm import SimSwarm

PROPAGATION_S = 30.0  # from an announcement until every connected node has it
SETTLE_S = 400.0  # from the end of the faults to recovery: restarts, back-off, hung trainers, a muster
CALM_S_MIN = 600.0  # a shorter calm proves nothing
AGAIN_STAGES = 3  # stages within which a healthy member with credit is credited again
PACE_MARGIN = 3.0  # a node is fast enough if it has time for this many stages


class RecoveryChecks:
    """Compares the nodes at the end with the coordinator's stage some time before."""

    def __init__(self, world: SimSwarm) -> None:
        self.world = world
        self.settled: Place | None = None  # the coordinator's stage SETTLE_S after the calm began
        self.last: Place | None = None  # its stage PROPAGATION_S before the end
        self._healthy: set[str] = set()  # members healthy since the open stage opened, after all faults
        self._missed: Counter[str] = Counter()  # calm stages in a row in which each was not credited

    def expect_recovery(self) -> None:
        """Expect every node to recover from now on."""
        if self.world.profile.calm_s >= CALM_S_MIN:
            self.world.call_in(SETTLE_S, self._record_settled_stage)
            self.world.call_at(self.world.ends_at - PROPAGATION_S, self._record_last_stage)

    def _record_settled_stage(self) -> None:
        self.settled = self._current_stage()

    def _record_last_stage(self) -> None:
        self.last = self._current_stage()

    def _current_stage(self) -> Place:
        if self.world.chain is not None:
            return self.world.chain.contract.round_and_stage
        coordination = self._get_coordination()
        return coordination.round, coordination.stage

    def _get_coordination(self) -> Coordination:
        coordination = self.world.nodes[0].state.coordination
        if coordination is None or not self.world.nodes[0].running:
            self.world.nodes[0].fail_run("the coordinator does not run although all faults have ceased")
        return coordination

    def check_at_end(self) -> None:
        if self.settled is None or self.last is None:
            return
        coordination = None if self.world.chain is not None else self._get_coordination()
        finished = coordination is not None and coordination.chart == "finished"
        if not finished and self._current_stage() <= self.settled:
            self.world.fail_run(f"the swarm stands still at {self.settled} although all faults have ceased")
        for node in self.world.nodes:
            self._check_node_runs(node)
            if not finished:
                self._check_node_caught_up(node, coordination)
                continue
            state = node.state
            if state.clock is None or not state.clock.final or state.chart not in ("waiting", "round.training"):
                node.fail_run(f"the swarm has ended, the node is {state.chart} and knows {state.clock}")

    def _check_node_runs(self, node: SimNode) -> None:
        state = node.state
        if not node.running or state.link.chart != "up":
            node.fail_run(f"it is {state.chart}, its link {state.link.chart}, although all faults have ceased")
        if state.low_space is not None:
            node.fail_run("it pauses although its disk has room")
        if state.chain is not None and state.chain.chart != "up":
            node.fail_run(f"its chain is {state.chain.chart}, although all faults have ceased")

    def _check_node_caught_up(self, node: SimNode, coordination: Coordination | None) -> None:
        assert self.last is not None and self.settled is not None, "the marks are set before"
        state, chain = node.state, node.state.chain
        if state.clock is None or (state.clock.round, state.clock.stage) < self.last:
            node.fail_run(f"it knows {state.clock}, the swarm has been at {self.last} for {PROPAGATION_S} s")
        if chain is not None and (chain.round, chain.stage) < self.last:
            where = (chain.round, chain.stage)
            node.fail_run(f"it has the contract at {where}, it was at {self.last} long before")
        # Restored from a backup, it may not sign anything of the settled round yet.
        sits_out = not state.restored and self.settled[0] < state.floor
        if is_fast_enough(self.world, node) and not sits_out:
            if state.done < self.settled:
                what = f"it trained {state.done} last, the swarm was at {self.settled} long before the end"
                node.fail_run(what)
            if coordination is not None:
                self._check_credit(node, coordination)

    def on_stage_closed(self, now: Coordination, reports: Collection[str]) -> None:
        """Handle that the coordinator closed a stage with these reports, and opened the next, `now`."""
        if self.settled is None:
            return
        healthy = {node.peer for node in self.world.nodes if self._is_healthy(node, now)}
        for peer in self._healthy & healthy:
            self._missed[peer] = 0 if peer in reports else self._missed[peer] + 1
            if self._missed[peer] > AGAIN_STAGES:  # it may have been too slow itself for the first of them
                self.world.fail_run(f"{peer} is well and was not credited in {self._missed[peer]} stages of calm")
        for peer in self._missed.keys() - healthy:
            del self._missed[peer]
        self._healthy = healthy

    def _is_healthy(self, node: SimNode, now: Coordination) -> bool:
        """Return whether a node is up, fast enough, and a member with credit."""
        state, member = node.state, now.members.get(node.peer)
        known = member is not None and member.rounds and not member.left and node.peer not in now.barred
        runs = node.running and state.link.chart == "up" and state.chart not in (*LEAVING, "round.publishing")
        trains = state.trainer.chart in ("idle", "busy") and state.low_space is None and state.catch_up is None
        return bool(known and runs and trains and is_fast_enough(self.world, node)) and now.round >= state.floor

    def _check_credit(self, node: SimNode, coordination: Coordination) -> None:
        assert self.settled is not None, "the marks are set before"
        credited = {member.peer: member.last_round for member in coordination.members}.get(node.peer, -1)
        if credited < self.settled[0]:
            node.fail_run(f"its reports count no more since round {credited}, the swarm is at {coordination.round}")


def is_fast_enough(world: SimSwarm, node: SimNode) -> bool:
    """Return whether a node is fast enough that a swarm never leaves it behind by its own rules."""
    quick = node.pace_s * PACE_MARGIN < min(node.settings.train_s, world.profile.stage_s)
    return quick and world.profile.quorum == 1.0


OPEN: tuple[CoordinatorState, ...] = ("announcing", "open.collecting")
OWN_STAGES = 3  # stages without this node's report, after which stages may close without it

_record = msgspec.msgpack.Decoder(tuple[str, int, int, float])


class CoordinatorModel:
    """A model of one coordinator, which follows its events."""

    def __init__(self, world: SimSwarm, node: SimNode, honest: "HonestNodesChecks", recovery: RecoveryChecks) -> None:
        self.world = world
        self.node = node
        self._honest = honest
        self._recovery = recovery
        self.reports: dict[str, float] = {}  # of the open stage
        self.round_reports: list[tuple[str, int, int, float]] = []  # peer, round, stage, reward, of the open round
        self.totals: dict[str, float] = {}
        self.closed = 0  # number of closed stages
        self.reported_in: dict[str, int] = {self.node.peer: 0}  # peer → number of the last stage that it reported in
        self.took_s: dict[str, float] = {}  # peer → time from that stage's single announcement to the report
        self.announced: list[float] = []  # times at which the open stage was announced
        self.clock_set = False  # whether the clock was set in the open stage, whose times then mean nothing
        self.barred: dict[str, list[int]] = {}  # equivocators, and the rounds of the evidence
        self.can_train = False  # whether a trainer has been ready in this run

    def check_event(self, applied: AppliedEvent) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        then, now = before.coordination, after.coordination
        self._check_time_to_train(applied)
        self.clock_set = self.clock_set or isinstance(envelope.event, events.ClockSet)
        if now is None or then is now or then is None:
            return
        event = envelope.event
        if isinstance(event, events.Equivocated) and event.kind == "report":
            self._ban_equivocator(event, now.round)
        closed = _round_and_stage(now) != _round_and_stage(then)
        counted = self._counted_report_records(then, now, after.pending) if closed else None
        for report in events.reports_in(event):
            if counted is None or report.record in counted:  # reports after the one that closes the stage are too late
                self._record_report(then, report, envelope.at)
        if now.members is not then.members and len(now.members) <= len(then.members):
            # Members dropped for others have no total any more.
            for peer in self.totals.keys() - {member.peer for member in now.members}:
                del self.totals[peer]
        if not closed and (now.chart == "open.collecting" != then.chart or now.openings != then.openings):
            self.announced.append(envelope.at)
        if _round_and_stage(now) < _round_and_stage(then):
            self.node.fail_run(f"the coordinator went back from {_round_and_stage(then)} to {_round_and_stage(now)}")
        if closed:
            self._check_stage_close(applied, then, now)
        if now.standings is not then.standings:
            self._check_standings(now)
        # The stage may be held for other members, who may still come.
        held = now.held_since is not None and not self.reports.keys() - {self.node.peer}
        if now.chart == "open.collecting" and self._have_all_reported(now) and not held:
            self.node.fail_run(f"stage {_round_and_stage(now)} stays open although all have reported")

    def _counted_report_records(
        self, then: Coordination, now: Coordination, pending: tuple[Command, ...]
    ) -> set[bytes]:
        """Return the signed reports of a closed stage, as they are or will be published."""
        if now.round == then.round:
            return {report.record for report in now.round_reports}
        boards = [each for each in pending if isinstance(each, PublishLeaderboard) and each.round == then.round]
        return {record for board in boards for record in board.reports}

    def _ban_equivocator(self, event: events.Equivocated, round: int) -> None:
        """Stop counting an equivocator's reports from a round on, if the evidence is new."""
        rounds = self.barred.setdefault(event.peer, [])
        if all(event.round >= known + APART_ROUNDS for known in rounds):
            rounds.append(event.round)
        if self._is_banned(event.peer, round):
            self.reports.pop(event.peer, None)

    def _is_banned(self, peer: str, round: int) -> bool:
        return any(since <= round < since + BARRED_ROUNDS for since in self.barred.get(peer, ()))

    def _check_time_to_train(self, applied: AppliedEvent) -> None:
        """Check that the open stage has its full time when the node can train at last, unless somebody has reported."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        if isinstance(envelope.event, events.NodeStarted):
            self.can_train = False
        elif isinstance(envelope.event, events.TrainerReady) and not self.can_train:
            self.can_train = True
            then, now = before.coordination, after.coordination
            assert then is not None and now is not None and after.settings is not None, "a coordinator coordinates"
            assert after.settings.coordination is not None, "a coordinator coordinates"
            until = envelope.at + after.settings.coordination.stage_s
            counts = then.chart in OPEN and then.held_since is None and not self.reports
            if counts and after.chart not in LEAVING and now.deadline_at < until:
                self.node.fail_run(
                    f"stage {_round_and_stage(now)} ends at {now.deadline_at}, this node can train since {envelope.at}"
                )

    def _record_report(self, then: Coordination, event: events.ReportSeen, at: float) -> None:
        current = then.chart in OPEN and (event.round, event.stage) == _round_and_stage(then)
        if not current or self._is_banned(event.peer, event.round) or event.peer in self.reports:
            return
        self.reports[event.peer] = event.reward
        self.reported_in[event.peer] = self.closed + 1
        self.took_s.pop(event.peer, None)
        if len(self.announced) == 1 and not self.clock_set:
            self.took_s[event.peer] = at - self.announced[0]

    def _check_stage_close(self, applied: AppliedEvent, then: Coordination, now: Coordination) -> None:
        """Check that a stage closes at its deadline, or earlier only if that is fair to all."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        if self._is_alone(after):
            self.node.fail_run(
                f"stage {_round_and_stage(then)} closed although this node was alone: {sorted(self.reports)} reported"
            )
        if not self.reports and not self.can_train:
            self.node.fail_run(f"stage {_round_and_stage(then)} closed before anybody could train it")
        if envelope.at < then.deadline_at:
            self._check_early_close(then, now, before, envelope.at)
        elif isinstance(envelope.event, events.TimerFired) and envelope.event.name != "stage":
            self.node.fail_run(f"stage {_round_and_stage(then)} closed on {envelope.event}")
        missing = [member.peer for member in then.members if is_expected(then, member)]
        missing = [peer for peer in missing if peer not in self.reports]
        self._honest.on_stage_closed(then, envelope.at, self.reports, missing)
        self._recovery.on_stage_closed(now, self.reports)
        for peer, reward in self.reports.items():
            self.round_reports.append((peer, then.round, then.stage, reward))
            self.totals[peer] = add_bounded(self.totals.get(peer, 0.0), reward)
        self.closed += 1
        self.reports = {}
        self.announced, self.clock_set = [], False
        if now.round != then.round:
            self._check_leaderboard(applied.after.pending, then.round)
            self.round_reports = []

    def _check_early_close(self, then: Coordination, now: Coordination, before: State, at: float) -> None:
        """Check a stage that closes before its deadline."""
        own, quorum = self.node.peer, self.world.profile.quorum
        trains = before.trainer.chart in ("idle", "busy") and before.low_space is None
        lately = self.closed + 1 - self.reported_in[own] <= OWN_STAGES
        if not self.reports:
            self.node.fail_run(f"stage {_round_and_stage(then)} closed early without any report")
        if trains and lately and own not in self.reports and not self._is_banned(own, then.round):
            self.node.fail_run(
                f"stage {_round_and_stage(then)} closed early without this node's report: {sorted(self.reports)}"
            )
        lasted_s = at - self.announced[-1] if self.announced else 0.0
        for member in now.members if quorum == 1.0 and not self.clock_set else ():
            peer, took_s = member.peer, self.took_s.get(member.peer, 0.0)
            in_step = self.reported_in.get(peer, 0) == self.closed and member.worked and not member.left
            if in_step and lasted_s < took_s and not self._is_banned(peer, then.round):
                self.node.fail_run(
                    f"stage {_round_and_stage(then)} closed after {lasted_s} s without {peer}, which took {took_s} s"
                )

    def _check_leaderboard(self, pending: tuple[Command, ...], round: int) -> None:
        """Check that a round's published reports are those that were counted, each once."""
        for command in pending:
            if isinstance(command, PublishLeaderboard) and command.round == round:
                published = [_record.decode(record) for record in command.reports]
                if published != self.round_reports:
                    self.node.fail_run(
                        f"the leaderboard of round {round} shows {published}, counted were {self.round_reports}"
                    )
                return
        self.node.fail_run(f"round {round} is over, but its leaderboard is not published")

    def _check_standings(self, now: Coordination) -> None:
        standing = {row.peer: row.reward for row in now.standings}
        if standing != self.totals or len(now.standings) != len(standing):
            self.node.fail_run(f"the leaderboard says {standing}, the reports add up to {self.totals}")
        places = [(not row.admitted, -row.reward) for row in now.standings]
        if places != sorted(places):
            self.node.fail_run("the leaderboard is out of order")

    def _have_all_reported(self, now: Coordination) -> bool:
        present = [each.peer for each in now.members if each.worked and not each.left]
        waited = [peer for peer in present if not self._is_banned(peer, now.round)]
        return bool(self.reports) and all(peer in self.reports for peer in (*waited, self.node.peer))

    def _is_alone(self, state: State) -> bool:
        """Return whether no other member can take part in the open stage although the settings require that."""
        settings = state.settings
        assert settings is not None and settings.coordination is not None and state.coordination is not None
        waits = settings.coordination.when_alone == "hold" and settings.coordination.min_peers > 1
        others = {member.peer for member in state.coordination.members} - {settings.peer}
        return waits and bool(others) and not state.link.peers and not self.reports.keys() - {settings.peer}


def _round_and_stage(coordination: Coordination) -> tuple[int, int]:
    return coordination.round, coordination.stage


NOTICE_S = POLL_S + 10.0  # what has been visible for this long is known to every healthy node
NEWCOMER_ROUNDS = 3  # rounds within which a newcomer's reports count
SETTLED_S = 60.0  # after the faults; from then on no honest node ends any more
CLOCK_SET_TIMES = 3  # steps of a coordinator's clock from which on its announcements may contradict each other
REASONS = 16  # number of refusal reasons, each reported once a minute without a name


class HonestNodesChecks:
    """Checks of honest nodes among hostile peers: nobody is accused or ends, each report in time counts, logs stay
    small. `held`: stages of the calm swarm that stayed open long after the last honest report. `told`: events that
    hostile peers caused at each node, by kind."""

    def __init__(self, world: SimSwarm) -> None:
        self.world = world
        self.calm_at = world.calm_from + SETTLE_S  # no fault is injected from then on
        self.held = self.closed = 0
        self.told: list[Counter[str]] = [Counter() for _ in world.nodes]
        self._stored: dict[tuple[str, Place], float] = {}  # when an honest report was first stored
        self._joined: dict[str, int] = {}  # newcomer → the round in which it registered
        self._credited: set[str] = set()
        self._collected: Counter[int] = Counter()  # stages that each node collected, counted again after each restart
        self._begun = 0  # times that the coordinator began to collect the open stage
        self._told_of: Counter[tuple[int, str, str]] = Counter()  # (node, hostile peer, kind) → count

    def reset_node(self, node: SimNode) -> None:
        """Reset a node's counts after a restore: the backup's events are counted again."""
        self.told[node.index].clear()
        self._collected[node.index] = 0
        for place in [place for place in self._told_of if place[0] == node.index]:
            del self._told_of[place]

    # --- events ---

    def on_store_attempt(self, node: SimNode, record: Record, kept: bool, due: bool) -> None:
        """Check that honest peers have room for a node's record."""
        content = record.content
        if due and not kept:
            node.fail_run(
                f"strangers leave no room for its {'membership' if isinstance(content, Membership) else 'report'}"
            )
        if kept and isinstance(content, ReportRecord):
            self._stored.setdefault((record.owner, (content.round, content.stage)), self.world.now)

    def check_event(self, node: SimNode, applied: AppliedEvent) -> None:
        """Check that no honest node is accused, or ends because of hostile peers; count the events that these cause."""
        event = applied.event
        settled_at = self.world.calm_from + SETTLED_S  # from then on only an operator stops nodes
        if isinstance(event, events.Equivocated):
            self._check_accusation(node, event)
        if not self.world.has_strangers:
            return
        collected = sum([isinstance(command, CollectReports) for command in applied.commands])
        self._collected[node.index] += collected
        self._begun += collected if node.coordinates else 0
        told: list[events.MemberSeen | events.ReportSeen] = [*events.members_in(event), *events.reports_in(event)]
        for each in told:
            self._count_hostile_event(node, each)
        if isinstance(event, events.MemberLeft):
            self._count_hostile_event(node, event)
        elif isinstance(event, events.Equivocated):
            self.told[node.index]["Equivocated"] += 1
        elif isinstance(event, events.RecordsRejected):
            self.told[node.index]["RecordsRejected"] += 1
        elif isinstance(event, events.Registered) and node is self.world.newcomer:
            coordination = self.world.nodes[0].state.coordination
            self._joined.setdefault(node.peer, coordination.round if coordination is not None else -1)
        elif isinstance(event, events.NodeStopped) and event.reason != "operator" and self.world.now > settled_at:
            node.fail_run(f"it ends with {event.code} ({event.reason}) although nothing goes wrong by itself")

    def _check_accusation(self, node: SimNode, event: events.Equivocated) -> None:
        # If a clock was set ahead, right and back, no valid record expires after all earlier ones.
        excused = event.kind == "clock" and self.world.nodes[0].jumps >= CLOCK_SET_TIMES
        if not is_hostile(event.peer) and not excused:
            node.fail_run(f"{event.peer}, which is honest, is accused: {event}")

    def _count_hostile_event(
        self, node: SimNode, event: events.MemberSeen | events.MemberLeft | events.ReportSeen
    ) -> None:
        if is_hostile(event.peer):
            kind = type(event).__name__
            self.told[node.index][kind] += 1
            self._told_of[node.index, event.peer, kind] += 1

    def on_stage_closed(self, then: Coordination, at: float, reports: Mapping[str, float], missing: list[str]) -> None:
        """Handle that the coordinator closed a stage with these reports, after waiting for the `missing` peers."""
        if not self.world.has_strangers:
            return
        place = (then.round, then.stage)
        fresh = [
            peer for peer in reports.keys() - self._credited if is_hostile(peer) and not self._has_proof_of_work(peer)
        ]
        if len(fresh) > IDLE_MAX * self._begun:
            self.world.fail_run(f"{len(fresh)} strangers that have done nothing are credited for stage {place}")
        self._begun = 0
        for peer in missing:
            if is_hostile(peer) and not self._has_proof_of_work(peer):
                self.world.fail_run(f"stage {place} waited for {peer}, which has done nothing")
        self._credited |= reports.keys()
        if self.world.now > self.calm_at:
            self._check_calm_stage(place, at - then.opened_at, reports)
        self._stored = {key: kept_at for key, kept_at in self._stored.items() if key[1] > place}

    def _has_proof_of_work(self, peer: str) -> bool:
        return self.world.dht.works.get(peer, 0) > 0

    def _check_calm_stage(self, place: Place, lasted_s: float, reports: Mapping[str, float]) -> None:
        honest = {peer: at for (peer, there), at in self._stored.items() if there == place}
        waited_s = self.world.now - max(honest.values(), default=self.world.now)
        self.closed += 1
        self.held += waited_s > NOTICE_S and len(honest) >= sum(map(self._is_up_long_enough, self.world.nodes))
        for peer, at in honest.items():
            if peer not in reports and self.world.now - at > NOTICE_S:
                self.world.fail_run(f"the report of {peer} on stage {place} was there in time and does not count")
        for node in self.world.nodes:
            clock = node.state.clock
            if (
                lasted_s > NOTICE_S
                and self._is_up_long_enough(node)
                and (clock is None or (clock.round, clock.stage) < place)
            ):
                node.fail_run(f"it has not heard of stage {place} in {lasted_s:.0f} s, and knows {clock}")
        for peer, round in self._joined.items():
            node = next(node for node in self.world.nodes if node.peer == peer)
            if place[0] > round + NEWCOMER_ROUNDS and peer not in self._credited and is_fast_enough(self.world, node):
                self.world.fail_run(f"{peer} joined in round {round} and is not credited by round {place[0]}")

    def _is_up_long_enough(self, node: SimNode) -> bool:
        link = node.state.link
        return node.running and link.chart == "up" and node.local_time() - link.since > NOTICE_S

    # --- the end ---

    def check_at_end(self) -> None:
        if not self.world.has_strangers:
            return
        for node in self.world.nodes:
            self._check_log_size(node)

    def _check_log_size(self, node: SimNode) -> None:
        """Check that the events caused by hostile peers are bounded by time, stages and the identities with credit or
        work."""
        told, lasted_s, lives = self.told[node.index], self.world.profile.hours * 3600.0, 1 + node.life
        lives += self.world.counts["worker_exits"]
        # Hostile identities with credit or proof of work.
        worked = {peer for peer in self.world.dht.works if self._has_proof_of_work(peer)}
        insiders = len({peer for peer in self._credited if is_hostile(peer)} | worked)
        comings = lives * (1 + RETURNS_BURST) + lasted_s * RETURNS_PER_S
        idle = lives * IDLE_BURST + lasted_s * IDLE_PER_S
        reports = (self._collected[node.index] + lives) * (1 + CHANGES_MAX)
        each = {"MemberSeen": comings, "MemberLeft": comings, "ReportSeen": reports}
        bounds = {
            "MemberSeen": idle + insiders * comings,
            "MemberLeft": idle + insiders * comings,
            "ReportSeen": (IDLE_MAX + insiders) * reports,
            "RecordsRejected": lives * (NAMED_BURST + REASONS) + lasted_s * (NAMED_PER_S + REASONS / 60.0),
        }
        slack = 1 + 2 * self.world.profile.duplicate
        for kind, bound in bounds.items():
            if told[kind] > bound * slack:
                node.fail_run(f"strangers made it write {told[kind]} {kind}, more than {bound:.0f}")
        for (index, peer, kind), count in self._told_of.items():
            if index == node.index and count > each[kind] * slack:
                node.fail_run(f"{peer} made it write {count} {kind}, more than {each[kind]:.0f}")
