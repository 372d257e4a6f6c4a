"""All views of one log say the same: the page's API, `status`, `explain`, `report` and `leaderboard`."""

import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from swarmd.cli.explain import has_daemon, latest_stories, story_of_round
from swarmd.cli.status import read_status
from swarmd.core.state import State
from swarmd.eventlog.fold import load_state
from swarmd.observe.panel import panel_of
from swarmd.observe.status import Status
from swarmd.observe.story import Story, highest_known_round
from swarmd.observe.words import describe_reached_stage
from swarmd.paths import NodeDirectory
from swarmd.results.card import describe_accuracy, describe_accuracy_change
from swarmd.results.history import TrainingHistory, read_history
from swarmd.web.moments import to_json_value
from tests.daemon.node import fake_node
from tests.golden.test_golden import LOGS
from tests.observe import printing
from tests.web.serving import FOLLOWER, Served, copy_of, served, until

CLOSE = 1e-9


class Views(NamedTuple):
    """What each says of one node."""

    state: State
    status: Status
    report: TrainingHistory
    stories: dict[int, Story]
    swarm: dict[str, Any]
    stages: dict[str, Any]
    shown_status: dict[str, Any]
    shown_stories: dict[int, dict[str, Any]]
    training: dict[str, Any]
    recipe: dict[str, Any]
    curves: dict[str, Any]

    @property
    def own(self) -> dict[str, Any]:
        """The node's own row on the page."""
        return next(row for row in self.swarm["peers"] if row["id"] == self.status.peer)


def look(directory: Path, server: Served) -> Views:
    state, _ = load_state(directory / "events")
    now = 0.0 if has_daemon(directory) else None
    rounds = range(max(0, highest_known_round(state)) + 1)
    return Views(
        state,
        read_status(NodeDirectory(directory)),
        read_history(directory),
        {round: story_of_round(directory, round, now)[0] for round in rounds},
        server.json("/api/v1/swarm"),
        server.json("/api/v1/node/stages"),
        server.json("/api/v1/node/status"),
        {round: server.json(f"/api/v1/node/rounds/{round}") for round in (*rounds, len(rounds))},
        server.json("/api/v1/node/training"),
        server.json("/api/v1/node/recipe"),
        server.json("/api/v1/swarm/curves"),
    )


def printed(status: Status) -> str:
    """What `swarmd status` shows."""
    return printing.printed(panel_of(status), 400)


@pytest.fixture(scope="module", params=LOGS, ids=lambda node: node.name)
def views(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Views]:
    directory = copy_of(request.param, tmp_path_factory.mktemp("node"))
    with served(directory) as server:
        yield look(directory, server)


def test_a_stage_is_done_on_the_page_where_the_report_has_it_and_else_is_not(views: Views) -> None:
    reported = {(row.round, row.stage): (row.reward, row.held_out) for row in views.report.stages}
    rows = views.stages["stages"]
    assert bool(rows) == bool(reported) or len(rows) == 1
    for row in rows:
        place = (row["round"], row["stage"])
        assert (row["reward"], row["held_out"]) == reported.get(place, (None, None))
        assert row["outcome"] == ("done" if place in reported else "abandoned") or row is rows[-1], row


def test_a_round_is_explained_as_trained_where_the_report_has_it(views: Views) -> None:
    rounds = {row.round for row in views.report.rounds if row.round >= first_round(views)}
    told = {round for round, story in views.stories.items() if story.outcome == "trained"}
    assert told <= rounds
    for round in rounds - told:
        assert views.stories[round].outcome in ("open", "unknown"), "of several stages, or at the log's beginning"
    for row in views.report.rounds:
        if row.stages == 1 and row.round in told:
            assert f"{row.reward:.3f}" in views.stories[row.round].verdict


def test_the_page_tells_each_round_as_explain_does(views: Views) -> None:
    for round, story in views.stories.items():
        assert views.shown_stories[round] == to_json_value(story)
    assert views.shown_stories[len(views.stories)]["outcome"] == "ahead"


