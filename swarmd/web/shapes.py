"""The answers of the HTTP interface, as Structs, from which the OpenAPI document is made.

Times are POSIX seconds (float, UTC), durations seconds; rounds and stages count from 0, and are -1 if unknown. Peers'
texts are only cut and redacted: show them as text, never as markup.
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
OVERVIEW_ROUNDS_MAX = 512  # round marks in one overview; if there are more, only every second, third, ... is given


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
    reward: float  # in all known rounds
    rounds: int  # number of rounds with a report
    last_round: int
    last_stage: int
    last_reward: float | None  # reward of `last_stage`; null if unknown
    seen_at: float | None = None  # time of the last sign of life
    present: bool = True  # False: it left, or its membership expired, up to dht.record_s after it died
    votes: int | None = None  # received on the chain; None in a swarm without one
    known: bool = True  # False: none of its rewards is known here, and `reward` is meaningless
    admitted: bool = True  # by proof of work or an invitation; peers that are not admitted come last
    barred_until: int | None = None  # it signed two reports for one stage: nothing of it counts before this round


class PeerPage(msgspec.Struct, frozen=True):
    """`GET /api/v1/swarm/peers?first=N&count=N&find=TEXT`: part of the leaderboard, or of the peers that match TEXT."""

    total: int  # number of all peers
    found: int  # number of peers that match; without `find` all of them
    peers: tuple[PeerRow, ...]  # by rank; exact matches first


class ChainView(msgspec.Struct, frozen=True):
    """The contract behind a swarm, as the node's log or an endpoint knows it."""

    chain_id: int
    contract: str
    round: int
    stage: int
    head: int  # block number
    account: str = ""  # this node's
    votes: tuple[tuple[str, int, tuple[str, ...]], ...] = ()  # latest: (voter, round, first winners and how many more)
    submissions: tuple[tuple[str, str, str], ...] = ()  # this node's latest: (id, chart state, transaction hash)


class SwarmView(msgspec.Struct, frozen=True):
    """`GET /api/v1/swarm`: where the swarm is and who takes part."""

    swarm: str
    kind: str
    source: str  # "log": a node's event log; "dht": an observer's reading of the DHT and the contract
    at: float  # the time that the view describes
    round: int
    stage: int
    stages: int  # in a round
    opened_at: float | None
    deadline_at: float | None
    final: bool
    coordinator: str  # peer id, empty if a contract keeps the rounds
    reports: int  # for the open stage, as far as known
    expected: int | None  # number of reports that the coordinator waits for; only the coordinator knows it
    peers: tuple[PeerRow, ...] = ()  # by rank
    total: int = 0  # number of all peers; `peers` may be cut
    chain: ChainView | None = None
    # Process of the node whose log is read; if "dead" or "stopped", the view was true when the log ended. Empty for the
    # DHT.
    process: ProcessState | Literal[""] = ""
    notes: tuple[str, ...] = ()  # what is unknown here and why, in sentences
    out_of_reach: bool = False  # the observer reaches no node of the swarm


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
    """`GET /api/v1/swarm/curves?peer=ID&peer=ID`: of the peers asked for, by default the first ten."""

    curves: tuple[Curve, ...]


class Message(msgspec.Struct, frozen=True):
    """One completion that a peer shared. `truth` and rewards are set once this node's trainer has scored it."""

    id: str
    peer: str
    name: str
    round: int
    stage: int
    task: str
    question: str  # empty if only a reference to the question is known
    text: str
    at: float
    seq: int | None = None  # event of the node's log that named it
    completions: int = 1  # number of completions by the same peer to the same question, of which this is one
    truth: str | None = None  # the expected answer; empty: there is none; null: unknown here
    reward: float | None = None  # of this completion, as scored by this node; null: not scored here
    right: bool | None = None  # whether its answer counts as correct
    mean_reward: float | None = None  # mean over all `completions`


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
    end: int  # number of the next event
    events: tuple[EventRow, ...]


