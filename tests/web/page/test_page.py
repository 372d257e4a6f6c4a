"""The page in a real browser, on a real server and a log that the real core wrote."""

import json
import re
import shutil
import socketserver
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from swarmd.core.events import MemberSeen
from swarmd.observe.story import Story
from tests.web.page.conftest import Served, Watched, played
from tests.web.page.played import HOSTILE, HOSTILE_MARK, HOSTILE_TEXT, NAMES, NODE, STAGE_S, PlayedNode, peer_id
from tests.web.test_history import damaged

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
    expect(page.locator(".event-text")).to_be_visible()
    page.locator("#by-text").fill("img src")
    expect(page.locator("#events-scroller .event", has_not_text="img src")).to_have_count(0)  # else rows still move
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


@contextmanager
def mute_daemon(node: PlayedNode) -> Iterator[None]:
    """One that is there, and hangs up on whoever asks it."""
    node.paths.control.parent.mkdir(exist_ok=True)
    with socketserver.UnixStreamServer(str(node.paths.control), socketserver.BaseRequestHandler) as control:
        threading.Thread(target=control.serve_forever, args=(0.05,), daemon=True).start()
        yield
        control.shutdown()
    node.paths.control.unlink()


def test_the_countdown_ends_with_the_node(node: PlayedNode, server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/")
    expect(page.locator("#left")).to_contain_text("was to close at")
    expect(page.locator("#pulse")).to_have_text("the node is dead")
    with mute_daemon(node):
        expect(page.locator("#pulse")).to_have_text("connected")
        expect(page.locator("#left")).not_to_contain_text("was to close at")
    expect(page.locator("#left")).to_contain_text("was to close at")


def test_the_countdown_goes_by_the_server(node: PlayedNode, server: Served, tab: Tab) -> None:
    watched = tab(server.url)
    watched.page.add_init_script("const real = Date.now; Date.now = () => real() + 3600e3;")
    with mute_daemon(node):
        page = watched.open("/")
        deadline = ask(server, "swarm")["deadline_at"]
        expect(page.locator("#pulse")).to_have_text("connected")
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


def test_keys_work_wherever_the_focus_is_but_in_fields_and_what_scrolls(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    end = chosen(page)
    rounds = ask(server, "node/overview")["rounds"]
    assert page.evaluate("document.activeElement === document.body")
    page.keyboard.press("ArrowLeft")
    expect_moment(page, server, end - 1)
    page.keyboard.press("End")
    expect_moment(page, server, end)
    page.keyboard.press("Home")
    expect_moment(page, server, 0)
    for round_ in (0, 1):
        page.keyboard.press("PageDown")
        expect_moment(page, server, rounds[round_][1])
        assert f"round {round_} " in (page.locator("#strip").get_attribute("aria-valuetext") or "")
    page.keyboard.press("PageUp")
    expect_moment(page, server, rounds[0][1])
    span = page.locator("#time-span").text_content() or ""
    page.keyboard.press("+")
    expect(page.locator("#time-span")).not_to_have_text(span)
    page.locator("#by-text").focus()
    for key in ("ArrowRight", "Home", "PageDown", " "):
        page.keyboard.press(key)
    page.locator(".moment-scroller").focus()
    for key in ("Home", "End", "PageDown", "ArrowDown"):
        page.keyboard.press(key)
    expect_moment(page, server, rounds[0][1])
    page.locator(".moment-scroller").press("ArrowRight")
    expect_moment(page, server, rounds[0][1] + 1)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("Pause")
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("Play")


IN_SIGHT = """
new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))).then(() => {
  const bar = document.getElementById("time").getBoundingClientRect();
  const lit = CHARTS.map(name => document.querySelector(`[data-chart=${name}] .state.on`).getBoundingClientRect());
  const seen = place => place.top >= bar.bottom && place.bottom <= innerHeight && place.right <= innerWidth;
  return bar.top >= 0 && bar.bottom < innerHeight && lit.every(seen);
})
"""


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_lit_states_stay_in_sight_beside_the_time_line(server: Served, tab: Tab, size: tuple[int, int]) -> None:
    """All of them at 1280 by 800; on a phone that of the chart that moved, else that of the round."""
    watched = tab(server.url)
    watched.page.set_viewport_size({"width": size[0], "height": size[1]})
    page = watched.open("/node")
    page.keyboard.press("Home")
    for seq in range(12):
        expect(page.locator("#moment-seq")).to_have_text(f"#{seq}")
        moment = ask(server, f"node/moments/{seq}")
        charts, before = moment["charts"], moment["before"]
        moved = [name for name in charts if charts[name] != before.get(name, charts[name])]
        names = list(charts) if size[0] > 1000 else moved if len(moved) == 1 else [] if moved else ["round"]
        assert page.evaluate(IN_SIGHT.replace("CHARTS", json.dumps(names))), (seq, names)
        page.keyboard.press("ArrowRight")


def test_whoever_reads_further_below_is_left_there(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.locator("#recipe-title")).to_be_in_viewport()
    expect(page.locator("#strip")).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(page.locator("#moment-seq")).to_have_text("#0")
    page.evaluate(SETTLED)
    expect(page.locator("#recipe-title")).to_be_in_viewport()


def test_every_event_has_an_address(server: Served, tab: Tab) -> None:
    watched = tab(server.url)
    page = watched.page
    page.goto("/node#event=17")
    expect_moment(page, server, 17)
    expect(page.locator("#live")).to_have_attribute("aria-pressed", "false")
    page.locator("#strip").press("ArrowRight")
    expect(page).to_have_url(f"{server.url}/node#event=18")
    expect(page.locator("#moment-seq")).to_have_attribute("href", "/node#event=18")
    link = page.locator("#story a").last
    seq = int(link.text_content() or -1)
    link.click()
    expect_moment(page, server, seq)
    page.go_back()
    expect_moment(page, server, 18)
    page.locator("#live").click()
    expect(page).to_have_url(f"{server.url}/node")
    page.goto("/")
    said = page.locator("#gossip .when a").first
    seq = int((said.text_content() or "").lstrip("#"))
    said.click()
    expect_moment(page, server, seq)
    page.goto("about:blank")
    page.goto("/node#event=999999999")
    expect(page.locator("#notice")).to_contain_text("There is no event 999,999,999 here: this log has events 0 to")
    assert watched.complaints == []


def test_a_round_is_told_as_explain_tells_it(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    for round_, seq, _ in ask(server, "node/overview")["rounds"][:2]:
        page.evaluate(f"location.hash = 'event={seq}'")
        expect(page.locator("#story-title")).to_have_text(f"Round {round_}")
        story = ask(server, f"node/rounds/{round_}")
        expect(page.locator("#story .verdict")).to_have_text(story["verdict"])
        told = [int(text) for text in page.locator("#story .sentences a").all_text_contents()]
        assert told == [each["seq"] for each in story["sentences"]]
        assert page.locator("#story .trouble").count() == sum(each["trouble"] for each in story["sentences"])


def test_what_is_not_read_of_a_round_is_said(server: Served, tab: Tab) -> None:
    page = tab(server.url).page
    story = Story(0, "unknown", "Round 0 is too long.", unread="It goes on beyond event 20000.")
    body = msgspec.json.encode(story)
    page.route("**/node/rounds/*", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.goto("/node")
    expect(page.locator("#story .unread")).to_have_text("It goes on beyond event 20000.")
    page.unroute("**/node/rounds/*")
    page.reload()
    expect(page.locator("#story .verdict")).to_be_visible()
    expect(page.locator("#story .unread")).to_have_count(0)


def test_training_is_drawn_and_leads_to_its_event(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    stages = ask(server, "node/training")["stages"]
    expect(page.locator("#training .t0 circle")).to_have_count(len(stages) + 1)  # and before the first step
    expect(page.locator("#training .t1 circle")).to_have_count(len(stages))
    expect(page.locator("#training-sum")).to_contain_text("held-out accuracy 10.0 % → 50.0 %")
    page.locator("#training .t1 circle").nth(1).click(force=True)
    expect_moment(page, server, stages[1]["seq"])
    page.mouse.move(5, 5)
    expect(page.locator("#training-at")).to_have_text("at round 1 · stage 0:")
    page.locator("#training-details summary").click()
    expect(page.locator("#training-table tbody tr")).to_have_count(len(stages))
    page.locator("#training-table tbody a").last.click()
    expect_moment(page, server, stages[0]["seq"])


def test_a_task_that_falls_is_drawn_with_what_the_guard_does(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    view = ask(server, "node/training")
    curves = {curve["task"]: curve for curve in view["skills"]}
    assert set(curves) == {HOSTILE, "sums"} and curves["sums"]["drawn_more_since"] is None
    assert curves[HOSTILE]["drawn_more_since"] == curves[HOSTILE]["fallen_since"] == 1
    measured = len(view["stages"])
    fallen, steady = (page.locator(f"#training .line.k{place}") for place in range(2))
    expect(fallen.locator("circle:not(.ring)")).to_have_count(measured)
    expect(fallen.locator(".ring")).to_have_count(measured - 1)
    expect(steady.locator("circle")).to_have_count(measured)
    expect(page.locator("#training .by-task")).to_have_text(f"{HOSTILE} is drawn 2.5 times as often since round 1")
    expect(page.locator("#training-key li")).to_contain_text(["sums", "drawn more"])
    page.locator("#training-details summary").click()
    expect(page.locator("#training-table tbody tr").last).to_contain_text("80.0 %, sums 50.0 %")
    expect(page.locator("#training-table tbody tr").first).to_contain_text("(more), sums 50.0 %")
    assert page.evaluate("window.harmed") is None


def pairs(texts: list[str]) -> dict[str, str]:
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_recipe_and_model_are_those_of_log_and_configuration(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    expect(page.locator("#recipe-from")).to_have_text("from the node’s log and configuration")
    facts = pairs(page.locator("#recipe-facts > *").all_text_contents())
    assert (facts["kind of swarm"], facts["model"], facts["device"]) == ("reasoning-gym", "tiny", "cpu")
    assert page.locator("#recipe-tasks tbody tr").all_text_contents() == ["chain_sum2max_terms = 3"]
    settings = pairs(page.locator("#recipe-settings dl > *").all_text_contents())
    assert (settings["learning_rate"], settings["generations"]) == ("0.00005", "4")


def test_what_was_written_stands_beside_question_truth_and_reward(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/")
    messages = ask(server, "swarm/gossip")["messages"]
    shown = page.locator("#gossip > li")
    expect(shown).to_have_count(len(messages))
    scored = [(index, message) for index, message in enumerate(messages) if message["reward"] is not None]
    assert {message["right"] for _, message in scored} == {True, False}
    for index, message in scored[:5]:
        item = shown.nth(index)
        expect(item.locator(".question")).to_have_text(message["question"])
        expect(item.locator(".truth")).to_have_text(f"expected {message['truth']}")
        expect(item.locator(".scored strong")).to_have_text("right" if message["right"] else "wrong")
        expect(item.locator(".scored")).to_contain_text(f"reward {message['reward']:.3f}")


LEGENDS = {
    "/": {"board-key", "gossip-key"},
    "/node": {
        "layers-key",
        "strip-key",
        "charts-key",
        "story-key",
        "events-key",
        "training-key",
        "stages-key",
        "spent-key",
    },
}
PAINT = """
key => [...document.querySelectorAll(`#${key} .patch`)].map(each => {
  const style = getComputedStyle(each);
  const border = style.borderTopStyle + style.borderTopColor;
  return [style.backgroundColor, style.backgroundImage, border, style.opacity, style.height].join();
})
"""


@pytest.mark.parametrize("path", ["/", "/node"])
def test_every_panel_says_what_its_colours_mean(server: Served, tab: Tab, path: str) -> None:
    page = tab(server.url).open(path)
    keys = set(page.locator("ul.patches").evaluate_all("all => all.map(each => each.id)"))
    assert keys == LEGENDS[path]
    clear = "rgba(0, 0, 0, 0),none,none"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for key in keys:
            painted = page.evaluate(PAINT, key)
            assert painted and len(set(painted)) == len(painted), (key, painted)
            assert not any(each.startswith(clear) for each in painted), (key, painted)


CUT = """
[...document.querySelectorAll("main *, header *")].filter(each => {
  const style = getComputedStyle(each);
  if (!each.textContent.trim() || !each.checkVisibility()) return false;
  if (each.closest(".unseen, svg, select, .folded")) return false;
  const hides = ["hidden", "clip"].includes(style.overflowX);
  const place = each.getBoundingClientRect();
  const cut = each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 2;
  const outside = place.right > innerWidth + 1 || place.left < -1;
  return hides && cut || outside && !each.closest(".scroller");
}).map(each => each.outerHTML.slice(0, 160))
"""


@pytest.mark.parametrize("path", ["/", "/node"])
def test_nothing_is_cut_on_a_phone(server: Served, tab: Tab, path: str) -> None:
    watched = tab(server.url)
    watched.page.set_viewport_size({"width": 390, "height": 844})
    page = watched.open(path)
    page.evaluate(SETTLED)
    endless = ("onerror", "zzzz")
    assert [each for each in page.evaluate(CUT) if not any(name in each for name in endless)] == []
    for chart in page.locator(".chart svg:visible").all():
        box = chart.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_the_mouse_scrubs_zooms_and_pans(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    page.locator("#live").click()
    box = page.locator("#strip").bounding_box()
    assert box is not None
    y = box["y"] + 60
    page.mouse.click(box["x"] + 90, y)
    box = page.locator("#strip").bounding_box() or box
    y = box["y"] + 60
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
    page.locator("#lanes").hover()  # it may have moved, to have the charts in sight
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


def test_what_was_set_aside_is_counted_by_reason_with_one_example_that_stays_text(server: Served, tab: Tab) -> None:
    watched = tab(server.url)
    page = watched.open("/node")
    stages = [stage for stage in ask(server, "node/stages")["stages"] if stage["set_aside"]]
    box = page.locator("#stages-aside")
    expect(box).to_contain_text(f"{30 * len(stages)} tokens masked: only the peer vouches for them")
    expect(box).to_contain_text(f'such as "{HOSTILE}" in "{HOSTILE_MARK + HOSTILE}"')
    expect(box).to_contain_text(f'"{HOSTILE_MARK}" stands in 100% of its right answers')
    assert box.locator("img, b").count() == 0 and page.evaluate("window.harmed") is None
    assert watched.complaints == []


@pytest.mark.parametrize(("golden", "chain"), [("crash", False), ("chain", True)])
def test_a_recorded_log_is_shown(tmp_path: Path, tab: Tab, golden: str, chain: bool) -> None:
    shutil.copytree(GOLDEN / golden / "events", tmp_path / "events")
    served = Served(tmp_path)
    try:
        watched = tab(served.url)
        page = watched.open("/node")
        view = ask(served, "node/stages")
        expect(page.locator("#stages .stage")).to_have_count(len(view["stages"]))
        expect(page.locator("#stages .gap")).to_have_count(len(view["skips"]))
        if view["skips"]:
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
        expect(page.locator("#pulse")).to_have_text("the node is dead")
        expect(page.locator("#strip")).to_have_attribute("aria-valuenow", str(before + 4))
        expect(page.locator("#events-scroller .text", has_text="network worker exited")).to_have_count(1)
        served.end()


@pytest.mark.soak
def test_damage_that_is_found_later_is_told_and_is_again_when_the_stream_comes_back(tmp_path: Path, tab: Tab) -> None:
    served = Served(damaged(tmp_path))
    page = tab(served.url).open("/node")
    expect(page.locator("#notice")).to_contain_text("is damaged at byte")
    served.end()
    expect(page.locator("#pulse")).to_contain_text("connection lost, again in")
    served.start()
    expect(page.locator("#pulse")).to_have_text(re.compile("connected|the node is"))
    expect(page.locator("#notice")).to_contain_text("is damaged at byte")
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


def test_a_busy_server_is_asked_again(server: Served, tab: Tab) -> None:
    page = tab(server.url).page
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 2:
            route.continue_()
            return
        failure = {"detail": "unavailable", "message": "Too much is asked at once."}
        route.fulfill(status=503, json=failure, headers={"Retry-After": "0.1"})

    page.route("**/node/moments/*", answer)
    page.goto("/node")
    expect(page.locator(".event-text")).to_be_visible()
    expect(page.locator("#notice")).to_be_empty()
    assert len(asked) == 3


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


def test_accuracy_comes_first_and_the_time_line_is_small(server: Served, tab: Tab) -> None:
    """The figure that says whether the swarm learns is at the top of both pages; no axis of it goes below 0."""
    page = tab(server.url).open("/")
    expect(page.locator("#accuracy-gain")).to_contain_text("10.0 % →")
    ticks = page.locator("#accuracy-plot .tick").all_text_contents()
    assert {"0.0", "1.0"} <= set(ticks) and not any(tick.startswith("-") for tick in ticks)
    assert page.evaluate("accuracy.getBoundingClientRect().bottom < columns.getBoundingClientRect().top")
    page = tab(server.url).open("/node")
    titles = page.locator("main > section h2[id$=-title]").all_text_contents()
    assert titles.index("Training") < titles.index("Statecharts")
    for size in ({"width": 1280, "height": 800}, {"width": 390, "height": 844}):
        page.set_viewport_size(size)
        page.evaluate(SETTLED)
        box = page.locator("#time").bounding_box()
        assert box is not None and box["height"] <= size["height"] / 5 + 1, box


def test_the_most_that_a_reward_can_be_is_on_its_axis(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    shown = page.evaluate(
        """async () => {
          const { drawLines } = await import("/static/axes.js");
          const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
          const size = { width: 300, height: 100, left: 40, right: 8, top: 8, bottom: 20 };
          const lines = [{ line: "t1", points: [[0, 0.1], [1, 0.2]] }];
          drawLines(drawing, lines, size, { most: 1.2, marked: true });
          const words = drawing.textContent;
          drawLines(drawing, [{ line: "t0", points: [[0, 0], [1, 0]] }], size, { least: 0, most: null });
          return [words, drawing.textContent];
        }"""
    )
    assert "most: 1.2" in shown[0] and "-0" not in shown[1] and "0.0" in shown[1]


def test_a_dead_node_is_red_and_an_observer_out_of_reach_is_amber(server: Served, tab: Tab) -> None:
    page = tab(server.url).open("/node")
    told = page.evaluate(
        """async () => {
          const { showProcess, showCondition } = await import("/static/top.js");
          const pulse = document.getElementById("pulse");
          return ["dead", "out of reach"].map((process) => {
            showProcess(process);
            showCondition({ state: "live" }, () => {});
            return [pulse.textContent, pulse.dataset.node, getComputedStyle(pulse).color];
          });
        }"""
    )
    assert [row[:2] for row in told] == [["the node is dead", "dead"], ["reaches nobody of the swarm", "ended"]]
    assert told[0][2] != told[1][2]
