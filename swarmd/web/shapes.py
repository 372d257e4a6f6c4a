"""The answers of the HTTP interface, as Structs, from which the OpenAPI document is made.

Times are POSIX seconds (float, UTC), durations seconds; rounds and stages count from 0, and are -1 if none is known.
Texts of peers are as they came, cut to a length: show them as text, never as markup.
"""

import asyncio
from typing import Any, Literal

import msgspec

from swarmd.core.values import SetAside
from swarmd.errors import SwarmdError
from swarmd.observe.status import ProcessState
from swarmd.results.history import SkillCurve

EVENTS_PAGE_MAX = 1000  # events in one answer
GOSSIP_KEPT = 200  # most recent messages
GOSSIP_CHARACTERS_MAX = 2000  # of one message's text
CURVE_POINTS_MAX = 512  # of one peer; older ones are thinned
CURVES_MAX = 20  # peers in one answer
OVERVIEW_BUCKETS_MAX = 2048  # in one overview
OVERVIEW_ROUNDS_MAX = 512  # marks of rounds in one overview; if there are more, every second, third, ... is given


class Failure(msgspec.Struct, frozen=True):
    """Any refusal."""

    detail: str  # a short word: not-found, bad-request, too-large, ...
    message: str


# --- the swarm ---


class PeerRow(msgspec.Struct, frozen=True):
    """One row of the leaderboard."""

    id: str
    name: str
    rank: int  # 1 is first
    reward: float  # in all rounds known
    rounds: int  # with a report
    last_round: int
    last_stage: int
    last_reward: float | None  # of that stage; null: not known here
    seen_at: float | None = None  # when something of it was seen last
    present: bool = True  # False: it left, or its membership expired, up to dht.record_s after it died
    votes: int | None = None  # received on the chain; None in a swarm without one
    known: bool = True  # False: no reward of it is known here, and `reward` says nothing
    admitted: bool = True  # by proof of work or an invitation; those that are not come after those that are
    barred_until: int | None = None  # it signed two reports of one stage: nothing of it counts before this round


class PeerPage(msgspec.Struct, frozen=True):
    """`GET /api/v1/swarm/peers?first=N&count=N&find=TEXT`: part of the leaderboard, or of those who were looked for."""

    total: int  # peers in all
    found: int  # that were looked for; without `find` all of them
    peers: tuple[PeerRow, ...]  # by rank; those who are called exactly so come first


class ChainView(msgspec.Struct, frozen=True):
    """The contract behind a swarm, as the node's log or an endpoint knows it."""

    chain_id: int
    contract: str
    round: int
    stage: int
    head: int  # block number
    account: str = ""  # this node's
    votes: tuple[tuple[str, int, tuple[str, ...]], ...] = ()  # latest: (voter, round, the first winners, how many more)
    submissions: tuple[tuple[str, str, str], ...] = ()  # own latest: (id, chart state, transaction hash)


class SwarmView(msgspec.Struct, frozen=True):
    """`GET /api/v1/swarm`: where the swarm is and who takes part."""

    swarm: str
    kind: str
    source: str  # "log": a node's event log; "dht": read as an observer, in the DHT and in the contract
    at: float  # when this was known
    round: int
    stage: int
    stages: int  # in a round
    opened_at: float | None
    deadline_at: float | None
    final: bool
    coordinator: str  # peer id, empty if a contract keeps the rounds
    reports: int  # for the open stage, as far as known
    expected: int | None  # reports that the coordinator waits for; only it knows
    peers: tuple[PeerRow, ...] = ()  # by rank
    total: int = 0  # number of all peers; `peers` may be cut
    chain: ChainView | None = None
    # Of the node whose log is read: what a "dead" or "stopped" one says was true when its log ended. Empty of the DHT.
    process: ProcessState | Literal[""] = ""
    notes: tuple[str, ...] = ()  # what is unknown here and why, in sentences
    out_of_reach: bool = False  # an observer reaches nobody of the swarm


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One reward: [round, stage, reward, time]."""

    round: int
    stage: int
    reward: float
    at: float


class Curve(msgspec.Struct, frozen=True):
    """A peer's rewards by stage, oldest first."""

    id: str
    name: str
    points: tuple[Point, ...]


class Curves(msgspec.Struct, frozen=True):
    """`GET /api/v1/swarm/curves?peer=ID&peer=ID`: those asked for, by default the first ten."""

    curves: tuple[Curve, ...]


