"""What became of one node's rollouts of a stage: at the node itself, at the coordinator, and at each other node.

- All findings come from the logs: rounds, stages, digests and the order within each log decide. Times of two nodes are
  compared only as far as their messages bound the difference of their clocks.
- For each other node the first cause that the logs show is reported, checked from the sender to the receiver's use.
- If the logs show no cause, the text says so, and what evidence would show it.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from swarmd.core import events
from swarmd.core.evidence import is_banned_by
from swarmd.core.ids import stage_command_id
from swarmd.core.values import KnownEvidence, RolloutsRef, SkipCause
from swarmd.observe.describe import cut_first_line
from swarmd.observe.node_log import LoggedEvent, StageOpened
from swarmd.observe.timeline import Place, Timeline
from swarmd.observe.words import count_noun, format_duration
from swarmd.paths import quote_for_shell

Verdict = Literal[
    "used",
    "set-aside",  # fetched, but none of their tokens were trained on
    "fetched",  # fetched, but the stage that would use them is not trained, or not yet
    "refused",  # the receiver rejected their body or record as invalid
    "unavailable",  # the receiver saw the announcement but did not get the body
    "late",
    "sender-down",  # the sender trained the stage but did not publish its rollouts in time
    "down",
    "cut-off",
    "skipped",
    "not-chosen",
    "banned",
    "nothing-sent",
    "not-yet",
    "unknown",
]

NEAR_S = 90.0  # a refusal is logged at once, or within a minute if there are many
REFUSALS = {  # reasons to refuse a body; all others are about records
    "oversized": "the body is larger than it may be, or than its record says",
    "wrong-digest": "the body is not the one that its record names",
    "slow": "the body did not come in the time that one may take",
    "malformed": "it cannot be decoded",
}
_JOURNAL = "the lines of {receiver}'s log at that time (`journalctl`, `swarmd bundle`): they name what failed"
_SKIPS: dict[SkipCause, str] = {
    "slow": "it was busy with an earlier stage until the swarm had gone on",
    "late": "it joined the swarm after that round",
    "fault": "something had broken there",
    "stopped": "it was stopped",
}


class Delivery(NamedTuple):
    """What became of the rollouts at one other node.

    Attributes:
        receiver: index of its log.
        verdict: in one word.
        brief: the same in a few words that follow the node's name.
        text: sentences for people.
        lacks: what evidence would answer the question; empty if the logs answer it.
    """

    receiver: int
    verdict: Verdict
    brief: str
    text: str
    lacks: str = ""


class Rollouts(NamedTuple):
    """The rollouts of one stage of a node.

    Attributes:
        sent: sentences about the sender and the coordinator.
        groups: number of groups that it had to share; None if its log does not say.
        deliveries: one for each other node whose log is here.
    """

    sender: int
    round: int
    stage: int
    sent: tuple[str, ...]
    groups: int | None
    deliveries: tuple[Delivery, ...]


def trace_rollouts(timeline: Timeline, sender: int, place: Place) -> Rollouts:
    """What became of the rollouts that a node made in a round and stage."""
    sending = _SentRollouts(timeline, sender, place)
    return Rollouts(sender, *place, tuple(sending.describe_sender()), sending.groups, tuple(sending.find_deliveries()))


def trace_deliveries(timeline: Timeline, sender: int, place: Place) -> list[Delivery]:
    """`trace_rollouts` without the sender's part."""
    return _SentRollouts(timeline, sender, place).find_deliveries()


