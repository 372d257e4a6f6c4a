"""The story of one round in sentences, with its causes, told from the event log alone.

`StoryTeller` is a projection of the log in bounded memory. It keeps what happened from when the swarm reached the round
until this node left it, the troubles since the last stage trained before it, and, later, what became of the node's
submissions on the chain.

- A sentence is `describe`'s text for an event, or tells how the event changed the swarm's stage or the node's chart.
- The cause of missed rounds is a trouble before them, else what the node was doing when they opened.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import RoundState
from swarmd.core.commands import PublishReport
from swarmd.core.events import Envelope, RoundsSkipped, StageTrained
from swarmd.core.state import StageTimes, State
from swarmd.observe.describe import describe
from swarmd.observe.layers import advise_on_flat_cause as advice_on_learning
from swarmd.observe.times import describe_times
from swarmd.observe.tokens import describe_stage_tokens
from swarmd.observe.words import describe_reached_stage, find_missing_reports

SENTENCES_MAX = 200  # per story; further ones are only counted
TROUBLES_KEPT = 8  # before the round
HELD_UP, HELD_UP_S = 2.0, 2.0  # a stage held the round up if it took HELD_UP times its work and HELD_UP_S more


class Sentence(msgspec.Struct, frozen=True):
    """One sentence without its full stop.

    Attributes:
        round: the round it is about; None if it is about the node itself.
        trouble: something went wrong.
        settles: it belongs to its round even after the node has left that round.
    """

    at: float
    seq: int
    text: str
    round: int | None = None
    trouble: bool = False
    settles: bool = False


class Story(msgspec.Struct, frozen=True):
    """What happened in a round, and its outcome.

    Attributes:
        outcome: trained, skipped, missed (this node was up but trained nothing), open, ahead, or unknown.
        verdict: one sentence.
        advice: what the operator may do about it.
        cut: number of sentences left out at the end.
        unread: the part of the log that was not read though it may belong to the round, in a sentence; empty for none.
    """

    round: int
    outcome: str
    verdict: str
    sentences: tuple[Sentence, ...] = ()
    advice: tuple[str, ...] = ()
    cut: int = 0
    unread: str = ""


class StoryTeller:
    """Follows a log and tells the story of one round. `knows_before`: it has seen the stage trained before the round,
    from which on it looks for causes."""

    def __init__(self, round: int) -> None:
        self._round = round
        self._sentences: list[Sentence] = []
        self._cut = 0
        self._troubles: deque[Sentence] = deque(maxlen=TROUBLES_KEPT)
        self._first: tuple[int, float] | None = None  # the log's first seq, and the round known then
        self._opened = False
        self._closed = False
        self._found_doing = ""
        self._found_round: int | None = None  # the round that the node was still busy with
        self._trained: list[StageTrained] = []
        self._before: StageTrained | None = None  # the last stage trained before the round
        self.knows_before = False
        self._took_s = 0.0  # from joining `_before` to its end, if that held this round up
        self._loading_s = 0.0  # the part of `_took_s` before the trainer was ready
        self._stage_loading_s = 0.0  # the same for the current stage
        self._skip: RoundsSkipped | None = None
        self._times: dict[int, StageTimes] = {}  # where the time of the round's stages went, by stage
        self._at = 0.0
        self._state = State()

    def apply(self, applied: AppliedEvent) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        if self._first is None:
            self._first = (envelope.seq, highest_known_round(before))
        self._count_loading(envelope.at, before)
        self._record_event(envelope, before)
        if (times := after.last_times) is not None and times.round == self._round:
            self._times[times.stage] = times
        said = make_sentences(applied, self._at)
        if not self._opened and highest_known_round(after) >= self._round:
            self._open_round(before, envelope.at)
        if self._opened and not self._closed:
            self._add_sentences([each for each in said if each.round in (None, self._round, self._found_round)])
        elif self._closed:
            self._add_sentences([each for each in said if each.settles and each.round == self._round])
        else:
            self._troubles.extend(each for each in said if each.trouble)
        self._closed = self._closed or self._is_past(after)
        self._at, self._state = envelope.at, after

    @property
    def may_continue(self) -> bool:
        """Whether later events may belong to the story: the node is in the round, or its report or submissions are
        pending."""
        reports = (each for each in self._state.pending if isinstance(each, PublishReport))
        if not self._closed or any(each.round == self._round for each in reports):
            return True
        own = (each for each in self._state.submissions if each.round == self._round)
        return any(each.chart not in ("confirmed", "refused") for each in own)

    def story(self, now: float | None = None) -> Story:
        """The story so far. `now` (POSIX seconds): the present if the node's daemon runs; None if the log has ended."""
        outcome = self._find_outcome()
        troubles = [each for each in (*self._troubles, *self._sentences) if each.trouble]
        cause = self._skip.cause if self._skip is not None else "fault" if troubles else "slow"
        reason = describe_skip_reason(cause, self._found_doing, troubles)
        sentences = (*(self._troubles if outcome in ("skipped", "missed") else ()), *self._sentences)
        gone = outcome in ("skipped", "missed")
        advice = advise_on_skips(cause, self._before, self._took_s, self._loading_s, self._state) if gone else ()
        if differ := self._state.trainer.other_weights:
            advice = (*advice, f"This node began from other weights than its swarm: {differ}.")
        advice += tuple(dict.fromkeys(f"{advice_on_learning(each.flat.cause)}." for each in self._trained if each.flat))
        advice += self._time_words() + self._token_words()
        return Story(self._round, outcome, self._describe_outcome(outcome, reason, now), sentences, advice, self._cut)

    # --- recording events ---

    def _count_loading(self, at: float, before: State) -> None:
        if before.work is None:
            self._stage_loading_s = 0.0
        elif is_loading(before):
            self._stage_loading_s += max(0.0, at - max(self._at, before.work.joined_at))

    def _record_event(self, envelope: Envelope, before: State) -> None:
        event = envelope.event
        if isinstance(event, StageTrained):
            if event.round == self._round and before.done < (event.round, event.stage):
                self._trained.append(event)
            elif event.round < self._round:
                self._before = event
                if not self._opened:
                    self.knows_before = True
                    self._troubles.clear()
                elif before.work is not None:
                    self._took_s, self._loading_s = envelope.at - before.work.joined_at, self._stage_loading_s
                self._stage_loading_s = 0.0
        elif isinstance(event, RoundsSkipped) and event.first <= self._round <= event.last:
            self._skip = event

    def _open_round(self, before: State, at: float) -> None:
        self._opened = True
        self._found_doing = describe_activity(before, at)
        if before.work is not None and before.chart.startswith("round."):
            self._found_round = before.work.round

    def _add_sentences(self, sentences: list[Sentence]) -> None:
        room = SENTENCES_MAX - len(self._sentences)
        self._sentences += sentences[:room]
        self._cut += len(sentences[room:])

    def _is_past(self, state: State) -> bool:
        """Whether the node has left the round, so that what it does now belongs to other rounds."""
        over = state.clock is not None and state.clock.final and state.chart == "waiting"
        return self._opened and (over or (state.work is not None and state.work.round > self._round))

    # --- making the story ---

    def _find_outcome(self) -> str:
        if self._first is None or self._first[1] > self._round:
            return "unknown"
        if self._trained and (self._closed or len(self._trained) == self._stages):
            return "trained"
        if self._skip is not None:
            return "skipped"
        if not self._opened:
            return "ahead"
        return "missed" if self._closed else "open"

    @property
    def _stages(self) -> int:
        return self._state.settings.stages if self._state.settings else 1

    def _time_words(self) -> tuple[str, ...]:
        """The bottleneck of each trained stage of the round; the last one may still be going on."""
        times, now = dict(self._times), self._state.stage_times
        if now is not None and now.trained and now.round == self._round:
            times[now.stage] = now
        found = [(stage, describe_times(each, self._state)) for stage, each in sorted(times.items()) if each.trainer]
        told = [(stage, words) for stage, each in found for words in (each.words, each.peer_groups) if words]
        return tuple(f"{f'Stage {stage}: ' if self._stages > 1 else ''}{words}." for stage, words in told)

    def _token_words(self) -> tuple[str, ...]:
        """What became of the tokens that each of the round's stages generated."""
        told = [(event.stage, event.ledger) for event in self._trained if event.ledger is not None]
        words = [(stage, describe_stage_tokens(ledger)) for stage, ledger in told]
        return tuple(f"{f'Stage {stage}: ' if self._stages > 1 else ''}{each}." for stage, each in words)

    def _describe_outcome(self, outcome: str, reason: str, now: float | None) -> str:
        name, state = f"Round {self._round}", self._state
        if outcome == "unknown":
            seq = self._first[0] if self._first else 0
            return f"{name} was over before this log begins (event {seq}): nothing is known of it here."
        if outcome == "ahead":
            clock, ends = state.clock, "" if now is not None else ", as this log ends"
            place = (
                describe_reached_stage(clock.round, clock.stage, clock.final) + ends
                if clock
                else "no round is known here"
            )
            return f"{name} has not been reached: {place}."
        if outcome == "trained":
            return f"{name} was trained by this node: {describe_rewards(self._trained, self._stages)}."
        if outcome == "open" and state.chart in ("stopped", "failed"):
            return f"{name} was under way when this node stopped: {state.stop_reason or 'nobody said why'}."
        if outcome == "open" and now is None:
            ended = "when this node's process ended without an orderly stop"
            return f"{name} was under way {ended}: it was {describe_activity(state, self._at)}."
        if outcome == "open":
            return f"{name} is under way: this node is {describe_activity(state, now or self._at)}."
        if outcome == "missed":
            return f"{name} passed and this node trained nothing of it: {reason}."
        skip = self._skip
        assert skip is not None
        span = f"Round {skip.first} was" if skip.first == skip.last else f"Rounds {skip.first} to {skip.last} were"
        return f"{span} skipped, cause {skip.cause}: {reason}."


