"""What holds for every sequence of events, however absurd: `step` never raises, never forgets a bound, never lies.

CI draws the same examples each time; with SWARMD_SIM_SEEDS set (see tests/sim/conftest.py) they are new ones.
"""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transitions import MachineError

from swarmd.core.applied import apply_facts, find_skipped_rounds
from swarmd.core.chart import GAPS, NAMES, AnyChart, build_machine, compile_ignored, default_charts
from swarmd.core.events import (
    ChainBlock,
    ChainUp,
    CommandFailed,
    Envelope,
    Event,
    LinkUp,
    MemberRow,
    MembershipRead,
    MembersSeen,
    NodeForked,
    NodeStarted,
    NoRoundYet,
    PolicyLog,
    RecordsRejected,
    Registered,
    RegistrationLog,
    ReportPublished,
    ReportRow,
    ReportsSeen,
    RewardLog,
    RolloutsGathered,
    RoundPublished,
    RoundsSkipped,
    StageLog,
    StageTrained,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
    TimerFired,
    TrainerReady,
    VoteLog,
    WorkerStarted,
)
from swarmd.core.state import (
    BLOCKS_KEPT,
    OUTBOX_MAX,
    PREPARED_KEPT,
    REJECTIONS_KEPT,
    REWARDS_KEPT,
    SETTLED_KEPT,
    SKIPS_KEPT,
    State,
    Submission,
    state_enc_hook,
)
from swarmd.core.step import StateFold, step
from swarmd.core.turn import PENDING_MAX, StepContext
from swarmd.core.values import (
    BlockRef,
    ChainSettings,
    CoordinatorSettings,
    PeerWeights,
    RolloutsRef,
    Settings,
    SubmissionAttempt,
)
from swarmd.errors import ChartError
from swarmd.eventlog.snapshot import decode_state
from tests.eventlog.making import values_of

thorough = settings(max_examples=150, deadline=None, derandomize="SWARMD_SIM_SEEDS" not in os.environ)

ME = "me"
peers = st.sampled_from([ME, "boss", "anna", "otto"])
rounds = st.integers(0, 5)
stages = st.integers(0, 2)
workers = st.sampled_from(["network", "trainer", "chain"])
times = st.floats(0.0, 5000.0)
rewards = st.floats(-1.0, 2.0)
words = st.sampled_from(["", "why", "no answer"])
codes = st.sampled_from([0, 0, 69])


@st.composite
def command_ids(draw: st.DrawFn) -> str:
    kind = draw(
        st.sampled_from(["train", "gather", "report", "announce", "leaderboard", "register", "cancel", "weights"])
    )
    if kind == "weights":
        return f"weights/{draw(rounds)}"
    return "register" if kind == "register" else f"{kind}/{draw(rounds)}/{draw(stages)}"


@st.composite
def node_settings(draw: st.DrawFn) -> Settings:
    coordination = CoordinatorSettings(
        min_peers=draw(st.integers(1, 3)),
        quorum=draw(st.sampled_from([0.5, 0.75, 1.0])),
        rounds_max=draw(st.sampled_from([0, 2])),
    )
    coordinates = draw(st.booleans())
    chained = draw(st.booleans())
    chain = ChainSettings(draw(st.booleans()), draw(st.sampled_from(["never", "policy", "manager"])))
    return Settings(
        peer=ME,
        swarm="s",
        role="coordinator" if coordinates else "follower",
        coordinator=ME if coordinates else "boss",
        stages=draw(st.sampled_from([1, 3])),
        behind=draw(st.sampled_from(["finish-stage", "abandon"])),
        restarts_max=draw(st.sampled_from([1, 8])),
        coordination=coordination if coordinates and not chained else None,
        chain=chain if chained else None,
        catch_up_rounds=draw(st.sampled_from([0, 1, 2])),
    )


references = st.builds(RolloutsRef, peers, rounds, stages, words, st.integers(0, 9), st.integers(0, 9))
peer_weights = st.builds(PeerWeights, peers, rounds, words, st.integers(1, 9))
TIMERS = ["clock", "train", "gather", "publish", "drive", "submission", "weights"]


