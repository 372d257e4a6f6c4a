"""A real Chromium, and real servers on logs that tests have made."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.programs import path_of
from tests.web.page import crowd
from tests.web.page.played import PlayedNode

PATIENCE_S = 30.0
SIZE = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """For one module only: playwright leaves an event loop running in this thread, and others want their own."""
    binary = path_of("chromium")
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_S * 1000)
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A tab, and what it complained of: console errors, violations of the policy, requests that left the server."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.page.on("console", lambda told: self._complain(told.text) if told.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self._complain(str(error)))
        self.page.on("request", self._look_at)

    def _complain(self, text: str) -> None:
        self.complaints.append(text)

    def _look_at(self, request: Request) -> None:
        if not request.url.startswith(self.url.rstrip("/") + "/"):
            self._complain(f"a request left for {request.url}")

    def open(self, path: str) -> Page:
        self.page.goto(path)
        self.page.wait_for_selector("#pulse[data-state=live], #pulse[data-state=archive]")
        self.page.wait_for_selector("#board-body tr[data-key], .event-text")
        return self.page


@pytest.fixture(scope="module")
def contexts(chromium: Browser) -> dict[str, BrowserContext]:
    """One for each server, so that only the first tab has to load the page's modules."""
    return {}


@pytest.fixture
def tab(chromium: Browser, contexts: dict[str, BrowserContext]) -> Iterator[Callable[[str], Watched]]:
    """Opens tabs; all are closed at the test's end, with what they stored."""
    opened: list[Watched] = []

    def make(url: str) -> Watched:
        if url not in contexts:
            contexts[url] = chromium.new_context(
                base_url=url, viewport=SIZE, color_scheme="light", reduced_motion="reduce"
            )
        opened.append(Watched(contexts[url], url))
        return opened[-1]

    yield make
    for each in opened:
        if each.page.url.startswith(each.url):
            each.page.evaluate("localStorage.clear()")
        each.page.close()


class Served:
    """`swarmd dashboard` in a process of its own; it can be ended and started again at the same address."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self.url = self.start("127.0.0.1:0")

    def start(self, listen: str = "") -> str:
        command = [sys.executable, "-m", "swarmd", "dashboard", str(self._directory)]
        command += ["--listen", listen or self.url.removeprefix("http://").rstrip("/"), *self._options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if found := re.search(r"http://\S+", line):
                return found[0].rstrip("/")
        raise AssertionError(f"swarmd dashboard did not start: {said}")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def played(root: Path, rounds: int, began_s_ago: float) -> Iterator[PlayedNode]:
    node = PlayedNode(root, time.time() - began_s_ago)
    node.play(rounds)
    try:
        yield node
    finally:
        node.close()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayedNode]:
    """Three rounds of a log, and a fourth that is open now; tests may let it go on."""
    with played(tmp_path_factory.mktemp("played") / "node-1", 3, 120) as made:
        yield made


CONFIG = """
name = "a"
role = "coordinator"
[swarm]
id = "played"
kind = "reasoning-gym"
[[swarm.tasks]]
name = "chain_sum"
weight = 2.0
config = { max_terms = 3 }
[training]
learning_rate = 5e-5
generations = 4
"""


@pytest.fixture(scope="session")
def server(node: PlayedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = tmp_path_factory.mktemp("config") / "node.toml"
    config.write_text(CONFIG)
    served = Served(node.paths.root, "--config", str(config))
    yield served
    served.end()


@pytest.fixture(scope="session")
def crowded() -> Iterator[str]:
    with crowd.serving() as url:
        yield url
