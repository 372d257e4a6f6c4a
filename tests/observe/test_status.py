"""What status says of each layer, for a person and as JSON."""

import math
from pathlib import Path
from typing import Any, get_args

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from swarmd.bounds import SUM_MAX
from swarmd.cli.local_swarm import make_node_row
from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import LinkState, RoundState, TrainerState
from swarmd.core.events import Envelope, LinkUp, SpaceFreed, SpaceLow, TimerFired
from swarmd.core.state import (
    Clock,
    Coordination,
    Deadline,
    Member,
    Members,
    NetworkLink,
    SkippedRounds,
    StageReward,
    StageWork,
    State,
    Trainer,
    WeightsCatchUp,
    WeightsOutcome,
    WorkerState,
)
from swarmd.core.values import CoordinatorSettings, Settings, Skill, Standing
from swarmd.daemon.service import log_waiting
from swarmd.observe.describe import make_event_line
from swarmd.observe.layers import LiveDaemon, LiveWorker
from swarmd.observe.onchain import CHAIN_WORDS
from swarmd.observe.panel import panel_of
from swarmd.observe.status import (
    LEFT,
    LINK_WORDS,
    ROUND_WORDS,
    TRAINER_WORDS,
    LogStatus,
    NodeProgress,
    Status,
    add_offer,
    check_live,
    check_productive,
    check_ready,
    make_headline,
    status_of,
)
from swarmd.observe.story import DOING, describe_activity, make_sentences
from swarmd.observe.words import STAGES_COUNTED
from swarmd.weights.offered import OFFER, OfferedWeights
from swarmd.worker.messages import STAGE_FAILED, ProgressMessage
from tests.core.story import Story, announced, settings
from tests.log_capture import capture_logs
from tests.observe import printing
from tests.weights.making import bfloat16
from tests.weights.test_offered import offer

NOW = 10_000.0
LOG = LogStatus("/data/events", 321, 5000)
SETTINGS = Settings("peer-me", "test", "coordinator", "peer-me", name="alpha", coordination=CoordinatorSettings())
WELL = LiveWorker(pid=11, age_s=60, silent_s=0.5, spoken=True, answering=True)
STUCK = LiveWorker(pid=12, age_s=60, silent_s=45, spoken=True, answering=False)
NEW = LiveWorker(pid=13, age_s=3, silent_s=3, spoken=False, answering=False)
BUSY = replace(WELL, progress=ProgressMessage("training", 7, 20, figures={"tokens_per_s": 812.0, "eta_s": 31.0}))
STATE = State(
    settings=SETTINGS,
    run="r1",
    started_at=NOW - 3600,
    chart="round.training",
    since=NOW - 40,
    clock=Clock(5, 0, NOW - 50, NOW + 100),
    work=StageWork(5, 0, NOW - 50),
    link=NetworkLink("up", NOW - 3000, "", 2, ("/ip4/127.0.0.1/tcp/1",)),
    trainer=Trainer("busy", NOW - 40, "cpu", "embedded", 900_000),
    coordination=Coordination(
        "open.collecting",
        NOW - 50,
        5,
        0,
        members=Members.from_values(
            [Member("peer-me", "alpha", 0, 4), Member("b", "beta", 0, 3), Member("c", "gone", 0, 4, left=True)]
        ),
        standings=(Standing("b", "beta", 1.0, 5, 4), Standing("peer-me", "alpha", 2.5, 5, 4)),
        expected=1,
    ),
    deadlines=(Deadline("stage", NOW + 100), Deadline("train", NOW + 5)),
    skips=(SkippedRounds(1, 2, "slow", NOW - 500),),
    rounds_skipped=2,
    rounds_joined=4,
    rewards=(StageReward(0, 0, 0.2, 0.25), StageReward(4, 0, 0.6, 0.5)),
    reward_total=2.5,
    rejections=(("stale", 3),),
)
LIVE = LiveDaemon(pid=10, rss_bytes=50_000_000, network=WELL, trainer=BUSY)


