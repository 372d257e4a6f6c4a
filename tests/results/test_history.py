"""What a log tells of training, and the card that is made of it."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swarmd.animals import ADJECTIVES, ANIMALS, animal_name
from swarmd.core.applied import AppliedEvent
from swarmd.core.events import (
    Envelope,
    Event,
    ModelPushed,
    NodeStarted,
    RoundAnnounced,
    RoundsSkipped,
    StageTrained,
    StopRequested,
    TrainerReady,
    WorkerExited,
)
from swarmd.core.state import State, state_dec_hook
from swarmd.core.values import RolloutsRef, Settings, Skill
from swarmd.eventlog.fold import FoldBase, load_state
from swarmd.observe.describe import make_event_line
from swarmd.results.card import HUB_DATA, CardSubject, describe_training_data, escape, make_card
from swarmd.results.history import (
    HistorySummary,
    RoundResult,
    TrainingHistory,
    curves_of,
    read_history,
    skills_summary,
)
from swarmd.swarms.math.questions import DAPO, GSM8K
from tests.results.conftest import GOLDEN, NODE

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
SETTINGS = Settings(PEER, "test", "follower", "someone", name="one")


def trained(round: int, stage: int = 0, reward: float = 0.5, **fields: object) -> StageTrained:
    reference = RolloutsRef(PEER, round, stage, "d" * 64, 1, 1)
    return msgspec.structs.replace(StageTrained("train", round, stage, reward, reference), **fields)


def make_history(
    envelopes: Iterable[Envelope], last: StageTrained | None = None, state: State | None = None
) -> TrainingHistory:
    gathering = HistorySummary()
    gathering.restart(FoldBase(state or State()))
    for envelope in envelopes:
        gathering.apply_event(envelope)
    return gathering.make_history(last)


def history_of(*events: Event, last: StageTrained | None = None) -> TrainingHistory:
    start: tuple[Event, ...] = (NodeStarted(SETTINGS, "run"), TrainerReady("cpu", "embedded", 5))
    envelopes = [Envelope(seq, float(seq), event) for seq, event in enumerate((*start, *events))]
    return make_history(envelopes, last)


@pytest.mark.parametrize(
    ("peer", "places"),
    [
        (PEER, (215, 49, 120)),
        ("Qma9T5YraSnpRDZqRR4krcSJabThc8nwZuJV3LercPHufi", (174, 85, 40)),
        ("Qmb8wVVVMTRmG4U1tCdaCCqietuWwpGRSbL53PA5azBViP", (219, 14, 17)),
        ("QmQ2gEXoPJg6iMBSUFWGzAabS2VhnzuS782Y637hGjfsRJ", (7, 49, 26)),
    ],
)
def test_a_name_takes_the_words_that_rl_swarm_would_take(peer: str, places: tuple[int, int, int]) -> None:
    first, second, animal = places
    assert animal_name(peer, "_") == f"{ADJECTIVES[first]}_{ADJECTIVES[second]}_{ANIMALS[animal]}"


def test_a_round_is_the_mean_of_its_stages_and_its_last_accuracy() -> None:
    history = history_of(
        trained(1, 0, 1.0, held_out=0.2, tokens=10, seconds=1.0, peer_groups=2, rejected=(("stale", 3), ("swarm", 1))),
        trained(1, 1, 3.0, held_out=0.4, tokens=5, seconds=2.0),
        trained(0, 0, 0.5, held_out_before=0.1),
    )
    assert history.rounds == (RoundResult(0, 1, 0.5, None, 0.0, 0, 0), RoundResult(1, 2, 2.0, 0.4, 3.0, 15, 2))
    assert history.held_out_before == 0.1 and history.stages[1].refused == 4


def test_a_stage_told_twice_counts_once_and_one_that_is_not_in_the_log_yet_counts() -> None:
    history = history_of(trained(0), trained(0, reward=0.6), last=trained(1, reward=0.9))
    assert [(row.round, row.reward) for row in history.rounds] == [(0, 0.6), (1, 0.9)]


def test_stages_in_any_order_come_out_in_theirs_as_told_last() -> None:
    told = [(5, 0.1), (6, 0.2), (2, 0.3), (6, 0.4), (7, 0.5), (2, 0.6), (5, 0.7), (-1, 0.8)]
    gathering = HistorySummary()
    gathering.restart(FoldBase(State(settings=SETTINGS)))
    for seq, (round, reward) in enumerate(told):
        gathering.apply_event(Envelope(seq, float(seq), trained(round, reward=reward)))
        again = HistorySummary()
        again.restore(gathering.encode())
        gathering = again
    expected = [(-1, 0.8), (2, 0.6), (5, 0.7), (6, 0.4), (7, 0.5)]
    assert [(stage.round, stage.reward) for stage in gathering.make_history().stages] == expected
    start = [Envelope(seq, float(seq), trained(round, reward=reward)) for seq, (round, reward) in enumerate(told)]
    assert make_history(start, state=State(settings=SETTINGS)).stages == gathering.make_history().stages


def test_skips_restarts_exits_and_pushes_are_told() -> None:
    pushed = ModelPushed(4, "a/b", "c")
    history = history_of(
        RoundAnnounced(4, 0, 0.0, 1.0),
        RoundsSkipped(0, 3, "late"),
        WorkerExited("trainer", "out of memory", signal=9),
        WorkerExited("trainer", "recycled", code=0, planned=True),
        WorkerExited("network", "gone", code=1),
        pushed,
        StopRequested("signal"),
        WorkerExited("trainer", "stopped", signal=15),
        NodeStarted(SETTINGS, "second"),
    )
    assert history.rounds_skipped == 4 and history.trainer_exits == 1 and history.pushes == (pushed,)
    assert [restart.round for restart in history.restarts] == [4]


def test_a_log_whose_beginning_was_removed_goes_on_from_the_state_before_it() -> None:
    history = make_history([Envelope(900, 1.0, trained(7))], state=State(settings=SETTINGS))
    assert (history.peer, history.swarm, history.from_seq) == (PEER, "test", 900)
    assert "begins later" in make_card(history, CardSubject())


@pytest.mark.parametrize("node", sorted(path.parent for path in GOLDEN.glob("*/events")), ids=lambda node: node.name)
def test_golden_logs_tell_what_their_states_hold(node: Path) -> None:
    history = read_history(node)
    state = msgspec.json.decode((node / "state.json").read_bytes(), type=State, dec_hook=state_dec_hook)
    assert state.settings is not None and history.peer == state.settings.peer
    told = {(stage.round, stage.stage): stage.reward for stage in history.stages}
    assert told == {(row.round, row.stage): row.reward for row in state.rewards}
    assert [(skip.first, skip.last, skip.cause) for skip in history.skips] == [
        (skip.first, skip.last, skip.cause) for skip in state.skips
    ]


# --- the card ---


def test_a_card_says_what_the_log_says() -> None:
    card = make_card(read_history(NODE), CardSubject("digits", "Qwen/Qwen2.5-0.5B-Instruct"))
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct" and "license" not in header
    state, _ = load_state(NODE / "events")
    assert f"Rounds trained: {len({row.round for row in state.rewards})}, skipped: {state.rounds_skipped} (" in card
    last = state.rewards[-1]
    assert f"| {last.round} | {last.reward:.3f} |" in card and "of kind digits" in card


def test_a_card_names_the_data_set_and_no_path(tmp_path: Path) -> None:
    options = {"data": "q.jsonl", "dataset": "org/sums", "split": "train[:9]", "revision": "v1", "digest": "d" * 64}
    card = make_card(history_of(trained(0)), CardSubject("file", data=describe_training_data("file", options, ())))
    assert yaml.safe_load(card.split("---\n")[1])["datasets"] == ["org/sums"]
    assert "(https://huggingface.co/datasets/org/sums)" in card and "- revision: v1" in card
    local = describe_training_data("file", {"data": "/srv/x/q.jsonl", "dataset": "../someone/private copy"}, ())
    card = make_card(history_of(trained(0)), CardSubject("file", data=local))
    assert "- name: private copy" in card and "someone" not in card and "datasets" not in card
    (tmp_path / "org" / "sums").mkdir(parents=True)
    assert describe_training_data("file", options, (), tmp_path).dataset == ""
    digits = make_card(
        history_of(trained(0)), CardSubject("digits", data=describe_training_data("digits", {}, ("a_sort",)))
    )
    assert "- tasks: a\\_sort" in digits
    assert describe_training_data("gsm8k", {"data": "hub"}, ()).dataset == GSM8K.repo == HUB_DATA["gsm8k"]
    assert HUB_DATA["math-hard"] == DAPO.repo


@pytest.mark.parametrize("repo", ["", "someone/name", 'a/b")\nimport os#'])
@pytest.mark.parametrize("adapters", [False, True])
def test_the_usage_is_a_program_whatever_the_repository(repo: str, adapters: bool) -> None:
    card = make_card(history_of(trained(0)), CardSubject(repo=repo, adapters=adapters))
    program = card.split("```python\n")[1].split("```")[0]
    compile(program, "card", "exec")
    assert "import os" not in program and (f'"{repo}"' in program) == (repo == "someone/name")


def test_the_path_of_a_model_is_nobodys_business() -> None:
    card = make_card(history_of(trained(0)), CardSubject(base="/srv/someone/models/tiny"))
    assert "tiny" in card and "someone/models" not in card and "base_model" not in card


@given(st.text(max_size=300))
def test_no_name_adds_markup_or_leaves_its_line(text: str) -> None:
    escaped = escape(text)
    assert len(escaped.splitlines()) <= 1
    unescaped = escaped
    for special in "\\`*_{}[]<>()#.|~&$:@":
        unescaped = unescaped.replace(f"\\{special}", "")
    assert not set(unescaped) & set("\\`*_{}[]<>()#.|~&$:@")


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_name_reaches_the_header(name: str, base: str) -> None:
    history = msgspec.structs.replace(history_of(trained(0)), name=name)
    card = make_card(history, CardSubject(kind=name, base=base))
    header = yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))
    assert set(header) <= {"library_name", "pipeline_tag", "base_model", "tags"} and len(header["tags"]) == 7


# --- lines about pushes ---


@pytest.mark.parametrize(
    ("event", "level", "word"),
    [
        (ModelPushed(3, "a/b", "c0ffee", "url"), "info", "pushed to a/b, revision c0ffee"),
        (ModelPushed(3, "a/b", error="HTTP 401"), "warning", "not pushed to a/b: HTTP 401"),
    ],
)
def test_a_push_is_told_in_a_line_although_nothing_follows_from_it(event: ModelPushed, level: str, word: str) -> None:
    state = State(settings=SETTINGS)
    line = make_event_line(AppliedEvent(Envelope(1, 1.0, event), state, state, ()))
    assert line.level == level and word in line.message


def measured(task: str, *weights: float) -> list[tuple[int, int, tuple[Skill, ...]]]:
    """A measurement a round, from round 10 on; weight 0: fallen, and drawn as ever."""
    return [
        (10 + place, 0, (Skill(task, 0.5, 32, 0.8, weight != 1, weight or 1.0),))
        for place, weight in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("weights", "fallen", "more"),
    [
        ((1, 1), None, None),
        ((1, 2, 3), 11, 11),
        ((2, 1, 2), 12, 12),
        ((2, 2, 1), None, None),
        ((0, 0, 2), 10, 12),
        ((2, 0, 0), 10, None),
    ],
)
def test_since_when_is_the_begin_of_the_last_unbroken_run(
    weights: tuple[float, ...], fallen: int | None, more: int | None
) -> None:
    (curve,) = curves_of(measured("sort", *weights))
    assert (curve.fallen_since, curve.drawn_more_since) == (fallen, more)
    assert [(point.round, point.weight > 1) for point in curve.points] == [
        (10 + place, weight > 1) for place, weight in enumerate(weights)
    ]


def test_the_summary_begins_with_what_is_drawn_more() -> None:
    rows = [*measured("a", 1), *measured("b", 0), *measured("c", 1, 2.25)]
    curves = curves_of(rows)
    assert skills_summary(curves, 2) == ("c 0.50 (drawn 2.2 times as often, since round 11), a 0.50, 1 more")
    assert "b 0.50 (fallen since round 10)" in skills_summary(curves, 3)
    assert skills_summary((), 3) == ""
