"""What a node has against its coordinator and its peers is told wherever an operator looks."""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.core.events import LeaderboardSeen, RoundAnnounced
from swarmd.core.node.catchup import advance
from swarmd.core.peers.claims import GAPS_MIN
from swarmd.core.peers.conduct import LEFT_OUT_MIN
from swarmd.core.peers.observed import StageAccount
from swarmd.core.state import State
from swarmd.core.values import Backing, Claim, Promised
from swarmd.observe.narrative.lines import EventLine, line_of
from swarmd.observe.narrative.phrases import Sentence, sentences_of
from swarmd.observe.status import LogStatus, Status, status_of
from tests.core.story import Story, announced, gathered, settings, trained


class Watcher:
    """Tells a node events, and keeps the line and the sentences of each."""

    def __init__(self) -> None:
        self.story = Story(settings(promised=Promised(60.0, 1.0, 15.0)))
        self.story.join()
        self.lines: list[EventLine] = []
        self.sentences: list[Sentence] = []

    def tell(self, *events: object) -> None:
        for event in events:
            story = self.story
            for applied in advance(story.state, story.seq, story.at, (event,)):  # type: ignore[arg-type]
                self.lines.append(line_of(applied))
                self.sentences += sentences_of(applied, story.at)
            story.tell(event)  # type: ignore[arg-type]

    @property
    def state(self) -> State:
        return self.story.state

    @property
    def status(self) -> Status:
        return status_of(self.state, self.story.at, LogStatus("", 0, 0))


def test_a_coordinator_that_leaves_out_is_told_in_status_log_and_story() -> None:
    node = Watcher()
    for round in range(LEFT_OUT_MIN + 1):
        node.story.at = 30.0 * round
        node.tell(RoundAnnounced(round, 0, 30.0 * round, 30.0 * round + 60.0))
        account = StageAccount(0, 2, 0, 30.0 * round - 25.0, ("me",), ("me",))
        node.tell(LeaderboardSeen(round - 1, round - 2, stages=(account,)))
    words = "the coordinator leaves out reports that could be read in time: this node's own, 5 of the last 5"
    assert node.status.conduct == "leaves-out" and any(words in note for note in node.status.notes)
    assert [line.level for line in node.lines if words in line.message] == ["warning"]
    assert [sentence.trouble for sentence in node.sentences if words in sentence.text] == [True]


def test_a_verdict_that_holds_no_more_is_told_once() -> None:
    node = Watcher()
    for round in range(20):
        open_s = 1.0 if round < 3 else 60.0
        node.story.at = 30.0 * round
        node.tell(RoundAnnounced(round, 0, 30.0 * round, 30.0 * round + open_s))
    told = [line for line in node.lines if "coordinator" in line.message]
    assert [line.level for line in told] == ["warning", "info"]
    assert node.status.conduct == "" and node.status.notes == ()


def test_a_peer_that_claims_too_much_is_named_once() -> None:
    node = Watcher()
    for round in range(1, GAPS_MIN + 3):
        claimed = replace(gathered(round), claims=(Claim("liar", 0.9),))
        node.tell(announced(round), claimed)
        node.tell(replace(trained(round), backed=(Backing("liar", 3.0, 10, 3.0, 1.0, 10),)))
    assert node.status.unbacked == ("liar",) and "liar claims more than its rollouts" in node.status.notes[-1]
    assert [line.level for line in node.lines if "liar claims" in line.message] == ["warning"]
    assert len([sentence for sentence in node.sentences if "liar claims" in sentence.text]) == 1