class RoundMark(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a round: [round, event, time]. The event announces the round, or is the first to name it."""

    round: int
    seq: int
    at: float


class Overview(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/overview?since=T&until=T&buckets=N`: the number of events over time, for drawing them.

    Without `since` and `until` it covers the whole log. Buckets divide that time equally. An event with a time earlier
    than the event before it (a clock was set back) counts at the time of the event before.
    """

    begin: int  # first event that the log still has
    end: int  # number of the next event
    since: float
    until: float
    lanes: tuple[str, ...]  # rounds, network, training, chain, workers, stops
    types: dict[str, str]  # lane of each event type
    firsts: tuple[int, ...]  # number of the first event at or after each bucket's start, and finally at `until`
    counts: tuple[tuple[int, ...], ...]  # by lane, then bucket
    warnings: tuple[int, ...]  # by bucket: events of level warning or error
    rounds: tuple[RoundMark, ...]  # rounds that begin in this time


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
    charts: dict[str, str]  # state of each chart (round, link, chain, trainer, coordinator)
    before: dict[str, str]  # the same, before the event
    changes: tuple[ChangeRow, ...]
    commands: tuple[CommandRow, ...]
    pending: tuple[CommandRow, ...]  # commands not yet answered
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
    now: dict[str, str]  # as in `Moment.charts`, at the log's end


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
    set_aside: tuple[SetAside, ...] = ()  # what was not learnt from peers' rollouts


class SkipRow(msgspec.Struct, frozen=True):
    """Rounds that were skipped together."""

    first: int
    last: int
    cause: str
    seq: int
    at: float


class StagesView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/stages`: oldest first, the most recent 500."""

    stages: tuple[StageRow, ...]
    skips: tuple[SkipRow, ...]
    set_aside: str = ""  # how much of peers' rollouts the latest stages did not learn from, in words; empty: nothing
    example: str = ""  # an example of it, in the peer's own words


class TrainedStage(msgspec.Struct, frozen=True):
    """One trained stage, as `swarmd report` has it."""

    round: int
    stage: int
    seq: int  # number of the event that reports it
    at: float
    reward: float | None  # mean of the node's own completions
    held_out: float | None  # accuracy on held-out questions, if it was measured
    steps: int
    tokens: int
    seconds: float
    peer_groups: int  # peers' groups trained on
    refused: int  # peers' groups refused


class TrainingView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/training`: the results of each stage, oldest first; if there are many, the older half is
    thinned."""

    stages: tuple[TrainedStage, ...]
    total: int  # stages trained, as far back as the log reaches
    held_out_before: float | None = None  # accuracy before the node's very first step
    skills: tuple[SkillCurve, ...] = ()  # held-out accuracy by task, after those of the stages at which it was measured
    reward_max: float | None = None  # highest reward of a completion, if the plan says so


class TaskRow(msgspec.Struct, frozen=True):
    """One task of the mixture."""

    name: str
    weight: float
    settings: dict[str, Any]


class RecipeView(msgspec.Struct, frozen=True):
    """`GET /api/v1/node/recipe`: what this node trains and how, from its log; tasks and settings from its
    configuration."""

    swarm: str
    kind: str  # empty if neither log nor configuration says
    role: str
    stages: int  # in a round
    model: str  # as the trainer loaded it; before that, as configured
    revision: str
    device: str
    parameters: int
    numbers: str  # dtype in which the model is held and trained
    configured: bool  # whether the configuration is known here
    tasks: tuple[TaskRow, ...] = ()  # empty: the kind's default mixture
    settings: tuple[tuple[str, Any], ...] = ()  # (key of [training], value)


class PageSource(msgspec.Struct, frozen=True):
    """`GET /api/v1/here`: what this server shows; the page asks for it first."""

    version: str
    node: bool  # a node's log: the node page works
    swarm: bool  # the swarm page works
    live: bool  # whether the log grows or the DHT is followed; False for an archive
    peer: str = ""
    name: str = ""
    swarm_id: str = ""
    data: str = ""  # last part of the path of the directory
    trouble: str = ""  # why the log cannot be read to its end; what is shown is what lies before
    read: float = 1.0  # share of the log that has been read; below 1 right after starting on a long log


# `GET /api/v1/node/status` answers with `swarmd.observe.status.Status`.


PEERS_ANSWERED_MAX = 2000  # peers in one view or page; `total` counts all


class Unavailable(SwarmdError):
    """What was asked for is unavailable now; the message says why."""


class ChangeSignal:
    """Signals changes to all waiting coroutines of one event loop."""

    def __init__(self) -> None:
        self.version = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters. Call it in the event loop's thread."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer_than(self, version: int) -> int:
        """Wait for a version other than `version` and return it."""
        while self.version == version:
            await self._changed.wait()
        return self.version