class _SentRollouts:
    """The sender's part of a trace, with the look-ups that sender and receivers share."""

    def __init__(self, timeline: Timeline, sender: int, place: Place) -> None:
        self.timeline = timeline
        self.sender = sender
        self.place = place
        self.used_at = timeline.place_after(place)
        self.name = timeline.names[sender]
        self.peer = timeline.logs[sender].peer
        self.trained = timeline.find_event(sender, events.StageTrained, place)
        self.published = timeline.find_event(sender, events.ReportPublished, place)
        event = self.trained.event if self.trained is not None else None
        self.ref = event.rollouts if isinstance(event, events.StageTrained) else None
        self.groups = self.ref.groups if self.ref is not None else None

    def describe_sender(self) -> Iterator[str]:
        """Sentences about what the sender did, and what the coordinator saw of it."""
        of = f"round {self.place[0]} stage {self.place[1]}"
        if self.trained is None or self.ref is None:
            yield f"{self.name} trained nothing of {of}, as far as its log says: {self.explain_untrained()}."
            return
        shared = f"{count_noun(self.ref.groups, 'group')}, digest {self.ref.digest[:12]}"
        yield f"{self.name} trained {of} and had {shared} to share."
        if self.published is not None:
            took_s = self.published.at - self.trained.at
            yield f"Its rollouts and its report were published {_format_delay(took_s)}."
        else:
            yield f"Its log does not say that it could publish them: {self.explain_unpublished()}."
        yield from self._describe_report(of)

    def _describe_report(self, of: str) -> Iterator[str]:
        """Sentences about what the coordinator saw of the report."""
        timeline = self.timeline
        settings = timeline.logs[self.sender].settings
        coordinator = timeline.number.get(settings.coordinator) if settings is not None else None
        if coordinator is None or coordinator == self.sender or self.trained is None:
            return
        name = timeline.names[coordinator]
        seen = timeline.find_event(coordinator, events.ReportSeen, self.place, self.peer)
        if seen is not None:
            took_s = timeline.estimate_time(seen) - timeline.estimate_time(self.trained)
            yield f"The coordinator, {name}, saw its report {_format_delay(took_s)}."
            return
        closed = timeline.find_event(coordinator, StageOpened, self.used_at)
        if closed is not None and timeline.time_between_s(closed, self.trained)[0] > 0:
            yield f"The coordinator, {name}, had gone on to the next stage by then: the report counts for nothing."
        elif closed is not None:
            yield f"The coordinator, {name}, closed {of} without having seen its report."
        else:
            yield f"The log of the coordinator, {name}, does not show its report."

    def explain_untrained(self) -> str:
        timeline, (round_, _) = self.timeline, self.place
        log = timeline.logs[self.sender]
        for moment in timeline.moments[self.sender]:
            event = moment.event
            if isinstance(event, events.RoundsSkipped) and event.first <= round_ <= event.last:
                return f"it skipped the round, cause: {event.cause} ({_SKIPS[event.cause]})"
        if timeline.find_event(self.sender, events.TrainingCancelled, self.place) is not None:
            return "it gave the stage up"
        if log.first_near > round_:
            return f"the log begins at round {log.first_near}"
        if log.reached < round_:
            return f"the log ends at round {log.reached}"
        return f"`swarmd explain {quote_for_shell(log.place.parent)} {round_}` tells why"

    def explain_unpublished(self) -> str:
        """Why the sender did not publish in time, as far as its log says."""
        timeline, trained = self.timeline, self.trained
        assert trained is not None
        later = timeline.moments[self.sender][trained.index :]
        command = stage_command_id("report", *self.place)
        link = self.describe_link_fault(self.sender, trained)
        failed = _list_failures(later, command)
        if link:
            return f"when it was to publish, {link}"
        if failed:
            return f"publishing failed {count_noun(len(failed), 'time')}, last: {cut_first_line(failed[-1])}"
        stopped = next((each for each in later if isinstance(each.event, events.NodeStopped)), None)
        if stopped is not None:
            return "it was stopped before that"
        return "the log ends before that, or a later stage came first"

    def find_deliveries(self) -> list[Delivery]:
        return [find_delivery(self, node) for node in range(len(self.timeline.logs)) if node != self.sender]

    # --- look-ups that sender and receivers share ---

    def describe_link_fault(self, node: int, moment: LoggedEvent) -> str:
        """What was wrong with a node's link at one of its own events, as a clause; empty if nothing was."""
        before = (each for each in reversed(self.timeline.logs[node].links) if each.seq <= moment.seq)
        last = next(before, None)
        match last.event if last is not None else None:
            case events.LinkDown(reason=reason):
                return f"its DHT node was down: {cut_first_line(reason)}"
            case events.LinkDegraded(reason=reason):
                return f"it reached nobody: {cut_first_line(reason)}"
            case events.LinkUp(isolated=isolated) if isolated:
                return f"it was isolated: {cut_first_line(isolated)}"
        return ""