def highest_known_round(state: State) -> int:
    """The highest round that the node knows of; -1 before the first."""
    clock = -1 if state.clock is None else state.clock.round - state.clock.final
    return max(clock, -1 if state.work is None else state.work.round, state.skipped_to)


def describe_rewards(trained: list[StageTrained], stages: int) -> str:
    """Describe rewards: "reward 0.500, held-out accuracy 0.40", or by stage."""
    if stages == 1 and len(trained) == 1:
        held_out = trained[0].held_out
        return f"reward {trained[0].reward:.3f}" + ("" if held_out is None else f", held-out accuracy {held_out:.2f}")
    by_stage = ", ".join(f"{each.reward:.3f} in stage {each.stage}" for each in trained)
    missing = stages - len(trained)
    return f"rewards {by_stage}" + (f"; {missing} of {stages} stages were not trained" if missing > 0 else "")


# --- sentences ---


def make_sentences(applied: AppliedEvent, last_at: float) -> list[Sentence]:
    """The sentences of a story for one event; `last_at` is when the event before it was committed."""
    at, seq, before, after = applied.at, applied.seq, applied.before, applied.after
    said = [_clock_sentence(applied)]
    told = describe(applied, at - last_at)
    if told.told:
        text = "; ".join(filter(None, (told.text, told.details)))
        said.append(Sentence(at, seq, text, told.round, told.trouble, told.settles))
    round, without = find_missing_reports(applied)
    if without:
        said.append(Sentence(at, seq, f"round {round} {without}", round))
    if before.chart != after.chart:
        said.append(_chart_sentence(applied))
    return [sentence for sentence in said if sentence is not None]


