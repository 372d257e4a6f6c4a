"""The page of several nodes in a browser."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.web.page.conftest import SIZE, Served
from tests.web.page.played import PlayedNode

NODES = 8


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
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function("document.documentElement.scrollWidth <= 390")
        page.close()
    finally:
        served.end()
