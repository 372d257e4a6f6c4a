"""What status says of a node in a swarm whose rounds a contract keeps."""

import pytest
from msgspec.structs import replace

from swarmd.cli.local_swarm import make_node_row
from swarmd.core.state import ChainState, Deadline, State, Submission, WorkerState
from swarmd.core.values import BlockRef, ChainSettings, Settings, utc_day_of
from swarmd.gas import COIN_WEI
from swarmd.observe.layers import LiveDaemon
from swarmd.observe.onchain import FUNDS_KEPT_S, account_layer
from swarmd.observe.panel import panel_of
from swarmd.observe.status import Status, make_headline, status_of
from swarmd.worker.messages import ProgressMessage
from tests.observe.printing import printed
from tests.observe.test_status import LIVE as NODE_LIVE
from tests.observe.test_status import LOG, NOW, STUCK, WELL
from tests.observe.test_status import STATE as NODE

ACCOUNT = "0xAcc0000000000000000000000000000000000001"
CONTRACT = "0xC000000000000000000000000000000000000001"
SETTINGS = Settings("peer-me", "test", "follower", "", name="alpha", chain=ChainSettings(resend_s=60.0))
LIVE = replace(NODE_LIVE, trainer=WELL, chain=WELL)
BLOCK = BlockRef(77, "0x" + "ab" * 32)


def reward(round: int, chart: str, age_s: float = 5.0, **fields: object) -> Submission:
    made: dict[str, object] = {"since": NOW - age_s, "intended_at": NOW - age_s, "round": round, "reward": 400 + round}
    return Submission(f"reward/{round}/0", "reward", chart, **(made | fields))  # type: ignore[arg-type]


DONE = (
    Submission("register", "register", "confirmed", NOW - 900, NOW - 950, block=BLOCK),
    reward(1, "confirmed", 500, block=BLOCK),
    reward(2, "confirmed", 300, block=BLOCK),
)
STATE = replace(
    NODE,
    settings=SETTINGS,
    coordination=None,
    deadlines=(Deadline("submission", NOW + 30), Deadline("train", NOW + 60)),
    chain=ChainState(
        "up", NOW - 3000, "", 31337, CONTRACT, stages=1, account=ACCOUNT, registered=True, round=5, recent=(BLOCK,)
    ),
    submissions=DONE,
)
assert STATE.chain is not None


def told(state: State, live: LiveDaemon | None = LIVE) -> Status:
    return status_of(state, NOW, LOG, live, "1.0")


def with_chain(**fields: object) -> State:
    return replace(STATE, chain=replace(STATE.chain, **fields))


def shown(status: Status, width: int = 100) -> str:
    return printed(panel_of(status), width)


def test_a_node_that_is_well() -> None:
    status = told(replace(STATE, submissions=(*DONE, reward(3, "included"), reward(4, "sent"), reward(5, "intended"))))
    chain, submissions = status.chain, status.submissions
    assert status.healthy and chain is not None and submissions is not None
    assert (chain.state, chain.account, chain.registered, chain.round, chain.block) == ("up", ACCOUNT, True, 5, 77)
    counts = submissions.waiting, submissions.sent, submissions.included, submissions.confirmed, submissions.refused
    assert counts == (1, 1, 1, 3, 0)
    assert (submissions.state, submissions.oldest, submissions.oldest_s) == ("sent", "reward/4/0", 5.0)
    assert submissions.last_reward is not None
    assert (submissions.last_reward.round, submissions.last_reward.reward, submissions.last_reward.block) == (
        2,
        402,
        77,
    )
    assert make_node_row("node-1", status).on_chain == "3 confirmed, 3 waiting"
    assert "chain up (2 waiting)" in make_headline(replace(STATE, submissions=(reward(4, "sent"), reward(5, "lost"))))


def test_a_running_worker_tells_how_far_it_is_and_through_whom() -> None:
    progress = ProgressMessage("catching up", 80, 120, "https://rpc.example", {"lag_s": 12.0})
    live = replace(LIVE, chain=replace(WELL, progress=progress))
    chain = told(with_chain(chart="connecting"), live).chain
    assert chain is not None and not chain.healthy
    assert (chain.block, chain.head, chain.lag_s, chain.endpoint) == (80, 120, 12.0, "https://rpc.example")
    assert chain.reason == "reading the chain, block 80 of 120"
    text = " ".join(shown(told(STATE, live), 160).split())
    assert "block 80 of 120; its age 12s; by https://rpc.example" in text
    assert "its age" not in shown(told(with_chain(chart="degraded"), live), 160)  # nobody looks any more


def paying(rounds: float, coins: float = 0.5, **fields: object) -> LiveDaemon:
    """A node whose account pays for so many rounds."""
    progress = ProgressMessage("following", 77, 77, "https://h", {"balance_coins": coins, "rounds_paid": rounds})
    return replace(LIVE, chain=replace(WELL, progress=progress, **fields))


