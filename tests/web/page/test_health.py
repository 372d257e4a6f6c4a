"""The page says in words what ails a node: ends of workers that others caused, the day's gas, that it is cut off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from msgspec.structs import replace
from playwright.sync_api import Locator, Page, expect

from swarmd.core.events import LinkUp, TrainerReady, WorkerExited, WorkerStarted
from swarmd.core.state import State, WeightsOutcome
from swarmd.core.values import FlatStage, TrainerTimes, utc_day_of
from swarmd.gas import COIN_WEI
from swarmd.observe.credit import CreditStatus
from swarmd.observe.layers import LiveDaemon, LiveWorker
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, Status, status_of
from swarmd.web.swarm import PeerLedger, ViewContext, swarm_view
from swarmd.worker.messages import ProgressMessage
from tests.core.story import Story, announced, chain_settings, settings, trained
from tests.observe.printing import printed
from tests.web.page.conftest import Watched

Tab = Callable[[str], Watched]
WELL = LiveWorker(pid=11, age_s=60, silent_s=0.5, spoken=True, answering=True)
UNHEARD = (
    "connected to 4 peers, but nothing was heard of the coordinator for 47 s, neither from it nor through others: it "
    "is away, or this node is cut off from it"
)
ROOM = "room is made for a fresh process: it has 912 MiB of 768 MiB"


def shown(state: State, at: float, **figures: float) -> Status:
    """The status of a running node whose chain worker tells these figures."""
    told = replace(WELL, progress=ProgressMessage("following", 77, 77, "https://h", figures)) if figures else WELL
    live = LiveDaemon(pid=10, rss_bytes=50_000_000, network=WELL, trainer=WELL, chain=told)
    return status_of(state, at, LogStatus("events", 100, 1), live, "1.0")


@contextmanager
def saying(page: Page, path: str, answer: msgspec.Struct) -> Iterator[Page]:
    """The node page, or the swarm's, of a server that answers so."""
    asked = "node/status" if isinstance(answer, Status) else "swarm"
    body = msgspec.json.encode(answer)
    page.route(f"**/api/v1/{asked}", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.goto(path)
    yield page


def layer(page: Page, title: str) -> Locator:
    return page.locator(".layer", has=page.locator("h2", has_text=title))


def crowded_out() -> Story:
    """A node whose network worker made room for a fresh process twice, and whose trainer ended once by itself."""
    node = Story.joined(settings())
    for attempt in (2, 3):
        node.tell(WorkerExited("network", ROOM, exit_code=69, outside=True), WorkerStarted("network", 20, attempt))
    node.tell(WorkerExited("trainer", "ended with 1"), WorkerStarted("trainer", 21, 2))
    return node


def test_ends_that_others_caused_are_told_apart_from_restarts(crowded: str, tab: Tab) -> None:
    node = crowded_out()
    with saying(tab(crowded).page, "/node", shown(node.state, 5.0)) as page:
        network = layer(page, "Network").locator(".layer-worker")
        expect(network).to_have_text(
            f"worker 11 · 2 ends caused from outside, not counted as restarts · last exit: {ROOM}"
        )
        expect(layer(page, "Training").locator(".layer-worker")).to_have_text(
            "worker 11 · 1 restart · last exit: ended with 1"
        )


def test_a_stage_with_nothing_to_learn_is_told_with_its_cause_and_an_example_as_text(crowded: str, tab: Tab) -> None:
    node = Story(settings())
    node.join()
    flat = FlatStage("form", 64, 64, 512, 500, "<b onclick=x>Sure!</b>")
    node.tell(announced(0), replace(trained(0, reward=0.0), flat=flat))
    with saying(tab(crowded).page, "/node", shown(node.state, 5.0)) as page:
        learning = layer(page, "Learning")
        expect(learning).to_have_attribute("data-health", "bad")
        expect(learning.locator(".layer-state")).to_contain_text("nothing to learn")
        reason = learning.locator(".layer-reason")
        expect(reason).to_contain_text("500 of 512 completions have no answer in the form that is asked for")
        expect(reason).to_contain_text('An example: "<b onclick=x>Sure!</b>"')


def test_a_node_that_is_not_credited_says_why_under_its_name(crowded: str, tab: Tab) -> None:
    status = shown(Story.joined(settings()).state, 5.0)
    slow = CreditStatus("not credited", "too slow", "it skips rounds: train less")
    with saying(tab(crowded).page, "/node", replace(status, credit=slow)) as page:
        expect(page.locator("#node-credit")).to_have_text("Credit: it skips rounds: train less.")
        expect(page.locator("#node-credit")).to_have_class("warning")
    credited = CreditStatus("credited", "", "its reports count")
    with saying(tab(crowded).page, "/node", replace(status, credit=credited)) as page:
        expect(page.locator("#node-credit")).to_have_class("muted")


def test_where_the_time_of_a_stage_went_is_a_bar_and_a_sentence(crowded: str, tab: Tab) -> None:
    node = Story.joined(settings())
    node.tell(announced(0))
    with saying(tab(crowded).page, "/node", shown(node.state, 5.0)) as page:
        expect(layer(page, "Round").locator(".layer-state")).to_contain_text("training")
        expect(page.locator("#spent")).to_be_hidden()
    node.at = 20.0
    times = TrainerTimes((("score", 15.0), ("decode", 4.0)), processor_s=4.0)
    node.tell(replace(trained(0), times=times), announced(1))
    with saying(tab(crowded).page, "/node", shown(node.state, 25.0)) as page:
        expect(page.locator("#spent-words")).to_contain_text("Scoring completions takes 75% of the stage")
        expect(page.locator("#spent-key")).to_have_text("score 75 %decode 20 %handover 5 %")
        assert page.locator("#spent-bar rect").evaluate_all("all => all.map(each => each.getAttribute('width'))") == [
            "75%", "20%", "5%",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("spent_coins", "figures", "words", "warning"),
    [
        (0.012, {"day_coins_max": 0.05}, "signed for 0.012 of 0.05 coins today (UTC)", ""),
        (
            0.041,
            {"day_coins_max": 0.05},
            "",
            "0.041 of 0.05 coins of the day's budget are signed for: what it has no room",
        ),
        (0.0000021, {"lag_s": 2.0}, "signed for 0.0000021 coins today (UTC)", ""),
        (0.0, {"lag_s": 2.0}, "", ""),
    ],
)
def test_the_days_gas_is_told_with_its_bound(
    crowded: str, tab: Tab, spent_coins: float, figures: dict[str, float], words: str, warning: str
) -> None:
    node = Story.on_chain(chain_settings())
    assert node.state.chain is not None
    chain = replace(node.state.chain, spent_day=utc_day_of(5.0), spent_wei=str(round(spent_coins * COIN_WEI)))
    with saying(tab(crowded).page, "/node", shown(replace(node.state, chain=chain), 5.0, **figures)) as page:
        details = layer(page, "Chain").locator(".layer-details")
        expect(details).to_contain_text(words or "https://h")
        assert ("signed for" in (details.text_content() or "")) == bool(words)
        expect(layer(page, "Chain").locator(".layer-reason")).to_contain_text(warning)


def test_a_node_that_is_cut_off_says_so_and_since_when(crowded: str, tab: Tab) -> None:
    node = Story.joined(settings())
    node.at = 3000.0
    node.tell(LinkUp(4, (), UNHEARD))
    node.at = 3100.0
    node.tell(LinkUp(3, (), UNHEARD))
    with saying(tab(crowded).page, "/node", shown(node.state, 3120.0)) as page:
        network = layer(page, "Network")
        expect(network).to_have_attribute("data-health", "bad")
        expect(network.locator(".layer-state")).to_have_text("isolated, not healthy")
        expect(network.locator(".layer-age")).to_have_text("for 2 min")
        expect(network.locator(".layer-reason")).to_have_text(UNHEARD)


def test_the_swarms_page_says_that_its_node_is_cut_off(crowded: str, tab: Tab) -> None:
    node = Story.joined(settings())
    node.tell(LinkUp(4, (), UNHEARD))
    view = swarm_view(node.state, PeerLedger(), ViewContext("digits", 5.0, 0, ()), 10)
    with saying(tab(crowded).page, "/", view) as page:
        expect(page.locator("#notes-list")).to_contain_text(f"This node is isolated: {UNHEARD}. What is shown may be")
    node.tell(LinkUp(4))
    assert not any("isolated" in note for note in swarm_view(node.state, *_around(), 10).notes)


def test_other_weights_than_the_swarms_are_told_on_both_pages_as_by_status(crowded: str, tab: Tab) -> None:
    node = Story.joined(settings())
    again = (WorkerExited("trainer", "ended with 1"), WorkerStarted("trainer", 21, 2))
    node.tell(*again, TrainerReady("cpu", "./tiny", 7, "ab" * 32, "float32", other_weights="the digests differ"))
    told = "begun from other weights than the swarm: the digests differ"
    status = shown(node.state, 5.0)
    assert told in printed(panel_of(status), 400)
    with saying(tab(crowded).page, "/node", status) as page:
        expect(layer(page, "Training").locator(".layer-details")).to_contain_text(told)
    with saying(tab(crowded).page, "/", swarm_view(node.state, *_around(), 10)) as page:
        expect(page.locator("#notes-list")).to_contain_text(told)
    node.tell(*again, TrainerReady("cpu", "./tiny", 7, "ab" * 32, "float32"))
    assert not any("weights" in note for note in swarm_view(node.state, *_around(), 10).notes)


def _around() -> tuple[PeerLedger, ViewContext]:
    return PeerLedger(), ViewContext("digits", 5.0, 0, ())


def all_at_once() -> Status:
    """A node with all of these troubles."""
    node = Story.on_chain(chain_settings())
    for attempt in (2, 3):
        node.tell(WorkerExited("network", ROOM, exit_code=69, outside=True), WorkerStarted("network", 20, attempt))
    node.tell(LinkUp(4, (), UNHEARD))
    assert node.state.chain is not None
    chain = replace(node.state.chain, spent_day=utc_day_of(5.0), spent_wei=str(round(0.041 * COIN_WEI)))
    return shown(replace(node.state, chain=chain), 90.0, day_coins_max=0.05, balance_coins=1.2, rounds_paid=800)


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_long_words_of_health_fit(crowded: str, tab: Tab, width: int, scheme: str) -> None:
    watched = tab(crowded)
    watched.page.set_viewport_size({"width": width, "height": 844})
    watched.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    with saying(watched.page, "/node", all_at_once()) as page:
        expect(layer(page, "Network").locator(".layer-reason")).to_have_text(UNHEARD)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent)"
        assert page.locator(".layer, .layer p").evaluate_all(cut) == []
    assert watched.complaints == []


def test_what_became_of_a_peers_weights_is_told_beside_training(crowded: str, tab: Tab) -> None:
    node = Story.joined(settings())
    late = replace(node.state, weights=WeightsOutcome(5.0, "refused", "anna", 7, "no-better", "<b>as good</b>"))
    with saying(tab(crowded).page, "/node", shown(late, 65.0)) as page:
        expect(layer(page, "Training").locator(".layer-details")).to_contain_text(
            "did not begin from the weights of anna after round 7 (no-better): <b>as good</b> (1 min ago)"
        )