def find_delivery(sending: _SentRollouts, node: int) -> Delivery:
    """What became of the rollouts at one other node."""
    gathered = sending.timeline.find_event(node, events.RolloutsGathered, sending.used_at)
    event = gathered.event if gathered is not None else None
    if gathered is not None and isinstance(event, events.RolloutsGathered):
        ref = next((each for each in event.rollouts if each.peer == sending.peer), None)
        if ref is not None:
            return _FetchedDelivery(sending, node, gathered, event.rollouts, ref).find()
    if sending.trained is None or sending.groups == 0:
        brief = "nothing was sent" if sending.trained is None else "there were no groups to share"
        return Delivery(node, "nothing-sent", brief, f"Nothing could reach it: {brief}.")
    if gathered is not None and isinstance(event, events.RolloutsGathered):
        return _MissedDelivery(sending, node, gathered, event).find()
    place = f"round {sending.used_at[0]} stage {sending.used_at[1]}"
    if any(log.ended_with == sending.used_at[0] for log in sending.timeline.logs):
        text = f"The swarm had run its rounds: nobody gathers for {place}."
        return Delivery(node, "not-yet", "nobody fetches them, the swarm has ended", text)
    if all(log.reached < sending.used_at[0] for log in sending.timeline.logs):
        return Delivery(node, "not-yet", "not fetched yet", f"No log here has come to {place}, which they are for.")
    return _AbsentReceiver(sending, node).find()


class _FetchedDelivery:
    """Judges a receiver that has fetched the rollouts."""

    def __init__(
        self,
        sending: _SentRollouts,
        node: int,
        gathered: LoggedEvent,
        all_refs: Sequence[RolloutsRef],
        ref: RolloutsRef,
    ) -> None:
        self._sending = sending
        self._node = node
        self._gathered = gathered
        self._refs = all_refs
        self._ref = ref
        timeline = sending.timeline
        self._of = f"round {sending.used_at[0]} stage {sending.used_at[1]}"
        took_s = (
            timeline.estimate_time(gathered) - timeline.estimate_time(sending.trained)
            if sending.trained is not None
            else None
        )
        self._after = "" if took_s is None else f" {_format_delay(took_s)}"

    def find(self) -> Delivery:
        verdict, what = self._describe_use()
        fetched = f"It fetched {count_noun(self._ref.groups, 'group')}{self._after}, for {self._of}"
        own = self._sending.ref
        if own is not None and own.digest != self._ref.digest:
            fetched += f", under another digest ({self._ref.digest[:12]}) than the sender's log has"
        return Delivery(self._node, verdict, f"fetched{self._after}, {what}", f"{fetched}, and {what}.")

    def _describe_use(self) -> tuple[Verdict, str]:
        """What the receiver did with the rollouts, as a clause."""
        timeline, place = self._sending.timeline, self._sending.used_at
        if is_banned(self._sending, self._node, self._gathered):
            return "banned", "used nothing: it knows that the sender signed two different reports"
        trained = timeline.find_event(self._node, events.StageTrained, place)
        if trained is not None and isinstance(trained.event, events.StageTrained):
            return self._describe_use_in(trained.event)
        if timeline.find_event(self._node, events.TrainingCancelled, place) is not None:
            return "fetched", "gave that stage up"
        return "fetched", "has not trained that stage to its end, as far as its log goes"

    def _describe_use_in(self, event: events.StageTrained) -> tuple[Verdict, str]:
        """What a trained stage did with the rollouts. The log counts all peers' groups together, and refusals by
        reason."""
        own, everyone = self._ref.groups, sum(ref.groups for ref in self._refs)
        alone = len([ref for ref in self._refs if ref.groups]) == 1
        peer = self._sending.peer
        told = [f"{groups} {'of them' if alone else 'of peers'} refused: {reason}" for reason, groups in event.rejected]
        for aside in event.set_aside:
            if aside.peer == peer:
                told += [f"{aside.over_share} passed over, as it had its share of a batch"] * bool(aside.over_share)
                told += [f"{aside.of_little} passed over, as little of it counts"] * bool(aside.of_little)
                told += [f"{aside.too_long} passed over, as its right answers are too long"] * bool(aside.too_long)
                masked = f"{aside.held} of {aside.tokens} tokens masked, since only its word stands for them"
                told += [masked] * bool(aside.held)
        if event.peer_groups:
            passed = sum(groups for _, groups in event.rejected) if alone else 0
            passed += sum(
                each.over_share + each.of_little + each.too_long for each in event.set_aside if each.peer == peer
            )
            most = min(event.peer_groups, max(own - passed, 0))
            used = f"used {event.peer_groups} of them"
            if not alone:
                used = f"used {event.peer_groups} of the {everyone} groups of all peers, at most {most} of these"
            elif (rest := own - passed - event.peer_groups) > 0:
                told.append(f"{rest} had nothing to learn from there, or found no slot")
            return "used", "; ".join([used, *told])
        scored = " after scoring them" * any(each.peer == peer for each in event.judged)
        why = "; ".join(told) or (
            "nothing to learn there, as completions were paid alike, or no slots for peers' groups "
            "(training.peer_questions)"
        )
        return "set-aside", f"used none of them{scored}: {why}"