@pytest.mark.parametrize(
    ("spent_coins", "day", "words"),
    [
        (0.3, 0, ""),
        (0.4, 0, "0.4 of 0.5 coins of the day's budget are signed for: what it has no room for waits until 00:00 UTC"),
        (0.4, -1, ""),
    ],
    ids=["most is left", "four fifths", "yesterday"],
)
def test_a_days_budget_is_told_before_it_is_spent(spent_coins: float, day: int, words: str) -> None:
    spent = {"spent_day": utc_day_of(NOW) + day, "spent_wei": str(round(spent_coins * COIN_WEI))}
    progress = ProgressMessage("following", 77, 77, "https://h", {"day_coins_max": 0.5})
    status = told(with_chain(**spent), replace(LIVE, chain=replace(WELL, progress=progress)))
    assert status.chain is not None and status.chain.reason == words
    assert (status.chain.day_spent_coins, status.chain.day_coins_max) == (0 if day else spent_coins, 0.5)
    layer = account_layer(status.chain)
    assert layer is not None and layer.healthy is not bool(words) and layer.reason == words
    shown_words = " ".join(shown(status, 200).split())
    assert (f"signed for {spent_coins:g} of 0.5 coins today" in shown_words) is (day == 0)


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (10.0, ""),
        (9.0, f"the account pays for about 9 more rounds: send coins to {ACCOUNT}"),
        (1.0, f"the account pays for hardly a round more: send coins to {ACCOUNT}"),
        (0.0, f"the account pays for hardly a round more: send coins to {ACCOUNT}"),
    ],
)
def test_an_account_that_will_soon_be_unable_to_pay_is_told_before_anything_fails(rounds: float, words: str) -> None:
    chain = told(STATE, paying(rounds)).chain
    assert chain is not None and chain.healthy and chain.reason == words


@pytest.mark.parametrize(
    "live",
    [
        paying(3.0, progress_age_s=FUNDS_KEPT_S + 1),
        paying(float("nan")),
        paying(3.0, float("inf")),
        paying(-1.0),
        replace(LIVE, chain=replace(WELL, progress=ProgressMessage("following", 77, 77, "", {"rounds_paid": 3.0}))),
    ],
    ids=["too old", "no number", "infinite", "negative", "half"],
)
def test_what_is_not_known_of_the_account_is_left_out(live: LiveDaemon) -> None:
    chain = told(STATE, live).chain
    assert chain is not None and chain.reason == ""
    assert chain.balance_coins is None and chain.rounds_paid is None


@pytest.mark.parametrize(
    ("state", "live", "words"),
    [
        (with_chain(chart="degraded", reason="no endpoint answers: https://h timed out"), LIVE, "https://h timed out"),
        (with_chain(chart="connecting"), LIVE, "reading the chain"),
        (
            replace(with_chain(chart="down"), chaining=WorkerState(reason="ended by SIGKILL; last output:\nx")),
            replace(LIVE, chain=None),
            "the chain worker is down: ended by SIGKILL",
        ),
        (STATE, replace(LIVE, chain=STUCK), "(pid 12) has been silent for 45 s"),
        (with_chain(registered=False), LIVE, "the contract does not know this peer yet"),
        (replace(STATE, members=("other",)), LIVE, "this peer is not on the contract's allow-list"),
        (STATE, None, "the daemon does not run"),
    ],
)
def test_trouble_with_the_chain_is_told_of_the_chain(state: State, live: LiveDaemon | None, words: str) -> None:
    status = told(state, live)
    assert status.chain is not None and status.submissions is not None
    assert not status.healthy and not status.chain.healthy and status.submissions.healthy
    assert words in status.chain.reason
    if live is not None:
        assert status.process.healthy and status.network.healthy and status.training.healthy and status.round.healthy


@pytest.mark.parametrize(
    ("submission", "words"),
    [
        (reward(3, "refused", 1, code="InvalidRoundNumber", reason="too early"), "InvalidRoundNumber: too early"),
        (reward(3, "intended", 181), "reward/3/0 has been intended for 181 s: not in a block yet"),
        (reward(3, "lost", 181, reason="its nonce was used"), "has been lost for 181 s: its nonce was used"),
    ],
)
def test_trouble_with_a_submission_is_told_of_submissions(submission: Submission, words: str) -> None:
    status = told(replace(STATE, submissions=(*DONE, submission)))
    assert status.submissions is not None and status.chain is not None
    assert not status.healthy and not status.submissions.healthy and status.chain.healthy
    assert words in status.submissions.reason


def test_a_refusal_is_over_with_the_next_confirmation() -> None:
    refused = reward(2, "refused", 400, code="below-mark", reason="restored")
    status = told(replace(STATE, submissions=(*DONE[:2], refused, reward(3, "confirmed", 10))))
    assert status.healthy and status.submissions is not None and status.submissions.last_refusal is not None
    assert (status.submissions.last_refusal.code, status.submissions.last_refusal.age_s) == ("below-mark", 400)


def test_a_node_that_submits_nothing_needs_no_registration() -> None:
    settings = replace(SETTINGS, chain=ChainSettings(sends=False))
    status = told(replace(with_chain(registered=False, account=""), settings=settings, submissions=()))
    assert status.healthy and status.submissions is not None
    assert (status.submissions.state, status.submissions.reason) == ("none", "this node submits nothing (chain.sender)")


@pytest.mark.parametrize("live", [LIVE, None])
@pytest.mark.parametrize("chain", [STATE.chain, ChainState()])
def test_the_panel_fits_one_screen(chain: ChainState, live: LiveDaemon | None) -> None:
    refused = reward(3, "refused", 50, code="InvalidRoundNumber", reason="too early")
    text = shown(told(replace(STATE, chain=chain, submissions=(*DONE, refused, reward(4, "sent"))), live))
    assert len(text.splitlines()) <= 24
    joined = " ".join(text.replace("│", " ").split())
    for words in (
        "chain",
        "on chain",
        "0 waiting, 1 sent, 0 included",
        "3 confirmed, 1 refused",
        "last confirmed reward 402",
    ):
        assert words in joined
    if chain.contract:
        assert f"account {ACCOUNT}, registered" in joined