def test_training_is_what_the_report_has(views: Views) -> None:
    shown, report = views.training, views.report
    fields = ("round", "stage", "at", "reward", "held_out", "steps", "tokens", "seconds", "peer_groups", "refused")
    assert [tuple(row[name] for name in fields) for row in shown["stages"]] == [
        tuple(getattr(row, name) for name in fields) for row in report.stages
    ]
    assert (shown["total"], shown["held_out_before"]) == (len(report.stages), report.held_out_before)
    recipe = views.recipe
    assert (recipe["swarm"], recipe["model"], recipe["device"], recipe["parameters"]) == (
        report.swarm,
        report.model,
        report.device,
        report.parameters,
    )
    shown_training = views.shown_status["training"]
    assert (shown_training["model"], shown_training["device"]) in ((recipe["model"], recipe["device"]), ("", ""))


def first_round(views: Views) -> int:
    """Rounds before the log's first event are known to none of the views."""
    return min((row.round for row in views.report.rounds), default=0)


def test_where_held_out_accuracy_came_from_is_said_alike(views: Views) -> None:
    last = next((row.held_out for row in reversed(views.status.rewards) if row.held_out is not None), None)
    if last is None:
        return
    told = describe_accuracy_change(views.status.first_accuracy, last)
    if views.report.from_seq == 0 or views.report.held_out_before is not None:
        assert describe_accuracy(views.report) == told
    assert told in " ".join(printed(views.status).split())


def test_a_round_ahead_is_told_with_where_the_status_has_the_swarm(views: Views) -> None:
    if views.status.round.round >= 0:
        round_ = views.status.round
        where = describe_reached_stage(round_.round, round_.stage, round_.final)
        assert where in views.shown_stories[len(views.stories)]["verdict"]
        assert where in " ".join(printed(views.status).replace("│", "").split())


def test_a_node_that_has_ended_tells_nothing_as_present(views: Views) -> None:
    """Golden logs have no daemon, and half of them no orderly stop."""
    status, state = views.status, views.state
    ended = "stopped" if state.chart in ("stopped", "failed") else "dead"
    assert status.process.state == views.shown_status["process"]["state"] == views.swarm["process"] == ended
    assert status.round.state == views.shown_status["round"]["state"] == ("dead" if ended == "dead" else state.chart)
    assert (status.round.deadline_in_s, status.round.overdue_s, status.round.waits) == (None, 0.0, ())
    assert status.log.last_at == views.shown_status["log"]["last_at"] == views.swarm["at"]
    layers = (status.process, status.network, status.training, status.round, status.chain, status.coordinator)
    assert {status.at - layer.age_s for layer in layers if layer} == {status.log.last_at}
    assert any("This node" in note and "was then" in note for note in views.swarm["notes"])
    assert "deadline in" not in printed(status)


def test_every_curve_has_something_to_draw(views: Views) -> None:
    assert all(curve["points"] for curve in views.curves["curves"])
    assert {curve["id"] for curve in views.curves["curves"]} <= {row["id"] for row in views.swarm["peers"]}


def test_skips_are_the_same_everywhere(views: Views) -> None:
    skips = [(skip.first, skip.last, skip.cause) for skip in views.report.skips]
    assert [(row["first"], row["last"], row["cause"]) for row in views.stages["skips"]] == skips
    status = [(skip.first, skip.last, skip.cause) for skip in views.status.round.skips]
    assert status == skips[len(skips) - len(status) :]
    if views.report.from_seq == 0:
        assert views.status.round.skipped == views.report.rounds_skipped
    trained = {row.round for row in views.report.rounds}
    for first, last, cause in skips:
        for round in range(first, last + 1):
            story = views.stories[round]
            assert story.outcome in (("trained",) if round in trained else ("skipped", "unknown")), story
            assert story.outcome != "skipped" or f"cause {cause}" in story.verdict


