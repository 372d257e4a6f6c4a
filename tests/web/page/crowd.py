"""A server of a crowd that no test's log could hold: 1,000 peers and 100,000 events, in the page's shapes."""

import asyncio
import bisect
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from swarmd.core.chart import load_charts
from swarmd.observe.status import LogStatus, status_of
from swarmd.observe.story import Story as RoundStory
from swarmd.web import shapes
from swarmd.web.shapes import PEERS_ANSWERED_MAX
from tests.core.story import Story, settings

STATIC = Path(shapes.__file__).parent / "static"
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
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'"
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


def charts() -> shapes.ChartsView:
    loaded = load_charts()
    views = []
    for name in ("round", "link", "trainer"):
        source = getattr(loaded, name).source
        states: list[shapes.ChartState] = []
        for state in source["states"]:
            top = state if isinstance(state, str) else state["name"]
            states.append(shapes.ChartState(top, top, ""))
            children = [] if isinstance(state, str) else state["children"]
            states += [shapes.ChartState(f"{top}.{child}", child, top) for child in children]
        edges = [
            shapes.ChartEdge(edge["trigger"], each, edge["dest"])
            for edge in source["transitions"]
            for each in (edge["source"] if isinstance(edge["source"], list) else [edge["source"]])
        ]
        views.append(shapes.ChartView(name, source["initial"], tuple(states), tuple(edges)))
    return shapes.ChartsView(tuple(views), moment(EVENTS - 1).charts)


def status() -> Any:
    node = Story.joined(settings())
    return status_of(node.state, node.at + 5, LogStatus("events", EVENTS, 1))


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


def recipe() -> shapes.RecipeView:
    return shapes.RecipeView("crowd", "digits", "follower", 1, "embedded", "", "cpu", 500_000, "float32", False)


def story(round_: int) -> RoundStory:
    return RoundStory(round_, "trained", f"Round {round_} was trained by this node: reward 0.700.")


def answer(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def number(request: Request, name: str, default: float) -> float:
    return float(request.query_params.get(name, default))


async def events(request: Request) -> Response:
    first, count = int(number(request, "first", 0)), int(number(request, "count", 1000))
    first = max(0, EVENTS + first if first < 0 else first)
    return answer(shapes.EventPage(0, EVENTS, tuple(row(seq) for seq in range(first, min(EVENTS, first + count)))))


async def overview_of(request: Request) -> Response:
    since, until = number(request, "since", BEGAN_AT), number(request, "until", time_of(EVENTS - 1))
    return answer(await asyncio.to_thread(overview, since, until, int(number(request, "buckets", 512))))


async def stream(_: Request) -> Response:
    async def quiet() -> AsyncIterator[bytes]:
        yield b": nothing happens here\n\n"
        await asyncio.sleep(3600)

    return StreamingResponse(quiet(), media_type="text/event-stream")


def application(live: bool, peers: int) -> Starlette:
    here = shapes.PageSource(
        version="0", node=True, swarm=True, live=live, name="node-1", swarm_id="crowd", data="crowd"
    )
    fixed = {
        "here": here,
        "swarm": swarm(peers),
        "swarm/gossip": shapes.Gossip(()),
        "node/charts": charts(),
        "node/status": status(),
        "node/stages": stages(),
        "node/training": training(),
        "node/recipe": recipe(),
    }

    def give(value: object) -> Any:
        body = msgspec.json.encode(value)
        return lambda _: Response(body, media_type="application/json")

    async def page_of_peers(request: Request) -> Response:
        first, count = int(number(request, "first", 0)), int(number(request, "count", PEERS_ANSWERED_MAX))
        assert count <= PEERS_ANSWERED_MAX
        rows = tuple(map(peer_row, range(first, min(peers, first + count))))
        return answer(shapes.PeerPage(peers, peers, rows))

    def page(name: str) -> Any:
        return lambda _: FileResponse(STATIC / name, headers={"Content-Security-Policy": POLICY})

    return Starlette(
        routes=[
            Route("/", page("swarm.html")),
            Route("/node", page("node.html")),
            *[Route(f"/api/v1/{path}", give(value)) for path, value in fixed.items()],
            Route("/api/v1/swarm/peers", page_of_peers),
            Route("/api/v1/swarm/curves", lambda request: answer(curves(request.query_params.getlist("peer")))),
            Route("/api/v1/node/events", events),
            Route("/api/v1/node/overview", overview_of),
            Route("/api/v1/node/moments/{seq:int}", lambda request: answer(moment(request.path_params["seq"]))),
            Route("/api/v1/node/rounds/{round:int}", lambda request: answer(story(request.path_params["round"]))),
            Route("/api/v1/stream", stream),
            Route("/api/{rest:path}", lambda _: JSONResponse({"detail": "not-found", "message": "No such path."}, 404)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )


@contextmanager
def serving(live: bool = False, peers: int = PEERS) -> Iterator[str]:
    """The crowd on a free port of loopback; gives its URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        server = uvicorn.Server(
            uvicorn.Config(application(live, peers), log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
