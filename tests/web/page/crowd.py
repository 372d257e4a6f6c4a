"""A server of a crowd that no test's log could hold: 1,000 peers and 100,000 events, in the page's shapes."""

import asyncio
import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from swarmd.observe.status import LogStatus, status_of
from swarmd.observe.story import Story as RoundStory
from swarmd.uvicorn_server import url_of
from swarmd.web import shapes
from swarmd.web.moments import charts_view
from swarmd.web.shapes import PEERS_ANSWERED_MAX
from tests.core.story import Story, settings
from tests.web.serving import running

BARRED = 3  # the peer with two reports of one stage
PEERS = 1000
EVENTS = 100_000
EVENTS_A_ROUND = 20
ROUND_S = 60.0
BEGAN_AT = 1_760_000_000.0
LANES = ("rounds", "network", "training", "chain", "workers", "stops")
# One round of a node: type, lane, level, words, state of the chart `round` after it.
ROUND = (
    ("round_announced", 0, "info", "round {round} stage 0 is open", "round.gathering"),
    ("rollouts_gathered", 0, "info", "peers' rollouts gathered for round {round}", "round.training"),
    *[("report_seen", 1, "info", "report of round {round} from peer {n}", "round.training")] * 14,
    ("stage_trained", 2, "info", "round {round} stage 0 trained in 31.0 s, reward 0.7000", "round.publishing"),
    ("records_rejected", 1, "warning", "3 records refused: signature", "round.publishing"),
    ("report_published", 0, "info", "report of round {round} stage 0 published", "round.settling"),
    ("link_up", 1, "debug", "connected to the DHT, 999 peers", "round.settling"),
)


def peer_id(number: int) -> str:
    return f"12D3KooW{number:06d}{'x' * 38}"


def time_of(seq: int) -> float:
    return BEGAN_AT + seq * ROUND_S / EVENTS_A_ROUND


def row(seq: int) -> shapes.EventRow:
    round_, n = divmod(seq, EVENTS_A_ROUND)
    kind, _, level, words, _ = ROUND[n]
    text = words.format(round=round_, n=n)
    return shapes.EventRow(seq=seq, at=time_of(seq), type=kind, level=level, text=text, round=round_, stage=0)