def test_rewards_are_the_same_everywhere(views: Views) -> None:
    stages = [(row.round, row.stage, row.reward) for row in views.report.stages]
    status = [(row.round, row.stage, row.reward) for row in views.status.rewards]
    assert status == stages[-len(status) :] if status else not stages
    if views.report.from_seq == 0:
        assert views.status.reward_total == pytest.approx(sum(reward for *_, reward in stages), abs=CLOSE)
    if views.state.chain is None and stages:
        if views.state.coordination is None:  # a coordinator counts what was reported in time, of itself too
            assert views.own["reward"] == pytest.approx(views.status.reward_total, abs=CLOSE)
        assert (views.own["last_round"], views.own["last_stage"]) == stages[-1][:2]
        assert views.own["last_reward"] == pytest.approx(stages[-1][2], abs=CLOSE)


def test_no_reward_is_shown_that_is_not_known(views: Views) -> None:
    for row in views.swarm["peers"]:
        assert row["known"] or row["last_reward"] is None
        assert row["last_round"] >= 0 or row["last_reward"] is None


def test_where_the_swarm_is_is_the_same_everywhere(views: Views) -> None:
    status, swarm = views.status.round, views.swarm
    assert (status.round, status.stage) == (swarm["round"], swarm["stage"])
    shown = views.shown_status["round"]
    assert (shown["round"], shown["stage"], shown["state"]) == (status.round, status.stage, status.state)
    assert (shown["healthy"], views.shown_status["healthy"]) == (status.healthy, views.status.healthy)
    highest = max((round for round, story in views.stories.items() if story.outcome != "ahead"), default=-1)
    assert highest <= max(status.round, highest_known_round(views.state))


def test_the_leaderboard_is_what_the_page_shows_less_what_the_open_round_adds(views: Views) -> None:
    coordination = views.state.coordination
    if coordination is None or not coordination.standings:
        return
    open_: dict[str, float] = defaultdict(float)
    for report in (*coordination.round_reports, *coordination.reports):
        open_[report.peer] += report.reward
    shown = {row["id"]: row for row in views.swarm["peers"]}
    for standing in coordination.standings:
        assert shown[standing.peer]["reward"] == pytest.approx(standing.reward + open_[standing.peer], abs=CLOSE)


def test_no_view_takes_a_killed_node_for_a_running_one(tmp_path: Path) -> None:
    """While it runs, all say that it trains; after SIGKILL, none does."""
    with fake_node(tmp_path) as node, served(make_events(node.paths.root)) as server:
        node.start(trainer="busy")
        node.until(lambda: node.status().get("training", {}).get("state") == "busy")
        live = look(node.paths.root, server)
        assert "under way: this node is training" in live.stories[0].verdict
        assert live.status.round.state == live.shown_status["round"]["state"] == "round.training"
        node.signal(signal.SIGKILL)
        node.wait()
        until(lambda: server.json("/api/v1/node/status")["source"] == "log")  # an answer is given again for a moment
        dead = look(node.paths.root, server)
        assert "process ended without an orderly stop: it was training" in dead.stories[0].verdict
        assert latest_stories(node.paths.root) == [dead.stories[0]]
        for said in (msgspec.to_builtins(dead.status), dead.shown_status):
            assert (said["process"]["state"], said["healthy"]) == ("dead", False)
            assert not any(said[layer]["healthy"] for layer in ("network", "training", "round"))
            assert said["round"]["reason"] == "the daemon does not run"
        assert "dead" in printed(dead.status)
        assert dead.swarm["process"] == "dead" and live.swarm["process"] == "running"


def test_a_restored_node_was_never_started_here_in_any_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy_of(FOLLOWER, tmp_path) / "restored.json").write_text("{}")
    monkeypatch.chdir(tmp_path.parent)
    directory = Path(tmp_path.name)
    with served(directory) as server:
        views = look(directory, server)
    for status in (msgspec.to_builtins(views.status), views.shown_status):
        assert status["process"]["state"] == views.swarm["process"] == "never started"
        assert status["process"]["reason"] == "restored from a backup, and never started here"
        assert status["round"]["state"] == "stopped" and not status["round"]["waits"]
        assert status["log"]["directory"] == str(tmp_path / "events"), "whoever asks may be elsewhere"
    assert any("never started here" in note for note in views.swarm["notes"])


def make_events(root: Path) -> Path:
    """A data directory that a server can be started on before the node is."""
    (root / "events").mkdir(parents=True)
    return root