def _clock_sentence(applied: AppliedEvent) -> Sentence | None:
    """A sentence if the swarm reached another stage, whichever event showed it."""
    old, new = applied.before.clock, applied.after.clock
    if new is None or new == old:
        return None
    if new.final:
        return Sentence(applied.at, applied.seq, f"the swarm had run its {new.round} rounds")
    if old is not None and (old.round, old.stage) == (new.round, new.stage):
        return None
    open_s = new.deadline_at - new.opened_at
    ago_s = applied.at - new.opened_at
    heard = f", {ago_s:.0f} s before this node heard of it" if ago_s >= 1 else ""
    text = f"round {new.round} stage {new.stage} opened, for up to {open_s:.0f} s{heard}"
    return Sentence(applied.at, applied.seq, text)


def _chart_sentence(applied: AppliedEvent) -> Sentence | None:
    """A sentence for a change of the round's chart that no other sentence covers."""
    at, seq, before, after = applied.at, applied.seq, applied.before, applied.after
    work = after.work
    if after.chart == "round.gathering" and work is not None and work != before.work:
        return Sentence(at, seq, f"this node took part in round {work.round} stage {work.stage}", work.round)
    if after.chart == "skipping":
        return Sentence(at, seq, 'a newer stage had opened: training was cancelled ([round] behind = "abandon")')
    gave_up = before.chart == "round.training" and after.chart == "round.settling"
    if gave_up and work is not None and work.result is None:
        text = f"the stage was given up, round {work.round} stage {work.stage} was not trained"
        return Sentence(at, seq, text, trouble=True)
    return None


# --- causes ---