def moment(seq: int) -> shapes.Moment:
    chart, before = ROUND[seq % EVENTS_A_ROUND][4], ROUND[(seq - 1) % EVENTS_A_ROUND][4]
    return shapes.Moment(
        event=row(seq),
        fields={"round": seq // EVENTS_A_ROUND},
        charts={"round": chart, "link": "up", "trainer": "busy"},
        before={"round": before, "link": "up", "trainer": "busy"},
        changes=(shapes.ChangeRow("chart", before, chart),) if chart != before else (),
        commands=(),
        pending=(),
        deadlines=(("stage", time_of(seq) + 5.0),),
        state={"chart": chart, "peers": [{"peer": peer_id(n), "reward": n / 7} for n in range(PEERS)]},
    )


def overview(since: float, until: float, buckets: int) -> shapes.Overview:
    def first(at: float) -> int:
        return min(EVENTS, max(0, bisect.bisect_left(range(EVENTS), at, key=time_of)))

    firsts = [first(since + (until - since) * n / buckets) for n in range(buckets)] + [first(until)]
    counts = [[0] * buckets for _ in LANES]
    warnings = [0] * buckets
    for bucket, (begin, end) in enumerate(pairwise(firsts)):
        for seq in range(begin, end):
            counts[ROUND[seq % EVENTS_A_ROUND][1]][bucket] += 1
            warnings[bucket] += ROUND[seq % EVENTS_A_ROUND][2] == "warning"
    starts = [seq for seq in range(0, EVENTS, EVENTS_A_ROUND) if since <= time_of(seq) < until]
    thin = starts[:: 1 + len(starts) // shapes.OVERVIEW_ROUNDS_MAX]
    return shapes.Overview(
        begin=0,
        end=EVENTS,
        since=since,
        until=until,
        lanes=LANES,
        types={kind: LANES[lane] for kind, lane, _, _, _ in ROUND},
        firsts=tuple(firsts),
        counts=tuple(map(tuple, counts)),
        warnings=tuple(warnings),
        rounds=tuple(shapes.RoundMark(seq // EVENTS_A_ROUND, seq, time_of(seq)) for seq in thin),
    )


def peer_row(n: int) -> shapes.PeerRow:
    rounds = EVENTS // EVENTS_A_ROUND
    return shapes.PeerRow(
        id=peer_id(n),
        name=f"quiet lively heron {n}",
        rank=n + 1,
        reward=round(4000 / (1 + n / 60), 3),
        rounds=max(0, rounds - n),
        last_round=rounds - 1,
        last_stage=2,
        last_reward=round(0.9 - n / 2000, 3),
        seen_at=time_of(EVENTS) - n,
        barred_until=rounds + 40 if n == BARRED else None,
    )


def swarm(count: int) -> shapes.SwarmView:
    rounds = EVENTS // EVENTS_A_ROUND
    return shapes.SwarmView(
        swarm="crowd",
        kind="gsm8k",
        source="dht",
        at=time_of(EVENTS),
        round=rounds,
        stage=1,
        stages=3,
        opened_at=time_of(EVENTS) - 40,
        deadline_at=time_of(EVENTS) + 20,
        final=False,
        coordinator=peer_id(0),
        reports=640,
        expected=None,
        total=count,
        peers=tuple(map(peer_row, range(min(count, PEERS_ANSWERED_MAX)))),
        notes=("How many reports the coordinator waits for is known to the coordinator alone.",),
    )


def curves(asked: list[str]) -> shapes.Curves:
    ids = asked or [peer_id(n) for n in range(10)]
    return shapes.Curves(
        tuple(
            shapes.Curve(
                name,
                f"quiet lively heron {name[8:14].lstrip('0') or 0}",
                tuple(
                    shapes.Point(n, 0, 0.9 - 0.7 / (1 + n / 60) + ((n * 37 + k * 11) % 13) / 150, time_of(n * 20))
                    for n in range(shapes.CURVE_POINTS_MAX)
                ),
            )
            for k, name in enumerate(ids)
        )
    )


def stages() -> shapes.StagesView:
    rounds = range(EVENTS // EVENTS_A_ROUND - 500, EVENTS // EVENTS_A_ROUND)
    return shapes.StagesView(
        tuple(
            shapes.StageRow(n, 0, n * 20, time_of(n * 20), 2.0 + n % 3, 31.0 + n % 7, 1.0, 0.5, 0.7, outcome="done")
            for n in rounds
        ),
        (),
    )


def training() -> shapes.TrainingView:
    rows = tuple(
        shapes.TrainedStage(
            round_, 0, round_ * EVENTS_A_ROUND + 16, time_of(round_ * EVENTS_A_ROUND), 0.7, 0.5, *counts
        )
        for round_, counts in ((each, (40, 4000, 31.0, 4, 0)) for each in range(EVENTS // EVENTS_A_ROUND)[-1000:])
    )
    return shapes.TrainingView(rows, EVENTS // EVENTS_A_ROUND, 0.1)


class Crowd:
    """In the place of a node's log and of its swarm."""

    def __init__(self, live: bool, peers: int) -> None:
        node = Story.joined(settings())
        self.state = node.state
        self.told: Any = None
        self.generation, self.next_seq = 0, EVENTS
        self.changes = shapes.ChangeSignal()
        self._live, self._peers = live, peers
        self._status = status_of(node.state, node.at + 5, LogStatus("events", EVENTS, 1))

    async def start(self) -> None:
        """It is all there."""

    stop = start

    def here(self) -> shapes.PageSource:
        return shapes.PageSource("0", node=True, swarm=True, live=self._live, name="node-1", swarm_id="crowd")

    async def view(self, peers_max: int = PEERS_ANSWERED_MAX) -> shapes.SwarmView:
        return swarm(self._peers)

    async def peers(self, first: int, count: int, find: str = "") -> shapes.PeerPage:
        rows = tuple(map(peer_row, range(first, min(self._peers, first + count))))
        return shapes.PeerPage(self._peers, self._peers, rows)

    async def curves(self, peer: tuple[str, ...]) -> shapes.Curves:
        return curves(list(peer))

    async def gossip(self, since_round: int = -1) -> shapes.Gossip:
        return shapes.Gossip(())

    async def messages_since(self, count: int) -> tuple[list[shapes.Message], int]:
        return [], count

    async def events(self, first: int, count: int) -> shapes.EventPage:
        first = max(0, EVENTS + first if first < 0 else first)
        return shapes.EventPage(0, EVENTS, tuple(row(seq) for seq in range(first, min(EVENTS, first + count))))

    async def moment(self, seq: int) -> shapes.Moment:
        return moment(seq)

    def charts(self) -> shapes.ChartsView:
        return charts_view(self.state)

    def stages(self) -> shapes.StagesView:
        return stages()

    def training(self) -> shapes.TrainingView:
        return training()

    def recipe(self) -> shapes.RecipeView:
        return shapes.RecipeView("crowd", "digits", "follower", 1, "embedded", "", "cpu", 500_000, "float32", False)

    async def story(self, round: int) -> RoundStory:
        return RoundStory(round, "trained", f"Round {round} was trained by this node: reward 0.700.")

    async def overview(self, since: float | None, until: float | None, buckets: int) -> shapes.Overview:
        return await asyncio.to_thread(overview, since or BEGAN_AT, until or time_of(EVENTS - 1), buckets)

    async def shown_status(self) -> Any:
        return self._status

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        return b"", "text/plain"


@contextmanager
def serving(live: bool = False, peers: int = PEERS) -> Iterator[str]:
    """The crowd on a free port of loopback; gives its URL."""
    crowd: Any = Crowd(live, peers)
    with running(crowd) as endpoint:
        yield url_of(endpoint)
