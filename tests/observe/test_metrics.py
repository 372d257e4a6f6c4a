"""Metrics are what the events say: counted right, bounded, well named, and without anything of a peer's making."""

import ast
import math
import re
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.chain.contract import ERRORS
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import DailyBudget, quote_gas_price
from swarmd.chain.senders import Wallet
from swarmd.config import Config, FeesConfig, SwarmConfig, TrainingConfig
from swarmd.core.events import (
    ChainReorged,
    CommandFailed,
    Event,
    LinkUp,
    ModelPushed,
    NodeStarted,
    RecordsRejected,
    Registered,
    ReportPublished,
    RoundAnnounced,
    StageTrained,
    StopRequested,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
)
from swarmd.core.state import LearningStatus, StageTimes
from swarmd.core.values import RolloutsRef, SubmissionAttempt
from swarmd.errors import EXIT_FOR_ROOM, ChainError
from swarmd.eventlog.fold import load_state
from swarmd.observe import labels
from swarmd.observe.metrics import GAUGES, Metrics, read_memory
from swarmd.observe.status import Status, status_of
from swarmd.paths import NodeDirectory
from tests.core.story import announced, block, chain_settings, chain_up, gathered, said, trained
from tests.core.story import settings as node_settings
from tests.monitoring.tools import promtool
from tests.observe.counting import GOLDEN, OPENMETRICS, Samples, fold_into, read, samples_of, samples_of_openmetrics
from tests.observe.counting import tell as tell_events
from tests.observe.test_status import LIVE, LOG, NOW, STATE

SERIES_MAX = 600  # of one node, whatever happens to it
LOGS = sorted(path.parent for path in GOLDEN.glob("*/events"))
ROOT = Path(__file__).resolve().parents[2]
JOINED: list[Event] = [
    NodeStarted(node_settings(), "run1"),
    WorkerStarted("network", 11, 1),
    WorkerStarted("trainer", 12, 1),
    LinkUp(2),
    Registered("register"),
    TrainerReady("cpu", "tiny", 1),
]
START = NodeStarted(chain_settings(reward_scale=100), "run1")
CHAINED: list[Event] = [START, *JOINED[1:], WorkerStarted("chain", 13, 1), chain_up()]


def count(*events: Event, first_at: float = 1000.0, step_s: float = 10.0) -> Samples:
    """Samples after these events, ten seconds apart."""
    metrics = Metrics(clock=lambda: first_at + step_s * len(events))
    tell_events(metrics, [(first_at + step_s * place, event) for place, event in enumerate(events)])
    return read(metrics)


def test_a_stage_is_counted_from_joining_to_its_report() -> None:
    first, second = announced(0), announced(1, deadline_at=1300.0)
    body = RolloutsRef("me", 1, 0, "d" * 64, 100, 4)
    stage = StageTrained("train/1/0", 1, 0, 0.25, body, tokens=640, seconds=9.0, rejected=(("stale", 2), ("odd", 1)))
    found = count(
        *JOINED, first, trained(0), ReportPublished("report/0/0", 0, 0), second, gathered(1), stage,
        ReportPublished("report/1/0", 1, 0),
    )  # fmt: skip
    assert found["swarmd_rounds_joined_total",] == 2
    assert found["swarmd_stages_trained_total",] == 2
    assert found["swarmd_generated_tokens_total",] == 640
    assert found["swarmd_reports_published_total",] == 2
    assert found["swarmd_records_rejected_total", "stale"] == 2
    assert found["swarmd_records_rejected_total", "other"] == 1, "a reason that nobody foresaw"
    assert found["swarmd_stage_trained_timestamp_seconds",] == 1110
    assert found["swarmd_stage_limit_seconds",] == 1300
    for part, times in (("gather", 1), ("train", 2), ("publish", 2)):
        assert found["swarmd_stage_part_seconds_count", part] == times, part
        assert found["swarmd_stage_part_seconds_sum", part] == 10 * times, part
    assert found["swarmd_stage_part_seconds_bucket", "10.0", "train"] == 2
    assert found["swarmd_stage_part_seconds_bucket", "5.0", "train"] == 0


