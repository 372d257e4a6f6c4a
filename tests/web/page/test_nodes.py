"""The page of several nodes in a browser, and how fast and cheap it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.web.page.conftest import SIZE, Served
from tests.web.page.played import PlayedNode

NODES = 8
FIRST_PAINT_MS = 4000  # on a busy machine; 1000 on an idle one, see docs/DASHBOARD.md
LOOK_S = 6.0
BUSY_SHARE = 0.1  # of a core, on a busy machine; .02 on an idle one


def processor_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def test_eight_nodes_are_on_one_page_at_once(node: PlayedNode, chromium: Browser, tmp_path: Path) -> None:
    places = [tmp_path / f"node-{number}" for number in range(NODES)]
    for place in places:
        shutil.copytree(node.paths.root, place)
    served = Served(places[0], *map(str, places[1:]))
    try:
        page = chromium.new_page(base_url=served.url, viewport=SIZE)
        page.goto("/")
        expect(page.locator("#nodes tbody tr")).to_have_count(NODES)
        expect(page.locator("#nodes tbody .state").first).to_have_text("dead")
        expect(page.locator("#accuracy svg .line")).to_have_count(NODES)
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert painted <= FIRST_PAINT_MS
        began = processor_s(served.process.pid)
        page.wait_for_timeout(LOOK_S * 1000)
        assert processor_s(served.process.pid) - began <= BUSY_SHARE * LOOK_S
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()
    finally:
        served.end()