@st.composite
def skips(draw: st.DrawFn) -> RoundsSkipped:
    first = draw(rounds)
    return RoundsSkipped(first, first + draw(rounds), draw(st.sampled_from(["slow", "late", "fault", "stopped"])))


accounts = st.sampled_from(["0xme", "0xother"])
hashes = st.sampled_from(["0xa", "0xb"])
blocks = st.builds(BlockRef, st.integers(0, 20), hashes, hashes, times)
seldom = st.sampled_from([False, False, False, True])
submission_ids = st.one_of(
    st.just("register"),
    st.builds("{}/{}/{}".format, st.sampled_from(["reward", "advance"]), rounds, stages),
    st.builds("winners/{}".format, rounds),
)
# Values of fields by name, few of each, so that events are about the same things. Other fields keep their defaults, or
# are drawn by their types.
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "account": st.sampled_from(["", "0xme"]), "architecture": st.sampled_from(["", "aa", "aa"]),
    "attempt": st.integers(1, 3), "block": blocks, "chain_id": st.just(1), "code": codes, "command": command_ids(),
    "contract": st.just("0xc"), "count": st.integers(0, 5), "deadline_at": times, "depth": st.integers(1, 8),
    "device": words, "digest": words, "due_at": times, "error": words, "extensions": st.integers(0, 1), "final": seldom,
    "fork": blocks, "free_bytes": st.integers(0, 20), "from_round": st.integers(0, 2), "genesis": st.just("0xg"),
    "hash": hashes, "head": blocks, "held_out": rewards, "held_out_before": rewards, "index": st.integers(0, 3),
    "max_stage_s": st.integers(0, 60), "min_submissions": st.integers(0, 2), "model": words, "name": words,
    "opened_at": times, "parameters": st.integers(0, 9), "peer": peers, "peers": st.integers(0, 3),
    "permanent": seldom, "pid": st.integers(1, 9), "planned": st.booleans(),
    "prepared": st.builds(SubmissionAttempt, hashes, st.integers(0, 3)), "reason": words, "restored": seldom,
    "reward": rewards,
    "round": rounds, "run": words, "settings": node_settings(), "stage": stages, "stages": st.just(1),
    "step_s": st.floats(-7200.0, 7200.0), "submission": submission_ids, "transaction": hashes,
    "wanted_bytes": st.just(10), "weights": peer_weights, "worker": workers,
    "registered_to": st.sampled_from(["", "0xme", "0xme", "0xother"]),
}  # fmt: skip