def test_the_end_of_a_swarm_is_told_and_keeps_the_stages_length() -> None:
    found = count(*JOINED, announced(0, deadline_at=300.0), trained(0), announced(1, deadline_at=0.0, final=True))
    assert found["swarmd_swarm_finished",] == 1 and found["swarmd_stage_limit_seconds",] == 300
    found = count(*JOINED, announced(1, deadline_at=0.0, final=True))
    assert found["swarmd_swarm_finished",] == 1, "also for who comes too late for any"


def test_rounds_are_counted_as_skipped_with_their_cause() -> None:
    found = count(*JOINED, announced(4), trained(4), ReportPublished("report/4/0", 4, 0), announced(9))
    assert found["swarmd_rounds_skipped_total", "late"] == 4
    assert found["swarmd_rounds_skipped_total", "slow"] == 4
    assert found["swarmd_rounds_skipped_total", "fault"] == 0


def test_counts_begin_anew_with_every_life_of_the_daemon() -> None:
    life = [*JOINED, announced(0), trained(0)]
    found = count(*life, NodeStarted(node_settings(), "run2"))
    assert found["swarmd_stages_trained_total",] == 0
    assert found["swarmd_rounds_joined_total",] == 0
    assert found["swarmd_start_time_seconds",] == 1000 + 10 * len(life)
    assert ("swarmd_stage_trained_timestamp_seconds",) not in found


@pytest.mark.parametrize("node", LOGS, ids=lambda node: node.name)
def test_a_server_that_folds_from_the_last_start_has_what_one_that_saw_all_has(node: Path) -> None:
    whole, late = Metrics(clock=lambda: 0.0), Metrics(clock=lambda: 0.0)
    fold_into(whole, node / "events")
    starts: list[int] = []
    probe = SimpleNamespace(apply=lambda applied: starts.append(applied.seq) if is_start(applied) else None)
    fold_into(probe, node / "events")  # type: ignore[arg-type]
    state = fold_into(late, node / "events", from_seq=starts[-1])
    assert read(whole) == read(late)
    assert read(whole)["swarmd_stages_trained_total",] <= len(state.rewards)


def is_start(envelope: object) -> bool:
    return isinstance(getattr(envelope, "event", None), NodeStarted)


def test_a_submission_is_counted_state_by_state() -> None:
    name = "reward/0/0"
    found = count(
        *CHAINED, trained(0), SubmissionPrepared(name, SubmissionAttempt("0xa", 1)), SubmissionSent(name, "0xa"),
        SubmissionIncluded(name, block(2)), SubmissionConfirmed(name, block(2)), said(3),
    )  # fmt: skip
    for state in ("intended", "prepared", "sent", "included", "confirmed"):
        assert found["swarmd_submissions_total", "reward", state] == 1, state
    assert found["swarmd_reward_confirmed",] == 0.5
    assert found["swarmd_submission_confirmed_timestamp_seconds", "reward"] == 1000 + 10 * (len(CHAINED) + 4)


def test_a_reward_that_was_dropped_and_came_again_counts_once_in_the_sum() -> None:
    name = "reward/0/0"
    found = count(
        *CHAINED, trained(0), SubmissionPrepared(name, SubmissionAttempt("0xa", 1)), SubmissionSent(name, "0xa"),
        SubmissionIncluded(name, block(2)), SubmissionConfirmed(name, block(2)), ChainReorged(block(1), 1),
        SubmissionIncluded(name, block(3)), SubmissionConfirmed(name, block(3)),
    )  # fmt: skip
    assert found["swarmd_submissions_total", "reward", "confirmed"] == 2
    assert found["swarmd_reward_confirmed",] == 0.5


