"""Tell a node what happens to it, event by event, and look at what it wants done."""

from typing import Self

from swarmd.core.applied import AppliedEvent, apply_facts
from swarmd.core.chart_types import RoundState
from swarmd.core.commands import Command
from swarmd.core.events import (
    AnyChainLog,
    ChainBlock,
    ChainUp,
    Event,
    LinkUp,
    NodeStarted,
    Registered,
    ReportPublished,
    RolloutsGathered,
    RoundAnnounced,
    StageTrained,
    TimerFired,
    TrainerReady,
    WorkerStarted,
)
from swarmd.core.state import State, next_deadline
from swarmd.core.values import BlockRef, ChainSettings, CoordinatorSettings, RolloutsRef, Settings


def settings(**fields: object) -> Settings:
    base: dict[str, object] = {"peer": "me", "swarm": "test", "role": "follower", "coordinator": "boss"}
    return Settings(**(base | fields))  # type: ignore[arg-type]


def coordinator_settings(**fields: object) -> Settings:
    rules = CoordinatorSettings(**fields)  # type: ignore[arg-type]
    return settings(role="coordinator", coordinator="me", coordination=rules)


def chain_settings(role: str = "follower", behind: str = "finish-stage", **fields: object) -> Settings:
    """A node of a swarm whose rounds a contract keeps."""
    return settings(role=role, behind=behind, chain=ChainSettings(**fields))  # type: ignore[arg-type]


def block(number: int, fork: str = "") -> BlockRef:
    return BlockRef(number, f"0x{number}{fork}", f"0x{number - 1}{fork}", 10.0 * number)


def chain_up(round: int = 0, stage: int = 0, head: int = 1, **fields: object) -> ChainUp:
    """The contract is at this place, and knows the node under its account unless told otherwise."""
    base: dict[str, object] = {
        "chain_id": 1,
        "contract": "0xc",
        "genesis": "0xg",
        "head": block(head),
        "stages": 1,
        "round": round,
        "stage": stage,
        "opened_at": 0.0,
        "account": "0xme",
        "registered_to": "0xme",
        "extensions": 1,
    }
    return ChainUp(**(base | fields))  # type: ignore[arg-type]


def said(number: int, *logs: AnyChainLog) -> ChainBlock:
    return ChainBlock(block(number), logs)


def announced(
    round: int, stage: int = 0, deadline_at: float = 1000.0, final: bool = False, opened_at: float = 0.0
) -> RoundAnnounced:
    return RoundAnnounced(round, stage, opened_at, deadline_at, final)


def gathered(round: int, stage: int = 0, rollouts: tuple[RolloutsRef, ...] = ()) -> RolloutsGathered:
    return RolloutsGathered(f"gather/{round}/{stage}", round, stage, rollouts)


def trained(round: int, stage: int = 0, reward: float = 0.5) -> StageTrained:
    reference = RolloutsRef("me", round, stage, "d" * 64, 100, 4)
    return StageTrained(f"train/{round}/{stage}", round, stage, reward, reference)


class Story:
    """A node under test; `at` is the time of the next event."""

    def __init__(self, node: Settings) -> None:
        self.node = node
        self.state = State()
        self.at = 0.0
        self.seq = 0
        self.lives = 0
        self.recorded: list[Event] = []
        self.heard: list[AppliedEvent] = []  # the same, with the states before and after

    @classmethod
    def joined(cls, node: Settings, peers: int = 1) -> Self:
        """One that runs, with both workers ready and the node registered."""
        story = cls(node)
        story.join(peers)
        return story

    @classmethod
    def on_chain(cls, node: Settings, at: ChainUp | None = None) -> Self:
        """The same with the chain worker too, and the contract at its first stage."""
        story = cls(node)
        story.join_chain(at)
        return story

    def chart(self) -> RoundState:
        """Where it is now. A call: mypy takes an attribute to stay what it was found to be last."""
        return self.state.chart

    def tell(self, *events: Event) -> tuple[Command, ...]:
        """Let events happen now; the commands that they cause."""
        commands: tuple[Command, ...] = ()
        for observed in events:
            for applied in apply_facts(self.state, self.seq, self.at, (observed,)):
                self.state = applied.after
                self.seq += 1
                self.recorded.append(applied.event)
                self.heard.append(applied)
                commands += applied.commands
        return commands

    def start(self) -> tuple[Command, ...]:
        """A new life begins."""
        self.lives += 1
        return self.tell(NodeStarted(self.node, run=f"run{self.lives}"))

    def workers_run(self) -> tuple[Command, ...]:
        return self.tell(WorkerStarted("network", 11, 1), WorkerStarted("trainer", 12, 1))

    def start_workers(self) -> tuple[Command, ...]:
        """A new life begins, and both workers run."""
        return (*self.start(), *self.workers_run())

    def join(self, peers: int = 1) -> tuple[Command, ...]:
        """Start, with both workers ready and the node registered."""
        return (*self.start_workers(), *self.join_as_started(peers))

    def restore(self, from_round: int = 0) -> None:
        """Begin the first life after it was brought back from a backup, and join."""
        self.lives += 1
        self.tell(NodeStarted(self.node, f"run{self.lives}", restored=True, from_round=from_round))
        self.workers_run()
        self.join_as_started()

    def finish(self, round: int) -> None:
        """The first stage of a round is gathered for, trained and reported."""
        self.tell(gathered(round), trained(round), ReportPublished(f"report/{round}/0", round, 0))

    def join_as_started(self, peers: int = 1) -> tuple[Command, ...]:
        """The workers, which run, are ready, and the node is registered."""
        return self.tell(LinkUp(peers), Registered("register"), TrainerReady("cpu", "tiny", 1))

    def join_chain(self, at: ChainUp | None = None) -> tuple[Command, ...]:
        """As `join`, with the chain worker too, and the contract at its first stage."""
        return (*self.join(), *self.tell(WorkerStarted("chain", 13, 1), at or chain_up()))

    def wait(self, name: str) -> tuple[Command, ...]:
        """Let time pass until the deadline of this name."""
        deadline = next(deadline for deadline in self.state.deadlines if deadline.name == name)
        self.at = deadline.due_at
        return self.tell(TimerFired(name, deadline.due_at))

    @property
    def waits(self) -> list[str]:
        """Names of the deadlines that stand."""
        first = next_deadline(self.state)
        assert first is None or first in self.state.deadlines
        return [deadline.name for deadline in self.state.deadlines]


def ids(commands: tuple[Command, ...]) -> list[str]:
    return [command.id for command in commands]
