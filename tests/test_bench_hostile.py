"""The benchmark `hostile`: rounds are counted in parts, outcomes are kept, and rows say where a goal is missed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import hostile, hostile_cost
from bench.hostile import run
from bench.hostile_rows import ATTACKS, COST, CUT_OFF, ELSEWHERE, NAMES, Figures, Outcome, make_rows
from bench.place import Unavailable
from bench.quiet_swarm import cpu_s, passed_bytes
from bench.table import Result, to_markdown
from tests.hostile.actors import ACTORS
from tests.hostile.watch import Closed, rounds_in

GOOD: Figures = {
    "attacked": [29.0, 29.5],
    "quiet": [30.0, 30.0],
    "credited": [60.0],
    "due": [60.0],
    "worker peak": [20.0, 30.0, 10.0],
    "worker after": [5.0, 6.0, 7.0],
    "p2pd peak": [50.0, 60.0, 70.0],
    "p2pd after": [5.0, 6.0, 7.0],
    "exits": [0.0],
    "exit codes": [0.0],
    "skipped": [0.0],
    "node": [],
}


def missed(what: str, figures: Figures) -> list[str]:
    """Rows whose goal these figures miss."""
    return [row.what.strip() for row in make_rows([Outcome(what, 3, 40.0, figures)]) if row.met is False]


def test_rounds_are_counted_with_their_parts() -> None:
    closed = [Closed(number, 10.0 * number, frozenset()) for number in range(5)]
    assert rounds_in(closed, [(10.0, 30.0)]) == 2.0
    assert rounds_in(closed, [(5.0, 10.0), (32.0, 35.0)]) == pytest.approx(0.8)
    assert rounds_in(closed, [(41.0, 50.0)]) == 0.0, "nothing was closed after it began"


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({"attacked": [20.0, 30.0]}, "all: all of these, poison, halves and other floods: rounds"),
        ({"credited": [59.0]}, "honest reports credited"),
        ({"credited": [0.0], "due": [0.0]}, "honest reports credited"),
        ({"worker peak": [20.0, 65.0, 10.0]}, "network worker above its quiet size"),
        ({"worker after": [20.0, 33.0, 10.0]}, "network worker above its quiet size, a minute after"),
        ({"node": [800.0, 1600.0]}, "all of the node"),
        ({"exits": [0.0, 1.0]}, "workers and nodes that ended, rounds skipped"),
        ({"exit codes": [0.0, -9.0]}, "workers and nodes that ended, rounds skipped"),
        ({}, None),
    ],
)
def test_a_goal_is_missed_where_one_node_misses_it(changed: Figures, row: str | None) -> None:
    assert missed("all", GOOD | changed) == ([row] if row else [])


def test_cost_is_judged_beside_another_checkout_only() -> None:
    own: Figures = {"%": [9.0, 9.5], "KiB": [110.0, 111.0], "/min": [26.0, 26.0]}
    assert not any(row.goal for row in make_rows([Outcome(COST, 3, 40.0, own)]))
    theirs: Figures = {"% against": [8.0, 8.0], "KiB against": [90.0, 100.0], "/min against": [26.0, 26.0]}
    assert missed(COST, own | theirs) == ["bytes through p2pd of a node in a round"]


def test_who_says_nothing_for_longer_than_a_stage_misses_the_goal() -> None:
    assert missed(CUT_OFF, {"seconds": [60.0], "stages": [1.0]}) == []
    assert missed(CUT_OFF, {"seconds": [61.0], "stages": [1.02]}) == ["until a node that is cut off says so"]


def test_outcomes_that_are_known_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(directory: Path, what: str, seconds: float, nodes: int, *rest: object) -> Outcome:
        measured.append(what)
        return Outcome(what, nodes, seconds, GOOD)

    monkeypatch.setattr(hostile, "measure", measure)
    told: list[Outcome] = []
    known = [Outcome("1", 3, 40.0, GOOD), Outcome("4", 3, 90.0, GOOD)]
    rows = list(run(tmp_path, ("1", "4"), 40.0, 3, tell=told.append, known=known))
    assert measured == ["4"] == [each.what for each in told], "the other one was of another length"
    assert [row.what[0] for row in rows if row.theirs] == ["1", "4"]
    assert all(command in to_markdown([Result("hostile", "", tuple(rows))]) for command in ELSEWHERE.values())


def test_a_cost_that_was_compared_with_nothing_is_measured_again_beside_another_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: Figures = {"%": [1.0], "KiB": [1.0], "/min": [1.0]}
    both = alone | {f"{name} against": values for name, values in alone.items()}
    monkeypatch.setattr(hostile, "measure", lambda directory, what, seconds, nodes, *_: Outcome(what, 3, 40.0, both))
    told: list[Outcome] = []
    for known in ([Outcome(COST, 3, 40.0, alone)], [Outcome(COST, 3, 40.0, both)]):
        list(run(tmp_path, (COST,), 40.0, 3, against=tmp_path, tell=told.append, known=known))
    assert [each.figures for each in told] == [both]


def test_a_swarm_of_another_checkout_is_told_to_end_its_nodes(tmp_path: Path) -> None:
    """To be killed, it would leave them behind."""
    script = (
        "import signal, sys, threading\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "try:\n    print('on', flush=True)\n    threading.Event().wait()\n"
        "finally:\n    Path(sys.argv[1]).touch()\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "ended")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == b"on\n"
    hostile_cost.end(process)
    assert (tmp_path / "ended").exists()


def test_an_unknown_attack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no attack '77'"):
        list(run(tmp_path, ("77",)))


def test_each_attack_has_actors_and_a_name() -> None:
    assert {actor for actors in ATTACKS.values() for actor in actors} == ACTORS.keys()
    assert ATTACKS.keys() == NAMES.keys()


def test_what_a_process_reads_and_writes_is_counted(tmp_path: Path) -> None:
    before = passed_bytes(os.getpid())
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    assert passed_bytes(os.getpid()) - before >= 1 << 20
    assert cpu_s(os.getpid()) > 0
