"""Why a node's reports do not count: each cause is named, with the next step, from what the node itself knows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.core.events import (
    CommandFailed,
    Equivocated,
    LinkDown,
    LinkUp,
    MembershipRead,
    RecordsRejected,
    RoundsSkipped,
    SpaceLow,
    StopRequested,
    SubmissionRefused,
    WorkerExited,
)
from swarmd.core.values import Standing
from swarmd.dht.wire.bodies import LeaderboardBody, SavedStandings, save_standings
from swarmd.observe.credit import CAUSES, CreditFacts, CreditStatus, credit_status, read_credit
from swarmd.observe.onchain import ChainStatus
from swarmd.observe.panel import panel_of
from swarmd.observe.status import chain_status
from swarmd.paths import NodeDirectory
from tests.core.story import (
    Story,
    announced,
    chain_settings,
    chain_up,
    coordinator_settings,
    gathered,
    settings,
)
from tests.observe.printing import words_in
from tests.web.page.test_health import shown

OTHERS = (Standing("ann", "ann", 5.0, 6, 5), Standing("bob", "bob", 4.0, 6, 5))
BOARD = SavedStandings("test", 5, OTHERS)


def at_work(rounds: int = 6) -> Story:
    """A node that has reported of some rounds, each of which lasted 100 s, and is in the next."""
    node = Story.joined(settings())
    for round in range(rounds):
        node.tell(announced(round, opened_at=node.at, deadline_at=node.at + 100.0))
        node.at += 60.0
        node.finish(round)
        node.at += 40.0
    node.tell(announced(rounds, opened_at=node.at, deadline_at=node.at + 100.0))
    return node


def judge(node: Story, board: SavedStandings | None = BOARD, config: Config | None = None) -> CreditStatus:
    credit = credit_status(CreditFacts(node.state, node.at + 1.0, None, board, config))
    assert credit is not None
    return credit


def config_with(**dht: object) -> Config:
    return Config(SwarmConfig("test", coordinator="boss"), dht=DhtConfig(**dht))  # type: ignore[arg-type]


def barred() -> CreditStatus:
    node = at_work()
    node.tell(Equivocated("report", "me", 4, 0, b"", b""))
    return judge(node)


def not_listed() -> CreditStatus:
    return judge(at_work(), config=config_with(members=("ann", "bob")))


def not_invited() -> CreditStatus:
    return judge(at_work(), config=config_with(admission="invitation"))


def not_admitted() -> CreditStatus:
    board = replace(BOARD, standings=(*OTHERS, Standing("me", "", 1.0, 6, 5, admitted=False)))
    return judge(at_work(), board)


def isolated() -> CreditStatus:
    node = at_work()
    node.tell(LinkUp(3, (), "connected to 3 peers, but nothing was heard of the coordinator for 47 s"))
    return judge(node)


def unlinked() -> CreditStatus:
    node = at_work()
    node.tell(LinkDown("p2pd ended"))
    node.at += 90.0
    return judge(node)


def stopped() -> CreditStatus:
    node = at_work()
    node.tell(StopRequested("the operator's wish"))
    credit = credit_status(CreditFacts(node.state, node.at, None, BOARD, runs=False))
    assert credit is not None
    return credit


def other_coordinator() -> CreditStatus:
    node = Story.joined(settings())
    node.tell(RecordsRejected("boss2", "not-the-coordinator", 7))
    node.at = 100.0
    return judge(node, None)


def no_coordinator() -> CreditStatus:
    node = Story.joined(settings())
    node.at = 100.0
    return judge(node, None)


def gone_coordinator() -> CreditStatus:
    node = at_work()
    node.finish(6)
    node.at += 300.0
    return judge(node)


def clock_behind() -> CreditStatus:
    node = at_work()
    node.tell(announced(7, opened_at=node.at + 130.0, deadline_at=node.at + 230.0))
    return judge(node)


def clock_ahead() -> CreditStatus:
    node = at_work()
    node.tell(announced(7, opened_at=node.at - 130.0, deadline_at=node.at - 30.0))
    return judge(node)


def failing() -> CreditStatus:
    node = at_work()
    node.tell(gathered(6), CommandFailed("train/6/0", "RuntimeError: no kernel"))
    return judge(node)


def broken() -> CreditStatus:
    node = at_work()
    node.tell(WorkerExited("trainer", "memory ran out\nlast output", signal=9))
    return judge(node)


def full() -> CreditStatus:
    node = at_work()
    node.tell(SpaceLow(10, 20))
    return judge(node)


def slow() -> CreditStatus:
    node = at_work()
    node.tell(RoundsSkipped(4, 5, "slow"))
    return judge(node)


def late() -> CreditStatus:
    node = at_work()
    node.tell(gathered(6))
    node.at += 150.0
    node.tell(announced(7, opened_at=node.at - 10.0, deadline_at=node.at + 90.0))
    node.finish(6)
    return judge(node, replace(BOARD, round=7))


def unknown() -> CreditStatus:
    return judge(at_work())


def on_chain(told: Callable[[Story], object], **figures: object) -> CreditStatus:
    """A node of a swarm with a contract, which has no reward of it yet at round 6."""
    node = Story.on_chain(chain_settings(), chain_up(6, registered_to=""))
    told(node)
    assert node.state.chain is not None
    chain = chain_status(node.state, node.state.chain, 1.0, None, "")
    status: ChainStatus = replace(chain, state="up", **figures)
    credit = credit_status(CreditFacts(node.state, 1.0, status))
    assert credit is not None
    return credit


def unregistered() -> CreditStatus:
    return on_chain(lambda node: node.tell(SubmissionRefused("register", "PeerIdAlreadyRegistered", "by 0x1")))


def poor() -> CreditStatus:
    return on_chain(lambda node: None, registered=True, rounds_paid=0, account="0xme")


def off_the_list() -> CreditStatus:
    return on_chain(lambda node: node.tell(MembershipRead(False, ("ann",))), registered=True)


PLANTED = [
    (barred, "identity barred", "nothing of it counts until round 68; run it in one place only"),
    (not_listed, "not a member", "ask whoever runs the coordinator to add me"),
    (not_invited, "not admitted", "`swarmd swarm invite me`"),
    (not_admitted, "not admitted", "proof of work or invitation is missing"),
    (unregistered, "not registered", "PeerIdAlreadyRegistered: by 0x1"),
    (poor, "no funds", "its account 0xme cannot pay"),
    (off_the_list, "not on the allow-list", "to add me"),
    (isolated, "no connection", "nothing was heard of the coordinator for 47 s: `swarmd doctor`"),
    (unlinked, "no connection", "cut off from the swarm (p2pd ended): `swarmd doctor`"),
    (stopped, "not running", "it does not run (the operator's wish): `swarmd run` starts it"),
    (other_coordinator, "another coordinator", "another than swarm.coordinator, boss"),
    (no_coordinator, "coordinator absent", "no round was announced in 1m 41s"),
    (gone_coordinator, "coordinator absent", "since the last deadline, 3m 21s ago"),
    (clock_behind, "clock wrong", "2m 10s behind the coordinator's: set it right (`timedatectl"),
    (clock_ahead, "clock wrong", "at least 30s ahead of the coordinator's"),
    (failing, "training fails", "`swarmd explain` says why"),
    (broken, "training fails", "its trainer does not run: memory ran out; `swarmd explain`"),
    (full, "training fails", "its disk is full: free some space"),
    (
        slow,
        "too slow",
        "a stage takes 1m 0s here, and the swarm's are open for up to 1m 40s; train less",
    ),
    (late, "reports late", "after their stages have closed: a stage takes 2m 30s here"),
    (
        unknown,
        "unknown",
        "none so far is on the leaderboard that it read (of round 5): ask whoever",
    ),
]


@pytest.mark.parametrize(("plant", "cause", "words"), PLANTED, ids=lambda each: getattr(each, "__name__", None))
def test_each_cause_is_named_with_the_next_step(plant: Callable[[], CreditStatus], cause: str, words: str) -> None:
    credit = plant()
    assert (credit.state, credit.cause) == ("not credited", cause)
    assert words in credit.words and not credit.words.endswith(".")


def test_every_cause_is_planted() -> None:
    assert {cause for _, cause, _ in PLANTED} == {*CAUSES, "unknown"}


def test_a_node_whose_reports_count_is_told_so_whatever_else_is_amiss() -> None:
    node = at_work()
    board = replace(BOARD, standings=(*OTHERS, Standing("me", "", 1.0, 6, 5)))
    node.tell(RoundsSkipped(5, 5, "slow"))
    assert judge(node, board) == CreditStatus("credited", "", "its reports count, the last one that of round 5")
    gone = replace(BOARD, standings=(*OTHERS, Standing("me", "", 1.0, 2, 1)))
    assert judge(node, gone).cause == "too slow", "what counted long ago says nothing of now"


def test_a_new_node_waits_for_its_first_leaderboard_and_a_coordinator_has_none_to_wait_for() -> None:
    assert judge(at_work(0), None).state == judge(at_work(1), None).state == "pending"
    node = Story.joined(coordinator_settings())
    assert (
        credit_status(CreditFacts(node.state, 1.0)) is None
        and credit_status(CreditFacts(Story(settings()).state, 1.0)) is None
    )


def test_a_reward_on_the_chain_is_credit() -> None:
    node = Story.on_chain(chain_settings(), chain_up(6))
    assert node.state.chain is not None
    known = CreditFacts(replace(node.state, chain=replace(node.state.chain, reward_mark=(5, 0))), 1.0)
    credit = credit_status(known)
    assert credit is not None and credit.state == "credited"


def test_the_leaderboard_on_disk_is_read_and_status_shows_it(tmp_path: Path) -> None:
    node, paths = at_work(), NodeDirectory(tmp_path)
    paths.network.mkdir()
    before = read_credit(node.state, node.at, paths, None, None)
    assert before is not None and "(none yet)" in before.words
    save_standings(paths.standings, "test", LeaderboardBody(5, (*OTHERS, Standing("me", "", 1.0, 6, 5)), ()))
    credit = read_credit(node.state, node.at, paths, None, None)
    assert credit is not None and credit.state == "credited"
    picture = panel_of(replace(shown(node.state, node.at), credit=credit))
    assert "credit its reports count, the last one that of round 5" in words_in(picture)