def test_every_state_of_a_chart_has_words() -> None:
    rounds = set(get_args(RoundState))
    assert set(DOING) == rounds and set(ROUND_WORDS) == rounds - {*LEFT, "paused"}
    assert set(TRAINER_WORDS) == set(get_args(TrainerState))
    assert set(LINK_WORDS) == set(CHAIN_WORDS) == set(get_args(LinkState))


def test_a_healthy_node() -> None:
    status = status_of(STATE, NOW, LOG, LIVE, "1.0")
    assert status.healthy and status.source == "daemon"
    assert (status.process.state, status.process.age_s, status.process.pid) == ("running", 3600, 10)
    assert (status.training.done, status.training.total) == (7, 20)
    assert status.training.figures["tokens_per_s"] == 812
    assert status.round.deadline_in_s == 100 and status.round.overdue_s == 0
    assert [name for name, _ in status.round.waits] == ["train", "stage"], "nearest first"
    assert status.coordinator is not None
    assert (status.coordinator.members, status.coordinator.expected) == (2, 1)
    assert status.coordinator.standings[0].name == "alpha", "best first"


COORDINATION = STATE.coordination
assert COORDINATION is not None
ALONE = replace(
    STATE,
    settings=replace(SETTINGS, coordination=CoordinatorSettings(min_peers=2, when_alone="hold")),
    link=replace(STATE.link, peers=0),
    clock=Clock(5, 0, NOW - 90, NOW - 20),
    coordination=replace(COORDINATION, held_since=NOW - 20),
)
HELD = "alone: no peer is connected; round 5 stage 0 is held until one is back"


def printed(status: Status) -> str:
    return printing.printed(panel_of(status))


def test_a_coordinator_that_does_not_run_keeps_no_stage_open() -> None:
    status = status_of(STATE, NOW, LOG, None)
    assert status.coordinator is not None and not status.coordinator.healthy
    assert status.coordinator.reason == "the daemon does not run"
    assert "coordinator, at the end of the log: open.collecting for 50s" in printed(status)
    assert "coordinator, at the end" not in printed(status_of(STATE, NOW, LOG, LIVE))


MUSTERING = replace(
    STATE,
    settings=replace(SETTINGS, coordination=CoordinatorSettings(min_peers=3)),
    chart="waiting",
    clock=None,
    coordination=replace(COORDINATION, chart="mustering"),
    deadlines=(Deadline("muster", NOW + 42),),
)


@pytest.mark.parametrize(
    ("restored", "awaited"), [(False, "members: 2 of 3 are there"), (True, "the clock that it kept")]
)
def test_a_coordinator_says_for_what_it_waits_before_its_first_round(restored: bool, awaited: str) -> None:
    state = replace(MUSTERING, restored=restored)
    status = status_of(state, NOW, LOG, LIVE)
    assert status.coordinator is not None and status.coordinator.healthy and status.round.healthy
    for words in (status.coordinator.reason, status.round.reason, printed(status)):
        assert f"waits for {awaited}" in words and "42 s more at most" in words
    assert f"waits for {awaited}" in make_headline(state)
    begins = AppliedEvent(Envelope(0, NOW, LinkUp(2)), replace(state, deadlines=()), state, ())
    assert f"connected to the DHT, 2 peers; the coordinator waits for {awaited}" in make_event_line(begins).message
    assert "waits" not in make_event_line(replace(begins, before=state)).message, "once"


@pytest.mark.anyio
async def test_a_coordinator_that_goes_on_waiting_says_so_again_and_again() -> None:
    asked: list[float] = []

    def state() -> State:
        asked.append(anyio.current_time())
        if len(asked) > 2:
            tasks.cancel_scope.cancel()
        return MUSTERING

    with capture_logs() as told:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log_waiting, state, 0.01)
    assert len(told) == 3
    assert {line["event"] for line in told} == {"the coordinator waits for members: 2 of 3 are there, 0 s more at most"}


def test_numbers_are_told_as_people_read_them() -> None:
    busy = replace(
        LIVE, trainer=replace(BUSY, progress=ProgressMessage("training", 7, 20, figures={"tokens_per_s": 11850.4}))
    )
    told = printed(status_of(replace(STATE, skips=(SkippedRounds(54, 54, "fault", NOW - 9),)), NOW, LOG, busy))
    assert "tokens_per_s 11,850" in told and "skipped 54 (fault" in told


