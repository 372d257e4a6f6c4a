"""The page in a real browser, on a real server and a log that the real core wrote."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from swarmd.core.events import MemberSeen
from tests.web.page.conftest import Served, Watched, played
from tests.web.page.played import HOSTILE, HOSTILE_TEXT, NAMES, NODE, STAGE_S, PlayedNode, peer_id

Tab = Callable[[str], Watched]
GOLDEN = Path(__file__).parents[2] / "golden"
SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def ask(server: Served, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}/api/v1/{path}", timeout=30) as answer:
        return json.load(answer)


def violations(page: Page, **options: Any) -> list[str]:
    """What axe finds."""
    return [
        f"{each['id']}: {part['html'][:200]} {part['failureSummary']}"
        for each in Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
        for part in each["nodes"]
    ]


@pytest.mark.parametrize("path", ["/", "/node"])
def test_a_page_is_quiet_accessible_and_fits(server: Served, tab: Tab, path: str) -> None:
    watched = tab(server.url)
    page = watched.open(path)
    page.evaluate("document.querySelectorAll('main details').forEach(each => each.open = true)")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, runOnly=["color-contrast"]) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate(f"{SETTLED}.then(() => document.documentElement.scrollWidth)") <= 360
    assert violations(page, rules={"color-contrast": {"enabled": False}}) == []
    assert watched.complaints == []


def test_the_theme_is_switched_and_remembered(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_text("Theme: dark")
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.locator("#theme")).to_have_text("Theme: dark")
    assert page.evaluate(ground) != light


def test_what_peers_wrote_stays_text(server: Served, tab: Tab) -> None:
    watched = tab(server.url)
    page = watched.open("/")
    expect(page.locator("#board .name", has_text=HOSTILE)).to_have_count(1)
    words = page.locator("#gossip .words", has_text="<script>").first.text_content()
    assert words is not None and words.startswith(HOSTILE_TEXT[:40])
    page.locator("#search").fill(HOSTILE)
    expect(page.locator("#found")).to_contain_text(HOSTILE)
    page.goto("/node")
    page.locator("#events-scroller .event", has_text=HOSTILE).first.click()
    expect(page.locator(".event-text")).to_contain_text(HOSTILE)
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main script").count() == 0
    assert watched.complaints == []


def test_a_peer_is_found_by_name_and_by_id(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/")
    page.locator("#search").fill("BRISK")
    expect(page.locator("#found")).to_contain_text("1 of 2")
    first = page.locator("#board tr.chosen .name").text_content()
    page.locator("#search").press("Enter")
    expect(page.locator("#found")).to_contain_text("2 of 2")
    assert page.locator("#board tr.chosen .name").text_content() != first
    page.locator("#search").fill(peer_id(3).upper())
    expect(page.locator("#board tr.chosen .name")).to_have_text(NAMES[peer_id(3)])
    page.locator("#search").fill("nobody")
    expect(page.locator("#found")).to_have_text("No peer here has “nobody” in its name or id.")


def test_columns_sort_both_ways(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/")
    rewards = {row["name"]: row["reward"] for row in ask(server, "swarm")["peers"]}
    button = page.locator("#board th.sum button")
    for direction, falling in (("descending", True), ("ascending", False)):
        button.click()
        expect(page.locator("#board th.sum")).to_have_attribute("aria-sort", direction)
        expect(page.locator("#board .name").first).to_have_text(sorted(rewards, key=rewards.__getitem__)[-falling])
        shown = [rewards[name] for name in page.locator("#board .name").all_text_contents()]
        assert shown == sorted(rewards.values(), reverse=falling)


def test_the_keyboard_reads_rewards_and_turns_curves_off(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/")
    plot = page.locator("#plot svg")
    plot.focus()
    plot.press("Home")
    expect(page.locator("#curves-at")).to_have_text("round 0")
    assert NAMES[NODE] in (plot.get_attribute("aria-valuetext") or "")
    expect(page.locator("#plot .curve")).to_have_count(len(NAMES))
    page.locator("#legend button").first.click()
    expect(page.locator("#plot .curve")).to_have_count(len(NAMES) - 1)


def test_the_countdown_goes_by_the_server(server: Served, tab: Tab) -> None:
    watched = tab(server.url)
    watched.page.add_init_script("const real = Date.now; Date.now = () => real() + 3600e3;")
    page = watched.open("/")
    deadline = ask(server, "swarm")["deadline_at"]
    words = page.locator("#left").text_content() or ""
    minutes, seconds = words.split()[0 if "past" in words else 2].split(":")
    left = (int(minutes) * 60 + int(seconds)) * (-1 if "past" in words else 1)
    assert abs(left - (deadline - time.time())) < 20
    assert left <= STAGE_S + 2


# --- the time line ---


def chosen(page: Page) -> int:
    return int(page.locator("#strip").get_attribute("aria-valuenow") or -1)


def expect_moment(page: Page, server: Served, seq: int) -> None:
    """What the page shows is what the interface says of the event."""
    expect(page.locator("#moment-seq")).to_have_text(f"#{seq:,}")
    moment = ask(server, f"node/moments/{seq}")
    assert chosen(page) == seq
    for chart, state in moment["charts"].items():
        lit = page.locator(f"[data-chart={chart}] .state.on")
        expect(lit).to_have_attribute("data-state", state)
    assert page.locator(".changes .path").all_text_contents() == [each["path"] for each in moment["changes"]]
    commands = page.locator(".part", has_text="Caused").locator(".command-type").all_text_contents()
    assert commands == [each["type"] for each in moment["commands"]]
    expect(page.locator(f"#event-{seq}")).to_have_attribute("aria-selected", "true")


def test_keys_scrub_through_the_log(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    strip = page.locator("#strip")
    strip.focus()
    strip.press("Home")
    expect_moment(page, server, 0)
    for _ in range(4):
        strip.press("ArrowRight")
    strip.press("ArrowLeft")
    expect_moment(page, server, 3)
    rounds = ask(server, "node/overview")["rounds"]
    for round_, seq, _ in rounds[:2]:
        strip.press("PageUp")
        expect(page.locator("#moment-seq")).to_have_text(f"#{seq:,}")
        assert f"round {round_} " in (strip.get_attribute("aria-valuetext") or "")
    strip.press("PageDown")
    expect_moment(page, server, rounds[0][1])
    strip.press("End")
    expect_moment(page, server, ask(server, "node/events?first=-1&count=1")["end"] - 1)


def test_the_mouse_scrubs_zooms_and_pans(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    page.locator("#live").click()
    box = page.locator("#strip").bounding_box()
    assert box is not None
    y = box["y"] + 60
    page.mouse.click(box["x"] + 90, y)
    expect(page.locator("#live")).to_have_attribute("aria-pressed", "false")
    early = chosen(page)
    page.mouse.move(box["x"] + 90, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, y, steps=5)
    page.mouse.up()
    expect(page.locator("#strip")).not_to_have_attribute("aria-valuenow", str(early))
    assert chosen(page) > early
    expect_moment(page, server, chosen(page))
    span = page.locator("#time-span").text_content() or ""
    page.mouse.wheel(0, -400)
    expect(page.locator("#time-span")).not_to_have_text(span)
    closer = page.locator("#time-span").text_content() or ""
    page.locator("#strip").press("Shift+ArrowLeft")
    expect(page.locator("#time-span")).not_to_have_text(closer)
    page.locator("#whole").click()
    expect(page.locator("#time-span")).to_have_text(span)


def test_play_goes_on_to_the_end(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    end = chosen(page)
    page.locator("#events-scroller").focus()
    for _ in range(3):
        page.locator("#events-scroller").press("ArrowUp")
    expect_moment(page, server, end - 3)
    page.locator("#pace").select_option("30")
    page.locator("#play").click()
    expect(page.locator("#strip")).to_have_attribute("aria-valuenow", str(end))
    expect(page.locator("#play")).to_have_text("Play")


def test_events_are_filtered_by_type_round_and_text(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    rows = ask(server, "node/events?first=0&count=1000")["events"]
    reports = [row for row in rows if row["type"] == "report_seen"]
    page.locator("#by-type").select_option("report_seen")
    expect(page.locator("#events-count")).to_have_text(f"{len(reports)} found")
    page.locator("#by-round").fill("1")
    of_round = [row for row in reports if row["round"] == 1]
    expect(page.locator("#events-count")).to_have_text(f"{len(of_round)} found")
    page.locator("#by-text").fill("0.5")
    wanted = [row["seq"] for row in of_round if "0.5" in row["text"]]
    expect(page.locator("#events-count")).to_have_text(f"{len(wanted)} found")
    shown = [int(text) for text in page.locator("#events-scroller .seq").all_text_contents()]
    assert shown == wanted


def test_stages_are_drawn_and_lead_to_their_event(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    stages = ask(server, "node/stages")["stages"]
    expect(page.locator("#stages .stage")).to_have_count(len(stages))
    page.locator("#stages .stage").nth(1).click()
    expect_moment(page, server, stages[1]["first_seq"])


@pytest.mark.parametrize(
    ("golden", "skips", "chain"),
    [("rules-1/late-joiner/node-3", True, False), ("rules-2/chain-kills/node-2", False, True)],
)
def test_logs_of_earlier_versions_are_shown(tmp_path: Path, tab: Tab, golden: str, skips: bool, chain: bool) -> None:
    shutil.copytree(GOLDEN / golden / "events", tmp_path / "events")
    served = Served(tmp_path)
    try:
        watched = tab(served.url)
        page = watched.open("/node")
        view = ask(served, "node/stages")
        expect(page.locator("#stages .stage")).to_have_count(len(view["stages"]))
        expect(page.locator("#stages .gap")).to_have_count(len(view["skips"]))
        assert bool(view["skips"]) == skips
        if skips:
            page.locator("#stages .gap").first.click()
            expect_moment(page, served, view["skips"][0]["seq"])
        expect(page.locator("[data-chart=chain]")).to_be_visible(visible=chain)
        watched.open("/")
        expect(page.locator("#chain")).to_be_visible(visible=chain)
        if chain:
            votes = ask(served, "swarm")["chain"]["votes"]
            expect(page.locator("#votes tbody tr")).to_have_count(len(votes))
        assert watched.complaints == []
    finally:
        served.end()


# --- what is alive ---


def test_what_happens_is_shown_as_it_happens(node: PlayedNode, server: Served, tab: Tab) -> None:
    node_page, swarm_page = tab(server.url).open("/node"), tab(server.url).open("/")
    seq = chosen(node_page) + 1
    node.tell(MemberSeen(peer_id(4), "late keen vole"))
    expect_moment(node_page, server, seq)
    expect(swarm_page.locator("#board .name", has_text="late keen vole")).to_have_count(1)


def test_a_lost_stream_comes_back_and_catches_up(tmp_path: Path, tab: Tab) -> None:
    with played(tmp_path, 1, 60) as node:
        served = Served(node.paths.root)
        page = tab(served.url).open("/node")
        before = chosen(page)
        served.end()
        expect(page.locator("#pulse")).to_contain_text("connection lost, again in")
        node.stumble()
        served.start()
        expect(page.locator("#pulse")).to_have_text("connected")
        expect(page.locator("#strip")).to_have_attribute("aria-valuenow", str(before + 4))
        expect(page.locator("#events-scroller .text", has_text="network worker exited")).to_have_count(1)
        served.end()


def test_a_server_that_asks_for_a_token_gets_it_by_a_form(node: PlayedNode, tmp_path: Path, tab: Tab) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    served = Served(node.paths.root, "--token-file", str(token))
    try:
        watched = tab(served.url)
        page = watched.page
        page.goto("/node")
        page.wait_for_url("**/login?next=%2Fnode")
        assert violations(page) == []
        page.locator("#token").fill("wrong-wrong-wrong")
        page.locator("button").click()
        expect(page.locator("#why")).to_be_visible()
        page.locator("#token").fill("0123456789abcdef0123")
        page.locator("button").click()
        page.wait_for_url("**/node")
        expect(page.locator("#node-name")).to_have_text(NAMES[NODE])
    finally:
        served.end()


def test_a_refusal_is_told_as_a_sentence(server: Served, tab: Tab) -> None:
    page = tab(server.url).page
    failure = {"detail": "not-found", "message": "Event 7 was removed. Choose a later one."}
    page.route("**/node/moments/*", lambda route: route.fulfill(status=404, json=failure))
    page.goto("/node")
    expect(page.locator("#notice")).to_have_text("Event 7 was removed. Choose a later one.")
    page.unroute("**/node/moments/*")
    page.route("**/api/v1/here", lambda route: route.abort())
    page.goto("/")
    expect(page.locator("#notice")).to_contain_text("The server does not answer.")
    page.unroute("**/api/v1/here")
    expect(page.locator("#swarm-name")).to_have_text("played")


def test_charts_are_drawn_whole_and_nothing_overlaps(server: Served, chromium: Browser) -> None:
    page = chromium.new_page(base_url=server.url)
    page.goto("/login")
    charts = ask(server, "node/charts")["charts"]
    assert len(charts) >= 4
    for chart in charts:
        plan = page.evaluate("async chart => (await import('/static/chartplan.js')).plan(chart)", chart)
        parts = [*plan["arrows"], *plan["notes"]]
        told = {json.dumps(edge, sort_keys=True) for part in parts for edge in part["edges"]}
        assert told == {json.dumps(edge, sort_keys=True) for edge in chart["edges"]}
        for width in (280, 600):
            layout = page.evaluate(
                "async ([chart, width]) => (await import('/static/chartlayout.js')).layOut(chart, width)",
                [chart, width],
            )
            shapes = [shape for shape in layout["shapes"] if not shape["box"]]
            assert {shape["name"] for shape in layout["shapes"]} == {state["name"] for state in chart["states"]}
            assert [(one["name"], other["name"]) for one in shapes for other in shapes if touch(one, other)] == []
    page.close()


def touch(one: dict[str, Any], other: dict[str, Any]) -> bool:
    apart = (
        one["x"] + one["width"] < other["x"]
        or other["x"] + other["width"] < one["x"]
        or one["y"] + one["height"] < other["y"]
        or other["y"] + other["height"] < one["y"]
    )
    return one["name"] < other["name"] and not apart
