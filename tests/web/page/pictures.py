"""The README's pictures of the page, taken of a swarm at work.

make run ROUNDS=0, and beside it: swarmd dashboard .swarmd/node-1
python -m tests.web.page.pictures http://127.0.0.1:8800
"""

import sys
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from tests.programs import path_of
from tests.web.page.conftest import SIZE

IMAGES = Path(__file__).parents[3] / "docs" / "images"
DRAWN_MS = 3000  # until curves and time line are drawn


def take(url: str) -> None:
    """The swarm's page in the dark theme, and the node's in the light one at the end of its last trained stage."""
    trained = httpx.get(f"{url}/api/v1/node/training").json()["stages"][-1]["seq"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path_of("chromium"), args=["--no-sandbox"])
        shown = (("swarm-dark", "/", "dark"), ("node-light", f"/node#event={trained}", "light"))
        for name, path, theme in shown:
            page = browser.new_page(viewport=SIZE, color_scheme=theme, base_url=url)
            page.goto(path)
            page.wait_for_selector("#board-body tr[data-key], .event-text")
            page.wait_for_timeout(DRAWN_MS)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    take(sys.argv[1])