def test_a_coordinator_that_is_alone_says_that_it_holds_the_stage() -> None:
    status = status_of(ALONE, NOW, LOG, LIVE)
    assert status.coordinator is not None
    assert (status.healthy, status.coordinator.healthy, status.coordinator.reason) == (False, False, HELD)
    assert "this node, the coordinator, is alone and holds it" in status.round.reason
    assert HELD in make_headline(ALONE) and HELD in printed(status)
    back = status_of(replace(ALONE, link=STATE.link), NOW, LOG, LIVE)
    assert back.coordinator is not None and back.coordinator.healthy and not back.coordinator.reason


def test_the_log_and_explain_say_when_a_coordinator_begins_to_hold_and_when_it_need_not() -> None:
    before = replace(ALONE, coordination=COORDINATION)
    begins = AppliedEvent(Envelope(0, NOW, TimerFired("stage", NOW)), before, ALONE, ())
    ends = AppliedEvent(Envelope(1, NOW, LinkUp(1)), ALONE, replace(ALONE, link=STATE.link), ())
    assert [(make_event_line(each).level, make_event_line(each).message) for each in (begins, ends)] == [
        ("warning", f"deadline stage passed; {HELD}"),
        ("info", "connected to the DHT, 1 peer; a peer is back: round 5 stage 0 is no longer held"),
    ]
    told = [[(each.text, each.trouble) for each in make_sentences(applied, NOW)] for applied in (begins, ends)]
    assert told == [[(make_event_line(each).message, each is begins)] for each in (begins, ends)]


@pytest.mark.parametrize(
    ("layer", "state", "running", "words"),
    [
        ("network", replace(STATE, link=NetworkLink("degraded", NOW - 9, "no peer answers")), LIVE, "no peer answers"),
        (
            "network",
            replace(
                STATE, link=NetworkLink("down", NOW), network=WorkerState(reason="ended by SIGKILL; last output:\nx")
            ),
            replace(LIVE, network=None),
            "the network worker is down: ended by SIGKILL",
        ),
        ("network", STATE, replace(LIVE, network=STUCK), "(pid 12) has been silent for 45 s"),
        ("training", STATE, replace(LIVE, trainer=STUCK), "(pid 12) has been silent for 45 s"),
        ("training", STATE, replace(LIVE, trainer=NEW), "(pid 13) is starting, for 3 s so far"),
        (
            "training",
            replace(STATE, trainer=Trainer("loading", NOW - 5)),
            replace(LIVE, trainer=WELL),
            "loading the model",
        ),
        ("round", replace(STATE, clock=Clock(5, 0, NOW - 500, NOW - 300)), LIVE, "deadline passed 300 s ago"),
        ("round", replace(STATE, chart="syncing"), LIVE, "reading the coordinator's clock"),
        ("process", replace(STATE, chart="draining", stop_reason="signal SIGTERM"), LIVE, "signal SIGTERM"),
    ],
)
def test_each_layer_tells_its_own_trouble(layer: str, state: State, running: LiveDaemon, words: str) -> None:
    status = status_of(state, NOW, LOG, running)
    broken = {name for name in ("process", "network", "training", "round") if not getattr(status, name).healthy}
    assert layer in broken
    assert words in getattr(status, layer).reason
    assert not status.healthy
    assert any(reason.startswith(f"{layer}: ") and words in reason for reason in check_ready(status).reasons)
    assert check_live(status).ok and not check_ready(status).ok
    if layer in ("network", "training"):
        assert broken == {layer}, "the other layers are well"


def test_a_finished_swarm_is_healthy() -> None:
    final = replace(STATE, chart="waiting", clock=Clock(8, 0, NOW - 900, NOW - 900, True))
    status = status_of(final, NOW, LOG, LIVE)
    assert status.round.healthy and status.round.overdue_s == 0
    assert status.round.reason == "the swarm has run its rounds"