def describe_activity(state: State, at: float) -> str:
    """What a node does, such as "training round 3 stage 0, for 45 s"; `at` in POSIX seconds."""
    words, since = DOING[state.chart], state.since
    if state.chart == "round.training" and is_loading(state):
        words, since = "loading its trainer for", state.trainer.since
    if state.chart == "paused" and state.low_space is None:
        words, since = "waiting for its trainer to stop what it was at before the pause", 0.0
    if state.work is not None and (state.chart.startswith("round.") or state.chart == "skipping"):
        words += f" round {state.work.round} stage {state.work.stage}"
    return words + (f", for {max(0.0, at - since):.0f} s so far" if since else "")


def is_loading(state: State) -> bool:
    """Whether the trainer is down or still loading."""
    return state.trainer.chart in ("down", "loading")


def describe_skip_reason(cause: str, found_doing: str, troubles: Sequence[Sentence]) -> str:
    """Why rounds were missed, from the logged `cause`, what the node was doing when the first of them opened, and the
    troubles up to then, oldest first."""
    if cause == "fault" and troubles:
        return f"{troubles[-1].text}; when the round opened the node was {found_doing or 'down'}"
    if cause == "late":
        return "the swarm was past it when this node joined"
    if cause == "stopped":
        return "this node had been stopped, and the swarm went on without it"
    return f"when it opened this node was {found_doing or 'not running'}, and when it was free the swarm had gone on"


def advise_on_skips(
    cause: str, before: StageTrained | None, took_s: float, loading_s: float, state: State
) -> tuple[str, ...]:
    """What the operator may do about missed rounds.

    Args:
        cause: as logged.
        before: the last stage that the node had trained.
        took_s: from joining that stage to its end, if it held the missed round up; else 0.
        loading_s: the part of it before the trainer was ready.
        state: at the log's end.
    """
    if cause == "late":
        return ("Nothing is wrong: rounds before a node's first are recorded as late.",)
    if cause == "stopped":
        return ("Nothing is wrong: the node was stopped in order, and the swarm went on.",)
    if cause == "fault":
        return (
            "See to what went wrong above; `swarmd doctor` checks the machine and the configuration.",
            "`swarmd replay DIR --from SEQ --step` shows an event, what it changed and what it caused.",
        )
    return _advise_on_speed(before, took_s, loading_s, state)


def _advise_on_speed(before: StageTrained | None, took_s: float, loading_s: float, state: State) -> tuple[str, ...]:
    if before is not None and took_s > HELD_UP * before.seconds + HELD_UP_S:
        work = f"Training round {before.round} stage {before.stage} took {before.seconds:.0f} s of work"
        loading = f", after {loading_s:.0f} s in which its trainer was loaded" if loading_s >= HELD_UP_S else ""
        if took_s - loading_s <= HELD_UP * before.seconds + HELD_UP_S:
            return (f"{work}{loading}: a smaller model loads faster, and a trainer that stays up loads once.",)
        held_up = "the machine or its processes were held up (suspended, swapping, short of CPU)"
        return (f"{work}{loading}, but {took_s:.0f} s passed in all: {held_up}.",)
    clock, settings = state.clock, state.settings
    measured = "This node trains longer than a stage lasts"
    if before is not None and clock is not None:
        open_s = clock.deadline_at - clock.opened_at
        if before.seconds < open_s / 2:
            return (
                f"Training was not why: round {before.round} stage {before.stage} took {before.seconds:.0f} s, and "
                f"stages are open for up to {open_s:.0f} s. The swarm passed over the round, as it does after its "
                "coordinator was restored, or this node heard of it too late.",
            )
        measured = (
            f"A stage takes {before.seconds:.0f} s to train here, and the swarm's are open for up to {open_s:.0f} s"
        )
    advice = [
        f"{measured}: train less ([training] steps, questions, completion_tokens), or take a smaller model or a faster "
        "device (`swarmd model fit`)."
    ]
    if settings is not None and settings.behind == "finish-stage":
        advice.append('With [round] behind = "abandon" the node leaves a stage as soon as a newer one opens.')
    return tuple(advice)


DOING: dict[RoundState, str] = {
    "stopped": "stopped",
    "failed": "down after a failure",
    "draining": "stopping",
    "starting": "starting",
    "joining": "waiting for the DHT to answer",
    "registering": "registering",
    "syncing": "reading where the swarm was",
    "waiting": "waiting for a stage to open",
    "round.gathering": "fetching peers' rollouts of",
    "round.training": "training",
    "round.publishing": "publishing its report of",
    "round.submitting": "waiting for the chain to take the reward of",
    "round.settling": "done with",
    "skipping": "ending its training of",
    "paused": "paused for want of disk space",
}