def drawn(kind: type[msgspec.Struct], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Structs of one class; fields that are not given go by name."""
    for field in msgspec.structs.fields(kind):
        if field.name in BY_NAME:
            given.setdefault(field.name, BY_NAME[field.name])
        elif field.required:
            given.setdefault(field.name, values_of(field.type))
    return st.builds(kind, **given)


def some(kind: type[msgspec.Struct], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(drawn(kind, **given), max_size=4).map(tuple)


logs = st.lists(
    st.one_of(
        drawn(StageLog),
        drawn(RegistrationLog, account=accounts),
        drawn(RewardLog, account=accounts, reward=st.just("7")),
        drawn(VoteLog, account=accounts, winners=st.tuples(peers)),
        drawn(PolicyLog),
    ),
    max_size=3,
).map(tuple)
SPECIAL: dict[type, st.SearchStrategy[Any]] = {
    ChainBlock: drawn(ChainBlock, logs=logs),
    MembershipRead: drawn(MembershipRead, peers=st.lists(peers, max_size=2).map(tuple)),
    MembersSeen: drawn(MembersSeen, members=some(MemberRow, worked=st.booleans())),
    RecordsRejected: drawn(RecordsRejected, reason=st.integers(0, 99).map(str)),
    ReportsSeen: drawn(ReportsSeen, reports=some(ReportRow)),
    RolloutsGathered: drawn(RolloutsGathered, rollouts=st.tuples(references)),
    RoundsSkipped: skips(),
    StageTrained: drawn(StageTrained, rollouts=references, held_out=st.none(), held_out_before=st.none()),
    SubmissionRefused: drawn(SubmissionRefused, code=words),
    TimerFired: drawn(TimerFired, name=st.sampled_from(TIMERS)),
    TrainerReady: drawn(TrainerReady, restored=st.none()),
}
# A fork is where a log of another node begins, as NodeStarted is of a run.
AFTER_START = [kind for kind in get_args(Event) if kind is not NodeForked]
events = st.one_of(*[SPECIAL[kind] if kind in SPECIAL else drawn(kind) for kind in AFTER_START])
# Mostly a live node: its start, both workers, the link; then anything, with a share of timers that do stand.
openings = st.builds(
    lambda started, up: (
        started,
        WorkerStarted("network", 1, 1),
        WorkerStarted("trainer", 2, 1),
        WorkerStarted("chain", 3, 1),
        TrainerReady("cpu", "tiny", 1),
        LinkUp(1),
        Registered("register"),
        up,
    ),
    drawn(NodeStarted),
    drawn(ChainUp),
)
plots = st.lists(st.one_of(events, st.just("next timer"), st.just("answer")), max_size=60)
_encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=state_enc_hook).encode


def answer_to(state: State, position: int) -> Event:
    """What a port might say to the submission whose turn it is, or to the oldest pending command."""
    waiting = [each for each in state.submissions if each.chart not in ("confirmed", "refused")]
    if waiting and position % 2:
        return submission_news(waiting[0])
    if not state.pending:
        return NoRoundYet()
    command = state.pending[position % len(state.pending)]
    kind, _, rest = command.id.partition("/")
    place = [int(part) for part in rest.split("/") if part.isdigit()][:2]
    if kind == "train":
        round, stage = place
        return StageTrained(command.id, round, stage, 0.5, RolloutsRef(ME, round, stage, "d", 1, 1))
    answers: dict[str, Callable[..., Event]] = {
        "gather": RolloutsGathered,
        "report": ReportPublished,
        "announce": RoundPublished,
    }
    if kind in answers and len(place) == 2:
        return answers[kind](command.id, *place)
    return Registered(command.id) if kind == "register" else CommandFailed(command.id, "no answer")


def submission_news(submission: Submission) -> Event:
    """The next thing that a chain worker would report."""
    block = BlockRef(30, "0xc")
    if submission.chart in ("intended", "lost"):
        return SubmissionPrepared(submission.id, SubmissionAttempt("0xa", 1, b"raw"))
    if submission.chart == "prepared":
        return SubmissionSent(submission.id, "0xa")
    if submission.chart == "sent":
        return SubmissionIncluded(submission.id, block, "0xa")
    return SubmissionConfirmed(submission.id, block)


def play(opening: tuple[Event, ...], plot: list[Any]) -> list[tuple[State, Envelope]]:
    """All (state before, envelope) of a story, told as the engine takes them up."""
    state, at, seq = State(), 0.0, 0
    told: list[tuple[State, Envelope]] = []
    for position, item in enumerate([*opening, *plot]):
        event = item
        if item == "answer":
            event = answer_to(state, position)
        elif item == "next timer":
            first = min(state.deadlines, key=lambda deadline: deadline.due_at, default=None)
            event = TimerFired(first.name, first.due_at) if first else NoRoundYet()
            at = max(at, first.due_at if first else at)
        at += 0.25
        for applied in apply_facts(state, seq, at, (event,)):
            told.append((applied.before, applied.envelope))
            state = applied.after
            seq += 1
    return told


@thorough
@given(openings, plots)
def test_step_keeps_its_bounds(opening: tuple[Event, ...], plot: list[Any]) -> None:
    charts = default_charts()
    for state, envelope in play(opening, plot):
        after, commands = step(state, envelope)
        assert after.chart in charts.round.states
        assert after.link.chart in charts.link.states
        assert after.trainer.chart in charts.trainer.states
        assert after.coordination is None or after.coordination.chart in charts.coordinator.states
        assert len(after.pending) <= PENDING_MAX
        assert len({deadline.name for deadline in after.deadlines}) == len(after.deadlines) <= PENDING_MAX + 16
        if after.chain is not None:
            assert after.chain.chart in charts.link.states
            assert len(after.chain.recent) <= BLOCKS_KEPT
            assert [block.number for block in after.chain.recent] == sorted({b.number for b in after.chain.recent})
        assert len({each.id for each in after.submissions}) == len(after.submissions)
        assert all(each.chart in charts.submission.states for each in after.submissions)
        assert all(len(each.prepared) <= PREPARED_KEPT for each in after.submissions)
        assert sum(each.chart not in ("confirmed", "refused") for each in after.submissions) <= OUTBOX_MAX
        assert sum(each.chart in ("confirmed", "refused") for each in after.submissions) <= SETTLED_KEPT
        assert len(after.skips) <= SKIPS_KEPT
        assert len(after.rewards) <= REWARDS_KEPT
        assert len(after.rejections) <= REJECTIONS_KEPT
        assert len({command.id for command in commands}) == len(commands)


@thorough
@given(openings, plots)
def test_step_is_pure(opening: tuple[Event, ...], plot: list[Any]) -> None:
    for state, envelope in play(opening, plot):
        before = _encode(state)
        after, commands = step(state, envelope)
        assert _encode(state) == before, "step changed the state it was given"
        again, commands_again = step(decode_state(before), envelope)
        assert again == after
        assert commands_again == commands


@thorough
@given(openings, plots)
def test_a_fold_in_place_comes_to_what_step_comes_to(opening: tuple[Event, ...], plot: list[Any]) -> None:
    asked, unasked, after = StateFold(), StateFold(), State()
    for state, envelope in play(opening, plot):
        after, commands = step(state, envelope)
        assert asked.apply(envelope) == commands == unasked.apply(envelope)
        assert asked.state == after
    assert unasked.state == after


def test_a_fold_in_place_is_of_no_use_after_an_error() -> None:
    fold = StateFold()
    fold.apply(Envelope(0, 1.0, NodeStarted(Settings("me", "swarm", "follower", "boss"), "run")))
    with pytest.raises(AssertionError, match="printer"):
        fold.apply(Envelope(1, 2.0, WorkerStarted("printer", 1, 1)))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="fold the log again"):
        fold.apply(Envelope(2, 3.0, NoRoundYet()))
    with pytest.raises(AssertionError, match="fold the log again"):
        _ = fold.state


@thorough
@given(openings, plots)
def test_the_clock_work_and_done_never_go_back(opening: tuple[Event, ...], plot: list[Any]) -> None:
    for state, envelope in play(opening, plot):
        after, _ = step(state, envelope)
        if state.clock is not None:
            assert after.clock is not None
            assert (after.clock.round, after.clock.stage) >= (state.clock.round, state.clock.stage)
        if state.work is not None:
            assert after.work is not None
            assert (after.work.round, after.work.stage) >= (state.work.round, state.work.stage)
        assert after.done >= state.done


@thorough
@given(openings, plots)
def test_a_step_that_leaves_rounds_behind_is_preceded_by_their_skip(
    opening: tuple[Event, ...], plot: list[Any]
) -> None:
    invented = [item for item in plot if not isinstance(item, RoundsSkipped)]
    for state, envelope in play(opening, invented):
        after, _ = step(state, envelope)
        if not isinstance(envelope.event, RoundsSkipped):
            assert find_skipped_rounds(state, after) is None


@thorough
@given(events)
def test_an_event_survives_the_log(event: Event) -> None:
    assert msgspec.msgpack.decode(_encode(event), type=Event) == event


@given(events)
def test_before_its_start_a_node_ignores_everything(event: Event) -> None:
    if not isinstance(event, NodeStarted):
        assert step(State(), Envelope(0, 1.0, event)) == (State(), ())


# --- charts ---


class Model:
    """What a `transitions` machine moves."""

    state: str


@pytest.mark.parametrize("name", NAMES)
@thorough
@given(steps=st.data())
def test_the_table_and_the_machine_go_the_same_way(name: str, steps: st.DataObject) -> None:
    chart: AnyChart = getattr(default_charts(), name)
    model = Model()
    machine = build_machine(chart.source, model)
    place = str(model.state)
    for trigger in steps.draw(st.lists(st.sampled_from(chart.triggers), max_size=12)):
        try:
            machine.trigger_event(model, trigger)
        except MachineError:
            assert (place, trigger) not in chart.table
        place = chart.table.get((place, trigger), place)
        assert str(model.state) == place
        assert place in chart.states


MOVES = {chart: f"fire_{chart}_trigger" for chart in ("round", "link", "trainer", "coordinator")}


def pairs_of(chart: AnyChart) -> list[tuple[str, str]]:
    """Everything that a chart may be asked and follows nowhere."""
    pairs = [(place, trigger) for place in chart.states for trigger in chart.triggers]
    return [pair for pair in pairs if pair not in chart.table]


def asked(name: str, place: str, trigger: str) -> bool:
    """Whether a chart follows a trigger; what it does not follow has changed nothing."""
    state = standing_at(name, place)
    before = _encode(state)
    turn = StepContext(state, default_charts(), lasting=False)
    turn.at = 9.0
    moved = _move(turn, name, trigger)
    assert moved or (_encode(turn.freeze()) == before and turn.commands == ())
    return moved


@pytest.mark.parametrize("name", NAMES)
def test_a_trigger_that_a_chart_ignores_changes_nothing(name: str) -> None:
    chart: AnyChart = getattr(default_charts(), name)
    assert chart.ignored
    assert not any(asked(name, place, trigger) for place, trigger in chart.ignored)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "link"])  # which says something of everything
def test_a_trigger_that_a_chart_neither_follows_nor_ignores_is_an_error_in_tests(name: str) -> None:
    chart: AnyChart = getattr(default_charts(), name)
    gaps = [pair for pair in pairs_of(chart) if pair not in chart.ignored]
    assert gaps
    for place, trigger in gaps:
        with pytest.raises(ChartError, match=f"what '{trigger}' means in '{place}'"):
            asked(name, place, trigger)


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"trigger": "ready", "source": "down"}, "no `why`"),
        ({"trigger": "ready", "source": "done", "why": "x"}, "names no state"),
        ({"trigger": "redy", "source": "down", "why": "x"}, "no trigger"),
        ({"trigger": "ready", "source": ["down", "loading"], "why": "x"}, "is followed in 'loading'"),
    ],
)
def test_an_entry_that_is_wrong_about_what_is_ignored_is_refused(entry: dict[str, Any], wrong: str) -> None:
    chart = default_charts().trainer
    with pytest.raises(ChartError, match=wrong):
        compile_ignored(chart.source | {"ignored": [entry]}, chart.table)


def test_a_node_lives_on_with_a_trigger_that_no_chart_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GAPS, "raises", False)
    monkeypatch.setattr(GAPS, "seen", Counter())
    assert asked("round", "joining", "gathered") is False
    assert GAPS.take_lines() == ["round: gathered in joining, 1 times"]
    assert GAPS.take_lines() == []


def _move(turn: StepContext, name: str, trigger: Any) -> bool:
    if name == "submission":
        return turn.fire_submission_trigger(turn.state.submissions[0], trigger)
    assert turn.open_if_coordinating() == (name == "coordinator")
    return bool(getattr(turn, MOVES[name])(trigger))


def standing_at(name: str, place: Any) -> State:
    """A state in which one chart stands at a place."""
    plain = {"chart": place} if name == "round" else {}
    parts = {"link": "link", "trainer": "trainer", "coordinator": "coordination"}
    if name == "submission":
        return State(submissions=(Submission("register", "register", chart=place),))
    fields = {**plain, **({parts[name]: {"chart": place}} if name in parts else {})}
    return msgspec.convert(fields, State)
