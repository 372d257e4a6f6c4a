"""A change of health is told once, with its reason, however many processes stand beside a node; so is what flaps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.observe.metrics import Metrics
from swarmd.observe.status import Status, status_of
from swarmd.web.notifications.health_changes import START_S, HealthChanges, HealthMessage
from swarmd.web.notifications.notifier import HealthNotifier, NotifierState
from tests.observe.test_onchain import STATE as ON_CHAIN
from tests.observe.test_onchain import paying, told
from tests.observe.test_status import LIVE, LOG, NOW, STATE

AFTER_S, QUIET_S, STEP_S = 60.0, 900.0, 5.0
WELL = status_of(STATE, NOW, LOG, LIVE, "1.0")
DEAD = status_of(STATE, NOW, LOG)
STOPPED = status_of(replace(STATE, chart="stopped", stop_reason="the operator asked for it"), NOW, LOG)
FAILED = status_of(replace(STATE, chart="failed", stop_reason="no space", exit_code=73), NOW, LOG)
MUTE = status_of(STATE, NOW, LOG, mute="the daemon does not answer")
ILL = replace(WELL, network=replace(WELL.network, healthy=False, reason="no peer\nand more"))
BOTH = replace(ILL, training=replace(WELL.training, healthy=False, reason="loading the model"))


def watch(
    history: Iterable[tuple[float, Status]], edges: HealthChanges | None = None
) -> list[tuple[float, HealthMessage]]:
    """Live through the history, (seconds, how it is meanwhile) after one another; what was told, and when."""
    edges, now, told = edges or HealthChanges(AFTER_S, QUIET_S), 0.0, []
    for lasts_s, status in history:
        end = now + lasts_s
        while now < end:
            told += [(now, note) for note in edges.look(replace(status, at=now), now)]
            now += STEP_S
    return told


def said(told: list[tuple[float, HealthMessage]]) -> list[tuple[str, bool]]:
    return [(note.layer, note.well) for _, note in told]


def test_a_lasting_trouble_is_told_once_with_its_reason_and_its_end_once() -> None:
    told = watch([(300, WELL), (2000, ILL), (2000, WELL)])
    assert said(told) == [("network", False), ("network", True)]
    (at, ill), (well_at, well) = told
    assert at == 360 and well_at == 2360
    assert ill.text == "alpha: network has not been well for 60 s: no peer"
    assert well.text == "alpha: network is well again after 33 min; it was: no peer"
    assert (ill.node, ill.peer, ill.swarm, ill.at) == ("alpha", "peer-me", "test", at)


@pytest.mark.parametrize(("ill_s", "well_s"), [(10, 10), (5, 50), (120, 120), (55, 200), (400, 400)])
def test_a_flapping_layer_causes_one_message(ill_s: float, well_s: float) -> None:
    flapping = [(ill_s, ILL), (well_s, WELL)] * 40
    told = watch(flapping)
    if ill_s < AFTER_S <= well_s:
        assert told == [], "each trouble is short, and is over before the next"
        return
    assert said(told) == [("network", False)]
    calm = watch([*flapping, (2000, WELL)])
    assert said(calm) == [("network", False), ("network", True)]
    assert calm[1][1].changes >= 20, "and what came and went is summed up"
    assert "it came and went" in calm[1][1].text


def test_what_came_and_went_in_the_quiet_time_is_summed_up() -> None:
    told = watch([(1200, ILL), (100, WELL), (200, ILL), (3000, WELL)])
    assert said(told) == [("network", False), ("network", True), ("network", True)]
    last = told[-1][1]
    assert last.lasted_s == 200 and last.reason == "no peer"


def test_a_daemon_that_died_is_told_and_only_that() -> None:
    told = watch([(300, WELL), (3000, DEAD)])
    assert said(told) == [("process", False)], "its other layers are not well either, of course"
    assert "it was killed or crashed" in told[0][1].text


def test_an_orderly_stop_is_told_once() -> None:
    told = watch([(300, WELL), (90_000, STOPPED)])
    assert said(told) == [("process", False)]
    assert "stopped in order, exit code 0: the operator asked for it" in told[0][1].reason
    assert "exit code 73: no space" in watch([(300, FAILED)])[0][1].reason


def test_a_daemon_that_hangs_is_told() -> None:
    told = watch([(300, WELL), (100, MUTE)])
    assert said(told) == [("process", False)] and "does not answer" in told[0][1].text


def test_an_upgrade_causes_no_message() -> None:
    upgraded = replace(WELL, process=replace(WELL.process, run="r2"))
    assert watch([(300, WELL), (30, STOPPED), (3000, upgraded)]) == []


def test_a_crash_loop_is_told_even_when_every_look_finds_a_daemon() -> None:
    lives = [replace(WELL, process=replace(WELL.process, run=f"r{life}", age_s=5.0)) for life in range(40)]
    told = watch([(20, life) for life in lives])
    assert said(told) == [("process", False)] and "started anew" in told[0][1].text


def test_a_node_of_which_nothing_is_heard_any_more_is_told() -> None:
    edges, told = HealthChanges(AFTER_S, QUIET_S), []
    for now in range(0, 200, 5):
        told += edges.look(replace(WELL, at=min(float(now), 20.0)), float(now))
    (note,) = told
    assert note.layer == "process" and "neither its daemon nor its log says anything" in note.text
    assert watch([(3 * QUIET_S, WELL)], edges)[-1][1].well


def test_a_starting_node_is_not_judged_by_its_layers() -> None:
    young = replace(BOTH, process=replace(BOTH.process, age_s=START_S - 1))
    assert watch([(500, young)]) == []


def test_a_reason_is_short_and_without_secrets() -> None:
    secret = replace(ILL, network=replace(ILL.network, reason="token=hunter2hunter2 " + "x" * 5000))
    note = watch([(100, secret)])[0][1]
    assert "hunter2" not in note.text and len(note.reason) < 500


spells = st.lists(st.tuples(st.sampled_from([5, 20, 55, 60, 100, 300, 850, 905, 1500]), st.booleans()), max_size=16)


@settings(max_examples=40, deadline=None)
@example([(1500, False), (60, True), (100, False), (1500, True)])
@example([(905, False), (60, True)] * 10)
@given(spells)
def test_no_sequence_gives_more_than_is_promised(told_spells: list[tuple[float, bool]]) -> None:
    history = [(lasts_s, WELL if well else ILL) for lasts_s, well in told_spells]
    told = watch(history)
    times = [at for at, _ in told]
    assert all(later - earlier >= QUIET_S for earlier, later in pairwise(times))
    for (_, earlier), (_, later) in pairwise(told):
        assert later.well or earlier.well, "of two notes in a row that it is ill, one would be too much"
    calm = watch([*history, (3 * QUIET_S, WELL)])
    assert not calm or calm[-1][1].well, "in the end everybody knows that it is well"
    ill = watch([*history, (3 * QUIET_S, ILL)])
    assert ill and not ill[-1][1].well, "or that it is not"


def test_an_account_that_will_soon_be_unable_to_pay_is_told_of() -> None:
    able, poor = (replace(WELL, chain=told(ON_CHAIN, paying(rounds)).chain) for rounds in (40.0, 3.0))
    notes = watch([(300, able), (600, poor), (2000, able)])
    assert said(notes) == [("account", False), ("account", True)]
    assert "the account pays for about 3 more rounds: send coins to" in notes[0][1].text


class Beside:
    """The process beside one life of a daemon."""

    def __init__(self, directory: Path, clock: list[float]) -> None:
        self.clock = clock
        self.memory = NotifierState(directory)
        self.notifier = HealthNotifier(HealthChanges(60, 900), [], Metrics(), self.memory, lambda: clock[0])

    def live(self, status: Status, lasts_s: float) -> list[HealthMessage]:
        end = self.clock[0] + lasts_s
        notes: list[HealthMessage] = []
        while self.clock[0] < end:
            notes += self.notifier.look(status)
            self.clock[0] += 5
        return notes


def test_a_crash_loop_is_told_once_by_all_processes_together(tmp_path: Path) -> None:
    clock = [1000.0]
    notes: list[HealthMessage] = []
    for life in range(30):
        beside = Beside(tmp_path / "run", clock)
        running = replace(WELL, process=replace(WELL.process, run=f"r{life}"))
        notes += beside.live(running, 10) + beside.live(DEAD, 10)
        beside.memory.release()
    assert [(note.layer, note.well) for note in notes] == [("process", False)]


def test_the_next_process_tells_that_it_is_well_again(tmp_path: Path) -> None:
    clock = [1000.0]
    first = Beside(tmp_path, clock)
    assert len(first.live(ILL, 1200)) == 1
    first.memory.release()
    second = Beside(tmp_path, clock)
    notes = second.live(WELL, 300)
    assert [(note.layer, note.well, note.lasted_s) for note in notes] == [("network", True, 1200)]


def test_while_one_tells_the_next_looks_on(tmp_path: Path) -> None:
    clock = [1000.0]
    first, second = Beside(tmp_path, clock), Beside(tmp_path, clock)
    assert first.live(DEAD, 30) == []
    assert second.live(DEAD, 300) == [], "the first one holds the word"
    first.memory.release()
    assert len(second.live(DEAD, 300)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b'{"tracks": 7}', b'{"tracks": {"process": {}}}'])
def test_a_memory_that_makes_no_sense_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notify.json").write_bytes(content)
    assert len(Beside(tmp_path, [1000.0]).live(DEAD, 300)) == 1


def test_a_directory_that_cannot_be_written_to_forbids_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(Beside(tmp_path / "file" / "run", [1000.0]).live(DEAD, 300)) == 1
