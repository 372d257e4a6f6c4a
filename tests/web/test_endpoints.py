"""Every address, on every kind of log: its shape, what it says, and what a fuzzer makes of the OpenAPI document."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import settings as effort
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from swarmd.core.events import Event, MemberLeft, MemberSeen, ReportSeen
from swarmd.errors import NotFoundError
from swarmd.eventlog.fold import commits_from, fold_commits, load_state, oldest_base
from swarmd.observe.describe import WORDS
from swarmd.observe.status import Status
from swarmd.web import endpoints as work_module
from swarmd.web import shapes
from swarmd.web.endpoints import WAITING_MAX, WAITING_OF_ONE_MAX, ServerBusy, WorkPool, request_origin, restart_on_error
from swarmd.web.stages import LANES, TYPES
from tests.core.story import Story, announced, coordinator_settings, settings, trained
from tests.eventlog.making import NODE
from tests.web.serving import CHAIN, COORDINATOR, FOLLOWER, Served, copy_of, empty, served, told

KINDS = ("empty", "coordinator", "follower", "chain")
GOLDEN_LOGS = {"coordinator": COORDINATOR, "follower": FOLLOWER, "chain": CHAIN}
SHAPES: dict[str, Any] = {
    "/api/v1/here": shapes.PageSource,
    "/api/v1/swarm": shapes.SwarmView,
    "/api/v1/swarm?limit=1": shapes.SwarmView,
    "/api/v1/swarm/peers": shapes.PeerPage,
    "/api/v1/swarm/peers?first=1&count=1&find=n": shapes.PeerPage,
    "/api/v1/swarm/curves": shapes.Curves,
    "/api/v1/swarm/gossip": shapes.Gossip,
    "/api/v1/node/status": Status,
    "/api/v1/node/events?first=-10&count=5": shapes.EventPage,
    "/api/v1/node/overview?buckets=16": shapes.Overview,
    "/api/v1/node/charts": shapes.ChartsView,
    "/api/v1/node/stages": shapes.StagesView,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """A server for each kind of log."""
    root = tmp_path_factory.mktemp("logs")
    places = {kind: copy_of(node, root / kind) for kind, node in GOLDEN_LOGS.items()}
    places["empty"] = empty(root / "empty")
    servers = [(kind, served(place)) for kind, place in places.items()]
    running = {kind: server.__enter__() for kind, server in servers}
    yield running
    for _, server in servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", SHAPES)
def test_an_address_answers_in_its_shape(logs: dict[str, Served], kind: str, path: str) -> None:
    answer = logs[kind].get(path)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=SHAPES[path])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_a_log_are_what_the_fold_gives(logs: dict[str, Served], kind: str) -> None:
    if kind == "empty":
        assert logs[kind].json("/api/v1/node/moments/0", 404)["detail"] == "not-found"
        return
    events = GOLDEN_LOGS[kind] / "events"
    for applied in islice(fold_commits(commits_from(events, oldest_base(events))), None, None, 5):
        answer = logs[kind].get(f"/api/v1/node/moments/{applied.seq}")
        moment = msgspec.json.decode(answer.content, type=shapes.Moment)
        assert moment.event.seq == applied.seq
        assert moment.charts["round"] == applied.after.chart
        assert moment.before["round"] == applied.before.chart
        assert [command.id for command in moment.commands] == [command.id for command in applied.commands]
        assert [command.id for command in moment.pending] == [command.id for command in applied.after.pending]
        assert [name for name, _ in moment.deadlines] == [deadline.name for deadline in applied.after.deadlines]


def test_events_are_given_from_either_end(logs: dict[str, Served]) -> None:
    page = logs["coordinator"].json("/api/v1/node/events?first=10&count=3")
    assert [row["seq"] for row in page["events"]] == [10, 11, 12]
    end = page["end"]
    last = logs["coordinator"].json("/api/v1/node/events?first=-2&count=100")
    assert [row["seq"] for row in last["events"]] == [end - 2, end - 1]
    assert logs["coordinator"].json(f"/api/v1/node/events?first={end}")["events"] == []
    assert last["events"][-1]["text"].startswith("node stopped")


def test_a_followers_log_says_that_it_does_not_know_others_rewards(logs: dict[str, Served]) -> None:
    view = logs["follower"].json("/api/v1/swarm")
    known = [row for row in view["peers"] if row["known"]]
    state, _ = load_state(FOLLOWER / "events")
    assert state.settings is not None and [row["name"] for row in known] == [state.settings.name]
    assert len(view["peers"]) > 1
    assert "not their rewards" in view["notes"][0]
    assert known[0]["reward"] == pytest.approx(state.reward_total)


def test_a_chains_rewards_are_those_of_the_chain(logs: dict[str, Served]) -> None:
    from swarmd.cli.leaderboard import board_of_log

    board = board_of_log(CHAIN, "reward", 0)
    assert board is not None
    view = logs["chain"].json("/api/v1/swarm")
    rows = {row["id"]: row for row in view["peers"] if row["known"]}
    for standing in board.standings:
        row = rows[standing.peer]
        assert row["reward"] == pytest.approx(standing.reward / 1000)
        assert (row["rounds"], row["votes"]) == (standing.rounds, standing.wins)
    assert view["chain"]["contract"] == board.contract
    assert {own[1] for own in view["chain"]["submissions"]} <= {"confirmed", "included", "sent", "intended", "refused"}


def test_an_overview_counts_every_event_once(logs: dict[str, Served]) -> None:
    for kind in ("coordinator", "follower", "chain"):
        view = msgspec.json.decode(logs[kind].get("/api/v1/node/overview?buckets=7").content, type=shapes.Overview)
        assert sum(map(sum, view.counts)) == view.end - view.begin
        assert len(view.firsts) == 8 and view.firsts[0] == view.begin and view.firsts[-1] == view.end
        assert [mark.round for mark in view.rounds] == sorted({mark.round for mark in view.rounds})
        assert set(view.types.values()) <= set(view.lanes)
    part = logs["chain"].json(f"/api/v1/node/overview?since={view.since + 5}&until={view.since + 60}&buckets=3")
    assert 0 < sum(map(sum, part["counts"])) < view.end


def test_the_status_of_a_node_without_a_daemon_comes_from_its_log(logs: dict[str, Served]) -> None:
    status = logs["follower"].json("/api/v1/node/status")
    assert (status["source"], status["process"]["state"]) == ("log", "stopped")
    assert logs["follower"].json("/livez", 503)["ok"] is False
    assert logs["follower"].json("/readyz", 503)["reasons"]
    assert logs["follower"].json("/productivez", 503)["ok"] is False


# --- the rules of the leaderboard ---


def rows_of(directory: Path) -> dict[str, shapes.PeerRow]:
    with served(directory) as server:
        view = msgspec.json.decode(server.get("/api/v1/swarm").content, type=shapes.SwarmView)
        return {row.id: row for row in view.peers}


def test_stages_of_a_round_add_up(tmp_path: Path) -> None:
    story = Story.joined(settings(peer=NODE, stages=2))
    for place in ((0, 0), (0, 1), (1, 0)):
        story.at += 1
        story.tell(announced(*place))
        story.tell(trained(*place, reward=0.25))
    with served(told(tmp_path, story.recorded)) as server:
        (row,) = server.json("/api/v1/swarm")["peers"]
        assert (row["reward"], row["last_reward"], row["rounds"]) == (0.75, 0.25, 2)
        assert (row["last_round"], row["last_stage"]) == (1, 0)
        (curve,) = server.json("/api/v1/swarm/curves")["curves"]
        assert [point[2] for point in curve["points"]] == [0.25, 0.25, 0.25]


def test_a_report_that_comes_again_counts_once_and_one_who_left_is_marked(tmp_path: Path) -> None:
    story = Story.joined(coordinator_settings(min_peers=3))
    story.tell(MemberSeen("a", "Anna"), MemberSeen("b", "Bert"))
    story.tell(ReportSeen("a", 0, 0, 0.5), ReportSeen("a", 0, 0, 0.5), MemberLeft("b"))
    rows = rows_of(told(tmp_path, story.recorded))
    assert len(rows["a"].name) and rows["b"].present is False and rows["a"].present is True
    with served(tmp_path) as server:
        curves = server.json("/api/v1/swarm/curves?peer=a&peer=nobody")["curves"]
        assert [(curve["id"], len(curve["points"])) for curve in curves] == [("a", 1)]


def test_pages_of_peers_are_the_whole_leaderboard(tmp_path: Path) -> None:
    story = Story.joined(coordinator_settings(min_peers=100))
    story.tell(*[MemberSeen(f"peer{number:03d}", "") for number in range(30)])
    with served(told(tmp_path, story.recorded)) as server:
        whole = server.json("/api/v1/swarm")["peers"]
        pages = [server.json(f"/api/v1/swarm/peers?first={first}&count=7") for first in range(0, 36, 7)]
        assert [row for page in pages for row in page["peers"]] == whole
        assert {(page["total"], page["found"]) for page in pages} == {(31, 31)}


def test_peers_are_found_by_part_of_a_name_or_id_those_called_so_first(tmp_path: Path) -> None:
    story = Story.joined(coordinator_settings(min_peers=100))
    members = {"b-otter-1": "Calm", "c": "Otterly Calm", "d": "Otter", "e": "Newt"}
    story.tell(*[MemberSeen(peer, name) for peer, name in members.items()])
    with served(told(tmp_path, story.recorded)) as server:

        def found(query: str) -> tuple[int, list[str]]:
            page = server.json(f"/api/v1/swarm/peers?{query}")
            return page["found"], [row["id"] for row in page["peers"]]

        assert found("find=oTTer") == (3, ["d", "b-otter-1", "c"])
        assert found("find=otter&first=1&count=1") == (3, ["b-otter-1"])
        assert found("find=calm") == (2, ["b-otter-1", "c"])
        assert found("find=nobody") == (0, [])
        ranks = {row["id"]: row["rank"] for row in server.json("/api/v1/swarm")["peers"]}
        page = server.json("/api/v1/swarm/peers?find=newt")["peers"]
        assert [(row["id"], row["rank"]) for row in page] == [("e", ranks["e"])]


DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
UNWELL = ("/livez", "/readyz", "/productivez")  # say with 503 that the node is not well
EXAMPLES = 12
MEND = "run `python -m swarmd.web.app docs/openapi.json`"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(copy_of(CHAIN, tmp_path_factory.mktemp("openapi"))) as running:
        yield running


def test_the_document_in_docs_is_the_one_that_is_served(server: Served) -> None:
    assert json.loads(DOCUMENT.read_bytes()) == server.json("/api/openapi.json"), MEND


def document() -> Any:
    return json.loads(DOCUMENT.read_bytes())


schema = schemathesis.openapi.from_dict(document()).exclude(path="/api/v1/stream")


@schema.parametrize()
@effort(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_a_fuzzer_finds_no_answer_that_the_document_does_not_know(case: Any, server: Served) -> None:
    response = case.call(base_url=server.url)
    checks = [check for check in CHECKS if check is not not_a_server_error or case.path not in UNWELL]
    case.validate_response(response, checks=checks)
    assert response.status_code < 500 or case.path in UNWELL


def test_every_event_type_has_a_lane_and_routine_never_warns() -> None:
    assert set(TYPES) == {str(kind.__struct_config__.tag) for kind in get_args(Event)}
    assert set(TYPES.values()) == set(LANES)
    assert {kind.level for kind in WORDS.values() if kind.is_routine} <= {"info", "debug"}


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.begun: list[int] = []

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        assert self.over.wait(20)
        if number < 0:
            raise NotFoundError("negative")
        return number


def run(check: Callable[[WorkPool, Held], Awaitable[None]], bounded: bool = True) -> None:
    async def whole() -> None:
        work, held = WorkPool("test", 2, bounded), Held()
        try:
            await check(work, held)
        finally:
            held.over.set()
            work.stop()

    asyncio.run(whole())


def test_the_same_question_is_worked_on_once() -> None:
    async def check(work: WorkPool, held: Held) -> None:
        asked = [asyncio.ensure_future(work.run_call(held, 7)) for _ in range(100)]
        failing = [asyncio.ensure_future(work.run_call(held, -1)) for _ in range(3)]
        await asyncio.sleep(0)
        held.over.set()
        assert await asyncio.gather(*asked) == [7] * 100
        assert [type(each) for each in await asyncio.gather(*failing, return_exceptions=True)] == [NotFoundError] * 3
        assert sorted(held.begun) == [-1, 7]
        assert await work.run_call(held, 7) == 7 and held.begun.count(7) == 2, "later it is another question"

    run(check)


def test_who_leaves_does_not_end_it_for_others() -> None:
    async def check(work: WorkPool, held: Held) -> None:
        leaving, staying = (asyncio.ensure_future(work.run_call(held, 1)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        held.over.set()
        assert await staying == 1

    run(check)


def test_one_address_may_ask_for_so_much_and_all_together_for_more() -> None:
    async def check(work: WorkPool, held: Held) -> None:
        waiting = []

        async def refused(origin: str, number: int) -> bool:
            request_origin.set(origin)
            task = asyncio.ensure_future(work.run_call(held, number))
            waiting.append(task)
            await asyncio.sleep(0)
            return task.done() and isinstance(task.exception(), ServerBusy)

        refusals = [await refused("a", number) for number in range(WAITING_OF_ONE_MAX + 3)]
        assert refusals == [False] * WAITING_OF_ONE_MAX + [True] * 3
        assert not await refused("a", 0), "what is worked on anyhow"
        refusals = [await refused(f"b{number}", 100 + number) for number in range(WAITING_MAX)]
        assert refusals.index(True) == WAITING_MAX - WAITING_OF_ONE_MAX
        held.over.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not await refused("a", 500), "there is room again"
        await waiting[-1]

    run(check)


def test_a_task_that_breaks_is_told_of_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work_module, "RESTART_S", 0.0)
    begun = []

    async def task() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise IndexError("pop from an empty deque")

    asyncio.run(restart_on_error(task))
    assert begun == [0, 1, 2]
    assert caplog.text.count("a task beside the server broke") == 2 and "IndexError" in caplog.text