@pytest.mark.parametrize(
    ("state", "process", "words"),
    [
        (replace(STATE, chart="stopped", stop_reason="signal SIGTERM"), "stopped", "signal SIGTERM"),
        (replace(STATE, chart="failed", stop_reason="no model", exit_code=66), "stopped", "no model"),
        (STATE, "dead", "it was killed or crashed"),
        (State(), "never started", "it has never run here"),
        (STATE, "never started", "restored from a backup, and never started here"),
    ],
)
def test_a_node_that_is_down(state: State, process: str, words: str) -> None:
    status = status_of(state, NOW, LOG, restored="restored" in words)
    assert status.source == "log" and not status.healthy
    assert status.process.state == process and words in status.process.reason
    assert status.network.state == status.training.state == "down"


def test_a_daemon_that_does_not_answer() -> None:
    status = status_of(STATE, NOW, LOG, mute="the daemon at x does not answer: timed out")
    assert status.process.state == "mute" and "timed out" in status.process.reason
    assert status.network.reason == status.training.reason == "the daemon does not answer"  # its workers may well run


def test_why_the_last_stage_failed_is_told_until_the_next_one() -> None:
    failed = replace(LIVE, trainer=replace(WELL, progress=ProgressMessage(STAGE_FAILED, note="mine:right failed: no")))
    idle = replace(STATE, trainer=replace(STATE.trainer, chart="idle"))
    status = status_of(idle, NOW, LOG, failed)
    assert status.training.reason.endswith("the last stage failed: mine:right failed: no") and not status.healthy
    row = make_node_row("node-1", status)  # as `swarmd local` shows it
    assert row.note.endswith("mine:right failed: no") and "done" not in row.what
    assert "failed" not in status_of(idle, NOW, LOG, LIVE).training.reason


def test_what_json_has_no_number_for_is_left_out_or_bounded() -> None:
    assert isinstance(LIVE.trainer, LiveWorker) and LIVE.trainer.progress is not None
    figures = LIVE.trainer.progress.figures | {"loss": math.nan, "eta_s": math.inf}
    live = replace(LIVE, trainer=replace(LIVE.trainer, progress=replace(LIVE.trainer.progress, figures=figures)))
    assert STATE.coordination is not None
    standings = (Standing("anna", "", math.inf, 1, 0), Standing("bob", "", math.nan, 1, 0))
    state = replace(
        STATE,
        rewards=(StageReward(0, 0, math.nan), StageReward(1, 0, 0.5, math.nan)),
        reward_total=math.nan,
        coordination=replace(STATE.coordination, standings=standings),
    )
    status = msgspec.json.decode(msgspec.json.encode(status_of(state, NOW, LOG, live)), type=Status)
    assert [each.round for each in status.rewards] == [1] and status.reward_total == 0
    assert {"loss", "eta_s"}.isdisjoint(status.training.figures) and status.training.figures
    assert status.coordinator is not None
    assert sorted(row.reward for row in status.coordinator.standings) == [0, SUM_MAX]


def test_what_the_last_stages_set_aside_is_said_by_reason() -> None:
    def line(*rewards: StageReward) -> list[str]:
        shown = printed(status_of(replace(STATE, rewards=rewards), NOW, LOG, LIVE, "1.0"))
        return [line.strip("│ ") for line in shown.splitlines() if "not learnt from" in line]

    assert line(StageReward(0, 0, 0.2)) == []
    early = StageReward(0, 0, 0.2, set_aside=(("unvouched", 7000), ("mark", 1)))
    later = [StageReward(1, 0, 0.2, set_aside=(("unvouched", 600), ("little", 1))) for _ in range(STAGES_COUNTED)]
    assert line(early) == [
        "not learnt from peers' rollouts in the last stage: 7,000 tokens masked: only the peer vouches for them, "
        "1 peer with the mark of a payload"
    ]
    assert line(early, *later) == [
        f"not learnt from peers' rollouts in the last {STAGES_COUNTED} stages: 4,800 tokens masked: only the peer "
        "vouches for them, 8 groups of peers of whom little counts"
    ]


@pytest.mark.parametrize("state", [STATE, State(), replace(STATE, rewards=(StageReward(0, 0, math.nan),))])
@pytest.mark.parametrize("live", [LIVE, None])
def test_the_panel_fits_one_screen(state: State, live: LiveDaemon | None) -> None:
    text = printing.printed(panel_of(status_of(state, NOW, LOG, live, "1.0")), 100)
    assert len(text.splitlines()) <= 24
    for word in ("process", "network", "training", "round", "/data/events: 321 events, 5 KiB"):
        assert word in text