class _MissedDelivery:
    """Judges a receiver that gathered for that stage but did not get these rollouts."""

    def __init__(
        self, sending: _SentRollouts, node: int, gathered: LoggedEvent, event: events.RolloutsGathered
    ) -> None:
        self._sending = sending
        self._node = node
        self._gathered = gathered
        self._event = event
        self._of = f"round {sending.used_at[0]} stage {sending.used_at[1]}"

    def find(self) -> Delivery:
        """The first cause that the logs show."""
        for cause in (
            self._check_refused,
            self._check_banned,
            self._check_late,
            self._check_sender_down,
            self._check_cut_off,
            self._check_unavailable,
            self._check_not_chosen,
        ):
            found = cause()
            if found is not None:
                return found
        lacks = _JOURNAL.format(receiver=self._sending.timeline.names[self._node])
        others = count_noun(len(self._event.rollouts), "other peer")
        text = (
            f"It gathered from {others} for {self._of} and did not have these. The logs do not say why: they were "
            f"published before, and nothing was refused. It would take {lacks}."
        )
        return Delivery(self._node, "unknown", "not fetched, and the logs do not say why", text, lacks)

    def _check_refused(self) -> Delivery | None:
        timeline, peer = self._sending.timeline, self._sending.peer
        heard = timeline.find_event(self._node, events.RoundAnnounced, self._sending.used_at) or timeline.find_event(
            self._node, StageOpened, self._sending.used_at
        )
        since = heard.index if heard is not None else 0
        for moment in timeline.moments[self._node][since:]:
            if moment.at > self._gathered.at + NEAR_S:
                break
            event = moment.event
            if isinstance(event, events.RecordsRejected) and event.peer == peer:
                if event.reason in REFUSALS:
                    why = f"{event.reason} ({REFUSALS[event.reason]})"
                    text = f"It refused them while it gathered for {self._of}: {why}."
                    return Delivery(self._node, "refused", f"refused: {event.reason}", text)
                lacks = "its lines at debug level, which name each record that is refused"
                text = (
                    f"It refused {count_noun(event.count, 'record')} of the sender while it gathered for {self._of}: "
                    f"{event.reason}. Which, its log does not say; it would take {lacks}."
                )
                return Delivery(
                    self._node, "refused", f"a record of the sender was refused: {event.reason}", text, lacks
                )
        return None

    def _check_banned(self) -> Delivery | None:
        if not is_banned(self._sending, self._node, self._gathered):
            return None
        text = "It took nothing from the sender, since it knows that the sender signed two different reports."
        return Delivery(self._node, "banned", "not fetched: the sender is banned there", text)

    def _check_late(self) -> Delivery | None:
        trained, published = self._sending.trained, self._sending.published
        assert trained is not None
        least_s, most_s = self._sending.timeline.time_between_s(self._gathered, trained)
        if least_s > 0:
            by = f"{format_duration(least_s)} or more" if least_s >= 1 else "a moment"
            text = (
                f"They came too late: it had ended gathering for {self._of} {by} before they were made. Nothing was "
                "lost on the way."
            )
            return Delivery(self._node, "late", f"too late, by {by}", text)
        trouble = self._sending.describe_link_fault(self._sending.sender, trained)
        if trouble or published is None:
            return None
        if self._sending.timeline.time_between_s(self._gathered, published)[1] > 0:
            sure = self._sending.timeline.time_between_s(self._gathered, published)[0] > 0 and most_s < 0
            lacks = "" if sure else "clocks that are compared more closely, by more rounds in both logs"
            text = (
                f"They were still being published when it ended gathering for {self._of}."
                if sure
                else f"They were made and published about when it ended gathering for {self._of}, most likely too "
                f"late; the logs leave the order open. It would take {lacks}."
            )
            return Delivery(self._node, "late", "too late, by a moment", text, lacks)
        return None

    def _check_sender_down(self) -> Delivery | None:
        """Check whether the sender published only after the receiver had stopped gathering, and why."""
        published, trained = self._sending.published, self._sending.trained
        assert trained is not None
        if published is not None and self._sending.timeline.time_between_s(self._gathered, published)[1] <= 0:
            return None
        why = self._sending.explain_unpublished()
        when = "later" if published is not None else "never, as far as its log says"
        text = f"The sender had not published them when it gathered for {self._of}: {why}. They were published {when}."
        return Delivery(self._node, "sender-down", "the sender had not published them", text)

    def _check_cut_off(self) -> Delivery | None:
        trouble = self._sending.describe_link_fault(self._node, self._gathered)
        if not trouble:
            return None
        text = f"It was cut off when it gathered for {self._of}: {trouble}."
        return Delivery(self._node, "cut-off", "cut off at that time", text)

    def _check_unavailable(self) -> Delivery | None:
        """Check for rollouts that were announced but not fetched; the log has their number, not their peers."""
        missing = self._event.missing
        if not missing:
            return None
        got = {ref.peer for ref in self._event.rollouts}
        timeline = self._sending.timeline
        here = (self._node, self._sending.sender)
        others = [timeline.names[log.number] for log in timeline.logs if log.number not in here and log.peer not in got]
        lacks = _JOURNAL.format(receiver=timeline.names[self._node])
        bodies = "1 body" if missing == 1 else f"{missing} bodies"
        which = f"or those of {', '.join(others)} are" if others else "if all nodes of the swarm are here"
        text = (
            f"It knew of {bodies} that did not come before it ended gathering for {self._of}; these are among them, "
            f"{which}: the peer that keeps the body did not answer, or not in time. It would take {lacks}."
        )
        return Delivery(self._node, "unavailable", "announced, and the body did not come", text, lacks)

    def _check_not_chosen(self) -> Delivery | None:
        """Check for shards: there a node reads some shards only, and stops gathering once it has enough rollouts."""
        rules = [log.settings.coordination for log in self._sending.timeline.logs if log.settings is not None]
        if not self._event.rollouts or not any(each is not None and each.shard_members for each in rules):
            return None
        taken = count_noun(len(self._event.rollouts), "other peer")
        text = (
            f"It gathered from {taken} for {self._of}, and these were not chosen: stages of this swarm are in shards, "
            "and a node takes the rollouts of dht.gather_peers peers from shards drawn at random. Nothing is wrong."
        )
        return Delivery(self._node, "not-chosen", f"not chosen, it took those of {taken}", text)


