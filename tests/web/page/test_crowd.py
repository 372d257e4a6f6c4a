"""A crowd of 1,000 peers and their events: the page stays smooth, and an archive says that it is one."""

import json
import re
import urllib.request
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.web.page.conftest import Watched
from tests.web.page.crowd import BARRED, PEERS, ROUNDS, peer_id, serving

Tab = Callable[[str], Watched]
MANY = 10_000
ROWS_MAX = 120  # elements of rows that may exist at once
BLOCKED_MS_MAX = 1500  # the longest task may take so long on a machine that is busy with much else
WATCH = """
window.blocked = [];
const watcher = new PerformanceObserver(list => window.blocked.push(...list.getEntries().map(each => each.duration)));
watcher.observe({entryTypes: ["longtask"]});
"""
SCROLL = """
async ([selector, steps]) => {
  const scroller = document.querySelector(selector);
  for (let step = 0; step <= steps; step += 1) {
    scroller.scrollTop = (scroller.scrollHeight - scroller.clientHeight) * step / steps;
    await new Promise(requestAnimationFrame);
  }
}
"""


def longest_ms(page: Page) -> float:
    """Of the tasks since the last look that took more than 50 ms."""
    return float(page.evaluate("Math.max(0, ...window.blocked.splice(0))"))


def watched(tab: Tab, url: str) -> Watched:
    opened = tab(url)
    opened.page.add_init_script(WATCH)
    return opened


def test_a_thousand_peers_scroll_sort_and_are_found(crowded: str, tab: Tab) -> None:
    opened = watched(tab, crowded)
    page = opened.open("/")
    expect(page.locator("#pulse")).to_have_text("archive")
    expect(page.locator("#left")).to_contain_text("was to close at")
    assert page.locator("#board-body tr").count() < ROWS_MAX
    liar = page.locator("#board-body tr", has_text=f"heron {BARRED}").first
    expect(liar.locator(".seen")).to_have_text("barred")
    expect(liar).to_have_attribute("title", re.compile("nothing of it counts before round"))
    page.evaluate(SCROLL, ["#board-scroller", 10])
    expect(page.locator("#board .name", has_text=f"heron {PEERS - 1}")).to_be_visible()
    page.locator("#board th.last button").click()
    page.locator("#search").fill(peer_id(777))
    expect(page.locator("#board tr.chosen .name")).to_have_text("quiet lively heron 777")
    expect(page.locator("#board tr.chosen")).to_be_in_viewport()
    expect(page.locator("#plot .curve")).to_have_count(10)
    page.locator("#board tr.chosen .swatch").click()
    expect(page.locator("#plot .curve")).to_have_count(11)
    assert page.locator("#board-body tr").count() < ROWS_MAX
    assert longest_ms(page) < BLOCKED_MS_MAX
    assert opened.complaints == []


@pytest.mark.soak
def test_all_of_ten_thousand_peers_scroll_sort_and_are_found(tab: Tab) -> None:
    with serving(peers=MANY) as url:
        opened = tab(url)
        page = opened.open("/")
        expect(page.locator("#board-count")).to_have_text("10,001 peers")
        page.evaluate(SCROLL, ["#board-scroller", 10])
        expect(page.locator("#board .name", has_text=f"heron {MANY - 1}")).to_be_visible()
        page.locator("#board th.peer button").click()
        expect(page.locator("#board .name").first).to_have_text("quiet lively heron 0")
        page.locator("#search").fill("heron 9")
        expect(page.locator("#found")).to_contain_text("1 of 1111 found")
        page.locator("#search").fill(peer_id(9777))
        expect(page.locator("#board tr.chosen .name")).to_have_text("quiet lively heron 9777")
        expect(page.locator("#board tr.chosen")).to_be_in_viewport()
        page.locator("#board tr.chosen .swatch").click()
        expect(page.locator("#plot .curve")).to_have_count(11)
        assert page.locator("#board-body tr").count() < ROWS_MAX
        assert opened.complaints == []


def test_thousands_of_events_scroll_scrub_and_are_filtered(crowded: str, tab: Tab) -> None:
    with urllib.request.urlopen(f"{crowded}/api/v1/node/events?first=-1000&count=1000", timeout=30) as answer:
        last = json.load(answer)
    of_round = [row["seq"] for row in last["events"] if row["round"] == ROUNDS]
    opened = watched(tab, crowded)
    page = opened.open("/node")
    strip = page.locator("#strip")
    expect(strip).to_have_attribute("aria-valuenow", str(last["end"] - 1))
    page.evaluate(SCROLL, ["#events-scroller", 10])
    assert page.locator("#events-scroller .event").count() < ROWS_MAX
    box = strip.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 200, box["y"] + 60, steps=10)
    page.mouse.up()
    for _ in range(3):
        page.mouse.wheel(0, -500)
    strip.press("Home")
    for _ in range(5):
        strip.press("ArrowRight")
    expect(page.locator("#moment-seq")).to_have_text("#5")
    page.locator("#by-round").fill(str(ROUNDS))
    expect(page.locator("#events-count")).to_have_text(f"{len(of_round)} found")
    page.locator("#events-scroller .event").last.click()
    expect(strip).to_have_attribute("aria-valuenow", str(of_round[-1]))
    assert longest_ms(page) < BLOCKED_MS_MAX
    assert opened.complaints == []