@pytest.mark.parametrize("name", ["[/]", "[bold red]", "[link=https://evil.example]x", ":bomb:"])
def test_a_peers_name_is_shown_as_it_is(name: str) -> None:
    settings = replace(SETTINGS, peer=name, name=name)
    for row in (Standing("anna", name, 1.0, 1, 0), Standing(name, "", 1.0, 1, 0)):
        state = replace(STATE, settings=settings, coordination=replace(COORDINATION, standings=(row,)))
        assert printed(status_of(state, NOW, LOG)).count(name[-12:]) == 3


def test_what_a_worker_said_commands_no_terminal() -> None:
    reason = "it ended: \x1b]0;title\x07 \x9b2J\nmore"
    state = replace(STATE, training=WorkerState(reason=reason, exits=(NOW,)), trainer=Trainer("down"))
    shown = printed(status_of(state, NOW, LOG, LIVE))
    assert "\\x1b]0;title\\x07 \\x9b2J" in shown and all(each.isprintable() or each == "\n" for each in shown)


def test_a_task_that_has_fallen_is_told_until_it_is_back() -> None:
    fell = StageReward(0, 0, 0.2, 0.5, fallen=(Skill("sort", 0.3, 64, 0.9, True, 2.5),))
    unmeasured, back = StageReward(1, 0, 0.2), StageReward(2, 0, 0.2, 0.7)
    assert "fallen: sort to 0.30" in printed(status_of(State(rewards=(fell, unmeasured)), NOW, LOG))
    assert "fallen" not in printed(status_of(State(rewards=(fell, unmeasured, back)), NOW, LOG))


def test_a_node_that_awaits_its_trainer_after_a_pause_says_that_there_is_room_again() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0), SpaceLow(5, 40))
    assert status_of(node.state, 1.0, LOG, LIVE).round.reason.startswith("paused: 0 MiB free of 0 wanted")
    node.tell(SpaceFreed(80))
    assert node.state.chart == "paused" and node.state.trainer.chart == "busy"
    status = status_of(node.state, 1.0, LOG, LIVE)
    assert status.round.reason.startswith("there is room again: waiting for the trainer")
    assert not status.round.healthy
    assert status.round.reason in make_headline(node.state)
    assert describe_activity(node.state, 1.0) == "waiting for its trainer to stop what it was at before the pause"


WELL_STATUS = status_of(STATE, NOW, LOG, LIVE)
STARTING = replace(
    STATE, chart="joining", link=NetworkLink("connecting"), trainer=Trainer("loading"), clock=None, work=None
)
EARNING = NodeProgress(started_at=NOW - 5000, stage_s=150, trained_at=NOW - 60)


def test_a_starting_node_lives_and_is_not_ready() -> None:
    status = status_of(STARTING, NOW, LOG, LiveDaemon(pid=10, rss_bytes=1, network=NEW, trainer=NEW))
    assert check_live(status).ok
    verdict = check_ready(status)
    assert not verdict.ok
    assert [reason.partition(":")[0] for reason in verdict.reasons] == ["network", "training", "round"]
    assert check_productive(status, NodeProgress(started_at=NOW - 10)).ok, "it has had no time yet"


@pytest.mark.parametrize(
    "status",
    [
        None,
        status_of(STATE, NOW, LOG),
        status_of(STATE, NOW, LOG, mute="it does not answer"),
        status_of(State(), NOW, LOG),
    ],
)
def test_a_daemon_that_does_not_answer_is_well_to_no_depth(status: Any) -> None:
    verdicts = [check_live(status), check_ready(status), check_productive(status, EARNING)]
    assert [verdict.ok for verdict in verdicts] == [False] * 3
    assert all(verdict.reasons[0] for verdict in verdicts)


ON_CHAIN = {"submits": True, "confirmed_at": {"reward": NOW - 10}}