class _AbsentReceiver:
    """Judges a receiver whose log has no gathering for that stage."""

    def __init__(self, sending: _SentRollouts, node: int) -> None:
        self._sending = sending
        self._node = node
        self._log = sending.timeline.logs[node]
        self._moments = sending.timeline.moments[node]
        self._of = f"round {sending.used_at[0]} stage {sending.used_at[1]}"

    def find(self) -> Delivery:
        round_ = self._sending.used_at[0]
        skip = next(
            (
                each
                for each in self._moments
                if isinstance(each.event, events.RoundsSkipped) and each.event.first <= round_ <= each.event.last
            ),
            None,
        )
        if skip is not None:
            return self._explain_skip(skip)
        if self._log.reached < round_:
            return self._explain_log_end()
        if self._log.first_near > round_:
            lacks = f"an older copy or a backup of its log, with round {round_}"
            text = (
                f"Its log begins at round {self._log.first_near}, so it says nothing of {self._of}. It takes {lacks}."
            )
            return Delivery(self._node, "unknown", "its log begins later", text, lacks)
        return self._explain_present()

    def _explain_skip(self, skip: LoggedEvent) -> Delivery:
        event = skip.event
        assert isinstance(event, events.RoundsSkipped)
        rounds = f"round {event.first}" if event.first == event.last else f"rounds {event.first} to {event.last}"
        said = f"It skipped {rounds}, cause: {event.cause}"
        down = self._describe_outage(event.first - 1, skip.seq) if event.cause in ("fault", "stopped") else ""
        if down:
            return Delivery(self._node, "down", "down at that time", f"{said}. {down}")
        if event.cause in ("fault", "slow") and (trouble := self._describe_link_fault_before(skip)):
            return Delivery(self._node, "cut-off", "cut off at that time", f"{said}: {trouble}.")
        more = ""
        if event.cause == "fault":
            more = f" `swarmd explain {quote_for_shell(self._log.place.parent)} {event.first}` tells more."
        text = f"{said}: {_SKIPS[event.cause]}.{more}"
        return Delivery(self._node, "skipped", f"skipped the round ({event.cause})", text)

    def _describe_link_fault_before(self, skip: LoggedEvent) -> str:
        """What was wrong with the node's link between its last trained stage and the event that skipped this one."""
        before = reversed(self._moments[: skip.index])
        trained = next((each for each in before if isinstance(each.event, events.StageTrained)), skip)
        changes = [each for each in self._log.links if trained.seq < each.seq < skip.seq]
        troubles = (self._sending.describe_link_fault(self._node, each) for each in (trained, *changes, skip))
        return next(filter(None, troubles), "")

    def _describe_outage(self, near: int, until_seq: int, since_seq: int = 0) -> str:
        """A sentence on an outage in that round, between two events; empty if the node was up."""
        for outage in self._log.outages:
            if near <= outage.near and since_seq <= outage.seq <= until_seq:
                away = format_duration(outage.seconds)
                if outage.reason is None:
                    return f"Its process ended without an orderly stop, and it started again up to {away} later."
                return f"It was stopped ({cut_first_line(outage.reason)}), and started again {away} later."
        return ""

    def _explain_log_end(self) -> Delivery:
        if self._log.stopped is not None:
            reason = cut_first_line(self._log.stopped)
            text = f"It was stopped before {self._of} ({reason}) and has not been started again."
            return Delivery(self._node, "down", "down at that time", text)
        trouble = self._sending.describe_link_fault(self._node, self._moments[-1]) if self._moments else ""
        if trouble:
            text = f"Its log has not come to {self._of}: {trouble}."
            return Delivery(self._node, "cut-off", "cut off at that time", text)
        lacks = "a later copy of its log, or `swarmd status` there"
        text = (
            f"Its log ends at round {self._log.reached}, before {self._of}: it was killed, it hangs, or the copy is "
            f"older than the others. It would take {lacks}."
        )
        return Delivery(self._node, "unknown", "its log ends before", text, lacks)

    def _explain_present(self) -> Delivery:
        """The node was up in that round but gathered nothing for the stage."""
        place, timeline = self._sending.used_at, self._sending.timeline
        command = stage_command_id("gather", *place)
        failed = _list_failures(self._moments, command)
        trained = timeline.find_event(self._node, events.StageTrained, place)
        heard = timeline.find_event(self._node, events.RoundAnnounced, place) or timeline.find_event(
            self._node, StageOpened, place
        )
        at = trained or heard
        trouble = self._sending.describe_link_fault(self._node, at) if at is not None else ""
        if trouble or failed:
            why = trouble or f"gathering failed: {cut_first_line(failed[-1])}"
            return Delivery(
                self._node, "cut-off", "cut off at that time", f"It gathered nothing for {self._of}: {why}."
            )
        following = self._moments[heard.index :] if heard is not None else ()
        if following and (down := self._describe_outage(place[0], following[-1].seq, following[0].seq)):
            return Delivery(self._node, "down", "down at that time", f"It gathered nothing for {self._of}. {down}")
        overdue = any(isinstance(each.event, events.TimerFired) and each.event.name == "gather" for each in following)
        if overdue:
            lacks = _JOURNAL.format(receiver=timeline.names[self._node])
            text = f"Its gathering for {self._of} had no answer in time, and it went on without. It would take {lacks}."
            return Delivery(self._node, "unknown", "its gathering had no answer in time", text, lacks)
        if heard is None:
            text = f"It took part in round {place[0]} and not in its stage {place[1]}, of which it never heard in time."
            return Delivery(self._node, "skipped", "was not at that stage", text)
        lacks = f"`swarmd explain` of its round {place[0]}"
        text = f"It heard of {self._of} and did not gather for it. The logs do not say why; {lacks} may."
        return Delivery(self._node, "unknown", "did not gather for that stage", text, lacks)


def is_banned(sending: _SentRollouts, node: int, moment: LoggedEvent) -> bool:
    """Whether a node knew, at one of its own events, of two different reports that the sender signed for one stage."""
    for each in sending.timeline.logs[node].evidence:
        event = each.event
        if isinstance(event, events.Equivocated) and each.seq < moment.seq:
            known = KnownEvidence(event.kind, event.peer, event.round)
            if is_banned_by(known, sending.peer, sending.place[0]):
                return True
    return False


def _list_failures(moments: Sequence[LoggedEvent], command: str) -> list[str]:
    """The reason of each failure of a command."""
    found = (each.event for each in moments)
    return [each.reason for each in found if isinstance(each, events.CommandFailed) and each.command == command]


def _format_delay(seconds: float) -> str:
    return f"after {max(seconds, 0.0):.1f} s" if seconds < 60 else f"after {format_duration(seconds)}"