def test_a_refusal_is_counted_by_its_code() -> None:
    known = count(*CHAINED, trained(0), SubmissionRefused("reward/0/0", "InvalidStageNumber", "too late"))
    assert known["swarmd_submissions_refused_total", "InvalidStageNumber", "reward"] == 1
    unknown = count(*CHAINED, trained(0), SubmissionRefused("reward/0/0", "https://key@evil", "?"))
    assert unknown["swarmd_submissions_refused_total", "other", "reward"] == 1
    assert known["swarmd_submissions_total", "reward", "refused"] == 1


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (WorkerExited("trainer", "ended by SIGKILL, not by this daemon; out of memory?", signal=9), "killed"),
        (WorkerExited("trainer", "ended by SIGSEGV; last output:\nout of memory", signal=11), "crash"),
        (WorkerExited("trainer", "ended with status 1", code=1), "crash"),
        (WorkerExited("trainer", "answered no ping for 60 s, killed; last output:\nx", signal=9), "silent"),
        (WorkerExited("trainer", "not ready within 180 s, killed", signal=9), "silent"),
        (WorkerExited("trainer", "memory ran out: a fresh process has it back", 0, planned=True), "memory"),
        (WorkerExited("trainer", "CUDA out of memory: the smallest pass does not fit", 1), "memory"),
        (WorkerExited("trainer", "recycled after 3 rounds", 0, planned=True), "planned"),
        (WorkerExited("trainer", "no such model", 1, permanent=True, exit_code=66), "permanent"),
        (WorkerStartFailed("trainer", "no such file", 1), "crash"),
        (WorkerExited("trainer", "900 MiB of memory, and 600 allowed", EXIT_FOR_ROOM, outside=True), "room"),
    ],
)
def test_the_end_of_a_worker_has_a_cause(event: Event, cause: str) -> None:
    found = count(*JOINED, event)
    exits = {name[1:]: value for name, value in found.items() if name[0] == "swarmd_worker_exits_total" and value}
    assert exits == {(cause, "trainer"): 1}


def test_the_end_of_a_worker_in_an_orderly_stop_is_no_restart() -> None:
    found = count(*JOINED, StopRequested("enough"), WorkerExited("trainer", "stopped (ended with status 0)", 0))
    assert sum(value for name, value in found.items() if name[0] == "swarmd_worker_exits_total") == 0


def test_a_failed_submission_is_told_by_swarmds_own_words() -> None:
    """The words are those that the wallet and the fees really use."""

    async def poor(method: str, params: list[object], kind: object) -> str:
        return "0x1"

    async def dear(method: str, params: list[object], kind: object) -> object:
        return {"baseFeePerGas": hex(10**12), "number": "0x1"} if "Block" in method else hex(10**12)

    async def over_budget() -> None:
        DailyBudget(FeesConfig(day_coins_max=1.0)).check_budget(2 * 10**18, 0, "reward")

    said: list[str] = []
    account = SimpleNamespace(account="0x" + 40 * "a", _chain=EthereumClient(SimpleNamespace(call=poor)))  # type: ignore[arg-type]
    for call in (
        lambda: Wallet._check_balance(account, 10, "reward"),  # type: ignore[arg-type]
        lambda: quote_gas_price(EthereumClient(SimpleNamespace(call=dear)), FeesConfig()),  # type: ignore[arg-type]
        over_budget,
    ):
        with pytest.raises(ChainError) as caught:
            anyio.run(call)
        said.append(str(caught.value))
    failures = [CommandFailed("submit/reward/0/0/5", words) for words in (*said, "no endpoint answers")]
    found = count(*JOINED, *failures, CommandFailed("gather/1/0", "?"), CommandFailed("made-up/1", "?"))
    assert [found["swarmd_submission_failures_total", cause] for cause in labels.FAILURE_CAUSES] == [1, 1, 1, 1]
    assert found["swarmd_commands_failed_total", "submit"] == 4
    assert found["swarmd_commands_failed_total", "gather"] == found["swarmd_commands_failed_total", "other"] == 1


# --- readings ---