@pytest.mark.parametrize(
    ("progress", "reasons"),
    [
        ({}, ()),
        ({"trained_at": NOW - 449}, ()),
        ({"trained_at": NOW - 451}, ("nothing was trained for 451 s",)),
        ({"trained_at": 0.0}, ("nothing was trained since the daemon started",)),
        ({"trained_at": 0.0, "finished": True}, ()),
        (ON_CHAIN, ()),
        (ON_CHAIN | {"confirmed_at": {"reward": NOW - 500}}, ("nothing was confirmed on the chain for 500 s",)),
        (
            ON_CHAIN | {"confirmed_at": {"register": NOW - 10}},
            ("nothing was confirmed on the chain since the daemon started",),
        ),
        ({"stage_s": 1.0, "trained_at": NOW - 59}, ()),  # a short stage leaves time for a restart
        ({"stage_s": 1.0, "trained_at": NOW - 61}, ("nothing was trained for 61 s",)),
    ],
)
def test_a_node_is_productive_if_its_work_came_to_something_lately(
    progress: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    verdict = check_productive(WELL_STATUS, replace(EARNING, **progress))
    assert (verdict.ok, verdict.reasons) == (not reasons, reasons)
    assert check_live(WELL_STATUS).ok and check_ready(WELL_STATUS).ok


ADOPTED = WeightsOutcome(NOW - 90, "adopted", "12D3KooW-peer-anna", 7, "", "", 4 * 2**20, 0.25, 0.5)
WORDS = {
    "fetched": "fetched the weights of oW-peer-anna after round 7, 4.0 MiB, not measured yet",
    "adopted": "began from the weights of oW-peer-anna after round 7: held-out accuracy 0.50 here, its own had 0.25",
    "refused": "did not begin from the weights of oW-peer-anna after round 7 (no-better): as good as its own",
}


def said(**fields: Any) -> Status:
    """The status as a client of the daemon reads it."""
    status = status_of(replace(STATE, **fields), NOW, LOG, LIVE)
    return msgspec.json.decode(msgspec.json.encode(status), type=Status)


@pytest.mark.parametrize("outcome", WORDS)
def test_what_became_of_weights_is_told_with_its_cause(outcome: Any) -> None:
    fields: dict[str, Any] = {"cause": "no-better", "reason": "as good as its own"} if outcome == "refused" else {}
    status = said(weights=replace(ADOPTED, **fields, outcome=outcome))
    assert status.weights is not None and status.weights.taken is not None
    assert (status.weights.taken.words, status.weights.taken.age_s) == (WORDS[outcome], 90)
    assert f"weights  1m 30s ago: {WORDS[outcome]}" in printed(status)


def test_weights_that_did_not_come_and_those_that_are_waited_for_are_told() -> None:
    status = said(weights=WeightsOutcome(NOW - 5, "late"), catch_up=WeightsCatchUp(8, NOW + 20))
    assert status.weights is not None and status.weights.awaited_s == 20
    assert "weights  waits for a peer's, 20s more at most" in printed(status)
    assert "weights  5s ago: a peer's weights did not come in time" in printed(status)
    averaging = said(catch_up=WeightsCatchUp(8, NOW + 20, average=True))
    assert averaging.weights is None, "nothing waits for it"
    over = said(catch_up=WeightsCatchUp(8, NOW + 20, over=True))
    assert over.weights is None and "weights" not in printed(over)


def test_what_a_node_offers_is_told_with_what_it_takes_on_disk(tmp_path: Path) -> None:
    for state in (STATE, State()):  # running, or never started
        status = status_of(state, NOW, LOG)
        assert add_offer(status, tmp_path / "weights") is status
    offer(OfferedWeights(tmp_path / "weights"), bfloat16(2**20, 0), 9)
    told = add_offer(replace(status, at=(tmp_path / "weights" / OFFER).stat().st_mtime + 60), tmp_path / "weights")
    assert told.weights is not None and told.weights.offered is not None
    offered = told.weights.offered
    assert (offered.round, offered.accuracy, round(offered.age_s)) == (9, 0.5, 60)
    assert offered.size_bytes > 2**21
    assert "offers its own after round 9, held-out accuracy 0.50, 2.0 MiB on disk, 1m 0s ago" in printed(told)
