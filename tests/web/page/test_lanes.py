"""The page of the timeline over nodes: lanes, arrows, a scrubber, and nodes that go on meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from swarmd.core import events
from swarmd.observe.node_log import NodeLog, RoundRange
from swarmd.uvicorn_server import HttpServer, bind
from swarmd.web.guard import AccessRules
from swarmd.web.lanes import LanesSource, make_lanes_app, rounds_kept
from tests.observe.scripted import ScriptedSwarm
from tests.web.page.conftest import Watched
from tests.web.serving import LOCAL, LONG_S

Tab = Callable[[str], Watched]
TOKEN = "t" * 40


@contextmanager
def serving(swarm: ScriptedSwarm, token: str = "") -> Iterator[str]:
    """A server of the page; gives its URL."""
    places = swarm.write()
    logs = [
        NodeLog(number, place / "events", RoundRange(), rounds_kept(len(places))) for number, place in enumerate(places)
    ]
    endpoint = bind(LOCAL)
    ready = threading.Event()
    server = HttpServer(make_lanes_app(LanesSource(logs), AccessRules(LOCAL, token)), ready.set, lambda: None)
    thread = threading.Thread(target=server.run, args=([endpoint],), daemon=True)
    thread.start()
    assert ready.wait(LONG_S)
    try:
        yield f"http://127.0.0.1:{endpoint.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LONG_S)
        for log in logs:
            log.close()


@pytest.fixture
def swarm(tmp_path: Path) -> ScriptedSwarm:
    """Three nodes of four rounds, with clocks five minutes apart; node 2 refuses what node 1 sent of round 2."""
    made = ScriptedSwarm(tmp_path, (0.0, 300.0, -300.0))
    for round_ in range(3):
        made.play(round_)
    made.log(2, events.RecordsRejected("12D3KooW" + f"{1:044}", "oversized"), after_s=0.9)
    made.play(3, gathered={2: [0]})
    return made


def test_lanes_and_arrows_are_those_of_the_round_on_the_scrubber(swarm: ScriptedSwarm, tab: Tab) -> None:
    with serving(swarm) as url:
        watched = tab(url)
        page = watched.page
        page.goto("/")
        expect(page.locator("#at")).to_have_text("3 of 3")
        expect(page.locator("#clocks")).to_contain_text("node-1's clock is 300.0 s")
        expect(page.locator("#lanes line.lane").first).to_be_attached()
        expect(page.locator(".mark[data-event=stage_trained]")).to_have_count(3)
        expect(page.locator(".arrow[data-kind=rollouts]")).to_have_count(0)  # they are fetched in the next round
        page.locator("#round").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#at")).to_have_text("2 of 3")
        expect(page.locator("#follow")).not_to_be_checked()
        lost = page.locator(".arrow[data-lost=bad]")
        expect(lost).to_have_count(1)
        expect(lost.locator("title")).to_have_text("node-1 to node-2: refused: oversized")
        expect(page.locator(".arrow[data-verdict=used]")).to_have_count(5)
        page.locator(".mark[data-event=stage_trained]").nth(1).click()
        expect(page.locator("#picked")).to_contain_text("node-1 trained round 2 stage 0 in 4.0 s")
        assert watched.complaints == []


def test_kinds_of_arrows_can_be_left_out(swarm: ScriptedSwarm, tab: Tab) -> None:
    with serving(swarm) as url:
        page = tab(url).page
        page.goto("/")
        expect(page.locator(".arrow[data-kind=clock]")).to_have_count(2)
        page.get_by_role("button", name="Clock").click()
        expect(page.locator(".arrow[data-kind=clock]")).to_have_count(0)
        expect(page.locator(".arrow[data-kind=report]")).to_have_count(2)


def test_the_page_follows_nodes_that_go_on(swarm: ScriptedSwarm, tab: Tab) -> None:
    with serving(swarm) as url:
        page = tab(url).page
        page.goto("/")
        expect(page.locator("#at")).to_have_text("3 of 3")
        swarm.play(4)
        swarm.write()
        expect(page.locator("#at")).to_have_text("4 of 4")
        expect(page.locator("#events li").first).to_contain_text("opened round 4 stage 0")


def test_answers_need_the_token_and_unknown_rounds_are_refused(swarm: ScriptedSwarm) -> None:
    with serving(swarm, TOKEN) as url, httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/api/v1/timeline").status_code == 401
        assert client.get("/").status_code == 200
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        view = client.get("/api/v1/timeline").json()
        assert (view["swarm"], view["first"], view["last"]) == ("s", 0, 3)
        told = client.get("/api/v1/timeline/rounds/2").json()["events"]
        assert [each["time"] for each in told] == sorted(each["time"] for each in told)
        assert client.get("/api/v1/timeline/rounds/9").status_code == 404