class Message(msgspec.Struct, frozen=True):
    """One completion that a peer shared. What this node's trainer alone knows of it is there once it has scored it."""

    id: str
    peer: str
    name: str
    round: int
    stage: int
    task: str
    question: str  # empty if only its reference is known
    text: str
    at: float
    seq: int | None = None  # event of the node's log that brought it
    completions: int = 1  # of the same peer to the same question; this is one of them
    truth: str | None = None  # the expected answer; empty: there is none; null: not known here
    reward: float | None = None  # of this completion, as this node scores it; null: not scored here
    right: bool | None = None  # whether its answer counts as correct
    mean_reward: float | None = None  # of all its `completions`


class Gossip(msgspec.Struct, frozen=True):
    """`GET /api/v1/swarm/gossip?since_round=N`: newest first."""

    messages: tuple[Message, ...]


# --- a node ---


class EventRow(msgspec.Struct, frozen=True):
    """One event in words."""

    seq: int
    at: float
    type: str
    level: str
    text: str
    round: int | None = None
    stage: int | None = None
    peer: str = ""


class EventPage(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/events?first=SEQ&count=N`: N events from `first` on; a negative `first` counts from the end."""

    begin: int  # first event that the log still has
    end: int  # the next event's number
    events: tuple[EventRow, ...]


class RoundMark(msgspec.Struct, frozen=True, array_like=True):
    """Where a round begins: [round, event, time]. The event announces it, or is the first to name it."""

    round: int
    seq: int
    at: float


class Overview(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/overview?since=T&until=T&buckets=N`: the number of events over time, for drawing them.

    Without `since` and `until` it is the whole log. Buckets are equally long parts of that time. An event whose time is
    earlier than that of the one before it (a clock was set back) counts at the time of the one before.
    """

    begin: int  # first event that the log still has
    end: int  # the next event's number
    since: float
    until: float
    lanes: tuple[str, ...]  # rounds, network, training, chain, workers, stops
    types: dict[str, str]  # event type -> lane; every type there is
    firsts: tuple[int, ...]  # number of the first event at or after a bucket's start; one more, for `until`
    counts: tuple[tuple[int, ...], ...]  # by lane, then bucket
    warnings: tuple[int, ...]  # by bucket: events of level warning or error
    rounds: tuple[RoundMark, ...]  # that begin in this time


class ChangeRow(msgspec.Struct, frozen=True):
    """One field of the state that an event changed."""

    path: str
    before: Any
    after: Any


class CommandRow(msgspec.Struct, frozen=True):
    """One command that an event caused."""

    id: str
    type: str
    fields: dict[str, Any]


class Moment(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/moments/SEQ`: an event, what it changed and caused, and the state after it."""

    event: EventRow
    fields: dict[str, Any]  # of the event
    charts: dict[str, str]  # chart's name (round, link, chain, trainer, coordinator) -> state it is in
    before: dict[str, str]  # the same, before the event
    changes: tuple[ChangeRow, ...]
    commands: tuple[CommandRow, ...]
    pending: tuple[CommandRow, ...]  # not yet answered
    deadlines: tuple[tuple[str, float], ...]  # (name, due at)
    state: dict[str, Any]


class ChartState(msgspec.Struct, frozen=True):
    """One state of a chart; `parent` is empty at the top."""

    name: str  # dotted: "round.training"
    label: str  # last part
    parent: str


class ChartEdge(msgspec.Struct, frozen=True):
    """One transition; `source` "*" is every state."""

    trigger: str
    source: str
    dest: str


class ChartView(msgspec.Struct, frozen=True):
    """A statechart to draw."""

    name: str
    initial: str
    states: tuple[ChartState, ...]
    edges: tuple[ChartEdge, ...]


class ChartsView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/charts`."""

    charts: tuple[ChartView, ...]
    now: dict[str, str]  # as in `Moment.charts`, for the log's end


class StageRow(msgspec.Struct, frozen=True):
    """What this node did of one stage, and how long each part took. None: not reached, or not seen."""

    round: int
    stage: int
    first_seq: int
    joined_at: float
    gathered_s: float | None = None
    trained_s: float | None = None
    published_s: float | None = None
    submitted_s: float | None = None
    reward: float | None = None
    held_out: float | None = None
    outcome: str = "open"  # open, done, abandoned
    set_aside: tuple[SetAside, ...] = ()  # what of peers' rollouts was not learnt from


class SkipRow(msgspec.Struct, frozen=True):
    """Rounds that were skipped as one."""

    first: int
    last: int
    cause: str
    seq: int
    at: float


class StagesView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/stages`: oldest first, the most recent 500."""

    stages: tuple[StageRow, ...]
    skips: tuple[SkipRow, ...]
    set_aside: str = ""  # how much of peers' rollouts the last stages did not learn from, in words; empty: nothing
    example: str = ""  # of it, with a peer's own words


class TrainedStage(msgspec.Struct, frozen=True):
    """One trained stage, as `swarmd report` has it."""

    round: int
    stage: int
    seq: int  # of the event that reports it
    at: float
    reward: float | None  # mean of the node's own completions
    held_out: float | None  # accuracy on held-out questions, if it was measured
    steps: int
    tokens: int
    seconds: float
    peer_groups: int  # peers' groups trained on
    refused: int  # peers' groups refused


class TrainingView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/training`: what each stage gave, oldest first; of many, the older half is thinned."""

    stages: tuple[TrainedStage, ...]
    total: int  # stages trained, as far as the log reaches back
    held_out_before: float | None = None  # accuracy before the node's very first step
    skills: tuple[SkillCurve, ...] = ()  # held-out accuracy by task, after those stages that it was measured after
    reward_max: float | None = None  # the most that a completion can be worth, if the plan says so


class TaskRow(msgspec.Struct, frozen=True):
    """One task of the mixture."""

    name: str
    weight: float
    settings: dict[str, Any]


class RecipeView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/recipe`: what this node trains and how. From the log; tasks and settings from its
    configuration."""

    swarm: str
    kind: str  # empty: neither log nor configuration says
    role: str
    stages: int  # in a round
    model: str  # as the trainer loaded it; before that as configured
    revision: str
    device: str
    parameters: int
    numbers: str  # that the model is held and trained in
    configured: bool  # whether the configuration is known here
    tasks: tuple[TaskRow, ...] = ()  # none: the kind's own mixture
    settings: tuple[tuple[str, Any], ...] = ()  # (key of [training], value)


class PageSource(msgspec.Struct, frozen=True):
    """`GET /api/v1/here`: what this server shows; the page asks it first."""

    version: str
    node: bool  # a node's log: the node page works
    swarm: bool  # the swarm page works
    live: bool  # the log grows, or the DHT is followed; False for an archive
    peer: str = ""
    name: str = ""
    swarm_id: str = ""
    data: str = ""  # last part of the directory that is read
    trouble: str = ""  # why the log cannot be read, or not to its end: what is shown is what lies before
    read: float = 1.0  # share of the log that has been read; below 1 right after the start on a long log


# `GET /api/v1/node/status` answers with `swarmd.observe.status.Status`.
#
# `GET /api/v1/stream` is a stream of server-sent events:
#   event: event   data: EventRow          id: its seq; a client that comes again with Last-Event-ID gets what it missed
#   event: charts  data: {chart: state}    after each commit that changed any
#   event: status  data: Status            at most twice a second, when it changed, and every 5 s
#   event: swarm   data: SwarmView         at most once a second, when it changed
#   event: gossip  data: Message           as they come
#
# Pages: `/` is static/swarm.html, `/node` static/node.html, `/login` static/login.html; `/static/NAME` is any other
# file of that folder. Pages and what is in static/ are served to anybody: they hold nothing of the node. Where a token
# is asked for, /api/ answers 401 without it, and the page goes to `/login?next=PATH`. Its form POSTs `token` and `next`
# (form-urlencoded) to `/login`: 303 to `next`, a path of this server, with a cookie (HttpOnly, SameSite=Strict), or,
# for a wrong token, 303 to `/login?failed=1&next=PATH`.
# Every answer has a Date header: the page's countdowns go by it.


PEERS_ANSWERED_MAX = 2000  # of one view or page; `total` says how many there are


class Unavailable(SwarmdError):
    """What was asked for is not available now; the message says why."""


class ChangeSignal:
    """Signals changes to all waiting coroutines of one event loop."""

    def __init__(self) -> None:
        self.version = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters: something changed. Call it in the loop's thread."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer_than(self, version: int) -> int:
        """Wait for a version other than `version` and return it."""
        while self.version == version:
            await self._changed.wait()
        return self.version