SPENT = {"spent_day": int(NOW // 86_400), "spent_wei": str(10**18 // 8)}


def full_status(now: float = NOW) -> Status:
    """A coordinator at work on a chain, with everything that a status can hold."""
    chained, _ = load_state(GOLDEN / "chain/events")
    waiting = replace(chained.submissions[-1], chart="sent")
    submissions = (*chained.submissions[:-1], waiting)
    node = replace(STATE.settings, chain=chained.settings.chain)
    chain = replace(chained.chain, chart="up", **SPENT)
    learning = LearningStatus(now - 60, 2, 4, 0, 0.6)
    times = StageTimes(4, 0, (("train", 20.0),), trained=True)
    state = replace(STATE, settings=node, chain=chain, submissions=submissions, learning=learning, last_times=times)
    figures = {"lag_s": 2.0, "balance_coins": 0.25, "rounds_paid": 12.0, "day_coins_max": 0.5}
    progress = replace(LIVE.trainer.progress, what="following", done=40, total=41, figures=figures)
    live = replace(LIVE, chain=replace(LIVE.trainer, progress=progress))
    return status_of(state, now, LOG, live, "1.0")


def full_metrics(root: Path) -> Metrics:
    """Metrics that have something to say under every name."""
    paths = NodeDirectory(root)
    paths.events.mkdir(parents=True)
    (paths.events / f"{0:020}.seg").write_bytes(b"x" * 1000)
    (paths.blobs / "ab").mkdir(parents=True)
    (paths.blobs / "ab" / "cd").write_bytes(b"x" * 200)
    (paths.checkpoints / "1").mkdir(parents=True)
    (paths.checkpoints / "1" / "model").write_bytes(b"x" * 30)
    config = Config(SwarmConfig("test"), training=TrainingConfig(memory_bytes_max=2**30))
    metrics = Metrics(paths, config, clock=lambda: NOW)
    tell_events(metrics, [(NOW - 100, event) for event in [*JOINED, announced(0), trained(0)]])
    metrics.progress.confirmed_at["reward"] = NOW - 5
    return metrics


def test_readings_say_what_the_status_says(tmp_path: Path) -> None:
    status = full_status()
    found = read(full_metrics(tmp_path), status)
    assert found["swarmd_daemon_up",] == 1
    assert found["swarmd_peers",] == 2 and found["swarmd_members",] == 2
    assert found["swarmd_reward_earned",] == 2.5 and found["swarmd_reward_last",] == 0.6
    assert found["swarmd_held_out_accuracy_ratio",] == 0.5
    assert found["swarmd_task_kept_lowest_ratio",] == 1.0
    assert found["swarmd_tokens_per_second",] == 812
    assert found["swarmd_log_bytes",] == 1000 and found["swarmd_log_segments",] == 1
    assert found["swarmd_blob_bytes",] == 200 and found["swarmd_checkpoint_bytes",] == 30
    assert found["swarmd_chain_head_block",] == 41 and found["swarmd_chain_lag_seconds",] == 2
    assert found["swarmd_chain_day_spent_coins",] == 0.125 and found["swarmd_chain_day_budget_coins",] == 0.5
    assert found["swarmd_chain_balance_coins",] == 0.25 and found["swarmd_chain_rounds_paid",] == 12
    assert found["swarmd_health", "live"] == 1
    for name, layer in (("round", status.round), ("chain", status.chain), ("submissions", status.submissions)):
        assert layer is not None and found["swarmd_layer_healthy", name] == layer.healthy


def test_a_node_that_is_down_keeps_its_record() -> None:
    found = read(Metrics(clock=lambda: NOW), status_of(STATE, NOW, LOG))
    assert found["swarmd_daemon_up",] == 0 and found["swarmd_health", "live"] == 0
    assert found["swarmd_reward_earned",] == 2.5
    assert found["swarmd_worker_up", "trainer"] == 0


def test_an_old_answer_of_the_daemon_says_nothing_of_now(tmp_path: Path) -> None:
    found = {age_s: read(full_metrics(tmp_path / str(age_s)), full_status(NOW - age_s)) for age_s in (29, 31)}
    for name in (("swarmd_daemon_up",), ("swarmd_health", "live")):
        assert [samples[name] for samples in found.values()] == [1, 0]
    assert ("swarmd_peers",) in found[29] and ("swarmd_peers",) not in found[31]


def test_a_workers_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    trainer, network = LIVE.trainer.pid, LIVE.network.pid
    (tmp_path / str(trainer)).mkdir()
    (tmp_path / str(trainer) / "status").write_text("Name:\tpython\nVmRSS:\t9 kB\nRssAnon:\t 10 kB\nVmSwap:\t  2 kB\n")
    status = status_of(STATE, NOW, LOG, LIVE)
    assert trainer == network, "one process stands for both in these figures"
    assert list(read_memory(status, tmp_path)) == [
        ("worker_memory_bytes", ("network",), 12288),
        ("worker_memory_bytes", ("trainer",), 12288),
    ]
    assert list(read_memory(status, tmp_path / "none")) == []
    assert list(read_memory(status_of(STATE, NOW, LOG), tmp_path)) == [], "a dead daemon's pids are others' by now"


# --- form ---


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    metrics, status = full_metrics(tmp_path), full_status()
    plain, plain_type = metrics.render(status, "text/html")
    strict, strict_type = metrics.render(status, OPENMETRICS)
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert strict_type.startswith("application/openmetrics-text; version=1.0.0")
    assert samples_of(plain.decode()) == samples_of_openmetrics(strict.decode())
    assert metrics.render(status, "x" * 5000)[1] == plain_type


def test_every_gauge_of_the_table_can_be_seen_and_every_name_is_well_formed(tmp_path: Path) -> None:
    families = list(full_metrics(tmp_path).metric_families(full_status()))
    names = {family.name for family in families}
    gone = {f"swarmd_{name}" for name in GAUGES} - names
    assert gone <= {"swarmd_worker_memory_bytes"}, "that one needs the worker's process"
    for family in families:
        assert re.fullmatch(r"swarmd_[a-z]+(_[a-z]+)*", family.name), family.name
        assert family.documentation and family.documentation[-1] == ".", family.name
        assert not family.name.endswith(("_ms", "_kb", "_mb", "_percent", "_count")), "base units"
        assert family.type in ("counter", "gauge", "histogram")


def test_promtool_finds_nothing_to_improve(tmp_path: Path) -> None:
    body, _ = full_metrics(tmp_path).render(full_status())
    assert promtool("check", "metrics", given=body.decode()) == ""


def test_label_values_cover_what_the_program_says() -> None:
    """Reasons and codes that stand in the source are known by name; only strangers' words fold to "other"."""
    reasons = set()
    for path in (ROOT / "swarmd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RecordRejected" and node.args:
                reasons |= {each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)}
    assert len(reasons) > 30
    assert {reason for reason in reasons if isinstance(reason, str)} <= set(labels.REJECTION_REASONS)
    unnamed = set(ERRORS.values()) - set(labels.REFUSAL_CODES)
    assert all(
        re.match(r"Only|UUPS|ERC1967|AddressEmpty|Failed|NotInit|InvalidInit|InvalidBootnode", each) for each in unnamed
    )


words = st.text(max_size=30) | st.sampled_from(["stale", "https://key:hunter2@host/", "12D3KooWpeer"])
signals = st.none() | st.integers(0, 64)
events = st.one_of(
    st.builds(RecordsRejected, peer=words, reason=words, count=st.integers(-5, 10**9)),
    st.builds(CommandFailed, command=words, reason=words),
    st.builds(SubmissionRefused, submission=st.just("reward/0/0") | words, code=words, reason=words),
    st.builds(SubmissionConfirmed, submission=words, block=st.just(block(3))),
    st.builds(WorkerExited, worker=st.sampled_from(labels.WORKERS), reason=words, signal=signals),
    st.builds(ModelPushed, round=st.integers(0, 9), repo=words, error=words),
    st.builds(RoundAnnounced, st.integers(0, 99), stage=st.just(0), opened_at=st.just(0.0), deadline_at=st.floats()),
    st.integers(0, 99).map(trained),
    st.builds(LinkUp, peers=st.integers(0, 10**6), addresses=st.just(("/ip4/10.1.2.3/tcp/1",))),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=30))
def test_no_events_make_more_series_or_show_a_strangers_words(told: list[Event]) -> None:
    metrics = Metrics(clock=lambda: 5000.0)
    state = tell_events(metrics, [(1000.0 + place, event) for place, event in enumerate([*CHAINED, trained(0), *told])])
    status = status_of(state, 5000.0, LOG, LIVE)
    body, _ = metrics.render(status)
    found = samples_of(body.decode())
    assert len(found) < SERIES_MAX
    assert not re.search(r"hunter2|12D3Koo|0xme|10\.1\.2\.3|://", body.decode())
    counters = {name: value for name, value in found.items() if name[0].endswith(("_total", "_count"))}
    assert all(value >= 0 and math.isfinite(value) for value in counters.values())
